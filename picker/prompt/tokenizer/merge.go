package tokenizer

import "math/bits"

// pairTable maps two neighbouring ids to the rank of their merge and the id
// they merge into. Open addressing, at most half full; read only after load.
type pairTable struct {
	slots []pairSlot
	shift uint
}

type pairSlot struct {
	key uint64 // left<<32|right + 1; 0: empty
	val uint64 // rank<<32|id
}

func newPairTable(n int) pairTable {
	size := 1 << max(4, bits.Len(uint(n)*2))
	return pairTable{slots: make([]pairSlot, size), shift: uint(64 - bits.Len(uint(size-1)))}
}

func pairKey(left, right uint32) uint64 { return (uint64(left)<<32 | uint64(right)) + 1 }

func (p *pairTable) slot(key uint64) uint64 { return key * 0x9E3779B97F4A7C15 >> p.shift }

// add keeps the last of equal pairs, as the reference does.
func (p *pairTable) add(left, right, rank, id uint32) {
	key := pairKey(left, right)
	mask := uint64(len(p.slots) - 1)
	i := p.slot(key)
	for p.slots[i].key != 0 && p.slots[i].key != key {
		i = (i + 1) & mask
	}
	p.slots[i] = pairSlot{key, uint64(rank)<<32 | uint64(id)}
}

const noRank = ^uint32(0)

// get returns noRank if the two do not merge.
func (p *pairTable) get(left, right uint32) (rank, id uint32) {
	key := pairKey(left, right)
	mask := uint64(len(p.slots) - 1)
	for i := p.slot(key); ; i = (i + 1) & mask {
		switch s := &p.slots[i&mask]; s.key {
		case key:
			return uint32(s.val >> 32), uint32(s.val)
		case 0:
			return noRank, 0
		}
	}
}

// merger merges one word at a time: always the pair of lowest rank, the
// leftmost of equals. Short words are searched in a line, long ones through a
// heap, so that a megabyte without a space costs n log n.
type merger struct {
	ids   []uint32
	ranks []uint32 // ranks[i]: of the pair (i, i+1)
	into  []uint32 // the id that pair merges into
	prev  []int32
	next  []int32 // -1: last; -2: merged away
	heap  []uint64
	cache wordCache
}

// lineMax is the word length in bytes up to which the line search is faster.
const lineMax = 48

// hugeWord bounds what is kept for the next text.
const hugeWord = 1 << 16

func (m *merger) huge() bool { return cap(m.ids) > hugeWord }

// encode appends the ids of a word that no merge leaves. whole: the vocabulary
// itself is asked first.
func (m *merger) encode(t *model, dst []uint32, word string, whole bool) []uint32 {
	if len(word) > lineMax {
		if whole {
			if id, ok := t.whole[word]; ok {
				return append(dst, id)
			}
		}
		return m.long(t, dst, word)
	}
	c := m.cache.slot(word)
	if c != nil && c.is(word) {
		return append(dst, c.ids[:c.n]...)
	}
	from := len(dst)
	if id, ok := uint32(0), false; whole {
		if id, ok = t.whole[word]; ok {
			dst = append(dst, id)
		} else {
			dst = m.short(t, dst, word)
		}
	} else {
		dst = m.short(t, dst, word)
	}
	if c != nil {
		c.set(word, dst[from:])
	}
	return dst
}

func (m *merger) short(t *model, dst []uint32, word string) []uint32 {
	var ids, ranks, into [lineMax]uint32
	n := len(t.symbols(ids[:0], word))
	for i := range n - 1 {
		ranks[i], into[i] = t.merges.get(ids[i], ids[i+1])
	}
	for n > 1 {
		best, at := noRank, 0
		for i, r := range ranks[:n-1] {
			if r < best {
				best, at = r, i
			}
		}
		if best == noRank {
			break
		}
		ids[at] = into[at]
		n--
		copy(ids[at+1:n], ids[at+2:n+1])
		copy(ranks[at:n-1], ranks[at+1:n])
		copy(into[at:n-1], into[at+1:n])
		if at < n-1 {
			ranks[at], into[at] = t.merges.get(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1], into[at-1] = t.merges.get(ids[at-1], ids[at])
		}
	}
	return append(dst, ids[:n]...)
}

