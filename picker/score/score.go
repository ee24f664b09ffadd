// Package score prices a request on an endpoint, in milliseconds.
//
// The price of an endpoint is
//
//	c = own uncached prefill + g x the same at the fleet's mean speed + displacement + lower-tier load + decode interference + load
//
// The second helping of prefill, g, is the work that the choice adds for everybody else: choosing by one's own time to
// first token alone recomputes shared prefixes and loses under load, the more so the more requests wait. It is counted at the mean speed, for a second of a slow
// endpoint is worth less: with the endpoints' own speeds everybody crowds onto the fast ones until nothing stays in their caches.
// Displacement is the recompute work that the request's new blocks cause by evicting blocks of others: the more of the traffic
// finds its blocks again the more of it. Beside the price stands the expected wait: how long until the
// endpoint can start the prefill. Binding at arrival minimises wait + c; package hold waits for a ready endpoint instead.
//
// Everything is a pure function of facts. The package doesn't know where they come from, nor which endpoints may be used.
package score

import "math"

// Model is the prefill cost of one endpoint: n uncached tokens behind c cached ones take
// Overhead + PerToken*n + Quadratic*n*(2c+n) milliseconds. The zero Model costs nothing.
type Model struct {
	Overhead  float64 // ms a request
	PerToken  float64 // ms a token
	Quadratic float64 // ms a token squared: attention over what lies before
}

// Time returns the milliseconds of a prefill of uncached tokens behind cached ones.
func (m Model) Time(uncached, cached int) float64 {
	n, c := float64(uncached), float64(cached)
	return m.Overhead + m.PerToken*n + m.Quadratic*n*(2*c+n)
}

// Scaled returns the model of an engine that runs s times as fast.
func (m Model) Scaled(s float64) Model {
	return Model{Overhead: m.Overhead / s, PerToken: m.PerToken / s, Quadratic: m.Quadratic / s}
}

// Params are the weights of the price. All times are milliseconds.
type Params struct {
	Spread       float64 // g: weight of the work that a choice adds for others
	MinMatch     int     // blocks; a shorter match counts as none
	Displacement float64 // weight of the recompute that evictions cause
	VictimTau    float64 // idle age at which a victim's recompute counts 1/e
	LowerTier    float64 // load from a lower tier, per token
	Interference float64 // share of the slower decode that counts
	PerRunning   float64 // per request that the endpoint already works on
	ReadyWithin  float64 // an endpoint whose queue is over by then is ready
	MemoryWait   float64 // wait for KV memory where nothing better is known
	MemoryMax    float64 // longest such wait believed
	FreeShare    float64 // share of the KV blocks kept free for what already decodes
	MarginMs     float64 // costs this close count as equal,
	MarginShare  float64 // or this close relative to the best
	ReuseMs      float64 // by how much a price may be wrong: this close to the best,
	ReuseShare   float64 // or this close relative to it, the cache decides
}

// Default returns weights for engines at real speed.
func Default() Params {
	return Params{
		Spread:       1,
		MinMatch:     4,
		Displacement: 5,
		VictimTau:    60_000,
		LowerTier:    0.006,
		Interference: 0.05,
		PerRunning:   5,
		ReadyWithin:  25,
		MemoryWait:   3_000,
		MemoryMax:    10_000,
		FreeShare:    0.03,
		MarginMs:     1,
		MarginShare:  0.01,
		ReuseMs:      20,
		ReuseShare:   0.15,
	}
}

// Scaled returns the weights for engines that run s times as fast.
func (p Params) Scaled(s float64) Params {
	p.VictimTau /= s
	p.LowerTier /= s
	p.PerRunning /= s
	p.ReadyWithin /= s
	p.MemoryWait /= s
	p.MemoryMax /= s
	p.MarginMs /= s
	p.ReuseMs /= s
	return p
}

// Request is what a price depends on besides the endpoint. Its fields may not change once it has been priced; one Request
// is for one goroutine.
type Request struct {
	PromptTokens int
	OutputTokens int // expected
	// Fleet is the mean prefill cost of the endpoints: what a choice adds for others is priced by it, since a slow endpoint's
	// time is worth less; times as many as are in its way. The zero Model means the endpoint's own.
	Fleet Model
	// Reuse is the share of prompt tokens that were found in caches lately, 0 to 1: where little comes again, little is lost
	// by an eviction.
	Reuse float64

	// Of the block size below, kept since nearly all endpoints of a pool have the same.
	blockSize int
	readable  int // prompt blocks that can be read from a cache
	needed    int // blocks that prompt and answer take
}

