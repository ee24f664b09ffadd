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
	if m.wordsPerRow == 1 {
		for i := len(blocks) - 1; i >= 0 && cols != 0; i-- {
			h := uint64(blocks[i])
			bucket, _ := bits.Mul64(h, uint64(m.geometry.Buckets))
			b := (*[bucketBits]uint64)(m.rows[bucket*bucketBits:])
			cols &= atomic.LoadUint64(&b[h%64]) & atomic.LoadUint64(&b[h>>6%64]) &
				atomic.LoadUint64(&b[h>>12%64]) & atomic.LoadUint64(&b[h>>18%64])
		}
		return cols
	}
	for i := len(blocks) - 1; i >= 0 && cols != 0; i-- {
		h := uint64(blocks[i])
		w := uint64(m.wordsPerRow)
		bucket, _ := bits.Mul64(h, uint64(m.geometry.Buckets))
		b := m.rows[bucket*bucketBits*w+uint64(word):]
		cols &= atomic.LoadUint64(&b[h%64*w]) & atomic.LoadUint64(&b[h>>6%64*w]) &
			atomic.LoadUint64(&b[h>>12%64*w]) & atomic.LoadUint64(&b[h>>18%64*w])
	}
	return cols
}

// ProbeAll answers several probes, of different words in rising order, for the same blocks, so that a row is read once and
// in order. It reports whether any column holds all blocks, and whether any does not.
func (m *Matrix) ProbeAll(blocks []blockhash.Hash, probes []Probe) (held, missing bool) {
	for i := range probes {
		probes[i].Held = probes[i].Cols
	}
	w := m.wordsPerRow
	for i := len(blocks) - 1; i >= 0; i-- {
		h := uint64(blocks[i])
		at := m.row(m.geometry.bucket(blocks[i]), 0)
		var any uint64
		if m.geometry.K == 4 {
			bucket := m.rows[at:][:bucketBits*w]
			r0 := bucket[int(h%64)*w:][:w]
			r1 := bucket[int(h>>6%64)*w:][:w]
			r2 := bucket[int(h>>12%64)*w:][:w]
			r3 := bucket[int(h>>18%64)*w:][:w]
			for j := range probes {
				p := &probes[j]
				if p.Held != 0 {
					p.Held &= atomic.LoadUint64(&r0[p.Word]) & atomic.LoadUint64(&r1[p.Word]) &
						atomic.LoadUint64(&r2[p.Word]) & atomic.LoadUint64(&r3[p.Word])
					any |= p.Held
				}
			}
		} else {
			for j := range probes {
				p := &probes[j]
				if p.Held != 0 {
					p.Held &= m.Test(blocks[i], p.Word)
					any |= p.Held
				}
			}
		}
		if any == 0 {
			return false, true
		}
	}
	for i := range probes {
		missing = missing || probes[i].Held != probes[i].Cols
	}
	return true, missing
}
