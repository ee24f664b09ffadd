package blockhash

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestAppendInPieces: a prompt fed in pieces of any length has the chain of the whole.
func TestAppendInPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	h := NewHasher(7)
	for range 500 {
		tokens := make([]uint32, rng.IntN(400))
		for i := range tokens {
			tokens[i] = rng.Uint32()
		}
		size := 1 + rng.IntN(40)
		root := h.Root(Extra{Kind: CacheSalt, Value: []string{"", "salt"}[rng.IntN(2)]})
		want := h.AppendChain(nil, root, tokens, size)
		var got []Hash
		open, last := make([]uint32, 0, size), root
		rest := tokens
		for len(rest) > 0 {
			n := rng.IntN(len(rest) + 1)
			got, last, open = h.Append(got, last, open, rest[:n], size)
			rest = rest[n:]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d tokens in blocks of %d: got %v, want %v", len(tokens), size, got, want)
		}
		if !slices.Equal(open, tokens[len(tokens)/size*size:]) || len(want) > 0 && last != want[len(want)-1] {
			t.Fatalf("state after %d tokens in blocks of %d is wrong", len(tokens), size)
		}
	}
}

func TestFits(t *testing.T) {
	h := NewHasher(7)
	root := h.Root(Extra{Kind: LoRA, Value: "a"})
	c := Chain{BlockSize: 16, Seed: h.Fingerprint(), Root: root}
	tests := []struct {
		name string
		h    Hasher
		root Hash
		size int
		want bool
	}{
		{"same", h, root, 16, true},
		{"other seed", NewHasher(8), root, 16, false},
		{"other root", h, 0, 16, false},
		{"other block size", h, root, 32, false},
	}
	for _, tt := range tests {
		if got := c.Fits(tt.h, tt.root, tt.size); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
