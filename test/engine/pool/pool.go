// Package pool is the KV block pool of the emulated engine: which blocks are in
// use, which are cached, what a prompt hits, what is evicted, and the KV events
// that tell of it. It follows vLLM's BlockPool and KVCacheManager (0.22 to 0.32)
// for one full-attention group; recorded histories of that pool are replayed
// against it in the tests.
//
// The rules, all observable from outside:
//
//   - Block 0 is the null block and never used.
//   - Block tables are append-only: equal blocks computed twice exist twice,
//     each with its own BlockStored and BlockRemoved.
//   - A prompt of n tokens hits at most (n-1)/blockSize blocks: the last token
//     is always computed.
//   - Freed blocks keep their content and join the tail of an LRU queue, the
//     last block of a request first; those without reusable content (partly
//     filled) go to its head. New blocks come from the head; a block that still
//     had a hash is evicted: one BlockRemoved, before the BlockStored of what
//     replaces it.
//   - A run of new full blocks of one request is one BlockStored. Hits emit
//     nothing.
//   - Reset is refused while any block is in use. Its AllBlocksCleared waits
//     among the pending events until somebody takes them.
//
// The package is a core: no clock, no goroutine, no I/O. A Pool belongs to one
// goroutine, or to a mutex of its owner.
package pool

// EventKind tells what an Event says.
type EventKind uint8

// The three events of vLLM's KV-cache event stream.
const (
	Stored EventKind = iota + 1
	Removed
	Cleared
)

// Event is one KV-cache event. Its slices are shared with the pool and must not
// be changed.
type Event struct {
	Kind      EventKind
	Hashes    []Digest   // chain order
	Parent    *Digest    // Stored: the block before Hashes[0], nil at a root
	Tokens    []uint32   // Stored: BlockSize for each hash
	BlockSize int        // Stored
	Adapter   *Adapter   // Stored: nil for the base model
	ExtraKeys [][]string // Stored: one entry a hash, nil without extras
}

// Table is the block table of one request: its tokens, the hashes of their full
// blocks, and the physical blocks that hold them. It is made outside the pool
// (hashing is the costly part), then belongs to the pool's owner.
type Table struct {
	hasher    Hasher
	blockSize int
	extras    Extras
	tokens    []uint32
	hashes    []Digest

	blocks  []int32 // physical, logical order
	stored  int     // leading blocks that are hits or were registered
	filled  int     // tokens whose KV is computed
	promise int     // blocks promised by Admit; len(blocks) counts against it
	live    bool
}

// NewTable hashes the full blocks of tokens; it keeps tokens.
func NewTable(h Hasher, tokens []uint32, blockSize int, x Extras) *Table {
	t := &Table{hasher: h, blockSize: blockSize, extras: x, tokens: tokens[:len(tokens):len(tokens)]}
	t.hashes = h.AppendChain(make([]Digest, 0, len(tokens)/blockSize), tokens, blockSize, x)
	return t
}

// TableOf is NewTable for full blocks whose digests are known; the simulator makes
// them up.
func TableOf(tokens []uint32, digests []Digest, blockSize int) *Table {
	return &Table{blockSize: blockSize, tokens: tokens[:len(tokens):len(tokens)], hashes: digests[:len(digests):len(digests)]}
}

// Len is the number of tokens.
func (t *Table) Len() int { return len(t.tokens) }

// Filled is the number of tokens whose KV is computed.
func (t *Table) Filled() int { return t.filled }

// Append adds generated tokens; their KV is computed by a later Fill.
func (t *Table) Append(tokens ...uint32) {
	t.tokens = append(t.tokens, tokens...)
	t.hashes = t.hasher.AppendChain(t.hashes, t.tokens, t.blockSize, t.extras)
}

// Config sizes a pool and picks the engine version that it follows.
type Config struct {
	Blocks    int // physical blocks, the null block included; at least 2
	BlockSize int // tokens a block
	// UncachedLast queues freed blocks without reusable content at the tail, as
	// vLLM 0.22 did; 0.32 takes them first.
	UncachedLast bool
}

