package openai

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestForceUsage(t *testing.T) {
	tests := []struct {
		name, body, want string
		changed          bool
	}{
		{"no stream", `{"prompt":"x"}`, "", false},
		{"stream off", `{"prompt":"x","stream":false}`, "", false},
		{"asked already", `{"stream":true,"stream_options":{"include_usage":true}}`, "", false},
		{"none", ` { "stream":true,"a": 1 }`, ` {"stream_options":{"include_usage":true}, "stream":true,"a": 1 }`, true},
		{"null", `{"stream":true,"stream_options": null,"a":1}`, `{"stream":true,"stream_options": {"include_usage":true},"a":1}`, true},
		{"empty", `{"stream_options":{ },"stream":true}`, `{"stream_options":{"include_usage":true },"stream":true}`, true},
		{"others", `{"stream":true,"stream_options":{"x":1}}`, `{"stream":true,"stream_options":{"include_usage":true,"x":1}}`, true},
		{"off", `{"stream":true,"stream_options":{"include_usage":false}}`, `{"stream":true,"stream_options":{"include_usage":true}}`, true},
		{"last of duplicates counts", `{"stream":true,"stream_options":{"include_usage":true},"stream_options":null}`,
			`{"stream":true,"stream_options":{"include_usage":true},"stream_options":{"include_usage":true}}`, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !tt.changed {
				tt.want = tt.body
			}
			// This API wants no other fields.
			r, err := Parse("/v1/embeddings", []byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			got, changed := r.ForceUsage(nil)
			if string(got) != tt.want || changed != tt.changed {
				t.Errorf("ForceUsage = %s, %v, want %s, %v", got, changed, tt.want, tt.changed)
			}
		})
	}
}

func TestStripUsage(t *testing.T) {
	tests := []struct{ name, event, want string }{
		{"content", "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", "="},
		{"done", "data: [DONE]\n\n", "="},
		{"comment", ": ping\n\n", "="},
		{"the word in content", "data: {\"choices\":[{\"text\":\"\\\"usage\\\"\"}]}\n\n", "="},
		{"usage null", "data: {\"id\":\"a\",\"choices\":[{\"text\":\"x\"}],\"usage\":null}\n\n", "data: {\"id\":\"a\",\"choices\":[{\"text\":\"x\"}]}\n\n"},
		{"usage null first", "data: {\"usage\": null , \"id\":\"a\"}\r\n\r\n", "data: { \"id\":\"a\"}\r\n\r\n"},
		{"usage null between", "data: {\"a\":1, \"usage\":null, \"b\":2}\n\n", "data: {\"a\":1, \"b\":2}\n\n"},
		{"usage alone", "data: {\"usage\":null}\n\n", "data: {}\n\n"},
		{"usage beside choices", "data: {\"choices\":[{\"text\":\"x\"}],\"usage\":{\"prompt_tokens\":1}}\n\n", "data: {\"choices\":[{\"text\":\"x\"}]}\n\n"},
		{"usage only", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n", ""},
		{"no choices but no usage either", "data: {\"choices\":[],\"usage\":null}\n\n", "data: {\"choices\":[]}\n\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want == "=" {
				tt.want = tt.event
			}
			got, keep := StripUsage([]byte(tt.event))
			if string(got) != tt.want || keep != (tt.want != "") {
				t.Errorf("StripUsage = %q, %v, want %q", got, keep, tt.want)
			}
		})
	}
}

