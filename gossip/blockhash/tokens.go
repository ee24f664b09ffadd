package blockhash

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// hashTokens hashes tokens as little-endian bytes, in place where that is how the machine keeps them.
func hashTokens(tokens []uint32, seed uint64) uint64 {
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		view := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
		return xxh3.HashSeed(view, seed)
	}
	return hashTokensPortable(tokens, seed)
}

// hashTokensPortable is hashTokens for any byte order; it copies, on the stack for blocks of up to 256 tokens.
func hashTokensPortable(tokens []uint32, seed uint64) uint64 {
	var space [1024]byte
	b := space[:0]
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	return xxh3.HashSeed(b, seed)
}
