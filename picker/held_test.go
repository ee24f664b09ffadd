package picker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/grapevine-llm/grapevine/picker/score"
)

// TestRejectedAsPriced: what is held by a part of the prices is held by all of them, and has as much left to compute by both.
func TestRejectedAsPriced(t *testing.T) { synctest.Test(t, rejectedAsPriced) }

func rejectedAsPriced(t *testing.T) {
	const n = 40
	f := newFleet(t, n, func(c *Config) { c.Receipts = 0 })
	f.Picker.running = true // it holds
	rng := rand.New(rand.NewPCG(1, 1))
	prompts := make([][]uint32, 30)
	for i := range prompts {
		prompts[i] = prompt(uint64(i), 16000)
		f.holds(rng.IntN(n), prompts[i][:4000*(1+rng.IntN(3))])
	}
	f.agents[3].load.Waiting, f.agents[4].load.BlocksFree, f.agents[4].load.Running = 2, 100, 5
	f.tick()

	parts, wholes := 0, 0
	least := func(c []score.Candidate) float64 {
		m := math.Inf(1)
		for i := range c {
			m = min(m, c[i].Terms.Prefill)
		}
		return m
	}
	f.priceHeld = func(now time.Time, q *query, whole bool) []score.Candidate {
		part := slices.Clone(f.repriced(now, q, whole))
		all := f.price(now, q)
		if whole || len(part) == len(all) {
			wholes++
			return all
		}
		parts++
		if i := f.queue.Accept(all, q.key, now.Sub(q.start)); i >= 0 && f.queue.Accept(part, q.key, now.Sub(q.start)) < 0 {
			t.Errorf("request %s takes %s by all prices, none by a part of them", q.req.ID, f.agents[all[i].Index].info.Address)
		}
		if a, b := least(part), least(all); a != b {
			t.Errorf("request %s: %v ms of prefill left by a part of the prices, %v by all", q.req.ID, a, b)
		}
		return part
	}

	var held []*query
	var bound []Decision
	for step := range 2000 {
		time.Sleep(time.Duration(rng.IntN(5)) * time.Millisecond)
		now := time.Now()
		if step%50 == 0 {
			f.tick() // none is stale
			f.look(now)
		}
		if len(held) < 60 {
			ids := prompts[rng.IntN(len(prompts))]
			if rng.IntN(3) == 0 {
				ids = prompt(uint64(1000+step), 8000)
			}
			q := f.prepared(now, Request{ID: fmt.Sprint(step), Model: "llama", TokenIDs: ids})
			f.mu.Lock()
			waits, err := f.admit(now, q)
			f.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			if waits {
				held = append(held, q)
			} else {
				bound = append(bound, q.decision)
			}
		} else {
			i := rng.IntN(len(bound))
			f.Done(bound[i], answered(-1, 0))
			bound = slices.Delete(bound, i, i+1)
		}
		if i := rng.IntN(n); rng.IntN(5) == 0 && len(held) > 0 && f.table.Load().lanes[i].facts.Queue > 100 {
			f.holds(i, held[rng.IntN(len(held))].req.TokenIDs) // what it has at last is not what it was bound
			f.look(now)
		}
		held = slices.DeleteFunc(held, func(q *query) bool {
			select {
			case <-q.done:
				bound = append(bound, q.decision)
				return true
			default:
				return false
			}
		})
	}
	if parts < wholes {
		t.Errorf("%d times a part of the prices was enough, %d times it was not: want most", parts, wholes)
	}
}

func TestFindHome(t *testing.T) {
	tests := []struct {
		name             string
		both, all, loose []int32
		silent, avoid    []bool
		noRead           bool
		home, want       int
	}{
		{name: "one has more", both: []int32{3, 5, 4}, all: []int32{0, 0, 0}, loose: []int32{0, 0, 0}, want: 1},
		{name: "none has more", both: []int32{3, 5, 5}, all: []int32{0, 0, 0}, loose: []int32{0, 0, 0}, home: 2, want: 2},
		{name: "over all tiers", both: []int32{3, 2, 4}, all: []int32{3, 9, 0}, loose: []int32{0, 0, 0}, want: 1},
		{name: "one without a digest", both: []int32{3, 5, 4}, all: []int32{0, 0, 0}, loose: []int32{0, 1, 0}, silent: []bool{false, true, false}, want: 2},
		{name: "one that may not be used", both: []int32{3, 5, 4}, all: []int32{0, 0, 0}, loose: []int32{0, 0, 0}, avoid: []bool{false, true, false}, want: 2},
		{name: "nothing is read", both: []int32{3, 5, 4}, all: []int32{0, 0, 0}, loose: []int32{0, 0, 0}, noRead: true, want: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := &query{
				req: Request{NoCacheRead: tt.noRead}, both: tt.both, all: tt.all, loose: tt.loose, avoid: tt.avoid, home: tt.home,
				table: &table{lanes: make([]lane, len(tt.both))},
			}
			for i := range q.table.lanes {
				q.table.lanes[i].digest = tt.silent == nil || !tt.silent[i]
			}
			if q.findHome(); q.home != tt.want {
				t.Errorf("home %d, want %d", q.home, tt.want)
			}
		})
	}
}
