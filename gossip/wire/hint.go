package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
)

// Limits of a hint. A HINT fits MaxPacketBytes: a gateway that has more to say sends several.
const (
	MaxHintPoints = 64
	MaxHintTokens = 1 << 24 // prompt, cached
	maxHintAge    = time.Minute
)

// Hint tells the other gateways what became of requests that the sender has bound. Applying one twice changes nothing; one
// that is lost costs what a gateway knows of a few requests, for seconds.
type Hint struct {
	Number uint64 // rises by one with each HINT of a node, so that lost ones can be counted
	Held   uint32 // requests that wait at the sender for an endpoint
	Bound  []HintBound
	Over   []uint64 // ids whose prefill is over
	Ended  []uint64 // ids that have ended
}

// HintBound is a request that was just bound.
type HintBound struct {
	ID           uint64 // the sender's own
	Key          Key    // where it went
	Age          time.Duration
	PromptTokens uint32
	CachedTokens uint32 // of these, expected in the endpoint's cache
	Blocks       uint32 // KV blocks that it adds, answer included

	// The prompt's last two full blocks. When both show in the endpoint's digest the prefill is over. 0: it can't be told so.
	Last, Before uint64

	// Blocks First to Count-1 of the prompt, counted in blocks of the endpoint, are new there; Points are the low halves of
	// the hashes of some of them, at the places that both sides know: see package hint.
	First, Count uint32
	Points       []uint32 // at most MaxHintPoints

	Told bool // the end of its prefill will be told in another hint, or shows by Last
}

// Append encodes the message at the end of dst. The caller keeps it within MaxPacketBytes by
// HintBytes, HintBoundBytes and HintIDBytes.
func (h *Hint) Append(dst []byte, node uint64) []byte {
	dst = appendHeader(dst, TypeHint, node)
	dst = binary.AppendUvarint(dst, h.Number)
	dst = binary.AppendUvarint(dst, uint64(h.Held))
	for i := range h.Bound {
		dst = appendField(dst, 1, h.Bound[i].append)
	}
	for tag, ids := range [2][]uint64{h.Over, h.Ended} {
		if len(ids) > 0 {
			dst = appendField(dst, uint8(2+tag), func(b []byte) []byte {
				for _, id := range ids {
					b = binary.AppendUvarint(b, id)
				}
				return b
			})
		}
	}
	return dst
}

// Bytes that the parts of a HINT take at most: whoever adds up the parts of one knows that it fits.
const (
	HintBytes      = headerBytes + binary.MaxVarintLen64 + binary.MaxVarintLen32 + 2*3 // of one without entries
	HintIDBytes    = binary.MaxVarintLen64                                             // of an id that is over or has ended
	hintBoundBytes = 3 + binary.MaxVarintLen64 + 10 + 3 + 4 + 4 + 5 + 16 + 5 + 5 + 1
)

// HintBoundBytes is what a bound request with that many points takes at most.
func HintBoundBytes(points int) int { return hintBoundBytes + 4*points }

func (b *HintBound) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, b.ID)
	dst = appendKey(dst, b.Key)
	dst = appendDuration(dst, b.Age, time.Millisecond, maxHintAge)
	dst = binary.AppendUvarint(dst, uint64(min(b.PromptTokens, MaxHintTokens)))
	dst = binary.AppendUvarint(dst, uint64(min(b.CachedTokens, b.PromptTokens, MaxHintTokens)))
	dst = binary.AppendUvarint(dst, uint64(b.Blocks))
	dst = binary.LittleEndian.AppendUint64(dst, b.Last)
	dst = binary.LittleEndian.AppendUint64(dst, b.Before)
	dst = binary.AppendUvarint(dst, uint64(b.First))
	dst = binary.AppendUvarint(dst, uint64(b.Count))
	dst = binary.AppendUvarint(dst, uint64(len(b.Points)))
	for _, p := range b.Points {
		dst = binary.LittleEndian.AppendUint32(dst, p)
	}
	bits := byte(0)
	if b.Told {
		bits |= 1
	}
	return append(dst, bits)
}

func (h *Hint) decode(r *reader) {
	h.Number = r.uv()
	h.Held = r.uv32("held requests")
	r.fields(func(tag uint8, v *reader) {
		switch tag {
		case 1:
			h.Bound = append(h.Bound, v.hintBound())
		case 2:
			h.Over = v.ids()
		case 3:
			h.Ended = v.ids()
		}
	})
}

func (r *reader) hintBound() HintBound {
	b := HintBound{
		ID: r.uv(), Key: r.key(), Age: r.duration("age", time.Millisecond, maxHintAge),
		PromptTokens: uint32(r.uvMax("prompt tokens", MaxHintTokens)),
		CachedTokens: uint32(r.uvMax("cached tokens", MaxHintTokens)),
		Blocks:       uint32(r.uvMax("blocks", math.MaxInt32)),
		Last:         r.u64(), Before: r.u64(),
		First: uint32(r.uvMax("first block", MaxHintTokens)), Count: uint32(r.uvMax("blocks of the prompt", MaxHintTokens)),
	}
	points := r.uvMax("points", MaxHintPoints)
	switch {
	case r.err != nil:
		return b
	case b.CachedTokens > b.PromptTokens:
		r.fail(fmt.Errorf("%d of %d tokens cached: %w", b.CachedTokens, b.PromptTokens, ErrInvalid))
	case b.First > b.Count:
		r.fail(fmt.Errorf("new from block %d of %d: %w", b.First, b.Count, ErrInvalid))
	case 4*points > uint64(len(r.b)):
		r.fail(ErrShort)
	default:
		if points > 0 {
			b.Points = make([]uint32, points)
		}
		for i := range b.Points {
			b.Points[i] = r.u32()
		}
		b.Told = r.u8()&1 != 0
	}
	return b
}

// ids reads ids up to the end of the field.
func (r *reader) ids() []uint64 {
	var ids []uint64
	for r.err == nil && len(r.b) > 0 {
		ids = append(ids, r.uv())
	}
	return ids
}
