package pool

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// lines calls f for every line of a gzipped JSON-lines file in testdata.
func lines(t *testing.T, name string, f func(line []byte)) {
	t.Helper()
	file, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(z)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		f(s.Bytes())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestHashVectors checks chains against vectors made by vLLM's own functions
// (0.22, bare extras).
func TestHashVectors(t *testing.T) {
	type vector struct {
		Name      string
		Algo      string
		Seed      *string
		NoneHash  string `json:"none_hash"`
		BlockSize int    `json:"block_size"`
		Tokens    json.RawMessage
		LoRA      *string `json:"lora_name"`
		Salt      *string `json:"cache_salt"`
		MM        []any
		Hashes    []string
	}
	checked := 0
	lines(t, "hash-vectors.jsonl.gz", func(line []byte) {
		var v vector
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		// The engine has one algorithm and one group, no images, and adapters by name.
		if v.Algo != "sha256_cbor" || v.NoneHash == "" || len(v.MM) > 0 || v.Name == "sha256_cbor-lora-before-v0.11.1" {
			return
		}
		var tokens []uint32
		if err := json.Unmarshal(v.Tokens, &tokens); err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		checked++
		t.Run(v.Name, func(t *testing.T) {
			var h Hasher
			if v.Seed != nil {
				h = NewHasher(*v.Seed, true)
				if got := hex.EncodeToString(h.none[:]); got != v.NoneHash {
					t.Fatalf("NONE_HASH = %s, want %s", got, v.NoneHash)
				}
			} else if _, err := hex.Decode(h.none[:], []byte(v.NoneHash)); err != nil {
				t.Fatal(err)
			}
			var x Extras
			if v.LoRA != nil {
				x.Adapter = &Adapter{Name: *v.LoRA}
			}
			if v.Salt != nil {
				x.Salt = *v.Salt
			}
			got := h.AppendChain(nil, tokens, v.BlockSize, x)
			if len(got) != len(v.Hashes) {
				t.Fatalf("%d blocks, want %d", len(got), len(v.Hashes))
			}
			for i := range got {
				if s := hex.EncodeToString(got[i][:]); s != v.Hashes[i] {
					t.Errorf("block %d: %s, want %s", i, s, v.Hashes[i])
				}
			}
		})
	})
	if checked < 10 {
		t.Errorf("only %d vectors checked", checked)
	}
}

// TestSeedUnset pins the fixed seed of vLLM 0.29 and later.
func TestSeedUnset(t *testing.T) {
	unset, text := NewHasher("", false), NewHasher("vllm-none-hash", false)
	if unset.None() != text.None() {
		t.Error("an unset seed does not start at the hash of vllm-none-hash")
	}
	if unset.None() == NewHasher("0", false).None() {
		t.Error("seeds do not matter")
	}
}

// TestTaggedExtras: since 0.31 an adapter and a salt of one name differ, and so
// do two paths of one name.
func TestTaggedExtras(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	chain := func(bare bool, x Extras) Digest {
		return NewHasher("0", bare).AppendChain(nil, tokens, 4, x)[0]
	}
	name := Extras{Adapter: &Adapter{Name: "a", Path: "p"}}
	other := Extras{Adapter: &Adapter{Name: "a", Path: "q"}}
	salt := Extras{Salt: "a"}
	if chain(true, name) != chain(true, salt) {
		t.Error("bare: an adapter and a salt of one name differ; in vLLM up to 0.30 they do not")
	}
	if chain(false, name) == chain(false, salt) {
		t.Error("tagged: an adapter and a salt of one name share a hash")
	}
	if chain(false, name) == chain(false, other) {
		t.Error("tagged: the adapter's path does not matter")
	}
}

func BenchmarkTable32K(b *testing.B) {
	h := NewHasher("", false)
	tokens := make([]uint32, 32000)
	for i := range tokens {
		tokens[i] = uint32(i * 7)
	}
	b.ReportAllocs()
	for b.Loop() {
		NewTable(h, tokens, 16, Extras{})
	}
}
