package inspect

import (
	"encoding/hex"
	"fmt"

	"github.com/grapevine-llm/grapevine/agent/kvevent"
)

// Event is one decoded event. Field names are those of vLLM's map form; hashes are the
// low 64 bits as 16 hex digits.
type Event struct {
	Line  *int    `json:"line,omitempty"` // of the capture, from 0
	Seq   uint64  `json:"seq"`
	Topic string  `json:"topic,omitempty"`
	TS    float64 `json:"ts,omitempty"` // seconds since 1970, the engine's clock
	Rank  *int    `json:"data_parallel_rank,omitempty"`

	Type          string   `json:"type"` // BlockStored, BlockRemoved, AllBlocksCleared
	Hashes        []string `json:"block_hashes,omitempty"`
	Parent        string   `json:"parent_block_hash,omitempty"`
	Tokens        []uint32 `json:"token_ids,omitempty"`
	BlockSize     int      `json:"block_size,omitempty"`
	Bigram        bool     `json:"bigram,omitempty"`
	Sparse        bool     `json:"sparse,omitempty"` // tokens cannot be paired with hashes
	LoRAID        int64    `json:"lora_id,omitempty"`
	LoRAName      string   `json:"lora_name,omitempty"`
	Medium        string   `json:"medium,omitempty"`
	ExtraKeys     [][]any  `json:"extra_keys,omitempty"`
	Group         *int     `json:"group_idx,omitempty"`
	SpecKind      string   `json:"kv_cache_spec_kind,omitempty"`
	SlidingWindow int64    `json:"kv_cache_spec_sliding_window,omitempty"`
	Locality      string   `json:"locality,omitempty"`
	Ownership     string   `json:"ownership,omitempty"`
	SessionID     string   `json:"session_id,omitempty"`
	CacheSalt     string   `json:"cache_salt,omitempty"`
}

// Notice names something about the stream that is no event.
type Notice struct {
	Line    *int   `json:"line,omitempty"`
	Seq     uint64 `json:"seq"`
	Notice  string `json:"notice"` // gap, late start, restart, replay, duplicate, batch dropped, events skipped, ...
	Reason  string `json:"reason,omitempty"`
	Count   int    `json:"count,omitempty"`
	Missing uint64 `json:"missing,omitempty"` // batches
	Detail  string `json:"detail,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

func lineOf(m Message) *int {
	if m.Line < 0 {
		return nil
	}
	return &m.Line
}

func describe(m Message, b kvevent.Batch, i int) Event {
	e := Event{Line: lineOf(m), Seq: m.Seq, Topic: m.Topic, TS: b.TS}
	if b.Rank >= 0 {
		e.Rank = &b.Rank
	}
	switch ev := b.Events[i].(type) {
	case *kvevent.Stored:
		e.Type, e.Hashes, e.Tokens, e.BlockSize = "BlockStored", hashes(ev.Hashes), ev.Tokens, ev.BlockSize
		if ev.HasParent {
			e.Parent = fmt.Sprintf("%016x", ev.Parent)
		}
		e.Bigram, e.Sparse = ev.Bigram, ev.Sparse()
		e.LoRAID, e.LoRAName, e.Medium, e.Group = ev.LoRAID, ev.LoRAName, ev.Medium, group(ev.Group)
		e.ExtraKeys = extraKeys(ev.ExtraKeys)
		e.SpecKind, e.SlidingWindow = ev.SpecKind, ev.SlidingWindow
		e.Locality, e.Ownership, e.SessionID, e.CacheSalt = ev.Locality, ev.Ownership, ev.SessionID, ev.CacheSalt
	case *kvevent.Removed:
		e.Type, e.Hashes, e.Medium, e.Group = "BlockRemoved", hashes(ev.Hashes), ev.Medium, group(ev.Group)
		e.Locality, e.Ownership = ev.Locality, ev.Ownership
	case *kvevent.Cleared:
		e.Type = "AllBlocksCleared"
	}
	return e
}

func group(g int) *int {
	if g < 0 {
		return nil
	}
	return &g
}

func hashes(hs []uint64) []string {
	out := make([]string, len(hs))
	for i, h := range hs {
		out[i] = fmt.Sprintf("%016x", h)
	}
	return out
}

// extraKeys writes keys as they were sent, bytes as {"hex": ...}; nil if there are none.
func extraKeys(keys [][]kvevent.ExtraKey) [][]any {
	out := make([][]any, len(keys))
	some := false
	for i, entry := range keys {
		for _, k := range entry {
			some = true
			var v any
			switch k.Kind {
			case kvevent.ExtraText:
				v = k.Text
			case kvevent.ExtraItem:
				v = []any{k.Text, k.Num}
			case kvevent.ExtraBytes:
				v = map[string]string{"hex": hex.EncodeToString([]byte(k.Text))}
			case kvevent.ExtraInt:
				v = k.Num
			}
			out[i] = append(out[i], v)
		}
	}
	if !some {
		return nil
	}
	return out
}
