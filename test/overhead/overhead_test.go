package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/test/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWorkloads(t *testing.T) {
	for _, size := range []int{2 << 10, 32 << 10, 128 << 10} {
		for name, w := range map[string]workload{"cold": coldWorkload(1, size, 20), "warm": warmWorkload(1, size, 20)} {
			for i, body := range w.requests {
				req, err := openai.Parse("/v1/chat/completions", body)
				if err != nil {
					t.Fatalf("%s %d: %v", name, size, err)
				}
				if !req.Stream || !req.IncludeUsage || req.Model != "tiny" {
					t.Errorf("%s %d: %+v", name, size, req)
				}
				if n := len(body); n < size*7/10 || n > size*13/10 {
					t.Errorf("%s %d: body %d has %d bytes", name, size, i, n)
				}
				var messages []struct{ Role, Content string }
				if err := json.Unmarshal(req.Messages, &messages); err != nil || messages[len(messages)-1].Role != "user" {
					t.Errorf("%s %d: messages end with %+v, %v", name, size, messages[len(messages)-1], err)
				}
			}
		}
	}
}

// A cold request shares no more with the others than the names of roles; a warm one continues
// one before it.
func TestColdAndWarm(t *testing.T) {
	const size, n = 8 << 10, 12
	messages := func(body []byte) string {
		text := string(body)
		return strings.TrimSuffix(text[strings.Index(text, `[{"role"`):], "]}")
	}
	cold := coldWorkload(7, size, n).requests
	for i := range cold {
		for k := range i {
			a, b := messages(cold[i]), messages(cold[k])
			if a[:100] == b[:100] {
				t.Errorf("cold requests %d and %d begin alike", i, k)
			}
		}
	}
	warm := warmWorkload(7, size, n)
	known := warm.warms
	for i, body := range warm.requests {
		before := messages(known[i])
		if !strings.HasPrefix(messages(body), before+",") {
			t.Errorf("warm request %d does not go on with %d", i, i-conversations)
		}
		known = append(known, body)
	}
	if again := coldWorkload(7, size, n).requests; !bytes.Equal(again[n-1], cold[n-1]) {
		t.Error("the same seed gives other bodies")
	}
}

func TestCPUTime(t *testing.T) {
	proc := t.TempDir()
	for tid, text := range map[string]string{"7": "1500000 20 3\n", "9": "2500000 0 1\n"} {
		dir := filepath.Join(proc, "7", "task", tid)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "schedstat"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := cpuTime(proc, 7); err != nil || got != 4*time.Millisecond {
		t.Errorf("cpuTime = %v, %v, want 4ms", got, err)
	}
	if _, err := cpuTime(proc, 8); err == nil || !strings.Contains(err.Error(), "Linux") {
		t.Errorf("no such process: %v", err)
	}
}

func TestTokenizedBy(t *testing.T) {
	tests := []struct {
		line string
		want float64
		bad  bool
	}{
		{`grapevine_prompt_resolved_total{rung="own"} 12`, 12, false},
		{`grapevine_prompt_resolved_total{model="m",rung="own"} 3`, 3, false},
		{`grapevine_prompt_resolved_total{rung="none"} 12`, 0, false},
		{`# HELP grapevine_prompt_resolved_total own`, 0, false},
		{`grapevine_prompt_resolved_total{rung="own"} x`, 0, true},
	}
	for _, tt := range tests {
		if got, err := tokenizedBy(tt.line); got != tt.want || (err != nil) != tt.bad {
			t.Errorf("%s: %v, %v, want %v", tt.line, got, err, tt.want)
		}
	}
}

func TestNginxConfig(t *testing.T) {
	got := nginxConfig(8080, "/d", []string{"http://127.0.0.1:1", "http://127.0.0.1:2"})
	for _, want := range []string{"listen 127.0.0.1:8080;", "server 127.0.0.1:1;\n    server 127.0.0.1:2;", "pid /d/nginx.pid;", "keepalive 64;"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// Every request reaches every target once, and its answer is read to the end.
func TestSendAll(t *testing.T) {
	var stubs [2]stub
	var targets []*client
	for i := range stubs {
		server := httptest.NewServer(&stubs[i])
		defer server.Close()
		targets = append(targets, newClient(server.URL))
	}
	refuses := httptest.NewServer(http.NotFoundHandler())
	defer refuses.Close()
	targets = append(targets, newClient(refuses.URL))
	for _, c := range targets {
		defer c.http.CloseIdleConnections()
	}
	samples := sendAll(t.Context(), targets, coldWorkload(1, 2<<10, 5).requests, 0)
	for k := range targets {
		if len(samples[k]) != 5 {
			t.Fatalf("target %d has %d samples, want 5", k, len(samples[k]))
		}
		for _, s := range samples[k] {
			if refused := k == 2; (s.err != nil) != refused || !refused && s.firstByte <= 0 {
				t.Errorf("target %d: %+v", k, s)
			}
		}
	}
	if a, b := stubs[0].served.Load(), stubs[1].served.Load(); a != 5 || b != 5 {
		t.Errorf("stubs served %d and %d, want 5 each", a, b)
	}
}

func TestReport(t *testing.T) {
	rep := report{Machine: "1 x cpu", Engines: "stubs", Count: 4, Requests: 9, Skipped: []string{errNoNginx.Error()},
		Background: []background{{"prefix", 2, 12}},
		Cells: []cell{{KiB: 32, Warm: true, Rows: []row{
			{Target: "engine", FirstByte: load.Quantiles{P50: 0.5, P99: 1}},
			{Target: "forward only", Gateway: true, HasCPU: true, FirstByte: load.Quantiles{P50: 1, P99: 2}, CPU: load.Quantiles{P50: 0.5}},
			{Target: "prefix", Gateway: true, HasCPU: true, FirstByte: load.Quantiles{P50: 1.25, P99: 3}, CPU: load.Quantiles{P50: 0.75}, MeanCPUMs: 0.875, Tokenized: 1, LateMs: 4},
		}}},
		Scaling: []scaling{{64, 1}},
	}
	var b strings.Builder
	if err := rep.write(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"32 KiB", "warm", "+0.75 ms", "0.75 ms", "0.88 ms", "1.5", "apt-get install nginx-light", "64 engines the gateway tokenizes 1.00", "within 4.0 ms", "without requests prefix takes 2.0 ms of CPU in a second before the first of them, 12.0 ms"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}

func TestParse(t *testing.T) {
	cfg, asJSON, err := parse([]string{"-sizes", "2,128", "-engines", "emulated", "-load", "2", "--json"})
	if err != nil || !asJSON || !cfg.emulated || len(cfg.sizes) != 2 || cfg.sizes[1] != 128<<10 {
		t.Errorf("parse = %+v, %v, %v", cfg, asJSON, err)
	}
	if got := cfg.gap(2 << 10); got != 5*time.Millisecond {
		t.Errorf("gap = %v, want 5ms", got)
	}
	for _, args := range []string{"-sizes 0", "-sizes x", "-engines real", "-engines emulated -model x", "-count 0", "-load 0"} {
		if _, _, err := parse(strings.Fields(args)); err == nil {
			t.Errorf("%s is taken", args)
		}
	}
}
