package prompt

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// cacheKey stands for a text: two hashes under seeds that nobody outside this
// process knows, so that equal keys mean equal texts.
type cacheKey [2]uint64

// byteCache keeps ids by key and forgets the longest unused when it grows past
// its size. Safe for concurrent use.
type byteCache struct {
	seeds [2]maphash.Seed
	max   int64

	mu   sync.Mutex // guards lru, used
	lru  *simplelru.LRU[cacheKey, []uint32]
	used int64
}

// key hashes a text; kind keeps texts of different meaning apart.
func (c *byteCache) key(text string, kind uint64) cacheKey {
	return cacheKey{maphash.String(c.seeds[0], text) + kind, maphash.String(c.seeds[1], text)}
}

// entryBytes is about what an entry costs beside its ids.
const entryBytes = 128

func size(ids []uint32) int64 { return int64(4*len(ids)) + entryBytes }

func newByteCache(maxBytes int64) *byteCache {
	c := &byteCache{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, max: maxBytes}
	var err error
	c.lru, err = simplelru.NewLRU(math.MaxInt32, func(_ cacheKey, ids []uint32) { c.used -= size(ids) })
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return c
}

// get and put want mu held.
func (c *byteCache) get(key cacheKey) ([]uint32, bool) { return c.lru.Get(key) }

func (c *byteCache) put(key cacheKey, ids []uint32) {
	if size(ids) > c.max/4 {
		return // one text must not push out all others
	}
	c.lru.Remove(key)
	c.lru.Add(key, ids)
	for c.used += size(ids); c.used > c.max; {
		c.lru.RemoveOldest()
	}
}

// segmentCache remembers the ids of the text between two special tokens.
// Special tokens are cut out before a text is normalized and split, so a
// segment's ids depend on nothing around it.
type segmentCache struct {
	*byteCache
	hits, misses atomic.Uint64
}

func newSegmentCache(maxBytes int64) *segmentCache {
	return &segmentCache{byteCache: newByteCache(maxBytes)}
}

// minSegment is the length in bytes from which looking up is cheaper than
// encoding.
const minSegment = 48

// segment is one piece of a text.
type segment struct {
	text  string
	key   cacheKey
	ids   []uint32 // nil: not in the cache
	fresh bool     // to be put into it
	id    uint32   // of the special token behind it
	last  bool     // nothing is behind it
}

// encode appends the ids of text to dst, as tok.Encode does.
// model tells tokenizers apart.
func (c *segmentCache) encode(tok *tokenizer.Tokenizer, model uint64, dst []uint32, text string) []uint32 {
	parts := make([]segment, 0, 64)
	for {
		before, id, rest, found := tok.Cut(text)
		s := segment{text: before, id: id, last: !found}
		if len(before) >= minSegment {
			s.key, s.fresh = c.key(before, model), true
		}
		parts = append(parts, s)
		if !found {
			break
		}
		text = rest
	}
	c.lookup(parts)
	for i := range parts {
		s := &parts[i]
		switch from := len(dst); {
		case s.ids != nil:
			dst = append(dst, s.ids...)
		default:
			dst = tok.EncodePiece(dst, s.text)
			if s.fresh {
				s.ids = append([]uint32(nil), dst[from:]...)
			}
		}
		if !s.last {
			dst = append(dst, s.id)
		}
	}
	c.store(parts)
	return dst
}

// lookup fills in what is known, under one lock.
func (c *segmentCache) lookup(parts []segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range parts {
		s := &parts[i]
		if !s.fresh {
			continue
		}
		if ids, ok := c.get(s.key); ok {
			s.ids, s.fresh = ids, false
			c.hits.Add(1)
		} else {
			c.misses.Add(1)
		}
	}
}

func (c *segmentCache) store(parts []segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range parts {
		if s := &parts[i]; s.fresh {
			c.put(s.key, s.ids)
		}
	}
}
