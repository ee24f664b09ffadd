package picker

import (
	"time"

	"github.com/grapevine-llm/grapevine/picker/score"
)

// lane is what pricing reads of an endpoint. The lanes of a pool lie in one array, in the order of its table: with a
// thousand endpoints pricing waits for memory most of all. Guarded by Picker.mu.
type lane struct {
	facts  score.Endpoint // without what depends on the request
	digest bool           // can be used now
	trust  float64        // see endpoint.trust

	// Of the ledger, as of the last booking.
	bound   time.Time // last time that a request was
	nextEnd time.Time // from which on it has to be asked again; zero: never
	open    time.Time // when the queue is empty and it is this gateway's turn
}

// advance brings what depends on the time alone up to now, once for all that is priced then: a held request costs as many
// prices as there are endpoints. It lists the endpoints without a queue.
func (p *Picker) advance(now time.Time, t *table) {
	if t.advanced.Equal(now) {
		return
	}
	t.open = t.open[:0]
	for i := range t.lanes {
		l := &t.lanes[i]
		if !l.nextEnd.IsZero() && !now.Before(l.nextEnd) {
			p.book(now, t.endpoints[i])
		} else {
			l.age(now)
		}
		if l.facts.Queue <= p.params.ReadyWithin {
			t.open = append(t.open, i)
		}
	}
	p.crowd = crowding(len(t.lanes), len(t.open), p.queue.Len()+p.hints.book.Held(now))
	p.queue.SetCrowding(p.crowd)
	t.advanced = now
}

const (
	// leastCrowding is what work counts for others where nobody is in sight: it costs power, and slows down answers that are being
	// written. With less, calls at once with one prompt would each compute it somewhere else.
	leastCrowding = 0.5
	// mostCrowding is the most that work for others counts. Twice as much changes little for senders that are alone, and lets one
	// that sends many short prompts delay the others more.
	mostCrowding = 4
	// heldWeight is how much a held request for each endpoint adds.
	heldWeight = 2
)

// crowding is how much the work that a request makes counts for others. While nothing waits it is in the way of whoever comes next:
// as much as a queue grows by work, busy/(1-busy), if that share of the endpoints is at work. And the held requests that an
// endpoint has to serve wait as much longer. So the fuller the fleet is, the more a cached prefix is worth a wait.
func crowding(endpoints, open, held int) float64 {
	n := float64(max(1, endpoints))
	busy := 1 - float64(open)/n
	return max(leastCrowding, min(mostCrowding, busy/(1-busy)+heldWeight*float64(held)/n))
}

// age brings a lane up to now between two bookings.
func (l *lane) age(now time.Time) {
	l.facts.Idle = ms(now.Sub(l.bound))
	l.facts.Queue = ms(max(0, l.open.Sub(now)))
}

// book takes over what the endpoint's ledger says, after every change of it.
func (p *Picker) book(now time.Time, e *endpoint) {
	p.table.Load().advanced = time.Time{} // to no time: advance has to look again
	l, f := e.lane, &e.lane.facts
	queue := e.ledger.Queue(now)
	l.bound = e.bound
	l.nextEnd = e.ledger.NextEnd()
	if queue > 0 || e.free.After(now) {
		e.free = now.Add(queue)
	}
	others, holding := p.turn(now, e)
	l.open = e.free.Add(time.Duration(holding) * p.turnPause())
	f.Contention = 0
	if others > 0 {
		f.Contention = contention * p.meanPrefill
	}
	l.age(now)
	f.Outstanding = e.ledger.Outstanding()
	f.Full = e.ledger.Prefills() >= p.cfg.Hold.MaxBound
	f.PendingBlocks = e.ledger.UnseenBlocks()
	f.Waiting = max(0, e.waiting-e.ledger.Queued(e.observed, e.read))
}

// judge decides again whether the digest of endpoint i counts, and how much of it.
func (t *table) judge(i int) {
	e := t.endpoints[i]
	e.lane.digest = t.slots[i].group >= 0 && !e.stale && e.cleared.IsZero()
	e.lane.trust = e.trust()
}
