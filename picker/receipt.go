package picker

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/grapevine-llm/grapevine/picker/score"
)

// Receipt says why a request went where it went.
type Receipt struct {
	RequestID             string      `json:"request_id"`
	Time                  time.Time   `json:"time"` // of the decision
	Model                 string      `json:"model,omitempty"`
	Policy                string      `json:"policy"`
	Reason                string      `json:"reason"` // see Decision
	Endpoint              string      `json:"endpoint"`
	Rung                  Rung        `json:"rung"`
	PromptRung            string      `json:"prompt_rung,omitempty"`
	PromptTokens          int         `json:"prompt_tokens"`
	PromptBlocks          int         `json:"prompt_blocks"`
	MatchedBlocks         int         `json:"matched_blocks"`
	PredictedCachedTokens int         `json:"predicted_cached_tokens"`
	HeldMs                float64     `json:"held_ms"`
	Candidates            []Candidate `json:"candidates"`        // cheapest first; the chosen one is always among them
	Considered            int         `json:"considered"`        // candidates in all
	Outcome               *Answer     `json:"outcome,omitempty"` // nil until the request has ended
}

// Candidate is what one endpoint would have cost.
type Candidate struct {
	Endpoint      string  `json:"endpoint"`
	Rung          Rung    `json:"rung"`
	MatchedBlocks int     `json:"matched_blocks"` // in its cache, or marked
	CachedTokens  int     `json:"cached_tokens"`  // these in tokens, as far as the engine reads them
	DigestBlocks  int     `json:"digest_blocks"`  // by its digest alone
	DigestAgeMs   float64 `json:"digest_age_ms"`  // -1: no agent
	Trust         float64 `json:"trust"`          // share of the match that is believed
	Ready         bool    `json:"ready"`
	Stale         bool    `json:"stale,omitempty"`
	Full          bool    `json:"full,omitempty"`
	WaitMs        float64 `json:"wait_ms"` // until it could start
	CostMs        float64 `json:"cost_ms"` // sum of the terms
	score.Terms
}

// Answer is what became of a request.
type Answer struct {
	Status       int     `json:"status"`
	Error        string  `json:"error,omitempty"`
	CachedTokens int     `json:"cached_tokens"` // -1 unknown
	PromptTokens int     `json:"prompt_tokens"`
	OutputTokens int     `json:"output_tokens"`
	TookMs       float64 `json:"took_ms"` // from the decision on
}

// receipt explains a decision by the candidates that were last priced, at most limit of them (0: all). Caller holds p.mu.
func (p *Picker) receipt(now time.Time, q *query, d *Decision, limit int) Receipt {
	r := Receipt{
		RequestID: q.req.ID, Time: now, Model: q.req.Model, Policy: d.Policy, Reason: d.Reason,
		Endpoint: d.Endpoint.ID, Rung: d.Rung, PromptRung: q.req.PromptRung,
		PromptTokens: q.tokens, PromptBlocks: d.PromptBlocks, MatchedBlocks: d.MatchedBlocks,
		PredictedCachedTokens: d.PredictedCachedTokens, HeldMs: ms(d.Held), Considered: len(p.candidates),
	}
	if limit <= 0 || limit > len(p.candidates) {
		limit = len(p.candidates)
	}
	p.cheapest = cheapest(p.cheapest[:0], p.candidates, limit)
	chosen := func(i int) bool { return q.table.endpoints[p.candidates[i].Index].public.ID == d.Endpoint.ID }
	if !slices.ContainsFunc(p.cheapest, chosen) {
		for i := range p.candidates {
			if chosen(i) {
				p.cheapest[limit-1] = i
				break
			}
		}
	}
	r.Candidates = p.receipts.candidates(limit)[:len(p.cheapest)]
	for k, i := range p.cheapest {
		p.explain(&r.Candidates[k], q, &p.candidates[i])
	}
	return r
}

// cheapest appends to dst the positions of the n candidates with the least wait + cost, in that order.
func cheapest(dst []int, c []score.Candidate, n int) []int {
	total := func(i int) float64 { return c[i].Wait + c[i].Cost }
	if n == len(c) {
		for i := range c {
			dst = append(dst, i)
		}
		slices.SortFunc(dst, func(a, b int) int { return cmp.Compare(total(a), total(b)) })
		return dst
	}
	for i := range c {
		if len(dst) == n {
			if total(i) >= total(dst[n-1]) {
				continue
			}
			dst = dst[:n-1]
		}
		at := len(dst)
		for at > 0 && total(i) < total(dst[at-1]) {
			at--
		}
		dst = slices.Insert(dst, at, i)
	}
	return dst
}

