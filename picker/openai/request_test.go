package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, path, body string
		want             Request
	}{
		{"chat with everything", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}],
			"stream":true,"stream_options":{"include_usage":true},"n":2,"max_tokens":5,"max_completion_tokens":7,
			"tools":[{"type":"function"}],"tool_choice":"none","chat_template":"{{ x }}","chat_template_kwargs":{"a":1},
			"add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true,"documents":[{"title":"t"}],
			"reasoning_effort":"low","cache_salt":"s","prompt_logprobs":0,"truncate_prompt_tokens":-1,"truncation_side":"left","user":"u",
			"kv_transfer_params":{"do_remote_decode":false,"prompt_token_ids":[1,2,4294967295]},"mm_processor_kwargs":{},
			"media_io_kwargs":{"video":{}},"response_format":{"type":"text"},"temperature":0.5,"extra":{"deep":[{}]}}`,
			Request{Kind: Chat, Model: "m", Stream: true, IncludeUsage: true, StreamOptions: json.RawMessage(`{"include_usage":true}`), N: 2, MaxTokens: 7, User: "u",
				TokenIDs: []uint32{1, 2, 4294967295}, Messages: json.RawMessage(`[{"role":"user","content":"hi"}]`),
				Tools: json.RawMessage(`[{"type":"function"}]`), ToolChoice: json.RawMessage(`"none"`),
				Documents: json.RawMessage(`[{"title":"t"}]`), ChatTemplateKwargs: json.RawMessage(`{"a":1}`),
				MMProcessorKwargs: json.RawMessage(`{}`), MediaIOKwargs: json.RawMessage(`{"video":{}}`),
				ResponseFormat: json.RawMessage(`{"type":"text"}`), ChatTemplate: "{{ x }}", ReasoningEffort: "low",
				ContinueFinalMessage: true, AddSpecialTokens: true, TruncationSide: "left", CacheSalt: "s",
				PromptLogprobs: true, PromptBytes: 12}},
		{"chat defaults, nulls are absent", "/v1/chat/completions?x=1", `{"messages":[],"n":null,"tools":null,"stream":null,"max_tokens":null}`,
			Request{Kind: Chat, N: 1, Messages: json.RawMessage(`[]`), AddGenerationPrompt: true, PromptBytes: 2}},
		{"last of duplicate keys wins, escaped keys too", "/v1/chat/completions", `{"model":"a","messages":[],"mo\u0064el":"b"}`,
			Request{Kind: Chat, Model: "b", N: 1, Messages: json.RawMessage(`[]`), AddGenerationPrompt: true, PromptBytes: 2}},
		{"chat, echo reads no cache and no ids", "/v1/chat/completions", `{"messages":[],"echo":true,"kv_transfer_params":{"prompt_token_ids":[1]}}`,
			Request{Kind: Chat, N: 1, Messages: json.RawMessage(`[]`), AddGenerationPrompt: true, PromptLogprobs: true, PromptBytes: 2}},
		{"completion, text", "/v1/completions", `{"model":"m","prompt":"caf\u00e9 \ud83d\ude42","best_of":3}`,
			Request{Kind: Completion, Model: "m", N: 3, MaxTokens: 16, Prompts: []Prompt{{Text: "café 🙂"}}, AddSpecialTokens: true, PromptBytes: 10}},
		{"completion, texts: the longest counts", "/v1/completions", `{"prompt":["a","abc","b"],"max_tokens":null}`,
			Request{Kind: Completion, N: 1, Prompts: []Prompt{{Text: "a"}, {Text: "abc"}, {Text: "b"}}, AddSpecialTokens: true, PromptBytes: 3}},
		{"completion, ids", "/v1/completions", `{"prompt":[ 3 , 4 ],"max_tokens":1,"add_special_tokens":false}`,
			Request{Kind: Completion, N: 1, MaxTokens: 1, Prompts: []Prompt{{IDs: []uint32{3, 4}}}, PromptBytes: 8}},
		{"completion, lists of ids", "/v1/completions", `{"prompt":[[3],[4,5]],"echo":true,"logprobs":1}`,
			Request{Kind: Completion, N: 1, MaxTokens: 16, Prompts: []Prompt{{IDs: []uint32{3}}, {IDs: []uint32{4, 5}}},
				AddSpecialTokens: true, PromptLogprobs: true, PromptBytes: 8}},
		{"completion, embeddings as prompt", "/v1/completions", `{"prompt":null,"prompt_embeds":"AAAA"}`,
			Request{Kind: Completion, N: 1, MaxTokens: 16, PromptEmbeds: true, AddSpecialTokens: true}},
		{"embedding", "/v1/embeddings", `{"model":"e","input":["x","yy"]}`,
			Request{Kind: Embedding, Model: "e", N: 1, Prompts: []Prompt{{Text: "x"}, {Text: "yy"}}, AddSpecialTokens: true, PromptBytes: 2}},
		{"tokenize text", "/tokenize", `{"prompt":"x"}`,
			Request{Kind: Tokenize, N: 1, Prompts: []Prompt{{Text: "x"}}, AddSpecialTokens: true, AddGenerationPrompt: true, PromptBytes: 1}},
		{"tokenize messages", "/tokenize/", `{"messages":[]}`,
			Request{Kind: Tokenize, N: 1, Messages: json.RawMessage(`[]`), AddGenerationPrompt: true, PromptBytes: 2}},
		{"responses", "/v1/responses", `{"model":"m","input":"hello","instructions":"be","max_output_tokens":9,"stream":true}`,
			Request{Kind: Responses, Model: "m", Stream: true, N: 1, MaxTokens: 9, PromptBytes: 11}},
		{"anthropic", "/v1/messages", `{"model":"m","system":"s","messages":[],"max_tokens":4}`,
			Request{Kind: Messages, Model: "m", N: 1, MaxTokens: 4, Messages: json.RawMessage(`[]`), PromptBytes: 5}},
		{"pooling: model only", "/v1/rerank", `{"model":"r","query":1,"documents":"x"}`, Request{Kind: Pooling, Model: "r", N: 1, PromptBytes: 39}},
		{"unknown path", "/v1/else", `{"model":"r","messages":1}`, Request{Kind: Other, Model: "r", N: 1}},
		{"ids given beside messages are not truncated", "/v1/chat/completions", `{"messages":[],"truncate_prompt_tokens":2,"kv_transfer_params":{"prompt_token_ids":[5,6,7]}}`,
			Request{Kind: Chat, N: 1, TokenIDs: []uint32{5, 6, 7}, Messages: json.RawMessage(`[]`), AddGenerationPrompt: true, PromptBytes: 12}},
		{"ids as floats and texts", "/v1/completions", `{"prompt":[[1.0,"2"],[-0,3]]}`,
			Request{Kind: Completion, N: 1, MaxTokens: 16, Prompts: []Prompt{{IDs: []uint32{1, 2}}, {IDs: []uint32{0, 3}}}, AddSpecialTokens: true, PromptBytes: 8}},
		{"a list of digits is texts", "/v1/completions", `{"prompt":["1","2"]}`,
			Request{Kind: Completion, N: 1, MaxTokens: 16, Prompts: []Prompt{{Text: "1"}, {Text: "2"}}, AddSpecialTokens: true, PromptBytes: 1}},
		{"byte order mark", "/v1/completions", "\ufeff {\"prompt\":\"x\"}",
			Request{Kind: Completion, N: 1, MaxTokens: 16, Prompts: []Prompt{{Text: "x"}}, AddSpecialTokens: true, PromptBytes: 1}},
		{"lenient numbers and Python's own", "/v1/completions", `{"prompt":"x","n":"2","max_tokens":3.0,"temperature":NaN,"top_p":-Infinity}`,
			Request{Kind: Completion, N: 2, MaxTokens: 3, Prompts: []Prompt{{Text: "x"}}, AddSpecialTokens: true, PromptBytes: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.path, []byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Path, tt.want.Body = tt.path, []byte(tt.body)
			if d := cmp.Diff(&tt.want, got); d != "" {
				t.Errorf("Parse (-want +got):\n%s", d)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ name, path, body, want string }{
		{"empty", "/v1/completions", "", "empty"},
		{"no object", "/v1/completions", "[1]", "want a JSON object"},
		{"cut", "/v1/completions", `{"prompt":"x`, "middle of a value"},
		{"cut after key", "/v1/completions", `{"prompt"`, "middle of a value"},
		{"trailing", "/v1/completions", `{"prompt":"x"} {}`, "more text"},
		{"no comma", "/v1/completions", `{"prompt":"x" "n":1}`, "comma"},
		{"leading zero", "/v1/completions", `{"n":01}`, "bad number"},
		{"control character", "/v1/completions", "{\"prompt\":\"a\nb\"}", "control character"},
		{"bad escape", "/v1/completions", `{"prompt":"\q"}`, "bad escape"},
		{"not UTF-8", "/v1/completions", "{\"prompt\":\"\xff\"}", "not UTF-8"},
		{"too deep", "/v1/completions", `{"x":` + strings.Repeat("[", 1<<20), "nested deeper"},
		{"model", "/v1/rerank", `{"model":1}`, `field "model": want a string`},
		{"endless model", "/v1/rerank", `{"model":"` + strings.Repeat("m", 1025) + `"}`, `field "model": longer than 1024 bytes`},
		{"no messages", "/v1/chat/completions", `{}`, `field "messages": missing`},
		{"messages", "/v1/chat/completions", `{"messages":{}}`, `field "messages": want a list`},
		{"no prompt", "/v1/completions", `{}`, `field "prompt": missing`},
		{"prompt kind", "/v1/completions", `{"prompt":5}`, `field "prompt": want text`},
		{"mixed prompts", "/v1/completions", `{"prompt":["a",[1]]}`, "want text"},
		{"empty prompts", "/v1/completions", `{"prompt":[ ]}`, "empty list"},
		{"negative id", "/v1/completions", `{"prompt":[1,-1]}`, "not negative"},
		{"large id", "/v1/completions", `{"prompt":[4294967296]}`, "too large"},
		{"id is text", "/v1/completions", `{"prompt":[1,"x"]}`, "whole number"},
		{"id is null", "/v1/completions", `{"prompt":[1,null]}`, "whole number"},
		{"id is broken", "/v1/completions", `{"prompt":[1,1.5]}`, "whole number"},
		{"huge id", "/v1/completions", `{"prompt":[99999999999999999999]}`, "whole number"},
		{"n", "/v1/completions", `{"prompt":"x","n":1.5}`, `field "n": want a whole number`},
		{"stream", "/v1/completions", `{"prompt":"x","stream":"maybe"}`, `field "stream": want true or false`},
		{"kwargs", "/v1/chat/completions", `{"messages":[],"chat_template_kwargs":[]}`, "want an object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(tt.path, []byte(tt.body))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Parse error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// Flags are read as pydantic reads them.
func TestFlags(t *testing.T) {
	for value, want := range map[string]bool{
		"true": true, "1": true, "1.0": true, `"TRUE"`: true, `"1"`: true, `"t"`: true, `"Yes"`: true, `"on"`: true, `"y"`: true, "null": true,
		"false": false, "0": false, "0.0": false, `"False"`: false, `"0"`: false, `"f"`: false, `"no"`: false, `"OFF"`: false, `"n"`: false,
	} {
		r, err := Parse("/v1/chat/completions", []byte(`{"messages":[],"add_generation_prompt":`+value+`}`))
		if err != nil || r.AddGenerationPrompt != want {
			t.Errorf("%s is %v, %v, want %v", value, r != nil && r.AddGenerationPrompt, err, want)
		}
	}
	for _, value := range []string{"2", `""`, `"maybe"`, "[]", "0.5"} {
		if _, err := Parse("/v1/chat/completions", []byte(`{"messages":[],"add_generation_prompt":`+value+`}`)); err == nil {
			t.Errorf("%s is no flag", value)
		}
	}
}

// What goes wrong with a prompt goes into logs, so that the error must not quote it.
func TestParseErrorsQuoteNoPrompt(t *testing.T) {
	for _, body := range []string{
		`{"prompt":[1,"SECRET"]}`, `{"prompt":["SECRET",[1]]}`, `{"prompt":SECRET}`, `{"prompt":"SECRET`, `{"prompt":"SECRET\q"}`,
		`{"prompt":"SECRET","n":"SECRET"}`, `{"prompt":"SECRET","stream":"SECRET"}`, `{"prompt":"SECRET","cache_salt":["SECRET"]}`, `{"prompt":"x"}SECRET`,
		`{"prompt":{"SECRET":1}}`, `{"prompt":[[1],["SECRET"]]}`, `{"prompt":"SECRET" SECRET}`,
	} {
		if _, err := Parse("/v1/completions", []byte(body)); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestLongestAndEstimate(t *testing.T) {
	r, err := Parse("/v1/completions", []byte(`{"prompt":[[1],[1,2,3],[9,9]]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Longest(); len(got.IDs) != 3 {
		t.Errorf("Longest = %v, want the one of 3 ids", got)
	}
	if got := r.EstimatedTokens(); got != 3 {
		t.Errorf("EstimatedTokens = %d, want 3", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"kv_transfer_params":{"prompt_token_ids":[1]}}`,
		`{"prompt":["a","b"],"n":2,"stream_options":{"include_usage":false},"stream":true}`,
		`{"prompt":[[1,2],[3]],"truncate_prompt_tokens":5}`, `{"input":"x\u00e9","n":1e3}`, `{"a":NaN,"b":-Infinity}`, `[`, `{"`,
	} {
		for _, p := range []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/v1/responses", "/v1/messages"} {
			f.Add(p, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		r, err := Parse(path, body)
		if err != nil {
			return
		}
		if r.N < 1 || r.EstimatedTokens() < 1 {
			t.Fatalf("n %d, estimate %d", r.N, r.EstimatedTokens())
		}
		// The scanner accepts no more than encoding/json, but for NaN and Infinity.
		if s := string(body); !json.Valid(bytes.TrimPrefix(body, byteOrderMark)) && !strings.Contains(s, "NaN") && !strings.Contains(s, "Infinity") {
			t.Fatalf("accepted invalid JSON %q", body)
		}
		forced, changed := r.ForceUsage(nil)
		if !changed {
			return
		}
		again, err := Parse(path, forced)
		if err != nil {
			t.Fatalf("forced body %q: %v", forced, err)
		}
		switch r.Kind {
		case Other, Pooling, Detokenize:
		default:
			if !again.IncludeUsage {
				t.Fatalf("forced body %q asks for no usage", forced)
			}
		}
	})
}

// body is a chat request of about the given size.
func chatBody(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"m","stream":true,"messages":[`)
	for i := 0; b.Len() < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":"user","content":%q}`, strings.Repeat("Some words of a turn. ", 40))
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

func BenchmarkParse(b *testing.B) {
	for _, size := range []int{1 << 10, 100 << 10} {
		body := chatBody(size)
		b.Run(fmt.Sprintf("chat/%dKB", size>>10), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := Parse("/v1/chat/completions", body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
