// Package blockset keeps what one engine (one data-parallel rank) holds in its KV
// cache: it applies the engine's events and tells a [Sink] which canonical blocks can
// be hit. It owns the copy counts, the mapping from engine hash to canonical hash,
// orphans, tiers, the prefix closure, the order of events ([Sequencer]) and the
// snapshot. It does no I/O, reads no clock and keeps no token ids.
//
//	set := blockset.New(blockset.Config{Hasher: blockhash.NewHasher(seed), Blocks: 12_000}, sink)
//	feed := blockset.Feed{Set: set, Seq: blockset.NewSequencer(blockset.SequencerConfig{CanReplay: true})}
//	out := feed.Do(now, feed.Seq.Connected())   // out.Ask: ask the engine to replay from out.From
//	out = feed.Do(now, feed.Seq.Live(seq, payload))
//
// # Presence
//
// An engine stores equal blocks twice when it computes them twice and reports each
// removal, so copies are counted per engine hash and tier; a plain set is wrong in one
// of eight lookups. Several engine hashes can name one canonical block (an adapter
// loaded again from another path): a block is resident while any of them has a copy.
//
// A block can be hit only if all its ancestors are resident as well. The sink sees
// this prefix closure, not the raw events: GPU within GPU, All over all tiers. Changes
// are netted over one Apply; an ancestor is set before and cleared after its
// descendants.
package blockset

