package prompt

import (
	"slices"
	"sync"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// chainCache remembers, for places in prompts, how far the chain has come: the
// hashes of the blocks that were completed since the place before, and the
// tokens of the block that is open. A place's key stands for the whole prompt
// up to there, so the places of a conversation form a branch of a tree whose
// next turn is one more leaf.
//
// It is exact because all of it is a function of the text up to the place: the
// ids of the segments (see the package comment), and a chain, which is computed
// token by token from the left. A turn that changes an earlier message changes
// the keys of every place behind it.
type chainCache struct {
	*byteCache[*placeState]
	segments *segmentCache
	pool     sync.Pool // of *walk
}

func newChainCache(segments *segmentCache, maxBytes int64) *chainCache {
	return &chainCache{byteCache: newByteCache[*placeState](maxBytes), segments: segments}
}

// placeState is the state of the chains at a place.
type placeState struct {
	tokens int // of the prompt up to here
	chains []openChain
}

// openChain is one block size's part of a placeState.
type openChain struct {
	hashes []blockhash.Hash // of the blocks completed since the place before
	last   blockhash.Hash   // of the last block completed; the root if none was
	open   []uint32         // tokens behind that block
}

func (p *placeState) bytes() int64 {
	n := int64(32)
	for i := range p.chains {
		n += int64(8*len(p.chains[i].hashes)+4*len(p.chains[i].open)) + 72
	}
	return n
}

// minPlace is how much text is between two places at least: short segments,
// such as the line break between two messages, have none of their own.
const minPlace = 256

// walk is one prompt on its way to its chains: buffers that are used again, so
// that a prompt of which all but the end is known costs no memory of its length.
type walk struct {
	segments []segment
	ids      []uint32 // of one segment
	tokens   int
	chains   []blockhash.Chain // the result, one for each block size
	marks    []openChain       // where they are; hashes not used
	found    []*placeState
	places   []int // segments with a place behind them
}

func (w *walk) reset(sizes []int, seed uint32, root blockhash.Hash) {
	w.segments, w.places, w.found, w.tokens = w.segments[:0], w.places[:0], w.found[:0], 0
	w.chains = slices.Grow(w.chains[:0], len(sizes))[:len(sizes)]
	w.marks = slices.Grow(w.marks[:0], len(sizes))[:len(sizes)]
	for i, size := range sizes {
		w.chains[i] = blockhash.Chain{BlockSize: size, Seed: seed, Root: root, Hashes: w.chains[i].Hashes[:0]}
		w.marks[i] = openChain{last: root, open: slices.Grow(w.marks[i].open[:0], size)}
	}
}

// add takes more tokens in.
func (w *walk) add(h blockhash.Hasher, ids []uint32) {
	w.tokens += len(ids)
	for i := range w.chains {
		c, m := &w.chains[i], &w.marks[i]
		c.Hashes, m.last, m.open = h.Append(c.Hashes, m.last, m.open, ids, c.BlockSize)
	}
}

// skip takes in a place that is known.
func (w *walk) skip(p *placeState) {
	w.tokens = p.tokens
	for i := range w.chains {
		from := &p.chains[i]
		w.chains[i].Hashes = append(w.chains[i].Hashes, from.hashes...)
		w.marks[i].last, w.marks[i].open = from.last, append(w.marks[i].open[:0], from.open...)
	}
}

// state is what is remembered of the place that w has come to; from says how
// long the chains were at the place before, and is brought up to date.
func (w *walk) state(from []int) *placeState {
	p := &placeState{tokens: w.tokens, chains: make([]openChain, len(w.chains))}
	for i := range w.chains {
		p.chains[i] = openChain{
			hashes: slices.Clone(w.chains[i].Hashes[from[i]:]),
			last:   w.marks[i].last, open: slices.Clone(w.marks[i].open),
		}
		from[i] = len(w.chains[i].Hashes)
	}
	return p
}

// source is what chains are made from, and how.
type source struct {
	tok    *tokenizer.Tokenizer
	model  uint64 // tells tokenizers apart
	text   string
	prefix []uint32 // ids before the text
	suffix []uint32 // and behind it
	hasher blockhash.Hasher
	root   blockhash.Hash
	sizes  []int
}

// chains returns the chains of a prompt. The caller gives the walk back with
// release when nobody reads it any more.
func (c *chainCache) chains(s *source) *walk {
	w, _ := c.pool.Get().(*walk)
	if w == nil {
		w = &walk{}
	}
	w.reset(s.sizes, s.hasher.Fingerprint(), s.root)
	w.segments = c.segments.cut(w.segments, s.tok, s.model, c.start(s), s.text)
	w.place()
	c.walkRest(w, s, c.walkKnown(w))
	w.add(s.hasher, s.suffix)
	clear(w.segments) // the text is the caller's
	clear(w.found)
	return w
}

func (c *chainCache) release(w *walk) { c.pool.Put(w) }

// start is the key of the place before a text: all that its chains depend on
// but the text.
func (c *chainCache) start(s *source) cacheKey {
	k := c.segments.after(cacheKey{s.model, uint64(s.hasher.Fingerprint())}, cacheKey{uint64(s.root), uint64(len(s.prefix))}, uint64(len(s.sizes)))
	for _, size := range s.sizes {
		k = c.segments.after(k, cacheKey{uint64(size), 0}, 0)
	}
	return k
}

// place chooses the segments behind which there is a place. It goes by the text
// up to there alone, so that the next turn finds the same places.
func (w *walk) place() {
	since := 0
	for i := range w.segments {
		since += len(w.segments[i].text)
		if since >= minPlace || w.segments[i].last && since >= minSegment {
			w.places, since = append(w.places, i), 0
		}
	}
}

// walkKnown goes as far as places are known and returns how many segments that
// were.
func (c *chainCache) walkKnown(w *walk) int {
	c.mu.Lock()
	for _, i := range w.places {
		p, ok := c.lru.Peek(w.segments[i].place)
		if !ok {
			break
		}
		w.found = append(w.found, p)
	}
	// Used last at the front: of a branch, its leaves are forgotten first.
	for _, i := range slices.Backward(w.places[:len(w.found)]) {
		c.lru.Get(w.segments[i].place)
	}
	c.mu.Unlock()
	c.hits.Add(uint64(len(w.found)))
	c.misses.Add(uint64(len(w.places) - len(w.found)))
	for _, p := range w.found {
		w.skip(p)
	}
	if len(w.found) == 0 {
		return 0
	}
	return w.places[len(w.found)-1] + 1
}

// walkRest tokenizes and hashes the segments from the given one on, and
// remembers their places.
func (c *chainCache) walkRest(w *walk, s *source, from int) {
	rest := w.segments[from:]
	if len(rest) == 0 {
		return
	}
	c.segments.lookup(rest)
	places := w.places[len(w.found):]
	fresh := make([]*placeState, 0, len(places))
	lengths := make([]int, len(w.chains))
	for i := range w.chains {
		lengths[i] = len(w.chains[i].Hashes)
	}
	if from == 0 {
		w.add(s.hasher, s.prefix) // part of the first place
	}
	for i := range rest {
		w.ids = c.segments.encodeOne(w.ids[:0], s.tok, &rest[i])
		w.add(s.hasher, w.ids)
		if next := len(fresh); next < len(places) && places[next] == from+i {
			fresh = append(fresh, w.state(lengths))
		}
	}
	if cap(w.ids) > maxKept {
		w.ids = nil
	}
	c.segments.store(rest)
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, p := range slices.Backward(fresh) {
		c.put(w.segments[places[i]].place, p)
	}
}

// maxKept bounds the ids that a pooled walk keeps room for.
const maxKept = 1 << 18
