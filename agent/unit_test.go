package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
	"github.com/grapevine-llm/grapevine/agent/zmqsub"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/gossiptest"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// testUnit is a unit whose mesh is never run, with a stream and a subscription
// for rank 0.
func testUnit(t *testing.T) (*unit, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	cfg := Default()
	cfg.Engine = []string{"http://127.0.0.1:8000"}
	cfg.Gossip.Bind = "127.0.0.1:0"
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	u, err := newUnit(cfg, 0, blockhash.NewHasher(1), func(uint32) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.mesh.Close(); err != nil {
		t.Error(err)
	}
	if u.mesh, err = mesh.New(mesh.Config{Role: mesh.RoleAgent, Handler: u, Transport: gossiptest.NewTransportNetwork(gossiptest.TransportConfig{}).Transport()}); err != nil {
		t.Fatal(err)
	}
	sub, err := zmqsub.New(zmqsub.Config{Endpoint: "tcp://127.0.0.1:5557"})
	if err != nil {
		t.Fatal(err)
	}
	u.subs[0] = sub
	u.openStreams(scrape(t, 0, 0).Sample, nil)
	return u, log
}

// scrape is a reading so many seconds after the start.
func scrape(t *testing.T, at, promptTokens int) enginemetrics.Scrape {
	t.Helper()
	s, err := enginemetrics.Parse(fmt.Appendf(nil, `process_start_time_seconds 1000
vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:prompt_tokens_total{engine="0",model_name="m"} %d
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",enable_prefix_caching="True",engine="0"} 1
`, promptTokens))
	if err != nil {
		t.Fatal(err)
	}
	return enginemetrics.Scrape{At: testBase.Add(time.Duration(at) * time.Second), Sample: s}
}

func TestEngineDown(t *testing.T) {
	failed := func(took time.Duration) enginemetrics.Scrape {
		return enginemetrics.Scrape{At: testBase, Err: errors.New("no answer"), Took: took}
	}
	for _, tt := range []struct {
		name    string
		scrapes []enginemetrics.Scrape
		down    bool
	}{
		{"late once or twice", []enginemetrics.Scrape{failed(time.Second), failed(time.Second)}, false},
		{"late again and again", []enginemetrics.Scrape{failed(time.Second), failed(time.Second), failed(time.Second)}, true},
		{"stuck", []enginemetrics.Scrape{failed(engineTimeout)}, true},
		{"stuck, then back", []enginemetrics.Scrape{failed(engineTimeout), scrape(t, 9, 0)}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, _ := testUnit(t)
			u.scraped(scrape(t, 0, 0))
			for _, sc := range tt.scrapes {
				u.scraped(sc)
			}
			if down := u.streams[0].flags&wire.EngineDown != 0; down != tt.down {
				t.Errorf("down %v, want %v", down, tt.down)
			}
		})
	}
}

func TestGatewayOfAnotherPoolIsSaidInWords(t *testing.T) {
	u, log := testUnit(t)
	u.NodeUp(testBase, mesh.Member{Name: "g", Role: mesh.RolePicker, Pool: "other"})
	if got := log.String(); !strings.Contains(got, "pool=other") || !strings.Contains(got, "--pool") || len(u.pickers) != 0 {
		t.Errorf("%d gateways, log:\n%s", len(u.pickers), got)
	}
}

func TestSilentEngineIsSaidInWords(t *testing.T) {
	u, log := testUnit(t)
	for at, tokens := range []int{0, 5000, 5000, 9000} {
		u.scraped(scrape(t, at*10, tokens))
	}
	if u.info.KVEvents != "silent" || !strings.Contains(log.String(), "requests ran, but no KV event came") {
		t.Errorf("INFO says %q, log:\n%s", u.info.KVEvents, log)
	}
	for at := range 10 {
		u.scraped(scrape(t, 40+at, 9000))
	}
	if n := strings.Count(log.String(), "engine sends no KV events"); n != 1 || u.info.KVEvents != "silent" {
		t.Errorf("said %d times (want once), INFO says %q", n, u.info.KVEvents)
	}
	u.event(u.streams[0], u.subs[0], zmqsub.Event{Kind: zmqsub.Live, Message: zmqsub.Message{Payload: batch(1, 3)}})
	if u.info.KVEvents != "ok" {
		t.Errorf("after an event the INFO says %q, want ok", u.info.KVEvents)
	}
}

func TestEngineIsDownAfterSeveralFailures(t *testing.T) {
	u, _ := testUnit(t)
	u.scraped(scrape(t, 0, 0))
	version := u.info.Version
	for i := range downAfter {
		if u.streams[0].flags&wire.EngineDown != 0 {
			t.Errorf("down after %d failures, want %d", i, downAfter)
		}
		u.scraped(enginemetrics.Scrape{At: testBase, Err: errors.New("no answer")})
	}
	if u.streams[0].flags&wire.EngineDown == 0 {
		t.Errorf("not down after %d failures", downAfter)
	}
	u.scraped(scrape(t, 9, 0))
	if u.streams[0].flags&wire.EngineDown != 0 || u.info.Version != version {
		t.Errorf("flags %b after the engine came back, INFO version %d (want %d: nothing in it changed)", u.streams[0].flags, u.info.Version, version)
	}
}

func TestTicksSlowDownInALargeFleet(t *testing.T) {
	u, _ := testUnit(t)
	for agents, want := range map[int]time.Duration{0: 25 * time.Millisecond, 49: 25 * time.Millisecond, 999: 500 * time.Millisecond} {
		u.agents = agents
		if got := u.minInterval(); got != want {
			t.Errorf("%d other agents: %v, want %v", agents, got, want)
		}
	}
}
