package bloom

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Matrix holds the filters of many endpoints, one a column, transposed: a row is one bit position of the filter, with one
// bit per column, 64 columns a word. A bucket's 64 rows lie together. It is the only copy of the bits.
//
// Reading takes no lock and may happen while others write: words are read and written atomically, each for itself.
// SetBits, ClearBits, SetWord and ClearColumn are for one writer; Or is for any number.
type Matrix struct {
	geometry    Geometry
	wordsPerRow int
	rows        []uint64 // [bucket][bit][word]
}

// NewMatrix returns a matrix of empty columns, their number rounded up to a multiple of 64 (at least 64). It panics if g is
// not valid.
func NewMatrix(g Geometry, columns int) *Matrix {
	mustBeValid(g)
	wordsPerRow := max(1, (columns+63)/64)
	return &Matrix{geometry: g, wordsPerRow: wordsPerRow, rows: huge(make([]uint64, g.Bits()*wordsPerRow))}
}

// Geometry returns the shape of the columns.
func (m *Matrix) Geometry() Geometry { return m.geometry }

// Columns returns the number of columns, a multiple of 64.
func (m *Matrix) Columns() int { return 64 * m.wordsPerRow }

// WordsPerRow returns Columns()/64.
func (m *Matrix) WordsPerRow() int { return m.wordsPerRow }

// row returns the index of the first word of the row of a bit.
func (m *Matrix) row(bucket uint32, bit int) int {
	return (int(bucket)*bucketBits + bit) * m.wordsPerRow
}

// SetBits sets the bits of mask in a bucket of a column.
func (m *Matrix) SetBits(col int, bucket uint32, mask uint64) {
	m.check(col)
	for ; mask != 0; mask &= mask - 1 {
		atomic.OrUint64(&m.rows[m.row(bucket, bits.TrailingZeros64(mask))+col/64], 1<<(col%64))
	}
}

// ClearBits clears the bits of mask in a bucket of a column.
func (m *Matrix) ClearBits(col int, bucket uint32, mask uint64) {
	m.check(col)
	for ; mask != 0; mask &= mask - 1 {
		atomic.AndUint64(&m.rows[m.row(bucket, bits.TrailingZeros64(mask))+col/64], ^uint64(1<<(col%64)))
	}
}

// SetWord makes a bucket of a column exactly word. Bits that are right already are not touched.
func (m *Matrix) SetWord(col int, bucket uint32, word uint64) {
	m.check(col)
	old := m.word(col, bucket)
	m.SetBits(col, bucket, word&^old)
	m.ClearBits(col, bucket, old&^word)
}

// Column appends a column's filter to dst, one word per bucket.
func (m *Matrix) Column(col int, dst []uint64) []uint64 {
	return m.Words(col, 0, int(m.geometry.Buckets), dst)
}

// Words appends the buckets from..to-1 of a column to dst, one word each. A word costs as much as looking at 64 rows.
func (m *Matrix) Words(col, from, to int, dst []uint64) []uint64 {
	m.check(col)
	for b := from; b < to; b++ {
		dst = append(dst, m.word(col, uint32(b)))
	}
	return dst
}

// word gathers one bucket of a column.
func (m *Matrix) word(col int, bucket uint32) (word uint64) {
	rows, w := m.rows[m.row(bucket, 0):m.row(bucket+1, 0)], m.wordsPerRow
	shift := col % 64
	for at := len(rows) - w + col/64; at >= 0; at -= w {
		word = word<<1 | atomic.LoadUint64(&rows[at])>>shift&1
	}
	return word
}

// ClearColumn empties a column.
func (m *Matrix) ClearColumn(col int) {
	m.check(col)
	bit := uint64(1) << (col % 64)
	for at := col / 64; at < len(m.rows); at += m.wordsPerRow {
		if p := &m.rows[at]; atomic.LoadUint64(p)&bit != 0 {
			atomic.AndUint64(p, ^bit)
		}
	}
}

// ClearColumns empties the 64 columns of a word.
func (m *Matrix) ClearColumns(word int) {
	m.check(64 * word)
	for at := word; at < len(m.rows); at += m.wordsPerRow {
		if p := &m.rows[at]; atomic.LoadUint64(p) != 0 {
			atomic.StoreUint64(p, 0)
		}
	}
}

