package trace

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

const mooncakeLines = `{"timestamp": 3000, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 3000, "input_length": 600, "output_length": 0, "hash_ids": [1, 4]}
{"timestamp": 3000, "input_length": 700, "output_length": 9, "hash_ids": [1, 5]}
{"timestamp": 6000, "input_length": 800, "output_length": 9, "hash_ids": [1, 6]}
{"timestamp": 6000, "input_length": 512, "output_length": 7, "hash_ids": [1]}
`

func parse(t *testing.T, text string, f Format, o Options) *Trace {
	t.Helper()
	tr, err := Parse(strings.NewReader(text), f, o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestMooncake(t *testing.T) {
	want := &Trace{BlockTokens: 512, Requests: []Request{
		{At: 0, Previous: -1, Prompt: 1030, Output: 5, Blocks: []uint64{1, 2}},
		{At: time.Second, Previous: -1, Prompt: 600, Output: 1, Blocks: []uint64{1}},
		{At: 2 * time.Second, Previous: -1, Prompt: 700, Output: 9, Blocks: []uint64{1}},
		{At: 3 * time.Second, Previous: -1, Prompt: 800, Output: 9, Blocks: []uint64{1}},
		{At: 4500 * time.Millisecond, Previous: -1, Prompt: 512, Output: 7, Blocks: []uint64{1}},
	}}
	if d := cmp.Diff(want, parse(t, mooncakeLines, Mooncake, Options{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := parse(t, mooncakeLines, Mooncake, Options{Limit: 2}); len(got.Requests) != 2 {
		t.Errorf("%d requests, want the first 2", len(got.Requests))
	}
	if got := parse(t, mooncakeLines, Mooncake, Options{MaxPrompt: 1000}); len(got.Requests) != 4 || got.Requests[0].Prompt != 600 {
		t.Errorf("%+v, want the four of up to 1,000 tokens", got.Requests)
	}
}

func TestOwnForm(t *testing.T) {
	tr := parse(t, `{"timestamp": 100.5, "input_length": 33, "output_length": 5, "hash_ids": [1, 2], "block_tokens": 16, "session": "a"}
{"timestamp": 110, "input_length": 40, "output_length": 5, "hash_ids": [9, 8], "block_tokens": 16, "session": "b"}
{"timestamp": 200, "input_length": 50, "output_length": 5, "hash_ids": [1, 2, 3], "block_tokens": 16, "session": "a", "think_ms": 20}
`, Grapevine, Options{})
	want := &Trace{BlockTokens: 16, Requests: []Request{
		{At: 0, Session: "a", Previous: -1, Prompt: 33, Output: 5, Blocks: []uint64{1, 2}},
		{At: 9500 * time.Microsecond, Session: "b", Previous: -1, Prompt: 40, Output: 5, Blocks: []uint64{9, 8}},
		{At: 99500 * time.Microsecond, Session: "a", Previous: 0, Think: 20 * time.Millisecond, Prompt: 50, Output: 5, Blocks: []uint64{1, 2, 3}},
	}}
	if d := cmp.Diff(want, tr); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	// A gateway records calls in the order of their ends.
	tr = parse(t, `{"timestamp": 50, "input_length": 10, "output_length": 1}
{"timestamp": 20, "input_length": 20, "output_length": 900}
`, Grapevine, Options{Limit: 1})
	if len(tr.Requests) != 1 || tr.Requests[0].Prompt != 20 {
		t.Errorf("the first of two is %+v, want the one that came first", tr.Requests)
	}
}

// Two sessions with the same tools, one with others; a subagent among the calls of the first.
const ccLines = `{"id":"s1","block_size":64,"tool_tokens":128,"requests":[{"t":0,"type":"n","in":200,"out":3,"hash_ids":[1,2,3]},{"t":9,"type":"n","in":270,"out":4,"hash_ids":[1,2,3,4],"think_time":2},{"t":2,"type":"subagent","requests":[{"t":0,"type":"n","in":64,"out":1,"hash_ids":[70]},{"t":600,"type":"s","in":64,"out":1,"hash_ids":[70]}]}]}
{"id":"s2","block_size":64,"tool_tokens":128,"requests":[{"t":0,"type":"n","in":200,"out":3,"hash_ids":[5,6,3]}]}
{"id":"s3","block_size":64,"tool_tokens":64,"requests":[{"t":0,"type":"n","in":200,"out":3,"hash_ids":[5,6,3]}]}
`

func TestCC(t *testing.T) {
	tr := parse(t, ccLines, CC, Options{Seed: 1, MaxThink: 30 * time.Second})
	by := map[string][]Request{}
	for _, r := range tr.Requests {
		by[r.Session] = append(by[r.Session], r)
	}
	a := by["s1"]
	if len(a) != 4 || len(by["s2"]) != 1 || len(by["s3"]) != 1 {
		t.Fatalf("%d, %d and %d calls, want 4, 1 and 1", len(a), len(by["s2"]), len(by["s3"]))
	}
	gaps := []time.Duration{a[1].At - a[0].At, a[2].At - a[1].At, a[3].At - a[2].At}
	if d := cmp.Diff([]time.Duration{2 * time.Second, 7 * time.Second, 30 * time.Second}, gaps); d != "" {
		t.Errorf("pauses of the first session, the last one cut (-want +got)\n%s", d)
	}
	if a[2].Prompt != 270 || a[2].Think != 2*time.Second {
		t.Errorf("third call is %+v, want the one after the subagent's", a[2])
	}
	shared := func(x, y []uint64) (n int) {
		for n < len(x) && n < len(y) && x[n] == y[n] {
			n++
		}
		return n
	}
	if n := shared(a[0].Blocks, a[2].Blocks); n != 3 {
		t.Errorf("a session's calls share %d blocks, want 3", n)
	}
	if n := shared(a[0].Blocks, by["s2"][0].Blocks); n != 2 {
		t.Errorf("two sessions with the same tools share %d blocks, want those of the tools", n)
	}
	if n := shared(a[0].Blocks, by["s3"][0].Blocks); n != 0 {
		t.Errorf("sessions with different tools share %d blocks", n)
	}
	if again := parse(t, ccLines, CC, Options{Seed: 1, MaxThink: 30 * time.Second}); !cmp.Equal(tr, again) {
		t.Error("the same seed gave another trace")
	}
}

func TestAzure(t *testing.T) {
	tr := parse(t, "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n", Azure, Options{})
	want := []Request{{Previous: -1, Prompt: 4808, Output: 10}, {At: 52 * time.Millisecond, Previous: -1, Prompt: 3180, Output: 8}}
	if d := cmp.Diff(want, tr.Requests); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestRegroup(t *testing.T) {
	tr := &Trace{BlockTokens: 64, Requests: []Request{{Blocks: []uint64{1, 2, 3, 4, 5}}}}
	got := tr.Regroup(2)
	if d := cmp.Diff([]uint64{2, 4}, got.Requests[0].Blocks); d != "" || got.BlockTokens != 128 || len(tr.Requests[0].Blocks) != 5 {
		t.Errorf("%+v of %+v: %s", got, tr, d)
	}
}

func TestCompressed(t *testing.T) {
	var zipped, zst bytes.Buffer
	g := gzip.NewWriter(&zipped)
	_, _ = g.Write([]byte(mooncakeLines))
	g.Close()
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = z.Write([]byte(mooncakeLines))
	z.Close()
	want := parse(t, mooncakeLines, Mooncake, Options{})
	for name, b := range map[string][]byte{"gzip": zipped.Bytes(), "zstd": zst.Bytes()} {
		path := filepath.Join(t.TempDir(), "trace")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Read(path, Mooncake, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !cmp.Equal(want, got) {
			t.Errorf("%s: not what the plain file gives", name)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		format     Format
		want       string
	}{
		{"no JSON", "{\"timestamp\": 1\n", Mooncake, "line 1"},
		{"no tokens", "\n", Mooncake, "line 1"},
		{"negative time", `{"timestamp": -1, "input_length": 1}`, Mooncake, "timestamp -1"},
		{"two block sizes", `{"input_length": 1}` + "\n" + `{"input_length": 1, "block_tokens": 16}`, Grapevine, "line 2: block_tokens 16 after 512"},
		{"other block size", `{"id":"a","block_size":32,"requests":[]}`, CC, "block_size 32"},
		{"a column too few", "TIMESTAMP,ContextTokens\n", Azure, "line 1"},
		{"no number", "2023-11-16 18:17:03,x,1\n", Azure, `"x"`},
		{"empty", "", Azure, "no request"},
		{"unknown form", "", "csv", "mooncake"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(strings.NewReader(tt.text), tt.format, Options{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// The public traces, where they have been downloaded to GRAPEVINE_TRACES.
func TestPublicTraces(t *testing.T) {
	dir := os.Getenv("GRAPEVINE_TRACES")
	if dir == "" {
		t.Skip("GRAPEVINE_TRACES names no folder with the public traces (docs/comparison.md says where they are)")
	}
	for _, tt := range []struct {
		file      string
		format    Format
		maxPrompt int
		requests  int
	}{
		{"mooncake/conversation_trace.first60pct.jsonl.gz", Mooncake, 0, 6848},
		{"mooncake/synthetic_trace.jsonl.gz", Mooncake, 0, 3993},
		{"cc-traces/cc-traces.dev431.jsonl.zst", CC, 65_536, 5999},
		{"azure-2023/AzureLLMInferenceTrace_code.csv.gz", Azure, 0, 8819},
		{"azure-2023/AzureLLMInferenceTrace_conv.csv.gz", Azure, 0, 19366},
	} {
		t.Run(tt.file, func(t *testing.T) {
			tr, err := Read(filepath.Join(dir, tt.file), tt.format, Options{MaxPrompt: tt.maxPrompt})
			if err != nil {
				t.Fatal(err)
			}
			if len(tr.Requests) != tt.requests {
				t.Errorf("%d requests, want %d", len(tr.Requests), tt.requests)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(mooncakeLines), "mooncake")
	f.Add([]byte(ccLines), "cc")
	f.Add([]byte("2023-11-16 18:17:03.9799600,4808,10\n"), "azure")
	f.Fuzz(func(t *testing.T, b []byte, format string) {
		tr, err := Parse(bytes.NewReader(b), Format(format), Options{})
		if err != nil {
			return
		}
		for i, r := range tr.Requests {
			if r.Prompt < 1 || r.Output < 1 || r.At < 0 || len(r.Blocks)*tr.BlockTokens > r.Prompt || r.Previous >= i {
				t.Fatalf("request %d: %+v", i, r)
			}
		}
	})
}