// cut computes what depends on the block size.
func (r *Request) cut(blockSize int) {
	r.blockSize = blockSize
	r.readable = PromptBlocks(r.PromptTokens, blockSize)
	r.needed = (r.PromptTokens + r.OutputTokens + blockSize - 1) / blockSize
}

// Endpoint holds the facts of one endpoint for one request. Times are milliseconds. What Price reads in the common case
// stands together: it goes over the endpoints of a whole pool.
type Endpoint struct {
	Key       uint64 // identity for breaking ties, the same on every gateway
	BlockSize int    // tokens, positive

	Matched    int     // leading prompt blocks in GPU memory
	MatchedAll int     // leading prompt blocks over all tiers; below Matched it means Matched
	Trust      float64 // share of the match that is believed, 0 to 1

	Queue         float64 // own prefills bound here and not over
	Idle          float64 // since the last own request was bound here
	Outstanding   int     // own requests bound here and not ended
	PendingBlocks int     // KV blocks of own requests that the engine's figures may not show yet
	Waiting       int     // requests in the engine's queue that this gateway did not bind
	Full          bool    // own requests wait here up to the limit
	Contention    float64 // expected loss to a request that another gateway is about to bind here

	Stale bool // ranks behind every endpoint that is not

	prepared bool
	sized    bool    // the number of blocks is known
	prefill  Model   // Prefill at the GPU's present speed
	block    float64 // displacement per evicted block, in tokens
	slower   float64 // interference per token of the answer
	room     int     // KV blocks that can be had, but for PendingBlocks
	most     int     // KV blocks that can be had of an empty engine

	Running        int
	Free           int // KV blocks that hold nothing
	Cached         int // evictable, holding a prefix
	Blocks         int // in all
	VictimIdle     float64
	DecodeStep     float64
	DecodePerToken float64 // per resident token

	Prefill  Model
	Slowdown float64 // of the GPU: 1 none, 0.5 half speed; 0 unknown

	MeanPrefill float64 // of a request, for those in Waiting
	MeanOutput  float64 // tokens of an answer
}

// Terms are the parts of a price, milliseconds each.
type Terms struct {
	Prefill      float64 `json:"prefill_ms"` // own uncached prefill
	Spread       float64 `json:"spread_ms"`  // g times the same at the mean speed
	Displacement float64 `json:"displacement_ms"`
	LowerTier    float64 `json:"lower_tier_ms"`
	Interference float64 `json:"interference_ms"`
	Load         float64 `json:"load_ms"`
}

// Cost returns the sum.
func (t *Terms) Cost() float64 {
	return t.Prefill + t.Spread + t.Displacement + t.LowerTier + t.Interference + t.Load
}

// Candidate is one endpoint's answer for one request.
type Candidate struct {
	Index    int     // the caller's number of the endpoint
	Key      uint64  // as in Endpoint
	Cost     float64 // sum of Terms
	Wait     float64 // ms until the prefill could start
	Uncached int     // prompt tokens to compute, as far as the match is believed
	Ready    bool    // it can start now
	Idle     float64 // ms since this gateway last bound something here; 0 if its own requests or the memory are in the way
	Full     bool    // nothing more may be bound here
	Stale    bool
	Terms    Terms
}

// Prepare computes what does not depend on the request: all but the fields from Matched to Full may not change between
// Prepare and Price. Price does it by itself where it was not done.
func (p *Params) Prepare(e *Endpoint) {
	slowness := 1.0
	if e.Slowdown > 0 {
		slowness = 1 / e.Slowdown
	}
	e.prefill = Model{Overhead: e.Prefill.Overhead * slowness, PerToken: e.Prefill.PerToken * slowness, Quadratic: e.Prefill.Quadratic * slowness}
	e.sized = e.Blocks != 0
	e.most = e.Blocks - int(p.FreeShare*float64(e.Blocks))
	e.room = e.Free + e.Cached - (e.Blocks - e.most)
	// The work of computing a block again, discounted by how long the victims have idled.
	e.block = math.Exp(-e.VictimIdle/p.VictimTau) * float64(e.BlockSize)
	// What the request's own decode loses to the tokens that already sit there.
	resident := max(0, e.Blocks-e.Free-e.Cached) * e.BlockSize
	e.slower = p.Interference * e.DecodePerToken * float64(resident)
	e.prepared = true
}

