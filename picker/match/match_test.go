package match

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func randomChain(r *rand.Rand, n int) []blockhash.Hash {
	out := make([]blockhash.Hash, n)
	for i := range out {
		out[i] = blockhash.Hash(r.Uint64())
	}
	return out
}

// exact is a geometry with so many bits for a few thousand blocks that false positives do not occur in tests.
var exact = bloom.Geometry{Buckets: 1 << 10, K: 4}

// fill gives each column the first depths[col] blocks of chain.
func fill(m *bloom.Matrix, chain []blockhash.Hash, depths []int32) {
	for col, n := range depths {
		for _, h := range chain[:n] {
			m.Or(col, h)
		}
	}
}

// shapes are ways in which the depths of columns are spread.
var shapes = map[string]func(r *rand.Rand, col, n int) int{
	"nobody":               func(*rand.Rand, int, int) int { return 0 },
	"everybody all":        func(_ *rand.Rand, _, n int) int { return n },
	"anything":             func(r *rand.Rand, _, n int) int { return r.IntN(n + 1) },
	"a prefix, few more":   func(r *rand.Rand, col, n int) int { return min(n, 32+r.IntN(n+1)*(1-min(1, col%9))) },
	"one, the first":       func(_ *rand.Rand, col, n int) int { return n * (1 - min(1, col)) },
	"one block less":       func(r *rand.Rand, _, n int) int { return max(0, n-r.IntN(2)) },
	"short":                func(r *rand.Rand, _, n int) int { return r.IntN(min(n, 9) + 1) },
	"every column differs": func(_ *rand.Rand, col, n int) int { return col % (n + 1) },
}

func TestMatchIsExactWithoutFalsePositives(t *testing.T) {
	for name, depth := range shapes {
		t.Run(name, func(t *testing.T) {
			r := newRand(1)
			var x Matcher
			for _, columns := range []int{64, 128, 320} {
				for _, n := range []int{0, 1, 2, 3, 4, 5, 8, 9, 63, 100, 129} {
					for _, k := range []uint8{4, 6} {
						m := bloom.NewMatrix(bloom.Geometry{Buckets: exact.Buckets, K: k}, columns)
						chain, want := randomChain(r, n), make([]int32, columns)
						for col := range want {
							want[col] = int32(depth(r, col, n))
						}
						fill(m, chain, want)
						got := make([]int32, columns)
						x.Match(m, chain, nil, nil, got)
						if d := cmp.Diff(want, got); d != "" {
							t.Fatalf("%d columns, %d blocks (-want +got):\n%s", columns, n, d)
						}
					}
				}
			}
		})
	}
}

// TestMatchAgainstWalk fills filters as full as they are in use and compares with the linear walk over the same filters:
// never lower, and higher only by what false positives can do.
func TestMatchAgainstWalk(t *testing.T) {
	var x Matcher
	answers, higher := 0, 0
	for seed := range uint64(12) {
		r := newRand(seed)
		columns, n := 64*(1+r.IntN(4)), 1+r.IntN(400)
		m := bloom.NewMatrix(bloom.GeometryFor(1000, 8), columns)
		chain, truth := randomChain(r, n), make([]int32, columns)
		for col := range truth {
			truth[col] = int32(r.IntN(n + 1))
			for range 1000 - int(truth[col]) {
				m.Or(col, blockhash.Hash(r.Uint64()))
			}
		}
		fill(m, chain, truth)
		got, walk := make([]int32, columns), make([]int32, columns)
		x.Match(m, chain, nil, nil, got)
		walkAll(m, chain, walk)
		for col := range truth {
			if got[col] < walk[col] || walk[col] < truth[col] {
				t.Fatalf("seed %d, column %d: matched %d, walked %d, truth %d", seed, col, got[col], walk[col], truth[col])
			}
			if answers++; got[col] > walk[col] {
				higher++
			}
		}
	}
	if higher > answers/1000 {
		t.Errorf("%d of %d answers are higher than the walk's", higher, answers)
	}
}

// TestFalseIslandIsSearchedAgain plants blocks that a probe takes for a match and the confirmation does not.
func TestFalseIslandIsSearchedAgain(t *testing.T) {
	for _, columns := range []int{64, 128} {
		r := newRand(1)
		m, chain := bloom.NewMatrix(exact, columns), randomChain(r, 1000)
		fill(m, chain, []int32{32, 32, 700})
		for i := 500 - probeRun + 1; i <= 500; i++ { // where the search looks first
			m.Or(1, chain[i])
		}
		got := make([]int32, columns)
		new(Matcher).Match(m, chain, nil, nil, got)
		if d := cmp.Diff([]int32{32, 32, 700, 0}, got[:4]); d != "" {
			t.Errorf("%d columns (-want +got):\n%s", columns, d)
		}
	}
}

