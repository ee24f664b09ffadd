package bloom

import (
	"math/bits"
	"sync/atomic"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Probe asks about columns of one word; see [Matrix.ProbeAll].
type Probe struct {
	Word int    // columns 64*Word .. 64*Word+63
	Cols uint64 // those that are asked about
	Held uint64 // answer: those of Cols that may hold every block
}

// AllOf returns those of cols, columns of a word, that may hold every one of blocks. It stops when none is left, last
// block first, since the later blocks of a chain are the likelier to be absent.
func (m *Matrix) AllOf(blocks []blockhash.Hash, word int, cols uint64) uint64 {
	if m.geometry.K != 4 {
		for i := len(blocks) - 1; i >= 0 && cols != 0; i-- {
			cols &= m.Test(blocks[i], word)
		}
		return cols
	}
	rows, buckets := m.rows, uint64(m.geometry.Buckets)
	if m.wordsPerRow == 1 {
		for i := len(blocks) - 1; i >= 0 && cols != 0; i-- {
			h := uint64(blocks[i])
			bucket, _ := bits.Mul64(h, buckets)
			b := (*[bucketBits]uint64)(rows[bucket*bucketBits:])
			cols &= atomic.LoadUint64(&b[h%64]) & atomic.LoadUint64(&b[h>>6%64]) &
				atomic.LoadUint64(&b[h>>12%64]) & atomic.LoadUint64(&b[h>>18%64])
		}
		return cols
	}
	for i := len(blocks) - 1; i >= 0 && cols != 0; i-- {
		cols &= m.test4(uint64(blocks[i]), uint64(word))
	}
	return cols
}

// ProbeAll answers several probes, of different words in rising order, for the same blocks, so that a row is read once and
// in order. It reports whether any column holds all blocks (true without blocks), and whether any does not.
func (m *Matrix) ProbeAll(blocks []blockhash.Hash, probes []Probe) (held, missing bool) {
	for i := range probes {
		probes[i].Held = probes[i].Cols
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		if !m.probeOne(blocks[i], probes) {
			return false, true
		}
	}
	for i := range probes {
		missing = missing || probes[i].Held != probes[i].Cols
	}
	return true, missing
}

// probeOne takes what does not hold h out of Held and reports whether anything is left.
func (m *Matrix) probeOne(h blockhash.Hash, probes []Probe) bool {
	var left uint64
	if m.geometry.K != 4 {
		for i := range probes {
			probes[i].Held &= m.Test(h, probes[i].Word)
			left |= probes[i].Held
		}
		return left != 0
	}
	w := m.wordsPerRow
	b := m.rows[m.row(m.geometry.bucket(h), 0):][:bucketBits*w]
	r0, r1 := b[int(h%64)*w:][:w], b[int(h>>6%64)*w:][:w]
	r2, r3 := b[int(h>>12%64)*w:][:w], b[int(h>>18%64)*w:][:w]
	for i := range probes {
		if p := &probes[i]; p.Held != 0 {
			p.Held &= atomic.LoadUint64(&r0[p.Word]) & atomic.LoadUint64(&r1[p.Word]) &
				atomic.LoadUint64(&r2[p.Word]) & atomic.LoadUint64(&r3[p.Word])
			left |= p.Held
		}
	}
	return left != 0
}
