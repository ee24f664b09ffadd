package docs

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/agent"
	"github.com/grapevine-llm/grapevine/test/engine"
)

// TestAgentShowsWhatThePageSays compares the metrics read from the source with those that an agent beside an engine serves.
func TestAgentShowsWhatThePageSays(t *testing.T) {
	documented, err := agentMetrics(agentDir())
	if err != nil {
		t.Fatal(err)
	}
	shown := agentExposes(t)
	for _, m := range documented {
		kind, ok := shown[m.name]
		switch {
		case !ok && !strings.Contains(m.name, "_gpu_"): // there may be no GPU here
			t.Errorf("%s is described, but the agent does not show it", m.name)
		case ok && kind != m.kind:
			t.Errorf("%s is a %s, described as a %s", m.name, kind, m.kind)
		}
		delete(shown, m.name)
	}
	for name := range shown {
		t.Errorf("the agent shows %s, which is not described", name)
	}
}

// agentExposes returns the kinds of an agent's metrics by name.
func agentExposes(t *testing.T) map[string]string {
	cfg := engine.Default()
	cfg.Listen = "127.0.0.1:0"
	cfg.Events.Endpoint, cfg.Events.ReplayEndpoint = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	var err error
	if cfg.Tokenizer, err = engine.Tiny(); err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ac := agent.Default()
	ac.Engine = []string{"http://" + e.Addr()}
	ac.Gossip.Bind, ac.MetricsListen, ac.DrainFor = "127.0.0.1:0", "127.0.0.1:0", 0
	a, err := agent.New(ac)
	if err != nil {
		e.Close()
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- e.Run(ctx) }()
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()

	kinds := map[string]string{}
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		text := get(t, "http://"+a.AdminAddr()+"/metrics")
		if !strings.Contains(text, "\ngrapevine_agent_event_replays_total{") { // the last thing to appear
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(text, -1) {
			kinds[m[1]] = m[2]
		}
		return kinds
	}
	t.Fatal("the agent did not subscribe to its engine's events")
	return nil
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
