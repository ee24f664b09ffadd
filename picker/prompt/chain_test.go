package prompt

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// pieces are what hostile prompts are made of: added tokens and parts of them,
// short and long texts, marks that combine with what is before.
var pieces = []string{"<|im_start|>", "<|im_end|>", "<think>", "</tool_call>", "user\n", "\n", " ", "e", "\u0301", "'s", "Hello world ", "12345", "日本語", "🙂",
	strings.Repeat("long text that is cached ", 4), strings.Repeat("\u0301", 40), strings.Repeat(" ", 60), "<|im_", "end|>", "a\r\n \n" + strings.Repeat("x", 50)}

func randomText(rng *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(pieces[rng.IntN(len(pieces))])
	}
	return b.String()
}

func (c *segmentCache) encodeText(tok *tokenizer.Tokenizer, text string) []uint32 {
	return c.encode(nil, tok, c.cut(nil, tok, 0, cacheKey{}, text))
}

// TestSegmentsAreExact: whatever is in the cache, the ids are those of the
// whole text at once.
func TestSegmentsAreExact(t *testing.T) {
	tok := tinyTokenizer(t)
	rng := rand.New(rand.NewPCG(3, 4))
	c := newSegmentCache(newKeys(), 1<<16) // small: entries come and go
	for i := range 3000 {
		text := randomText(rng, 1+rng.IntN(12))
		want := tok.Encode(nil, text)
		if got := c.encodeText(tok, text); !slices.Equal(got, want) {
			t.Fatalf("text %d %q\n got %v\nwant %v", i, text, got, want)
		}
		if c.used > c.max {
			t.Fatalf("cache holds %d bytes, bound %d", c.used, c.max)
		}
	}
	if c.hits.Load() == 0 || c.misses.Load() == 0 {
		t.Errorf("%d hits, %d misses: the test did not exercise the cache", c.hits.Load(), c.misses.Load())
	}
}

func TestSegmentCacheForgets(t *testing.T) {
	tok := tinyTokenizer(t)
	c := newSegmentCache(newKeys(), 8<<10)
	for i := range 1000 {
		c.encodeText(tok, fmt.Sprintf("segment number %d is long enough to be put into the cache", i))
	}
	if c.used > c.max || c.lru.Len() == 0 {
		t.Errorf("cache holds %d bytes in %d entries, bound %d", c.used, c.lru.Len(), c.max)
	}
	off := newSegmentCache(newKeys(), -1)
	off.encodeText(tok, strings.Repeat("nothing is kept ", 10))
	if off.lru.Len() != 0 {
		t.Error("a cache that is switched off keeps entries")
	}
}

// TestChainsAreExact: conversations that grow turn by turn, fork, and change in
// the middle have the chains of their whole text at once, whatever the caches
// hold and for every block size, root and seed.
func TestChainsAreExact(t *testing.T) {
	tok := tinyTokenizer(t)
	for _, cacheBytes := range []int64{-1, 40 << 10, 1 << 20} {
		t.Run(fmt.Sprint("cache of ", cacheBytes), func(t *testing.T) {
			k := newKeys()
			c := newChainCache(newSegmentCache(k, cacheBytes), cacheBytes)
			rng := rand.New(rand.NewPCG(5, uint64(cacheBytes)))
			sizes := [][]int{{16}, {1}, {64, 16}, {16, 64, 7}}
			var talks []string
			for i := range 1500 {
				text := ""
				if len(talks) > 0 && rng.IntN(4) > 0 {
					text = talks[rng.IntN(len(talks))]
				}
				if len(text) > 20 && rng.IntN(8) == 0 { // a change in the middle
					at := strings.LastIndexByte(text[:rng.IntN(len(text))], '<')
					text = text[:max(0, at)] + "changed" + text[max(0, at):]
				}
				text += "<|im_start|>user\n" + randomText(rng, 1+rng.IntN(20)) + "<|im_end|>\n"
				if talks = append(talks, text); len(talks) > 20 {
					talks = slices.Delete(talks, 0, 1)
				}
				h := blockhash.NewHasher(uint64(rng.IntN(2)))
				s := &source{tok: tok, text: text + "<|im_start|>assistant\n", hasher: h, sizes: sizes[rng.IntN(len(sizes))]}
				if rng.IntN(3) == 0 {
					s.root = h.Root(blockhash.Extra{Kind: blockhash.CacheSalt, Value: "s"})
				}
				if rng.IntN(3) == 0 {
					s.prefix, s.suffix = []uint32{1, 2}, []uint32{3}
				}
				ids := append(tok.Encode(slices.Clone(s.prefix), s.text), s.suffix...)
				w := c.chains(s)
				var want []blockhash.Chain
				for _, size := range s.sizes {
					want = append(want, blockhash.Chain{BlockSize: size, Seed: h.Fingerprint(), Root: s.root, Hashes: h.AppendChain(nil, s.root, ids, size)})
				}
				if w.tokens != len(ids) {
					t.Fatalf("prompt %d %q: %d tokens, want %d", i, s.text, w.tokens, len(ids))
				}
				for j := range want {
					if !slices.Equal(w.chains[j].Hashes, want[j].Hashes) || w.chains[j].BlockSize != want[j].BlockSize || w.chains[j].Seed != want[j].Seed || w.chains[j].Root != want[j].Root {
						t.Fatalf("prompt %d %q: chain of blocks of %d differs", i, s.text, want[j].BlockSize)
					}
				}
				c.release(w)
				if c.used > max(0, c.max) {
					t.Fatalf("cache holds %d bytes, bound %d", c.used, c.max)
				}
			}
			if hits := c.hits.Load(); cacheBytes > 0 == (hits == 0) {
				t.Errorf("%d hits", hits)
			}
		})
	}
}

// TestTurnsCostTheirNewText counts what a growing conversation tokenizes.
func TestTurnsCostTheirNewText(t *testing.T) {
	tok := tinyTokenizer(t)
	c := newChainCache(newSegmentCache(newKeys(), 1<<20), 1<<20)
	text := ""
	for turn := range 30 {
		text += fmt.Sprintf("<|im_start|>user\nTurn %d %s<|im_end|>\n", turn, strings.Repeat("some more words ", 30))
		before := c.misses.Load()
		w := c.chains(&source{tok: tok, text: text, hasher: blockhash.NewHasher(1), sizes: []int{16}})
		if got := len(w.found); turn > 0 && got < turn-1 {
			t.Errorf("turn %d: %d places known", turn, got)
		}
		c.release(w)
		if got := c.misses.Load() - before; got > 2 {
			t.Errorf("turn %d: %d places not known, want 2 at most", turn, got)
		}
	}
}

func TestChainsConcurrently(t *testing.T) {
	tok := tinyTokenizer(t)
	c := newChainCache(newSegmentCache(newKeys(), 60<<10), 60<<10)
	h := blockhash.NewHasher(1)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g%3), 1))
			text := ""
			for range 60 {
				text += "<|im_start|>" + randomText(rng, 10) + strings.Repeat("words ", 50)
				w := c.chains(&source{tok: tok, text: text, hasher: h, sizes: []int{16}})
				if d := cmp.Diff(h.AppendChain(nil, 0, tok.Encode(nil, text), 16), w.chains[0].Hashes); d != "" {
					t.Errorf("chain of %q (-want +got):\n%s", text, d)
					return
				}
				c.release(w)
			}
		})
	}
	wg.Wait()
}
