// Package hold decides which waiting request goes to which endpoint, and when: late binding.
//
// A request that is bound can't move any more, so it is bound only when an endpoint can start it. Until then it waits in
// a [Queue]. At each opportunity (an arrival, a tick, a first token) the caller asks [Queue.Next] until nothing more may
// go; each answer must have been accounted for, in the endpoint's [Ledger], before the next question:
//
//	q.Add(now, item)
//	for b, ok := q.Next(now, anyReady, price); ok; b, ok = q.Next(now, anyReady, price) {
//		ledgers[b.Candidate.Index].Bind(now, ...)
//		b.Item.Value.answer(b)
//	}
//
// A request takes the best ready endpoint if its cost there is no more than the best alternative, which is waiting for a
// busy one, plus a little for each second that it has waited, or much where the fleet has little to do: see
// [Queue.SetCrowding]. Among those that may go, higher priority comes first, then
// deficit round robin between flows, then the shortest own prefill less a credit for age. What an engine
// says of others' requests in its queue may be old: an endpoint that is given nothing for DoubtAfter is tried with a
// request that waited as long. A hold ends in any case after MaxAge (ShedAfter for a sheddable request) or a share of the
// deadline, or when the queue is full: the request is then bound by wait + cost, or refused if it is sheddable or every
// endpoint's own queue is at its limit.
//
// Holds have to be long to be worth something: a request that is bound when its patience ends goes where it is computed
// anew, and so makes the overload worse that made it wait. With agents' calls at four fifths of what round robin can carry
// a limit of 10 s gave a mean time to first token of 87 s, one of two minutes 7 to 12 s (simulated, trace cc). The default is what
// clients wait at most (OpenAI's SDK gives up after ten minutes).
//
// Everything is a state machine without clock or goroutine; nothing here may be called concurrently.
package hold

import (
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/picker/score"
)

// Config bounds the hold and sets its order.
type Config struct {
	MaxAge        time.Duration // longest hold; zero: none is held
	ShedAfter     time.Duration // longest hold of a sheddable request
	DoubtAfter    time.Duration // an endpoint that got nothing for so long, while requests waited as long, is ready whatever waits there
	DeadlineShare float64       // share of the time to a request's deadline that it may be held, 0 to 1
	MaxRequests   int
	MaxBytes      int64
	Patience      float64       // ms of extra cost accepted per ms waited, at least
	AgeCredit     float64       // ms of prefill that a ms waited makes up for in the order
	AgeGrowth     time.Duration // age at which that credit has doubled; overload must not starve long prompts
	MaxScan       int           // requests priced per opportunity: the first ones of each flow, and some of the others in turn
	BytesPerTurn  int           // body bytes that count as much as one request between flows
}

// Default returns bounds for engines at real speed.
func Default() Config {
	return Config{
		MaxAge:        10 * time.Minute,
		ShedAfter:     10 * time.Second,
		DoubtAfter:    30 * time.Second,
		DeadlineShare: 0.25,
		MaxRequests:   1000,
		MaxBytes:      256 << 20,
		Patience:      0.05,
		AgeCredit:     0.1,
		AgeGrowth:     2 * time.Second,
		MaxScan:       150,
		BytesPerTurn:  64 << 10,
	}
}

// Scaled returns the bounds for engines that run s times as fast.
func (c Config) Scaled(s float64) Config {
	c.MaxAge = time.Duration(float64(c.MaxAge) / s)
	c.ShedAfter = time.Duration(float64(c.ShedAfter) / s)
	c.DoubtAfter = time.Duration(float64(c.DoubtAfter) / s)
	c.AgeGrowth = time.Duration(float64(c.AgeGrowth) / s)
	return c
}

// An Item is one waiting request; Value is the caller's.
type Item[R any] struct {
	Value     R
	Key       uint64 // hash of the request, for breaking ties
	Flow      string // who is to be treated fairly
	Priority  int    // higher goes first
	Arrived   time.Time
	Deadline  time.Time     // zero: none
	MaxAge    time.Duration // longest hold if shorter than the configuration's; 0: that, negative: none
	Bytes     int           // that the request takes at the gateway
	Sheddable bool

	flow     *flow[R]
	expires  time.Time
	uncached int     // tokens to compute on the endpoint that has most of the prompt
	work     float64 // ms of prefill there
}

