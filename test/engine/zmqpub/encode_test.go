package zmqpub

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

func lines(t testing.TB, path string, f func(line []byte)) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".gz") {
		raw = gunzip(t, raw)
	}
	s := bufio.NewScanner(bytes.NewReader(raw))
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		f(s.Bytes())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

func gunzip(t testing.TB, raw []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// wantEvent is an event as the fixtures describe it.
type wantEvent struct {
	Type      string
	Hashes    []string   `json:"block_hashes"`
	Parent    *string    `json:"parent_block_hash"`
	Tokens    []uint32   `json:"token_ids"`
	BlockSize int        `json:"block_size"`
	LoRAID    *int       `json:"lora_id"`
	LoRA      *string    `json:"lora_name"`
	Extra     [][]string `json:"extra_keys"`
}

// digest reads "i:<decimal>" or "b:<hex>".
func digest(t *testing.T, s string) (d pool.Digest) {
	t.Helper()
	if text, ok := strings.CutPrefix(s, "i:"); ok {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			d[len(d)-1-i] = byte(n >> (8 * i))
		}
		return d
	}
	if _, err := hex.Decode(d[:], []byte(s[2:])); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestPayloads encodes what vLLM's own event classes encoded, byte for byte.
func TestPayloads(t *testing.T) {
	lines(t, "testdata/payloads.jsonl", func(line []byte) {
		var f struct {
			Name    string
			Array   bool
			Payload []byte
			Expect  struct {
				TS     float64
				Rank   int `json:"dp_rank"`
				Events []wantEvent
			}
		}
		if err := json.Unmarshal(line, &f); err != nil {
			t.Fatal(err)
		}
		t.Run(f.Name, func(t *testing.T) {
			form := Form{ArrayEvents: f.Array, BytesHashes: strings.HasSuffix(f.Name, "bytes")}
			var events []pool.Event
			for _, w := range f.Expect.Events {
				ev := pool.Event{Tokens: w.Tokens, BlockSize: w.BlockSize, ExtraKeys: w.Extra}
				ev.Kind = map[string]pool.EventKind{
					"BlockStored": pool.Stored, "BlockRemoved": pool.Removed, "AllBlocksCleared": pool.Cleared,
				}[w.Type]
				for _, h := range w.Hashes {
					ev.Hashes = append(ev.Hashes, digest(t, h))
				}
				if w.Parent != nil {
					d := digest(t, *w.Parent)
					ev.Parent = &d
				}
				if w.LoRA != nil {
					ev.Adapter = &pool.Adapter{ID: *w.LoRAID, Name: *w.LoRA}
				}
				events = append(events, ev)
			}
			got := form.AppendBatch(nil, f.Expect.TS, f.Expect.Rank, events)
			if !bytes.Equal(got, f.Payload) {
				t.Errorf("got  %x\nwant %x", got, f.Payload)
			}
		})
	})
}

// request is one line of a capture's oracle.
type request struct {
	Op      string
	Label   string
	Prompt  []uint32   `json:"prompt_token_ids"`
	Outputs [][]uint32 `json:"output_token_ids"`
	Cached  int        `json:"cached_tokens"`
	LoRA    []string
	Body    struct {
		Salt     string `json:"cache_salt"`
		LogProbs *int   `json:"prompt_logprobs"`
	}
}

// TestRealEngineCaptures sends the requests of captured runs of real engines
// through the pool: the payloads must be equal byte for byte, but for the clock.
// That covers hashes (both forms of extra keys, both seed rules), evictions,
// copies, and the encoding.
func TestRealEngineCaptures(t *testing.T) {
	const dir = "../pool/testdata/real-vllm/"
	for _, c := range []struct {
		name    string
		blocks  int
		array   bool
		batches int // that must be equal: up to the first request with several choices
	}{
		{name: "lora", blocks: 2000, batches: 5},
		{name: "seed-unset", blocks: 2000, batches: 5},
		{name: "eviction-churn", blocks: 40, batches: 166},
		{name: "v0221-block16", blocks: 80, batches: 57, array: true},
		{name: "chat-multiturn", blocks: 2000, batches: 28},
		{name: "completions-mixed", blocks: 2000, batches: 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw, err := os.ReadFile(dir + c.name + ".oracle.json.gz")
			if err != nil {
				t.Fatal(err)
			}
			var o struct {
				BlockSize int `json:"block_size"`
				Seed      string
				Tagged    bool `json:"extra_keys_tagged"`
				Requests  []request
			}
			if err := json.Unmarshal(gunzip(t, raw), &o); err != nil {
				t.Fatal(err)
			}
			var want [][]byte
			lines(t, dir+c.name+".jsonl.gz", func(line []byte) {
				var m struct {
					Payload string `json:"payload_b64"`
				}
				if err := json.Unmarshal(line, &m); err != nil {
					t.Fatal(err)
				}
				b, err := base64.StdEncoding.DecodeString(m.Payload)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, b)
			})
			if c.name == "seed-unset" {
				o.Seed = ""
			}
			e := emulation{t: t, form: Form{ArrayEvents: c.array}, pool: pool.New(pool.Config{Blocks: c.blocks, BlockSize: o.BlockSize, UncachedLast: c.array}),
				hasher: pool.NewHasher(o.Seed, !o.Tagged), blockSize: o.BlockSize}
			for _, r := range o.Requests {
				if len(r.Outputs) > 1 {
					break
				}
				e.do(r)
			}
			if len(e.batches) != c.batches {
				t.Errorf("%d batches of %d compared, want %d", len(e.batches), len(want), c.batches)
			}
			for i, got := range e.batches {
				if i >= len(want) || !bytes.Equal(noClock(got), noClock(want[i])) {
					t.Fatalf("batch %d of %d differs\ngot  %x\nwant %x", i, len(want), got, want[min(i, len(want)-1)])
				}
			}
		})
	}
}

