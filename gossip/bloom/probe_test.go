package bloom

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// TestProbesAgreeWithHas compares the ways to ask about several blocks with asking column by column.
func TestProbesAgreeWithHas(t *testing.T) {
	for _, columns := range []int{64, 256} {
		for k := uint8(1); k <= MaxK; k++ {
			r := newRand(uint64(k))
			m, blocks := NewMatrix(GeometryFor(200, 8), columns), hashes(r, 40)
			m.geometry.K = k
			for col := range columns {
				for _, h := range blocks[:r.IntN(len(blocks)+1)] {
					m.Or(col, h)
				}
			}
			for range 200 {
				from := r.IntN(len(blocks))
				run := blocks[from : from+r.IntN(min(5, len(blocks)-from)+1)]
				var probes, want []Probe
				for word := range m.WordsPerRow() {
					if r.IntN(4) == 0 {
						continue
					}
					p := Probe{Word: word, Cols: r.Uint64() & r.Uint64()}
					probes = append(probes, p)
					p.Held = p.Cols & heldBy(m, run, word)
					want = append(want, p)
					if got := m.AllOf(run, word, p.Cols); got != p.Held {
						t.Fatalf("%d columns, K %d: AllOf gives %x, want %x", columns, k, got, p.Held)
					}
				}
				held, missing := m.ProbeAll(run, probes)
				anyHeld, anyMissing := false, false
				for i := range want {
					anyHeld = anyHeld || want[i].Held != 0
					anyMissing = anyMissing || want[i].Held != want[i].Cols
				}
				if held != anyHeld && len(run) > 0 {
					t.Fatalf("held %v, want %v", held, anyHeld)
				}
				if held && missing != anyMissing {
					t.Fatalf("missing %v, want %v", missing, anyMissing)
				}
				if d := cmp.Diff(want, probes); d != "" {
					t.Fatalf("%d columns, K %d (-want +got):\n%s", columns, k, d)
				}
			}
		}
	}
}

func heldBy(m *Matrix, blocks []blockhash.Hash, word int) (held uint64) {
	for bit := range 64 {
		all := true
		for _, h := range blocks {
			all = all && m.Has(64*word+bit, h)
		}
		if all {
			held |= 1 << bit
		}
	}
	return held
}

func BenchmarkAllOf(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 0))
	m, hs := NewMatrix(GeometryFor(20000, 8), 64), hashes(r, 20000)
	for _, h := range hs {
		m.Or(5, h)
	}
	var sum uint64
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		sum += m.AllOf(hs[i:i+4], 0, 1<<5)
		if i += 4; i == len(hs) {
			i = 0
		}
	}
	_ = sum
}

func TestEitherWordHolds(t *testing.T) {
	for k := uint8(1); k <= MaxK; k++ {
		r := newRand(uint64(k))
		g := GeometryFor(40, 8)
		g.K = k
		m, blocks := NewMatrix(g, 192), hashes(r, 100)
		for i, h := range blocks[:90] {
			m.Or(i*2, h)
		}
		for _, h := range blocks {
			if got, want := m.TestEither(h, 0, 2), m.Test(h, 0)|m.Test(h, 2); got != want {
				t.Fatalf("K %d: got %x, want %x", k, got, want)
			}
		}
	}
}