// Note remembers what is left to compute where most of the prompt is, for [Queue.Waiting]. Next does it itself whenever it
// looks at the request; the caller may do it before Add. c must not be empty.
func (it *Item[R]) Note(c []score.Candidate) {
	it.uncached, it.work = c[0].Uncached, c[0].Terms.Prefill
	for i := range c[1:] {
		if c[1+i].Terms.Prefill < it.work {
			it.uncached, it.work = c[1+i].Uncached, c[1+i].Terms.Prefill
		}
	}
}

// Reason says why a hold ended.
type Reason uint8

// A request is bound for the first four reasons and refused for the last three.
const (
	Ready    Reason = iota // an endpoint can start it now
	Expired                // held as long as it may be
	Crowded                // the queue was full
	Drained                // the gateway stops holding
	Shed                   // sheddable, and Expired or Crowded
	Full                   // every endpoint's own queue is at its limit
	Orphaned               // no endpoint is left
)

var reasonNames = [...]string{"ready", "expired", "crowded", "drained", "shed", "full", "orphaned"}

func (r Reason) String() string { return reasonNames[r] }

// Bound reports whether the request was given an endpoint.
func (r Reason) Bound() bool { return r <= Drained }

// A Binding is the end of one hold. Candidate is zero if the request was refused.
type Binding[R any] struct {
	Item      *Item[R]
	Candidate score.Candidate
	Reason    Reason
}

// Price returns the candidates for a request; if not all, it may leave out some that are neither ready nor have most of the
// prompt: a request that takes none of the others then doesn't take one of all either. The slice is only used until the next
// call.
type Price[R any] func(now time.Time, value R, all bool) []score.Candidate

// Queue holds the waiting requests.
type Queue[R any] struct {
	cfg    Config
	params score.Params

	flows   []*flow[R] // the ring of the round robin
	turn    int        // index of the flow whose turn it is
	served  bool       // that flow has had its quantum in this round
	count   int
	bytes   int64
	drained bool
	crowd   float64 // see SetCrowding; 0: unknown

	offers []offer[R] // scratch
}

// flow is one sender's requests, higher priority first, then older first.
type flow[R any] struct {
	name    string
	items   []*Item[R]
	bytes   int64
	deficit float64
	next    int // of the items behind those that are looked at each time
}

// New returns an empty queue that prices ties and margins by params.
func New[R any](cfg Config, params score.Params) *Queue[R] {
	return &Queue[R]{cfg: cfg, params: params}
}

// Len returns how many requests wait.
func (q *Queue[R]) Len() int { return q.count }

// Waiting describes what is held.
type Waiting struct {
	Requests       int
	Bytes          int64
	UncachedTokens int           // to be computed if each goes where most of its prompt is
	Work           time.Duration // of prefill for these
}

// Waiting returns the sums over all waiting requests.
func (q *Queue[R]) Waiting() Waiting {
	w := Waiting{Requests: q.count, Bytes: q.bytes}
	for _, f := range q.flows {
		for _, it := range f.items {
			w.UncachedTokens += it.uncached
			w.Work += time.Duration(it.work * float64(time.Millisecond))
		}
	}
	return w
}

// Add puts a request into the queue; [Queue.Next] says what becomes of it.
func (q *Queue[R]) Add(it *Item[R]) {
	limit := q.cfg.MaxAge
	if it.Sheddable {
		limit = min(limit, q.cfg.ShedAfter)
	}
	if it.MaxAge != 0 {
		limit = min(limit, max(0, it.MaxAge))
	}
	it.expires = it.Arrived.Add(limit)
	if !it.Deadline.IsZero() {
		share := time.Duration(q.cfg.DeadlineShare * float64(it.Deadline.Sub(it.Arrived)))
		if e := it.Arrived.Add(max(0, share)); e.Before(it.expires) {
			it.expires = e
		}
	}
	f := q.flow(it.Flow)
	at, _ := slices.BinarySearchFunc(f.items, it, func(a, b *Item[R]) int {
		if a.Priority != b.Priority {
			return b.Priority - a.Priority
		}
		if a.Arrived.After(b.Arrived) {
			return 1
		}
		return -1 // equal: behind those that came before
	})
	f.items = slices.Insert(f.items, at, it)
	it.flow = f
	f.bytes += int64(it.Bytes)
	q.bytes += int64(it.Bytes)
	q.count++
}

// Remove takes a request out, for example because its client has gone. It reports whether the request still waited.
func (q *Queue[R]) Remove(it *Item[R]) bool {
	f := it.flow
	if f == nil {
		return false
	}
	it.flow = nil
	f.items = slices.DeleteFunc(f.items, func(other *Item[R]) bool { return other == it })
	f.bytes -= int64(it.Bytes)
	q.bytes -= int64(it.Bytes)
	q.count--
	if len(f.items) == 0 {
		q.dropFlow(f)
	}
	return true
}

