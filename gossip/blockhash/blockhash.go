// Package blockhash gives KV-cache blocks an identity that agent and gateway compute alike.
//
// A block is a fixed run of tokens. Its hash names the block and everything before it, so equal hashes mean equal
// prefixes, whatever engine, engine seed or engine version stores them:
//
//	local[i] = xxh3_64(token ids of block i as little-endian uint32, seed)
//	seq[0]   = local[0]                          for a plain request
//	seq[0]   = xxh3_64(root || local[0], seed)   when LoRA adapter or cache salt give the request a root
//	seq[i]   = xxh3_64(seq[i-1] || local[i], seed)
//
// with both hashes little-endian. Inputs other than tokens enter labelled with their kind: see [Hasher.Root] for what
// holds for the whole request and [Hasher.Touch] for what lies inside one block. The seed is obfuscation, not secrecy:
// xxh3 is no MAC.
//
// The package does not know which blocks an engine holds, nor how an engine hashes them itself.
package blockhash

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// Hash identifies a block and its whole prefix. Zero means "no block": the parent of a first block without a root.
type Hash uint64

// DefaultSeed is the seed of pools that configure none; other routers use the same value.
const DefaultSeed uint64 = 1337

// ExtraKind says what an [Extra] is. The numbers are part of the hash and never change.
type ExtraKind uint8

// The kinds of extras. The first two belong to the request, the others to the blocks that they lie in.
const (
	LoRA ExtraKind = 1 + iota
	CacheSalt
	Multimodal
	PromptEmbeds
)

// Extra is an input besides the tokens that the engine folds into its block hashes.
type Extra struct {
	Kind  ExtraKind
	Value string // adapter name, salt, or the identifier of the multimodal item or embedding
	// Offset is where the item starts, in tokens from the start of the block (negative: in an earlier block).
	// Only Multimodal and PromptEmbeds have one.
	Offset int32
}

// ofRequest reports whether extras of this kind hold for a whole request.
func (k ExtraKind) ofRequest() bool { return k == LoRA || k == CacheSalt }

// A Hasher hashes blocks with one seed. It is a small value, safe for concurrent use.
type Hasher struct{ seed uint64 }

// NewHasher returns a Hasher for the pool's seed.
func NewHasher(seed uint64) Hasher { return Hasher{seed} }

// First bytes of inputs that are not blocks; with them these inputs have odd lengths, which blocks and links never have.
const (
	labelRoot        = 'R'
	labelTouch       = 'T'
	labelFingerprint = "grapevine seed fingerprint "
)

// Fingerprint tells seeds apart without showing them: nodes compare it to name a seed mismatch.
func (h Hasher) Fingerprint() uint32 {
	return uint32(xxh3.HashStringSeed(labelFingerprint, h.seed))
}

// Root returns the parent of the first block: zero for a plain request. It looks at LoRA and CacheSalt only, in any
// order; an empty name or salt counts as none, as it does in vLLM (v1/core/kv_cache_utils.py).
func (h Hasher) Root(extras ...Extra) Hash {
	var space [8]uint64
	sums := space[:0]
	for _, e := range extras {
		if e.Kind.ofRequest() && e.Value != "" {
			e.Offset = 0
			sums = append(sums, h.extra(e))
		}
	}
	if len(sums) == 0 {
		return 0
	}
	return h.fold(labelRoot, 0, sums)
}

// Touch returns local changed by the items that lie in the block, in any order. It looks at Multimodal and PromptEmbeds
// only; without them it returns local.
func (h Hasher) Touch(local Hash, extras ...Extra) Hash {
	var space [8]uint64
	sums := space[:0]
	for _, e := range extras {
		if !e.Kind.ofRequest() {
			sums = append(sums, h.extra(e))
		}
	}
	if len(sums) == 0 {
		return local
	}
	return h.fold(labelTouch, local, sums)
}

// extra hashes one extra: kind, offset, length of the value, hash of the value.
func (h Hasher) extra(e Extra) uint64 {
	var b [21]byte
	b[0] = byte(e.Kind)
	binary.LittleEndian.PutUint32(b[1:], uint32(e.Offset))
	binary.LittleEndian.PutUint64(b[5:], uint64(len(e.Value)))
	binary.LittleEndian.PutUint64(b[13:], xxh3.HashStringSeed(e.Value, h.seed))
	return xxh3.HashSeed(b[:], h.seed)
}

// fold hashes label, local and the sorted sums of the extras.
func (h Hasher) fold(label byte, local Hash, sums []uint64) Hash {
	slices.Sort(sums)
	var space [1 + 8*9]byte
	b := append(space[:0], label)
	b = binary.LittleEndian.AppendUint64(b, uint64(local))
	for _, s := range sums {
		b = binary.LittleEndian.AppendUint64(b, s)
	}
	return Hash(xxh3.HashSeed(b, h.seed))
}

// Local hashes the tokens of one block, without its prefix.
func (h Hasher) Local(tokens []uint32) Hash {
	return Hash(hashTokens(tokens, h.seed))
}

// Next returns the hash of the block with the given local hash after parent. Without a parent (0) it is local itself.
func (h Hasher) Next(parent, local Hash) Hash {
	if parent == 0 {
		return local
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], uint64(parent))
	binary.LittleEndian.PutUint64(b[8:], uint64(local))
	return Hash(xxh3.HashSeed(b[:], h.seed))
}

// AppendChain appends the hashes of the full blocks of tokens, in prompt order, to dst: len(tokens)/blockSize of them
// (none if blockSize < 1). The first block's parent is root. It does not allocate if dst has room.
func (h Hasher) AppendChain(dst []Hash, root Hash, tokens []uint32, blockSize int) []Hash {
	if blockSize < 1 {
		return dst
	}
	n := len(tokens) / blockSize
	dst = slices.Grow(dst, n)
	for ; n > 0; n-- {
		root = h.Next(root, h.Local(tokens[:blockSize]))
		dst = append(dst, root)
		tokens = tokens[blockSize:]
	}
	return dst
}
