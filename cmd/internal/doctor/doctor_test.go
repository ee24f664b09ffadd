package doctor

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/agent"
	"github.com/grapevine-llm/grapevine/cmd/internal/gatewaycmd"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/test/engine"
	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is an engine, its agent and a gateway, all real.
type fleet struct {
	engine, agent, gateway, client string // URLs
	gossip                         netip.AddrPort
	keys, seed                     string // files of the gateway
}

// options change the fleet's parts.
type options struct {
	engine    func(c *engine.Config)
	agent     func(c *agent.Config)
	gateway   []string                // further flags
	between   func(url string) string // stands in for the engine where the agent looks
	wantAgent bool                    // wait until the gateway has heard of the agent
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func keys(t *testing.T, fill byte) string {
	t.Helper()
	return file(t, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32)))
}

// free is an address that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// background runs f until the test ends.
func background(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil {
			t.Errorf("background: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("did not happen in 20 s: %s", what)
}

func ask(t *testing.T, url string, into any) bool {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(into) == nil
}

func startFleet(t *testing.T, o options) *fleet {
	t.Helper()
	f := &fleet{keys: keys(t, 1), seed: file(t, "0x1234")}
	tok, err := engine.Tiny()
	if err != nil {
		t.Fatal(err)
	}
	ec := engine.Default()
	ec.Listen, ec.Tokenizer, ec.Speedup = "127.0.0.1:0", tok, 50
	ec.Events = zmqpub.Config{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"}
	if o.engine != nil {
		o.engine(&ec)
	}
	e, err := engine.New(ec)
	if err != nil {
		t.Fatal(err)
	}
	background(t, e.Run)
	f.engine = "http://" + e.Addr()
	seen := f.engine
	if o.between != nil {
		seen = o.between(f.engine)
	}

	admin, client := free(t), free(t)
	f.gateway, f.client = "http://"+admin, "http://"+client
	args := append([]string{
		"--listen", client, "--admin-listen", admin, "--gossip-bind", "127.0.0.1:0", "--gossip-key-file", f.keys, "--gossip-label", "blue",
		"--seed-file", f.seed, "--warm-wait", "10ms", "--drain-wait", "1s", "--log-level", "error",
	}, o.gateway...)
	background(t, func(ctx context.Context) error {
		if code := gatewaycmd.Main(ctx, args, "v1.0.0", io.Discard, t.Output()); code != 0 {
			return fmt.Errorf("gateway ended with %d", code)
		}
		return nil
	})
	var st gatewayStatus
	eventually(t, "the gateway is up", func() bool { return ask(t, f.gateway+"/status", &st) })
	f.gossip = netip.MustParseAddrPort(st.Gossip.Addr)

	ac := agent.Default()
	ac.Engine, ac.GPUs, ac.Version, ac.MetricsListen = []string{seen}, "none", "v1.0.0", "127.0.0.1:0"
	ac.DrainFor = time.Millisecond
	ac.SeedFile = f.seed
	ac.Gossip = agent.GossipConfig{Bind: "127.0.0.1:0", Join: []string{st.Gossip.Addr}, Label: "blue", KeyFile: f.keys}
	if o.agent != nil {
		o.agent(&ac)
	}
	a, err := agent.New(ac)
	if err != nil {
		t.Fatal(err)
	}
	background(t, a.Run)
	f.agent = "http://" + a.AdminAddr()
	eventually(t, "the agent knows its engine", func() bool {
		var st agent.Status
		return ask(t, f.agent+"/status", &st) && st.Engines[0].Up && st.Engines[0].Kind != ""
	})
	if o.wantAgent {
		eventually(t, "the gateway hears of the engine", func() bool {
			var st gatewayStatus
			return ask(t, f.gateway+"/status", &st) && len(st.Endpoints) == 1 && st.Endpoints[0].DigestAgeMs >= 0
		})
	}
	return f
}

// complete sends a prompt through the gateway.
func (f *fleet) complete(t *testing.T) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	body := fmt.Sprintf(`{"model":"tiny","max_tokens":2,"prompt":%q}`, strings.Repeat("a long prompt with many words ", 60))
	resp, err := client.Post(f.client+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("completion: %d, %v: %s", resp.StatusCode, err, b)
	}
}

func (f *fleet) config() Config {
	c := Default()
	c.Gateway, c.Agent, c.Engine, c.Join = []string{f.gateway}, []string{f.agent}, []string{f.engine}, []string{f.gossip.String()}
	c.Gossip.KeyFile, c.Gossip.Label, c.SeedFile = f.keys, "blue", f.seed
	return c
}

func examine(t *testing.T, c Config) Report {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), c, "v1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// expect finds a check of a kind of subject and looks at what it says.
func expect(t *testing.T, r Report, subject, check string, status Status, text string) {
	t.Helper()
	for _, c := range r.Checks {
		if strings.HasPrefix(c.Subject, subject) && c.Check == check && c.Status == status && strings.Contains(c.Found, text) {
			if c.Remedy == "" && (status == Failed || status == Warning) {
				t.Errorf("%s: %s has no remedy", c.Subject, check)
			}
			return
		}
	}
	var b strings.Builder
	_ = r.Write(&b)
	t.Errorf("want %s of %s %s, with %q, in:\n%s", check, subject, status, text, b.String())
}

func TestHealthy(t *testing.T) {
	f := startFleet(t, options{wantAgent: true})
	f.complete(t)
	eventually(t, "the block's event has come", func() bool {
		var st agent.Status
		return ask(t, f.agent+"/status", &st) && st.Engines[0].KVEvents == "ok" && st.Engines[0].Ranks[0].Blocks > 0
	})
	eventually(t, "the gateway has heard so", func() bool {
		var st gatewayStatus
		return ask(t, f.gateway+"/status", &st) && st.Endpoints[0].KVEvents == "ok"
	})
	var r Report
	eventually(t, "all is well", func() bool {
		r = examine(t, f.config())
		return r.Count(Failed)+r.Count(Warning) <= 1 // engines are asked for token ids
	})
	for _, want := range []struct{ subject, check string }{
		{"this machine", "keys"}, {"this machine", "seed"},
		{"gateway", "reachable"}, {"gateway", "clock"}, {"gateway", "gossip"}, {"gateway", "agents"}, {"gateway", "digest ages"},
		{"gateway", "warm"}, {"gateway", "endpoints"}, {"gateway", "events"}, {"gateway", "engine versions"},
		{"agent", "engine"}, {"agent", "gateways"}, {"agent", "events"}, {"agent", "hash check"},
		{"engine", "version"}, {"engine", "prefix caching"}, {"engine", "events"},
		{"gossip", "TCP"}, {"gossip", "label"}, {"gossip", "keys"}, {"gossip", "UDP"}, {"gossip", "way back"}, {"gossip", "members"}, {"gossip", "messages"},
		{"all together", "versions"}, {"all together", "seed"},
	} {
		expect(t, r, want.subject, want.check, OK, "")
	}
	expect(t, r, "gateway", "tokenizer", Warning, "engines were asked")
	var b strings.Builder
	if err := r.Write(&b); err != nil || !strings.Contains(b.String(), "0 failed") {
		t.Errorf("report: %v\n%s", err, b.String())
	}
}

func TestWrongKey(t *testing.T) {
	f := startFleet(t, options{agent: func(c *agent.Config) { c.Gossip.KeyFile = keys(t, 2) }})
	eventually(t, "the agent has tried", func() bool {
		var st agent.Status
		return ask(t, f.agent+"/status", &st) && st.Engines[0].Mesh.KeyMismatches > 0
	})
	r := examine(t, f.config())
	expect(t, r, "agent", "gateways", Failed, "different gossip key")
	expect(t, r, "gateway", "gossip", Warning, "another gossip key knocks")
	expect(t, r, "gateway", "endpoints", Failed, "no endpoint")

	c := f.config()
	c.Gossip.KeyFile = keys(t, 2)
	r = examine(t, c)
	expect(t, r, "gossip", "keys", Failed, "wrong key")
	expect(t, r, "gossip", "label", OK, "")
	c.Gossip.KeyFile = ""
	expect(t, examine(t, c), "gossip", "keys", Warning, "this command has no key")
	c.Gossip.KeyFile = file(t, "no key")
	r = examine(t, c)
	expect(t, r, "this machine", "keys", Failed, "line 1 is no AES-256 key")
	expect(t, r, "gossip", "TCP", NotChecked, "keys can't be read")
}

// An agent whose Secret is not there yet stays up and says so.
func TestAgentWithoutKeysOrSeed(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for check, change := range map[string]func(c *agent.Config){
		"keys": func(c *agent.Config) { c.Gossip.KeyFile = missing },
		"seed": func(c *agent.Config) { c.SeedFile = missing },
	} {
		ac := agent.Default()
		ac.Engine, ac.GPUs, ac.MetricsListen = []string{"http://127.0.0.1:1"}, "none", "127.0.0.1:0"
		ac.Gossip.Bind = "127.0.0.1:0"
		change(&ac)
		a, err := agent.New(ac)
		if err != nil {
			t.Fatal(err)
		}
		background(t, a.Run)
		c := Default()
		c.Agent = []string{"http://" + a.AdminAddr()}
		expect(t, examine(t, c), "agent", check, Failed, "not in the mesh: no ")
	}
}

func TestWrongLabel(t *testing.T) {
	f := startFleet(t, options{agent: func(c *agent.Config) { c.Gossip.Label = "red" }})
	eventually(t, "the agent has tried", func() bool {
		var st agent.Status
		return ask(t, f.agent+"/status", &st) && st.Engines[0].Mesh.HungUp > 0
	})
	c := f.config()
	r := examine(t, c)
	expect(t, r, "agent", "gateways", Failed, "hang up")
	expect(t, r, "gateway", "gossip", Warning, "another gossip label knocks")
	c.Gossip.Label = "red"
	r = examine(t, c)
	expect(t, r, "gossip", "label", Failed, "wrong label")
	expect(t, r, "gossip", "TCP", OK, "connected")
}

func TestWrongSeed(t *testing.T) {
	f := startFleet(t, options{wantAgent: true, agent: func(c *agent.Config) { c.SeedFile = file(t, "77") }})
	c := f.config()
	r := examine(t, c)
	expect(t, r, "all together", "seed", Failed, "several seeds")
	expect(t, r, "gateway", "endpoints", Failed, "seed")
	c.Pool = "other"
	for _, check := range examine(t, c).Checks {
		if check.Subject == "all together" && check.Check == "seed" {
			t.Errorf("judges another pool than that of --pool: %+v", check)
		}
	}
	c.SeedFile = file(t, "my secret")
	r = examine(t, c)
	expect(t, r, "this machine", "seed", Failed, "does not hold one number")
	if text := fmt.Sprint(r); strings.Contains(text, "my secret") {
		t.Error("the report shows what is in the seed file")
	}
}

// TestNoUDP: a door that lets TCP through only.
func TestNoUDP(t *testing.T) {
	f := startFleet(t, options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", f.gossip.String())
			if err != nil {
				from.Close()
				continue
			}
			wg.Go(func() { _, _ = io.Copy(to, from); to.Close() })
			wg.Go(func() { _, _ = io.Copy(from, to); from.Close() })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	c := f.config()
	c.Gateway, c.Agent, c.Engine, c.Join = nil, nil, nil, []string{l.Addr().String()}
	r := examine(t, c)
	expect(t, r, "gossip "+l.Addr().String(), "TCP", OK, "")
	expect(t, r, "gossip "+l.Addr().String(), "UDP", Failed, "TCP yes, UDP no")
	expect(t, r, "gossip "+f.gossip.String(), "UDP", OK, "") // the gateway that this node told of
}

func TestEngineWithoutEvents(t *testing.T) {
	f := startFleet(t, options{wantAgent: true, engine: func(c *engine.Config) { c.Events = zmqpub.Config{} }})
	eventually(t, "the gateway has heard so", func() bool {
		var st gatewayStatus
		return ask(t, f.gateway+"/status", &st) && st.Endpoints[0].KVEvents == "absent"
	})
	r := examine(t, f.config())
	expect(t, r, "engine", "events", Failed, "--kv-events-config is missing")
	expect(t, r, "agent", "events", Failed, "publishes no KV events")
	expect(t, r, "gateway", "events", Failed, "absent")
}

// altered stands in front of a server and changes its answers.
func altered(t *testing.T, target string, change func(path string, h http.Header, body []byte) []byte) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	p := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u); r.Out.Header.Del("Accept-Encoding") }, ModifyResponse: func(r *http.Response) error {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		b = change(r.Request.URL.Path, r.Header, b)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		r.Header.Set("Content-Length", fmt.Sprint(len(b)))
		return nil
	}}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return s.URL
}

