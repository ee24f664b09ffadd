package tokenizer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/ucd"
	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

func tiny(t testing.TB) *Tokenizer {
	t.Helper()
	data, err := fs.ReadFile(tinymodel.FS(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

type vector struct {
	Text    *string
	IDs     []uint32
	Decoded string
	Skipped *string
}

func vectors(t testing.TB) []vector {
	t.Helper()
	f, err := os.Open("testdata/vectors.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []vector
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v vector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestVectors compares with the Hugging Face library (0.23.3).
func TestVectors(t *testing.T) {
	tok := tiny(t)
	texts, decodes := 0, 0
	for _, v := range vectors(t) {
		if v.Text != nil {
			texts++
			if got := tok.Encode(nil, *v.Text); !slices.Equal(got, v.IDs) {
				t.Errorf("Encode(%.200q)\n got %v\nwant %v", *v.Text, got, v.IDs)
			}
		}
		decodes++
		if got := tok.Decode(v.IDs, false); got != v.Decoded {
			t.Errorf("Decode(%v)\n got %q\nwant %q", v.IDs, got, v.Decoded)
		}
		if v.Skipped != nil {
			if got := tok.Decode(v.IDs, true); got != *v.Skipped {
				t.Errorf("Decode(%v) without special tokens\n got %q\nwant %q", v.IDs, got, *v.Skipped)
			}
		}
	}
	if texts < 300 {
		t.Errorf("%d texts, want at least 300", texts)
	}
	t.Logf("%d texts, %d decodes", texts, decodes)
}

// TestCut shows what the segment cache rests on: text tokenizes piece by piece
// at added tokens to the same ids as at once.
func TestCut(t *testing.T) {
	tok := tiny(t)
	tests := []struct {
		name, text string
		before     string
		token      string
		rest       string
	}{
		{"none", "plain", "plain", "", ""},
		{"start", "<|im_start|>user", "", "<|im_start|>", "user"},
		{"middle", "a <think> b", "a ", "<think>", " b"},
		{"leftmost", "</think><think>", "", "</think>", "<think>"},
		{"broken before whole", "<|im_<|im_end|>", "<|im_", "<|im_end|>", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, id, rest, found := tok.Cut(tt.text)
			want, _ := tok.TokenID(tt.token)
			if before != tt.before || rest != tt.rest || found != (tt.token != "") || found && id != want {
				t.Errorf("Cut = %q, %d, %q, %v", before, id, rest, found)
			}
		})
	}
}

// naive merges by searching all pairs again after every merge.
func naive(tok *Tokenizer, word string) []uint32 {
	var ids []uint32
	for i := range len(word) {
		ids = append(ids, tok.model.byteID[word[i]])
	}
	for {
		best, into, at := noRank, uint32(0), 0
		for i := range len(ids) - 1 {
			if r, id := tok.model.merges.get(ids[i], ids[i+1]); r < best {
				best, into, at = r, id, i
			}
		}
		if best == noRank {
			return ids
		}
		ids = append(append(ids[:at:at], into), ids[at+2:]...)
	}
}

func TestMergeAgainstNaive(t *testing.T) {
	tok := tiny(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var m merger
	for range 2000 {
		b := make([]byte, 1+rng.IntN(150))
		for i := range b {
			b[i] = "etaonrishdlu_-="[rng.IntN(15)]
		}
		word := string(b)
		want := naive(tok, word)
		if got := m.long(&tok.model, nil, word); !slices.Equal(got, want) {
			t.Fatalf("long(%q) = %v, want %v", word, got, want)
		}
		if len(word) <= lineMax {
			if got := m.short(&tok.model, nil, word); !slices.Equal(got, want) {
				t.Fatalf("short(%q) = %v, want %v", word, got, want)
			}
		}
		for range 2 { // filled, then from the cache
			if got := m.encode(&tok.model, nil, word, false); !slices.Equal(got, want) {
				t.Fatalf("encode(%q) = %v, want %v", word, got, want)
			}
		}
	}
}

// TestLongRun would take minutes with quadratic merging.
func TestLongRun(t *testing.T) {
	tok := tiny(t)
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = "etaonrishdlu"[rng.IntN(12)]
	}
	start := time.Now()
	ids := tok.Encode(nil, string(b))
	took := time.Since(start)
	if got := tok.Decode(ids, false); got != string(b) {
		t.Error("a megabyte without a space does not come back")
	}
	if took > 20*time.Second {
		t.Errorf("a megabyte without a space took %v", took)
	}
	t.Logf("%d tokens in %v", len(ids), took)
}

func TestParseRefuses(t *testing.T) {
	good, err := fs.ReadFile(tinymodel.FS(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, old, new, want string }{
		{"not JSON", "{", "", "read tokenizer file: at byte"},
		{"wrong kind", `"type":"BPE"`, `"type":7`, "model.type"},
		{"no model", `"model":{`, `"other":{`, "model: the file has none"},
		{"model", `"type":"BPE"`, `"type":"Unigram"`, `model: type "Unigram" is not supported`},
		{"dropout", `"dropout":null`, `"dropout":0.5`, "dropout is not supported"},
		{"word suffix", `"end_of_word_suffix":null`, `"end_of_word_suffix":"</w>"`, "subword prefix or suffix"},
		{"no vocabulary", `"vocab":{`, `"words":{`, "model.vocab: no vocabulary"},
		{"no merges", `"merges":[`, `"mergers":[`, "model: no merges"},
		{"id out of range", `"!":0`, `"!":16000000`, "out of range"},
		{"id too large", `"!":0`, `"!":99999999999`, "is too large"},
		{"id no number", `"!":0`, `"!":"0"`, "is no number"},
		{"id twice", `"!":0`, `"!":1`, "have the same id 1"},
		{"normalizer", `"type":"NFC"`, `"type":"Nmt"`, `normalizer: type "Nmt" is not supported`},
		{"pattern", `(?!\\S)`, `(?<!\\S)`, `pre_tokenizer[0]: pattern`},
		{"pre-tokenizer", `"type":"Split"`, `"type":"BertPreTokenizer"`, `pre_tokenizer[0]: type "BertPreTokenizer" is not supported`},
		{"behavior", `"Isolated"`, `"Shredded"`, `pre_tokenizer[0]: behavior "Shredded"`},
		{"decoder", `"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"WordPiece"`, `decoder: type "WordPiece" is not supported`},
		{"post-processor", `"post_processor":{"type":"ByteLevel"`, `"post_processor":{"type":"Magic"`, `post_processor: type "Magic"`},
		{"post-processor's ids", `"post_processor":{"type":"ByteLevel"`, `"post_processor":{"type":"RobertaProcessing"`, `sep or cls is missing`},
		{"post-processor's id out of range", `"post_processor":{"type":"ByteLevel"`, `"post_processor":{"type":"RobertaProcessing","cls":["a",1],"sep":["b",4000000]`, `id 4000000 belongs to no token`},
		{"merge", `"merges":[["Ġ","Ġ"]`, `"merges":[["Ġ","ĠQX"]`, "not in the vocabulary"},
		{"half a merge", `"merges":[["Ġ","Ġ"]`, `"merges":[["Ġ"]`, "merge 0"},
		{"bytes", `"vocab":{"!":0`, `"vocab":{"!!!!!":0`, "not a byte-level vocabulary"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(string(good), tt.old) {
				t.Fatalf("the file has no %q", tt.old)
			}
			_, err := Parse([]byte(strings.Replace(string(good), tt.old, tt.new, 1)))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestParseBounds(t *testing.T) {
	good, err := fs.ReadFile(tinymodel.FS(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 100, len(good) / 2, len(good) - 2} {
		if _, err := Parse(good[:n]); err == nil {
			t.Errorf("the first %d bytes of a file were accepted", n)
		}
	}
	large := bytes.Repeat([]byte{' '}, MaxFileBytes+1)
	if _, err := Parse(large); err == nil || !strings.Contains(err.Error(), "at most 128 MB") {
		t.Errorf("a file of %d bytes: %v", len(large), err)
	}
}

func TestPostProcessor(t *testing.T) {
	good, err := fs.ReadFile(tinymodel.FS(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var f map[string]json.RawMessage
	if err := json.Unmarshal(good, &f); err != nil {
		t.Fatal(err)
	}
	f["post_processor"] = json.RawMessage(`{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing",
		"single":[{"SpecialToken":{"id":"B","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"E","type_id":0}}],
		"special_tokens":{"B":{"id":"B","ids":[7]},"E":{"id":"E","ids":[8,9]}}}]}`)
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tok.Prefix(), []uint32{7}) || !slices.Equal(tok.Suffix(), []uint32{8, 9}) {
		t.Errorf("prefix %v, suffix %v", tok.Prefix(), tok.Suffix())
	}
}

func FuzzEncode(f *testing.F) {
	tok := tiny(f)
	for _, v := range vectors(f)[:200] {
		f.Add(*v.Text)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ids := tok.Encode(nil, s)
		// Pieces and the whole agree, and text that NFC leaves alone comes back.
		var pieces []uint32
		for rest := s; rest != ""; {
			before, id, after, found := tok.Cut(rest)
			pieces = tok.EncodePiece(pieces, before)
			if found {
				pieces = append(pieces, id)
			}
			rest = after
		}
		if !slices.Equal(ids, pieces) {
			t.Fatalf("%q: %v at once, %v in pieces", s, ids, pieces)
		}
		if utf8.ValidString(s) && ucd.Load().NFC(s) == s {
			if got := tok.Decode(ids, false); got != s {
				t.Fatalf("%q came back as %q", s, got)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	tok := tiny(b)
	var english, mixed strings.Builder
	for _, v := range vectors(b) {
		if v.Text != nil && len(*v.Text) < 300 {
			mixed.WriteString(*v.Text)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	words := strings.Fields("the quick brown fox jumps over a lazy dog while functions return objects of classes that nobody ever wrote documentation for, and statements import modules; values are lists.")
	for english.Len() < 100<<10 {
		fmt.Fprintf(&english, "%s ", words[rng.IntN(len(words))])
	}
	long := strings.Repeat("etaonrishdlucmfwyp", 6000)
	for _, bb := range []struct{ name, text string }{{"english", english.String()}, {"mixed", mixed.String()}, {"onerun", long}} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bb.text)))
			var ids []uint32
			for b.Loop() {
				ids = tok.Encode(ids[:0], bb.text)
			}
			b.ReportMetric(float64(len(ids)), "tokens/op")
		})
	}
}
