package sim

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

const (
	roundRobinName = "round-robin"
	ours           = "grapevine"
)

// sharedCache is no peer but the reference bound: one cache of all pods' size that every pod reads at once.
const sharedCache = "shared-cache"

// exact is no product either but a reference to judge digests by: ours with one gateway that all ticks reach at once, a digest of
// 64 bits a block that is sent as soon as it changes, and agents without faults. What agents read of their engines' queues and
// memory is as seldom as ever.
const exact = "grapevine-exact"

// early is ours without late binding: each request is bound when it arrives, as with --holding=false.
const early = "grapevine-early"

// Policies lists the names of all policies: the peers', the bound, ours, and the reference for it.
func Policies() []string {
	return []string{
		roundRobinName, "least-outstanding", "session-hash", "llmd-legacy", "llmd-default", "dynamo", "sglang", "min-ttft",
		sharedCache, ours, early, exact,
	}
}

func newPolicy(w *world) (policy, error) {
	if w.cfg.Policy == ours || w.cfg.Policy == early || w.cfg.Policy == exact {
		return newFleet(w)
	}
	return newPeers(w), nil
}

// peers routes each job when it arrives, as all routers compared with do. What they go by is better than they have: an index
// of every cache that is exact but for StateDelay and holds what they have just sent, and their own counts.
type peers struct {
	w      *world
	choose func(now time.Duration, s *sight) int
	index  *index
	shared bool // one cache of all pods' size
	routed []routed
	turn   int
}

// routed is what the gateways together know of one pod from what they sent there.
type routed struct {
	outstanding int
	prefills    int    // without a first token
	uncached    int    // tokens of these to compute
	tokens      int    // prompts and answers in flight
	prompts     int    // prompt tokens in flight
	load        load   // as of StateDelay ago
	first       []*job // in the order of sending
}

// sent is what was predicted of a job when it was sent.
type sent struct {
	uncached int // tokens
	work     time.Duration
}

// sight is what a policy sees of one job.
type sight struct {
	*peers
	now     time.Duration
	job     *job
	matched []int // blocks, by pod
}

func newPeers(w *world) *peers {
	p := &peers{w: w, index: newIndex(), routed: make([]routed, w.cfg.Pods), shared: w.cfg.Policy == sharedCache}
	p.choose = map[string]func(time.Duration, *sight) int{
		roundRobinName:      roundRobin,
		"least-outstanding": leastOutstanding,
		"session-hash":      sessionHash,
		"llmd-legacy":       blend(3, 2, 2),
		"llmd-default":      llmdDefault,
		"dynamo":            dynamo,
		"sglang":            sglang,
		"min-ttft":          minTTFT,
		sharedCache:         minTTFT,
	}[w.cfg.Policy]
	return p
}

func (p *peers) arrive(now time.Duration, j *job) {
	if !slices.ContainsFunc(p.w.pods, func(x *pod) bool { return !x.down }) {
		p.w.refuse(now, j)
		return
	}
	s := &sight{peers: p, now: now, job: j, matched: make([]int, len(p.routed))}
	p.index.match(j.request.chain, s.matched)
	if p.shared {
		most := slices.Max(s.matched)
		for i := range s.matched {
			s.matched[i] = most
		}
	}
	at := p.choose(now, s)
	p.turn++
	r := &p.routed[at]
	uncached := s.uncached(at)
	r.outstanding++
	r.prefills++
	r.uncached += uncached
	r.tokens += j.prompt() + j.output()
	r.prompts += j.prompt()
	r.first = append(r.first, j)
	j.state = sent{uncached, p.w.pods[at].believed().Prefill(uncached, j.prompt()-uncached)}
	p.index.expect(j.request.chain, at, 1)
	p.w.send(now, j, at)
}

func (p *peers) first(now time.Duration, j *job) {
	r := &p.routed[j.pod]
	r.prefills--
	r.uncached -= j.state.(sent).uncached
	// Not before the index hears of the blocks themselves.
	p.w.at(now+p.w.cfg.StateDelay, func(time.Duration) { p.index.expect(j.request.chain, j.pod, -1) })
}

func (p *peers) done(now time.Duration, j *job) {
	if !j.seen {
		p.first(now, j)
	}
	r := &p.routed[j.pod]
	r.outstanding--
	r.tokens -= j.prompt() + j.output()
	r.prompts -= j.prompt()
}

func (p *peers) gone(now time.Duration, j *job) { p.done(now, j) }

func (p *peers) broken(now time.Duration, j *job, _ bool) { p.done(now, j) }

