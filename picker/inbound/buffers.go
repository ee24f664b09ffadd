package inbound

import (
	"math/bits"
	"sync"
)

// maxKeptBytes bounds a buffer that is kept for another request.
const maxKeptBytes = 4 << 20

// Buffers are memory of about one size, used again: to a body of 128 KiB fresh memory costs more
// than all else that is done for it. The zero value works. Safe for concurrent use.
type Buffers struct{ pool sync.Pool } // of *[]byte

// Take returns an empty buffer with room for n bytes, or twice that: the next one may want more.
func (b *Buffers) Take(n int) []byte {
	if kept, ok := b.pool.Get().(*[]byte); ok && cap(*kept) >= n {
		return (*kept)[:0]
	}
	return make([]byte, 0, 1<<bits.Len(uint(n-1)))
}

// Give takes a buffer back that nobody reads any more.
func (b *Buffers) Give(buf []byte) {
	if cap(buf) > 0 && cap(buf) <= maxKeptBytes {
		b.pool.Put(&buf)
	}
}
