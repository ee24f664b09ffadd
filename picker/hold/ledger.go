package hold

import (
	"slices"
	"time"
)

// A Flight is one request bound to an endpoint, from binding to its end.
type Flight struct {
	Work   time.Duration // predicted prefill
	Blocks int           // KV blocks that it adds
	// Told says that the end of the prefill will be told: it may then take twice as long as predicted before it counts as over.
	Told bool

	state state
	bound time.Time
	over  time.Time // when its prefill was over, at the latest
	known bool      // that is no prediction
}

type state uint8

const (
	unbound  state = iota
	queued         // prefill not over
	settling       // prefill over, but the engine's figures may not show it yet
	settled
)

// A Ledger knows what is in flight on one endpoint: engines report neither the prefill tokens in their queue nor how far
// a prefill is. Prefills are taken to run one after the other in the order of binding, each from the end of the one
// before. A prefill is over at the first of [Ledger.Over], which the caller calls on the first token and when the last
// block shows in the digest, and its predicted end; where the end will be told, at twice the predicted time. The zero Ledger is
// empty.
type Ledger struct {
	prefills    []*Flight // queued, in the order of binding
	begun       time.Time // when the first of them began
	settling    []*Flight
	outstanding int
	stuck       int // requests that wait in the engine, as last observed, and are none of those that it should not have begun
}

// Bind adds a flight.
func (l *Ledger) Bind(now time.Time, f *Flight) {
	l.Advance(now)
	if len(l.prefills) == 0 {
		l.begun = now
	}
	f.state, f.bound = queued, now
	l.prefills = append(l.prefills, f)
	l.outstanding++
}

// Over says that f's prefill is over. Calling it again changes nothing.
func (l *Ledger) Over(now time.Time, f *Flight) {
	l.Advance(now)
	if f.state == settling && !f.known {
		f.over, f.known = now, true
	}
	if f.state != queued {
		return
	}
	i := slices.Index(l.prefills, f)
	if i == 0 {
		l.begun = now
	}
	l.prefills = slices.Delete(l.prefills, i, i+1)
	f.known = true
	l.settle(now, f)
}

// End says that the request is over.
func (l *Ledger) End(now time.Time, f *Flight) {
	if f.state == unbound {
		return
	}
	l.Over(now, f)
	if f.state == settling {
		l.settling = slices.DeleteFunc(l.settling, func(other *Flight) bool { return other == f })
	}
	f.state = unbound
	l.outstanding--
}

// patience is when a prefill is taken to be over without a word, from its begin.
func (f *Flight) patience() time.Duration {
	if f.Told {
		return 2 * f.Work
	}
	return f.Work
}

// Advance ends the prefills whose predicted end has passed. The other methods do it themselves.
func (l *Ledger) Advance(now time.Time) {
	for len(l.prefills) > 0 {
		f := l.prefills[0]
		end := l.begun.Add(f.patience())
		if now.Before(end) {
			return
		}
		l.prefills = slices.Delete(l.prefills, 0, 1)
		l.begun = end
		// It may well take twice as long, and wait in the engine until then.
		l.settle(end.Add(f.Work), f)
	}
}

// Observed says that the engine's figures as of at have come, now, and that they count some requests as waiting. Prefills that
// were over by then are in them as running: with all their blocks, and not among those that wait.
//
// An engine admits a request when the KV blocks for it are free. One whose prefill should be over, but is not known to be,
// while a request waits that nothing explains, may be stuck there: it stays unseen. When fewer wait it has begun, and takes
// its predicted time from then on.
func (l *Ledger) Observed(now, at time.Time, waiting int) {
	stuck := max(0, waiting-l.Queued(at, now))
	for i := 0; i < len(l.settling) && l.stuck > stuck; {
		f := l.settling[i]
		if f.known || f.bound.After(at) {
			i++
			continue
		}
		l.settling = slices.Delete(l.settling, i, i+1)
		f.state = queued
		l.prefills = slices.Insert(l.prefills, 0, f) // engines admit in the order of arrival
		l.begun = at
		l.stuck--
	}
	l.stuck = stuck
	l.settling = slices.DeleteFunc(l.settling, func(f *Flight) bool {
		if f.over.After(at) || stuck > 0 && !f.known {
			return false
		}
		f.state = settled
		return true
	})
}

// Known reports whether the end of the prefill is known: that it has come, and not only that it should have.
func (f *Flight) Known() bool { return f.known }

func (l *Ledger) settle(now time.Time, f *Flight) {
	f.state, f.over = settling, now
	l.settling = append(l.settling, f)
}

// Queue returns how long the prefills that are bound here still take, as predicted.
func (l *Ledger) Queue(now time.Time) time.Duration {
	l.Advance(now)
	if len(l.prefills) == 0 {
		return 0
	}
	first := l.prefills[0]
	sum := first.Work - now.Sub(l.begun)
	if first.Told {
		sum = max(sum, first.Work/4) // until it is told: an endpoint is not free because it should be
	}
	for _, f := range l.prefills[1:] {
		sum += f.Work
	}
	return sum
}

// NextEnd returns the predicted end of the running prefill, the zero time if there is none.
func (l *Ledger) NextEnd() time.Time {
	if len(l.prefills) == 0 {
		return time.Time{}
	}
	return l.begun.Add(l.prefills[0].patience())
}

// Prefills returns how many prefills are not over.
func (l *Ledger) Prefills() int { return len(l.prefills) }

// Outstanding returns how many requests are bound here and have not ended.
func (l *Ledger) Outstanding() int { return l.outstanding }

// UnseenBlocks returns the KV blocks that the engine's figures may not show yet.
func (l *Ledger) UnseenBlocks() int {
	blocks := 0
	for _, f := range l.prefills {
		blocks += f.Blocks
	}
	for _, f := range l.settling {
		blocks += f.Blocks
	}
	return blocks
}

// Queued returns how many of these flights the engine's figures as of at, which came at read, may count as waiting though they
// are part of Queue, or no longer wait. A flight whose prefill should be over, but is not known to be, is not among them: if
// the engine says that a request waits, this one may be stuck there.
func (l *Ledger) Queued(at, read time.Time) int {
	n := 0
	for _, f := range l.prefills {
		if !f.bound.After(read) {
			n++
		}
	}
	for _, f := range l.settling {
		// In the second half of its prefill it did not wait.
		if f.known && !f.bound.After(read) && f.over.Add(-f.Work/2).After(at) {
			n++
		}
	}
	return n
}
