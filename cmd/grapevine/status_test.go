package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
