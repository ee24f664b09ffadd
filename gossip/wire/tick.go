package wire

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Ranges of durations on the wire; Append clamps, decoding refuses.
const (
	maxInterval   = time.Hour
	maxCost       = time.Hour
	maxVictimIdle = 366 * 24 * time.Hour
	maxLoadAge    = 24 * time.Hour
)

// Flags are the states of an endpoint that every tick carries. Unknown bits are
// kept.
type Flags uint16

// The flags.
const (
	Draining   Flags = 1 << iota // finishes what it has; send nothing new
	Asleep                       // engine sleeps; its KV memory is gone or released
	Partial                      // the digest may lack blocks that the engine holds
	Suspect                      // the digest may claim blocks that the engine lacks
	EngineDown                   // the agent does not reach its engine
)

// Load is what an engine's metrics say, and what the agent fitted from them.
type Load struct {
	Running, Waiting uint32 // requests
	BlocksTotal      uint32
	BlocksUsed       uint32 // referenced by running requests
	BlocksCached     uint32 // free, but holding a hash
	BlocksFree       uint32 // never used, or emptied
	// VictimIdle is how long the blocks that would be evicted next have been unused.
	VictimIdle time.Duration
	// Prefill of n new tokens on c cached ones takes
	// PrefillOverhead + PrefillPerToken*n + PrefillQuadratic*n*(2c+n).
	PrefillOverhead  time.Duration
	PrefillPerToken  float64 // seconds a token
	PrefillQuadratic float64 // seconds a token²
	// A decode step takes DecodeStep + DecodePerToken * resident tokens.
	DecodeStep     time.Duration
	DecodePerToken float64 // seconds
	PrefillFitted  bool    // false: the prefill numbers are defaults
	HitTokens      uint64  // counters of the engine's prefix cache
	QueryTokens    uint64
	// Age is how old the reading was when the tick left, whole milliseconds, at least
	// one; 0: not said, as by builds before it was there.
	Age time.Duration
}

// Health is what the pod's GPUs say.
type Health struct {
	GPUs          uint8
	Fault         uint8   // gpu.Fault code, 0 none
	Slowdown      float32 // hardware or thermal: 1 none, 0.5 half speed
	MemUsedBytes  uint64
	MemTotalBytes uint64
	UtilPercent   uint8
	Known         bool // false: no GPU could be read
}

// Tick is one update of one stream. It fits MaxPacketBytes if its publisher kept
// the position lists short enough.
type Tick struct {
	Key         Key
	Epoch       uint64
	TickNo      uint64        // 1 is the first of an epoch; before it the digest is empty
	Interval    time.Duration // the next tick comes within it; whole milliseconds on the wire
	Flags       Flags
	InfoVersion uint32 // Info.Version now in force; 0 not said
	Load        Load
	HasLoad     bool
	Health      Health
	HasHealth   bool
	// Set and Clear hold bit positions by tier, ascending, without repeats and
	// disjoint.
	Set, Clear [Tiers][]uint32
	CRCs       []SegmentCRC
}

// SegmentCRC is the CRC32C of a segment as it stands after its tick.
type SegmentCRC struct {
	Tier    Tier
	Segment uint16
	CRC     uint32
}

const crcBytes = 7

// Append encodes the message at the end of dst.
func (t *Tick) Append(dst []byte, node uint64) []byte {
	dst = appendHeader(dst, TypeTick, node)
	dst = appendKey(dst, t.Key)
	dst = binary.AppendUvarint(dst, t.Epoch)
	dst = binary.AppendUvarint(dst, t.TickNo)
	dst = appendDuration(dst, t.Interval, time.Millisecond, maxInterval)
	dst = binary.AppendUvarint(dst, uint64(t.Flags))
	dst = binary.AppendUvarint(dst, uint64(t.InfoVersion))
	if t.HasLoad {
		dst = appendField(dst, 1, t.Load.append)
	}
	if t.HasHealth {
		dst = appendField(dst, 2, t.Health.append)
	}
	for tier := range t.Set {
		dst = appendPositionField(dst, uint8(3+2*tier), t.Set[tier])
		dst = appendPositionField(dst, uint8(4+2*tier), t.Clear[tier])
	}
	if len(t.CRCs) > 0 {
		dst = appendField(dst, 7, func(b []byte) []byte {
			b = binary.AppendUvarint(b, uint64(len(t.CRCs)))
			for _, c := range t.CRCs {
				b = append(b, byte(c.Tier))
				b = binary.LittleEndian.AppendUint16(b, c.Segment)
				b = binary.LittleEndian.AppendUint32(b, c.CRC)
			}
			return b
		})
	}
	return dst
}

