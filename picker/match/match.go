// Package match finds how many leading blocks of a prompt each endpoint holds.
//
// The endpoints' digests are columns of a [bloom.Matrix], and digests are prefix-closed: an endpoint that holds a block
// holds all blocks before it. So the depth of a match can be found by bisection, for 64 endpoints a word at once: those
// that hold the middle block go on above it, the others below. Since most endpoints hold just a common system prefix, the
// search begins where most of them stopped before.
//
// A digest has false positives, so a block counts as held only together with the block before it, and a depth
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
	probeRun   = 2 // a probe: the block and its predecessor
	confirmRun = 8 // the end of a match
)

// guessRun is how many blocks behind the guess are looked at one by one: as many as end nearly all false positives.
const guessRun = 3

// fewWords is up to how many words it is faster to search one after the other than side by side, by measurement.
const fewWords = 8

// Matcher finds matches. It holds scratch space: use one per goroutine and reuse it. The zero value is ready.
type Matcher struct {
	m     *bloom.Matrix
	chain []blockhash.Hash

	probes []bloom.Probe // of all groups of columns that are being searched
	found  []depthOf     // the result
	guess  guess
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
	x.write(want, out[:m.Columns()])
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
	if len(x.probes) == 0 {
		return
	}
	// One word shows the others where most columns end.
	walked := len(x.found)
	x.searchWordFrom(min(x.guess.depth, len(chain)), x.probes[0])
	depth := mostCommon(x.found[walked:])
	x.guess.learn(depth)
	if len(x.probes) > 1 {
		x.searchGroupFrom(depth, x.probes[1:])
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

// searchWordFrom searches for the columns of one word that p asks about, in digests, first at depth guess.
func (x *Matcher) searchWordFrom(guess int, p bloom.Probe) {
	cols := x.m.AllOf(x.chain[max(0, guess-confirmRun):guess], p.Word, p.Cols)
	if low := p.Cols &^ cols; low != 0 {
		x.searchWord(nil, p.Word, low, 0, 0, guess-1)
	}
	i := guess
	for ; i < min(guess+guessRun, len(x.chain)) && cols != 0; i++ {
		held := cols & x.m.Test(x.chain[i], p.Word)
		x.add(p.Word, i, cols&^held)
		cols = held
	}
	if cols != 0 {
		x.searchWord(nil, p.Word, cols, 0, i, len(x.chain))
	}
}

// searchWord searches for columns of one word that hold chain[:lo] and not chain[:hi+1], in digests or (unless s is nil)
// in marks. It looks at no block below floor.
func (x *Matcher) searchWord(s *Speculation, word int, cols uint64, floor, lo, hi int) {
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		held := x.allOf(s, max(lo, mid-probeRun+1), mid+1, word, cols)
		if held == 0 {
			hi = mid
			continue
		}
		if miss := cols &^ held; miss != 0 {
			x.searchWord(s, word, miss, floor, lo, mid)
			cols = held
		}
		lo = mid + 1
	}
	held := x.allOf(s, max(floor, lo-confirmRun), max(floor, lo-probeRun), word, cols)
	x.add(word, lo, held)
	if miss := cols &^ held; miss != 0 {
		x.searchWord(s, word, miss, floor, floor, lo-probeRun-1)
	}
}

// allOf returns those of cols that hold chain[from:to] in digests, or in marks if s is not nil.
func (x *Matcher) allOf(s *Speculation, from, to, word int, cols uint64) uint64 {
	if s != nil {
		return s.allOf(x.chain[from:to], word, cols)
	}
	return x.m.AllOf(x.chain[from:to], word, cols)
}

// searchGroupFrom is searchWordFrom for columns of several words.
func (x *Matcher) searchGroupFrom(guess int, g []bloom.Probe) {
	g = x.ask(max(0, guess-confirmRun), guess, g, func(miss []bloom.Probe) { x.searchGroup(miss, 0, guess-1) })
	i := guess
	for ; i < min(guess+guessRun, len(x.chain)) && len(g) > 0; i++ {
		g = x.ask(i, i+1, g, func(miss []bloom.Probe) { x.addAll(miss, i) })
	}
	if len(g) > 0 {
		x.searchGroup(g, i, len(x.chain))
	}
}

// searchGroup is searchWord for columns of several words, in digests. It overwrites g.
func (x *Matcher) searchGroup(g []bloom.Probe, lo, hi int) {
	for lo < hi {
		if len(g) <= fewWords {
			for _, p := range g {
				x.searchWord(nil, p.Word, p.Cols, 0, lo, hi)
			}
			return
		}
		mid := int(uint(lo+hi) / 2)
		hit := x.ask(max(lo, mid-probeRun+1), mid+1, g, func(miss []bloom.Probe) { x.searchGroup(miss, lo, mid) })
		if len(hit) == 0 {
			return
		}
		g, lo = hit, mid+1
	}
	g = x.ask(max(0, lo-confirmRun), max(0, lo-probeRun), g, func(miss []bloom.Probe) { x.searchGroup(miss, 0, lo-probeRun-1) })
	x.addAll(g, lo)
}

// addAll notes a result for several words.
func (x *Matcher) addAll(g []bloom.Probe, depth int) {
	for _, p := range g {
		x.add(p.Word, depth, p.Cols)
	}
}

// ask returns the columns of g that hold chain[from:to] and calls rest with the others, if there are any. It overwrites g;
// what rest gets is gone when it returns.
func (x *Matcher) ask(from, to int, g []bloom.Probe, rest func(miss []bloom.Probe)) (hit []bloom.Probe) {
	held, missing := x.m.ProbeAll(x.chain[from:to], g)
	switch {
	case !missing:
		return g
	case !held:
		rest(g)
		return nil
	}
	end := len(x.probes)
	hit = g[:0]
	for _, p := range g {
		if miss := p.Cols &^ p.Held; miss != 0 {
			x.probes = append(x.probes, bloom.Probe{Word: p.Word, Cols: miss})
		}
		if p.Held != 0 {
			hit = append(hit, bloom.Probe{Word: p.Word, Cols: p.Held})
		}
	}
	rest(x.probes[end:])
	x.probes = x.probes[:end]
	return hit
}

// write writes what was found to out: first, whole words, the depths that more than half of a word's columns have.
func (x *Matcher) write(want []uint64, out []int32) {
	for _, f := range x.found {
		if bits.OnesCount64(f.cols) > 32 {
			word := (*[64]int32)(out[64*f.word:])
			for i := range word {
				word[i] = int32(f.depth)
			}
		}
	}
	for _, f := range x.found {
		if bits.OnesCount64(f.cols) <= 32 {
			scatter(out[64*f.word:][:64], f.cols, int32(f.depth))
		}
	}
	for word, cols := range want {
		scatter(out[64*word:][:64], ^cols, 0)
	}
}

// scatter sets the numbers of cols.
func scatter(out []int32, cols uint64, n int32) {
	for ; cols != 0; cols &= cols - 1 {
		out[bits.TrailingZeros64(cols)] = n
	}
}

// mostCommon returns the depth with the most columns.
func mostCommon(found []depthOf) (depth int) {
	most := 0
	for _, f := range found {
		if n := bits.OnesCount64(f.cols); n > most {
			most, depth = n, f.depth
		}
	}
	return depth
}

// guess is the depth at which most columns end in most searches: a running majority vote. It only saves time.
type guess struct{ depth, votes int }

// maxVotes is how many searches in a row with another outcome change the guess at the latest.
const maxVotes = 8

// learn takes in where most columns ended in one search.
func (g *guess) learn(depth int) {
	switch {
	case depth == g.depth:
		g.votes = min(g.votes+1, maxVotes)
	case g.votes > 0:
		g.votes--
	default:
		g.depth = depth
	}
}
