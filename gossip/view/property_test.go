package view

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/gossiptest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// TestEndsExact: whatever happens on the way, once it stops every gateway holds the
// very bits of every agent's filter.
func TestEndsExact(t *testing.T) {
	good := gossiptest.Conditions{Delay: 2 * time.Millisecond, Jitter: 3 * time.Millisecond}
	awful := gossiptest.Conditions{Loss: 0.3, Duplicate: 0.2, Delay: 5 * time.Millisecond, Jitter: 120 * time.Millisecond}
	cut := func(w *world, broken bool) {
		for _, a := range w.agents[:2] {
			w.net.Cut(a.hash, w.gateways[0].hash, broken)
		}
		w.net.Cut(w.gateways[0].hash, w.agents[2].hash, broken)
	}
	tests := []struct {
		name       string
		conditions gossiptest.Conditions
		happen     func(w *world)
		within     time.Duration
	}{
		{"a good network", good, func(w *world) { w.run(2*time.Second, 10) }, 500 * time.Millisecond},
		{"loss, duplicates, any order", awful, func(w *world) { w.run(5*time.Second, 10) }, 20 * time.Second},
		{"partition both ways", good, func(w *world) {
			w.run(time.Second, 5)
			cut(w, true)
			w.run(5*time.Second, 5)
			cut(w, false)
		}, 3 * time.Second},
		{"partition under loss", awful, func(w *world) {
			w.run(time.Second, 5)
			cut(w, true)
			w.run(3*time.Second, 5)
			cut(w, false)
			w.run(time.Second, 5)
		}, 20 * time.Second},
		{"a gateway that joins late", good, func(w *world) {
			w.run(5*time.Second, 10)
			g := &gateway{}
			w.gateways = append(w.gateways, g)
			w.boot(g, "late")
		}, time.Second},
		{"a gateway restarts", awful, func(w *world) {
			w.run(3*time.Second, 10)
			w.boot(w.gateways[0], "gateway-0b")
			w.run(time.Second, 10)
		}, 20 * time.Second},
		{"an agent restarts", awful, func(w *world) {
			w.run(2*time.Second, 10)
			w.reboot(w.agents[0])
			w.run(2*time.Second, 10)
			w.reboot(w.agents[0])
			w.reboot(w.agents[1])
			w.run(100*time.Millisecond, 10)
		}, 20 * time.Second},
		{"an engine restarts", awful, func(w *world) {
			w.run(2*time.Second, 10)
			w.agents[0].restartEngine()
			w.run(50*time.Millisecond, 10)
			w.agents[0].restartEngine()
			w.run(2*time.Second, 10)
		}, 20 * time.Second},
		{"clocks jump", awful, func(w *world) {
			w.run(time.Second, 10)
			w.gateways[0].skew, w.gateways[1].skew = time.Hour, -time.Hour
			w.agents[0].skew, w.agents[1].skew = -time.Hour, time.Hour
			w.run(time.Second, 10)
			w.gateways[0].skew, w.gateways[1].skew = 0, 0
			w.agents[0].skew, w.agents[1].skew = 0, 0
			w.run(time.Second, 10)
		}, 20 * time.Second},
		{"a gateway sleeps", good, func(w *world) {
			w.run(time.Second, 10)
			w.gateways[0].asleep = true
			w.run(10*time.Second, 10)
			w.gateways[0].asleep = false
		}, 3 * time.Second},
		{"a backlog beyond the rate", awful, func(w *world) {
			w.run(500*time.Millisecond, 10)
			for _, a := range w.agents {
				a.churn(20_000)
			}
			w.run(time.Second, 10)
		}, 20 * time.Second},
		{"a forged epoch", good, func(w *world) {
			w.run(time.Second, 10)
			forged := wire.Tick{Key: w.agents[0].key(), Epoch: 1 << 50, TickNo: 9, Interval: time.Second}
			w.net.Send(1, w.gateways[0].hash, forged.Append(nil, 1), false)
			w.run(step, 0)
			if w.fault(w.gateways[0], w.agents[0]) == "" {
				w.t.Error("the forged epoch had no effect: the test is void")
			}
		}, 5 * time.Second},
		{"a forged tick number", good, func(w *world) {
			w.run(time.Second, 10)
			forged := wire.Tick{Key: w.agents[0].key(), Epoch: w.agents[0].pub.Epoch(), TickNo: 1<<64 - 1, Interval: time.Second}
			w.net.Send(1, w.gateways[0].hash, forged.Append(nil, 1), false)
			w.run(time.Second, 10)
		}, 5 * time.Second},
		{"the block size becomes known", good, func(w *world) {
			for _, a := range w.agents {
				a.info.BlockSize = 0
				a.announce()
			}
			w.run(3*time.Second, 10)
			w.agents[0].info.BlockSize = 32
			w.agents[1].info.BlockSize = 16
			w.agents[2].info.BlockSize = 16
			for _, a := range w.agents {
				a.announce()
			}
			w.run(500*time.Millisecond, 10)
			w.agents[1].info.BlockSize = 32
			w.agents[1].announce()
		}, 3 * time.Second},
		{"an agent resumes its epoch", good, func(w *world) {
			w.run(time.Second, 10)
			a := w.agents[0]
			a.pub = digest.New(digest.Config{Key: a.key(), Node: a.hash, GPU: a.gpu, All: a.all, Epoch: a.pub.Epoch(), AfterTick: a.pub.TickNo() + 1024})
			a.pub.SetInfoVersion(a.info.Version)
			for tier, list := range a.blocks {
				for _, h := range list {
					a.pub.Set(wire.Tier(tier), h)
				}
			}
			w.run(200*time.Millisecond, 10)
		}, 3 * time.Second},
		{"an agent resumes too low", good, func(w *world) {
			w.run(time.Second, 10)
			a := w.agents[0]
			a.pub = digest.New(digest.Config{Key: a.key(), Node: a.hash, GPU: a.gpu, All: a.all, Epoch: a.pub.Epoch() - 1})
			a.announce()
			for tier, list := range a.blocks {
				for _, h := range list {
					a.pub.Set(wire.Tier(tier), h)
				}
			}
			w.run(time.Second, 10)
		}, 5 * time.Second},
	}
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for _, tt := range tests {
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", tt.name, seed), func(t *testing.T) {
				w := newWorld(t, seed, 3, 2, tt.conditions)
				tt.happen(w)
				t.Logf("exact after %v", w.converge(tt.within))
			})
		}
	}
}