func appendPositionField(dst []byte, tag uint8, positions []uint32) []byte {
	if len(positions) == 0 {
		return dst
	}
	return appendField(dst, tag, func(b []byte) []byte { return appendPositions(b, positions) })
}

func (t *Tick) decode(r *reader) {
	t.Key = r.key()
	t.Epoch = r.uv()
	t.TickNo = r.uv()
	t.Interval = r.duration("interval", time.Millisecond, maxInterval)
	t.Flags = Flags(r.uvMax("flags", 1<<16-1))
	t.InfoVersion = r.uv32("info version")
	r.fields(func(tag uint8, v *reader) {
		switch tag {
		case 1:
			t.HasLoad = true
			t.Load = v.load()
		case 2:
			t.HasHealth = true
			t.Health = v.health()
		case 3, 5:
			t.Set[(tag-3)/2] = v.positions()
		case 4, 6:
			t.Clear[(tag-4)/2] = v.positions()
		case 7:
			t.CRCs = v.crcs()
		}
	})
}

func (r *reader) crcs() []SegmentCRC {
	n := r.uv()
	if n > uint64(len(r.b)/crcBytes) {
		r.fail(ErrShort)
		return nil
	}
	if n == 0 {
		return nil // as if the field were absent
	}
	list := make([]SegmentCRC, n)
	for i := range list {
		list[i] = SegmentCRC{Tier: r.tier(), Segment: r.u16(), CRC: r.u32()}
	}
	return list
}

func (r *reader) tier() Tier {
	t := r.u8()
	if t >= Tiers {
		r.fail(fmt.Errorf("tier %d: %w", t, ErrInvalid))
	}
	return Tier(t)
}

func (l *Load) append(b []byte) []byte {
	for _, v := range [...]uint32{l.Running, l.Waiting, l.BlocksTotal, l.BlocksUsed, l.BlocksCached, l.BlocksFree} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	b = appendDuration(b, l.VictimIdle, time.Millisecond, maxVictimIdle)
	b = appendDuration(b, l.PrefillOverhead, time.Microsecond, maxCost)
	b = appendFloat(b, l.PrefillPerToken)
	b = appendFloat(b, l.PrefillQuadratic)
	b = appendDuration(b, l.DecodeStep, time.Microsecond, maxCost)
	b = appendFloat(b, l.DecodePerToken)
	b = binary.AppendUvarint(b, l.HitTokens)
	b = binary.AppendUvarint(b, l.QueryTokens)
	b = append(b, bit(l.PrefillFitted))
	if l.Age > 0 {
		b = appendDuration(b, l.Age, time.Millisecond, maxLoadAge)
	}
	return b
}

func (r *reader) load() Load {
	l := Load{
		Running: r.uv32("running"), Waiting: r.uv32("waiting"),
		BlocksTotal: r.uv32("total blocks"), BlocksUsed: r.uv32("used blocks"),
		BlocksCached: r.uv32("cached blocks"), BlocksFree: r.uv32("free blocks"),
		VictimIdle:       r.duration("victim idle time", time.Millisecond, maxVictimIdle),
		PrefillOverhead:  r.duration("prefill overhead", time.Microsecond, maxCost),
		PrefillPerToken:  r.f32("prefill time a token"),
		PrefillQuadratic: r.f32("quadratic prefill time"),
		DecodeStep:       r.duration("decode step", time.Microsecond, maxCost),
		DecodePerToken:   r.f32("decode time a token"),
		HitTokens:        r.uv(), QueryTokens: r.uv(),
		PrefillFitted: r.u8()&1 != 0,
	}
	if len(r.b) > 0 {
		l.Age = r.duration("age of the load", time.Millisecond, maxLoadAge)
	}
	return l
}

func (h *Health) append(b []byte) []byte {
	b = append(b, h.GPUs, h.Fault)
	b = appendFloat(b, float64(h.Slowdown))
	b = binary.AppendUvarint(b, h.MemUsedBytes)
	b = binary.AppendUvarint(b, h.MemTotalBytes)
	return append(b, h.UtilPercent, bit(h.Known))
}

func (r *reader) health() Health {
	return Health{
		GPUs: r.u8(), Fault: r.u8(), Slowdown: float32(r.f32("slowdown")),
		MemUsedBytes: r.uv(), MemTotalBytes: r.uv(),
		UtilPercent: r.u8(), Known: r.u8()&1 != 0,
	}
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