// CopyColumns makes the first columns of m, which is not in use yet, those of from. It panics unless from has the same
// shape and no more columns.
func (m *Matrix) CopyColumns(from *Matrix) {
	if m.geometry != from.geometry || m.wordsPerRow < from.wordsPerRow {
		panic(fmt.Sprintf("bloom: copy %d columns of %+v into %d of %+v", from.Columns(), from.geometry, m.Columns(), m.geometry))
	}
	for row := range m.geometry.Bits() {
		src, dst := from.rows[row*from.wordsPerRow:][:from.wordsPerRow], m.rows[row*m.wordsPerRow:]
		for w := range src {
			dst[w] = atomic.LoadUint64(&src[w])
		}
	}
}

// orAhead is how many blocks Or looks at before it writes.
const orAhead = 8

// Or adds blocks to a column; any number of goroutines may do so at once. An atomic write waits for memory alone, so the
// rows of several blocks are read first, all at a time; bits that are set already are not written again.
func (m *Matrix) Or(col int, blocks ...blockhash.Hash) {
	m.check(col)
	word, bit, w := col/64, uint64(1)<<(col%64), m.wordsPerRow
	for len(blocks) > 0 {
		ahead := blocks[:min(orAhead, len(blocks))]
		blocks = blocks[len(ahead):]
		var missing [orAhead * MaxK]int
		n := 0
		for _, h := range ahead {
			bucket := m.row(m.geometry.bucket(h), 0) + word
			for x, k := uint64(h), m.geometry.K; k > 0; k-- {
				at := bucket + int(x%bucketBits)*w
				x /= bucketBits
				if atomic.LoadUint64(&m.rows[at])&bit == 0 {
					missing[n] = at
					n++
				}
			}
		}
		for _, at := range missing[:n] {
			atomic.OrUint64(&m.rows[at], bit)
		}
	}
}

// Has reports whether a column may hold h.
func (m *Matrix) Has(col int, h blockhash.Hash) bool {
	m.check(col)
	return m.Test(h, col/64)>>(col%64)&1 != 0
}

// Test returns which of the 64 columns of a word may hold h, one bit each.
func (m *Matrix) Test(h blockhash.Hash, word int) uint64 {
	switch m.geometry.K {
	case 4:
		return m.test4(uint64(h), uint64(word))
	case 2:
		return m.test2(uint64(h), uint64(word))
	}
	at := m.row(m.geometry.bucket(h), 0) + word
	held := ^uint64(0)
	for x, k := uint64(h), m.geometry.K; k > 0; k-- {
		held &= atomic.LoadUint64(&m.rows[at+int(x%bucketBits)*m.wordsPerRow])
		x /= bucketBits
	}
	return held
}

// test4 is Test for four bits a block.
func (m *Matrix) test4(h, word uint64) uint64 {
	w := uint64(m.wordsPerRow)
	bucket, _ := bits.Mul64(h, uint64(m.geometry.Buckets))
	b := m.rows[bucket*bucketBits*w+word:]
	return atomic.LoadUint64(&b[h%64*w]) & atomic.LoadUint64(&b[h>>6%64*w]) &
		atomic.LoadUint64(&b[h>>12%64*w]) & atomic.LoadUint64(&b[h>>18%64*w])
}

// test2 is Test for two bits a block.
func (m *Matrix) test2(h, word uint64) uint64 {
	w := uint64(m.wordsPerRow)
	bucket, _ := bits.Mul64(h, uint64(m.geometry.Buckets))
	b := m.rows[bucket*bucketBits*w+word:]
	return atomic.LoadUint64(&b[h%64*w]) & atomic.LoadUint64(&b[h>>6%64*w])
}

// TestEither returns which columns may hold h in the one word or in the other.
func (m *Matrix) TestEither(h blockhash.Hash, one, other int) uint64 {
	if m.geometry.K != 2 {
		return m.Test(h, one) | m.Test(h, other)
	}
	x, w := uint64(h), uint64(m.wordsPerRow)
	bucket, _ := bits.Mul64(x, uint64(m.geometry.Buckets))
	b := m.rows[bucket*bucketBits*w:]
	r0, r1 := b[x%64*w:], b[x>>6%64*w:]
	return atomic.LoadUint64(&r0[one])&atomic.LoadUint64(&r1[one]) | atomic.LoadUint64(&r0[other])&atomic.LoadUint64(&r1[other])
}

// check panics if there is no such column: rows lie end to end, so that the index alone would hit another row.
func (m *Matrix) check(col int) {
	if uint(col) >= uint(m.Columns()) {
		panic(fmt.Sprintf("bloom: column %d of %d", col, m.Columns()))
	}
}