func TestWantedAndCarefulColumns(t *testing.T) {
	for _, columns := range []int{64, 192} {
		r := newRand(3)
		m, chain := bloom.NewMatrix(exact, columns), randomChain(r, 500)
		want, careful := make([]uint64, columns/64), make([]uint64, columns/64)
		expected := make([]int32, columns)
		for col := range columns {
			depth, wanted, isCareful := r.IntN(501), r.IntN(3) > 0, r.IntN(3) == 0
			if wanted {
				want[col/64] |= 1 << (col % 64)
				expected[col] = int32(depth)
			}
			hole := -1
			if isCareful {
				careful[col/64] |= 1 << (col % 64)
				if depth > 0 && r.IntN(2) == 0 {
					hole = r.IntN(depth)
					expected[col] = min(expected[col], int32(hole))
				}
			}
			for i, h := range chain[:depth] {
				if i != hole {
					m.Or(col, h)
				}
			}
		}
		got := make([]int32, columns)
		for i := range got {
			got[i] = -1
		}
		new(Matcher).Match(m, chain, want, careful, got)
		if d := cmp.Diff(expected, got); d != "" {
			t.Errorf("%d columns (-want +got):\n%s", columns, d)
		}
		new(Matcher).Match(m, chain, make([]uint64, columns/64), careful, got)
		if d := cmp.Diff(make([]int32, columns), got); d != "" {
			t.Errorf("nothing wanted of %d columns (-want +got):\n%s", columns, d)
		}
	}
}

// TestMatchBothAgainstWalk compares with a walk that asks block by block whether digest or marks hold it.
func TestMatchBothAgainstWalk(t *testing.T) {
	now := time.Unix(1000, 0)
	var x Matcher
	for name, depth := range shapes {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(12) {
				r := newRand(seed)
				columns, n := 64*(1+r.IntN(3)), r.IntN(300)
				m := bloom.NewMatrix(exact, columns)
				s := NewSpeculation(1<<12, columns, 10*time.Second)
				chain, digest := randomChain(r, n), make([]int32, columns)
				want, careful := make([]int32, columns), make([]uint64, columns/64)
				for col := range digest {
					digest[col] = int32(depth(r, col, n))
					marked := 0
					switch r.IntN(4) {
					case 0:
						marked = r.IntN(n + 1)
					case 1:
						marked = n
					}
					s.Mark(now, col, chain[:marked], 0, now.Add(time.Duration(r.IntN(20))*time.Second))
					want[col] = max(digest[col], int32(marked))
					if r.IntN(5) == 0 {
						careful[col/64] |= 1 << (col % 64)
					}
				}
				fill(m, chain, digest)
				got, gotDigest := make([]int32, columns), make([]int32, columns)
				x.MatchBoth(m, s, chain, nil, careful, got, gotDigest)
				if d := cmp.Diff(want, got); d != "" {
					t.Fatalf("seed %d, both (-want +got):\n%s", seed, d)
				}
				if d := cmp.Diff(digest, gotDigest); d != "" {
					t.Fatalf("seed %d, digests (-want +got):\n%s", seed, d)
				}
			}
		})
	}
}

// TestCarefulTakesTurns has digest and marks hold alternate runs of blocks.
func TestCarefulTakesTurns(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newRand(1)
	m, s, chain := bloom.NewMatrix(exact, 64), NewSpeculation(1000, 64, time.Second), randomChain(r, 100)
	for i, h := range chain[:90] {
		if i/10%2 == 0 {
			m.Or(5, h)
		} else {
			s.Mark(now, 5, chain[i:i+1], 0, now)
		}
	}
	got, digest := make([]int32, 64), make([]int32, 64)
	new(Matcher).MatchBoth(m, s, chain, nil, []uint64{1 << 5}, got, digest)
	if got[5] != 90 || digest[5] != 10 {
		t.Errorf("got %d, digest alone %d; want 90 and 10", got[5], digest[5])
	}
}

func TestMatchBothWithNarrowSpeculation(t *testing.T) {
	now := time.Unix(1000, 0)
	m, s, chain := bloom.NewMatrix(exact, 128), NewSpeculation(1000, 64, time.Second), randomChain(newRand(1), 20)
	fill(m, chain, []int32{64: 3, 65: 20})
	s.Mark(now, 1, chain, 0, now)
	got, digest := make([]int32, 128), make([]int32, 128)
	new(Matcher).MatchBoth(m, s, chain, nil, nil, got, digest)
	if got[1] != 20 || got[64] != 3 || got[65] != 20 {
		t.Errorf("got %d, %d, %d, want 20, 3, 20", got[1], got[64], got[65])
	}
}

func TestNoAllocations(t *testing.T) {
	now := time.Unix(1000, 0)
	l := load[64]()
	s := NewSpeculation(4000, 64, time.Second)
	var x Matcher
	out, digest, careful := make([]int32, 64), make([]int32, 64), []uint64{1 << 9}
	pass := func() {
		for i, chain := range l.chains[:100] {
			s.Mark(now, i%64, chain[:1000], 0, now)
			x.Match(l.matrix, chain, nil, careful, out)
			x.MatchBoth(l.matrix, s, chain, nil, careful, out, digest)
		}
	}
	pass()
	if n := testing.AllocsPerRun(5, pass); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
