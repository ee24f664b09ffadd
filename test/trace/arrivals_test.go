package trace

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

// days is a trace of sessions of three calls among requests that stand alone.
func days() *Trace {
	t := &Trace{BlockTokens: 512}
	for i := range 60 {
		at := time.Duration(i) * 1700 * time.Millisecond
		t.Requests = append(t.Requests, Request{At: at, Prompt: 1000 + i, Output: 1})
		if i%4 == 0 {
			for call := range 3 {
				t.Requests = append(t.Requests, Request{At: at + time.Duration(call)*7*time.Second, Session: strconv.Itoa(i), Prompt: 1, Output: 1 + call})
			}
		}
	}
	t.settle(&Options{}, 0)
	return t
}

func TestRedrawn(t *testing.T) {
	tr := days()
	again, other, same := tr.Redrawn(1), tr.Redrawn(2), tr.Redrawn(1)
	at := func(r Request) time.Duration { return r.At }
	times := func(t *Trace) (out []time.Duration) {
		for _, r := range t.Requests {
			out = append(out, at(r))
		}
		return out
	}
	if slices.Equal(times(again), times(tr)) || slices.Equal(times(again), times(other)) || !slices.Equal(times(again), times(same)) {
		t.Error("arrivals do not depend on the seed, or not only")
	}
	if !slices.IsSorted(times(again)) || again.Requests[0].At != 0 {
		t.Error("not in the order of arrival from zero on")
	}
	// Who stands alone keeps its place among its like, in its window but for the shift of the whole to zero.
	alone := func(t *Trace) (out []Request) {
		for _, r := range t.Requests {
			if r.Session == "" {
				out = append(out, r)
			}
		}
		return out
	}
	before, after := alone(tr), alone(again)
	for i := range before {
		if before[i].Prompt != after[i].Prompt {
			t.Fatalf("request of %d tokens now stands where that of %d stood", after[i].Prompt, before[i].Prompt)
		}
		if d := (after[i].At - before[i].At).Abs(); d > 2*arrivalWindow {
			t.Errorf("request %d moved by %v", i, d)
		}
	}
	// Calls of a session keep their distances and their links.
	for i, r := range again.Requests {
		if r.Previous < 0 {
			continue
		}
		if p := again.Requests[r.Previous]; r.Previous >= i || p.Session != r.Session || r.At-p.At != 7*time.Second || p.Output != r.Output-1 {
			t.Errorf("request %d: %+v after %+v", i, r, p)
		}
	}
	if tr.Requests[1].At != days().Requests[1].At {
		t.Error("the trace itself has changed")
	}
}

func TestPoisson(t *testing.T) {
	tr := &Trace{BlockTokens: 512}
	for i := range 400 {
		tr.Requests = append(tr.Requests, Request{Session: "a", Prompt: i + 1, Output: 1})
	}
	tr.settle(&Options{}, 0)
	if tr.Span() != 0 {
		t.Fatalf("span %v", tr.Span())
	}
	got := tr.Poisson(3)
	if s := got.Span().Seconds(); s < 320 || s > 480 {
		t.Errorf("400 requests in %.0f s, want one a second", s)
	}
	for i, r := range got.Requests {
		if r.Prompt != i+1 || r.Previous != i-1 {
			t.Fatalf("request %d: %+v", i, r)
		}
	}
	if (&Trace{}).Span() != 0 || len((&Trace{}).Redrawn(1).Requests) != 0 || len((&Trace{}).Poisson(1).Requests) != 0 {
		t.Error("a trace without requests")
	}
}
