package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

// SegmentWords is the length of a segment; the last one of a digest may be shorter.
const SegmentWords = 128

// Limits of repair messages.
const (
	MaxSegmentsPerMessage = 256
	MaxNackSegments       = 512
)

// Segments returns the number of segments of a digest.
func Segments(g bloom.Geometry) int {
	return (int(g.Buckets) + SegmentWords - 1) / SegmentWords
}

// SegmentSpan returns the half-open range of words that a segment covers.
func SegmentSpan(g bloom.Geometry, index int) (from, to int) {
	from = index * SegmentWords
	return from, min(from+SegmentWords, int(g.Buckets))
}

// Checksum is the CRC32C of the words as little-endian bytes.
func Checksum(words []uint64) uint32 {
	var buf [SegmentWords * 8]byte
	sum := uint32(0)
	for len(words) > 0 {
		n := min(len(words), SegmentWords)
		for i, w := range words[:n] {
			binary.LittleEndian.PutUint64(buf[i*8:], w)
		}
		sum = crc32.Update(sum, castagnoli, buf[:n*8])
		words = words[n:]
	}
	return sum
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Nack asks a publisher for what a receiver misses: ticks, segments, the INFO.
type Nack struct {
	Key      Key
	Epoch    uint64
	From, To uint64 // ticks, inclusive; both 0: none
	Tier     Tier   // of Segments
	Segments []uint16
	WantInfo bool
}

// Append encodes the message at the end of dst. Segments must hold at most
// MaxNackSegments.
func (n *Nack) Append(dst []byte, node uint64) []byte {
	dst = appendHeader(dst, TypeNack, node)
	dst = appendKey(dst, n.Key)
	dst = binary.AppendUvarint(dst, n.Epoch)
	if n.From != 0 || n.To != 0 {
		dst = appendField(dst, 1, func(b []byte) []byte {
			return binary.AppendUvarint(binary.AppendUvarint(b, n.From), n.To)
		})
	}
	if len(n.Segments) > 0 {
		dst = appendField(dst, 2, func(b []byte) []byte {
			b = append(b, byte(n.Tier))
			b = binary.AppendUvarint(b, uint64(len(n.Segments)))
			for _, s := range n.Segments {
				b = binary.LittleEndian.AppendUint16(b, s)
			}
			return b
		})
	}
	if n.WantInfo {
		dst = append(dst, 3, 0)
	}
	return dst
}

func (n *Nack) decode(r *reader) {
	n.Key = r.key()
	n.Epoch = r.uv()
	r.fields(func(tag uint8, v *reader) {
		switch tag {
		case 1:
			n.From, n.To = v.uv(), v.uv()
			if n.From == 0 || n.To < n.From {
				v.fail(fmt.Errorf("ticks %d to %d: %w", n.From, n.To, ErrInvalid))
			}
		case 2:
			n.Tier = v.tier()
			count := v.uvMax("segment count", MaxNackSegments)
			if count == 0 {
				n.Tier = 0 // of nothing: as if the field were absent
			}
			if count*2 > uint64(len(v.b)) {
				v.fail(ErrShort)
				return
			}
			n.Segments = make([]uint16, count)
			for i := range n.Segments {
				n.Segments[i] = v.u16()
			}
		case 3:
			n.WantInfo = true
		}
	})
}

// Segment is the exact content of one or more consecutive segments of a digest.
type Segment struct {
	Key      Key
	Epoch    uint64
	TickNo   uint64 // true after this tick: deltas up to it must not be applied over it
	Tier     Tier
	Geometry bloom.Geometry
	Index    uint16   // of the first segment
	Words    []uint64 // whole segments; at most MaxSegmentsPerMessage
}

// Append encodes the message at the end of dst. A message of one segment fits
// MaxPacketBytes.
func (s *Segment) Append(dst []byte, node uint64) []byte {
	dst = appendHeader(dst, TypeSegment, node)
	dst = appendKey(dst, s.Key)
	dst = binary.AppendUvarint(dst, s.Epoch)
	dst = binary.AppendUvarint(dst, s.TickNo)
	dst = append(dst, byte(s.Tier))
	dst = appendGeometry(dst, s.Geometry)
	dst = binary.AppendUvarint(dst, uint64(s.Index))
	dst = binary.AppendUvarint(dst, uint64(len(s.Words)))
	for _, w := range s.Words {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return binary.LittleEndian.AppendUint32(dst, Checksum(s.Words))
}

func (s *Segment) decode(r *reader) {
	s.Key = r.key()
	s.Epoch = r.uv()
	s.TickNo = r.uv()
	s.Tier = r.tier()
	s.Geometry = r.geometry()
	s.Index = uint16(r.uvMax("segment index", 1<<16-1))
	count := r.uvMax("segment words", MaxSegmentsPerMessage*SegmentWords)
	from, buckets := uint64(s.Index)*SegmentWords, uint64(s.Geometry.Buckets)
	switch {
	case r.err != nil:
		return
	case count == 0 || from+count > buckets || (count%SegmentWords != 0 && from+count != buckets):
		r.fail(fmt.Errorf("%d words from word %d of %d: %w", count, from, buckets, ErrInvalid))
		return
	}
	raw := r.take(count * 8)
	sum := r.u32()
	if r.err != nil {
		return
	}
	if got := crc32.Checksum(raw, castagnoli); got != sum {
		r.fail(fmt.Errorf("segment %d: %w", s.Index, ErrChecksum))
		return
	}
	s.Words = make([]uint64, count)
	for i := range s.Words {
		s.Words[i] = binary.LittleEndian.Uint64(raw[i*8:])
	}
	r.fields(func(uint8, *reader) {})
}

// Hello asks an agent for everything about its endpoints that is newer than what
// the sender knows: INFO, and the content of each stream.
type Hello struct {
	Node  string // the sender
	Known []KnownStream
}

// KnownStream is a stream whose content the sender has up to a tick.
type KnownStream struct {
	Key    Key
	Epoch  uint64
	TickNo uint64
}

// Append encodes the message at the end of dst. Known must hold at most MaxRanks.
func (h *Hello) Append(dst []byte, node uint64) []byte {
	dst = appendHeader(dst, TypeHello, node)
	dst = appendString(dst, h.Node)
	for _, k := range h.Known {
		dst = appendField(dst, 1, func(b []byte) []byte {
			b = appendKey(b, k.Key)
			return binary.AppendUvarint(binary.AppendUvarint(b, k.Epoch), k.TickNo)
		})
	}
	return dst
}

func (h *Hello) decode(r *reader) {
	h.Node = r.str("node")
	r.fields(func(tag uint8, v *reader) {
		if tag != 1 {
			return
		}
		if len(h.Known) == MaxRanks {
			v.fail(fmt.Errorf("more than %d known streams: %w", MaxRanks, ErrLimit))
			return
		}
		h.Known = append(h.Known, KnownStream{Key: v.key(), Epoch: v.uv(), TickNo: v.uv()})
	})
}