func TestReadUsage(t *testing.T) {
	tests := []struct {
		name, data string
		want       Usage
		ok         bool
	}{
		{"answer", `{"choices":[{}],"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}`, Usage{10, 2, 8}, true},
		{"details null", `{"usage":{"prompt_tokens":10,"completion_tokens":2,"prompt_tokens_details":null}}`, Usage{10, 2, -1}, true},
		{"details absent", `{"usage":{"prompt_tokens":10,"total_tokens":12}}`, Usage{10, 0, -1}, true},
		{"cached null", `{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":null}}}`, Usage{1, 0, 0}, true},
		{"null", `{"usage":null}`, Usage{}, false},
		{"none", `{"choices":[]}`, Usage{}, false},
		{"done", `[DONE]`, Usage{}, false},
		{"broken", `{"usage":{"prompt_tokens":1}`, Usage{}, false},
		{"responses event", `{"type":"response.completed","response":{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":4},"output_tokens":3}}}`, Usage{5, 3, 4}, true},
		{"messages start", `{"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":0,"cache_read_input_tokens":null}}}`, Usage{5, 0, -1}, true},
		{"messages end", `{"type":"message_delta","delta":{},"usage":{"input_tokens":5,"output_tokens":9}}`, Usage{5, 9, -1}, true},
		{"messages, cache apart", `{"type":"message","usage":{"input_tokens":1,"output_tokens":8,"cache_creation_input_tokens":448,"cache_read_input_tokens":64}}`, Usage{513, 8, 64}, true},
		{"messages, nothing cached", `{"type":"message","usage":{"input_tokens":1,"output_tokens":8,"cache_creation_input_tokens":448,"cache_read_input_tokens":0}}`, Usage{449, 8, 0}, true},
		{"odd numbers", `{"usage":{"prompt_tokens":"x","completion_tokens":-4}}`, Usage{0, 0, -1}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ReadUsage([]byte(tt.data))
			if got != tt.want || ok != tt.ok {
				t.Errorf("ReadUsage = %+v, %v, want %+v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestHasOutput(t *testing.T) {
	tests := []struct {
		name, data string
		want       bool
	}{
		{"role only", `{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`, false},
		{"role, content null", `{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}`, false},
		{"content", `{"choices":[{"delta":{"content":"x"}}]}`, true},
		{"second choice", `{"choices":[{"delta":{}},{"delta":{"content":"x"}}]}`, true},
		{"reasoning", `{"choices":[{"delta":{"reasoning_content":"x"}}]}`, true},
		{"reasoning, newer name", `{"choices":[{"delta":{"reasoning":"x"}}]}`, true},
		{"tool call", `{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`, true},
		{"finish", `{"choices":[{"delta":{},"finish_reason":"length"}]}`, true},
		{"completion", `{"choices":[{"index":0,"text":"x","finish_reason":null}]}`, true},
		{"completion without text yet", `{"choices":[{"index":0,"text":"","finish_reason":null}]}`, false},
		{"usage", `{"choices":[],"usage":{}}`, false},
		{"responses created", `{"type":"response.created","response":{}}`, false},
		{"responses delta", `{"type":"response.output_text.delta","delta":"x"}`, true},
		{"messages delta", `{"type":"content_block_delta","delta":{"text":"x"}}`, true},
		{"messages start", `{"type":"message_start"}`, false},
		{"done", `[DONE]`, false},
		{"error", `{"error":{"message":"x"}}`, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := HasOutput([]byte(tt.data)); got != tt.want {
				t.Errorf("HasOutput = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestNextEvent(t *testing.T) {
	tests := []struct {
		name, in string
		want     []string // data of the events; the last is what remains
	}{
		{"newlines", "data: a\n\ndata:b\n\nda", []string{"a", "b", "da"}},
		{"carriage returns too", "event: x\r\ndata: a\r\n\r\n: ping\r\n\r\n", []string{"a", "", ""}},
		{"half an end", "data: a\r\n\r", []string{"data: a\r\n\r"}},
		{"several lines", "data: a\ndata: b\nid: 7\n\n", []string{"a\nb", ""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			rest := []byte(tt.in)
			for {
				event, r, ok := nextEvent(rest)
				if !ok {
					break
				}
				got, rest = append(got, string(Data(event))), r
			}
			if d := cmp.Diff(tt.want, append(got, string(rest))); d != "" {
				t.Errorf("events (-want +got):\n%s", d)
			}
		})
	}
	if !IsDone([]byte("[DONE]")) || IsDone([]byte("{}")) {
		t.Error("IsDone is wrong")
	}
}

// TestEventsHoweverCut: a stream is the same events wherever it is cut, and however its lines end.
func TestEventsHoweverCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, end := range []string{"\n", "\r\n", "\r"} {
		stream := strings.ReplaceAll(": hello\n\n\ndata: a\n\nevent: x\nid: 1\ndata: b\ndata: c\n\ndata: [DONE]\n\ndata: cut", "\n", end)
		var want []string
		rest := []byte(stream)
		for event, r, ok := nextEvent(rest); ok; event, r, ok = nextEvent(rest) {
			want, rest = append(want, string(event)), r
		}
		if len(want) != 5 {
			t.Fatalf("%d events: %q", len(want), want)
		}
		for range 300 {
			var e Events
			var got []string
			for left := []byte(stream); len(left) > 0; {
				piece := bytes.Clone(left[:min(1+rng.IntN(1+rng.IntN(40)), len(left))])
				left = left[len(piece):]
				e.Add(piece)
				for event, ok := e.Next(); ok; event, ok = e.Next() {
					got = append(got, string(event))
				}
				clear(piece) // it is the caller's again
			}
			if d := cmp.Diff(want, got); d != "" || string(e.Pending()) != string(rest) {
				t.Fatalf("lines that end with %q: remains %q, events (-want +got):\n%s", end, e.Pending(), d)
			}
		}
	}
}

// TestLongEventInSmallPieces: it costs no more than it is long.
func TestLongEventInSmallPieces(t *testing.T) {
	for name, piece := range map[string]string{"one line": "xxxx", "many lines": "x:y\n", "carriage returns": "x:y\r"} {
		var e Events
		began, n := time.Now(), 4<<20/len(piece)
		for range n {
			e.Add([]byte(piece))
			if _, ok := e.Next(); ok {
				t.Fatal("an event that is not complete")
			}
		}
		e.Add([]byte("\n\n"))
		if event, ok := e.Next(); !ok || len(event) < n*len(piece) {
			t.Errorf("%s: %v, %d bytes", name, ok, len(event))
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

func TestErrorBody(t *testing.T) {
	got := string(ErrorBody(400, "BadRequestError", `field "n": <bad>`))
	want := `{"error":{"message":"field \"n\": <bad>","type":"BadRequestError","param":null,"code":400}}`
	if got != want {
		t.Errorf("ErrorBody = %s, want %s", got, want)
	}
	event, rest, ok := nextEvent(ErrorEvent(502, "t", "m"))
	if !ok || !json.Valid(Data(event)) || string(rest) != "data: [DONE]\n\n" {
		t.Errorf("ErrorEvent = %q then %q", event, rest)
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n"))
	f.Add([]byte("data: {\"usage\":null,\"a\":[{}]}\r\n\r\n: x\n\n"))
	f.Add([]byte("data: {\ndata: \"usage\":null}\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for {
			event, rest, ok := nextEvent(b)
			if !ok {
				return
			}
			if len(event)+len(rest) != len(b) {
				t.Fatalf("event %d + rest %d bytes of %d", len(event), len(rest), len(b))
			}
			data := Data(event)
			ReadUsage(data)
			HasOutput(data)
			out, keep := StripUsage(event)
			if keep && json.Valid(data) && !json.Valid(Data(out)) {
				t.Fatalf("StripUsage broke %q: %q", event, out)
			}
			b = rest
		}
	})
}

func BenchmarkStripUsage(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n")
	b.ReportAllocs()
	b.SetBytes(int64(len(event)))
	for b.Loop() {
		if out, _ := StripUsage(event); strings.Contains(string(out), "usage") {
			b.Fatal("still there")
		}
	}
}
