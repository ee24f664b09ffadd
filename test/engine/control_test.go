package engine

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

func TestResetAndSleep(t *testing.T) {
	cfg := quick()
	cfg.Speedup = 20
	c := startEngine(t, cfg)
	type success struct{ Success bool }
	var s success
	if c.call("POST", "/reset_prefix_cache", "", &s); !s.Success {
		t.Error("an idle engine refused a reset")
	}
	answers := make(chan answer, 1)
	go func() {
		var a answer
		c.call("POST", "/v1/completions", `{"prompt":`+ids(0, 160)+`,"max_tokens":300}`, &a)
		answers <- a
	}()
	c.wait("it runs", func(s RankStats) bool { return s.GeneratedTokens > 0 })
	if c.call("POST", "/reset_prefix_cache", "", &s); s.Success {
		t.Error("a busy engine reset its cache")
	}
	if c.call("POST", "/reset_prefix_cache?reset_running_requests=true", "", &s); !s.Success {
		t.Error("a reset with preemption was refused")
	}
	if a := <-answers; a.Usage == nil || a.Usage.Completion != 300 {
		t.Errorf("the preempted request: %+v", a)
	}

	var asleep struct {
		Is bool `json:"is_sleeping"`
	}
	c.call("POST", "/sleep?level=1", "", nil)
	if c.call("GET", "/is_sleeping", "", &asleep); !asleep.Is {
		t.Error("not asleep")
	}
	if m := c.metrics(); !strings.Contains(m, `sleep_state="weights_offloaded"} 1`) {
		t.Error("metrics do not show the sleep")
	}
	go func() {
		var a answer
		c.call("POST", "/v1/completions", `{"prompt":"abc"}`, &a)
		answers <- a
	}()
	c.wait("it waits", func(s RankStats) bool { return s.Waiting == 1 })
	c.call("POST", "/wake_up", "", nil)
	if a := <-answers; a.Usage == nil || a.Usage.Completion != 16 {
		t.Errorf("after the wake-up: %+v", a)
	}
}

func (c client) metrics() string {
	resp := c.call("GET", "/metrics", "", nil)
	raw, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 {
		c.t.Fatalf("metrics: %d %s", resp.StatusCode, raw)
	}
	return string(raw)
}

func TestMetrics(t *testing.T) {
	cfg := quick()
	cfg.Adapters = []pool.Adapter{{Name: "a", Path: "p"}}
	cfg.Ranks = 2
	c := startEngine(t, cfg)
	for range 2 {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", c.url+"/v1/completions", strings.NewReader(`{"prompt":`+ids(0, 100)+`,"max_tokens":3}`))
		req.Header.Set("X-data-parallel-rank", "1")
		c.do(req, nil)
	}
	m := c.metrics()
	const of = `{engine="1",model_name="tiny"}`
	for _, want := range []string{
		"vllm:num_requests_running" + of + " 0", "vllm:num_requests_waiting" + of + " 0",
		"vllm:kv_cache_usage_perc" + of + " 0", "vllm:prompt_tokens_total" + of + " 200",
		"vllm:prefix_cache_queries_total" + of + " 200", "vllm:prefix_cache_hits_total" + of + " 96",
		"vllm:generation_tokens_total" + of + " 6", "vllm:num_preemptions_total" + of + " 0",
		"vllm:request_prefill_time_seconds_count" + of + " 2", "vllm:inter_token_latency_seconds_count" + of + " 4",
		"vllm:time_to_first_token_seconds_count" + of + " 2", "vllm:request_prefill_kv_computed_tokens_sum" + of + " 104",
		`vllm:request_success_total{engine="1",finished_reason="length",model_name="tiny"} 2`,
		`block_size="16"`, `num_gpu_blocks="1000"`, "process_start_time_seconds 1.", "vllm:lora_requests_info{",
		`vllm:request_prefill_time_seconds_sum{engine="0",model_name="tiny"} 0`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	// 0.020 + 0.020 s and the tokens' share, on a clock a thousand times as fast.
	wantSum := (cfg.Clock.Prefill(100, 0) + cfg.Clock.Prefill(4, 96)).Seconds() / 1000
	_, after, _ := strings.Cut(m, "vllm:request_prefill_time_seconds_sum"+of+" ")
	var sum float64
	if _, err := fmt.Sscan(after, &sum); err != nil || math.Abs(sum-wantSum) > 1e-9 {
		t.Errorf("prefill seconds %v, %v; want %v", sum, err, wantSum)
	}
}

func TestControl(t *testing.T) {
	cfg := quick()
	cfg.Ranks = 2
	c := startEngine(t, cfg)
	for _, path := range []string{"/health", "/ping"} {
		if resp := c.call("GET", path, "", nil); resp.StatusCode != 200 || resp.Header.Get("X-Request-Id") != "r-1" {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	var v struct {
		Version string
		Load    int `json:"server_load"`
	}
	if c.call("GET", "/version", "", &v); v.Version != Version {
		t.Errorf("version %q", v.Version)
	}
	if c.call("GET", "/load", "", &v); v.Load != 0 {
		t.Errorf("load %d", v.Load)
	}
	var sources map[string]struct {
		Endpoint string
		Replay   string `json:"replay_endpoint"`
		Topic    string
		Steps    int `json:"buffer_steps"`
	}
	c.call("GET", "/kv_event_sources", "", &sources)
	events, replay := c.e.Endpoints(1)
	if s := sources["1"]; len(sources) != 2 || s.Endpoint != events || s.Replay != replay || s.Topic != "kv@test" || s.Steps != 10_000 {
		t.Errorf("event sources %+v", sources)
	}
	c.call("POST", "/v1/completions", `{"prompt":"abc","max_tokens":2}`, nil)
	var st Stats
	c.call("GET", "/debug/stats", "", &st)
	if len(st.Ranks) != 2 || st.Requests != 1 || st.Ranks[0].Requests != 1 || st.PrefillSeconds <= 0.02 || st.FullPrefillSeconds != st.PrefillSeconds {
		t.Errorf("stats %+v", st.Ranks)
	}
	if len(st.Latest) != 1 || st.Latest[0].ID != "cmpl-r-1" || st.Latest[0].PromptTokens != 3 || st.Latest[0].TTFTMillis < 20 {
		t.Errorf("history %+v", st.Latest)
	}
}

func TestValidate(t *testing.T) {
	cfg := Config{Adapters: []pool.Adapter{{}}}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("an empty configuration is valid")
	}
	for _, field := range []string{"model", "Tokenizer", "speedup", "block-size", "max-num-seqs", "ChunkTokens", "data-parallel-size", "adapter"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%s is not named in %v", field, err)
		}
	}
	busy := quick()
	busy.Listen = "256.0.0.1:0"
	if _, err := New(busy); err == nil {
		t.Error("listened on no address")
	}
}
