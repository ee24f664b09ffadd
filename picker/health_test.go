package picker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// statusOf returns the state of endpoint i.
func (f *fleet) statusOf(i int) EndpointStatus {
	f.t.Helper()
	for _, e := range f.Status().Endpoints {
		if e.ID == id(i) {
			return e
		}
	}
	f.t.Fatalf("%s is not in the pool", id(i))
	return EndpointStatus{}
}

// pass lets time pass in which only some agents tick.
func (f *fleet) pass(d time.Duration, ticking ...*agent) {
	f.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
		f.tick(ticking...)
	}
}

// spread picks n unrelated requests, ends each, and returns how many went to each endpoint.
func (f *fleet) spread(n int, req Request) map[string]int {
	f.t.Helper()
	got := map[string]int{}
	for i := range n {
		req.ID = fmt.Sprint("spread ", i)
		d := f.pick(req)
		got[d.Endpoint.ID]++
		f.Done(d, answered(-1, 0))
	}
	return got
}

func TestLadder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, nil)
		ids := prompt(1, 2000)
		f.holds(0, ids)
		rung := func(want Rung, why string) {
			t.Helper()
			f.mu.Lock()
			f.refreshAll(time.Now())
			f.mu.Unlock()
			r, err := f.Explain(t.Context(), Request{TokenIDs: ids})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range r.Candidates {
				if c.Endpoint == id(0) && c.Rung != want {
					t.Errorf("%s: rung %v, want %v", why, c.Rung, want)
				}
			}
		}
		rung(RungDigest, "a fresh tick")
		f.agents[0].pub.SetFlags(wire.Suspect)
		f.tick()
		rung(RungSuspect, "the agent doubts its picture")
		f.agents[0].pub.SetFlags(0)
		f.tick()
		f.CacheCleared("http://" + id(0))
		rung(RungLoad, "the cache was reset")
		f.pass(600*time.Millisecond, f.agents...)
		rung(RungLoad, "an idle engine has not told of the reset")
		d := f.pick(Request{ID: "step", TokenIDs: prompt(9, 100), Avoid: []string{id(1)}})
		f.FirstToken(d)
		f.Done(d, Outcome{Connected: true, CachedTokens: -1})
		f.pass(600*time.Millisecond, f.agents...)
		rung(RungDigest, "a tick well after the engine's next step")

		f.pass(time.Second, f.agents[1])
		rung(RungOwn, "the agent has been silent for a second")
		if got := f.spread(20, Request{TokenIDs: ids}); got[id(1)] != 20 {
			t.Errorf("%v: want all on the endpoint that is not stale", got)
		}
		f.pass(time.Second, f.agents[1])
		d = f.pick(Request{ID: "marked", TokenIDs: ids, Avoid: []string{id(1)}})
		if d.Endpoint.ID != id(0) || d.Rung != RungOwn {
			t.Errorf("went to %s by %v, want the stale endpoint by own counts", d.Endpoint.ID, d.Rung)
		}
		rung(RungSpeculation, "a request with this prompt was bound there")
	})
}

// TestMemoryWithoutDigest: where nobody reports, a prompt returns to where it was bound, for about a minute and as long as the
// endpoint answers.
func TestMemoryWithoutDigest(t *testing.T) {
	for _, tc := range []struct {
		name    string
		between func(f *fleet, d Decision)
		matched bool
	}{
		{"half a minute later", func(f *fleet, _ Decision) { f.pass(30 * time.Second) }, true},
		{"three minutes later", func(f *fleet, _ Decision) { f.pass(3 * time.Minute) }, false},
		{"after the endpoint could not be reached", func(f *fleet, _ Decision) {
			d := f.pick(Request{ID: "x", TokenIDs: prompt(2, 100)})
			f.Done(d, Outcome{Err: errors.New("connection refused"), CachedTokens: -1})
			f.pass(time.Minute / 2) // the backoff
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 0, func(c *Config) { c.Endpoints = []string{id(0)} })
				defer f.running()()
				ids := prompt(1, 2000)
				d := f.pick(Request{ID: "a", TokenIDs: ids})
				f.Done(d, answered(0, len(ids)))
				tc.between(f, d)
				if d := f.pick(Request{ID: "b", TokenIDs: ids}); (d.MatchedBlocks > 0) != tc.matched {
					t.Errorf("%d blocks matched by %v, want some: %v", d.MatchedBlocks, d.Rung, tc.matched)
				}
			})
		})
	}
}

