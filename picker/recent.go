package picker

import (
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/match"
)

// marking is the marks that a bound query has still to make: many writes, so that they are made without a lock.
type marking struct {
	marks *match.Speculation // nil: none
	at    time.Time
	col   int
	chain []blockhash.Hash
	known int // leading blocks that were marked when q was matched
	until time.Time
}

// makeMarks makes the marks of q, if there are any to be made.
func (q *query) makeMarks(now func() time.Time) {
	if m := &q.marking; m.marks != nil {
		m.marks.Mark(m.at, m.col, m.chain, m.known, m.until)
		*m = marking{}
		q.marked.Store(now().UnixNano())
	}
}

// recentBinds is how many queries may be bound while another is hashed and matched, for it to know of all of them.
const recentBinds = 16

// recent holds the queries that were bound last. A query that was matched before all their marks were made learns here
// what they have in common, so that calls of one agent land together however close they come. Guarded by Picker.mu.
type recent struct {
	ring [recentBinds]*query
	next int
}

// add takes in a bound query and returns the one that it replaces, which may be nil.
func (r *recent) add(q *query) (old *query) {
	at := r.next % recentBinds
	old, r.ring[at] = r.ring[at], q
	r.next++
	return old
}

// tell tells q of those that it may have missed.
func (r *recent) tell(q *query) {
	since := q.matched.UnixNano()
	for _, o := range r.ring {
		if o == nil {
			continue
		}
		if at := o.marked.Load(); at == 0 || at >= since {
			q.bound(o, o.endpoint)
		}
	}
}
