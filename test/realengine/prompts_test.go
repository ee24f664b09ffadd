package realengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

const (
	promptRequests = 300 // that the engine accepts
	promptSeed     = 20261129
)

// TestPrompts compares, for random requests of all forms, the resolver's token ids with those
// of the engine's render endpoint, and with its /tokenize where the form allows. Then a part of
// them goes through a gateway: predicted cached tokens are those that the engine reports.
func TestPrompts(t *testing.T) {
	f := newFleet(t, 1, "--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
	t.Run("OwnIDsAreTheEngines", f.ownIDs)
	t.Run("OddRequests", f.oddRequests)
	t.Run("PredictedIsReported", f.predictions)
}

// rendered asks the engine's render endpoint. ids has one entry for each prompt; nil when the
// engine refuses the request.
func (f *fleet) rendered(t *testing.T, r request) (ids [][]uint32, why string) {
	t.Helper()
	raw, status := f.raw(t, f.engines[0].url+r.path+"/render", mustJSON(r.body))
	switch status {
	case http.StatusOK:
	case http.StatusForbidden:
		t.Fatalf("render is closed: start vLLM with --enable-scale-out: %s", raw)
	default:
		return nil, fmt.Sprintf("%d %.150s", status, raw)
	}
	ids, err := readRendered(raw)
	if err != nil {
		t.Fatalf("read the engine's rendering: %v", err)
	}
	return ids, ""
}

// raw posts a body and returns the answer whatever its status.
func (f *fleet) raw(t *testing.T, url, body string) ([]byte, int) {
	t.Helper()
	resp, err := f.client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode >= http.StatusInternalServerError {
		f.client.CloseIdleConnections() // vLLM closes its end
	}
	return raw, resp.StatusCode
}

// tokenized asks /tokenize, which knows fewer fields than chat and completions: ok is false
// for a request with others.
func (f *fleet) tokenized(t *testing.T, r request) (ids []uint32, ok bool) {
	t.Helper()
	body := map[string]any{}
	for k, v := range r.body {
		switch k {
		case "model", "messages", "prompt", "tools", "chat_template", "chat_template_kwargs",
			"add_generation_prompt", "continue_final_message", "add_special_tokens":
			body[k] = v
		case "echo", "logprobs", "prompt_logprobs", "cache_salt":
		default:
			return nil, false
		}
	}
	if _, text := body["prompt"].(string); !text && body["messages"] == nil || r.path == "/v1/messages" {
		return nil, false
	}
	body["messages"] = withReasoning(body["messages"])
	raw, status := f.raw(t, f.engines[0].url+"/tokenize", mustJSON(body))
	if status != http.StatusOK {
		t.Errorf("/tokenize refuses what render takes: %d %.300s\n%s", status, raw, mustJSON(body))
		return nil, false
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Tokens, true
}

// withReasoning renames reasoning_content as vLLM's chat API does and its /tokenize does not
// (0.32, entrypoints/openai/chat_completion/protocol.py).
func withReasoning(messages any) any {
	list, _ := messages.([]any)
	if list == nil {
		return nil
	}
	out := slices.Clone(list)
	for i, m := range out {
		m := maps.Clone(m.(map[string]any))
		if old, ok := m["reasoning_content"]; ok {
			m["reasoning"] = old
			delete(m, "reasoning_content")
		}
		out[i] = m
	}
	return out
}

// onlyTokenize is a resolver without files that sees an engine with closed render endpoints,
// as vLLM starts by default.
func (f *fleet) onlyTokenize(t *testing.T) *prompt.Resolver {
	t.Helper()
	res, err := prompt.New(prompt.Config{Client: &http.Client{Transport: renderClosed{}}, Deadline: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// renderClosed answers 403 for render endpoints.
type renderClosed struct{}

func (renderClosed) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/render") {
		return &http.Response{StatusCode: http.StatusForbidden, Body: http.NoBody, Request: r}, nil
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (f *fleet) ownIDs(t *testing.T) {
	res, err := prompt.New(prompt.Config{
		Models: map[string]string{"tiny": f.model}, Client: f.client, Deadline: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	asking := f.onlyTokenize(t)
	hasher := blockhash.NewHasher(blockhash.DefaultSeed)
	chaining, err := prompt.New(prompt.Config{
		Models: map[string]string{"tiny": f.model}, BlockSizes: func() []int { return []int{16, blockSize} }, Hasher: hasher,
	})
	if err != nil {
		t.Fatal(err)
	}
	g := newGenerator(promptSeed)
	var equal, accepted, refused, tokenized, asked, chains int
	rungs := map[string]int{}    // of accepted requests, by API and rung
	reasons := map[string]int{}  // why not own
	refusals := map[string]int{} // by the engine
	for accepted < promptRequests {
		r := g.next()
		want, why := f.rendered(t, r)
		if want == nil {
			if refused++; refused > promptRequests {
				t.Fatalf("the engine refuses most requests, the last with: %s", why)
			}
			refusals[r.path+" "+why]++
			continue
		}
		accepted++
		body := []byte(mustJSON(r.body))
		req, err := openai.Parse(r.path, body)
		if err != nil {
			t.Errorf("%s (%s): the engine takes what Parse refuses: %v\n%s", r.path, r.note, err, body)
			continue
		}
		ok := true
		// Without an engine to ask: own ids or none. With one: never none.
		for _, url := range []string{"", f.engines[0].url} {
			got, err := res.Resolve(t.Context(), req, url)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case got.TokenIDs == nil && url == "":
				reasons[r.path+" "+got.Reason]++
			case got.TokenIDs == nil:
				ok = false
				t.Errorf("%s (%s): no ids: %s\n%s", r.path, r.note, got.Reason, body)
			default:
				if d := difference(got.TokenIDs, want); d != "" {
					ok = false
					t.Errorf("%s (%s): rung %s: %s\n%s", r.path, r.note, got.Rung, d, body)
				}
			}
			if url != "" {
				rungs[r.path+" "+got.Rung]++
			}
		}
		for _, state := range []string{"first", "again"} { // then from caches
			got, err := chaining.Resolve(t.Context(), req, "")
			if err != nil {
				t.Fatal(err)
			}
			if got.Rung != prompt.RungNone {
				if len(got.Chains) > 0 {
					chains++
				}
				if !chained(hasher, &got, want) {
					ok = false
					t.Errorf("%s (%s): the chain is not that of the engine's ids, %s\n%s", r.path, r.note, state, body)
				}
			}
			got.Release()
		}
		if got, err := asking.Resolve(t.Context(), req, f.engines[0].url); err != nil {
			t.Fatal(err)
		} else if got.TokenIDs != nil {
			if rung := got.Rung; rung == prompt.RungTokenize {
				asked++
			}
			if d := difference(got.TokenIDs, want); d != "" {
				ok = false
				t.Errorf("%s (%s): with render closed, rung %s: %s\n%s", r.path, r.note, got.Rung, d, body)
			}
		}
		if ids, asked := f.tokenized(t, r); asked {
			tokenized++
			if d := difference(ids, want); d != "" {
				ok = false
				t.Errorf("%s (%s): /tokenize and render: %s\n%s", r.path, r.note, d, body)
			}
		}
		if ok {
			equal++
		}
	}
	t.Logf("%d of %d requests equal, %d times as chains; %d compared with /tokenize too; %d more refused by the engine", equal, accepted, chains, tokenized, refused)
	t.Logf("rungs: %v; with no files and render closed %d by /tokenize", rungs, asked)
	t.Logf("not own: %v", reasons)
	t.Logf("refused by the engine: %v", refusals)
}

// chained tells whether a result's chains, or the ids that it has in their place, are those of
// one of the prompts.
func chained(hasher blockhash.Hasher, got *prompt.Result, prompts [][]uint32) bool {
	if len(got.Chains) == 0 {
		return difference(got.TokenIDs, prompts) == ""
	}
	root := hasher.Root(got.Extras...)
	return slices.ContainsFunc(prompts, func(ids []uint32) bool {
		for _, c := range got.Chains {
			if !slices.Equal(c.Hashes, hasher.AppendChain(nil, root, ids, c.BlockSize)) {
				return false
			}
		}
		return len(prompts) > 1 || got.EstimatedTokens == len(ids)
	})
}

// difference of ids to those of the prompts of one request, the longest of which decides;
// "" if there is none.
func difference(got []uint32, prompts [][]uint32) string {
	longest := prompts[0]
	for _, p := range prompts {
		if slices.Equal(p, got) {
			return ""
		}
		if len(p) > len(longest) {
			longest = p
		}
	}
	at := 0
	for at < len(got) && at < len(longest) && got[at] == longest[at] {
		at++
	}
	around := func(ids []uint32) []uint32 { return ids[max(0, at-2):min(len(ids), at+6)] }
	return fmt.Sprintf("differs at token %d: got %d ids ..%v.., want %d ids ..%v..", at, len(got), around(got), len(longest), around(longest))
}

// predictions sends some of the same requests through the gateway, each twice, one after the
// other: the second time most of the prompt is cached.
func (f *fleet) predictions(t *testing.T) {
	g := newGenerator(promptSeed + 1)
	before, sent, warm := exact, 0, 0
	for sent < 60 {
		r := g.next()
		if want, _ := f.rendered(t, r); len(want) != 1 {
			continue // refused, or several prompts whose cached tokens are reported in one sum
		}
		body := maps.Clone(r.body)
		g.lengthen(r.path, body)
		if want, _ := f.rendered(t, request{path: r.path, body: body}); want == nil {
			continue
		}
		for range 2 {
			if a := f.ask(t, r.path, body); a.cached > 0 {
				warm++
			}
			sent++
		}
	}
	t.Logf("predicted = reported on %d of %d requests of random form, %d of them with cached tokens", exact-before, sent, warm)

	long := words("logprobs", 200)
	first := f.ask(t, "/v1/completions", map[string]any{"prompt": long})
	if again := f.ask(t, "/v1/completions", map[string]any{"prompt": long}); again.cached == 0 {
		t.Errorf("a prompt of %d tokens is not cached the second time", first.prompt)
	}
	for _, extra := range []map[string]any{{"prompt_logprobs": 1}, {"prompt_logprobs": 0}, {"echo": true, "logprobs": 1}} {
		body := map[string]any{"prompt": long}
		for k, v := range extra {
			body[k] = v
		}
		if a := f.ask(t, "/v1/completions", body); a.predicted != 0 || a.cached != 0 {
			t.Errorf("%v: predicted %d, reported %d, want 0 and 0: it does not read the cache", extra, a.predicted, a.cached)
		}
	}
	chat := map[string]any{"messages": []any{message("user", long)}}
	f.ask(t, "/v1/chat/completions", chat)
	chat["prompt_logprobs"] = 1
	if a := f.ask(t, "/v1/chat/completions", chat); a.predicted != 0 || a.cached != 0 {
		t.Errorf("chat with prompt_logprobs: predicted %d, reported %d, want 0 and 0", a.predicted, a.cached)
	}
	body := map[string]any{"prompt": long, "echo": true}
	if a := f.ask(t, "/v1/completions", body); a.cached == 0 {
		t.Errorf("echo without logprobs: nothing cached")
	}
}

// lengthen adds text at the front of a prompt, so that several blocks of it can be cached, and
// drops what makes the engine generate for long.
func (g generator) lengthen(path string, body map[string]any) {
	long := words(fmt.Sprintf("v%d", g.IntN(1_000_000)), 100)
	switch path {
	case "/v1/chat/completions", "/v1/messages":
		old, _ := body["messages"].([]any)
		messages := slices.Clone(old)
		for i, m := range messages {
			if m := m.(map[string]any); m["role"] == "user" {
				messages[i] = message("user", long)
				break
			}
		}
		body["messages"] = messages
	case "/v1/completions":
		if text, ok := body["prompt"].(string); ok {
			body["prompt"] = long + text
		}
	case "/v1/responses":
		if text, ok := body["input"].(string); ok {
			body["input"] = long + text
		}
	}
}

func mustJSON(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // values here are plain
	}
	return string(bytes.TrimSpace(b.Bytes()))
}
