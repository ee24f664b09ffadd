package picker

import (
	"context"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/picker/hint"
	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

const (
	hintPause = 10 * time.Millisecond // that hints gather
	// turnPause is the time between two gateways' turns at an endpoint. It must be longer than it takes one to hear, by tick or
	// hint, that the endpoint is free and the next one to hear what the first has done; two or three times as long costs little.
	turnPause  = 200 * time.Millisecond
	turnShare  = 0.25            // of a mean prefill that turnPause is at most
	turnRound  = time.Second     // in which an endpoint may open anew to all
	contention = 0.3             // mean prefills that another gateway's choice of the same endpoint costs, times how likely it is
	hintTail   = 2 * time.Second // that another gateway's request is counted after its predicted prefill, if nothing is heard
	hintMarks  = 4096            // marks of other gateways' requests kept
	hintWork   = 2 * time.Minute // that is believed of one request
	hintStuck  = 2 * time.Minute // that one is waited for which may be stuck in an engine, if nothing is heard
)

// hints is what gateways tell each other of the requests that they bind. Guarded by Picker.mu.
type hints struct {
	node     uint64 // this gateway's
	out      *hint.Outbox
	due      *time.Timer     // ends hintPause after there is something to tell; nil: nobody listens to it
	gateways map[uint64]bool // that are to be told, by node hash; nil: whoever asks by Stepped.Tell
	book     hint.Book[*flight]
	marks    []hintMark // ascending serials
	serial   uint64
	stats    HintStats

	gone   []*flight // scratch
	places []int     // scratch
}

// HintStats counts what this gateway has told other gateways, and heard of them.
type HintStats struct {
	Gateways int    `json:"gateways"` // others, that are told
	Sent     uint64 `json:"sent"`     // packets, one for each gateway
	Received uint64 `json:"received"` // packets that could be read
	Bound    uint64 `json:"bound"`    // requests of others heard of
	Unsent   uint64 `json:"unsent"`   // packets that could not be sent
	Unread   uint64 `json:"unread"`   // packets that could not be read
	Unknown  uint64 `json:"unknown"`  // requests of others on endpoints that this gateway does not have
	hint.Stats
}

// hintMark is the blocks that an endpoint will soon have since another gateway bound a request there.
type hintMark struct {
	endpoint     *endpoint
	first, count int
	points       []uint32
	serial       uint64
	expires      time.Time
}

// status returns the counts so far.
func (h *hints) status() HintStats {
	s := h.stats
	s.Gateways, s.Stats = len(h.gateways), h.book.Stats()
	return s
}

// tells reports whether anybody is to be told.
func (h *hints) tells() bool { return h.gateways == nil || len(h.gateways) > 0 }

// hintSoon is called before something is added that is to be told. A gateway that has nothing to tell is not woken.
func (h *hints) hintSoon() {
	if h.due != nil && h.out.Empty() {
		h.due.Reset(hintPause)
	}
}

// hintHeld tells whether requests wait here. Caller holds p.mu.
func (p *Picker) hintHeld(now time.Time) {
	if p.hints.due != nil && p.hints.tells() && p.hints.out.Empty() {
		if p.hints.out.Held(now, p.queue.Len()); !p.hints.out.Empty() {
			p.hints.due.Reset(hintPause)
		}
	}
}

// hintBound tells other gateways of a request that was just bound. Caller holds p.mu.
func (p *Picker) hintBound(now time.Time, q *query, i int, f *flight, chain []blockhash.Hash, digest int) {
	if !p.hints.tells() {
		return
	}
	first := max(0, min(digest-markOverlap, len(chain)))
	if !p.policy.Load().Speculation {
		first = len(chain)
	}
	p.hints.hintSoon()
	f.hint = p.hints.out.Bound(now, wire.HintBound{
		Key: q.table.slots[i].key, PromptTokens: uint32(max(0, q.tokens)), CachedTokens: uint32(f.predicted), Blocks: uint32(f.Blocks),
		Last: uint64(f.last), Before: uint64(f.before), First: uint32(first), Count: uint32(len(chain)),
		Told: f.Told,
	}, chain)
}

// hintOver tells that the prefill of a request is over, hintEnded that it has ended.
func (p *Picker) hintOver(now time.Time, f *flight) {
	if f.hint != 0 && !f.told && p.hints.tells() {
		f.told = true
		p.hints.hintSoon()
		p.hints.out.Over(now, f.hint)
	}
}

func (p *Picker) hintEnded(now time.Time, f *flight) {
	if f.hint != 0 && p.hints.tells() {
		p.hints.hintSoon()
		p.hints.out.Ended(now, f.hint)
	}
}

// turn says how many other gateways come before this one at an endpoint, and how many of these hold requests. All that hold some
// would take an endpoint that comes free in the same moment, before they hear of each other; and all would choose the same one
// of several that are free. So they take turns, drawn anew each second for each endpoint: by the wall clock, since all know it
// and no lost hint puts them out of step for longer. (Gateways whose clocks are apart draw different turns, and collide now and
// then.)
func (p *Picker) turn(now time.Time, e *endpoint) (others, holding int) {
	draw := uint64(now.Unix()) ^ e.hash
	return p.hints.book.Before(now, p.hints.node, func(node uint64) uint64 { return score.Mix(node ^ draw) })
}

// turnPause is how long a gateway leaves a free endpoint to the one whose turn is before its own. Two short prefills on one
// endpoint do no harm and are not worth so long a wait.
func (p *Picker) turnPause() time.Duration {
	return min(turnPause, duration(turnShare*p.meanPrefill))
}

// opened is a tick that says that an engine has room again, to all gateways at once. An endpoint that opens again and again
// does so only once in a round, so that every gateway gets its turn.
func (p *Picker) opened(now time.Time, e *endpoint) {
	if p.queue.Len() > 0 && now.Sub(e.free) > turnRound {
		e.free = now
	}
}

// telling sends the other gateways what is to be told, until ctx ends.
func (p *Picker) telling(ctx context.Context) {
	due := time.NewTimer(hintPause)
	defer due.Stop()
	p.mu.Lock()
	p.hints.due = due
	p.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-due.C:
			p.tell(now)
		}
	}
}

