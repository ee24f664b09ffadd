package blockhash

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
)

var update = flag.Bool("update", false, "rewrite golden files; never needed while the hash rule stands")

// tokensOf makes n token ids that look like those of a vocabulary, by an arithmetic rule that other languages can repeat.
func tokensOf(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i*i*31+i*7+1) % 128256
	}
	return out
}

// golden is one frozen case: tokens are those of tokensOf.
type golden struct {
	Name        string
	Seed        uint64
	Fingerprint string
	BlockSize   int
	Tokens      int
	Root        []Extra
	Touch       []Extra // of block 1
	Local       []string
	Chain       []string
}

func hexes(hs []Hash) []string {
	var out []string
	for _, h := range hs {
		out = append(out, fmt.Sprintf("%016x", uint64(h)))
	}
	return out
}

func (g *golden) compute() {
	h, tokens := NewHasher(g.Seed), tokensOf(g.Tokens)
	g.Fingerprint = fmt.Sprintf("%08x", h.Fingerprint())
	parent := h.Root(g.Root...)
	var local, chain []Hash
	for i := range len(tokens) / g.BlockSize {
		l := h.Local(tokens[i*g.BlockSize : (i+1)*g.BlockSize])
		if i == 1 {
			l = h.Touch(l, g.Touch...)
		}
		parent = h.Next(parent, l)
		local, chain = append(local, l), append(chain, parent)
	}
	g.Local, g.Chain = hexes(local), hexes(chain)
}

func TestGolden(t *testing.T) {
	cases := []golden{
		{Name: "plain", Seed: DefaultSeed, BlockSize: 16, Tokens: 71},
		{Name: "other seed", Seed: 0xfeedface, BlockSize: 16, Tokens: 48},
		{Name: "blocks of 64", Seed: DefaultSeed, BlockSize: 64, Tokens: 192},
		{Name: "blocks of 256", Seed: DefaultSeed, BlockSize: 256, Tokens: 512},
		{Name: "blocks of 1", Seed: DefaultSeed, BlockSize: 1, Tokens: 3},
		{Name: "adapter", Seed: DefaultSeed, BlockSize: 16, Tokens: 48, Root: []Extra{{Kind: LoRA, Value: "sql-lora"}}},
		{Name: "salt", Seed: DefaultSeed, BlockSize: 16, Tokens: 48, Root: []Extra{{Kind: CacheSalt, Value: "sql-lora"}}},
		{Name: "adapter and salt", Seed: DefaultSeed, BlockSize: 16, Tokens: 48,
			Root: []Extra{{Kind: LoRA, Value: "sql-lora"}, {Kind: CacheSalt, Value: "tenant 7"}}},
		{Name: "image", Seed: DefaultSeed, BlockSize: 16, Tokens: 48,
			Touch: []Extra{{Kind: Multimodal, Value: "4a5e1e4baab89f3a", Offset: 3}}},
		{Name: "images that began earlier, and embeds", Seed: DefaultSeed, BlockSize: 16, Tokens: 48,
			Touch: []Extra{{Kind: Multimodal, Value: "a", Offset: -20}, {Kind: Multimodal, Value: "b", Offset: 9}, {Kind: PromptEmbeds, Value: "a", Offset: 9}}},
	}
	for i := range cases {
		cases[i].compute()
	}
	const file = "testdata/golden.json"
	if *update {
		b, err := json.MarshalIndent(cases, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want []golden
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, cases); d != "" {
		t.Errorf("hashes changed; every agent and gateway out there disagrees with this (-want +got):\n%s", d)
	}
}

// naiveChain is the rule of the package comment, written down once more.
func naiveChain(seed uint64, root Hash, tokens []uint32, blockSize int) (out []Hash) {
	parent := uint64(root)
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		sum := hashTokensPortable(tokens[:blockSize], seed)
		if parent != 0 {
			sum = xxh3.HashSeed(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, parent), sum), seed)
		}
		parent = sum
		out = append(out, Hash(sum))
	}
	return out
}

func TestAppendChainAgreesWithTwin(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		seed, root, blockSize := r.Uint64(), Hash(r.Uint64()*r.Uint64N(2)), 1+r.IntN(300)
		tokens := make([]uint32, r.IntN(1000))
		for i := range tokens {
			tokens[i] = r.Uint32()
		}
		want := naiveChain(seed, root, tokens, blockSize)
		got := NewHasher(seed).AppendChain(nil, root, tokens, blockSize)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%d tokens in blocks of %d (-want +got):\n%s", len(tokens), blockSize, d)
		}
	}
}