func (m *merger) long(t *model, dst []uint32, word string) []uint32 {
	m.ids = t.symbols(grow(m.ids, len(word))[:0], word)
	n := len(m.ids)
	if n == 0 {
		return dst
	}
	m.ranks, m.into = grow(m.ranks, n), grow(m.into, n)
	m.prev, m.next, m.heap = grow(m.prev, n), grow(m.next, n), m.heap[:0]
	for i := range n {
		m.prev[i], m.next[i] = int32(i)-1, int32(i)+1
	}
	m.next[n-1] = -1
	for i := range n {
		m.pair(t, int32(i))
	}
	for len(m.heap) > 0 {
		top := m.pop()
		at := int32(uint32(top))
		if m.next[at] < 0 || m.ranks[at] != uint32(top>>32) {
			continue // merged meanwhile
		}
		gone := m.next[at]
		m.ids[at] = m.into[at]
		m.next[at] = m.next[gone]
		if m.next[gone] >= 0 {
			m.prev[m.next[gone]] = at
		}
		m.next[gone] = -2
		m.pair(t, at)
		if m.prev[at] >= 0 {
			m.pair(t, m.prev[at])
		}
	}
	for i := int32(0); i >= 0; i = m.next[i] {
		dst = append(dst, m.ids[i])
	}
	return dst
}

// pair looks up the pair that begins at position at and queues it.
func (m *merger) pair(t *model, at int32) {
	m.ranks[at] = noRank
	if m.next[at] < 0 {
		return
	}
	m.ranks[at], m.into[at] = t.merges.get(m.ids[at], m.ids[m.next[at]])
	if m.ranks[at] != noRank {
		m.push(uint64(m.ranks[at])<<32 | uint64(at))
	}
}

func (m *merger) push(v uint64) {
	h := append(m.heap, v)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= v {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = v
	m.heap = h
}

func (m *merger) pop() uint64 {
	h := m.heap
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		down := 2*i + 1
		if down+1 < len(h) && h[down+1] < h[down] {
			down++
		}
		if down >= len(h) || h[down] >= last {
			h[i] = last
			break
		}
		h[i] = h[down]
		i = down
	}
	m.heap = h
	return top
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// wordCache remembers the ids of words seen lately; one slot per hash value,
// the newest wins. A slot is a cache line and holds the word itself, so that
// nothing is allocated and no request's text outlives it.
type wordCache struct{ slots []cachedWord }

const (
	cacheBits  = 13
	cachedIDs  = 8
	cachedSize = 30 // bytes of a word
)

type cachedWord struct {
	size, n uint8
	word    [cachedSize]byte
	ids     [cachedIDs]uint32
}

func (c *cachedWord) is(word string) bool {
	return int(c.size) == len(word) && string(c.word[:c.size]) == word
}

// slot is nil for words that are not kept.
func (c *wordCache) slot(word string) *cachedWord {
	if len(word) > cachedSize {
		return nil
	}
	if c.slots == nil {
		c.slots = make([]cachedWord, 1<<cacheBits)
	}
	h := uint64(len(word))
	for len(word) >= 8 {
		h = (h ^ le64(word)) * 0x9E3779B97F4A7C15
		h ^= h >> 29
		word = word[8:]
	}
	if len(word) >= 4 {
		h = (h ^ uint64(le32(word))) * 0x9E3779B97F4A7C15
		h ^= h >> 29
		word = word[4:]
	}
	for i := range len(word) {
		h = (h ^ uint64(word[i])) * 0x100000001B3
	}
	return &c.slots[h*0x9E3779B97F4A7C15>>(64-cacheBits)]
}

func le32(s string) uint32 {
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

func le64(s string) uint64 {
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func (c *cachedWord) set(word string, ids []uint32) {
	if len(ids) > cachedIDs {
		return
	}
	c.size = uint8(copy(c.word[:], word))
	c.n = uint8(copy(c.ids[:], ids))
}
