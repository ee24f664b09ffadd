package hold

import (
	"slices"
	"time"
)

// A Flight is one request bound to an endpoint, from binding to its end.
type Flight struct {
	Work   time.Duration // predicted prefill
	Blocks int           // KV blocks that it adds

	state state
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
// block shows in the digest, and its predicted end. The zero Ledger is empty.
type Ledger struct {
	prefills    []*Flight // queued, in the order of binding
	begun       time.Time // when the first of them began
	settling    []*Flight
	outstanding int
}

// Bind adds a flight.
func (l *Ledger) Bind(now time.Time, f *Flight) {
	l.Advance(now)
	if len(l.prefills) == 0 {
		l.begun = now
	}
	f.state = queued
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

// Advance ends the prefills whose predicted end has passed. The other methods do it themselves.
func (l *Ledger) Advance(now time.Time) {
	for len(l.prefills) > 0 {
		f := l.prefills[0]
		end := l.begun.Add(f.Work)
		if now.Before(end) {
			return
		}
		l.prefills = slices.Delete(l.prefills, 0, 1)
		l.begun = end
		// It may well take twice as long, and wait in the engine until then.
		l.settle(end.Add(f.Work), f)
	}
}

// Observed says that the engine's figures as of at are known. Prefills that were over by then are in them as running:
// with all their blocks, and not among those that wait.
func (l *Ledger) Observed(at time.Time) {
	l.settling = slices.DeleteFunc(l.settling, func(f *Flight) bool {
		if f.over.After(at) {
			return false
		}
		f.state = settled
		return true
	})
}

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
	sum := -now.Sub(l.begun)
	for _, f := range l.prefills {
		sum += f.Work
	}
	return sum
}

// NextEnd returns the predicted end of the running prefill, the zero time if there is none.
func (l *Ledger) NextEnd() time.Time {
	if len(l.prefills) == 0 {
		return time.Time{}
	}
	return l.begun.Add(l.prefills[0].Work)
}

// Prefills returns how many prefills are not over.
func (l *Ledger) Prefills() int { return len(l.prefills) }

// Outstanding returns how many requests are bound here and have not ended.
func (l *Ledger) Outstanding() int { return l.outstanding }

// Unseen returns the requests that the engine's figures may not show as running, and the KV blocks they add.
func (l *Ledger) Unseen() (requests, blocks int) {
	for _, f := range l.prefills {
		blocks += f.Blocks
	}
	for _, f := range l.settling {
		blocks += f.Blocks
	}
	return len(l.prefills) + len(l.settling), blocks
}