// Pool is the block pool. Not safe for concurrent use.
type Pool struct {
	blockSize int
	last      bool // Config.UncachedLast
	blocks    []block
	first     map[Digest]int32 // oldest resident copy; the others hang on block.copy
	free      queue
	promised  int // blocks promised to live tables and not yet taken
	pending   []Event
}

type block struct {
	hash   Digest
	hashed bool
	refs   int32
	copy   int32 // next younger copy of the same hash, 0 none
}

// New makes an empty pool.
func New(cfg Config) *Pool {
	p := &Pool{
		blockSize: cfg.BlockSize,
		last:      cfg.UncachedLast,
		blocks:    make([]block, cfg.Blocks),
		first:     make(map[Digest]int32, cfg.Blocks),
		free:      newQueue(cfg.Blocks),
	}
	for i := 1; i < cfg.Blocks; i++ {
		p.free.push(int32(i))
	}
	return p
}

// Usable is the number of blocks that requests can hold.
func (p *Pool) Usable() int { return len(p.blocks) - 1 }

// Free is the number of blocks not in use, cached ones included.
func (p *Pool) Free() int { return p.free.len }

// Used is the number of blocks held by live tables.
func (p *Pool) Used() int { return p.Usable() - p.free.len }

// Hashed is the number of blocks that hold reusable content, in use or not.
func (p *Pool) Hashed() int {
	n := 0
	for i := range p.blocks {
		if p.blocks[i].hashed {
			n++
		}
	}
	return n
}

// Copies is the number of resident copies of each hash, by its low 64 bits.
func (p *Pool) Copies() map[uint64]int {
	m := make(map[uint64]int)
	for i := range p.blocks {
		if p.blocks[i].hashed {
			m[p.blocks[i].hash.Low64()]++
		}
	}
	return m
}

// match returns the physical blocks that a prompt would reuse.
func (p *Pool) match(t *Table) []int32 {
	limit := min((len(t.tokens)-1)/p.blockSize, len(t.hashes))
	var hit []int32
	for _, h := range t.hashes[:max(limit, 0)] {
		b, ok := p.first[h]
		if !ok {
			break
		}
		hit = append(hit, b)
	}
	return hit
}

// Admit gives t its cached prefix and promises it blocks for total tokens (its
// own and what it may generate). It returns the number of cached tokens; ok is
// false, and nothing has changed, when the blocks that are free and not promised
// to others do not suffice. skipRead admits without looking into the cache, as
// vLLM does for prompt_logprobs.
func (p *Pool) Admit(t *Table, total int, skipRead bool) (cached int, ok bool) {
	var hit []int32
	if !skipRead {
		hit = p.match(t)
	}
	idle := 0
	for _, b := range hit {
		if p.blocks[b].refs == 0 {
			idle++
		}
	}
	promise := (max(total, len(t.tokens)) + p.blockSize - 1) / p.blockSize
	if promise-len(hit)+idle+p.promised > p.free.len {
		return 0, false
	}
	for _, b := range hit {
		if p.blocks[b].refs == 0 {
			p.free.remove(b)
		}
		p.blocks[b].refs++
	}
	t.live, t.blocks, t.stored, t.promise = true, hit, len(hit), promise
	t.filled = len(hit) * p.blockSize
	p.promised += promise - len(hit)
	return t.filled, true
}

// Fill computes the KV of the tokens up to n: it takes blocks for them and
// registers those that became full. It reports false, with nothing changed, if
// that goes beyond what Admit promised and no block is free.
func (p *Pool) Fill(t *Table, n int) bool {
	n = min(n, len(t.tokens))
	want := (n+p.blockSize-1)/p.blockSize - len(t.blocks)
	covered := min(max(want, 0), max(t.promise-len(t.blocks), 0))
	if want-covered > p.free.len-p.promised {
		return false
	}
	p.promised -= covered
	for range want {
		b := p.free.pop()
		p.evict(b)
		p.blocks[b].refs = 1
		t.blocks = append(t.blocks, b)
	}
	t.filled = max(t.filled, n)
	p.register(t, n/p.blockSize)
	return true
}

