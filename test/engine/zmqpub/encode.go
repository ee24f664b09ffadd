package zmqpub

import (
	"encoding/binary"
	"math"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

// Form selects among the encodings that vLLM has used. The zero value is that of
// vLLM 0.24 and later with default settings.
type Form struct {
	ArrayEvents bool // events as arrays, as up to vLLM 0.23; else maps
	BytesHashes bool // 32-byte digests (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0); else their low 64 bits
}

// AppendBatch appends the MessagePack form of one batch: [ts, events, rank], ts
// in seconds since 1970.
//
// Field order and presence follow msgspec's encoding of vLLM's classes
// (BlockStored 12 long as an array, 11 keys as a map; both seen on real engines,
// 0.22.1 and 0.32.0).
func (f Form) AppendBatch(b []byte, ts float64, rank int, events []pool.Event) []byte {
	b = appendArray(b, 3)
	b = binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(ts))
	b = appendArray(b, len(events))
	for i := range events {
		b = f.appendEvent(b, &events[i])
	}
	return appendUint(b, uint64(rank))
}

func (f Form) appendEvent(b []byte, ev *pool.Event) []byte {
	switch ev.Kind {
	case pool.Stored:
		return f.appendStored(b, ev)
	case pool.Removed:
		b = f.appendTag(b, "BlockRemoved", 3)
		b = f.appendHashes(f.appendKey(b, "block_hashes"), ev.Hashes)
		b = appendString(f.appendKey(b, "medium"), "GPU")
		return appendUint(f.appendKey(b, "group_idx"), 0)
	default:
		return f.appendTag(b, "AllBlocksCleared", 0)
	}
}

func (f Form) appendStored(b []byte, ev *pool.Event) []byte {
	fields := 10
	if f.ArrayEvents {
		fields = 11 // a map leaves out the sliding window of a plain model
	}
	b = f.appendTag(b, "BlockStored", fields)
	b = f.appendHashes(f.appendKey(b, "block_hashes"), ev.Hashes)
	b = f.appendKey(b, "parent_block_hash")
	if ev.Parent != nil {
		b = f.appendHash(b, ev.Parent)
	} else {
		b = append(b, msgNil)
	}
	b = appendArray(f.appendKey(b, "token_ids"), len(ev.Tokens))
	for _, t := range ev.Tokens {
		b = appendUint(b, uint64(t))
	}
	b = appendUint(f.appendKey(b, "block_size"), uint64(ev.BlockSize))
	b = f.appendKey(b, "lora_id")
	if ev.Adapter != nil {
		b = appendUint(b, uint64(ev.Adapter.ID))
	} else {
		b = append(b, msgNil)
	}
	b = appendString(f.appendKey(b, "medium"), "GPU")
	b = f.appendKey(b, "lora_name")
	if ev.Adapter != nil {
		b = appendString(b, ev.Adapter.Name)
	} else {
		b = append(b, msgNil)
	}
	b = appendArray(f.appendKey(b, "extra_keys"), len(ev.ExtraKeys))
	for _, keys := range ev.ExtraKeys {
		b = appendKeys(b, keys)
	}
	b = appendUint(f.appendKey(b, "group_idx"), 0)
	b = appendString(f.appendKey(b, "kv_cache_spec_kind"), "full_attention")
	if f.ArrayEvents {
		b = append(b, msgNil) // kv_cache_spec_sliding_window
	}
	return b
}

func appendKeys(b []byte, keys []string) []byte {
	if len(keys) == 0 {
		return append(b, msgNil)
	}
	b = appendArray(b, len(keys))
	for _, k := range keys {
		b = appendString(b, k)
	}
	return b
}

// appendTag starts an event of the given number of fields besides its tag.
func (f Form) appendTag(b []byte, tag string, fields int) []byte {
	if f.ArrayEvents {
		b = appendArray(b, fields+1)
	} else {
		b = append(b, 0x80|byte(fields+1)) // fixmap, at most 15 pairs
	}
	return appendString(f.appendKey(b, "type"), tag)
}

func (f Form) appendKey(b []byte, key string) []byte {
	if f.ArrayEvents {
		return b
	}
	return appendString(b, key)
}

func (f Form) appendHashes(b []byte, hashes []pool.Digest) []byte {
	b = appendArray(b, len(hashes))
	for i := range hashes {
		b = f.appendHash(b, &hashes[i])
	}
	return b
}

func (f Form) appendHash(b []byte, d *pool.Digest) []byte {
	if !f.BytesHashes {
		return appendUint(b, d.Low64())
	}
	return append(append(b, 0xc4, byte(len(d))), d[:]...)
}

const msgNil = 0xc0

func appendArray(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	default:
		return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
	}
}

func appendString(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n <= math.MaxUint8:
		b = append(b, 0xd9, byte(n))
	case n <= math.MaxUint16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}

// appendUint writes the shortest form, as msgspec does.
func appendUint(b []byte, n uint64) []byte {
	switch {
	case n < 0x80:
		return append(b, byte(n))
	case n <= math.MaxUint8:
		return append(b, 0xcc, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
	}
}
