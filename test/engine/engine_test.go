package engine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bytesTokenizer has one token for each byte.
type bytesTokenizer struct{}

func (bytesTokenizer) Encode(text string) []uint32 {
	out := make([]uint32, len(text))
	for i := range out {
		out[i] = uint32(text[i])
	}
	return out
}

func (bytesTokenizer) Decode(ids []uint32) string {
	out := make([]byte, len(ids))
	for i, id := range ids {
		out[i] = byte(id)
	}
	return string(out)
}

func (bytesTokenizer) Render(c chat.Request) (string, error) {
	var messages []struct{ Role, Content string }
	if err := json.Unmarshal(c.Messages, &messages); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "[%s]%s\n", m.Role, m.Content)
	}
	if c.AddGenerationPrompt {
		b.WriteString("[assistant]")
	}
	return b.String(), nil
}

// quick is an engine that is fast enough for tests: 1000 emulated seconds a second.
func quick() Config {
	cfg := Default()
	cfg.Listen = "127.0.0.1:0"
	cfg.Tokenizer = bytesTokenizer{}
	cfg.Speedup = 1000
	cfg.StreamInterval = 4
	cfg.KVTokens = 16_000
	cfg.Events = zmqpub.Config{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", Topic: "kv@test"}
	return cfg
}

// client talks to a running engine.
type client struct {
	t   *testing.T
	e   *Engine
	url string
}

func startEngine(t *testing.T, cfg Config) client {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return client{t, e, "http://" + e.Addr()}
}

// call sends a request and decodes a JSON answer into out, if that is not nil.
func (c client) call(method, path, body string, out any) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", "r-1")
	return c.do(req, out)
}

func (c client) do(req *http.Request, out any) *http.Response {
	c.t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	if out != nil {
		if err := json.Unmarshal(raw, out); err != nil {
			c.t.Fatalf("%s: %v in %s", req.URL.Path, err, raw)
		}
	}
	return resp
}

// answer is what the tests look at in chat and completions answers and chunks.
type answer struct {
	ID      string
	Object  string
	Choices []struct {
		Index   int
		Text    string
		Message struct{ Role, Content string }
		Delta   struct{ Role, Content string }
		Reason  string   `json:"finish_reason"`
		Tokens  []uint32 `json:"token_ids"`
		Prompt  []uint32 `json:"prompt_token_ids"`
	}
	Prompt []uint32 `json:"prompt_token_ids"`
	Usage  *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *struct {
		Message string
		Type    string
		Code    int
	}
}

// ids is a JSON list of n token ids from first on.
func ids(first, n int) string {
	out := make([]int, n)
	for i := range out {
		out[i] = first + i
	}
	b, _ := json.Marshal(out)
	return string(b)
}

func TestCompletions(t *testing.T) {
	c := startEngine(t, quick())
	prompt := ids(1000, 100)
	for i, want := range []int{0, 96} {
		var a answer
		resp := c.call("POST", "/v1/completions", `{"model":"tiny","prompt":`+prompt+`,"max_tokens":9,"return_token_ids":true}`, &a)
		if resp.StatusCode != 200 || a.Object != "text_completion" || a.ID != "cmpl-r-1" {
			t.Fatalf("answer %d: %d %+v", i, resp.StatusCode, a)
		}
		if got := resp.Header.Get("X-Request-Id"); got != "r-1" {
			t.Errorf("request id %q", got)
		}
		if a.Usage.Prompt != 100 || a.Usage.Completion != 9 || a.Usage.Total != 109 || a.Usage.Details.Cached != want {
			t.Errorf("answer %d: usage %+v, want %d cached", i, a.Usage, want)
		}
		ch := a.Choices[0]
		if ch.Reason != "length" || len(ch.Tokens) != 9 || len(ch.Prompt) != 100 || ch.Text != (bytesTokenizer{}).Decode(ch.Tokens) {
			t.Errorf("choice %+v", ch)
		}
		ttft := c.e.cfg.Clock.Prefill(100-want, want)
		if got := resp.Header.Get("X-Engine-Ttft-Ms"); got != milliseconds(ttft) {
			t.Errorf("emulated TTFT %s ms, want %s", got, milliseconds(ttft))
		}
		if resp.Header.Get("X-Engine-Wall-Ms") == "" {
			t.Error("no wall time")
		}
	}
}

