package picker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// TestChains: a ready chain gives the decision that its tokens give, and one that does not fit is not believed.
func TestChains(t *testing.T) {
	ids := prompt(1, 2000)
	salt := []blockhash.Extra{{Kind: blockhash.CacheSalt, Value: "x"}}
	chain := func(f *fleet, size int, extras ...blockhash.Extra) blockhash.Chain {
		h := f.Hasher()
		root := h.Root(extras...)
		return blockhash.Chain{BlockSize: size, Seed: h.Fingerprint(), Root: root, Hashes: h.AppendChain(nil, root, ids, size)}
	}
	tests := []struct {
		name string
		req  func(f *fleet) Request
		want int // predicted cached tokens
	}{
		{"tokens", func(*fleet) Request { return Request{TokenIDs: ids} }, 1984},
		{"chain", func(f *fleet) Request { return Request{PromptTokens: 2000, Chains: []blockhash.Chain{chain(f, 16)}} }, 1984},
		{"the fitting one of several", func(f *fleet) Request {
			return Request{PromptTokens: 2000, Chains: []blockhash.Chain{chain(f, 32), chain(f, 16)}}
		}, 1984},
		{"another block size, tokens", func(f *fleet) Request {
			return Request{TokenIDs: ids, Chains: []blockhash.Chain{chain(f, 32)}}
		}, 1984},
		{"another block size", func(f *fleet) Request {
			return Request{PromptTokens: 2000, Chains: []blockhash.Chain{chain(f, 32)}}
		}, 0},
		{"another root", func(f *fleet) Request {
			return Request{PromptTokens: 2000, Extras: salt, Chains: []blockhash.Chain{chain(f, 16)}}
		}, 0},
		{"another seed", func(f *fleet) Request {
			c := chain(f, 16)
			c.Seed++
			return Request{PromptTokens: 2000, Chains: []blockhash.Chain{c}}
		}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(t, 4, nil)
			f.holds(2, ids)
			if d := cmp.Diff([]int{16}, f.BlockSizes()); d != "" {
				t.Fatalf("BlockSizes (-want +got):\n%s", d)
			}
			req := tt.req(f)
			req.ID = "a"
			if d := f.pick(req); d.PredictedCachedTokens != tt.want || d.PromptBlocks != 125 {
				t.Errorf("predicted %d tokens of %d blocks, want %d of 125", d.PredictedCachedTokens, d.PromptBlocks, tt.want)
			}
		})
	}
}

// TestPickOfChainAllocatesLittle: taking a chain over costs no memory of its length.
func TestPickOfChainAllocatesLittle(t *testing.T) {
	f := newFleet(t, 8, nil)
	ids := prompt(1, 32000)
	h := f.Hasher()
	chains := []blockhash.Chain{{BlockSize: 16, Seed: h.Fingerprint(), Hashes: h.AppendChain(nil, 0, ids, 16)}}
	pick := func(req Request) float64 {
		return testing.AllocsPerRun(200, func() {
			d, err := f.Pick(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			f.Done(d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
		})
	}
	tokens := pick(Request{ID: "a", Model: "llama", TokenIDs: ids})
	if got := pick(Request{ID: "a", Model: "llama", PromptTokens: len(ids), Chains: chains}); got > tokens+1 {
		t.Errorf("a pick of a chain allocates %v times, one of tokens %v", got, tokens)
	}
}
