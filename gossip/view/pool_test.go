package view

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/gossiptest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// stale lists what readers see as stale.
func (w *world) stale(g *gateway) (n int, frozen bool) {
	snap := g.v.Snapshot()
	for _, s := range snap.Streams {
		if s.Live.Stale(snap.Clock(w.net.Now())) {
			n++
		}
	}
	return n, snap.Frozen
}

func TestFreeze(t *testing.T) {
	quiet := gossiptest.Conditions{Delay: ms}
	tests := []struct {
		name      string
		silent    int // of ten agents
		after     time.Duration
		wantStale int
		frozen    bool
	}{
		{"one pod dies", 1, time.Second, 1, false},
		{"three of ten", 3, time.Second, 3, false},
		{"four of ten", 4, time.Second, 0, true},
		{"all", 10, 2 * time.Second, 0, true},
		{"all, for long", 10, 6 * time.Second, 10, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1, 10, 1, quiet)
			w.run(time.Second, 3)
			for _, a := range w.agents[:tt.silent] {
				w.net.Cut(a.hash, w.gateways[0].hash, true)
			}
			w.run(tt.after, 3)
			if n, frozen := w.stale(w.gateways[0]); n != tt.wantStale || frozen != tt.frozen {
				t.Errorf("%d stale, frozen %v; want %d, %v", n, frozen, tt.wantStale, tt.frozen)
			}
		})
	}
	t.Run("own timer late", func(t *testing.T) {
		w := newWorld(t, 1, 10, 1, quiet)
		w.run(time.Second, 3)
		g := w.gateways[0]
		g.asleep = true
		w.run(5*time.Second, 3)
		g.asleep = false
		g.v.Poll(w.net.Now())
		if n, frozen := w.stale(g); n != 0 || !frozen {
			t.Errorf("%d stale, frozen %v right after waking", n, frozen)
		}
		w.run(4*time.Second, 3)
		if n, frozen := w.stale(g); n != 0 || frozen {
			t.Errorf("%d stale, frozen %v later", n, frozen)
		}
	})
}

func TestNodeDownFreesMemory(t *testing.T) {
	w := newWorld(t, 1, 3, 1, gossiptest.Conditions{Delay: ms})
	w.run(time.Second, 3)
	g, a := w.gateways[0], w.agents[0]
	g.v.NodeDown(w.net.Now(), a.name) // false alarm
	w.run(15*time.Second, 0)
	if f := w.fault(g, a); f != "" {
		t.Errorf("a live agent that membership denied: %s", f)
	}
	w.net.Cut(a.hash, g.hash, true)
	w.run(15*time.Second, 0)
	if n := len(g.v.Snapshot().Streams); n != 2 {
		t.Errorf("%d streams, want 2", n)
	}
	if g.v.endpoints[a.key().Endpoint] != nil {
		t.Error("INFO kept")
	}
	for _, tb := range g.v.tables {
		if tb.used+len(tb.free) != tb.matrix.Columns() || tb.used > 2 {
			t.Errorf("%d columns used, %d free of %d", tb.used, len(tb.free), tb.matrix.Columns())
		}
	}
}

// TestMatrixGrows: more than 64 streams share one matrix, and readers find every
// column right while it doubles.
func TestMatrixGrows(t *testing.T) {
	r := newRig(t, Config{})
	const n = 200
	for i := range n {
		in := oneInfo
		in.Address = fmt.Sprintf("http://10.0.1.%d:8000", i)
		if err := r.v.Apply(start, in.Append(nil, uint64(i))); err != nil {
			t.Fatal(err)
		}
		tick := &wire.Tick{Key: in.Key(0), Epoch: 5, TickNo: 1, Set: [2][]uint32{{uint32(i)}}}
		if err := r.v.Apply(start, tick.Append(nil, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	r.v.Poll(start)
	snap := r.v.Snapshot()
	if len(snap.Streams) != n {
		t.Fatalf("%d streams", len(snap.Streams))
	}
	for i := range n {
		in := oneInfo
		in.Address = fmt.Sprintf("http://10.0.1.%d:8000", i)
		at, ok := snap.Find(in.Key(0))
		if !ok {
			t.Fatal("stream not found")
		}
		c := snap.Streams[at].GPU
		if c.Matrix != snap.Streams[0].GPU.Matrix || c.Matrix.Columns() != 256 {
			t.Fatalf("matrix of %d columns, shared %v", c.Matrix.Columns(), c.Matrix == snap.Streams[0].GPU.Matrix)
		}
		for b, word := range c.Matrix.Column(c.Index, nil) {
			if want := uint64(1) << (i % 64); (b == i/64) != (word == want) {
				t.Fatalf("stream %d bucket %d: %x", i, b, word)
			}
		}
	}
}

// TestReadersRace reads everything while the writer works; the race detector
// judges.
func TestReadersRace(t *testing.T) {
	w := newWorld(t, 1, 3, 1, gossiptest.Conditions{Loss: 0.1, Jitter: 30 * ms})
	v := w.gateways[0].v
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				snap := v.Snapshot()
				for _, s := range snap.Streams {
					s.Live.Stale(snap.Clock(start))
					if s.GPU.Matrix != nil {
						s.GPU.Matrix.Has(s.GPU.Index, 12345)
					}
				}
				v.Stats()
			}
		})
	}
	for range 5 {
		w.run(300*ms, 10)
		w.reboot(w.agents[0])
	}
	close(done)
	wg.Wait()
}