// tell sends the other gateways what has gathered.
func (p *Picker) tell(now time.Time) {
	p.mu.Lock()
	p.hints.out.Held(now, p.queue.Len())
	packets := p.hints.out.Take(now)
	var to []uint64
	for node := range p.hints.gateways {
		to = append(to, node)
	}
	p.mu.Unlock()
	if len(packets) == 0 {
		return
	}
	sent, unsent := 0, 0
	for _, node := range to {
		for _, b := range packets {
			if err := p.mesh.Send(node, b); err != nil {
				unsent++
				p.log.Debug("hint not sent", keyError, err)
				continue
			}
			sent++
		}
	}
	p.mu.Lock()
	p.hints.stats.Sent += uint64(sent)
	p.hints.stats.Unsent += uint64(unsent)
	p.mu.Unlock()
}

// hear takes in a HINT packet.
func (p *Picker) hear(now time.Time, packet []byte) error {
	header, m, err := wire.Decode(packet)
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &p.hints
	if err != nil {
		h.stats.Unread++
		return err
	}
	msg := m.(*wire.Hint)
	if header.Node == h.node || !h.book.Hear(now, header.Node, msg.Number, int(msg.Held)) {
		return nil
	}
	h.stats.Received++
	for i := range msg.Bound {
		p.heardBound(now, header.Node, &msg.Bound[i])
	}
	for _, id := range msg.Over {
		if f, ok := h.book.Get(header.Node, id); ok {
			p.prefillOver(now, f)
		}
	}
	for _, id := range msg.Ended {
		if f, ok := h.book.End(header.Node, id, now.Add(p.tail())); ok {
			p.leave(now, f)
		}
	}
	if p.queue.Len() > 0 {
		p.wakeUp()
	}
	return nil
}

// tail is hintTail at the engines' speed.
func (p *Picker) tail() time.Duration { return duration(ms(hintTail) / p.cfg.scale()) }

