// Package kvevent decodes the KV-cache events of vLLM and SGLang: one MessagePack
// payload in, one [Batch] of typed events out. It also reads the ZMQ frames around
// a payload ([ParseLive], [ParseReplay]). It keeps no state and knows no sequence
// rules (package blockset does).
//
// Accepted shapes, told apart value by value and never by engine version:
//
//	batch  [ts, events]  [ts, events, rank, ...]  {"ts", "events", "data_parallel_rank"}
//	event  ["BlockStored", hashes, parent, tokens, size, lora id, medium, lora name,
//	        extra keys, group, kind, window, ...]   (short and long arrays)
//	event  {"type": "BlockStored", "block_hashes": ..., ...}   (keys in any order)
//
// SGLang sends a map {"cache_salt", "session_id"} where vLLM has the LoRA name.
//
// Input is hostile until proven otherwise. A payload is first walked once without
// recursion: nesting over 16 levels, lengths beyond the bytes received and anything
// that is not MessagePack drop the batch. After that a damaged event costs only
// itself: it is left out and counted in [Batch.Skipped]. Memory stays within a small
// multiple of the payload.
//
//	b, err := kvevent.Decode(payload)
//	if err != nil { // count kvevent.ReasonOf(err), treat the batch as lost: a gap
//	}
//	for _, e := range b.Events {
//		switch e := e.(type) {
//		case *kvevent.Stored:
//		case *kvevent.Removed:
//		case *kvevent.Cleared:
//		}
//	}
package kvevent

import (
	"errors"
	"strings"
)

// Batch is what one payload holds: the events of one scheduler step, in order.
type Batch struct {
	// TS is the engine's clock in seconds since 1970, or 0 when it sent none that
	// can be used. Informative only: some emitters send milliseconds.
	TS float64
	// Rank is the data-parallel rank, or -1 when it is not given or out of range.
	Rank int
	// Events holds *Stored, *Removed and *Cleared in the order they must be applied.
	Events []Event
	// Skipped counts the events left out, by reason.
	Skipped []Skip
	// Anomalies names oddities of events and batch that cost nothing, each once.
	Anomalies []Reason
}

// Event is one of *Stored, *Removed, *Cleared.
type Event interface{ event() }

// Stored says that blocks became resident in a tier.
type Stored struct {
	// Hashes are the engine's block hashes in chain order, normalised to the low 64
	// bits (bytes: the last 8, big-endian; negative integers: two's complement).
	Hashes []uint64
	// Parent is the hash before Hashes[0]; HasParent is false at a prompt's start.
	Parent    uint64
	HasParent bool
	// Tokens are the token ids of all blocks, BlockSize for each hash unless
	// [Stored.Sparse]. Empty for placeholders of lower tiers.
	Tokens []uint32
	// Bigram is set when token_ids held pairs [t, next] (SGLang with EAGLE); Tokens
	// then holds the first of each pair.
	Bigram bool
	// BlockSize is in tokens; 0 only without Tokens.
	BlockSize int
	// LoRAID is the adapter's number, 0 when there is none.
	LoRAID   int64
	LoRAName string
	// Medium as sent; compare with [IsDevice]. Empty before vLLM v0.10.2.
	Medium string
	// ExtraKeys has one entry a hash (nil: none), or is nil when not sent or when its
	// length differs from Hashes.
	ExtraKeys [][]ExtraKey
	// Group is the KV cache group of a hybrid model, -1 when not sent (0 is meant).
	Group int
	// SpecKind is e.g. "full_attention", empty when not sent.
	SpecKind      string
	SlidingWindow int64
	Locality      string
	Ownership     string
	SessionID     string
	// CacheSalt is SGLang's; vLLM puts the salt into ExtraKeys.
	CacheSalt string
}

// Sparse reports that Tokens do not cut into one slice a hash (sliding-window,
// Mamba and masked groups leave out blocks): hashes cannot be paired with tokens.
func (s *Stored) Sparse() bool {
	return len(s.Tokens) > 0 && len(s.Tokens) != s.BlockSize*len(s.Hashes)
}

