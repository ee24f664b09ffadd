package trace

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// arrivalWindow is how far Redrawn moves a session's start at most. Bursts and lulls of a day or a minute stay; which requests meet
// in an engine's queue does not.
const arrivalWindow = 10 * time.Second

// Span is the time from the first arrival to the last.
func (t *Trace) Span() time.Duration {
	if len(t.Requests) == 0 {
		return 0
	}
	return t.Requests[len(t.Requests)-1].At
}

// Redrawn returns the trace as it might have come on another day. Each session's start is drawn anew, evenly within its window of
// ten seconds; a request without a session counts as one. Within a window that is a Poisson process of the recorded count. The
// order of the starts stays, so that a prompt never comes before the one that it continues, and the calls of a session keep
// their distances.
func (t *Trace) Redrawn(seed uint64) *Trace {
	rng := rand.New(rand.NewPCG(seed, 11))
	type start struct {
		at, moved time.Duration
	}
	starts := []*start{}                  // in the order of time, as the requests
	of := make([]*start, len(t.Requests)) // of a request's session
	sessions := map[string]*start{}
	for i := range t.Requests {
		r := &t.Requests[i]
		s := sessions[r.Session]
		if s == nil || r.Session == "" {
			s = &start{at: r.At}
			sessions[r.Session] = s
			starts = append(starts, s)
		}
		of[i] = s
	}
	for i := 0; i < len(starts); {
		from := starts[i].at / arrivalWindow * arrivalWindow
		width := min(arrivalWindow, t.Span()-from)
		n := i
		for n < len(starts) && starts[n].at < from+arrivalWindow {
			n++
		}
		draws := make([]time.Duration, n-i)
		for k := range draws {
			draws[k] = from + time.Duration(rng.Float64()*float64(width))
		}
		slices.Sort(draws)
		for ; i < n; i++ {
			starts[i].moved, draws = draws[0], draws[1:]
		}
	}
	at := make([]time.Duration, len(t.Requests))
	for i := range t.Requests {
		at[i] = t.Requests[i].At + of[i].moved - of[i].at
	}
	return t.arriving(at)
}

// Poisson returns the trace with arrivals as a Poisson process of one request a second, in the order of the trace: for a list of
// requests that says nothing of time.
func (t *Trace) Poisson(seed uint64) *Trace {
	rng := rand.New(rand.NewPCG(seed, 13))
	at := make([]time.Duration, len(t.Requests))
	for i := 1; i < len(at); i++ {
		at[i] = at[i-1] + seconds(rng.ExpFloat64())
	}
	return t.arriving(at)
}

// arriving returns the trace with other arrival times, from zero on. Requests keep their predecessors.
func (t *Trace) arriving(at []time.Duration) *Trace {
	order := make([]int, len(at))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at[a], at[b]) })
	place := make([]int, len(at))
	out := &Trace{BlockTokens: t.BlockTokens, Requests: make([]Request, len(at))}
	for i, from := range order {
		place[from] = i
		out.Requests[i] = t.Requests[from]
		out.Requests[i].At = at[from] - at[order[0]]
	}
	for i := range out.Requests {
		if r := &out.Requests[i]; r.Previous >= 0 {
			r.Previous = place[r.Previous]
		}
	}
	return out
}
