package view

import (
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Out is a packet to send to a node.
type Out struct {
	Node     uint64 // wire.NodeHash
	Reliable bool
	Packet   []byte
}

// node is a member, or a sender that membership has not told of yet.
type node struct {
	hash  uint64
	up    bool
	heard time.Time // last packet, or the moment it left
	claim wire.Key  // a stream that it sends with too low an epoch or number; zero: none

	helloAt   time.Time // next HELLO; zero: nothing to ask
	helloLast time.Time
	tries     int
}

// node returns nil if there are too many.
func (v *View) node(now time.Time, hash uint64) *node {
	n := v.nodes[hash]
	if n == nil {
		if len(v.nodes) >= 2*v.cfg.MaxStreams {
			return nil
		}
		n = &node{hash: hash, heard: now}
		v.nodes[hash] = n
		v.nodeOrder = append(v.nodeOrder, n)
	}
	return n
}

// hello makes a HELLO to n due, unless one is; HELLOs to one node keep a distance
// that grows.
func (v *View) hello(now time.Time, n *node) {
	if !n.helloAt.IsZero() {
		return
	}
	n.helloAt = now.Add(time.Duration(v.rng.Int64N(int64(helloSpread))))
	if now.Sub(n.helloLast) > helloRest {
		n.tries = 0
	} else if next := n.helloLast.Add(v.backoff(nackBackoff, n.tries)); next.After(n.helloAt) {
		n.helloAt = next
	}
}

// answered notes that INFO came.
func (n *node) answered() { n.helloAt = time.Time{} }

// Poll returns the NACKs and HELLOs that are due, and lets time pass for staleness,
// gaps and forgetting. Call it every Config.PollEvery.
func (v *View) Poll(now time.Time) []Out {
	now = v.clock(now)
	late := !v.lastPoll.IsZero() && now.Sub(v.lastPoll) > v.cfg.PollEvery+timerSlack
	if late {
		v.freeze(now, v.lastPoll)
	}
	v.lastPoll = now
	v.judge(now)
	if !v.frozen.IsZero() && !now.Before(v.frozen) {
		v.frozen, v.dirty = time.Time{}, true
	}

	var outs []Out
	for _, n := range v.nodeOrder {
		if !n.helloAt.IsZero() && !now.Before(n.helloAt) {
			outs = append(outs, Out{Node: n.hash, Packet: v.sayHello(now, n)})
		}
	}
	v.nacks.refill(now)
	for _, s := range v.order {
		if !s.gapSince.IsZero() && now.Sub(s.gapSince) > maxGap {
			v.settle(now, s)
		}
		if s.askAt.IsZero() || now.Before(s.askAt) || v.nacks.tokens < 1 {
			continue
		}
		list := s.nacks()
		for _, n := range list {
			outs = append(outs, Out{Node: s.node, Packet: n.Append(nil, v.self)})
		}
		v.nacks.tokens -= float64(len(list))
		v.count(func(st *Stats) { st.Nacks += uint64(len(list)) })
		s.askAt = now.Add(v.backoff(nackBackoff, s.tries))
		s.tries++
	}
	v.forget(now)
	if v.dirty {
		v.publish(now)
	}
	return outs
}

// backoff doubles d with each try, up to maxBackoff, and jitters it by a quarter.
func (v *View) backoff(d time.Duration, tries int) time.Duration {
	d = min(d<<min(tries, 10), maxBackoff)
	return d*3/4 + time.Duration(v.rng.Int64N(int64(d/2)))
}

func (v *View) sayHello(now time.Time, n *node) []byte {
	h := wire.Hello{Node: v.cfg.Node}
	for _, s := range v.order {
		if (s.node != n.hash && s.key != n.claim) || len(h.Known) == wire.MaxRanks {
			continue
		}
		k := wire.KnownStream{Key: s.key, Epoch: s.epoch}
		switch {
		case s.key == n.claim:
			k.TickNo = s.newest
		case s.problem == "" && !s.lost && s.wanted() == 0:
			k.TickNo = s.applied
		}
		h.Known = append(h.Known, k)
	}
	n.claim = wire.Key{}
	n.helloLast = now
	n.helloAt = now.Add(v.backoff(nackBackoff, n.tries+1))
	if n.tries++; n.tries >= helloTries {
		n.helloAt = time.Time{}
	}
	v.count(func(st *Stats) { st.Hellos++ })
	return h.Append(nil, v.self)
}

// span is ticks from..to.
type span struct{ from, to uint64 }

// gaps returns the missing ticks, the first maxAsked spans of them.
func (s *stream) gaps() (spans []span) {
	next := s.applied + 1
	for _, k := range s.kept {
		if k.TickNo > next && len(spans) < maxAsked {
			spans = append(spans, span{next, k.TickNo - 1})
		}
		next = max(next, k.TickNo+1)
	}
	if next <= s.newest && len(spans) < maxAsked {
		spans = append(spans, span{next, s.newest})
	}
	return spans
}

// nacks returns what to ask: missing ticks, and the wanted segments of each tier. A
// message has room for one span of ticks and the segments of one tier.
func (s *stream) nacks() []wire.Nack {
	blank := wire.Nack{Key: s.key, Epoch: s.epoch}
	list := []wire.Nack{blank}
	list[0].WantInfo = s.wantInfo
	message := func(i int) *wire.Nack {
		if i == len(list) {
			list = append(list, blank)
		}
		return &list[i]
	}
	for i, g := range s.gaps() {
		n := message(i)
		n.From, n.To = g.from, g.to
	}
	used := 0
	for i := range s.columns {
		c := &s.columns[i]
		if c.missing == 0 {
			continue
		}
		n := message(used)
		used++
		n.Tier = wire.Tier(i)
		for j, wanted := range c.wanted {
			if wanted && len(n.Segments) < wire.MaxNackSegments {
				n.Segments = append(n.Segments, uint16(j))
			}
		}
	}
	return list
}

// staleness is an endpoint that went stale.
type staleness struct {
	at       time.Time
	endpoint uint64
}

// judge watches for a large part of the pool going stale at once, which is more
// likely this gateway's fault than theirs.
func (v *View) judge(now time.Time) {
	for len(v.wentStale) > 0 && now.Sub(v.wentStale[0].at) > staleSpan {
		v.wentStale = v.wentStale[1:]
	}
	for _, s := range v.order {
		was := s.stale
		s.stale = s.live.Stale(now)
		if s.stale && !was && v.frozen.IsZero() {
			v.wentStale = append(v.wentStale, staleness{now, s.key.Endpoint})
			v.count(func(st *Stats) { st.WentStale++ })
		}
	}
	if len(v.wentStale) < 2 {
		return
	}
	live, gone := make(map[uint64]bool), make(map[uint64]bool) // endpoints
	for _, s := range v.order {
		if !s.stale {
			live[s.key.Endpoint] = true
		}
	}
	for _, w := range v.wentStale {
		if !live[w.endpoint] {
			gone[w.endpoint] = true
		}
	}
	if len(gone) >= 2 && float64(len(gone)) > staleShare*float64(len(gone)+len(live)) {
		v.freeze(now, now.Add(-staleSpan))
		v.wentStale = nil
	}
}

// freeze makes readers judge ages as of a moment at which all was well.
func (v *View) freeze(now, asOf time.Time) {
	if v.frozen.IsZero() {
		v.frozenAt = asOf
	}
	v.frozen = now.Add(v.cfg.FreezeFor)
	v.dirty = true
	v.count(func(st *Stats) { st.Freezes++ })
}

// forget frees streams whose node left and was not heard of since.
func (v *View) forget(now time.Time) {
	if !v.frozen.IsZero() {
		return
	}
	gone := func(n *node) bool { return !n.up && now.Sub(n.heard) > v.cfg.ForgetAfter }
	if !slices.ContainsFunc(v.nodeOrder, gone) {
		return
	}
	v.nodeOrder = slices.DeleteFunc(v.nodeOrder, func(n *node) bool {
		if gone(n) {
			delete(v.nodes, n.hash)
			return true
		}
		return false
	})
	for id, e := range v.endpoints {
		if v.nodes[e.node] == nil {
			delete(v.endpoints, id)
		}
	}
	v.order = slices.DeleteFunc(v.order, func(s *stream) bool {
		if v.nodes[s.node] != nil {
			v.fit(s) // its INFO may have come from another node
			return false
		}
		v.forgetTicks(s, ^uint64(0))
		for i := range s.columns {
			v.release(&s.columns[i])
		}
		delete(v.streams, s.key)
		return true
	})
	v.dirty = true
}
