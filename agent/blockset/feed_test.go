package blockset_test

import (
	"maps"
	"testing"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/agent/blockset/blocksettest"
	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// publisher is an engine's event publisher with a replay ring.
type publisher struct {
	first   uint64 // oldest number in the ring
	batches [][]byte
}

// replay answers a request the way an engine does, through to no further ask.
func (p *publisher) replay(e *engine, out blockset.Outcome) {
	for out.Ask {
		out.Ask = false
		for seq := max(out.From, p.first); seq < uint64(len(p.batches)); seq++ {
			if more := e.Do(e.now, e.Seq.Replayed(seq, p.batches[seq])); more.Ask {
				out = more
				break
			}
		}
		if !out.Ask {
			out = e.Do(e.now, e.Seq.ReplayEnd(true))
		}
	}
}

func streamNamed(t testing.TB, name string) blocksettest.Stream {
	t.Helper()
	streams, err := blocksettest.Streams()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no stream %s", name)
	return blocksettest.Stream{}
}

func batchesOf(s blocksettest.Stream) [][]byte {
	var out [][]byte
	for _, st := range s.Steps {
		if st.Payload != nil {
			out = append(out, st.Payload)
		}
	}
	return out
}

func applied(t testing.TB, batches [][]byte) map[uint64]int {
	e := newEngine(t, blockset.Config{}, false)
	for i, b := range batches {
		e.live(uint64(i), b)
	}
	return copiesOf(e.Set)
}

// TestLossAndRestart: whatever is lost on the live socket, and however far a restarted
// engine is when it is seen, the replay brings the set to the state of a reader that
// saw everything.
func TestLossAndRestart(t *testing.T) {
	old := batchesOf(streamNamed(t, "churn-16-v0.22.0pre"))
	fresh := batchesOf(streamNamed(t, "churn-small-v0.24.0map"))
	for _, c := range []struct {
		name             string
		seen, skip, upTo int // of the old engine: seen live, lost, seen live again
		freshFrom        int // first batch of the new engine seen live, -1: no restart
		reconnect        bool
	}{
		{"late start", 0, 100, 200, -1, false},
		{"gap", 50, 30, 200, -1, false},
		{"restart seen at once", 50, 0, 60, 0, false},
		{"restart seen late, lower number", 100, 0, 100, 40, false},
		{"restart at the same number", 100, 0, 100, 99, false},
		{"restart that continues the numbers", 100, 0, 100, 100, true},
		{"restart that looks like a gap", 100, 0, 100, 150, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t, blockset.Config{}, true)
			for i := range c.upTo {
				if i >= c.seen && i < c.seen+c.skip {
					continue
				}
				p := &publisher{batches: old[:i+1]}
				p.replay(e, e.live(uint64(i), old[i]))
			}
			want := applied(t, old[:c.upTo])
			if c.freshFrom >= 0 {
				if c.reconnect {
					p := &publisher{batches: fresh[:c.freshFrom]}
					p.replay(e, e.Do(e.now, e.Seq.Connected()))
				}
				for i := c.freshFrom; i < c.freshFrom+20; i++ {
					p := &publisher{batches: fresh[:i+1]}
					p.replay(e, e.live(uint64(i), fresh[i]))
				}
				want = applied(t, fresh[:c.freshFrom+20])
			}
			if got := copiesOf(e.Set); !maps.Equal(got, want) {
				t.Errorf("%d hashes held, want %d as a complete reader has", len(got), len(want))
			}
			if e.Set.Partial() || e.Set.Suspect() {
				t.Errorf("partial %v, suspect %v, want neither", e.Set.Partial(), e.Set.Suspect())
			}
		})
	}
}

// FuzzRestart: an engine restarts anywhere, any live batch can be lost and the ring can
// be short. Nothing panics, the sink stays consistent, and a set that is neither
// partial nor suspect is exact. The new connection is seen before the first batch that
// comes through it: numbers alone cannot show a restart whose first batch seen follows
// the old engine's last.
func FuzzRestart(f *testing.F) {
	old := batchesOf(streamNamed(f, "basic-v0.24.0map"))
	fresh := batchesOf(streamNamed(f, "churn-small-v0.24.0map"))[:40]
	f.Add([]byte{1, 1, 1, 0, 1}, uint8(5), uint8(0))
	f.Add([]byte{1, 1, 0, 0, 0, 0, 1}, uint8(3), uint8(2))
	f.Add([]byte{0, 0, 1, 3, 1}, uint8(2), uint8(9))
	f.Fuzz(func(t *testing.T, script []byte, restartAt, ring uint8) {
		e := newEngine(t, blockset.Config{}, true)
		engine, next, reconnected := old, 0, false
		for i, b := range script {
			if i == int(restartAt) {
				engine, next, reconnected = fresh, 0, true
			}
			if next >= len(engine) {
				break
			}
			p := &publisher{batches: engine[:next+1]}
			if ring > 0 {
				p.first = uint64(max(0, next-int(ring)))
			}
			if b&3 != 0 && reconnected {
				reconnected = false
				before := &publisher{first: p.first, batches: engine[:next]}
				before.replay(e, e.Do(e.now, e.Seq.Connected()))
			}
			switch {
			case b&2 != 0:
				p.replay(e, e.Do(e.now, e.Seq.Connected()))
			case b&1 != 0:
				p.replay(e, e.live(uint64(next), engine[next]))
				if !e.Set.Partial() && !e.Set.Suspect() && ring == 0 {
					if got, want := copiesOf(e.Set), applied(t, engine[:next+1]); !maps.Equal(got, want) {
						t.Errorf("step %d: %d hashes held, want %d", i, len(got), len(want))
					}
				}
			}
			next++
		}
		for tier := range blockset.Tier(2) {
			visible := map[blockhash.Hash]bool{}
			for h := range e.Set.Visible(tier) {
				visible[h] = true
			}
			if !maps.Equal(visible, e.sink.have[tier]) {
				t.Errorf("tier %d: the sink has %d blocks, the set %d", tier, len(e.sink.have[tier]), len(visible))
			}
		}
	})
}

// TestFeedTrouble: what cannot be decoded counts as a gap, what is odd is counted.
func TestFeedTrouble(t *testing.T) {
	e := newEngine(t, blockset.Config{}, false)
	var lost []uint64
	odd := map[kvevent.Reason]int{}
	e.Lost = func(seq uint64, err error) { lost = append(lost, seq) }
	e.Odd = func(r kvevent.Reason, n int) { odd[r] += n }

	e.live(0, []byte("\x92\x00\x92\xc0\x91\xa3New\x00")) // [0, [nil, ["New"]]] and a byte behind it
	if e.Set.Suspect() || odd[kvevent.ReasonEventForm] != 1 || odd[kvevent.ReasonUnknownTag] != 1 || odd[kvevent.OddTrailing] != 1 {
		t.Errorf("suspect %v, odd %v, want three reasons once each", e.Set.Suspect(), odd)
	}
	out := e.live(1, []byte("\xc1"))
	if !e.Set.Suspect() || len(lost) != 1 || lost[0] != 1 || out.Applied != 1 {
		t.Errorf("suspect %v, lost %v, outcome %+v, want batch 1 lost", e.Set.Suspect(), lost, out)
	}
}
