package kvevent

import (
	"encoding/binary"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// maxDepth bounds nesting. Real events reach 6: batch, events, event, extra keys,
// entry, pair.
const maxDepth = 16

// scanValue returns the offset behind the MessagePack value at b[off:]. It follows
// the value to its end without recursion and allocates nothing, so that everything
// read afterwards is known to be whole. Errors are ReasonTruncated, ReasonClaim,
// ReasonDepth or ReasonSyntax.
func scanValue(b []byte, off int) (int, error) {
	var left [maxDepth + 1]uint64 // values still to come, by level
	left[0] = 1
	for depth := 0; ; {
		if off >= len(b) {
			return 0, ReasonTruncated
		}
		skip, children, err := header(b[off:])
		if err != nil {
			return 0, err
		}
		off += skip
		left[depth]--
		if children > 0 {
			// A value takes at least a byte.
			if children > uint64(len(b)-off) {
				return 0, beyond(b[off-skip])
			}
			if depth == maxDepth {
				return 0, ReasonDepth
			}
			depth++
			left[depth] = children
		}
		for left[depth] == 0 {
			if depth == 0 {
				return off, nil
			}
			depth--
		}
	}
}

// header reads one value's head: skip is its own length (with the bytes of strings
// and extensions), children the number of values inside it. b is not empty.
func header(b []byte) (skip int, children uint64, err error) {
	c := b[0]
	width, fixed := 0, uint64(0) // bytes of a length field; bytes of content
	switch {
	case msgpcode.IsFixedNum(c), c == msgpcode.Nil, c == msgpcode.False, c == msgpcode.True:
		return 1, 0, nil
	case msgpcode.IsFixedMap(c):
		return 1, 2 * uint64(c&msgpcode.FixedMapMask), nil
	case msgpcode.IsFixedArray(c):
		return 1, uint64(c & msgpcode.FixedArrayMask), nil
	case msgpcode.IsFixedString(c):
		fixed = uint64(c & msgpcode.FixedStrMask)
	case msgpcode.IsFixedExt(c):
		fixed = 1 + 1<<(c-msgpcode.FixExt1)
	default:
		switch c {
		case msgpcode.Uint8, msgpcode.Int8:
			fixed = 1
		case msgpcode.Uint16, msgpcode.Int16:
			fixed = 2
		case msgpcode.Uint32, msgpcode.Int32, msgpcode.Float:
			fixed = 4
		case msgpcode.Uint64, msgpcode.Int64, msgpcode.Double:
			fixed = 8
		case msgpcode.Str8, msgpcode.Bin8, msgpcode.Ext8:
			width = 1
		case msgpcode.Str16, msgpcode.Bin16, msgpcode.Ext16, msgpcode.Array16, msgpcode.Map16:
			width = 2
		case msgpcode.Str32, msgpcode.Bin32, msgpcode.Ext32, msgpcode.Array32, msgpcode.Map32:
			width = 4
		default:
			return 0, 0, ReasonSyntax
		}
	}
	if len(b) < 1+width {
		return 0, 0, ReasonTruncated
	}
	var n uint64
	switch width {
	case 1:
		n = uint64(b[1])
	case 2:
		n = uint64(binary.BigEndian.Uint16(b[1:]))
	case 4:
		n = uint64(binary.BigEndian.Uint32(b[1:]))
	}
	switch c {
	case msgpcode.Array16, msgpcode.Array32:
		return 1 + width, n, nil
	case msgpcode.Map16, msgpcode.Map32:
		return 1 + width, 2 * n, nil
	case msgpcode.Ext8, msgpcode.Ext16, msgpcode.Ext32:
		n++ // the extension's type
	}
	if total := 1 + uint64(width) + fixed + n; total <= uint64(len(b)) {
		return int(total), 0, nil
	}
	return 0, 0, beyond(c)
}

// beyond tells a length that nobody sends from a frame that was cut.
func beyond(c byte) error {
	switch c {
	case msgpcode.Array32, msgpcode.Map32, msgpcode.Str32, msgpcode.Bin32, msgpcode.Ext32:
		return ReasonClaim
	}
	return ReasonTruncated
}
