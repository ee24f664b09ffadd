package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/agent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/view"
	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blockSize = 16

// engine is as much of vLLM as an agent sees: HTTP and the event publisher.
type engine struct {
	t        *testing.T
	http     *httptest.Server
	hasher   pool.Hasher
	ring     int
	form     zmqpub.Config
	stopPub  func()
	mu       sync.Mutex // guards what follows
	pub      *zmqpub.Publisher
	started  int // process start
	prompt   int // prompt tokens
	asleep   bool
	refuse   bool // resets
	down     bool
	noEvents bool // kv_event_sources lists nothing
	tells    bool // kv_event_sources exists
	secret   bool // /v1 needs a key
	resets   int
	connects bool    // the publisher connects instead of binding
	second   *engine // publishes for rank 1
	events   string
	replay   string
}

func newEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{t: t, hasher: pool.NewHasher("", false), started: 1000, tells: true, form: zmqpub.Config{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", e.metrics)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"version":"0.32.0"}`) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.secret && r.Header.Get("Authorization") != "Bearer k3y" {
			http.Error(w, "no key", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"data":[{"id":"m","root":"/m","parent":null,"max_model_len":4096},{"id":"lora","root":"/l","parent":"m"}]}`)
	})
	mux.HandleFunc("GET /kv_event_sources", func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		switch {
		case !e.tells:
			http.NotFound(w, r)
		case e.noEvents:
			fmt.Fprint(w, `{}`)
		default:
			fmt.Fprintf(w, `{"0":{"endpoint":%q,"replay_endpoint":%q,"topic":"","buffer_steps":10000}`, e.events, e.replay)
			if e.second != nil {
				fmt.Fprintf(w, `,"1":{"endpoint":%q,"replay_endpoint":%q,"topic":""}`, e.second.events, e.second.replay)
			}
			fmt.Fprint(w, "}")
		}
	})
	mux.HandleFunc("POST /reset_prefix_cache", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.resets++
		fmt.Fprintf(w, `{"success": %v}`, !e.refuse)
	})
	e.http = httptest.NewServer(mux)
	t.Cleanup(e.http.Close)
	e.open()
	t.Cleanup(func() { e.stopPub() })
	return e
}

func (e *engine) metrics(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		http.Error(w, "starting", http.StatusServiceUnavailable)
		return
	}
	awake, asleep := 1, 0
	if e.asleep {
		awake, asleep = 0, 1
	}
	if e.second != nil {
		fmt.Fprintf(w, `vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:cache_config_info{block_size="%d",num_gpu_blocks="2000",enable_prefix_caching="True",engine="1"} 1.0
`, blockSize)
	}
	const labels = `{engine="0",model_name="m"}`
	fmt.Fprintf(w, `process_start_time_seconds %d
vllm:num_requests_running%[2]s 1.0
vllm:num_requests_waiting%[2]s 0.0
vllm:kv_cache_usage_perc%[2]s 0.25
vllm:prompt_tokens_total%[2]s %[3]d
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} %[4]d
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} %[5]d
vllm:cache_config_info{block_size="%[6]d",num_gpu_blocks="1000",enable_prefix_caching="True",engine="0"} 1.0
`, e.started, labels, e.prompt, awake, asleep, blockSize)
}

// open starts a publisher: a new engine process, on the ports of the one before.
func (e *engine) open() {
	e.t.Helper()
	cfg := e.form
	cfg.BufferSteps = e.ring
	if e.events != "" {
		// With a host in it the publisher would connect: bind all addresses.
		cfg.Endpoint, cfg.ReplayEndpoint = e.events, e.replay
		if !e.connects {
			cfg.Endpoint = strings.Replace(e.events, "127.0.0.1", "*", 1)
		}
	}
	pub, err := zmqpub.Open(cfg)
	if err != nil {
		e.t.Fatalf("open publisher: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- pub.Run(ctx) }()
	e.stopPub = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Errorf("publisher: %v", err)
		}
	})
	e.set(func() {
		e.pub = pub
		if e.events == "" {
			e.events, e.replay = pub.Endpoints()
			e.events = strings.Replace(e.events, "0.0.0.0", "127.0.0.1", 1)
			e.replay = strings.Replace(e.replay, "0.0.0.0", "127.0.0.1", 1)
		}
	})
}

func (e *engine) set(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

func (e *engine) restart() {
	e.stopPub()
	e.open()
	e.set(func() { e.started += 100 })
}

// tokens makes a prompt that no other number makes.
func tokens(prompt, blocks int) []uint32 {
	out := make([]uint32, blocks*blockSize)
	for i := range out {
		out[i] = uint32(prompt*100_000 + i)
	}
	return out
}

// store publishes the blocks from..to-1 of a prompt as one batch.
func (e *engine) store(prompt, from, to int) {
	toks := tokens(prompt, to)
	hashes := e.hasher.AppendChain(nil, toks, blockSize, pool.Extras{})
	ev := pool.Event{Kind: pool.Stored, Hashes: hashes[from:], Tokens: toks[from*blockSize:], BlockSize: blockSize, ExtraKeys: make([][]string, to-from)}
	if from > 0 {
		ev.Parent = &hashes[from-1]
	}
	e.set(func() { e.pub.Publish(time.Now(), []pool.Event{ev}) })
}

// remove publishes the removal of one block of a prompt.
func (e *engine) remove(prompt, block int) {
	hashes := e.hasher.AppendChain(nil, tokens(prompt, block+1), blockSize, pool.Extras{})
	e.set(func() { e.pub.Publish(time.Now(), []pool.Event{{Kind: pool.Removed, Hashes: hashes[block:]}}) })
}

// gateway is a picker's mesh and view.
type gateway struct {
	t    *testing.T
	view *view.View
	mesh *mesh.Mesh
	mu   sync.Mutex // guards the view's writer side
}

func (g *gateway) Message(now time.Time, b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.view.Apply(now, b) // counted by the view
}

func (g *gateway) NodeUp(now time.Time, m mesh.Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.Role == mesh.RoleAgent {
		g.view.NodeUp(now, m.Name)
	}
}

func (g *gateway) NodeDown(now time.Time, m mesh.Member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.view.NodeDown(now, m.Name)
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{t: t}
	fp := blockhash.NewHasher(blockhash.DefaultSeed).Fingerprint()
	g.view = view.New(view.Config{Node: "gateway", Pool: "p", SeedFingerprint: fp})
	var err error
	g.mesh, err = mesh.New(mesh.Config{NodeName: "gateway", Role: mesh.RolePicker, Pool: "p", BindAddr: "127.0.0.1", SeedFingerprint: fp, Handler: g})
	if err != nil {
		t.Fatal(err)
	}
	run(t, g.mesh.Run)
	run(t, func(ctx context.Context) error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case now := <-tick.C:
				g.mu.Lock()
				outs := g.view.Poll(now)
				g.mu.Unlock()
				for _, o := range outs {
					send := g.mesh.Send
					if o.Reliable {
						send = g.mesh.SendReliable
					}
					_ = send(o.Node, o.Packet) // the view asks again
				}
			}
		}
	})
	return g
}

// run runs f until the test ends; the stop function ends it before.
func run(t *testing.T, f func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// blocks is how many leading blocks of a prompt the gateway sees on the only
// endpoint, -1 if there is none.
func (g *gateway) blocks(prompt int) int {
	snap := g.view.Snapshot()
	if snap == nil || len(snap.Streams) != 1 || snap.Streams[0].GPU.Matrix == nil {
		return -1
	}
	col := snap.Streams[0].GPU
	for i, h := range blockhash.NewHasher(blockhash.DefaultSeed).AppendChain(nil, 0, tokens(prompt, 100), blockSize) {
		if !col.Matrix.Has(col.Index, h) {
			return i
		}
	}
	return 100
}

func (g *gateway) stream() (view.Stream, bool) {
	snap := g.view.Snapshot()
	if snap == nil || len(snap.Streams) != 1 {
		return view.Stream{}, false
	}
	return snap.Streams[0], true
}

func (g *gateway) flags() wire.Flags {
	s, ok := g.stream()
	if !ok {
		return 0
	}
	return s.Live.Facts().Flags
}

func (g *gateway) info() wire.Info {
	if s, ok := g.stream(); ok && s.Info != nil {
		return *s.Info
	}
	return wire.Info{}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(25 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("did not happen in 25 s: %s", what)
}

type logBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type running struct {
	*agent.Agent
	log  *logBuffer
	stop func()
}

func startAgent(t *testing.T, e *engine, g *gateway, more func(*agent.Config)) running {
	t.Helper()
	cfg := agent.Default()
	cfg.Engine = []string{e.http.URL}
	cfg.Pool = "p"
	cfg.GPUs = "none"
	cfg.DrainFor = 300 * time.Millisecond
	cfg.MetricsListen = "127.0.0.1:0"
	cfg.Gossip.Bind = "127.0.0.1:0"
	cfg.Gossip.Join = []string{g.mesh.LocalAddr()}
	if more != nil {
		more(&cfg)
	}
	log := &logBuffer{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	a, err := agent.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	stop := run(t, a.Run)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("agent's log:\n%s", log.String())
		}
	})
	return running{a, log, stop}
}

// listening waits until events reach the agent live. That the publisher has the
// subscription cannot be seen from here.
func (r running) listening(t *testing.T) {
	t.Helper()
	eventually(t, "listening", func() bool { return strings.Contains(r.log.String(), "listening to KV events") })
	time.Sleep(200 * time.Millisecond)
}

func (r running) post(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, err := http.Post("http://"+r.AdminAddr()+path, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestBlocksBecomeVisibleAndRestartClearsThem(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	e.store(1, 0, 10) // before the agent: comes by replay
	a := startAgent(t, e, g, nil)
	eventually(t, "a block stored before the agent is visible", func() bool { return g.blocks(1) == 10 })
	begin := time.Now()
	e.store(2, 0, 20)
	eventually(t, "a block stored now is visible", func() bool { return g.blocks(2) == 20 })
	t.Logf("stored to visible: %v", time.Since(begin))
	e.remove(2, 12)
	eventually(t, "a removed block is gone", func() bool { return g.blocks(2) == 12 })

	eventually(t, "INFO says that events come", func() bool { return g.info().KVEvents == "ok" })
	s, _ := g.stream()
	if f := s.Live.Facts(); f.Flags&(wire.Partial|wire.Suspect|wire.EngineDown|wire.Draining|wire.Asleep) != 0 || !f.HasLoad || f.Load.BlocksTotal != 1000 || f.Load.BlocksUsed != 250 {
		t.Errorf("facts %+v, want no flags, 1000 blocks, 250 used", f)
	}
	in := g.info()
	if in.BlockSize != blockSize || in.Engine != "vllm" || in.EngineVersion != "0.32.0" || len(in.Models) != 2 || in.Models[1].Parent != "m" || in.Address != e.http.URL {
		t.Errorf("INFO %+v", in)
	}

	epoch := s.Epoch
	e.restart()
	e.store(3, 0, 5)
	eventually(t, "after a restart the new block is there and the old ones are gone", func() bool {
		return g.blocks(3) == 5 && g.blocks(1) == 0 && g.blocks(2) == 0
	})
	if s, _ := g.stream(); s.Epoch <= epoch {
		t.Errorf("epoch %d after the restart, %d before", s.Epoch, epoch)
	}
	if g.flags()&(wire.Partial|wire.Suspect) != 0 {
		t.Errorf("flags %b after a restart seen from its first event", g.flags())
	}

	resp, err := http.Get("http://" + a.AdminAddr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics: %d, %v\n%s", resp.StatusCode, err, text)
	}
	for _, want := range []string{`rank="0",tier="gpu"} 5`, "grapevine_agent_event_lag_seconds_count", "grapevine_agent_gateways", `grapevine_agent_engine_restarts_total{engine="` + e.http.URL + `",rank="0"} 1`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("metrics lack %q:\n%s", want, text)
		}
	}

	a.stop()
	eventually(t, "the gateway hears of the draining", func() bool { return g.flags()&wire.Draining != 0 })
}

func TestLateStartWithAShortRingIsPartial(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	e.stopPub()
	e.ring = 3
	e.open()
	for i := range 10 {
		e.store(i, 0, 4)
	}
	e.store(0, 4, 8) // its ancestors have left the ring
	time.Sleep(50 * time.Millisecond)
	startAgent(t, e, g, nil)
	eventually(t, "what the ring has is visible", func() bool { return g.blocks(9) == 4 })
	if g.blocks(0) != 0 || g.blocks(1) != 0 {
		t.Errorf("blocks out of reach are visible: %d, %d", g.blocks(0), g.blocks(1))
	}
	eventually(t, "partial is said", func() bool { return g.flags()&wire.Partial != 0 })
}

// A batch that the publisher sent before it had the subscription, but after the
// first replay, would stay unknown while the engine is idle.
func TestBatchLostAtConnectingIsAskedFor(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	a := startAgent(t, e, g, nil)
	eventually(t, "listening", func() bool { return strings.Contains(a.log.String(), "listening to KV events") })
	e.store(1, 0, 4) // perhaps too early
	eventually(t, "visible", func() bool { return g.blocks(1) == 4 })
}

func TestResetAndSleepClear(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	a := startAgent(t, e, g, nil)
	seen := func(prompt int) {
		t.Helper()
		eventually(t, "stored block visible", func() bool { return g.blocks(prompt) == 4 })
	}
	a.listening(t)
	e.store(1, 0, 4)
	seen(1)
	e.set(func() { e.refuse = true })
	if code, body := a.post(t, "/reset_prefix_cache"); code != 200 || !strings.Contains(body, "false") || g.blocks(1) != 4 {
		t.Errorf("refused reset: %d %s, %d blocks visible; want 200, false, 4", code, body, g.blocks(1))
	}
	e.set(func() { e.refuse = false })
	if code, body := a.post(t, "/reset_prefix_cache?reset_running_requests=true"); code != 200 || !strings.Contains(body, "true") {
		t.Errorf("reset: %d %s", code, body)
	}
	eventually(t, "reset through the agent clears", func() bool { return g.blocks(1) == 0 })
	if e.resets != 2 {
		t.Errorf("engine got %d resets, want 2", e.resets)
	}
	if code, body := a.post(t, "/v1/cache/cleared?engine=http://other"); code != http.StatusNotFound || !strings.Contains(body, e.http.URL) {
		t.Errorf("unknown engine: %d %s, want 404 and the engines there are", code, body)
	}
	e.store(2, 0, 4)
	seen(2)
	if code, _ := a.post(t, "/v1/cache/cleared"); code != http.StatusNoContent {
		t.Errorf("cleared: %d", code)
	}
	eventually(t, "being told clears", func() bool { return g.blocks(2) == 0 })
	e.store(3, 0, 4)
	seen(3)
	e.set(func() { e.asleep = true })
	eventually(t, "sleep clears and is said", func() bool { return g.blocks(3) == 0 && g.flags()&wire.Asleep != 0 })
	e.set(func() { e.asleep = false })
	eventually(t, "waking is said", func() bool { return g.flags()&wire.Asleep == 0 })
}

func TestAgentRestartResumesFromItsSnapshot(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	e.stopPub()
	e.ring = 2 // too short to rebuild anything
	e.open()
	dir := t.TempDir()
	state := func(c *agent.Config) { c.StateDir = dir }
	a := startAgent(t, e, g, state)
	a.listening(t)
	for i := range 6 {
		e.store(i, 0, 4)
	}
	eventually(t, "visible", func() bool { return g.blocks(5) == 4 && g.blocks(0) == 4 })
	s, _ := g.stream()
	a.stop()
	e.store(0, 4, 6) // while nobody listens
	startAgent(t, e, g, state)
	eventually(t, "the first prompt with its new blocks is visible", func() bool {
		now, ok := g.stream()
		return ok && now.Epoch > s.Epoch && g.blocks(0) == 6 && g.blocks(5) == 4
	})
	if g.flags()&(wire.Partial|wire.Suspect) != 0 {
		t.Errorf("flags %b after resuming, want neither partial nor suspect", g.flags())
	}
}

func TestEngineThatIsNotThereYetAndGoesAway(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	e.set(func() { e.down = true })
	a := startAgent(t, e, g, nil)
	eventually(t, "it says that it waits", func() bool { return strings.Contains(a.log.String(), "waiting for the engine") })
	e.set(func() { e.down = false })
	e.store(1, 0, 3)
	eventually(t, "engine found", func() bool { return g.blocks(1) == 3 })
	e.set(func() { e.down = true })
	eventually(t, "engine down is said", func() bool { return g.flags()&wire.EngineDown != 0 })
	if g.blocks(1) != 3 {
		t.Errorf("%d blocks while the engine does not answer, want 3: it may be busy", g.blocks(1))
	}
}

// vLLM connects its publisher where the endpoint names a host: then the agent has
// to listen, or both wait for ever.
func TestEngineThatConnects(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	e.stopPub()
	e.connects = true
	e.open()
	a := startAgent(t, e, g, nil)
	a.listening(t)
	e.store(1, 0, 4)
	eventually(t, "visible", func() bool { return g.blocks(1) == 4 })
}

// An engine that does not tell where its events are, nor its models.
func TestConfiguredSources(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	e.set(func() { e.tells, e.secret = false, true })
	e.store(1, 0, 4)
	startAgent(t, e, g, func(c *agent.Config) { c.KVEvents = agent.EventsConfig{Endpoint: e.events, Replay: e.replay} })
	eventually(t, "visible", func() bool { return g.blocks(1) == 4 })
}

func TestDataParallelRanksAreStreamsOfOneEndpoint(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	second := newEngine(t)
	e.set(func() { e.second = second })
	e.store(1, 0, 4)
	second.store(2, 0, 6)
	startAgent(t, e, g, nil)
	chain := func(prompt, blocks int) []blockhash.Hash {
		return blockhash.NewHasher(blockhash.DefaultSeed).AppendChain(nil, 0, tokens(prompt, blocks), blockSize)
	}
	eventually(t, "each rank holds its own prompt", func() bool {
		snap := g.view.Snapshot()
		if snap == nil || len(snap.Streams) != 2 || snap.Streams[1].Info == nil || len(snap.Streams[1].Info.Ranks) != 2 {
			return false
		}
		for rank, st := range snap.Streams {
			own, other := chain(1, 4)[3], chain(2, 6)[5]
			if rank == 1 {
				own, other = other, own
			}
			if st.Key.Rank != uint16(rank) || st.GPU.Matrix == nil || !st.GPU.Matrix.Has(st.GPU.Index, own) || st.GPU.Matrix.Has(st.GPU.Index, other) {
				return false
			}
		}
		return snap.Streams[0].Key.Endpoint == snap.Streams[1].Key.Endpoint && snap.Streams[1].Live.Facts().Load.BlocksTotal == 2000
	})
}

// Each engine is a node of its own, since an INFO describes one endpoint.
func TestTwoEnginesAreTwoNodes(t *testing.T) {
	e, other, g := newEngine(t), newEngine(t), newGateway(t)
	e.store(1, 0, 4)
	other.store(1, 0, 6)
	a := startAgent(t, e, g, func(c *agent.Config) { c.Engine = append(c.Engine, other.http.URL+"/") })
	eventually(t, "both are visible as endpoints", func() bool {
		snap := g.view.Snapshot()
		if snap == nil || len(snap.Streams) != 2 || snap.Streams[0].Node == snap.Streams[1].Node {
			return false
		}
		seen := make(map[string]bool)
		for _, st := range snap.Streams {
			if st.Info != nil && st.GPU.Matrix != nil {
				seen[st.Info.Address] = true
			}
		}
		return seen[e.http.URL] && seen[other.http.URL]
	})
	if s := a.Status(); len(s.Engines) != 2 || s.Engines[0].Gossip == s.Engines[1].Gossip {
		t.Errorf("status %+v, want two engines with a gossip address each", s)
	}
}

func TestEngineWithoutEvents(t *testing.T) {
	e, g := newEngine(t), newGateway(t)
	e.set(func() { e.noEvents = true })
	a := startAgent(t, e, g, nil)
	eventually(t, "absence is said to gateways", func() bool { return g.info().KVEvents == "absent" })
	if !strings.Contains(a.log.String(), "kv-events-config") {
		t.Errorf("the log names no remedy:\n%s", a.log.String())
	}
	eventually(t, "load is told all the same", func() bool {
		s, ok := g.stream()
		return ok && s.Live.Facts().HasLoad
	})
	var status agent.Status
	resp, err := http.Get("http://" + a.AdminAddr() + "/status")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil || len(status.Engines) != 1 || status.Engines[0].KVEvents != "absent" || !status.Engines[0].Up {
		t.Errorf("status %+v, %v", status, err)
	}
}