// Drain ends all holds: Next binds everything at once, now and for requests added later, until Drain(false).
func (q *Queue[R]) Drain(on bool) { q.drained = on }

// Due returns when the first hold ends by age, the zero time if nothing waits.
func (q *Queue[R]) Due() time.Time {
	var due time.Time
	for _, f := range q.flows {
		for _, it := range f.items {
			if due.IsZero() || it.expires.Before(due) {
				due = it.expires
			}
		}
	}
	return due
}

// Each calls visit for every waiting request.
func (q *Queue[R]) Each(visit func(*Item[R])) {
	for _, f := range q.flows {
		for _, it := range f.items {
			visit(it)
		}
	}
}

// Next takes one request out of the queue whose hold ends now. The caller must account for the binding before it asks
// again, until the answer is false. ready says whether any endpoint may be ready at all; false saves the search.
func (q *Queue[R]) Next(now time.Time, ready bool, price Price[R]) (Binding[R], bool) {
	if it, why := q.overdue(now); it != nil {
		q.Remove(it)
		return q.force(now, it, why, price), true
	}
	if !ready || q.count == 0 {
		return Binding[R]{}, false
	}
	return q.takeable(now, price)
}

// overdue returns a request that may not wait any longer.
func (q *Queue[R]) overdue(now time.Time) (*Item[R], Reason) {
	if q.count == 0 {
		return nil, 0
	}
	if q.drained {
		return q.oldest(), Drained
	}
	var first *Item[R]
	for _, f := range q.flows {
		for _, it := range f.items {
			if !now.Before(it.expires) && (first == nil || it.expires.Before(first.expires)) {
				first = it
			}
		}
	}
	switch {
	case first != nil:
		return first, Expired
	case q.count > q.cfg.MaxRequests:
		return q.crowder(func(f *flow[R]) int64 { return int64(len(f.items)) }), Crowded
	case q.bytes > q.cfg.MaxBytes:
		return q.crowder(func(f *flow[R]) int64 { return f.bytes }), Crowded
	}
	return nil, 0
}

// force binds a request by wait + cost whether or not an endpoint is ready.
func (q *Queue[R]) force(now time.Time, it *Item[R], why Reason, price Price[R]) Binding[R] {
	if it.Sheddable && why != Drained {
		return Binding[R]{Item: it, Reason: Shed}
	}
	c := price(now, it.Value, true)
	if len(c) == 0 {
		return Binding[R]{Item: it, Reason: Orphaned}
	}
	i := q.params.Best(c, it.Key, score.Any)
	if i < 0 {
		return Binding[R]{Item: it, Reason: Full}
	}
	return Binding[R]{Item: it, Candidate: c[i], Reason: why}
}

// Accept returns the position in c of the ready endpoint that a request which has waited for age takes now, or -1 if it
// had better wait on.
func (q *Queue[R]) Accept(c []score.Candidate, key uint64, age time.Duration) int {
	i := q.params.Best(c, key, score.Ready)
	if i < 0 || c[i].Wait+c[i].Cost > score.Alternative(c)+q.patience()*ms(age) {
		return -1
	}
	return i
}

// SetCrowding says how much work counts for others now, as in the prices. What is cached is worth a wait, but how long that gets nobody
// can say: it depends on others that wait for the same endpoint, and on a memory that answers fill which are being written. Where
// work counts little a request that has waited does better to be computed anew; where it counts much that would only make the
// others wait.
func (q *Queue[R]) SetCrowding(c float64) { q.crowd = c }

// patience is the extra cost that a request accepts per ms waited.
func (q *Queue[R]) patience() float64 {
	if q.crowd <= 0 {
		return q.cfg.Patience
	}
	return max(q.cfg.Patience, uncrowded/(q.crowd*q.crowd*q.crowd))
}

// uncrowded is the patience where work counts once for others: then a wait of four times the extra cost is enough. It falls with
// the third power, found with traces of agents on 8, 16 and 64 pods.
const uncrowded = 0.25

// order is the place of a request with the given prefill among those of its flow: the least goes first.
func (q *Queue[R]) order(prefill float64, age time.Duration) float64 {
	credit := q.cfg.AgeCredit * ms(age)
	if q.cfg.AgeGrowth > 0 {
		credit *= 1 + float64(age)/float64(q.cfg.AgeGrowth)
	}
	return prefill - credit
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