func (p *peers) died(_ time.Duration, at *pod) {
	p.index.forget(at.index)
	p.routed[at.index].load = load{}
}

func (p *peers) back(time.Duration, *pod) {}

func (p *peers) changed(_ time.Duration, at *pod) {
	events, l := at.engine.events(), at.engine.load()
	life := at.life
	apply := func(time.Duration) {
		if at.life != life {
			return
		}
		p.routed[at.index].load = l
		for _, e := range events {
			p.index.apply(e.Event, at.index, p.w.prompts)
		}
	}
	if p.w.cfg.StateDelay == 0 {
		apply(p.w.now)
		return
	}
	p.w.at(p.w.now+p.w.cfg.StateDelay, apply)
}

// uncached tokens of the job on a pod.
func (s *sight) uncached(pod int) int {
	return s.job.prompt() - min(s.matched[pod]*s.w.cfg.Trace.BlockTokens, s.job.prompt()-1)
}

// least returns the pod with the least value among those that are up and count; of equals the one whose turn it is. -1 if none counts.
func (s *sight) least(value func(pod int) float64, counts func(pod int) bool) int {
	best, at := math.Inf(1), -1
	n := len(s.routed)
	for o := range n {
		i := (s.turn + o) % n
		if s.w.pods[i].down || counts != nil && !counts(i) {
			continue
		}
		if v := value(i); v < best-1e-9 {
			best, at = v, i
		}
	}
	return at
}

func roundRobin(_ time.Duration, s *sight) int {
	return s.least(func(int) float64 { return 0 }, nil)
}

func leastOutstanding(_ time.Duration, s *sight) int {
	return s.least(func(i int) float64 { return float64(s.routed[i].outstanding) }, nil)
}

// sessionHash is rendezvous hashing by session with bounded loads (KubeAI internal/loadbalancer, balance_chwbl.go: a pod takes
// a request while its share is at most 1.25 times the mean; there it is a ring by the first characters).
func sessionHash(_ time.Duration, s *sight) int {
	total := 1
	for i := range s.routed {
		total += s.routed[i].outstanding
	}
	bound := 1.25 * float64(total) / float64(len(s.routed))
	var session [8]byte
	binary.LittleEndian.PutUint64(session[:], s.job.request.session)
	score := func(i int) float64 { return -float64(xxh3.HashSeed(session[:], uint64(i)) >> 11) }
	if at := s.least(score, func(i int) bool { return float64(s.routed[i].outstanding) <= bound }); at >= 0 {
		return at
	}
	return s.least(score, nil)
}

// blend is llm-d's weighted sum of scorers: the matched share of the prompt, the queue between the shortest and the longest, and
// the free share of the KV cache (llm-d-inference-scheduler 0.2 to 0.4; the default configuration had prefix 3, queue 2, KV 2).
func blend(prefix, queue, kv float64) func(time.Duration, *sight) int {
	return func(_ time.Duration, s *sight) int {
		low, high := math.MaxInt, 0
		for i := range s.routed {
			low, high = min(low, s.routed[i].prefills), max(high, s.routed[i].prefills)
		}
		blocks := float64(max(1, len(s.job.request.chain)))
		return s.least(func(i int) float64 {
			r := &s.routed[i]
			empty := 1.0
			if high > low {
				empty = float64(high-r.prefills) / float64(high-low)
			}
			free := 1.0
			if r.load.blocks > 0 {
				free = 1 - float64(r.load.used)/float64(r.load.blocks)
			}
			return -(prefix*float64(s.matched[i])/blocks + queue*empty + kv*free)
		}, nil)
	}
}

// llmdDefault is llm-d's present default: pods with at least 80 % of the prompt are preferred, unless the predicted TTFT on
// the best of them is over 18 s worse than elsewhere; among those left the least token load (llm-d-router 0.6,
// prefix-cache-affinity-filter and token-load-scorer; 8,650 tokens a second is its default prefill speed).
func llmdDefault(_ time.Duration, s *sight) int {
	const peak, share, penalty = 8650, 0.8, 18
	blocks := float64(max(1, len(s.job.request.chain)))
	sticky := func(i int) bool { return float64(s.matched[i]) >= share*blocks }
	ttft := func(i int) float64 {
		return float64(s.routed[i].uncached+s.uncached(i)) / peak * s.w.pods[i].wrong
	}
	if a := s.least(ttft, sticky); a >= 0 {
		if b := s.least(ttft, nil); ttft(a)-ttft(b) <= penalty {
			return s.least(func(i int) float64 { return float64(s.routed[i].prompts) }, sticky)
		}
	}
	return s.least(func(i int) float64 { return float64(s.routed[i].prompts + s.uncached(i)) }, nil)
}