func TestOldEngines(t *testing.T) {
	for version, want := range map[string]Status{"0.8.5": Failed, "0.10.2": Warning, "0.11.1": OK, "0.28.1rc1.dev5+gabc": OK} {
		t.Run(version, func(t *testing.T) {
			old := func(url string) string {
				return altered(t, url, func(path string, _ http.Header, body []byte) []byte {
					if path == "/version" {
						return fmt.Appendf(nil, `{"version":%q}`, version)
					}
					return body
				})
			}
			f := startFleet(t, options{wantAgent: true, between: old})
			c := f.config()
			c.Engine = nil // the agent tells of it
			eventually(t, "the gateway knows the version", func() bool {
				var st gatewayStatus
				return ask(t, f.gateway+"/status", &st) && strings.Contains(st.Endpoints[0].Engine, version)
			})
			r := examine(t, c)
			expect(t, r, "engine", "version", want, version)
			expect(t, r, "gateway", "engine versions", want, version)
		})
	}
}

func TestClocksVersionsAndSeedFile(t *testing.T) {
	f := startFleet(t, options{})
	c := f.config()
	c.SeedFile = file(t, "78")
	c.Engine[0] = altered(t, f.engine, func(_ string, h http.Header, body []byte) []byte {
		h.Set("Date", time.Now().Add(-10*time.Second).UTC().Format(http.TimeFormat))
		return body
	})
	c.Agent[0] = altered(t, f.agent, func(path string, _ http.Header, body []byte) []byte {
		var st agent.Status
		if path != "/status" || json.Unmarshal(body, &st) != nil {
			return body
		}
		st.Time = st.Time.Add(5 * time.Minute)
		st.Version = "v0.9.0"
		b, err := json.Marshal(st)
		if err != nil {
			t.Error(err)
		}
		return b
	})
	r := examine(t, c)
	expect(t, r, "engine", "clock", Warning, "s behind this machine")
	expect(t, r, "agent", "clock", Failed, "5m0")
	expect(t, r, "gateway", "clock", OK, "")
	expect(t, r, "all together", "seed", Failed, "another seed than --seed-file")
	expect(t, r, "all together", "versions", Warning, "mixed: v0.9.0 (agent")
}

