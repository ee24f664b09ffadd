package prompt

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tinyDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := tinymodel.Extract(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tinyTokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	data, err := fs.ReadFile(tinymodel.FS(), "tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func parse(t testing.TB, path, body string) *openai.Request {
	t.Helper()
	req, err := openai.Parse(path, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// fakeEngine answers paths with a status and a body, and counts questions.
type fakeEngine struct {
	answers map[string]answer
	asked   atomic.Int64
	mu      sync.Mutex // guards last
	last    map[string]string
}

type answer struct {
	status int
	body   string
	delay  time.Duration
}

func (f *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.asked.Add(1)
	b, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	f.last[r.URL.Path] = string(b)
	f.mu.Unlock()
	a, ok := f.answers[r.URL.Path]
	if !ok {
		http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
		return
	}
	select {
	case <-time.After(a.delay):
	case <-r.Context().Done():
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

func serve(t *testing.T, answers map[string]answer) (*fakeEngine, string, *http.Client) {
	t.Helper()
	f := &fakeEngine{answers: answers, last: map[string]string{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s.URL, s.Client()
}

const hello = `{"model":"tiny","messages":[{"role":"user","content":"Hello world"}]}`

func TestResolve(t *testing.T) {
	tok := tinyTokenizer(t)
	own := tok.Encode(nil, "<|im_start|>user\nHello world<|im_end|>\n<|im_start|>assistant\n")
	beforeImage := tok.Encode(nil, "<|im_start|>user\nHello world<|im_end|>\n<|im_start|>")
	dir := tinyDir(t)
	render := map[string]answer{chatPath + "/render": {200, `{"token_ids":[5,6,7],"features":null}`, 0}}
	tests := []struct {
		name    string
		models  map[string]string
		answers map[string]answer
		path    string
		body    string
		want    Result
	}{
		{"own, chat", map[string]string{"tiny": dir}, nil, chatPath, hello, Result{TokenIDs: own, Rung: RungOwn}},
		{"own, completion: the longest prompt", map[string]string{"tiny": dir}, nil, completionPath, `{"model":"tiny","prompt":["a","Hello world"]}`,
			Result{TokenIDs: tok.Encode(nil, "Hello world"), Rung: RungOwn}},
		{"own, first tokens kept", map[string]string{"tiny": dir}, nil, completionPath, `{"model":"tiny","prompt":"Hello world again","truncate_prompt_tokens":2,"truncation_side":"right"}`,
			Result{TokenIDs: tok.Encode(nil, "Hello world again")[:2], Rung: RungOwn}},
		{"own, last tokens kept", map[string]string{"tiny": dir}, nil, chatPath, strings.Replace(hello, "{", `{"truncate_prompt_tokens":3,`, 1),
			Result{TokenIDs: own[len(own)-3:], Rung: RungOwn}},
		{"ids", map[string]string{"tiny": dir}, nil, completionPath, `{"model":"tiny","prompt":[[1],[1,2]]}`, Result{TokenIDs: []uint32{1, 2}, Rung: RungIDs}},
		{"ids beside messages", nil, nil, chatPath, strings.Replace(hello, "{", `{"kv_transfer_params":{"prompt_token_ids":[9,8]},`, 1), Result{TokenIDs: []uint32{9, 8}, Rung: RungIDs}},
		{"salt and adapter, the only model's files", map[string]string{"tiny": dir}, nil, chatPath, strings.Replace(strings.Replace(hello, "{", `{"cache_salt":"s",`, 1), "tiny", "adapter", 1),
			Result{TokenIDs: own, Rung: RungOwn, Extras: []blockhash.Extra{{Kind: blockhash.LoRA, Value: "adapter"}, {Kind: blockhash.CacheSalt, Value: "s"}}}},
		{"no model named", map[string]string{"tiny": dir}, nil, chatPath, strings.Replace(hello, `"model":"tiny",`, "", 1), Result{TokenIDs: own, Rung: RungOwn}},
		{"render", nil, render, chatPath, hello, Result{TokenIDs: []uint32{5, 6, 7}, Rung: RungRender, Reason: "own: no files for this model"}},
		{"render, of several prompts the longest", nil, map[string]answer{completionPath + "/render": {200, `[{"token_ids":[5]},{"token_ids":[6,7]}]`, 0}}, completionPath, `{"model":"tiny","prompt":["a","bb"]}`,
			Result{TokenIDs: []uint32{6, 7}, Rung: RungRender, Reason: "own: no files for this model"}},
		{"own, up to the image", map[string]string{"tiny": dir}, nil, chatPath,
			`{"model":"tiny","messages":[{"role":"user","content":"Hello world"},{"role":"user","content":[{"type":"text","text":"this?"},{"type":"image_url","image_url":{"url":"x"}}]}]}`,
			Result{TokenIDs: beforeImage, Rung: RungOwn, EstimatedTokens: mediaTokens + len(beforeImage), Partial: true, Reason: "own: what follows the first image is not known"}},
		{"render, image", nil, map[string]answer{chatPath + "/render": {200, `{"token_ids":[5,6,7,8],"features":{"mm_placeholders":{"image":[{"offset":2,"length":1}]}}}`, 0}}, chatPath,
			`{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`,
			Result{TokenIDs: []uint32{5, 6}, Rung: RungRender, EstimatedTokens: 4, Partial: true, Reason: "own: no files for this model"}},
		{"responses", nil, map[string]answer{"/v1/responses/render": {200, `{"token_ids":[4]}`, 0}}, "/v1/responses", `{"model":"tiny","input":"x"}`,
			Result{TokenIDs: []uint32{4}, Rung: RungRender, Reason: "own: no files for this model"}},
		{"tokenize when render is closed", nil, map[string]answer{chatPath + "/render": {403, `{"error":{}}`, 0}, "/tokenize": {200, `{"tokens":[1,2],"count":2}`, 0}}, chatPath, hello,
			Result{TokenIDs: []uint32{1, 2}, Rung: RungTokenize, Reason: "own: no files for this model"}},
		{"tokenize when render has the old form", nil, map[string]answer{chatPath + "/render": {200, `[[{"role":"user"}],[{"prompt":"x"}]]`, 0}, "/tokenize": {200, `{"tokens":[1,2],"count":2}`, 0}}, chatPath, hello,
			Result{TokenIDs: []uint32{1, 2}, Rung: RungTokenize, Reason: "own: no files for this model"}},
		{"a template of the request's own", map[string]string{"tiny": dir}, render, chatPath, strings.Replace(hello, "{", `{"chat_template":"x",`, 1),
			Result{TokenIDs: []uint32{5, 6, 7}, Rung: RungRender, Reason: "own: the request brings its own chat template"}},
		{"none: refused", nil, map[string]answer{chatPath + "/render": {400, "", 0}}, chatPath, hello,
			Result{Rung: RungNone, EstimatedTokens: 10, Reason: "own: no files for this model; render: engine answers 400"}},
		{"none: unknown model is no closed endpoint", nil, map[string]answer{chatPath + "/render": {404, `{"error":{"message":"The model does not exist"}}`, 0}}, chatPath, hello,
			Result{Rung: RungNone, EstimatedTokens: 10, Reason: "own: no files for this model; render: engine answers 404"}},
		{"none: nothing served", nil, nil, chatPath, hello,
			Result{Rung: RungNone, EstimatedTokens: 10, Reason: "own: no files for this model; render: not served; tokenize: not served"}},
		{"none: Anthropic without render", nil, nil, "/v1/messages", hello,
			Result{Rung: RungNone, EstimatedTokens: 10, Reason: "own: no files for this model; render: not served; tokenize: cannot render this API's prompts"}},
		{"none: embeddings as prompt", nil, nil, completionPath, `{"prompt_embeds":"AAAA"}`, Result{Rung: RungNone, EstimatedTokens: 1, Reason: "prompt is embeddings"}},
		{"none: nothing to match", nil, nil, "/tokenize", `{"prompt":"x"}`, Result{Rung: RungNone, EstimatedTokens: 1, Reason: "this kind of request is routed by load"}},
		{"none: embeddings of all texts", map[string]string{"tiny": dir}, nil, "/v1/embeddings", `{"model":"tiny","input":["four","and twenty"]}`, Result{Rung: RungNone, EstimatedTokens: 3, Reason: "this kind of request is routed by load"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, url, client := serve(t, tt.answers)
			r, err := New(Config{Models: tt.models, Client: client, Deadline: 10 * time.Second, IsAdapter: func(m string) bool { return m == "adapter" }})
			if err != nil {
				t.Fatal(err)
			}
			if tt.want.EstimatedTokens == 0 {
				tt.want.EstimatedTokens = len(tt.want.TokenIDs)
			}
			for range 2 { // the second time from caches
				got, err := r.Resolve(t.Context(), parse(t, tt.path, tt.body), url)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(tt.want, got, cmpopts.IgnoreUnexported(Result{})); d != "" {
					t.Errorf("Resolve (-want +got):\n%s", d)
				}
			}
			want := uint64(2)
			if !cacheable(parse(t, tt.path, tt.body).Kind) {
				want = 0 // of what could not be found nobody wants to hear
			}
			if got := resolved(r)[tt.want.Rung]; got != want {
				t.Errorf("counted %d of 2 requests as %s, want %d", got, tt.want.Rung, want)
			}
		})
	}
}

func TestEngineIsAskedOnce(t *testing.T) {
	f, url, client := serve(t, map[string]answer{"/tokenize": {200, `{"tokens":[1,2]}`, 0}})
	r, err := New(Config{Client: client, Deadline: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(body string) {
		t.Helper()
		if _, err := r.Resolve(t.Context(), parse(t, chatPath, body), url); err != nil {
			t.Fatal(err)
		}
	}
	ask(hello) // render is not served, then /tokenize
	ask(hello) // both known
	if got := f.asked.Load(); got != 2 {
		t.Errorf("engine was asked %d times, want 2", got)
	}
	ask(strings.Replace(hello, "Hello", "Other", 1)) // only /tokenize
	if got := f.asked.Load(); got != 3 {
		t.Errorf("engine was asked %d times, want 3", got)
	}
	if s := r.Status(); resolved(r)[RungTokenize] != 3 || s.Caches["answers"].Hits != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestTokenizeCarriesTheTemplatesInputs(t *testing.T) {
	f, url, client := serve(t, map[string]answer{"/tokenize": {200, `{"tokens":[1]}`, 0}})
	r, err := New(Config{Client: client, Deadline: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	body := `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],"reasoning_effort":"none",
		"documents":[{"text":"d"}],"chat_template_kwargs":{"a":1},"add_generation_prompt":false,"continue_final_message":true,"temperature":0.5,"stream":true}`
	if _, err := r.Resolve(t.Context(), parse(t, chatPath, body), url); err != nil {
		t.Fatal(err)
	}
	want := `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f"}}],
		"chat_template_kwargs":{"a":1,"documents":[{"text":"d"}],"enable_thinking":false,"reasoning_effort":"none"},
		"add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":false}`
	var got, wanted any
	if json.Unmarshal([]byte(f.last["/tokenize"]), &got) != nil || json.Unmarshal([]byte(want), &wanted) != nil {
		t.Fatal("no JSON")
	}
	if d := cmp.Diff(wanted, got); d != "" {
		t.Errorf("question (-want +got):\n%s", d)
	}
}

func TestDeadline(t *testing.T) {
	f, url, client := serve(t, map[string]answer{chatPath + "/render": {200, `{"token_ids":[1]}`, time.Minute}})
	r, err := New(Config{Client: client, Deadline: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got, err := r.Resolve(t.Context(), parse(t, chatPath, hello), url)
		if err != nil || got.Rung != RungNone {
			t.Errorf("Resolve = %+v, %v, want rung none", got, err)
		}
	}
	// Late once, left alone after that: only /tokenize, not served, is tried.
	if got := f.asked.Load(); got > 2 {
		t.Errorf("a late engine was asked %d times, want at most 2", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Resolve(ctx, parse(t, chatPath, hello), url); err == nil {
		t.Error("a cancelled request gave no error")
	}
}

func TestCheck(t *testing.T) {
	dir := tinyDir(t)
	// engine tokenizes as the files do, but for what it is told to change.
	engine := func(change func([]uint32) []uint32) http.HandlerFunc {
		truth, err := New(Config{Models: map[string]string{"tiny": dir}})
		if err != nil {
			t.Fatal(err)
		}
		return func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			path := completionPath
			if strings.Contains(string(b), "messages") {
				path = chatPath
			}
			req, err := openai.Parse(path, b)
			if err != nil {
				t.Error(err)
				return
			}
			res, _ := truth.Resolve(r.Context(), req, "")
			_ = json.NewEncoder(w).Encode(map[string]any{"tokens": change(slices.Clone(res.TokenIDs))})
		}
	}
	tests := []struct {
		name   string
		engine http.HandlerFunc
		want   string
		rung   string
	}{
		{"equal", engine(func(ids []uint32) []uint32 { return ids }), "", RungOwn},
		{"one token less", engine(func(ids []uint32) []uint32 { return ids[:len(ids)-1] }), "differ at token", RungTokenize},
		{"BOS before it", engine(func(ids []uint32) []uint32 { return append([]uint32{1}, ids...) }), "differ at token 0 of probe 0", RungTokenize},
		{"no answer", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusInternalServerError) }, "engine answers 500", RungOwn},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc("/tokenize", tt.engine)
			s := httptest.NewServer(mux)
			t.Cleanup(s.Close)
			r, err := New(Config{Models: map[string]string{"tiny": dir}, Client: s.Client(), Deadline: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			err = r.Check(t.Context(), "tiny", s.URL)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("Check = %v, want %q", err, tt.want)
			}
			got, err := r.Resolve(t.Context(), parse(t, chatPath, hello), s.URL)
			if err != nil || got.Rung != tt.rung {
				t.Errorf("after the check: %+v, %v, want rung %s", got, err, tt.rung)
			}
			if err := r.Check(t.Context(), "other", s.URL); err != nil {
				t.Errorf("Check of a model without files: %v", err)
			}
		})
	}
}

// resolved sums up requests by rung over all models.
func resolved(r *Resolver) map[string]uint64 {
	sum := map[string]uint64{}
	for _, m := range r.Status().Models {
		for rung, n := range m.Resolved {
			sum[rung] += n
		}
	}
	return sum
}

func TestResolveConcurrently(t *testing.T) {
	r, err := New(Config{Models: map[string]string{"tiny": tinyDir(t)}})
	if err != nil {
		t.Fatal(err)
	}
	tok := tinyTokenizer(t)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				text := strings.Repeat(fmt.Sprintf("words of %d and more ", (g+i)%10), 5)
				got, err := r.Resolve(t.Context(), parse(t, completionPath, fmt.Sprintf(`{"model":"tiny","prompt":%q}`, text)), "")
				if err != nil || !slices.Equal(got.TokenIDs, tok.Encode(nil, text)) {
					t.Errorf("wrong ids for %q", text)
					return
				}
			}
		})
	}
	wg.Wait()
}
