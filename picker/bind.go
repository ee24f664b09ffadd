package picker

import (
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

// Reasons in decisions and receipts besides those of hold.Reason.
const (
	reasonEarly = "early" // bound at arrival
	reasonHeld  = "held"  // what Explain says of a request that would wait
)

const (
	reuseRate    = 0.01                  // the same of the share that is cached, which is to say what sort of traffic there is
	meanRate     = 0.05                  // weight of the newest request in the moving averages
	rematchEvery = 20 * time.Millisecond // of held requests while digests change
	markTail     = 2 * time.Second       // that marks outlive the predicted prefill
	markOverlap  = 8                     // blocks marked again below what the digest has, for its false positives
)

// flight is a bound request. Guarded by Picker.mu.
type flight struct {
	hold.Flight
	endpoint  *endpoint
	bound     time.Time
	ended     bool
	predicted int    // cached tokens
	promised  int    // of these by the digest alone
	hint      uint64 // by which other gateways know it; 0: they don't
	told      bool   // they know that the prefill is over
	others    bool   // another gateway bound it
	moved     bool   // to this endpoint when the one that was chosen failed: nothing was predicted
	// The prompt's last full block, and the one before if that is new too: when they show in the digest the prefill is over.
	last, before blockhash.Hash
}

// admit binds q at once, refuses it, or puts it into the queue. Caller holds p.mu.
func (p *Picker) admit(now time.Time, q *query) (waits bool, err error) {
	p.freshen(now)
	policy := p.policy.Load()
	q.policy = policy.of(q.req.session())
	if err := p.catchUp(now, q, false); err != nil {
		return false, err
	}
	c := p.price(now, q)
	if len(c) == 0 {
		return false, ErrNoEndpoints
	}
	if p.queue.Len() == 0 || p.bypasses(q, policy) {
		i, reason := p.choose(q, c, policy)
		switch {
		case i >= 0:
			if q.policy == PolicyRoundRobin {
				p.next++
			}
			p.commit(now, q, c[i], reason)
			return false, nil
		case reason != reasonHeld:
			return false, p.refusal(hold.Full)
		}
	}
	q.done = make(chan struct{})
	bytes := q.req.Bytes
	if bytes <= 0 {
		bytes = 4 * q.tokens
	}
	q.item = hold.Item[*query]{
		Value: q, Key: q.key, Flow: q.req.Flow, Priority: q.req.Priority, Arrived: q.start,
		Deadline: q.req.Deadline, MaxAge: q.req.MaxHold, Bytes: bytes, Sheddable: q.req.Sheddable,
	}
	q.item.Note(c)
	p.queue.Add(&q.item)
	p.pump(now)
	p.wakeUp() // Run computes anew when it is needed next
	return true, nil
}

// pump ends the holds that can end now. Caller holds p.mu.
func (p *Picker) pump(now time.Time) {
	p.queue.Drain(p.draining || !p.policy.Load().Hold || p.blind(p.table.Load()))
	for p.queue.Len() > 0 {
		b, ok := p.queue.Next(now, p.anyReady(now), p.priceHeld)
		if !ok {
			return
		}
		q := b.Item.Value
		if b.Reason.Bound() {
			p.price(now, q) // for the receipt: others may have been priced since
			p.commit(now, q, b.Candidate, b.Reason.String())
		} else if q.err == nil {
			q.err = p.refusal(b.Reason)
		}
		close(q.done)
	}
}

// repriced is the hold's view of a held request: matched anew when digests may have changed.
func (p *Picker) repriced(now time.Time, q *query, all bool) []score.Candidate {
	if q.err = p.catchUp(now, q, now.Sub(q.matched) > rematchEvery); q.err != nil {
		return nil
	}
	if !all {
		if c := p.part(now, q); c != nil {
			return c
		}
	}
	c := p.price(now, q)
	q.remember(c)
	return c
}

// catchUp makes q one of the present table, matches it again if that is another one or if digests may have changed, and
// tells it of queries bound meanwhile. The error is ErrUnknownModel.
func (p *Picker) catchUp(now time.Time, q *query, outdated bool) error {
	if t := p.table.Load(); q.table != t || outdated {
		if err := q.bind(t, p.hasher); err != nil {
			return err
		}
		q.match(now, p.lookup())
	}
	if p.policy.Load().Speculation {
		p.recent.tell(q)
		p.hints.catchUp(q)
	}
	return nil
}

// anyReady reports whether an endpoint's queue is empty enough to take a request, or none is left to wait for.
func (p *Picker) anyReady(now time.Time) bool {
	endpoints := p.table.Load().endpoints
	if len(endpoints) == 0 {
		return true
	}
	for _, e := range endpoints {
		if ms(e.lane.open.Sub(now)) <= p.params.ReadyWithin {
			return true
		}
	}
	return false
}

// blind reports whether no agent says anything.
func (p *Picker) blind(t *table) bool {
	for i, e := range t.endpoints {
		if e.hasLoad || p.hasDigest(t, i) {
			return false
		}
	}
	return true
}

// commit gives q the endpoint of c, one of p.candidates, and accounts for it. Caller holds p.mu.
func (p *Picker) commit(now time.Time, q *query, c score.Candidate, reason string) {
	t, i := q.table, c.Index
	e, s := t.endpoints[i], &t.slots[i]
	matched, digest := p.matchedBlocks(q, i)
	chain := q.chains[s.size]
	blocks := (q.tokens + p.expectedOutput(&q.req) + s.blockSize - 1) / s.blockSize
	if e.hasLoad {
		blocks = max(0, blocks-matched) // what others hold too is in the engine's figures
	}
	f := &flight{
		Flight:    hold.Flight{Work: duration(c.Terms.Prefill), Blocks: blocks},
		endpoint:  e,
		bound:     now,
		predicted: predicted(q, matched, s.blockSize),
		promised:  predicted(q, digest, s.blockSize),
	}
	p.watch(t, i, f, chain, digest)
	f.Told = !q.req.NoFirstToken || f.last != 0
	e.ledger.Bind(now, &f.Flight)
	e.bound = now
	p.book(now, e)
	p.mark(now, q, i, chain)
	p.hintBound(now, q, i, f, chain, digest)
	p.meanPrefill += meanRate * (c.Terms.Prefill - p.meanPrefill)
	if q.tokens > 0 {
		p.reuse += reuseRate * (float64(f.predicted)/float64(q.tokens) - p.reuse)
	}

	q.decision = Decision{
		RequestID: q.req.ID, Endpoint: e.public, Policy: q.policy, Rung: p.rung(q, i), Reason: reason,
		MatchedBlocks: matched, DigestBlocks: digest, PromptBlocks: q.tokens / s.blockSize, PredictedCachedTokens: f.predicted,
		Held: now.Sub(q.start), Fallbacks: p.fallbacks(q, i), flight: f,
	}
	p.receipts.add(p.receipt(now, q, &q.decision, p.cfg.ReceiptCandidates))
	p.metrics.picked(&q.decision)
}

// watch remembers which blocks will show in the digest when f's prefill is over.
func (p *Picker) watch(t *table, i int, f *flight, chain []blockhash.Hash, digest int) {
	n := len(chain)
	if !p.hasDigest(t, i) || digest >= n {
		return
	}
	s := &t.slots[i]
	m := t.groups[s.group].matrix
	if m.Has(s.column, chain[n-1]) {
		return // a false positive: this block will tell nothing
	}
	f.last = chain[n-1]
	if n > 1 && digest < n-1 {
		f.before = chain[n-2]
	}
	f.endpoint.watched = append(f.endpoint.watched, f)
}

// arrived ends the prefills whose last blocks show in the digest of endpoint i.
func (p *Picker) arrived(now time.Time, t *table, i int) {
	e := t.endpoints[i]
	if len(e.watched) == 0 || t.slots[i].group < 0 {
		return
	}
	s := &t.slots[i]
	m := t.groups[s.group].matrix
	e.watched = slices.DeleteFunc(e.watched, func(f *flight) bool {
		if f.ended || m.Has(s.column, f.last) && (f.before == 0 || m.Has(s.column, f.before)) {
			e.ledger.Over(now, &f.Flight)
			p.hintOver(now, f)
			p.book(now, e)
			return true
		}
		return false
	})
}

// mark counts q's blocks as present on endpoint i: for those that wait and those on their way here now, for later ones
// when q's owner has made the marks.
func (p *Picker) mark(now time.Time, q *query, i int, chain []blockhash.Hash) {
	if !p.policy.Load().Speculation || len(chain) == 0 {
		return
	}
	t := q.table
	e, s := t.endpoints[i], &t.slots[i]
	until := now.Add(e.ledger.Queue(now) + time.Duration(float64(markTail)/p.cfg.scale()))
	if p.hasDigest(t, i) {
		from := max(0, int(q.digest[i])-markOverlap)
		q.marking = marking{t.groups[s.group].marks, now, s.column, chain[min(from, len(chain)):], 0, until}
	} else {
		q.marking = marking{t.bareMarks, now, e.bare, chain, int(q.loose[i]), now.Add(p.cfg.Speculation.Memory)}
	}
	q.endpoint = i
	q.holders.Add(1)
	if old := p.recent.add(q); old != nil {
		p.drop(old)
	}
	p.queue.Each(func(it *hold.Item[*query]) {
		if it.Value != q {
			it.Value.bound(q, i)
		}
	})
}

// refusal is the error of a request that gets no endpoint.
func (p *Picker) refusal(why hold.Reason) error {
	p.metrics.refused(why)
	if why == hold.Orphaned {
		return ErrNoEndpoints
	}
	base := p.cfg.Hold.RetryAfter
	return ErrOverloaded{RetryAfter: base + p.draws.upTo(base), Reason: why}
}

// FirstToken says that the first event with output of a decision's request has come: its prefill is over.
func (p *Picker) FirstToken(d Decision) {
	f := d.flight
	if f == nil {
		return
	}
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.ended {
		return
	}
	p.prefillOver(now, f)
	f.endpoint.host.answered()
	f.stepped(now)
	p.pump(now)
}

// prefillOver takes in that the prefill of f is over.
func (p *Picker) prefillOver(now time.Time, f *flight) {
	f.endpoint.ledger.Over(now, &f.Flight)
	p.hintOver(now, f)
	p.book(now, f.endpoint)
	p.unwatch(f)
}

// leave takes f off its endpoint.
func (p *Picker) leave(now time.Time, f *flight) {
	f.ended = true
	f.endpoint.ledger.End(now, &f.Flight)
	if f.others {
		f.endpoint.others--
	}
	p.hintEnded(now, f)
	p.book(now, f.endpoint)
	p.unwatch(f)
}

// stepped notes that the engine has worked on f, and so has told of a reset before f.
func (f *flight) stepped(now time.Time) {
	if e := f.endpoint; !e.cleared.IsZero() && e.stepped.IsZero() && f.bound.After(e.cleared) {
		e.stepped = now
	}
}

func (p *Picker) unwatch(f *flight) {
	e := f.endpoint
	e.watched = slices.DeleteFunc(e.watched, func(o *flight) bool { return o == f })
}

// Done says that a decision's request has ended. It is safe to call it more than once; the first call counts.
func (p *Picker) Done(d Decision, o Outcome) {
	f := d.flight
	if f == nil {
		return
	}
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.ended {
		return
	}
	e := f.endpoint
	p.leave(now, f)
	switch {
	case o.Connected:
		e.host.answered()
		f.stepped(now)
	case o.Err != nil && !o.Cancelled:
		p.failed(now, e, o.Err)
	}
	if o.OutputTokens > 0 {
		p.meanOutput += meanRate * (float64(o.OutputTokens) - p.meanOutput)
	}
	if o.CachedTokens >= 0 && o.Connected && o.Err == nil && o.PromptTokens > 0 && !f.moved {
		o.CachedTokens = min(o.CachedTokens, o.PromptTokens) // whatever an engine says
		e.checked(f.predicted, f.promised, o.CachedTokens)
		e.lane.trust = e.trust()
		p.metrics.checked(&d, o.CachedTokens)
	}
	p.receipts.finish(d.RequestID, now.Sub(f.bound), o)
	p.pump(now)
}

// failed takes in that an endpoint could not be reached. Caller holds p.mu.
func (p *Picker) failed(now time.Time, e *endpoint, err error) {
	e.host.failed(now, &p.cfg.Failure, &p.draws)
	p.marks.forgetHost(e.host)
	p.trouble = true
	p.log.Warn("endpoint could not be reached", keyEndpoint, e.public.ID, keyError, err, keyFailures, e.host.failures)
}
