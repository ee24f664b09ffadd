// Package match finds how many leading blocks of a prompt each endpoint holds.
//
// The endpoints' digests are columns of a [bloom.Matrix], and digests are prefix-closed: an endpoint that holds a block
// holds all blocks before it. So the depth of a match can be found by bisection, for 64 endpoints a word at once: those
// that hold the middle block go on above it, the others below.
//
// A digest has false positives, so a block counts as held only together with the three blocks before it, and a depth
// stands only if the eight blocks below it are held; else the search goes on below. What remains is an answer that is
// too high by a block or two now and then (a false positive right behind the match), and never one that is too low.
//
// [Speculation] holds what endpoints are about to have: the blocks of requests that were just bound to them. The package
// knows no endpoints, only column numbers, and gives no costs.
package match

import (
	"math/bits"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

// Blocks that must be held together; see the package comment.
const (
	probeRun   = 4 // a probe: the block and its three predecessors
	confirmRun = 8 // the end of a match
)

// Matcher finds matches. It holds scratch space: use one per goroutine and reuse it. The zero value is ready.
type Matcher struct {
	m     *bloom.Matrix
	chain []blockhash.Hash

	probes []bloom.Probe // of the groups on the stack, one after the other
	groups []group       // to be searched
	ranges []wordRange   // to be searched, within one word
	found  []depthOf
}

// group is a set of columns in several words that hold chain[:lo] and not chain[:hi+1].
type group struct{ lo, hi, from, to int } // probes[from:to]

// wordRange is the same for columns of one word.
type wordRange struct {
	lo, hi int
	cols   uint64
}

// depthOf says that columns of a word match depth blocks.
type depthOf struct {
	word, depth int
	cols        uint64
}

// Match writes to out[col], for each column of m, the number of leading blocks of chain that the column holds; out has
// room for m.Columns() numbers. It is exact but for false positives, and never too low, where columns are prefix-closed.
//
// want and careful have one bit per column, m.WordsPerRow() words. Only columns in want are searched (nil: all), the
// others get 0. Columns in careful (nil: none) are not taken to be prefix-closed and are walked block by block.
func (x *Matcher) Match(m *bloom.Matrix, chain []blockhash.Hash, want, careful []uint64, out []int32) {
	x.search(m, chain, want, careful)
	x.write(m, out)
	x.m, x.chain = nil, nil
}

// search fills found.
func (x *Matcher) search(m *bloom.Matrix, chain []blockhash.Hash, want, careful []uint64) {
	x.m, x.chain, x.found, x.probes = m, chain, x.found[:0], x.probes[:0]
	for word := range m.WordsPerRow() {
		cols := ^uint64(0)
		if want != nil {
			cols = want[word]
		}
		if careful != nil {
			x.walk(nil, word, cols&careful[word], 0)
			cols &^= careful[word]
		}
		if cols != 0 {
			x.probes = append(x.probes, bloom.Probe{Word: word, Cols: cols})
		}
	}
	if len(x.probes) > 0 {
		x.searchGroups()
	}
}

// add notes a result.
func (x *Matcher) add(word, depth int, cols uint64) {
	if cols != 0 {
		x.found = append(x.found, depthOf{word, depth, cols})
	}
}

// walk looks at block after block, in digests and (unless s is nil) marks, for columns of a word that hold chain[:from].
func (x *Matcher) walk(s *Speculation, word int, cols uint64, from int) {
	for i := from; i < len(x.chain) && cols != 0; i++ {
		held := x.m.Test(x.chain[i], word)
		if s != nil {
			held |= s.test(x.chain[i], word)
		}
		x.add(word, i, cols&^held)
		cols &= held
	}
	x.add(word, len(x.chain), cols)
}

// searchGroups searches for the columns of all probes.
func (x *Matcher) searchGroups() {
	x.groups = append(x.groups[:0], group{0, len(x.chain), 0, len(x.probes)})
	for len(x.groups) > 0 {
		g := x.groups[len(x.groups)-1]
		x.groups = x.groups[:len(x.groups)-1]
		x.probes = x.probes[:g.to]
		if g.to-g.from == 1 {
			p := x.probes[g.from]
			x.searchWord(nil, wordRange{g.lo, g.hi, p.Cols}, p.Word, 0)
			continue
		}
		if g.lo < g.hi {
			mid := int(uint(g.lo+g.hi) / 2)
			switch held, missing := x.m.ProbeAll(x.chain[max(g.lo, mid-probeRun+1):mid+1], x.probes[g.from:g.to]); {
			case !held:
				g.hi = mid
				x.groups = append(x.groups, g)
			case !missing:
				g.lo = mid + 1
				x.groups = append(x.groups, g)
			default:
				hits := x.split(g)
				x.groups = append(x.groups, group{mid + 1, g.hi, g.from, hits}, group{g.lo, mid, g.to, len(x.probes)})
			}
			continue
		}
		// All end here; check.
		_, missing := x.m.ProbeAll(x.chain[max(0, g.lo-confirmRun):max(0, g.lo-probeRun)], x.probes[g.from:g.to])
		for _, p := range x.probes[g.from:g.to] {
			if p.Held != 0 {
				x.found = append(x.found, depthOf{p.Word, g.lo, p.Held})
			}
		}
		if missing {
			for _, p := range x.probes[g.from:g.to] {
				if again := p.Cols &^ p.Held; again != 0 {
					x.searchWord(nil, wordRange{0, g.lo - probeRun - 1, again}, p.Word, 0)
				}
			}
		}
	}
}

// split moves the columns of g that do not hold the probed blocks to new probes at the end, and returns where g's ends.
func (x *Matcher) split(g group) (hits int) {
	hits = g.from
	for i := g.from; i < g.to; i++ {
		p := x.probes[i]
		if miss := p.Cols &^ p.Held; miss != 0 {
			x.probes = append(x.probes, bloom.Probe{Word: p.Word, Cols: miss})
		}
		if p.Held != 0 {
			x.probes[hits] = bloom.Probe{Word: p.Word, Cols: p.Held}
			hits++
		}
	}
	return hits
}

// searchWord searches for columns of one word, in digests or (unless s is nil) in marks. It looks at no block below floor.
func (x *Matcher) searchWord(s *Speculation, r wordRange, word, floor int) {
	base := len(x.ranges)
	for {
		for r.lo < r.hi {
			mid := int(uint(r.lo+r.hi) / 2)
			held := x.allOf(s, max(r.lo, mid-probeRun+1), mid+1, word, r.cols)
			if held == r.cols {
				r.lo = mid + 1
				continue
			}
			if held != 0 {
				x.ranges = append(x.ranges, wordRange{mid + 1, r.hi, held})
				r.cols &^= held
			}
			r.hi = mid
		}
		held := x.allOf(s, max(floor, r.lo-confirmRun), max(floor, r.lo-probeRun), word, r.cols)
		x.add(word, r.lo, held)
		if again := r.cols &^ held; again != 0 {
			x.ranges = append(x.ranges, wordRange{floor, r.lo - probeRun - 1, again})
		}
		if len(x.ranges) == base {
			return
		}
		r = x.ranges[len(x.ranges)-1]
		x.ranges = x.ranges[:len(x.ranges)-1]
	}
}

// allOf returns those of cols that hold chain[from:to] in digests, or in marks if s is not nil.
func (x *Matcher) allOf(s *Speculation, from, to, word int, cols uint64) uint64 {
	if s != nil {
		return s.allOf(x.chain[from:to], word, cols)
	}
	return x.m.AllOf(x.chain[from:to], word, cols)
}

// write writes what was found to out.
func (x *Matcher) write(m *bloom.Matrix, out []int32) {
	clear(out[:m.Columns()])
	for _, f := range x.found {
		scatter(out[64*f.word:][:64], f.cols, int32(f.depth))
	}
}

// scatter sets the numbers of cols.
func scatter(out []int32, cols uint64, n int32) {
	for ; cols != 0; cols &= cols - 1 {
		out[bits.TrailingZeros64(cols)] = n
	}
}
