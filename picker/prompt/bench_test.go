package prompt

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

// talk makes chat bodies of about the given number of tokens, and of each the
// next turn with about 200 more.
type talk struct {
	rng      *rand.Rand
	prose    string
	count    func(text string) int
	messages []message
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// prose is what conversations are made of: this repository's pages and code.
func prose(b *testing.B) string {
	b.Helper()
	var all strings.Builder
	for _, pattern := range []string{"../../docs/*.md", "../*.go", "../../gossip/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				b.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}

// say returns text of about n tokens.
func (t *talk) say(n int) string {
	for size := 3 * n; ; size += n / 4 {
		from := t.rng.IntN(len(t.prose) - 2*size)
		text := strings.ToValidUTF8(t.prose[from:from+size], "")
		if t.count(text) >= n {
			return text
		}
	}
}

func (t *talk) turn(tokens int) {
	role := []string{"user", "assistant"}[len(t.messages)%2]
	t.messages = append(t.messages, message{role, t.say(tokens)})
}

func (t *talk) body(b *testing.B) []byte {
	b.Helper()
	text, err := json.Marshal(map[string]any{"model": "m", "stream": true, "messages": t.messages})
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// benchModels are the tiny model, and those of GRAPEVINE_PARITY_DIR.
func benchModels(b *testing.B) map[string]string {
	models := map[string]string{"tiny": tinyDir(b)}
	for _, name := range []string{"llama3_1", "qwen3"} {
		dir := filepath.Join(os.Getenv("GRAPEVINE_PARITY_DIR"), name)
		if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err == nil {
			models[name] = dir
		}
	}
	return models
}

func benchResolver(b *testing.B, dir string, cacheBytes int64) *Resolver {
	b.Helper()
	r, err := New(Config{
		Models: map[string]string{"m": dir}, CacheBytes: cacheBytes,
		Hasher: blockhash.NewHasher(blockhash.DefaultSeed), BlockSizes: func() []int { return []int{16} },
	})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// jsonToChain is what is measured: a body read, understood and turned into its
// chain. It returns the prompt's tokens.
func jsonToChain(b *testing.B, r *Resolver, body []byte) int {
	req, err := openai.Parse(chatPath, body)
	if err != nil {
		b.Fatal(err)
	}
	res, err := r.Resolve(b.Context(), req, "")
	if err != nil || len(res.Chains) != 1 {
		b.Fatal(res.Rung, res.Reason, err)
	}
	res.Release()
	return res.EstimatedTokens
}

const (
	benchMessages = 40
	benchTokens   = 32000
	benchTurn     = 200
)

func newTalk(b *testing.B, r *Resolver) *talk {
	tok := r.models["m"].tok
	t := &talk{prose: prose(b), rng: rand.New(rand.NewPCG(1, 2)), count: func(s string) int { return len(tok.EncodePiece(nil, s)) }}
	for range benchMessages {
		t.turn(benchTokens / benchMessages)
	}
	return t
}

// BenchmarkTurnCold is a conversation of 32,000 tokens that nobody has seen.
func BenchmarkTurnCold(b *testing.B) {
	for name, dir := range benchModels(b) {
		b.Run(name, func(b *testing.B) {
			r := benchResolver(b, dir, -1)
			body := newTalk(b, r).body(b)
			tokens := 0
			b.ReportAllocs()
			for b.Loop() {
				tokens = jsonToChain(b, r, body)
			}
			b.ReportMetric(float64(tokens), "tokens")
		})
	}
}

// BenchmarkTurnWarm is the next turn of it: an answer and a question of 200
// tokens in all are new, each time other ones.
func BenchmarkTurnWarm(b *testing.B) {
	for name, dir := range benchModels(b) {
		b.Run(name, func(b *testing.B) {
			r := benchResolver(b, dir, 0)
			t := newTalk(b, r)
			jsonToChain(b, r, t.body(b))
			bodies := make([][]byte, 512)
			for i := range bodies {
				t.turn(benchTurn / 2)
				t.turn(benchTurn / 2)
				bodies[i] = t.body(b)
				t.messages = t.messages[:benchMessages]
			}
			tokens, n := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				if n > 0 && n%len(bodies) == 0 { // seen already: forget all but the conversation
					b.StopTimer()
					r.chains.lru.Purge()
					r.segments.lru.Purge()
					jsonToChain(b, r, t.body(b))
					b.StartTimer()
				}
				tokens = jsonToChain(b, r, bodies[n%len(bodies)])
				n++
			}
			b.ReportMetric(float64(tokens), "tokens")
		})
	}
}
