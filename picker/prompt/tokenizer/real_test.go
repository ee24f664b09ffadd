package tokenizer

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// eachLine decodes the JSON lines of a gzip file.
func eachLine[T any](tb testing.TB, name string) []T {
	tb.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	var out []T
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			tb.Fatal(err)
		}
		out = append(out, v)
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return out
}

// realModels are the folders of GRAPEVINE_PARITY_DIR, by name.
func realModels(tb testing.TB) map[string]string {
	dir := os.Getenv("GRAPEVINE_PARITY_DIR")
	files, err := filepath.Glob(filepath.Join(dir, "*", "tokenizer.json"))
	if err != nil {
		tb.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		if dir != "" {
			out[filepath.Base(filepath.Dir(f))] = filepath.Dir(f)
		}
	}
	return out
}

func loadReal(tb testing.TB, dir string) *Tokenizer {
	tb.Helper()
	tok, err := Load(os.DirFS(dir), "tokenizer.json")
	if err != nil {
		tb.Fatal(err)
	}
	return tok
}

type realVector struct {
	Text       string   `json:"text"`
	Llama31    []uint32 `json:"llama3_1"`
	Qwen3      []uint32 `json:"qwen3"`
	DeepSeekV3 []uint32 `json:"deepseek_v3"`
	GPTOSS     []uint32 `json:"gptoss"`
}

// TestRealVectors compares with what the Hugging Face library (0.23.2) made of
// 1,547 strings by four real files.
func TestRealVectors(t *testing.T) {
	models := realModels(t)
	if len(models) == 0 {
		t.Skip("GRAPEVINE_PARITY_DIR is not set: run `make parity` for the models' files")
	}
	vectors := eachLine[realVector](t, "real_vectors.jsonl.gz")
	for name, want := range map[string]func(*realVector) []uint32{
		"llama3_1":    func(v *realVector) []uint32 { return v.Llama31 },
		"qwen3":       func(v *realVector) []uint32 { return v.Qwen3 },
		"deepseek_v3": func(v *realVector) []uint32 { return v.DeepSeekV3 },
		"gptoss":      func(v *realVector) []uint32 { return v.GPTOSS },
	} {
		t.Run(name, func(t *testing.T) {
			if models[name] == "" {
				t.Skipf("no %s in GRAPEVINE_PARITY_DIR: run `make parity`", name)
			}
			tok := loadReal(t, models[name])
			for i := range vectors {
				v := &vectors[i]
				if got := tok.Encode(nil, v.Text); !slices.Equal(got, want(v)) {
					t.Errorf("Encode(%.200q): got %d ids, want %d", v.Text, len(got), len(want(v)))
				}
			}
			t.Logf("%d texts", len(vectors))
		})
	}
}

// longText is 126 KB, 29,000 to 31,000 tokens, of every kind of text.
func longText(tb testing.TB) string {
	vectors := eachLine[realVector](tb, "real_vectors.jsonl.gz")
	return vectors[len(vectors)-1].Text
}

// BenchmarkTokenizeCold encodes a text of about 29,000 tokens: "cold" without
// any word of it remembered, "again" as the next text of the same words.
func BenchmarkTokenizeCold(b *testing.B) {
	text := longText(b)
	run := func(name string, tok *Tokenizer) {
		for _, state := range []string{"cold", "again"} {
			b.Run(name+"/"+state, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text)))
				var ids []uint32
				for b.Loop() {
					if state == "cold" {
						tok.scratch = sync.Pool{}
					}
					ids = tok.Encode(ids[:0], text)
				}
				b.ReportMetric(float64(len(ids)), "tokens/op")
			})
		}
	}
	models := realModels(b)
	for name, dir := range models {
		run(name, loadReal(b, dir))
	}
	if len(models) == 0 {
		run("tiny", tiny(b))
	}
}

// BenchmarkNoSpaces1MB compares 1 MB without a space with 256 KB: the time per
// byte should be the same but for the logarithm of the heap's size.
func BenchmarkNoSpaces1MB(b *testing.B) {
	run := func(name string, tok *Tokenizer) {
		for _, size := range []struct {
			name  string
			bytes int
		}{{"256KB", 256 << 10}, {"1MB", 1 << 20}} {
			text := strings.Repeat("etaonrishdlucmfwyp", size.bytes/18+1)[:size.bytes]
			b.Run(name+"/"+size.name, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text)))
				var ids []uint32
				for b.Loop() {
					ids = tok.Encode(ids[:0], text)
				}
			})
		}
	}
	models := realModels(b)
	for name, dir := range models {
		run(name, loadReal(b, dir))
	}
	if len(models) == 0 {
		run("tiny", tiny(b))
	}
}

// TestLoadTime holds loading a real file to a bound that no machine misses.
func TestLoadTime(t *testing.T) {
	models := realModels(t)
	if len(models) == 0 {
		t.Skip("GRAPEVINE_PARITY_DIR is not set: run `make parity` for the models' files")
	}
	for name, dir := range models {
		start := time.Now()
		tok := loadReal(t, dir)
		took := time.Since(start)
		t.Logf("%-14s %d tokens in %v", name, tok.Size(), took)
		if took > 30*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}
