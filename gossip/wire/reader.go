package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// reader takes fields off a packet. The first fault sticks: later reads return
// zero, so a decoder checks err once, and before each allocation.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.b = nil
}

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail(ErrShort)
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8 {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if v := r.take(2); v != nil {
		return binary.LittleEndian.Uint16(v)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if v := r.take(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func (r *reader) uv() uint64 {
	v, n := binary.Uvarint(r.b)
	switch {
	case n > 0:
		r.b = r.b[n:]
		return v
	case n == 0:
		r.fail(ErrShort)
	default:
		r.fail(fmt.Errorf("varint over 64 bits: %w", ErrInvalid))
	}
	return 0
}

// uvMax reads a varint that must not exceed limit.
func (r *reader) uvMax(what string, limit uint64) uint64 {
	v := r.uv()
	if v > limit {
		r.fail(fmt.Errorf("%s %d, limit %d: %w", what, v, limit, ErrLimit))
		return 0
	}
	return v
}

func (r *reader) uv32(what string) uint32 { return uint32(r.uvMax(what, math.MaxUint32)) }

func (r *reader) duration(what string, unit, limit time.Duration) time.Duration {
	return time.Duration(r.uvMax(what, uint64(limit/unit))) * unit
}

func (r *reader) f32(what string) float64 {
	v := float64(math.Float32frombits(r.u32()))
	if !(v >= 0 && v <= math.MaxFloat32) {
		r.fail(fmt.Errorf("%s %v: %w", what, v, ErrInvalid))
		return 0
	}
	return v
}

func (r *reader) str(what string) string {
	return string(r.take(r.uvMax(what, MaxStringBytes)))
}

func (r *reader) key() Key { return Key{Endpoint: r.u64(), Rank: r.u16()} }

// fields calls f for each optional field with its tag and a reader over its value
// alone.
func (r *reader) fields(f func(tag uint8, v *reader)) {
	for r.err == nil && len(r.b) > 0 {
		tag := r.u8()
		v := reader{b: r.take(r.uv())}
		if r.err != nil {
			return
		}
		f(tag, &v)
		if v.err != nil {
			r.fail(fmt.Errorf("field %d: %w", tag, v.err))
		}
	}
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func appendKey(dst []byte, k Key) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, k.Endpoint)
	return binary.LittleEndian.AppendUint16(dst, k.Rank)
}

// appendDuration rounds up, and clamps to what the decoder accepts.
func appendDuration(dst []byte, d, unit, limit time.Duration) []byte {
	d = min(max(d, 0), limit)
	return binary.AppendUvarint(dst, uint64((d+unit-1)/unit))
}

// appendFloat writes zero for what the format has no room for: NaN, infinite and
// negative numbers.
func appendFloat(dst []byte, v float64) []byte {
	if !(v >= 0 && v <= math.MaxFloat32) {
		v = 0
	}
	return binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(v)))
}

// appendField writes an optional field whose value append writes. The length is
// back-filled: values under 128 bytes, nearly all, are written in place.
func appendField(dst []byte, tag uint8, value func([]byte) []byte) []byte {
	dst = append(dst, tag, 0)
	start := len(dst)
	dst = value(dst)
	n := len(dst) - start
	if n < 0x80 {
		dst[start-1] = byte(n)
		return dst
	}
	var length [binary.MaxVarintLen64]byte
	w := binary.PutUvarint(length[:], uint64(n))
	dst = append(dst, length[1:w]...) // make room
	copy(dst[start-1+w:], dst[start:start+n])
	copy(dst[start-1:], length[:w])
	return dst
}

func appendUintField(dst []byte, tag uint8, v uint32) []byte {
	if v == 0 {
		return dst
	}
	return appendField(dst, tag, func(b []byte) []byte { return binary.AppendUvarint(b, uint64(v)) })
}

func appendStringField(dst []byte, tag uint8, s string) []byte {
	if s == "" {
		return dst
	}
	return appendField(dst, tag, func(b []byte) []byte { return append(b, s...) })
}

// text reads a whole field as a string.
func (r *reader) text(what string) string {
	if len(r.b) > MaxStringBytes {
		r.fail(fmt.Errorf("%s of %d bytes, limit %d: %w", what, len(r.b), MaxStringBytes, ErrLimit))
	}
	return string(r.take(uint64(len(r.b))))
}
