package proxy

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

// ownIDs is a resolver that knows every prompt.
type ownIDs struct{ res prompt.Result }

func (o *ownIDs) Resolve(context.Context, *openai.Request, string) (prompt.Result, error) {
	return o.res, nil
}

func (o *ownIDs) Status() prompt.Status {
	return prompt.Status{
		Models: []prompt.ModelStatus{
			{Models: []string{"m", "n"}, Rung: prompt.RungRender, Resolved: map[string]uint64{"own": 3}, Checks: map[string]uint64{"different": 1}, Mismatches: 1, Last: &prompt.Mismatch{At: 17}},
			{Resolved: map[string]uint64{"none": 2}},
		},
		Caches: map[string]prompt.CacheStats{"chains": {Hits: 5, Misses: 6, Bytes: 7}},
	}
}

// TestForwardTokenIDs: engines get the ids of chat requests beside the
// messages, if that is asked for and the ids are verified.
func TestForwardTokenIDs(t *testing.T) {
	own := prompt.Result{TokenIDs: []uint32{5, 16, 7}, Rung: prompt.RungOwn, Verified: true, EstimatedTokens: 3}
	unverified, rendered := own, own
	unverified.Verified, rendered.Rung = false, prompt.RungRender
	const ids = `"kv_transfer_params":{"prompt_token_ids":[5,16,7]},`
	tests := []struct {
		name, path, body string
		off              bool
		res              prompt.Result
		want             string // "": the body as it is
	}{
		{"chat", chatPath, plainBody, false, own, "{" + ids + plainBody[1:]},
		{"usage asked for too", chatPath, streamBody, false, own, "{" + ids + `"stream_options":{"include_usage":true},` + streamBody[1:]},
		{"off", chatPath, plainBody, true, own, ""},
		{"not verified", chatPath, plainBody, false, unverified, ""},
		{"the engine's own ids", chatPath, plainBody, false, rendered, ""},
		{"a completion", "/v1/completions", `{"model":"m","prompt":"hi"}`, false, own, ""},
		{"truncated", chatPath, `{"truncate_prompt_tokens":2,` + plainBody[1:], false, own, ""},
		{"given by the client", chatPath, `{"kv_transfer_params":{"x":1},` + plainBody[1:], false, own, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got atomic.Pointer[string]
			e := engine(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				s := string(b)
				got.Store(&s)
				_, _ = io.WriteString(w, `{}`)
			})
			pc := picker.Default()
			pc.Endpoints = []string{e.URL}
			p, err := picker.New(pc)
			if err != nil {
				t.Fatal(err)
			}
			cfg := Default()
			cfg.ForwardTokenIDs = !tt.off
			px, err := New(cfg, p, &ownIDs{tt.res}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer px.Close()
			s := httptest.NewServer(px.Handler())
			defer s.Close()
			if resp, body := post(t, s.URL+tt.path, tt.body); resp.StatusCode != http.StatusOK {
				t.Fatalf("status %d: %s", resp.StatusCode, body)
			}
			if tt.want == "" {
				tt.want = tt.body
			}
			if *got.Load() != tt.want {
				t.Errorf("engine got  %s\nwant %s", *got.Load(), tt.want)
			}
		})
	}
}

// TestPromptsAreShown: /status and the metrics tell the state of the ladder.
func TestPromptsAreShown(t *testing.T) {
	p, err := picker.New(picker.Default())
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	px, err := New(Default(), p, &ownIDs{}, nil, reg)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) string {
		w := httptest.NewRecorder()
		px.Admin(reg).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Body.String()
	}
	var s struct {
		Pool    string        `json:"pool"`
		Prompts prompt.Status `json:"prompts"`
	}
	if err := json.Unmarshal([]byte(get("/status")), &s); err != nil {
		t.Fatal(err)
	}
	if s.Pool != "default" || len(s.Prompts.Models) != 2 || s.Prompts.Models[0].Mismatches != 1 || s.Prompts.Models[0].Last.At != 17 {
		t.Errorf("status %+v", s)
	}
	shown := get("/metrics")
	for _, want := range []string{
		`grapevine_prompt_resolved_total{model="m",rung="own"} 3`,
		`grapevine_prompt_resolved_total{model="other",rung="none"} 2`,
		`grapevine_prompt_checks_total{model="m",result="different"} 1`,
		`grapevine_prompt_own_ratio{model="m"} 0`,
		`grapevine_prompt_cache_hits_total{cache="chains"} 5`,
		`grapevine_prompt_cache_misses_total{cache="chains"} 6`,
		`grapevine_prompt_cache_bytes{cache="chains"} 7`,
	} {
		if !strings.Contains(shown, want+"\n") {
			t.Errorf("metrics do not show %s", want)
		}
	}
}

// countedPrompts counts what is asked of a resolver.
type countedPrompts struct {
	noIDs
	n *atomic.Int32
}

func (c countedPrompts) Resolve(ctx context.Context, req *openai.Request, url string) (prompt.Result, error) {
	c.n.Add(1)
	return c.noIDs.Resolve(ctx, req, url)
}

func TestPromptsAreReadWhereSomebodyLooksAtThem(t *testing.T) {
	tests := []struct {
		name    string
		shares  map[string]float64
		forward bool
		want    int32
	}{
		{"prefix", map[string]float64{picker.PolicyPrefix: 1}, false, 1},
		{"a share of prefix", map[string]float64{picker.PolicyPrefix: 0.01, picker.PolicyLeastLoad: 0.99}, false, 1},
		{"round-robin", map[string]float64{picker.PolicyRoundRobin: 1}, false, 0},
		{"least-load", map[string]float64{picker.PolicyPrefix: 0, picker.PolicyLeastLoad: 1}, false, 0},
		{"ids are passed on", map[string]float64{picker.PolicyRoundRobin: 1}, true, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := engine(t, func(w http.ResponseWriter, _ *http.Request) { send(w, firstEvent, doneEvent) })
			cfg := Default()
			cfg.ForwardTokenIDs = tt.forward
			g := newGateway(t, cfg, e.URL)
			var n atomic.Int32
			g.proxy.reader.Resolver = countedPrompts{n: &n}
			policy := picker.DefaultPolicy()
			policy.Shares = tt.shares
			if err := g.picker.SetPolicy(policy); err != nil {
				t.Fatal(err)
			}
			if resp, body := post(t, g.URL+chatPath, streamBody); resp.StatusCode != http.StatusOK {
				t.Fatal(body)
			}
			if n.Load() != tt.want {
				t.Errorf("prompt was read %d times, want %d", n.Load(), tt.want)
			}
		})
	}
}