// register makes the blocks of t before full reusable and tells of it.
func (p *Pool) register(t *Table, full int) {
	from := t.stored
	if full <= from {
		return
	}
	ev := Event{
		Kind:      Stored,
		Hashes:    t.hashes[from:full:full],
		Tokens:    t.tokens[from*p.blockSize : full*p.blockSize : full*p.blockSize],
		BlockSize: p.blockSize,
		Adapter:   t.extras.Adapter,
		ExtraKeys: make([][]string, full-from),
	}
	if from > 0 {
		ev.Parent = &t.hashes[from-1]
	}
	for i := from; i < full; i++ {
		ev.ExtraKeys[i-from] = t.extras.keys(i)
		p.insert(t.blocks[i], t.hashes[i])
	}
	t.stored = full
	p.pending = append(p.pending, ev)
}

func (p *Pool) insert(b int32, h Digest) {
	p.blocks[b].hash, p.blocks[b].hashed, p.blocks[b].copy = h, true, 0
	at, ok := p.first[h]
	if !ok {
		p.first[h] = b
		return
	}
	for p.blocks[at].copy != 0 {
		at = p.blocks[at].copy
	}
	p.blocks[at].copy = b
}

// evict takes the hash from a block that is about to be reused.
func (p *Pool) evict(b int32) {
	x := &p.blocks[b]
	if !x.hashed {
		return
	}
	if at := p.first[x.hash]; at != b {
		for p.blocks[at].copy != b {
			at = p.blocks[at].copy
		}
		p.blocks[at].copy = x.copy
	} else if x.copy != 0 {
		p.first[x.hash] = x.copy
	} else {
		delete(p.first, x.hash)
	}
	p.pending = append(p.pending, Event{Kind: Removed, Hashes: []Digest{x.hash}})
	x.hashed, x.copy = false, 0
}

// Release takes the blocks from t, the last first, and leaves their content in
// the cache. t can be admitted again.
func (p *Pool) Release(t *Table) {
	if !t.live {
		return
	}
	p.promised -= max(t.promise-len(t.blocks), 0)
	for i := len(t.blocks) - 1; i >= 0; i-- {
		b := t.blocks[i]
		switch p.blocks[b].refs--; {
		case p.blocks[b].refs > 0:
		case p.blocks[b].hashed || p.last:
			p.free.push(b)
		default:
			p.free.unshift(b)
		}
	}
	t.live, t.blocks, t.stored, t.filled, t.promise = false, nil, 0, 0, 0
}

// Reset forgets all cached content. It reports false, and does nothing, while
// blocks are in use.
func (p *Pool) Reset() bool {
	if p.Used() > 0 {
		return false
	}
	clear(p.first)
	for i := range p.blocks {
		p.blocks[i].hashed, p.blocks[i].copy = false, 0
	}
	p.pending = append(p.pending, Event{Kind: Cleared})
	return true
}

// TakeEvents returns the events since the last call, in order: one batch.
func (p *Pool) TakeEvents() []Event {
	ev := p.pending
	p.pending = nil
	return ev
}

// queue is a doubly linked list of block numbers with O(1) removal; number 0,
// the null block, is its sentinel.
type queue struct {
	next, prev []int32
	len        int
}

func newQueue(blocks int) queue {
	return queue{next: make([]int32, blocks), prev: make([]int32, blocks)}
}

// push appends b at the tail.
func (q *queue) push(b int32) { q.insert(b, q.prev[0], 0) }

// unshift puts b at the head.
func (q *queue) unshift(b int32) { q.insert(b, 0, q.next[0]) }

func (q *queue) insert(b, prev, next int32) {
	q.next[prev], q.prev[b] = b, prev
	q.next[b], q.prev[next] = next, b
	q.len++
}

func (q *queue) remove(b int32) {
	q.next[q.prev[b]], q.prev[q.next[b]] = q.next[b], q.prev[b]
	q.len--
}

func (q *queue) pop() int32 {
	b := q.next[0]
	q.remove(b)
	return b
}