// ExtraKind says which form an [ExtraKey] had on the wire. Elements carry no label:
// which string is the LoRA name, a salt or an image shows only from the context.
type ExtraKind uint8

// The forms of extra keys (vLLM v1/core/kv_cache_utils.py, generate_block_hash_extra_keys).
const (
	// ExtraText is a string: LoRA name, cache salt, or an image before v0.19.0.
	ExtraText ExtraKind = 1 + iota
	// ExtraItem is [identifier, offset]: a multimodal item, its offset in tokens
	// from the block's start (negative if it began earlier).
	ExtraItem
	// ExtraBytes is the digest of prompt embeds.
	ExtraBytes
	// ExtraInt is an integer: a LoRA number or a look-ahead token.
	ExtraInt
)

// ExtraKey is one thing besides tokens that entered a block's hash.
type ExtraKey struct {
	Kind ExtraKind
	Text string // raw bytes for ExtraBytes
	Num  int64
}

// Removed says that one copy of each hash left a tier.
type Removed struct {
	Hashes    []uint64
	Medium    string
	Group     int // -1 when not sent
	Locality  string
	Ownership string
}

// Cleared says that all blocks of the device tier are gone.
type Cleared struct{}

func (*Stored) event()  {}
func (*Removed) event() {}
func (*Cleared) event() {}

// IsDevice reports whether a medium is the GPU's own memory: "GPU" in any case, or
// none (before vLLM v0.10.2). Every other name, known or not, is a lower tier.
func IsDevice(medium string) bool {
	return medium == "" || strings.EqualFold(medium, "GPU")
}

// Skip counts events left out for one reason.
type Skip struct {
	Reason Reason
	Count  int
	// First is the index of the first such event in the batch.
	First int
	// Tag is the first such event's type, cut to 64 bytes and made valid UTF-8, for
	// ReasonUnknownTag only. Never use it as a metric label.
	Tag string
}

// Reason is a short fixed name (usable as a metric label) of what was wrong.
type Reason string

// Error makes a Reason an error; Decode and the frame parsers return it wrapped.
func (r Reason) Error() string { return string(r) }

// Why a whole batch is dropped.
const (
	ReasonEmpty     Reason = "empty"      // no bytes
	ReasonSyntax    Reason = "syntax"     // not MessagePack
	ReasonTruncated Reason = "truncated"  // ends inside a value
	ReasonClaim     Reason = "claim"      // a 32-bit length beyond the bytes received
	ReasonDepth     Reason = "depth"      // nested over 16 levels
	ReasonBatchForm Reason = "batch-form" // neither [ts, events, ...] nor {"events": ...}
)

// Why one event is skipped.
const (
	ReasonEventForm  Reason = "event-form"  // neither array nor map, or without a tag
	ReasonUnknownTag Reason = "unknown-tag" // an event type of a later engine
	ReasonKey        Reason = "key"         // map keys doubled, too many, or not strings
	ReasonArity      Reason = "arity"       // required fields missing
	ReasonHash       Reason = "hash"        // a hash that is neither integer nor 8 to 4096 bytes
	ReasonCycle      Reason = "cycle"       // a hash twice, or its own parent
	ReasonTokens     Reason = "tokens"      // token ids that are not 32-bit unsigned integers
	ReasonBlockSize  Reason = "block-size"  // negative, over 2^20, or 0 with tokens
	ReasonType       Reason = "type"        // another field of a wrong type or size
)

// What is odd but harmless.
const (
	OddTrailing  Reason = "trailing-bytes" // bytes behind the batch, ignored
	OddTimestamp Reason = "timestamp"      // ts unusable
	OddRank      Reason = "rank"           // rank unusable
	OddExtraKeys Reason = "extra-keys"     // not one entry a hash, ignored
)

// ReasonOf returns the Reason inside err, or "" if there is none.
func ReasonOf(err error) Reason {
	var r Reason
	errors.As(err, &r)
	return r
}