import (
	"iter"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Tier is where a block is looked for.
type Tier uint8

// The tiers of a digest.
const (
	GPU Tier = iota // resident in the GPU with all ancestors
	All             // resident in any tier with all ancestors
	numTiers
)

// Sink is told of every change of the prefix closure. Calls come from within the
// Set's methods.
type Sink interface {
	Set(t Tier, h blockhash.Hash)
	Clear(t Tier, h blockhash.Hash)
}

// Config fixes a Set's limits.
type Config struct {
	// Hasher computes canonical hashes with the pool's seed.
	Hasher blockhash.Hasher
	// Blocks is the engine's number of GPU blocks, 0 if not known (yet: SetBlocks).
	// More copies than that make the set suspect.
	Blocks int
	// MaxBlocks bounds the blocks kept in memory (about 200 bytes each), resident or
	// not; stores beyond it are dropped and make the set partial. 0 means 1<<20.
	MaxBlocks int
	// MaxOrphans bounds blocks whose parent was never seen, in the same way. 0 means
	// 1<<16.
	MaxOrphans int
	// FullReports says that requests ask for kv_cache_report_mode "full": the engine
	// then also reports reused prefixes as stores from block 0, which look like real
	// second copies. True sets the copies of such blocks to at least one instead of
	// adding, at the price of missing real second copies. Reports that are followed by
	// the request's own new blocks in the same batch are recognised in any case.
	FullReports bool
	// LoRANames gives adapters by number, for engines that report only numbers (vLLM
	// before v0.14). Others are told apart but match no request.
	LoRANames map[int64]string
	// LowerTTL forgets lower-tier blocks this long after their last store while the
	// engine has never reported a removal from a lower tier (LMCache and Mooncake
	// never do). 0 means 30 minutes.
	LowerTTL time.Duration
}

// Set is one engine's cache. It is not safe for concurrent use.
type Set struct {
	cfg  Config
	sink Sink

	entries  []entry // by engine hash; entry 0 is unused so that 0 means none
	freeEnts []int32
	byHash   map[uint64]int32
	waiting  map[uint64]int32 // parent's engine hash -> first orphan
	orphans  int

	nodes     []node // by canonical hash; node 0 is the root of all prompts
	freeNodes []int32
	byCanon   map[blockhash.Hash]int32
	lru       list  // leaves of the GPU tier, oldest use first
	victim    int64 // latest use of a block since evicted, unix nanoseconds

	dirty []int32 // nodes whose residency may have changed since the last flush
	stack []int32
	sets  []int32
	clrs  []int32

	blockSize     int
	group         int // the group that counts, -1 until known from a spec kind
	kinds         map[int]bool
	lowerRemovals bool
	partial       bool
	suspect       bool
	stats         Stats
}

// Stats are sizes and counters. Counters never fall, not even by Reset.
type Stats struct {
	Blocks  int           // canonical blocks resident in the GPU, reachable or not
	Visible [numTiers]int // blocks in the prefix closure, by tier
	Copies  int           // physical GPU blocks that hold a hash, orphans included
	Lower   int           // copies in lower tiers
	Orphans int           // engine hashes whose parent is unknown

	Stored, Removed, Cleared uint64 // hashes; hashes; events
	UnknownRemoved           uint64 // removals of hashes that are not held
	Unpaired                 uint64 // stored hashes without tokens, or sparse, that are not held
	OtherGroup               uint64 // hashes of groups that do not count
	OtherSize                uint64 // hashes of another block size
	Reported                 uint64 // stored hashes taken for a report of a reused prefix
	Conflicts                uint64 // engine hashes that came to mean another block: the newest meaning holds
	Dropped                  uint64 // stored hashes beyond MaxBlocks or MaxOrphans
	Expired                  uint64 // lower-tier copies past LowerTTL
}

// New returns an empty Set that reports to sink.
func New(cfg Config, sink Sink) *Set {
	if cfg.MaxBlocks == 0 {
		cfg.MaxBlocks = 1 << 20
	}
	if cfg.MaxOrphans == 0 {
		cfg.MaxOrphans = 1 << 16
	}
	if cfg.LowerTTL == 0 {
		cfg.LowerTTL = 30 * time.Minute
	}
	s := &Set{cfg: cfg, sink: sink}
	s.Reset()
	return s
}

// Reset forgets everything, as after a restart of the engine. The sink is not told:
// the caller starts a new epoch.
func (s *Set) Reset() {
	s.entries, s.freeEnts = make([]entry, 1), nil
	s.byHash, s.waiting = map[uint64]int32{}, map[uint64]int32{}
	s.nodes, s.freeNodes = make([]node, 1), nil
	s.nodes[0].visible = [numTiers]bool{true, true}
	s.byCanon = map[blockhash.Hash]int32{}
	s.lru, s.victim = list{}, 0
	s.dirty = s.dirty[:0]
	s.orphans, s.blockSize, s.group, s.kinds = 0, 0, -1, map[int]bool{}
	s.lowerRemovals, s.partial, s.suspect = false, false, false
	s.stats.Blocks, s.stats.Copies, s.stats.Lower, s.stats.Orphans = 0, 0, 0, 0
	s.stats.Visible = [numTiers]int{}
}

// SetBlocks tells the engine's number of GPU blocks; 0 means not known.
func (s *Set) SetBlocks(n int) {
	s.cfg.Blocks = n
	s.checkSum()
}

// BlockSize is the engine's block size in tokens, 0 until a block was stored.
func (s *Set) BlockSize() int { return s.blockSize }

// Partial reports that blocks may be missing (stored before the reader joined, or
// beyond a limit): the set under-reports.
func (s *Set) Partial() bool { return s.partial }

// Suspect reports that the set may claim blocks that are gone: removals were lost, or
// there are more copies than the engine has blocks.
func (s *Set) Suspect() bool { return s.suspect }

// MarkPartial and MarkSuspect hold until Reset or until the engine clears its cache.
func (s *Set) MarkPartial() { s.partial = true }

// MarkSuspect: see MarkPartial.
func (s *Set) MarkSuspect() { s.suspect = true }

// Stats returns the current sizes and counters.
func (s *Set) Stats() Stats {
	st := s.stats
	st.Orphans = s.orphans
	return st
}

// Match returns how many leading blocks of chain can be hit in a tier.
func (s *Set) Match(t Tier, chain []blockhash.Hash) int {
	for i, h := range chain {
		if n := s.byCanon[h]; n == 0 || !s.nodes[n].visible[t] {
			return i
		}
	}
	return len(chain)
}

// Visible yields the prefix closure of a tier, in no particular order. The Set must
// not change meanwhile.
func (s *Set) Visible(t Tier) iter.Seq[blockhash.Hash] {
	return func(yield func(blockhash.Hash) bool) {
		for i := 1; i < len(s.nodes); i++ {
			if n := &s.nodes[i]; n.live && n.visible[t] && !yield(n.canon) {
				return
			}
		}
	}
}

// Copies yields each engine hash held with its number of copies in the GPU (tier GPU)
// or in all tiers together (All), orphans included.
func (s *Set) Copies(t Tier) iter.Seq2[uint64, int] {
	return func(yield func(uint64, int) bool) {
		for i := 1; i < len(s.entries); i++ {
			e := &s.entries[i]
			n := int(e.gpu)
			if t == All {
				n += int(e.low)
			}
			if n > 0 && !yield(e.hash, n) {
				return
			}
		}
	}
}

// VictimIdle estimates how long the next block to be evicted has been unused, 0 if
// nothing is held. Engines evict the least recently used block; a block counts as used
// when it or a block after it is stored. Hits emit no event, but evictions tell of
// them: what outlives an evicted block was used after it.
func (s *Set) VictimIdle(now time.Time) time.Duration {
	if s.lru.front == 0 {
		return 0
	}
	used := max(s.nodes[s.lru.front].used, s.victim)
	return max(0, time.Duration(now.UnixNano()-used))
}
