package sim

import (
	"container/list"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

// kvEvent is an engine's KV event; host ones are of medium CPU.
type kvEvent struct {
	pool.Event
	host bool
}

// cache is a KV cache: the GPU's block pool and, where there is one, the host's below it. A block that is evicted above moves
// to the host, least recently used ones make room, and a prompt's blocks behind those in the GPU are loaded from there instead
// of being computed; their copies in the host stay. As SGLang's HiCache and vLLM's offloading connectors send it, a block is
// stored below before it is removed above; the contract's event for that has no tokens. Loading holds up the engine, which
// real ones partly hide.
type cache struct {
	pool        *pool.Pool
	blockTokens int
	host        *host   // nil: none
	rate        float64 // tokens a second
	pending     []kvEvent
}

// admit is [pool.Pool.Admit]; cached includes the tokens that have to be loaded.
func (c *cache) admit(j *job, total int) (cached, loaded int, ok bool) {
	cached, ok = c.pool.Admit(j.table, total, false)
	if !ok || c.host == nil {
		return cached, 0, ok
	}
	b := c.blockTokens
	for _, d := range j.request.digests[min(cached/b, len(j.request.digests)):] {
		if cached+loaded+b >= j.prompt() || !c.host.use(d) {
			break
		}
		loaded += b
	}
	return cached + loaded, loaded, true
}

// fill is [pool.Pool.Fill].
func (c *cache) fill(t *pool.Table, n int) bool {
	ok := c.pool.Fill(t, n)
	c.collect()
	return ok
}

// load is the time that tokens take from the host.
func (c *cache) load(tokens int) time.Duration {
	if tokens == 0 {
		return 0
	}
	return time.Duration(float64(tokens) / c.rate * float64(time.Second))
}

// collect takes the pool's events and lets the host follow them.
func (c *cache) collect() {
	for _, e := range c.pool.TakeEvents() {
		if c.host != nil && e.Kind == pool.Removed {
			for _, d := range e.Hashes {
				evicted, stored := c.host.put(d)
				if stored {
					c.pending = append(c.pending, kvEvent{pool.Event{Kind: pool.Stored, Hashes: []pool.Digest{d}}, true})
				}
				if evicted != nil {
					c.pending = append(c.pending, kvEvent{pool.Event{Kind: pool.Removed, Hashes: []pool.Digest{*evicted}}, true})
				}
			}
		}
		c.pending = append(c.pending, kvEvent{e, false})
	}
}

// events returns those since the last call, in order.
func (c *cache) events() []kvEvent {
	c.collect()
	out := c.pending
	c.pending = nil
	return out
}

// host is a set of blocks, least recently used first.
type host struct {
	blocks int
	order  *list.List // of pool.Digest
	at     map[pool.Digest]*list.Element
}

func newHost(blocks int) *host {
	return &host{blocks: blocks, order: list.New(), at: map[pool.Digest]*list.Element{}}
}

// use reports whether a block is there, and counts it as used now.
func (h *host) use(d pool.Digest) bool {
	e, ok := h.at[d]
	if ok {
		h.order.MoveToBack(e)
	}
	return ok
}

// put takes a block in. It reports whether it was not there before, and which one it replaces.
func (h *host) put(d pool.Digest) (evicted *pool.Digest, stored bool) {
	if h.use(d) {
		return nil, false
	}
	if h.order.Len() >= h.blocks {
		oldest := h.order.Remove(h.order.Front()).(pool.Digest)
		delete(h.at, oldest)
		evicted = &oldest
	}
	h.at[d] = h.order.PushBack(d)
	return evicted, true
}
