package extproc

import (
	"sync"
	"time"

	"github.com/grapevine-llm/grapevine/picker"
)

// maxLingering bounds the decisions whose end nobody tells.
const maxLingering = 1 << 16

// decider is the part of a picker that is told what became of a decision.
type decider interface {
	FirstToken(picker.Decision)
	Served(d picker.Decision, address string) picker.Decision
	Done(picker.Decision, picker.Outcome)
}

// open holds the decisions whose requests have not ended, for those who learn what becomes of them: the stream that asked for
// the pick, and an observing one that has only the request's id. Safe for concurrent use.
type open struct {
	decider decider

	mu        sync.Mutex // guards what follows, and the tickets' fields that say so
	byID      map[string]*namesakes
	tickets   int       // that have not ended
	lingering []*ticket // by expires
}

// namesakes are the open decisions on requests with one id: nearly always one, but Envoy may keep what clients set.
type namesakes struct {
	open     int
	unjoined int     // of these, not observed
	last     *ticket // the latest
}

// ticket is one of the decisions.
type ticket struct {
	id       string
	observed bool      // an observing stream will tell its end; guarded by open.mu
	expires  time.Time // guarded by open.mu; zero: its stream goes on
	ended    bool      // guarded by open.mu

	mu       sync.Mutex // guards decision, and the order of what is told
	decision picker.Decision
	first    bool // token told; guarded by mu
}

func newOpen(d decider) *open { return &open{decider: d, byID: map[string]*namesakes{}} }

// add takes in a decision.
func (o *open) add(id string, d picker.Decision) *ticket {
	t := &ticket{id: id, decision: d}
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.byID[id]
	if n == nil {
		n = &namesakes{}
		o.byID[id] = n
	}
	n.open++
	n.unjoined++
	n.last = t
	o.tickets++
	return t
}

// len returns how many decisions are open.
func (o *open) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tickets
}

// observe returns the decision on a request, whose end will be told by who observes it; nil: there is none, or, ambiguous, it may
// be any of several.
func (o *open) observe(id string) (t *ticket, ambiguous bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := o.byID[id]
	if n == nil || n.unjoined == 0 {
		return nil, false
	}
	if n.unjoined > 1 || n.last.observed || n.last.ended {
		return nil, true
	}
	n.last.observed, n.unjoined = true, 0
	return n.last, false
}

// firstToken says that output of the request was seen. Only the first call counts.
func (o *open) firstToken(t *ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.first {
		t.first = true
		o.decider.FirstToken(t.decision)
	}
}

// served says which endpoint serves the request. It reports whether that is another one than before.
func (o *open) served(t *ticket, address string) (moved bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if address == "" || address == t.decision.Endpoint.Address() {
		return false
	}
	t.decision = o.decider.Served(t.decision, address)
	return true
}

// end says that the request has ended. Only the first call counts.
func (o *open) end(t *ticket, out picker.Outcome) {
	o.mu.Lock()
	ended := t.ended
	o.close(t)
	o.mu.Unlock()
	if ended {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o.decider.Done(t.decision, out)
}

// close takes a ticket out. Caller holds o.mu.
func (o *open) close(t *ticket) {
	if t.ended {
		return
	}
	t.ended = true
	o.tickets--
	n := o.byID[t.id]
	if !t.observed {
		n.unjoined--
	}
	if n.open--; n.open == 0 {
		delete(o.byID, t.id)
	}
}

// linger lets a decision end by itself, since its stream tells nothing more; unless it is observed.
func (o *open) linger(t *ticket, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.observed || t.ended {
		return
	}
	t.expires = until
	o.lingering = append(o.lingering, t)
}

// sweep ends the decisions that have lingered long enough, and the oldest ones of too many.
func (o *open) sweep(now time.Time) {
	for {
		t := o.overdue(now)
		if t == nil {
			return
		}
		o.end(t, picker.Outcome{CachedTokens: -1}) // nothing is known of it
	}
}

// overdue takes the next one off the list that is to be ended.
func (o *open) overdue(now time.Time) *ticket {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.lingering) > 0 {
		t := o.lingering[0]
		if !t.ended && !t.observed && now.Before(t.expires) && len(o.lingering) <= maxLingering {
			return nil
		}
		o.lingering[0] = nil
		if o.lingering = o.lingering[1:]; len(o.lingering) == 0 {
			o.lingering = nil
		}
		if !t.ended && !t.observed {
			return t
		}
	}
	return nil
}
