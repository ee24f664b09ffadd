package prompt

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// cacheKey stands for a text, or for all that comes before a place in a
// prompt: two hashes under seeds that nobody outside this process knows, so
// that equal keys mean equal texts.
type cacheKey [2]uint64

// keys makes cacheKeys.
type keys [2]maphash.Seed

func newKeys() keys { return keys{maphash.MakeSeed(), maphash.MakeSeed()} }

// of hashes a text; kind keeps texts of different meaning apart.
func (k *keys) of(text string, kind uint64) cacheKey {
	return cacheKey{maphash.String(k[0], text) + kind, maphash.String(k[1], text)}
}

// after is the key of what prefix stands for followed by the text of key part
// and the added token id.
func (k *keys) after(prefix, part cacheKey, id uint64) cacheKey {
	var b [40]byte
	for i, v := range [...]uint64{prefix[0], prefix[1], part[0], part[1], id} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	return cacheKey{maphash.Bytes(k[0], b[:]), maphash.Bytes(k[1], b[:])}
}

// byteCache keeps values by key and forgets the longest unused when it grows
// past its size. Values are shared and never changed. Safe for concurrent use.
type byteCache[V interface{ bytes() int64 }] struct {
	max          int64
	hits, misses atomic.Uint64

	mu   sync.Mutex // guards lru, used
	lru  *simplelru.LRU[cacheKey, V]
	used int64
}

// entryBytes is about what an entry costs beside its value.
const entryBytes = 128

func newByteCache[V interface{ bytes() int64 }](maxBytes int64) *byteCache[V] {
	c := &byteCache[V]{max: maxBytes}
	var err error
	c.lru, err = simplelru.NewLRU(math.MaxInt32, func(_ cacheKey, v V) { c.used -= v.bytes() + entryBytes })
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return c
}

// get and put want mu held.
func (c *byteCache[V]) get(key cacheKey) (V, bool) {
	v, ok := c.lru.Get(key)
	if ok {
		c.hits.Add(1)
	} else {
		c.misses.Add(1)
	}
	return v, ok
}

func (c *byteCache[V]) put(key cacheKey, v V) {
	size := v.bytes() + entryBytes
	if size > c.max/4 {
		return // one text must not push out all others
	}
	c.lru.Remove(key)
	c.lru.Add(key, v)
	for c.used += size; c.used > c.max; {
		c.lru.RemoveOldest()
	}
}

// stats is read without waiting for a request.
func (c *byteCache[V]) stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CacheStats{Hits: c.hits.Load(), Misses: c.misses.Load(), Entries: c.lru.Len(), Bytes: c.used}
}

// tokenIDs are ids in a cache.
type tokenIDs []uint32

func (t tokenIDs) bytes() int64 { return int64(4 * len(t)) }

// segmentCache remembers the ids of the text between two added tokens, whatever
// stands around it: see the package comment for why that is exact.
type segmentCache struct {
	keys
	*byteCache[tokenIDs]
}

func newSegmentCache(k keys, maxBytes int64) *segmentCache {
	return &segmentCache{k, newByteCache[tokenIDs](maxBytes)}
}

// minSegment is the length in bytes from which looking up is cheaper than
// encoding.
const minSegment = 48

// segment is one piece of a text, and the added token behind it.
type segment struct {
	text  string
	key   cacheKey // of text
	place cacheKey // of all up to here, the added token included
	known []uint32 // ids of text, if they are in the cache
	id    uint32   // of the added token
	start bool     // the prompt begins here
	last  bool     // there is none: nothing is behind
	long  bool     // worth a place in the cache
}

// cut appends the segments of text to dst: one only, if the tokenizer is not
// cut. model tells tokenizers apart, place is the key of what comes before.
func (c *segmentCache) cut(dst []segment, tok *tokenizer.Tokenizer, model uint64, place cacheKey, text string) []segment {
	for start := true; ; start = false {
		before, id, rest, found := tok.CutAlways(text)
		kind := 2 * model
		if start && tok.StartDiffers() {
			kind++
		}
		s := segment{text: before, id: id, start: start, last: !found, long: len(before) >= minSegment, key: c.of(before, kind)}
		behind := uint64(id)
		if s.last {
			behind = endOfText
		}
		place = c.after(place, s.key, behind)
		s.place = place
		if dst = append(dst, s); !found {
			return dst
		}
		text = rest
	}
}

// endOfText stands in keys for the end, which no token id is.
const endOfText = math.MaxUint64

// encode appends the ids of segments to dst, and keeps what was not known.
func (c *segmentCache) encode(dst []uint32, tok *tokenizer.Tokenizer, segments []segment) []uint32 {
	c.lookup(segments)
	for i := range segments {
		dst = c.encodeOne(dst, tok, &segments[i])
	}
	c.store(segments)
	return dst
}

// encodeOne appends the ids of one segment that was looked up, with its added
// token. What is to be kept of it is in known after that.
func (c *segmentCache) encodeOne(dst []uint32, tok *tokenizer.Tokenizer, s *segment) []uint32 {
	switch from := len(dst); {
	case s.known != nil:
		dst = append(dst, s.known...)
		s.long = false // nothing to store
	default:
		dst = tok.EncodePieceAt(dst, s.text, s.start)
		if s.long {
			s.known = append([]uint32(nil), dst[from:]...)
		}
	}
	if !s.last {
		dst = append(dst, s.id)
	}
	return dst
}

// lookup fills in what is known, under one lock.
func (c *segmentCache) lookup(segments []segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range segments {
		if s := &segments[i]; s.long {
			if ids, ok := c.get(s.key); ok {
				s.known = ids
			}
		}
	}
}

func (c *segmentCache) store(segments []segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range segments {
		if s := &segments[i]; s.long && s.known != nil {
			c.put(s.key, s.known)
		}
	}
}
