package blockset

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// A snapshot holds hashes and positions, no token ids. All numbers are varints unless
// a width is given (little-endian):
//
//	"GVBS", version byte 1, seed fingerprint u32
//	position: known byte, sequence, payload hash 2 x u64, process start (unix ns, signed)
//	flags byte: 1 partial, 2 suspect, 4 removals seen from lower tiers
//	block size, counting group + 1, time of the snapshot (unix ns, signed)
//	kinds: count, then group << 1 | full attention
//	nodes: count, then parent (distance back in this list, 0: root of all prompts),
//	       canonical hash u64, age of last use in ms; parents come first
//	entries: count, then engine hash u64, node (number in the list from 1, 0: orphan),
//	       GPU copies, lower copies; orphans add parent u64 and local hash u64
//	xxh3_64 of all before, u64
//
// A reader refuses versions it does not know: the cost is a replay or a cold start.
const (
	snapshotMagic   = "GVBS"
	snapshotVersion = 1
)

// Why a snapshot cannot be used. The set is left empty; start without it.
var (
	ErrSnapshotVersion = errors.New("not a snapshot of this version")
	ErrSnapshotSeed    = errors.New("snapshot was made with another hash seed")
	ErrSnapshotDamaged = errors.New("snapshot is damaged")
)

const (
	flagPartial = 1 << iota
	flagSuspect
	flagLowerRemovals
)

// AppendSnapshot appends the set and its position in the event stream to dst.
func (s *Set) AppendSnapshot(dst []byte, now time.Time, p Position) []byte {
	at := len(dst)
	le := binary.LittleEndian
	dst = append(dst, snapshotMagic...)
	dst = append(dst, snapshotVersion)
	dst = le.AppendUint32(dst, s.cfg.Hasher.Fingerprint())

	dst = append(dst, byteOf(p.Known, 1))
	dst = binary.AppendUvarint(dst, p.Seq)
	dst = le.AppendUint64(le.AppendUint64(dst, p.Sum.Hi), p.Sum.Lo)
	var start int64
	if !p.Start.IsZero() {
		start = p.Start.UnixNano()
	}
	dst = binary.AppendVarint(dst, start)

	dst = append(dst, byteOf(s.partial, flagPartial)|byteOf(s.suspect, flagSuspect)|byteOf(s.lowerRemovals, flagLowerRemovals))
	dst = binary.AppendUvarint(dst, uint64(s.blockSize))
	dst = binary.AppendUvarint(dst, uint64(s.group+1))
	dst = binary.AppendVarint(dst, now.UnixNano())
	dst = binary.AppendUvarint(dst, uint64(len(s.kinds)))
	for g, full := range s.kinds {
		dst = binary.AppendUvarint(dst, uint64(g)<<1|uint64(byteOf(full, 1)))
	}

	order := make([]int32, 0, len(s.byCanon))
	for i := 1; i < len(s.nodes); i++ {
		if s.nodes[i].live {
			order = append(order, int32(i))
		}
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(s.nodes[a].depth, s.nodes[b].depth) })
	number := make([]uint64, len(s.nodes)) // place in order, from 1
	dst = binary.AppendUvarint(dst, uint64(len(order)))
	for k, i := range order {
		n := &s.nodes[i]
		number[i] = uint64(k + 1)
		back := uint64(0)
		if n.parent != 0 {
			back = number[i] - number[n.parent]
		}
		dst = binary.AppendUvarint(dst, back)
		dst = le.AppendUint64(dst, uint64(n.canon))
		dst = binary.AppendUvarint(dst, uint64(max(0, now.UnixNano()-n.used))/uint64(time.Millisecond))
	}

	dst = binary.AppendUvarint(dst, uint64(len(s.byHash)))
	for i := 1; i < len(s.entries); i++ {
		e := &s.entries[i]
		if e.gpu == 0 && e.low == 0 {
			continue
		}
		dst = le.AppendUint64(dst, e.hash)
		dst = binary.AppendUvarint(dst, number[e.node])
		dst = binary.AppendUvarint(dst, uint64(e.gpu))
		dst = binary.AppendUvarint(dst, uint64(e.low))
		if e.node == 0 {
			dst = le.AppendUint64(dst, e.parent)
			dst = le.AppendUint64(dst, uint64(e.local))
		}
	}
	return le.AppendUint64(dst, xxh3.Hash(dst[at:]))
}

func byteOf(b bool, bit byte) byte {
	if b {
		return bit
	}
	return 0
}

