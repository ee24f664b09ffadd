package hold

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/picker/score"
)

// offer is the request of a flow that may go now and comes first in its flow.
type offer[R any] struct {
	flow      int // position in the ring
	item      *Item[R]
	candidate score.Candidate
	order     float64
}

// takeable takes out the request that goes first among those that a ready endpoint may have.
func (q *Queue[R]) takeable(now time.Time, price Price[R]) (Binding[R], bool) {
	offers := q.offers[:0]
	perFlow := max(1, q.cfg.MaxScan/len(q.flows))
	for i := range min(len(q.flows), max(1, q.cfg.MaxScan)) {
		at := (q.turn + i) % len(q.flows)
		o := offer[R]{flow: at}
		for it := range q.flows[at].scan(perFlow) {
			if o.item != nil && it.Priority < o.item.Priority {
				continue
			}
			c := price(now, it.Value, false)
			if len(c) == 0 {
				q.Remove(it)
				return Binding[R]{Item: it, Reason: Orphaned}, true
			}
			it.Note(c)
			age := now.Sub(it.Arrived)
			k := q.accepts(c, it, age)
			if k < 0 || o.item != nil && it.Priority == o.item.Priority && q.order(c[k].Terms.Prefill, age) >= o.order {
				continue
			}
			c = price(now, it.Value, true)
			if k = q.accepts(c, it, age); k >= 0 {
				o.item, o.candidate, o.order = it, c[k], q.order(c[k].Terms.Prefill, age)
			}
		}
		if o.item != nil {
			offers = append(offers, o)
		}
	}
	q.offers = offers
	if len(offers) == 0 {
		return Binding[R]{}, false
	}
	o := q.serve(offers)
	q.Remove(o.item)
	return Binding[R]{Item: o.item, Candidate: o.candidate, Reason: Ready}, true
}

// accepts is Accept for a request that has waited for age; it doubts endpoints that got nothing for long.
func (q *Queue[R]) accepts(c []score.Candidate, it *Item[R], age time.Duration) int {
	if doubt := ms(q.cfg.DoubtAfter); ms(age) >= doubt {
		for i := range c {
			c[i].Ready = c[i].Ready || c[i].Idle >= doubt
		}
	}
	return q.Accept(c, it.Key, age)
}

// scan yields at most limit requests: the first ones, and of the others a part that is another one each time. Those that come
// first may all wait for the same endpoint while others are free.
func (f *flow[R]) scan(limit int) iter.Seq[*Item[R]] {
	return func(yield func(*Item[R]) bool) {
		first := len(f.items)
		if first > limit {
			first = max(1, limit*2/3)
		}
		for _, it := range f.items[:first] {
			if !yield(it) {
				return
			}
		}
		others := f.items[first:]
		for range min(limit-first, len(others)) {
			f.next = (f.next + 1) % len(others)
			if !yield(others[f.next]) {
				return
			}
		}
	}
}

// serve picks the offer whose flow is next by deficit round robin among those of the highest priority, and settles the
// deficits. Each visit of a flow earns it one turn; a request costs one and its bytes' worth. Instead of going round and
// round it computes how many rounds each flow needs.
func (q *Queue[R]) serve(offers []offer[R]) offer[R] {
	top := slices.MaxFunc(offers, func(a, b offer[R]) int { return a.item.Priority - b.item.Priority }).item.Priority
	best, rounds, steps := -1, 0.0, 0
	for i := range offers {
		if offers[i].item.Priority < top {
			continue
		}
		f := q.flows[offers[i].flow]
		r := math.Ceil(max(0, q.toll(offers[i].item)-f.deficit))
		s := q.steps(offers[i].flow, r > 0)
		if best < 0 || r < rounds || r == rounds && s < steps {
			best, rounds, steps = i, r, s
		}
	}
	for i := range offers {
		if offers[i].item.Priority < top {
			continue
		}
		visits := rounds
		if q.steps(offers[i].flow, rounds > 0) > steps {
			visits = max(0, rounds-1)
		}
		q.flows[offers[i].flow].deficit += visits
	}
	o := offers[best]
	q.flows[o.flow].deficit -= q.toll(o.item)
	q.turn, q.served = o.flow, true
	return o
}

// steps returns how far the round robin is from visiting a flow; one that has had its quantum in this round comes last
// when it needs another.
func (q *Queue[R]) steps(flow int, needsQuantum bool) int {
	n := len(q.flows)
	if s := (flow - q.turn + n) % n; s > 0 || !(q.served && needsQuantum) {
		return s
	}
	return n
}

func (q *Queue[R]) toll(it *Item[R]) float64 {
	if q.cfg.BytesPerTurn <= 0 {
		return 1
	}
	return 1 + float64(it.Bytes)/float64(q.cfg.BytesPerTurn)
}

// flow returns the flow of that name; a new one joins the ring where it has to wait for all others.
func (q *Queue[R]) flow(name string) *flow[R] {
	for _, f := range q.flows {
		if f.name == name {
			return f
		}
	}
	f := &flow[R]{name: name}
	q.flows = slices.Insert(q.flows, q.turn, f)
	if len(q.flows) > 1 {
		q.turn++
	}
	return f
}

func (q *Queue[R]) dropFlow(f *flow[R]) {
	at := slices.Index(q.flows, f)
	q.flows = slices.Delete(q.flows, at, at+1)
	switch {
	case at < q.turn:
		q.turn--
	case at == q.turn:
		q.served = false
	}
	if q.turn >= len(q.flows) {
		q.turn = 0
	}
}

// oldest returns the request that has waited longest.
func (q *Queue[R]) oldest() *Item[R] {
	var first *Item[R]
	q.Each(func(it *Item[R]) {
		if first == nil || it.Arrived.Before(first.Arrived) {
			first = it
		}
	})
	return first
}

// crowder returns the request that makes room in a full queue: of the flow with the greatest share, so that one sender
// can't push out the others, the oldest of the lowest priority.
func (q *Queue[R]) crowder(share func(*flow[R]) int64) *Item[R] {
	f := slices.MaxFunc(q.flows, func(a, b *flow[R]) int { return int(share(a) - share(b)) })
	it := f.items[len(f.items)-1]
	for i := len(f.items) - 2; i >= 0 && f.items[i].Priority == it.Priority; i-- {
		it = f.items[i]
	}
	return it
}