// noClock is a batch without its first field, 9 bytes after the array's head.
func noClock(b []byte) []byte { return b[10:] }

type emulation struct {
	t         *testing.T
	form      Form
	pool      *pool.Pool
	hasher    pool.Hasher
	blockSize int
	batches   [][]byte
}

func (e *emulation) step() {
	if ev := e.pool.TakeEvents(); len(ev) > 0 {
		e.batches = append(e.batches, e.form.AppendBatch(nil, 0, 0, ev))
	}
}

func (e *emulation) do(r request) {
	if r.Op == "POST /reset_prefix_cache" {
		e.pool.Reset()
		return
	}
	if r.Op != "request" {
		return
	}
	x := pool.Extras{Salt: r.Body.Salt}
	if len(r.LoRA) == 2 {
		x.Adapter = &pool.Adapter{ID: 1, Name: r.LoRA[0], Path: r.LoRA[1]}
	}
	table := pool.NewTable(e.hasher, r.Prompt, e.blockSize, x)
	cached, ok := e.pool.Admit(table, 0, r.Body.LogProbs != nil)
	if !ok || !e.pool.Fill(table, table.Len()) {
		e.t.Fatalf("%s: does not fit", r.Label)
	}
	if cached != r.Cached {
		e.t.Errorf("%s: %d cached tokens, engine had %d", r.Label, cached, r.Cached)
	}
	e.step()
	out := r.Outputs[0]
	for _, token := range out[:len(out)-1] { // the last one is never computed
		table.Append(token)
		e.pool.Fill(table, table.Len())
		e.step()
	}
	e.pool.Release(table)
}

// TestShortestForms checks the writer at the borders of each width against an
// independent decoder.
func TestShortestForms(t *testing.T) {
	for _, n := range []uint64{0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 1 << 32, 1<<64 - 1} {
		var got uint64
		b := appendUint(nil, n)
		if err := msgpack.Unmarshal(b, &got); err != nil || got != n {
			t.Errorf("%d: decoded %d, %v", n, got, err)
		}
	}
	for _, n := range []int{0, 31, 32, 255, 256, 65535, 65536} {
		want, got := strings.Repeat("x", n), ""
		if err := msgpack.Unmarshal(appendString(nil, want), &got); err != nil || got != want {
			t.Errorf("string of %d: %d decoded, %v", n, len(got), err)
		}
	}
	for _, n := range []int{0, 15, 16, 65535, 65536} {
		b := appendArray(nil, n)
		for range n {
			b = append(b, msgNil)
		}
		var got []any
		if err := msgpack.Unmarshal(b, &got); err != nil || len(got) != n {
			t.Errorf("array of %d: %d decoded, %v", n, len(got), err)
		}
	}
}

func BenchmarkBatch2000Blocks(b *testing.B) {
	tokens := make([]uint32, 32000)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	p := pool.New(pool.Config{Blocks: 4000, BlockSize: 16})
	x := pool.NewTable(pool.NewHasher("", false), tokens, 16, pool.Extras{})
	p.Admit(x, 0, false)
	p.Fill(x, len(tokens))
	ev := p.TakeEvents()
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = Form{}.AppendBatch(dst[:0], 1, 0, ev)
	}
	b.SetBytes(int64(len(dst)))
}