// TestBoundedWithoutGossip: where only this gateway's own doings are known a prompt stays where it was bound, but not at any price.
func TestBoundedWithoutGossip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 0, func(c *Config) { c.Endpoints = []string{id(0), id(1), id(2)} })
		ids := prompt(1, 2000)
		home := f.pick(Request{ID: "first", TokenIDs: ids}).Endpoint.ID
		for n, stays := range []bool{1: true, 2: true, 3: false} { // 1.25 times (n+1)/3, rounded up, is 1, 2, 2
			if n == 0 {
				continue
			}
			if at := f.pick(Request{ID: fmt.Sprint("again ", n), TokenIDs: ids}).Endpoint.ID; (at == home) != stays {
				t.Errorf("with %d requests at home, %s, the prompt went to %s", n, home, at)
			}
		}
		if at := f.pick(Request{ID: "other", TokenIDs: prompt(2, 2000)}).Endpoint.ID; at == home {
			t.Errorf("a new prompt went to %s, which has most requests", at)
		}
	})
}

// TestNewEpochDropsMarksThoughInfoComesLate: while INFO is missing the digest has no place, and the marks beside it must
// not outlive that.
func TestNewEpochDropsMarksThoughInfoComesLate(t *testing.T) {
	f := newFleet(t, 2, nil)
	ids := prompt(1, 2000)
	d := f.pick(Request{ID: "a", TokenIDs: ids})
	if d = f.pick(Request{ID: "b", TokenIDs: ids}); d.PredictedCachedTokens == 0 {
		t.Fatal("nothing was marked")
	}
	var a *agent // of the endpoint with the marks
	for i := range f.agents {
		if id(i) == d.Endpoint.ID {
			a = f.agents[i]
		}
	}
	a.info.Version++
	a.info.Ranks[0].Epoch = 2
	a.pub.Restart(2)
	f.tick()
	f.pick(Request{ID: "between", TokenIDs: prompt(2, 100)})
	f.sendInfo(a)
	f.tick()
	if d := f.pick(Request{ID: "c", TokenIDs: ids}); d.PredictedCachedTokens != 0 {
		t.Errorf("%d tokens predicted on %s from marks of the old epoch", d.PredictedCachedTokens, d.Endpoint.ID)
	}
}

func TestEngineRestartEmptiesTheDigest(t *testing.T) {
	f := newFleet(t, 2, nil)
	ids := prompt(1, 2000)
	f.holds(0, ids)
	a := f.agents[0]
	a.info.Version++
	a.info.Ranks[0].Epoch = 2
	a.pub.Restart(2)
	f.sendInfo(a)
	f.tick()
	if d := f.pick(Request{ID: "a", TokenIDs: ids}); d.PredictedCachedTokens != 0 {
		t.Errorf("%d tokens predicted from a cache that is gone", d.PredictedCachedTokens)
	}
}

func TestWithoutGossipFewestOutstanding(t *testing.T) {
	cfg := Default()
	cfg.Endpoints = []string{"a:1", "b:1", "c:1"}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for i := range 30 {
		d, err := p.Pick(t.Context(), Request{ID: fmt.Sprint(i), TokenIDs: prompt(1, 1000)})
		if err != nil {
			t.Fatal(err)
		}
		if d.Reason != "early" || d.Held != 0 {
			t.Errorf("request %d: %s after %v, want bound at arrival", i, d.Reason, d.Held)
		}
		got[d.Endpoint.ID]++
	}
	for id, n := range got {
		if n != 10 {
			t.Errorf("%s got %d of 30: %v", id, n, got)
		}
	}
}

func TestVerdictsExcludeFew(t *testing.T) {
	f := newFleet(t, 10, nil)
	say := func(flags wire.Flags, agents ...int) {
		for _, i := range agents {
			f.agents[i].pub.SetFlags(flags)
		}
		f.tick()
		f.mu.Lock()
		f.refreshAll(time.Now())
		f.mu.Unlock()
	}
	say(wire.Draining, 0)
	say(wire.Asleep, 1)
	got := f.spread(200, Request{PromptTokens: 1000})
	if got[id(0)]+got[id(1)] != 0 || len(got) != 8 {
		t.Errorf("two of ten are said to be unusable: got %v", got)
	}
	say(wire.EngineDown, 2, 3, 4, 5, 6, 7, 8, 9)
	got = f.spread(200, Request{PromptTokens: 1000})
	if len(got) != 8 || got[id(0)]+got[id(1)] != 0 {
		t.Errorf("all are said to be unusable, the first two are believed: got %v", got)
	}
	if s := f.Status(); s.IgnoredVerdicts != 8 || !f.statusOf(0).Excluded {
		t.Errorf("%d verdicts ignored, want 8", s.IgnoredVerdicts)
	}
	only := newFleet(t, 1, nil)
	only.agents[0].pub.SetFlags(wire.Draining)
	only.tick()
	if got := only.spread(3, Request{}); got[id(0)] != 3 {
		t.Errorf("the only endpoint is draining: got %v, want it used", got)
	}
}

