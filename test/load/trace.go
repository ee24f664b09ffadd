package load

import (
	"math/rand/v2"

	"github.com/grapevine-llm/grapevine/test/trace"
)

// FromTrace makes requests of a trace. Tokens are made up from the block ids, so that prompts share the prefixes that the
// trace says; what lies behind the last block is a request's own.
func FromTrace(t *trace.Trace, v Vocabulary) []Request {
	blocks := map[uint64][]uint32{}
	out := make([]Request, len(t.Requests))
	for i := range t.Requests {
		in := &t.Requests[i]
		req := Request{At: in.At, Session: in.Session, MaxTokens: in.Output}
		left := in.Prompt
		for _, id := range in.Blocks {
			b, ok := blocks[id]
			if !ok {
				b = v.draw(rand.New(rand.NewPCG(id, 5)), t.BlockTokens)
				blocks[id] = b
			}
			req.Parts = append(req.Parts, b)
			left -= len(b)
		}
		if left > 0 {
			req.Parts = append(req.Parts, v.draw(rand.New(rand.NewPCG(uint64(i), 6)), left))
		}
		out[i] = req
	}
	return out
}