// dynamo is NVIDIA Dynamo's KV router: the least sum of blocks to prefill, those queued before included, and of blocks in
// decode (lib/llm kv_router scheduler, overlap weight 1, temperature 0).
func dynamo(_ time.Duration, s *sight) int {
	b := float64(s.w.cfg.Trace.BlockTokens)
	return s.least(func(i int) float64 {
		r := &s.routed[i]
		return float64(r.uncached+s.uncached(i))/b + float64(r.tokens)/b
	}, nil)
}

// sglang is the cache-aware policy of SGLang's and vLLM's routers: shortest queue while the load is uneven (by more than 64 and
// by half), else the longest match if it is over 30 % of the prompt, else the shortest queue (sgl-model-gateway
// policies/cache_aware.rs).
func sglang(now time.Duration, s *sight) int {
	low, high := math.MaxInt, 0
	for i := range s.routed {
		low, high = min(low, s.routed[i].outstanding), max(high, s.routed[i].outstanding)
	}
	if high-low > 64 && float64(high) > 1.5*float64(low) {
		return leastOutstanding(now, s)
	}
	best := s.least(func(i int) float64 { return -float64(s.matched[i]) }, nil)
	if float64(s.matched[best]) > 0.3*float64(max(1, len(s.job.request.chain))) {
		return best
	}
	return leastOutstanding(now, s)
}

// minTTFT takes the pod where the first token is predicted soonest, with the speed of prefills that is believed and the true
// rest of the one under way; of equal ones the one with fewer requests.
func minTTFT(now time.Duration, s *sight) int {
	return s.least(func(i int) float64 {
		p := s.w.pods[i]
		rest, queue := p.engine.backlog(now)
		wait := time.Duration(p.wrong * float64(rest))
		for _, j := range queue {
			wait += j.state.(sent).work
		}
		n := s.uncached(i)
		return math.Round((wait+p.believed().Prefill(n, s.job.prompt()-n)).Seconds()*1e6) + 1e-4*float64(s.routed[i].outstanding)
	}, nil)
}

// index knows which pods hold or will hold which blocks.
type index struct {
	holders  map[blockhash.Hash]uint64 // a bit a pod
	expected map[podBlock]int          // sent there and not computed yet
	copies   map[podBlock]int
}

type podBlock struct {
	pod   int
	block blockhash.Hash
}

func newIndex() *index {
	return &index{holders: map[blockhash.Hash]uint64{}, expected: map[podBlock]int{}, copies: map[podBlock]int{}}
}

// match counts the leading blocks that each pod has.
func (x *index) match(chain []blockhash.Hash, matched []int) {
	have := uint64(1)<<len(matched) - 1
	if len(matched) == maxPods {
		have = math.MaxUint64
	}
	for n, h := range chain {
		next := have & x.holders[h]
		for lost := have &^ next; lost != 0; lost &= lost - 1 {
			matched[bits.TrailingZeros64(lost)] = n
		}
		if have = next; have == 0 {
			return
		}
	}
	for ; have != 0; have &= have - 1 {
		matched[bits.TrailingZeros64(have)] = len(chain)
	}
}

// expect counts n more, or fewer, jobs that will bring their blocks to a pod.
func (x *index) expect(chain []blockhash.Hash, pod, n int) {
	for _, h := range chain {
		x.count(x.expected, podBlock{pod, h}, n)
	}
}

func (x *index) apply(e pool.Event, pod int, p *prompts) {
	n := 1
	switch e.Kind {
	case pool.Stored:
	case pool.Removed:
		n = -1
	default:
		return
	}
	for _, d := range e.Hashes {
		if id, ok := p.ids[d]; ok { // else part of an answer
			x.count(x.copies, podBlock{pod, p.chains[id]}, n)
		}
	}
}

// forget drops what a pod stored.
func (x *index) forget(pod int) {
	for k := range x.copies {
		if k.pod == pod {
			x.count(x.copies, k, -x.copies[k])
		}
	}
}

func (x *index) count(of map[podBlock]int, k podBlock, n int) {
	if of[k] += n; of[k] <= 0 {
		delete(of, k)
	}
	if x.expected[k] > 0 || x.copies[k] > 0 {
		x.holders[k.block] |= 1 << k.pod
		return
	}
	if x.holders[k.block] &^= 1 << k.pod; x.holders[k.block] == 0 {
		delete(x.holders, k.block)
	}
}
