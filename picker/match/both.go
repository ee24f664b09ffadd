package match

import (
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

// MatchBoth is Match with blocks held that are in the digest or marked in s, whose columns are those of m. It also writes
// the answer of the digests alone to outDigestOnly, which has the same size as out.
func (x *Matcher) MatchBoth(m *bloom.Matrix, s *Speculation, chain []blockhash.Hash, want, careful []uint64, out, outDigestOnly []int32) {
	x.search(m, chain, want, careful)
	x.write(want, outDigestOnly[:m.Columns()])
	copy(out, outDigestOnly[:m.Columns()])
	digests := len(x.found)
	for _, f := range x.found[:digests] {
		x.extend(s, f, careful)
	}
	for _, f := range x.found[digests:] {
		scatter(out[64*f.word:][:64], f.cols, int32(f.depth))
	}
	x.m, x.chain = nil, nil
}

// extend looks for marked blocks at the end of a match and appends what is longer with them to found. Behind the end of a
// prefix-closed digest there can only be marks; where it is not closed, blocks of both may take turns.
func (x *Matcher) extend(s *Speculation, f depthOf, careful []uint64) {
	n := len(x.chain)
	if f.depth == n || f.word >= s.words {
		return
	}
	cols := s.allOf(x.chain[f.depth:f.depth+1], f.word, f.cols)
	if cols == 0 {
		return
	}
	from := f.depth + 1
	if careful != nil {
		x.walk(s, f.word, cols&careful[f.word], from)
		cols &^= careful[f.word]
	}
	// Next, what ends most false positives: one block more.
	held := s.allOf(x.chain[from:min(from+1, n)], f.word, cols)
	x.add(f.word, from, cols&^held)
	// And what is likely then: the whole chain, marked for the same prompt.
	all := s.allOf(x.chain[max(from, n-confirmRun):], f.word, held)
	x.add(f.word, n, all)
	if rest := held &^ all; rest != 0 {
		x.searchWord(s, f.word, rest, from, from+1, n-1)
	}
}
