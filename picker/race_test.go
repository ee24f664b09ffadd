package picker

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Everything at once: picks that hold, clients that go, agents that tick, pools, models and policies that change.
func TestConcurrentUse(t *testing.T) {
	f := newFleet(t, 4, func(c *Config) {
		*c = c.Scaled(100)
		c.Probe = func(context.Context, Endpoint) error { return nil }
	})
	stop := f.running()
	var wg sync.WaitGroup
	var picked, failed atomic.Int64
	deadline := time.Now().Add(500 * time.Millisecond)
	until := func(do func(i int)) {
		wg.Go(func() {
			for i := 0; time.Now().Before(deadline); i++ {
				do(i)
			}
		})
	}
	for g := range 16 {
		until(func(i int) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%20)*time.Millisecond)
			defer cancel()
			d, err := f.Pick(ctx, Request{
				ID: fmt.Sprint(g, " ", i), Model: "llama", TokenIDs: prompt(uint64(i%5), 3000), Flow: fmt.Sprint(g % 3), Priority: i % 2,
			})
			if err != nil {
				failed.Add(1)
				return
			}
			picked.Add(1)
			f.FirstToken(d)
			o := answered(d.PredictedCachedTokens, 3000)
			o.Connected = i%50 != 0
			if !o.Connected {
				o.Err = context.DeadlineExceeded
			}
			f.Done(d, o)
			f.Done(d, o)
		})
	}
	until(func(i int) {
		f.holds(i%4, prompt(uint64(i%5), 3000))
		time.Sleep(5 * time.Millisecond)
	})
	until(func(i int) {
		f.SetModels(map[string][]string{"static:1": {fmt.Sprint("model ", i%2)}})
		p := DefaultPolicy()
		p.Hold = i%3 != 0
		if err := f.SetPolicy(p); err != nil {
			t.Error(err)
		}
		if err := f.SetEndpoints([]string{"static:1", fmt.Sprintf("static:%d", 2+i%2)}); err != nil {
			t.Error(err)
		}
		f.CacheCleared(id(i % 4))
		f.Status()
		f.Receipts(10)
		if _, err := f.Explain(t.Context(), Request{TokenIDs: prompt(1, 3000)}); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Millisecond)
	})
	wg.Wait()
	stop()
	s := f.Status()
	if s.Held.Requests != 0 || picked.Load() == 0 {
		t.Errorf("%d picked, %d gave up, %d still held", picked.Load(), failed.Load(), s.Held.Requests)
	}
	for _, e := range s.Endpoints {
		if e.Outstanding != 0 || e.Prefills != 0 {
			t.Errorf("%s: %d outstanding, %d prefills after all have ended", e.ID, e.Outstanding, e.Prefills)
		}
	}
}

// TestCallsAtOnceLandTogether: ten calls with one prompt, all matched before the first is bound or its marks are made.
func TestCallsAtOnceLandTogether(t *testing.T) {
	f := newFleet(t, 8, nil)
	ids := prompt(1, 8000)
	var queries []*query
	for range 10 {
		queries = append(queries, f.prepared(time.Now(), Request{Model: "llama", TokenIDs: ids}))
	}
	for _, q := range queries {
		f.mu.Lock()
		_, err := f.admit(time.Now(), q)
		f.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := q.decision.Endpoint, queries[0].decision.Endpoint; got != want {
			t.Errorf("bound to %s, the first one to %s", got.ID, want.ID)
		}
	}
	for _, q := range queries {
		q.makeMarks(time.Now)
		f.release(q)
	}
	if d := f.pick(Request{Model: "llama", TokenIDs: ids}); d.MatchedBlocks != 500 {
		t.Errorf("%d blocks are marked, want 500", d.MatchedBlocks)
	}
}
