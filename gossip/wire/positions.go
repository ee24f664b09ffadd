package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

// maxRice bounds the Rice parameter: positions are below 2^26.
const maxRice = 26

const maxPosition = bloom.MaxBuckets*64 - 1

// appendPositions encodes an ascending list without repeats.
func appendPositions(dst []byte, list []uint32) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	k, _ := rice(list)
	dst = append(dst, k)
	var acc uint64 // bits not yet written, the first in the lowest bit
	var n uint     // how many; below 8 between codes
	next := uint32(0)
	for _, p := range list {
		gap := p - next
		next = p + 1
		q := uint(gap >> k)
		for ; q >= 32; q -= 32 { // long runs of ones, rare
			acc |= 0xffffffff << n
			dst = binary.LittleEndian.AppendUint32(dst, uint32(acc))
			acc >>= 32
		}
		acc |= (1<<q - 1) << n
		n += q + 1
		for ; n >= 8; n -= 8 {
			dst = append(dst, byte(acc))
			acc >>= 8
		}
		acc |= uint64(gap&(1<<k-1)) << n
		n += uint(k)
		for ; n >= 8; n -= 8 {
			dst = append(dst, byte(acc))
			acc >>= 8
		}
	}
	if n > 0 {
		dst = append(dst, byte(acc))
	}
	return dst
}

// PositionsBytes returns the size of an encoded position list without its tag and
// length, so that a publisher can fill a packet.
func PositionsBytes(list []uint32) int {
	if len(list) == 0 {
		return 0
	}
	_, n := rice(list)
	return (bits.Len(uint(len(list)))+6)/7 + 1 + int(n+7)/8
}

// rice picks the cheapest parameter near the logarithm of the mean gap, and says
// how many bits the list then takes.
func rice(list []uint32) (parameter uint8, bitCount uint64) {
	if len(list) == 0 {
		return 0, 0
	}
	mean := (uint64(list[len(list)-1]) + 1) / uint64(len(list))
	guess := max(bits.Len64(mean)-1, 0)
	bitCount = 1 << 63
	for k := max(guess-1, 0); k <= min(guess+1, maxRice); k++ {
		total, next := uint64(k+1)*uint64(len(list)), uint32(0)
		for _, p := range list {
			total += uint64((p - next) >> k)
			next = p + 1
		}
		if total < bitCount {
			parameter, bitCount = uint8(k), total
		}
	}
	return parameter, bitCount
}

// positions reads a list that fills the rest of the field.
func (r *reader) positions() []uint32 {
	count, k := r.uv(), uint(r.u8())
	switch {
	case r.err != nil:
		return nil
	case k > maxRice:
		r.fail(fmt.Errorf("rice parameter %d, limit %d: %w", k, maxRice, ErrLimit))
		return nil
	case count > uint64(len(r.b))*8/uint64(k+1): // each code takes k+1 bits or more
		r.fail(ErrShort)
		return nil
	}
	list := make([]uint32, count)
	s := bitString{b: r.b}
	next := uint64(0)
	for i := range list {
		q, ok := s.ones()
		low, ok2 := s.low(k)
		if !ok || !ok2 {
			r.fail(ErrShort)
			return nil
		}
		p := next + uint64(q)<<k + uint64(low)
		if p > maxPosition {
			r.fail(fmt.Errorf("bit position %d, limit %d: %w", p, maxPosition, ErrLimit))
			return nil
		}
		list[i] = uint32(p)
		next = p + 1
	}
	if !s.done() {
		r.fail(fmt.Errorf("bytes after a list of %d positions: %w", count, ErrInvalid))
		return nil
	}
	r.b = nil
	return list
}

// bitString reads bits, lowest of each byte first.
type bitString struct {
	b   []byte
	acc uint64
	n   uint // valid bits in acc
}

func (s *bitString) fill() {
	if s.n <= 32 && len(s.b) >= 4 {
		s.acc |= uint64(binary.LittleEndian.Uint32(s.b)) << s.n
		s.b = s.b[4:]
		s.n += 32
		return
	}
	for s.n <= 56 && len(s.b) > 0 {
		s.acc |= uint64(s.b[0]) << s.n
		s.b = s.b[1:]
		s.n += 8
	}
}

// ones counts one-bits up to the next zero-bit and takes both.
func (s *bitString) ones() (uint32, bool) {
	q := uint32(0)
	for {
		s.fill()
		run := uint(bits.TrailingZeros64(^s.acc))
		if run < s.n {
			s.acc >>= run + 1
			s.n -= run + 1
			return q + uint32(run), true
		}
		q += uint32(s.n)
		s.acc, s.n = 0, 0
		if len(s.b) == 0 {
			return 0, false
		}
	}
}

func (s *bitString) low(k uint) (uint32, bool) {
	if s.n < k {
		s.fill()
	}
	if s.n < k {
		return 0, false
	}
	v := uint32(s.acc & (1<<k - 1))
	s.acc >>= k
	s.n -= k
	return v, true
}

// done reports whether only the zero bits that fill the last byte are left.
func (s *bitString) done() bool { return len(s.b) == 0 && s.n < 8 && s.acc == 0 }
