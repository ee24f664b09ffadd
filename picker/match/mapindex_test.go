package match

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/test/indexworkload"
)

// mapIndex is the exact index that a gateway could keep instead of a matrix: block → endpoints. Endpoint sets are kept once
// each, and it is told of prefix-closed sets only, as a matrix is. So the sets along a chain only shrink, and between two
// blocks of one set all have that set: a lookup bisects.
type mapIndex struct {
	of    map[blockhash.Hash]int32 // block → its set; none: nobody
	sets  [][]uint64               // set 0 is empty
	known map[string]int32         // set → number
	next  map[[2]int32]int32       // set, endpoint → the set with it, or without it
}

func newMapIndex(blocks, columns int) *mapIndex {
	return &mapIndex{
		of:   make(map[blockhash.Hash]int32, blocks),
		sets: [][]uint64{make([]uint64, (columns+63)/64)}, known: map[string]int32{}, next: map[[2]int32]int32{},
	}
}

// flip adds an endpoint to the holders of a block, or takes it from them.
func (x *mapIndex) flip(h blockhash.Hash, col int) {
	from := [2]int32{x.of[h], int32(col)}
	to, ok := x.next[from]
	if !ok {
		set := slices.Clone(x.sets[from[0]])
		set[col/64] ^= 1 << (col % 64)
		name := fmt.Sprint(set)
		if to, ok = x.known[name]; !ok {
			to = int32(len(x.sets))
			x.known[name], x.sets = to, append(x.sets, set)
		}
		x.next[from] = to
	}
	x.of[h] = to
}

// match is [Matcher.Match] for all columns.
func (x *mapIndex) match(chain []blockhash.Hash, out []int32) {
	clear(out)
	x.between(chain, -1, len(chain), -1, 0, out)
}

// between notes which endpoints leave in chain[from+1:to+1], whose ends have sets a and b. Set -1 is everybody.
func (x *mapIndex) between(chain []blockhash.Hash, from, to int, a, b int32, out []int32) {
	for a != b {
		if to == from+1 {
			for word, leave := range x.sets[b] {
				leave = ^leave
				if a >= 0 {
					leave &= x.sets[a][word]
				}
				for ; leave != 0; leave &= leave - 1 {
					out[64*word+bits.TrailingZeros64(leave)] = int32(to)
				}
			}
			return
		}
		mid := (from + to) / 2
		s := x.of[chain[mid]]
		x.between(chain, from, mid, a, s, out)
		from, a = mid, s
	}
}

// TestMapIndex compares it with the closed formula.
func TestMapIndex(t *testing.T) {
	l := load[64]()
	x := l.mapped()
	out := make([]int32, 64)
	check := func(name string, truth func(q indexworkload.Query, pod int) int) {
		for i, q := range l.queries {
			x.match(l.chains[i], out)
			for pod := range l.Pods {
				if want := truth(q, pod); int(out[pod]) != want {
					t.Fatalf("%s, query %d, pod %d: got %d, want %d", name, i, pod, out[pod], want)
				}
			}
		}
	}
	check("whole", l.Match)
	l.pierce(x)
	check("holes", func(q indexworkload.Query, pod int) int { return l.MatchWithHoles(q, pod, l.holes) })
}

// mapped returns the whole workload in a mapIndex.
func (l *loaded) mapped() *mapIndex {
	x := newMapIndex(l.Pods*l.Capacity, l.Pods)
	for pod := range l.Pods {
		for _, e := range l.PodEvents(pod) {
			for _, b := range e.Blocks {
				x.flip(blockhash.Hash(b.Seq), pod)
			}
		}
	}
	return x
}

// pierce takes out what lies behind holes.
func (l *loaded) pierce(x *mapIndex) {
	for r, at := range l.holes {
		for _, b := range l.Document(r.Document, l.Depth[r.Document][r.Pod])[at:] {
			x.flip(blockhash.Hash(b.Seq), r.Pod)
		}
	}
}

// BenchmarkMapIndex2000x1000 is the exact index on the work of BenchmarkMatch2000x1000, with the matrix in turn beside it:
// "x-matrix" is how many times as long as the matrix it takes. Loading it takes some seconds and half a gigabyte.
//
// The best exact index that others publish takes 19 us for this work without holes, in CPU time on a machine of this kind,
// and 229 us with (SMG's radix tree); "x-published" is the multiple of that.
func BenchmarkMapIndex2000x1000(b *testing.B) {
	l := load[1000]()
	x := l.mapped()
	out := make([]int32, l.matrix.Columns())
	run := func(name string, published time.Duration, beside func(chain []blockhash.Hash)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				x.match(l.chains[i%len(l.chains)], out)
				i++
			}
			perQuery := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			from := time.Now()
			for _, chain := range l.chains {
				beside(chain)
			}
			matrix := time.Since(from) / time.Duration(len(l.chains))
			b.ReportMetric(perQuery/float64(matrix.Nanoseconds()), "x-matrix")
			b.ReportMetric(perQuery/float64(published.Nanoseconds()), "x-published")
		})
	}
	var m Matcher
	run("whole", 19*time.Microsecond, func(chain []blockhash.Hash) { m.Match(l.matrix, chain, nil, nil, out) })
	l.pierce(x)
	run("holes", 229*time.Microsecond, func(chain []blockhash.Hash) { m.Match(l.holed, chain, nil, nil, out) })
}