// heardBound takes in a request that another gateway has bound.
func (p *Picker) heardBound(now time.Time, node uint64, b *wire.HintBound) {
	h := &p.hints
	if h.book.Knows(node, b.ID) {
		return
	}
	t := p.table.Load()
	i, ok := t.byKey[b.Key]
	if !ok {
		h.stats.Unknown++
		return
	}
	e := t.endpoints[i]
	f := &flight{
		Flight: hold.Flight{
			// By this gateway's own idea of the endpoint: another's speeds are no better.
			Work:   min(hintWork, duration(e.lane.facts.PrefillTime(int(b.PromptTokens-b.CachedTokens), int(b.CachedTokens)))),
			Blocks: int(b.Blocks), Told: b.Told,
		},
		endpoint: e, bound: now.Add(-b.Age), others: true,
		last: blockhash.Hash(b.Last), before: blockhash.Hash(b.Before),
	}
	e.ledger.Bind(now, &f.Flight)
	expires := now.Add(e.ledger.Queue(now) + p.tail())
	if !h.book.Add(node, b.ID, f, expires) { // one too many
		e.ledger.End(now, &f.Flight)
		return
	}
	h.stats.Bound++
	e.others++
	if f.bound.After(e.bound) {
		e.bound = f.bound
	}
	p.book(now, e)
	if f.last != 0 && p.hasDigest(t, i) {
		e.watched = append(e.watched, f)
	}
	if len(b.Points) > 0 && p.policy.Load().Speculation {
		h.serial++
		m := hintMark{e, int(b.First), int(b.Count), b.Points, h.serial, expires}
		if len(h.marks) == hintMarks {
			h.marks = append(h.marks[:0], h.marks[1:]...)
		}
		h.marks = append(h.marks, m)
		p.queue.Each(func(it *hold.Item[*query]) { it.Value.hinted(&m, h) })
	}
}

// hinted tells q of what another gateway has bound.
func (q *query) hinted(m *hintMark, h *hints) {
	i := m.endpoint.index
	if q.table == nil || i >= len(q.table.endpoints) || q.table.endpoints[i] != m.endpoint {
		return // q is matched anew before it is priced
	}
	var shared int
	shared, h.places = hint.Shared(q.chains[q.table.slots[i].size], m.first, m.count, m.points, h.places)
	q.both[i] = max(q.both[i], int32(shared))
	q.loose[i] = max(q.loose[i], int32(shared))
}

// catchUp tells q of the marks that came since it was matched.
func (h *hints) catchUp(q *query) {
	for i := len(h.marks) - 1; i >= 0 && h.marks[i].serial > q.heard; i-- {
		q.hinted(&h.marks[i], h)
	}
	q.heard = h.serial
}

// expireHints drops what is over for want of news. Caller holds p.mu.
func (p *Picker) expireHints(now time.Time) {
	h := &p.hints
	h.gone = h.book.Expire(h.gone[:0], now, func(f *flight) bool {
		// Else it may be stuck there.
		return f.Known() || f.endpoint.lane.facts.Waiting == 0 || now.Sub(f.bound) >= hintStuck
	})
	for _, f := range h.gone {
		p.leave(now, f)
	}
	clear(h.gone)
	h.marks = slices.DeleteFunc(h.marks, func(m hintMark) bool { return !now.Before(m.expires) })
}

// forget drops the marks of an endpoint.
func (h *hints) forget(e *endpoint) {
	h.marks = slices.DeleteFunc(h.marks, func(m hintMark) bool { return m.endpoint == e })
}

// gatewayUp and gatewayDown are told of other gateways of the pool.
func (p *Picker) gatewayUp(m mesh.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hints.gateways[m.Hash] = true
}

func (p *Picker) gatewayDown(now time.Time, m mesh.Member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.hints.gateways, m.Hash)
	for _, f := range p.hints.book.Leave(nil, m.Hash) { // its connections ended with it
		p.leave(now, f)
	}
	p.wakeUp()
}