// PrefillTime returns the milliseconds of a prefill of uncached tokens behind cached ones at the present speed. Prepare must
// have been called.
func (e *Endpoint) PrefillTime(uncached, cached int) float64 { return e.prefill.Time(uncached, cached) }

// Price fills c with what endpoint e costs request r. It allocates nothing.
func (p *Params) Price(c *Candidate, r *Request, e *Endpoint, index int) {
	if !e.prepared {
		p.Prepare(e)
	}
	if r.blockSize != e.BlockSize {
		r.cut(e.BlockSize)
	}
	cached, loaded := p.cachedTokens(r, e)
	uncached := r.PromptTokens - cached
	need := r.needed - min(e.Matched, r.readable)

	fleet := &r.Fleet
	if fleet.PerToken == 0 {
		fleet = &e.prefill
	}
	wait := 0.0
	if e.Queue > 0 { // the built-in max would take twice as long: NaNs
		wait = e.Queue
	}
	if e.Waiting > 0 {
		wait += float64(e.Waiting) * e.MeanPrefill
	}
	fits, displacement := true, 0.0
	if e.sized {
		// The work of computing again what the new blocks push out.
		displacement = p.Displacement * r.Reuse * fleet.PerToken * e.block * float64(max(0, min(need, need+e.PendingBlocks-e.Free)))
		if fits = e.fits(need); !fits {
			wait += p.memoryWait(e, need)
		}
	}
	// Field by field: a literal would be made elsewhere and copied, which takes as long as all else.
	t := &c.Terms
	t.Prefill = e.prefill.Time(uncached, cached)
	t.Spread = p.Spread * fleet.Time(uncached, cached)
	t.Displacement = displacement
	t.LowerTier = p.LowerTier * float64(loaded)
	t.Interference = e.slower * float64(r.OutputTokens)
	t.Load = p.PerRunning*float64(max(e.Outstanding, e.Running)) + e.Contention
	c.Index, c.Key, c.Uncached = index, e.Key, uncached
	c.Cost, c.Wait = t.Cost(), wait
	free := fits && !e.Full && e.Queue <= p.ReadyWithin
	c.Ready, c.Idle = free && e.Waiting == 0, 0
	if free {
		c.Idle = e.Idle
	}
	c.Full, c.Stale = e.Full, e.Stale
}

// PromptBlocks returns how many blocks of an n-token prompt can be read from the cache: the last token is always computed.
func PromptBlocks(n, blockSize int) int { return max(0, n-1) / blockSize }

// cachedTokens returns the prompt tokens that need no prefill, and how many of them must be loaded from a lower tier.
func (p *Params) cachedTokens(r *Request, e *Endpoint) (cached, loaded int) {
	gpu := min(e.Matched, r.readable)
	all := max(gpu, min(e.MatchedAll, r.readable))
	if all < p.MinMatch {
		return 0, 0
	}
	cached, gpu = all*e.BlockSize, gpu*e.BlockSize
	if e.Trust < 1 {
		cached, gpu = int(e.Trust*float64(cached)), int(e.Trust*float64(gpu))
	}
	return cached, cached - gpu
}

// fits reports whether need new blocks fit. An endpoint that works on nothing takes anything, and what would never fit is
// the engine's to refuse.
func (e *Endpoint) fits(need int) bool {
	return need <= e.room-e.PendingBlocks || e.Running == 0 && e.Outstanding == 0 || need > e.most
}

// memoryWait is how long until need blocks may fit: as many of the running requests must end as hold what is missing.
func (p *Params) memoryWait(e *Endpoint, need int) float64 {
	used := e.Blocks - e.Free - e.Cached
	if e.Running == 0 || used <= 0 || e.DecodeStep <= 0 || e.MeanOutput <= 0 {
		return p.MemoryWait
	}
	ends := math.Ceil(float64(need-e.room+e.PendingBlocks) * float64(e.Running) / float64(used))
	return min(p.MemoryMax, ends*e.MeanOutput*e.DecodeStep/float64(e.Running))
}
