package picker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// TestStepped: the same three requests as a running picker would have them, by a clock that stands still but for the test.
func TestStepped(t *testing.T) {
	now := time.Unix(1000, 0)
	if _, err := NewStepped(func() Config { c := Default(); c.Gossip.Enabled = true; return c }(), now, 1); err == nil {
		t.Error("gossip on: no error")
	}
	s, err := NewStepped(Default(), now, 1)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{Picker: s.picker, t: t}
	a := f.newAgent(0)
	a.clock = now
	hear := func() {
		for _, b := range a.pub.Ticks(now) {
			if err := s.Hear(now, b); err != nil {
				t.Fatal(err)
			}
		}
		for range s.Ask(now) {
		}
		s.Step(now)
	}
	if err := s.Hear(now, a.info.Append(nil, wire.NodeHash(a.info.Node))); err != nil {
		t.Fatal(err)
	}
	a.pub.SetLoad(now, a.load)
	hear()

	var decisions []Decision
	submit := func(id string, seed uint64) {
		s.Submit(now, Request{ID: id, TokenIDs: prompt(seed, 8000)}, func(d Decision, err error) {
			if err != nil {
				t.Errorf("%s: %v", id, err)
			}
			decisions = append(decisions, d)
		})
	}
	submit("first", 1)
	submit("second", 2)
	if len(decisions) != 1 || decisions[0].Reason != "ready" {
		t.Fatalf("%d decisions, want the first request's at once and the second held: %+v", len(decisions), decisions)
	}
	next := s.Step(now)
	if !next.After(now) {
		t.Errorf("wants to be called again at %v, which is not later", next)
	}
	now = now.Add(300 * time.Millisecond)
	s.FirstToken(now, decisions[0])
	if len(decisions) != 2 || decisions[1].Held != 300*time.Millisecond {
		t.Fatalf("%d decisions after the first token, want the second request's, held for 300 ms: %+v", len(decisions), decisions)
	}
	left := s.Submit(now, Request{ID: "third", TokenIDs: prompt(3, 8000)}, func(Decision, error) { t.Error("a withdrawn request was answered") })
	if !s.Withdraw(now, left) || s.Withdraw(now, left) {
		t.Error("want the held request to be withdrawn, once")
	}
	for _, d := range decisions {
		s.Done(now, d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
	}
}

// TestSteppedBySeed: the same calls with the same seed have the same answers, those included that are drawn.
func TestSteppedBySeed(t *testing.T) {
	play := func(seed uint64) string {
		cfg := Default()
		cfg.Endpoints = []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000"}
		now := time.Unix(1000, 0)
		s, err := NewStepped(cfg, now, seed)
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for range 50 {
			now = now.Add(100 * time.Millisecond)
			s.Submit(now, Request{PromptTokens: 100}, func(d Decision, err error) {
				if err != nil {
					t.Fatal(err)
				}
				out += d.Endpoint.ID + " "
				s.Done(now, d, Outcome{Err: fmt.Errorf("refused"), CachedTokens: -1})
			})
			for _, e := range s.picker.table.Load().endpoints {
				out += fmt.Sprint(e.host.until.UnixNano(), " ")
			}
			out += fmt.Sprint(s.picker.refusal(0), "\n")
		}
		return out
	}
	if a, b := play(1), play(1); a != b {
		t.Errorf("twice with the same seed:\n%s\n\n%s", a, b)
	}
	if play(1) == play(2) {
		t.Error("another seed has the same answers")
	}
}

// TestSteppedProbe: a host that could not be reached is asked after each backoff, and used again when it answers.
func TestSteppedProbe(t *testing.T) {
	asked, back := 0, false
	cfg := Default()
	cfg.Endpoints = []string{"10.0.0.1:8000"}
	cfg.Probe = func(context.Context, Endpoint) error {
		if asked++; back {
			return nil
		}
		return errors.New("no answer")
	}
	now := time.Unix(1000, 0)
	s, err := NewStepped(cfg, now, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Submit(now, Request{PromptTokens: 100}, func(d Decision, _ error) {
		s.Done(now, d, Outcome{Err: errors.New("refused"), CachedTokens: -1})
	})
	h := s.picker.table.Load().endpoints[0].host
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		s.Probe(now)
	}
	if !h.out || asked < 4 || asked > 8 {
		t.Errorf("asked %d times in 10 s, out: %v; want 4 to 8 by pauses that double, and out", asked, h.out)
	}
	back = true
	now = now.Add(30 * time.Second)
	s.Probe(now)
	if h.out {
		t.Error("it answers and is still not used")
	}
}
