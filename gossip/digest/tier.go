package digest

import (
	"iter"
	"math/bits"
	"slices"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// tier is one digest: its counters, and what of them has been published.
//
// A position waits to be sent while counting and published differ in it. queue
// orders the waiting positions by their last flip; it may also hold positions that
// flipped back and repeats, which compact takes out.
type tier struct {
	counting  *bloom.Counting
	published []uint64
	queue     []uint32
	compactAt int // length at which the queue is compacted on the way in
	seen      []uint64
}

const minCompact = 4096

func newTier(g bloom.Geometry) *tier {
	return &tier{
		counting:  bloom.NewCounting(g),
		published: make([]uint64, g.Buckets),
		seen:      make([]uint64, g.Buckets),
		compactAt: minCompact,
	}
}

func (s *tier) geometry() bloom.Geometry { return s.counting.Geometry() }

func (s *tier) set(h blockhash.Hash)   { s.push(s.counting.Add(h)) }
func (s *tier) clear(h blockhash.Hash) { s.push(s.counting.Remove(h)) }

func (s *tier) push(bucket uint32, flipped uint64) {
	for ; flipped != 0; flipped &= flipped - 1 {
		s.queue = append(s.queue, bucket*64+uint32(bits.TrailingZeros64(flipped)))
	}
	if len(s.queue) >= s.compactAt {
		s.compact()
		s.compactAt = max(minCompact, 2*len(s.queue))
	}
}

func (s *tier) reset() {
	s.counting.Reset()
	clear(s.published)
	s.queue = s.queue[:0]
}

// waits reports whether a position differs from what is published.
func (s *tier) waits(pos uint32) bool {
	return (s.counting.Words()[pos/64]^s.published[pos/64])>>(pos%64)&1 != 0
}

// pending counts the positions that wait.
func (s *tier) pending() int {
	n := 0
	if len(s.queue) > 0 {
		for i, w := range s.counting.Words() {
			n += bits.OnesCount64(w ^ s.published[i])
		}
	}
	return n
}

// compact leaves in the queue each waiting position once, where it flipped last.
func (s *tier) compact() {
	keep := len(s.queue)
	for i := len(s.queue) - 1; i >= 0; i-- {
		pos := s.queue[i]
		bit := uint64(1) << (pos % 64)
		if s.waits(pos) && s.seen[pos/64]&bit == 0 {
			s.seen[pos/64] |= bit
			keep--
			s.queue[keep] = pos
		}
	}
	s.queue = s.queue[:copy(s.queue, s.queue[keep:])]
	for _, pos := range s.queue {
		s.seen[pos/64] = 0
	}
}

// rebuild makes the counters anew from the exact set. Bits that only saturated
// counters held are cleared last.
func (s *tier) rebuild(blocks iter.Seq[blockhash.Hash]) {
	s.counting.Reset()
	for h := range blocks {
		s.counting.Add(h)
	}
	s.compact()
	for _, pos := range s.queue {
		s.seen[pos/64] |= 1 << (pos % 64)
	}
	for i, w := range s.counting.Words() {
		for ghosts := (w ^ s.published[i]) &^ s.seen[i]; ghosts != 0; ghosts &= ghosts - 1 {
			s.queue = append(s.queue, uint32(i*64+bits.TrailingZeros64(ghosts)))
		}
		s.seen[i] = 0
	}
}

// cheaperAsSegments reports whether the waiting positions take more bytes than the
// digest itself. What fits a burst never does.
func (s *tier) cheaperAsSegments() bool {
	const bitsPerFlip = 10 // measured in full packets of a filter for 40,000 blocks
	return len(s.queue)*bitsPerFlip/8 > max(s.geometry().Bytes(), burst*wire.MaxPacketBytes)
}

// publishAll takes the current bits for published: receivers will fetch segments.
func (s *tier) publishAll() {
	copy(s.published, s.counting.Words())
	s.queue = s.queue[:0]
}

// take moves the oldest positions of a compacted queue into the lists, as many as
// fit room bytes, and marks them as published. It returns how many, and the bytes
// that the lists take.
func (s *tier) take(room int, set, cleared *[]uint32) (n, size int) {
	n = min(len(s.queue), max(room, 0)) // a position takes more than 8 bits in all but the fullest ticks
	for n > 0 {
		s.split(n, set, cleared)
		size = wire.PositionsBytes(*set) + wire.PositionsBytes(*cleared)
		if size <= room {
			break
		}
		n = min(n-1, n*room/size)
	}
	if n <= 0 {
		*set, *cleared = nil, nil
		return 0, 0
	}
	for _, pos := range s.queue[:n] {
		s.published[pos/64] ^= 1 << (pos % 64)
	}
	s.queue = s.queue[:copy(s.queue, s.queue[n:])]
	return n, size
}

func (s *tier) split(n int, set, cleared *[]uint32) {
	*set, *cleared = (*set)[:0], (*cleared)[:0]
	words := s.counting.Words()
	for _, pos := range s.queue[:n] {
		if words[pos/64]>>(pos%64)&1 != 0 {
			*set = append(*set, pos)
		} else {
			*cleared = append(*cleared, pos)
		}
	}
	slices.Sort(*set)
	slices.Sort(*cleared)
}