// explain fills in out, field by field: it is made where it stays.
func (p *Picker) explain(out *Candidate, q *query, c *score.Candidate) {
	e := q.table.endpoints[c.Index]
	out.Endpoint, out.Rung = e.public.ID, p.rung(q, c.Index)
	out.DigestAgeMs, out.Trust = -1, 1
	out.Ready, out.Stale, out.Full = c.Ready, c.Stale, c.Full
	out.WaitMs, out.CostMs, out.Terms = c.Wait, c.Cost, c.Terms
	out.MatchedBlocks, out.DigestBlocks = p.matchedBlocks(q, c.Index)
	out.CachedTokens = predicted(q, out.MatchedBlocks, q.table.slots[c.Index].blockSize)
	if e.age >= 0 {
		out.DigestAgeMs = ms(e.age)
	}
	if out.Rung <= RungSuspect {
		out.Trust = e.trust()
	}
}

// Explain returns the receipt that a request would get now, with all candidates. Nothing is bound. The endpoint is empty
// if the request would be held. Errors are those of Pick.
func (p *Picker) Explain(ctx context.Context, req Request) (Receipt, error) {
	if err := ctx.Err(); err != nil {
		return Receipt{}, err
	}
	now := p.clock()
	q := p.prepared(now, req)
	defer p.release(q)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freshen(now)
	if err := p.catchUp(now, q, false); err != nil {
		return Receipt{}, err
	}
	policy := p.policy.Load()
	q.policy = policy.of(req.session())
	c := p.price(now, q)
	if len(c) == 0 {
		return Receipt{}, ErrNoEndpoints
	}
	i, reason := p.choose(q, c, policy)
	d := Decision{RequestID: req.ID, Policy: q.policy, Reason: reason, PromptBlocks: q.tokens / q.table.slots[c[0].Index].blockSize}
	if i >= 0 {
		s := &q.table.slots[c[i].Index]
		d.Endpoint, d.Rung = q.table.endpoints[c[i].Index].public, p.rung(q, c[i].Index)
		d.MatchedBlocks, _ = p.matchedBlocks(q, c[i].Index)
		d.PredictedCachedTokens = predicted(q, d.MatchedBlocks, s.blockSize)
		d.PromptBlocks = q.tokens / s.blockSize
	}
	r := p.receipt(now, q, &d, 0)
	r.Candidates = slices.Clone(r.Candidates)
	return r, nil
}

// Receipt returns the receipt of a request, if it is still kept. Of several decisions for one ID the last counts.
func (p *Picker) Receipt(requestID string) (Receipt, bool) { return p.receipts.get(requestID) }

// Receipts returns the last n receipts, newest first.
func (p *Picker) Receipts(n int) []Receipt { return p.receipts.last(n) }

// receipts is a ring of the last decisions. Safe for concurrent use; candidates belongs to the holder of Picker.mu.
type receipts struct {
	mu     sync.Mutex // guards what follows
	ring   []Receipt
	added  int
	byID   map[string]int // index in ring
	nobody []Candidate    // scratch where nothing is kept
}

func (r *receipts) init(n int) {
	r.ring, r.byID = make([]Receipt, n), make(map[string]int, n)
}

// candidates returns an empty list with room for n, the one of the receipt that goes next where it fits.
func (r *receipts) candidates(n int) []Candidate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ring) == 0 {
		r.nobody = slices.Grow(r.nobody[:0], n)
		return r.nobody
	}
	old := &r.ring[r.added%len(r.ring)]
	list := old.Candidates[:0]
	old.Candidates = nil // nobody may read what is being filled
	return slices.Grow(list, n)
}

func (r *receipts) add(rec Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ring) == 0 {
		return
	}
	at := r.added % len(r.ring)
	if old := r.ring[at].RequestID; old != "" && r.byID[old] == at {
		delete(r.byID, old)
	}
	r.ring[at] = rec
	if rec.RequestID != "" {
		r.byID[rec.RequestID] = at
	}
	r.added++
}

// finish adds the outcome to the receipt of a request.
func (r *receipts) finish(requestID string, took time.Duration, o Outcome) {
	a := &Answer{
		Status: o.Status, CachedTokens: o.CachedTokens, PromptTokens: o.PromptTokens, OutputTokens: o.OutputTokens,
		TookMs: ms(took),
	}
	if o.Err != nil {
		a.Error = o.Err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.byID[requestID]; ok {
		r.ring[at].Outcome = a
	}
}

func (r *receipts) get(requestID string) (Receipt, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.byID[requestID]
	if !ok {
		return Receipt{}, false
	}
	return r.ring[at].copied(), true
}

func (r *receipts) last(n int) []Receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = max(0, min(n, r.added, len(r.ring)))
	out := make([]Receipt, 0, n)
	for i := range n {
		out = append(out, r.ring[(r.added-1-i)%len(r.ring)].copied())
	}
	return out
}

// copied returns a receipt that doesn't share its list with the ring.
func (r *Receipt) copied() Receipt {
	c := *r
	c.Candidates = slices.Clone(r.Candidates)
	return c
}