func TestPrefixCachingOff(t *testing.T) {
	f := startFleet(t, options{})
	c := f.config()
	c.Engine[0] = altered(t, f.engine, func(_ string, _ http.Header, body []byte) []byte {
		return bytes.ReplaceAll(body, []byte(`enable_prefix_caching="True"`), []byte(`enable_prefix_caching="False"`))
	})
	expect(t, examine(t, c), "engine", "prefix caching", Failed, "off")
}

func TestEndpointsWithoutAgents(t *testing.T) {
	f := startFleet(t, options{gateway: []string{"--endpoints", "127.0.0.1:1"}, agent: func(c *agent.Config) { c.Pool = "other" }})
	eventually(t, "agent and gateway have met", func() bool {
		var st gatewayStatus
		return ask(t, f.gateway+"/status", &st) && st.Gossip.Mesh.Members == 1
	})
	r := examine(t, f.config())
	expect(t, r, "agent", "gateways", Failed, "no gateway of its pool")
	expect(t, r, "gateway", "agents", Failed, "no endpoint has an agent (1)")
	expect(t, r, "gateway", "warm", Warning, "without a digest")
}

func TestNobodyThere(t *testing.T) {
	f := startFleet(t, options{})
	c := f.config()
	nobody := free(t)
	c.Gateway, c.Agent, c.Engine = []string{f.client, "http://" + nobody}, []string{f.engine}, []string{f.gateway}
	c.Join = []string{nobody, strings.TrimPrefix(f.engine, "http://"), "gateways.invalid", "a:b:c"}
	c.Timeout = time.Second
	r := examine(t, c)
	expect(t, r, "gateway "+f.client, "reachable", Failed, "not with a status of ours")
	expect(t, r, "gateway http://"+nobody, "reachable", Failed, "connection refused")
	expect(t, r, "agent", "reachable", Failed, "status 404")
	expect(t, r, "engine", "reachable", Failed, "without the metrics")
	expect(t, r, "gossip "+nobody, "TCP", Failed, "connection refused")
	expect(t, r, "gossip "+strings.TrimPrefix(f.engine, "http://"), "TCP", Failed, "")
	expect(t, r, "name gateways.invalid", "DNS", Failed, "does not resolve")
	expect(t, r, "name a:b:c", "DNS", Failed, "no address")
}