// LoadSnapshot replaces the set's content, tells the sink what is visible and returns
// the position to resume from. now is the time of loading: lower tiers age from then.
// Errors wrap ErrSnapshotVersion, ErrSnapshotSeed or ErrSnapshotDamaged; the set is
// then empty and the sink was told nothing.
func (s *Set) LoadSnapshot(b []byte, now time.Time) (Position, error) {
	s.Reset()
	p, err := s.load(b, now.UnixNano())
	if err != nil {
		s.Reset()
		return Position{}, fmt.Errorf("load snapshot of %d bytes: %w", len(b), err)
	}
	s.checkSum()
	s.flush()
	return p, nil
}

func (s *Set) load(b []byte, now int64) (Position, error) {
	var p Position
	if len(b) < len(snapshotMagic)+1 || string(b[:len(snapshotMagic)]) != snapshotMagic || b[len(snapshotMagic)] != snapshotVersion {
		return p, ErrSnapshotVersion
	}
	body := len(b) - 8
	if body < 0 || xxh3.Hash(b[:body]) != binary.LittleEndian.Uint64(b[body:]) {
		return p, ErrSnapshotDamaged
	}
	r := reader{b: b[len(snapshotMagic)+1 : body]}
	if r.u32() != s.cfg.Hasher.Fingerprint() {
		return p, ErrSnapshotSeed
	}
	p.Known = r.byte() == 1
	p.Seq = r.uvarint(math.MaxUint64)
	p.Sum.Hi, p.Sum.Lo = r.u64(), r.u64()
	if start := r.varint(); start != 0 {
		p.Start = time.Unix(0, start)
	}
	flags := r.byte()
	s.partial, s.suspect, s.lowerRemovals = flags&flagPartial != 0, flags&flagSuspect != 0, flags&flagLowerRemovals != 0
	s.blockSize = int(r.uvarint(math.MaxInt32))
	s.group = int(r.uvarint(math.MaxInt32)) - 1
	saved := r.varint()
	for range r.uvarint(64) {
		k := r.uvarint(math.MaxInt32)
		s.kinds[int(k>>1)] = k&1 == 1
	}
	n := r.uvarint(uint64(s.cfg.MaxBlocks))
	for i := uint64(1); i <= n && !r.bad; i++ {
		back := r.uvarint(i - 1)
		var parent int32
		if back != 0 {
			parent = int32(i - back)
		}
		at := s.nodeFor(blockhash.Hash(r.u64()), parent)
		if at != int32(i) { // a hash twice
			r.bad = true
			break
		}
		s.nodes[at].used = saved - int64(r.uvarint(math.MaxInt64/uint64(time.Millisecond)))*int64(time.Millisecond)
	}
	for m := r.uvarint(uint64(s.cfg.MaxBlocks)); m > 0 && !r.bad; m-- {
		h, at := r.u64(), int32(r.uvarint(n))
		gpu, low := int32(r.uvarint(math.MaxInt32)), int32(r.uvarint(math.MaxInt32))
		if _, twice := s.byHash[h]; twice || gpu == 0 && low == 0 {
			r.bad = true
			break
		}
		i := s.newEntry(h)
		e := &s.entries[i]
		e.gpu, e.low, e.lowAt = gpu, low, now
		s.stats.Copies += int(gpu)
		s.stats.Lower += int(low)
		if at == 0 {
			s.wait(i, r.u64(), blockhash.Hash(r.u64()))
			continue
		}
		e.node = at
		s.nodes[at].entries++
		s.change(at, gpu, low, s.nodes[at].used)
	}
	if r.bad || len(r.b) != 0 || s.orphans > s.cfg.MaxOrphans {
		return p, ErrSnapshotDamaged
	}
	s.sortLRU()
	return p, nil
}

// sortLRU rebuilds the list, which loading fills in no useful order.
func (s *Set) sortLRU() {
	var leaves []int32
	for i := s.lru.front; i != 0; i = s.nodes[i].next {
		leaves = append(leaves, i)
	}
	slices.SortFunc(leaves, func(a, b int32) int { return cmp.Compare(s.nodes[a].used, s.nodes[b].used) })
	s.lru = list{}
	for _, i := range leaves {
		s.lruInsert(i)
	}
}

// reader reads what AppendSnapshot wrote; after the first fault everything is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || len(r.b) < n {
		r.bad, r.b = true, nil
		return make([]byte, n)
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte  { return r.take(1)[0] }
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

// uvarint reads a number of at most limit.
func (r *reader) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > limit {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}
