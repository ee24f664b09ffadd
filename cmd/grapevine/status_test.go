package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/pool"
)

func TestWritePools(t *testing.T) {
	var b strings.Builder
	writePools(&b, []pool.Status{
		{Name: "models/llama", Kind: "InferencePool", Synced: true, Endpoints: 12, NotReady: 1},
		{Name: "models/qwen", Kind: "InferencePool", Synced: true, Note: "there is no such InferencePool"},
		{Name: "models/mistral:http", Kind: "Service", AgeSeconds: 4.2, Error: "may not list endpointslices"},
	})
	want := `InferencePool models/llama: 12 eligible endpoints, 1 not ready, 0 terminating
InferencePool models/qwen: 0 eligible endpoints, 0 not ready, 0 terminating; there is no such InferencePool
Service models/mistral:http: not read yet; not heard of for 4 s: may not list endpointslices
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestExplainGuessesTheAPI: a body goes to the API that its fields tell, unless --path says.
func TestExplainGuessesTheAPI(t *testing.T) {
	var asked string
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("path")
		_, _ = io.WriteString(w, "{}")
	}))
	defer gateway.Close()
	for _, tt := range []struct{ name, body, args, want string }{
		{"chat", `{"messages":[]}`, "--gateway", "/v1/chat/completions"},
		{"completion", `{"prompt":"Hello"}`, "--admin", "/v1/completions"},
		{"said", `{"prompt":"Hello"}`, "--path /tokenize --gateway", "/tokenize"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := execute(t, tt.body, "explain --file - "+tt.args+" "+gateway.URL); err != nil || asked != tt.want {
				t.Errorf("asked for %q, want %q: %v", asked, tt.want, err)
			}
		})
	}
}

func TestStatusOfAnEmptyPool(t *testing.T) {
	var b strings.Builder
	writeStatus(&b, &picker.Status{Pool: "default"})
	if s := b.String(); !strings.Contains(s, "--endpoints") || strings.Contains(s, "ENDPOINT ") {
		t.Errorf("an empty pool is shown without a remedy:\n%s", s)
	}
}