func TestPoolsOfKubernetes(t *testing.T) {
	s := &subject{}
	for _, w := range []watched{
		{Name: "a/well", Synced: true, Endpoints: 3},
		{Name: "a/none", Synced: true, NotReady: 2},
		{Name: "a/forbidden", Error: "endpointslices is forbidden"},
		{Name: "a/new"},
		{Name: "a/odd", Synced: true, Endpoints: 1, Note: "two ports"},
		{Name: "a/wrong:80", Synced: true, Note: "no port 80"},
	} {
		w.judge(s)
	}
	r := Report{Checks: s.checks}
	expect(t, r, "", "Kubernetes", OK, "a/well: 3 ready")
	expect(t, r, "", "Kubernetes", Failed, "a/none: 0 ready, 2 not ready")
	expect(t, r, "", "Kubernetes", Failed, "forbidden")
	expect(t, r, "", "Kubernetes", Failed, "a/new has not been read")
	expect(t, r, "", "Kubernetes", Warning, "two ports")
	expect(t, r, "", "Kubernetes", Failed, "no port 80")
}

func TestSilentAgents(t *testing.T) {
	s := &subject{}
	st := &gatewayStatus{}
	st.Endpoints = []picker.EndpointStatus{
		{Endpoint: picker.Endpoint{ID: "a"}, Rung: picker.RungOwn, Stale: true, DigestAgeMs: 60_000, KVEvents: "ok", Engine: "vllm 0.32.0"},
		{Endpoint: picker.Endpoint{ID: "b"}, Rung: picker.RungOwn, Stale: true, DigestAgeMs: 60_000, Verdict: "engine down", KVEvents: "ok", Engine: "vllm 0.32.0"},
	}
	gatewayEndpoints(s, st)
	gatewayEngines(s, st.Endpoints)
	r := Report{Checks: s.checks}
	expect(t, r, "", "agents", NotChecked, "2 of them silent")
	expect(t, r, "", "digest ages", Failed, "the agent is silent: a, b")
	expect(t, r, "", "endpoints", Failed, "engine down (b)")
	expect(t, r, "", "events", NotChecked, "silent")

	st.Endpoints[1].KVEvents = "absent" // the last word of an agent counts
	s = &subject{}
	gatewayEngines(s, st.Endpoints)
	expect(t, Report{Checks: s.checks}, "", "events", Failed, "absent")
}

func TestMembersThatCannotMeet(t *testing.T) {
	s := &subject{}
	x := &exam{cfg: Default()}
	x.members(s, netip.MustParseAddrPort("10.0.0.1:7946"), mesh.ProbeResult{Members: []mesh.Member{
		{Name: "gw", Role: mesh.RolePicker, Addr: "10.0.0.1:7946", WireVersion: 1},
		{Name: "pod", Role: mesh.RoleAgent, Addr: "127.0.0.1:7946", WireVersion: 200},
	}})
	r := Report{Checks: s.checks}
	expect(t, r, "", "members", Failed, "pod at 127.0.0.1:7946")
	expect(t, r, "", "messages", Failed, "pod (200)")
}