func TestPromptForms(t *testing.T) {
	c := startEngine(t, quick())
	for _, x := range []struct {
		name, body string
		prompt     int
		choices    int
	}{
		{"text", `{"prompt":"hello"}`, 5, 1},
		{"texts", `{"prompt":["hello", "you"]}`, 8, 2},
		{"ids", `{"prompt":[ 1 , 2,3 ]}`, 3, 1},
		{"lists of ids", `{"prompt":[[1,2],[3]],"n":2}`, 3, 4},
		{"adds nothing for null limits", `{"prompt":"a","max_tokens":null}`, 1, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			var a answer
			c.call("POST", "/v1/completions", x.body, &a)
			if a.Usage == nil || a.Usage.Prompt != x.prompt || len(a.Choices) != x.choices {
				t.Fatalf("answer %+v", a)
			}
			if a.Usage.Completion != 16*x.choices {
				t.Errorf("%d tokens by default, want 16 each", a.Usage.Completion)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	cfg := quick()
	cfg.MaxModelLen = 1000
	cfg.Ranks = 2
	cfg.RenderClosed = true
	c := startEngine(t, cfg)
	for _, x := range []struct {
		name, path, body string
		status           int
	}{
		{"not JSON", "/v1/completions", `{`, 400},
		{"no prompt", "/v1/completions", `{}`, 400},
		{"empty prompt", "/v1/completions", `{"prompt":[]}`, 400},
		{"object as prompt", "/v1/completions", `{"prompt":{}}`, 400},
		{"negative id", "/v1/completions", `{"prompt":[1,-2]}`, 400},
		{"fraction", "/v1/completions", `{"prompt":[1.5]}`, 400},
		{"huge id", "/v1/completions", `{"prompt":[4294967296]}`, 400},
		{"null among ids", "/v1/completions", `{"prompt":[1,null]}`, 400},
		{"mixed", "/v1/completions", `{"prompt":[[1],"a"]}`, 400},
		{"too long", "/v1/completions", `{"prompt":` + ids(0, 1000) + `}`, 400},
		{"too much wanted", "/v1/completions", `{"prompt":"a","max_tokens":1000}`, 400},
		{"nothing wanted", "/v1/completions", `{"prompt":"a","max_tokens":0}`, 400},
		{"n of 0", "/v1/completions", `{"prompt":"a","n":0}`, 400},
		{"unknown model", "/v1/completions", `{"prompt":"a","model":"other"}`, 404},
		{"no messages", "/v1/chat/completions", `{}`, 400},
		{"bad messages", "/v1/chat/completions", `{"messages":3}`, 400},
		{"continue and generate", "/v1/chat/completions", `{"messages":[],"continue_final_message":true,"add_generation_prompt":true}`, 400},
		{"render closed", "/v1/chat/completions/render", `{"messages":[]}`, 403},
		{"adapter twice", "/v1/load_lora_adapter", `{"lora_name":"tiny","lora_path":"p"}`, 400},
		{"unknown adapter", "/v1/unload_lora_adapter", `{"lora_name":"x"}`, 404},
		{"sleep level", "/sleep?level=9", ``, 400},
	} {
		t.Run(x.name, func(t *testing.T) {
			var a answer
			resp := c.call("POST", x.path, x.body, &a)
			if resp.StatusCode != x.status || a.Error == nil || a.Error.Code != x.status || a.Error.Message == "" {
				t.Errorf("%d %+v, want %d", resp.StatusCode, a.Error, x.status)
			}
		})
	}
	for _, x := range []struct {
		rank   string
		status int
	}{{"0", 200}, {"1", 200}, {"2", 400}, {"-1", 400}, {"one", 200}} {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", c.url+"/v1/completions", strings.NewReader(`{"prompt":"a"}`))
		req.Header.Set("X-data-parallel-rank", x.rank)
		if resp := c.do(req, nil); resp.StatusCode != x.status {
			t.Errorf("rank %s: %d, want %d", x.rank, resp.StatusCode, x.status)
		}
	}
}

// stream reads a whole event stream; it returns the chunks before [DONE].
func (c client) stream(path, body string) (chunks []answer, resp *http.Response) {
	c.t.Helper()
	resp = c.call("POST", path, body, nil)
	if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		raw, _ := io.ReadAll(resp.Body)
		c.t.Fatalf("content type %q: %s", ct, raw)
	}
	s := bufio.NewScanner(resp.Body)
	s.Buffer(nil, 1<<20)
	done := false
	for s.Scan() {
		data, ok := strings.CutPrefix(s.Text(), "data: ")
		if !ok {
			continue
		}
		if done = data == "[DONE]"; done {
			break
		}
		var a answer
		if err := json.Unmarshal([]byte(data), &a); err != nil {
			c.t.Fatalf("chunk %s: %v", data, err)
		}
		chunks = append(chunks, a)
	}
	if !done {
		c.t.Error("no [DONE]")
	}
	return chunks, resp
}

func TestChatStream(t *testing.T) {
	c := startEngine(t, quick())
	body := `{"model":"tiny","messages":[{"role":"user","content":"tell me"}],"max_tokens":10,"stream":true,` +
		`"stream_options":{"include_usage":true},"return_token_ids":true}`
	chunks, resp := c.stream("/v1/chat/completions", body)
	// Role, 1 + 4 + 4 + 1 tokens, usage.
	if len(chunks) != 6 {
		t.Fatalf("%d chunks: %+v", len(chunks), chunks)
	}
	if chunks[0].Choices[0].Delta.Role != "assistant" || len(chunks[0].Prompt) == 0 || chunks[0].ID != "chatcmpl-r-1" {
		t.Errorf("first chunk %+v", chunks[0])
	}
	text := ""
	for _, ch := range chunks[:5] {
		text += ch.Choices[0].Delta.Content
	}
	if chunks[4].Choices[0].Reason != "length" || chunks[3].Choices[0].Reason != "" {
		t.Errorf("reasons %q, %q", chunks[3].Choices[0].Reason, chunks[4].Choices[0].Reason)
	}
	if u := chunks[5].Usage; u == nil || u.Completion != 10 || len(chunks[5].Choices) != 0 {
		t.Errorf("usage chunk %+v", chunks[5])
	}
	if resp.Header.Get("X-Engine-Ttft-Ms") == "" {
		t.Error("no emulated TTFT")
	}
	var whole answer
	c.call("POST", "/v1/chat/completions", strings.Replace(body, `"stream":true`, `"stream":false`, 1), &whole)
	if got := whole.Choices[0].Message.Content; got != text || text == "" {
		t.Errorf("plain %q, streamed %q", got, text)
	}
}

func TestNaturalEnd(t *testing.T) {
	c := startEngine(t, quick())
	var a answer
	c.call("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}]}`, &a)
	if a.Choices[0].Reason != "stop" || a.Usage.Completion < 64 {
		t.Errorf("%+v %+v", a.Choices[0].Reason, a.Usage)
	}
}

func TestChatWithIDs(t *testing.T) {
	c := startEngine(t, quick())
	var a answer
	c.call("POST", "/v1/chat/completions", `{"messages":[],"max_tokens":1,"kv_transfer_params":{"prompt_token_ids":[5,6,7]}}`, &a)
	if a.Usage == nil || a.Usage.Prompt != 3 {
		t.Errorf("answer %+v", a)
	}
}

func TestRenderAndTokenize(t *testing.T) {
	c := startEngine(t, quick())
	type rendered struct {
		RequestID string   `json:"request_id"`
		TokenIDs  []uint32 `json:"token_ids"`
		Tokens    []uint32
		Count     int
		MaxLen    int `json:"max_model_len"`
		Prompt    string
	}
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	var chat, tok, text, back rendered
	var list []rendered
	c.call("POST", "/v1/chat/completions/render", `{`+messages+`}`, &chat)
	c.call("POST", "/tokenize", `{`+messages+`}`, &tok)
	c.call("POST", "/tokenize", `{"prompt":"hi"}`, &text)
	c.call("POST", "/v1/completions/render", `{"prompt":["hi","you"]}`, &list)
	want := (bytesTokenizer{}).Decode(chat.TokenIDs)
	if want != "[user]hi\n[assistant]" || chat.RequestID != "chatcmpl-r-1" {
		t.Errorf("rendered %q as %s", want, chat.RequestID)
	}
	if len(tok.Tokens) != len(chat.TokenIDs) || tok.Count != len(tok.Tokens) || tok.MaxLen != c.e.cfg.MaxModelLen {
		t.Errorf("tokenize: %+v", tok)
	}
	if len(text.Tokens) != 2 || len(list) != 2 || len(list[1].TokenIDs) != 3 {
		t.Errorf("text %+v, list %+v", text, list)
	}
	c.call("POST", "/detokenize", `{"tokens":[104,105]}`, &back)
	if back.Prompt != "hi" {
		t.Errorf("detokenized %q", back.Prompt)
	}
}

// TestSplitsCaches: adapters and salts do not share blocks, and the model list
// shows adapters.
func TestSplitsCaches(t *testing.T) {
	cfg := quick()
	cfg.Adapters = []pool.Adapter{{Name: "a", Path: "adapters/a"}}
	c := startEngine(t, cfg)
	c.call("POST", "/v1/load_lora_adapter", `{"lora_name":"b","lora_path":"adapters/b"}`, nil)
	cached := func(extra string) int {
		var a answer
		c.call("POST", "/v1/completions", `{"prompt":`+ids(0, 64)+`,"max_tokens":1`+extra+`}`, &a)
		if a.Usage == nil {
			t.Fatalf("%s: %+v", extra, a.Error)
		}
		return a.Usage.Details.Cached
	}
	for _, extra := range []string{``, `,"model":"a"`, `,"model":"b"`, `,"cache_salt":"a"`, `,"model":"a","cache_salt":"a"`} {
		if got := cached(extra); got != 0 {
			t.Errorf("first with %q: %d cached", extra, got)
		}
		if got := cached(extra); got != 48 {
			t.Errorf("second with %q: %d cached", extra, got)
		}
	}
	if got := cached(`,"prompt_logprobs":1`); got != 0 {
		t.Errorf("prompt_logprobs: %d cached", got)
	}
	var models struct {
		Data []struct {
			ID, Root string
			Parent   *string
			MaxLen   *int `json:"max_model_len"`
		}
	}
	c.call("GET", "/v1/models", "", &models)
	if len(models.Data) != 3 || *models.Data[2].Parent != "tiny" || models.Data[1].Root != "adapters/a" || *models.Data[0].MaxLen == 0 {
		t.Errorf("models %+v", models)
	}
	c.call("POST", "/v1/unload_lora_adapter", `{"lora_name":"a"}`, nil)
	if resp := c.call("POST", "/v1/completions", `{"prompt":"x","model":"a"}`, nil); resp.StatusCode != 404 {
		t.Errorf("an unloaded adapter: %d", resp.StatusCode)
	}
}

// TestDisconnect: a client that goes away frees its blocks; what it computed
// stays cached.
func TestDisconnect(t *testing.T) {
	cfg := quick()
	cfg.Speedup = 20
	c := startEngine(t, cfg)
	for _, stream := range []string{"true", "false"} {
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "POST", c.url+"/v1/completions",
			strings.NewReader(`{"prompt":`+ids(0, 1600)+`,"max_tokens":10000,"stream":`+stream+`}`))
		done := make(chan struct{})
		go func() {
			defer close(done)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		c.wait("it runs", func(s RankStats) bool { return s.GeneratedTokens > 0 && s.Running == 1 })
		cancel()
		<-done
		c.wait("its blocks are free", func(s RankStats) bool { return s.Running == 0 && s.BlocksUsed == 0 })
		if s := c.e.Stats().Ranks[0]; s.BlocksResident < 100 {
			t.Errorf("%d blocks cached", s.BlocksResident)
		}
	}
}

// wait polls the engine's own truth.
func (c client) wait(what string, ok func(RankStats) bool) {
	c.t.Helper()
	deadline := time.After(5 * time.Second)
	for !ok(c.e.Stats().Ranks[0]) {
		select {
		case <-deadline:
			c.t.Fatalf("never so: %s: %+v", what, c.e.Stats().Ranks[0])
		case <-time.After(2 * time.Millisecond):
		}
	}
}