func TestAppendChain(t *testing.T) {
	h, tokens := NewHasher(DefaultSeed), tokensOf(100)
	for _, c := range []struct {
		name              string
		tokens, blockSize int
		want              int
	}{
		{"no tokens", 0, 16, 0},
		{"less than a block", 15, 16, 0},
		{"last block not full", 47, 16, 2},
		{"last block full", 48, 16, 3},
		{"block size 0", 48, 0, 0},
		{"negative block size", 48, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := h.AppendChain([]Hash{7}, 0, tokens[:c.tokens], c.blockSize)
			if got[0] != 7 || len(got)-1 != c.want {
				t.Errorf("got %d blocks behind what was there (%d), want %d", len(got)-1, got[0], c.want)
			}
		})
	}
}

func TestExtras(t *testing.T) {
	h := NewHasher(DefaultSeed)
	local := h.Local(tokensOf(16))
	a, b := Extra{Kind: LoRA, Value: "a"}, Extra{Kind: CacheSalt, Value: "b"}
	img, emb := Extra{Kind: Multimodal, Value: "a", Offset: 3}, Extra{Kind: PromptEmbeds, Value: "a", Offset: 3}

	same := []struct {
		name string
		x, y Hash
	}{
		{"plain root is zero", h.Root(), 0},
		{"empty adapter and salt are none", h.Root(Extra{Kind: LoRA}, Extra{Kind: CacheSalt}), 0},
		{"root is independent of order", h.Root(a, b), h.Root(b, a)},
		{"root leaves items of blocks alone", h.Root(a, img), h.Root(a)},
		{"root knows no offset", h.Root(a), h.Root(Extra{Kind: LoRA, Value: "a", Offset: 9})},
		{"untouched block", h.Touch(local), local},
		{"touch leaves extras of the request alone", h.Touch(local, a, b), local},
		{"touch is independent of order", h.Touch(local, img, emb), h.Touch(local, emb, img)},
	}
	for _, c := range same {
		if c.x != c.y {
			t.Errorf("%s: got %x and %x, want the same", c.name, c.x, c.y)
		}
	}

	differ := map[string]Hash{
		"adapter a":              h.Root(a),
		"salt a":                 h.Root(Extra{Kind: CacheSalt, Value: "a"}),
		"adapter a, salt b":      h.Root(a, b),
		"adapter b, salt a":      h.Root(Extra{Kind: LoRA, Value: "b"}, Extra{Kind: CacheSalt, Value: "a"}),
		"adapter ab":             h.Root(Extra{Kind: LoRA, Value: "ab"}),
		"adapter a twice":        h.Root(a, a),
		"adapter a, other seed":  NewHasher(1).Root(a),
		"block":                  local,
		"image":                  h.Touch(local, img),
		"embeds":                 h.Touch(local, emb),
		"image elsewhere":        h.Touch(local, Extra{Kind: Multimodal, Value: "a", Offset: 4}),
		"image before the block": h.Touch(local, Extra{Kind: Multimodal, Value: "a", Offset: -3}),
		"image and embeds":       h.Touch(local, img, emb),
	}
	seen := map[Hash]string{}
	for name, x := range differ {
		if other, ok := seen[x]; ok || x == 0 {
			t.Errorf("%s: hash %x is zero or that of %q", name, x, other)
		}
		seen[x] = name
	}
}

func TestManyExtras(t *testing.T) {
	h := NewHasher(DefaultSeed)
	var up, down []Extra
	for i := range int32(40) {
		up = append(up, Extra{Kind: Multimodal, Value: "x", Offset: i})
		down = append(down, Extra{Kind: Multimodal, Value: "x", Offset: 39 - i})
	}
	if x, y := h.Touch(1, up...), h.Touch(1, down...); x != y {
		t.Errorf("order matters with many extras: %x, %x", x, y)
	}
}

func TestFingerprint(t *testing.T) {
	seen := map[uint32]uint64{}
	for seed := range uint64(1000) {
		f := NewHasher(seed).Fingerprint()
		if old, ok := seen[f]; ok {
			t.Errorf("seeds %d and %d have the fingerprint %x", old, seed, f)
		}
		seen[f] = seed
	}
}

func TestNoAllocations(t *testing.T) {
	h, tokens, dst := NewHasher(DefaultSeed), tokensOf(32000), make([]Hash, 0, 2000)
	n := testing.AllocsPerRun(10, func() {
		root := h.Root(Extra{Kind: LoRA, Value: "a"}, Extra{Kind: CacheSalt, Value: "b"})
		dst = h.AppendChain(dst[:0], root, tokens, 16)
		dst[0] = h.Touch(dst[0], Extra{Kind: Multimodal, Value: "c"})
	})
	if n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func BenchmarkHash32K(b *testing.B) {
	h, tokens, dst := NewHasher(DefaultSeed), tokensOf(32000), make([]Hash, 0, 2000)
	b.ReportAllocs()
	b.SetBytes(4 * 32000)
	for b.Loop() {
		dst = h.AppendChain(dst[:0], 0, tokens, 16)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2000, "ns/block")
}