func TestConnectionFailure(t *testing.T) {
	refused := Outcome{Err: errors.New("connection refused"), CachedTokens: -1}
	t.Run("probed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var up atomic.Bool
			f := newFleet(t, 2, func(c *Config) {
				c.Probe = func(_ context.Context, e Endpoint) error {
					if e.ID != id(0) {
						t.Errorf("probed %s", e.ID)
					}
					if !up.Load() {
						return errors.New("connection refused")
					}
					return nil
				}
			})
			defer f.running()()
			f.Done(f.pick(Request{ID: "a", PromptTokens: 100, Avoid: []string{id(1)}}), refused)
			if s := f.statusOf(0); !s.Out {
				t.Fatal("not out after a refused connection")
			}
			time.Sleep(5 * time.Second)
			if got := f.spread(20, Request{PromptTokens: 100}); got[id(1)] != 20 {
				t.Errorf("%v: want all on the other", got)
			}
			if got := f.spread(1, Request{PromptTokens: 100, Avoid: []string{id(1)}}); got[id(0)] != 1 {
				t.Error("with no other left it should be tried all the same")
			}
			f.Done(f.pick(Request{ID: "b", PromptTokens: 100, Avoid: []string{id(1)}}), refused)
			up.Store(true)
			time.Sleep(40 * time.Second)
			if f.statusOf(0).Out {
				t.Error("still out though it answers")
			}
		})
	})
	t.Run("not probed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 2, nil)
			fail := func() { f.Done(f.pick(Request{ID: "a", PromptTokens: 100, Avoid: []string{id(1)}}), refused) }
			fail()
			if !f.statusOf(0).Out {
				t.Error("not out after a refused connection")
			}
			time.Sleep(251 * time.Millisecond)
			f.tick()
			if f.statusOf(0).Out {
				t.Error("still out after the first backoff")
			}
			for range 6 {
				fail()
			}
			time.Sleep(2 * time.Second)
			if !f.statusOf(0).Out {
				t.Error("the seventh backoff took less than 2 s")
			}
		})
	})
	t.Run("cancelled", func(t *testing.T) {
		f := newFleet(t, 1, nil)
		f.Done(f.pick(Request{ID: "a"}), Outcome{Err: context.Canceled, Cancelled: true, CachedTokens: -1})
		if f.statusOf(0).Out {
			t.Error("out because a client went away")
		}
	})
}

func TestAvoidAll(t *testing.T) {
	f := newFleet(t, 2, nil)
	if _, err := f.Pick(t.Context(), Request{Avoid: []string{id(0), id(1)}}); !errors.Is(err, ErrNoEndpoints) {
		t.Errorf("error %v, want ErrNoEndpoints", err)
	}
}

func TestLyingDigestIsBelievedLess(t *testing.T) {
	f := newFleet(t, 2, nil)
	ids := prompt(1, 4000)
	f.holds(0, ids)
	f.holds(1, ids[:3200])
	var last Decision
	for i := range 40 {
		last = f.pick(Request{ID: fmt.Sprint(i), TokenIDs: ids})
		cached := last.PredictedCachedTokens
		if last.Endpoint.ID == id(0) {
			cached = 0
		}
		f.Done(last, answered(cached, 4000))
	}
	s := f.statusOf(0)
	if last.Endpoint.ID != id(1) || s.Rung != RungSuspect || s.Trust > 0.85 || s.MeanError < 500 {
		t.Errorf("after 40 answers that contradict it: last went to %s, rung %v, trust %.2f, mean error %.0f",
			last.Endpoint.ID, s.Rung, s.Trust, s.MeanError)
	}
	if s := f.statusOf(1); s.Rung != RungDigest || s.Trust != 1 || s.MeanError != 0 {
		t.Errorf("the honest one: rung %v, trust %.2f, mean error %.0f", s.Rung, s.Trust, s.MeanError)
	}
}
