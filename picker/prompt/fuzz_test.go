package prompt

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

// FuzzResolve: no request makes the resolver panic, its chain is that of its
// ids, and what it makes of other APIs is JSON.
func FuzzResolve(f *testing.F) {
	paths := []string{chatPath, completionPath, "/v1/responses", "/v1/messages", "/v1/embeddings"}
	for i, body := range []string{
		hello, `{"prompt":["a","<|im_start|>b"],"truncate_prompt_tokens":1}`, `{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]}]}`,
		`{"system":[{"type":"text","text":"s"}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"messages":[{"role":"user","content":[{"type":"tool_result","content":"x"}]}]}`,
		`{"input":"x"}`, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`,
	} {
		f.Add(uint8(i), []byte(body))
	}
	dir := map[string]string{"tiny": tinyDir(f)}
	h := blockhash.NewHasher(3)
	asIDs, err := New(Config{Models: dir, CacheBytes: -1})
	if err != nil {
		f.Fatal(err)
	}
	asChain, err := New(Config{Models: dir, Hasher: h, BlockSizes: func() []int { return []int{4} }})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, path uint8, body []byte) {
		req, err := openai.Parse(paths[int(path)%len(paths)], body)
		if err != nil {
			return
		}
		req.Model = "tiny"
		if req.Kind == openai.Responses || req.Kind == openai.Messages {
			if in, err := converted(req); err == nil && (!json.Valid(in.Messages) || in.Tools != nil && !json.Valid(in.Tools)) {
				t.Fatalf("no JSON: %s %s", in.Messages, in.Tools)
			}
		}
		ids, err := asIDs.Resolve(t.Context(), req, "")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			chain, err := asChain.Resolve(t.Context(), req, "")
			if err != nil || chain.Rung != ids.Rung || chain.EstimatedTokens != ids.EstimatedTokens {
				t.Fatalf("%+v and %+v, %v", ids, chain, err)
			}
			if len(chain.Chains) == 1 && !slices.Equal(chain.Chains[0].Hashes, h.AppendChain(nil, h.Root(chain.Extras...), ids.TokenIDs, 4)) {
				t.Fatalf("chain of %s is not that of its ids", body)
			}
			chain.Release()
		}
	})
}