// TestRandomWorlds plays random mishaps in random order.
func TestRandomWorlds(t *testing.T) {
	worlds := uint64(12)
	if testing.Short() {
		worlds = 3
	}
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			w := newWorld(t, seed, 4, 2, gossiptest.Conditions{
				Loss: 0.3 * r.Float64(), Duplicate: 0.2 * r.Float64(), Delay: time.Millisecond, Jitter: time.Duration(1 + r.IntN(200e6))})
			for i := range 12 {
				a, g := w.agents[r.IntN(len(w.agents))], w.gateways[r.IntN(len(w.gateways))]
				switch r.IntN(7) {
				case 0:
					w.reboot(a)
				case 1:
					a.restartEngine()
				case 2:
					w.boot(g, fmt.Sprintf("gateway-%d-%d", seed, i))
				case 3:
					w.net.Cut(a.hash, g.hash, r.IntN(2) == 0)
					w.net.Cut(g.hash, a.hash, r.IntN(2) == 0)
				case 4:
					g.skew = time.Duration(r.IntN(7200)-3600) * time.Second
				case 5:
					a.skew = time.Duration(r.IntN(7200)-3600) * time.Second
				case 6:
					a.churn(5000)
				}
				w.run(time.Duration(r.IntN(1500))*time.Millisecond, 8)
			}
			for _, a := range w.agents {
				for _, g := range w.gateways {
					w.net.Cut(a.hash, g.hash, false)
					w.net.Cut(g.hash, a.hash, false)
				}
			}
			t.Logf("exact after %v", w.converge(40*time.Second))
		})
	}
}

// TestRunsRepeat: a world with the same seed goes the same way.
func TestRunsRepeat(t *testing.T) {
	run := func() string {
		w := newWorld(t, 5, 3, 2, gossiptest.Conditions{Loss: 0.2, Jitter: 50 * time.Millisecond})
		w.run(3*time.Second, 10)
		return fmt.Sprintf("%+v %+v", w.gateways[0].v.Stats(), w.agents[0].pub.Stats())
	}
	if a, b := run(), run(); a != b {
		t.Errorf("two runs differ:\n%s\n%s", a, b)
	}
}

// TestGoodNetworkIsQuiet: without loss a gateway asks for nothing after the start.
func TestGoodNetworkIsQuiet(t *testing.T) {
	w := newWorld(t, 1, 3, 1, gossiptest.Conditions{Delay: time.Millisecond, Jitter: 20 * time.Millisecond})
	w.run(time.Second, 10)
	before := w.gateways[0].v.Stats()
	w.run(10*time.Second, 10)
	after := w.gateways[0].v.Stats()
	if n := after.Nacks - before.Nacks; n > 0 {
		t.Errorf("%d NACKs", n)
	}
	if n := after.Hellos - before.Hellos; n > 0 {
		t.Errorf("%d HELLOs", n)
	}
	if after.Mismatches > 0 {
		t.Errorf("%d checksum mismatches", after.Mismatches)
	}
}
