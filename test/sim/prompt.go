package sim

import (
	"encoding/binary"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// request is a call of the trace with its blocks in the identities of engines and of the product.
type request struct {
	*trace.Request
	digests []pool.Digest    // full blocks of the prompt, as an engine hashes them
	chain   []blockhash.Hash // the same, as the product does
	session uint64
}

// prompts makes requests of a trace. Tokens are made up from the block ids where somebody wants to see them: nothing but
// their being equal or not matters.
type prompts struct {
	blockTokens int
	hasher      blockhash.Hasher
	zero        []uint32 // stands for any prompt's tokens: the digests say what they are
	ids         map[pool.Digest]uint64
	chains      map[uint64]blockhash.Hash
	scratch     []uint32
}

func newPrompts(blockTokens int, hasher blockhash.Hasher) *prompts {
	return &prompts{
		blockTokens: blockTokens, hasher: hasher,
		ids: map[pool.Digest]uint64{}, chains: map[uint64]blockhash.Hash{}, scratch: make([]uint32, blockTokens),
	}
}

// requests converts a trace. What lies behind a prompt's last shared block is its own.
func (p *prompts) requests(t *trace.Trace) []*request {
	out := make([]*request, len(t.Requests))
	longest := 0
	for i := range t.Requests {
		in := &t.Requests[i]
		r := &request{Request: in, session: xxh3.HashString(in.Session)}
		if in.Session == "" {
			r.session = uint64(i)
		}
		var parent blockhash.Hash
		for b := range in.Prompt / p.blockTokens {
			id := xxh3.HashString("own") ^ uint64(i)<<20 ^ uint64(b)
			if b < len(in.Blocks) {
				id = in.Blocks[b]
			}
			h, ok := p.chains[id]
			d := digestOf(id)
			if !ok {
				h = p.hasher.Next(parent, p.hasher.Local(p.tokens(id)))
				p.chains[id], p.ids[d] = h, id
			}
			parent = h
			r.digests, r.chain = append(r.digests, d), append(r.chain, h)
		}
		out[i] = r
		longest = max(longest, in.Prompt)
	}
	p.zero = make([]uint32, longest)
	return out
}

// digestOf is the engine's hash of the block that the trace calls id, and of everything before it.
func digestOf(id uint64) pool.Digest {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], id)
	h := xxh3.Hash128(b[:])
	var d pool.Digest
	binary.BigEndian.PutUint64(d[16:], h.Hi)
	binary.BigEndian.PutUint64(d[24:], h.Lo)
	return d
}

// tokens of a block; valid until the next call.
func (p *prompts) tokens(id uint64) []uint32 {
	x := id
	for i := range p.scratch {
		x += 0x9e3779b97f4a7c15
		p.scratch[i] = uint32((x^x>>31)*0xbf58476d1ce4e5b9>>33) & 0x7fffffff
	}
	return p.scratch
}

// table makes the block table of a request.
func (p *prompts) table(r *request) *pool.Table {
	return pool.TableOf(p.zero[:r.Prompt], r.digests, p.blockTokens)
}

// at is a moment of the simulation for the product's code.
func at(d time.Duration) time.Time { return start.Add(d) }

var start = time.Unix(1_800_000_000, 0)

func newHasher() blockhash.Hasher { return blockhash.NewHasher(blockhash.DefaultSeed) }
