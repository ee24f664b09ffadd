package agent_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/agent"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// A Secret that is made after the pod, first with a fault in it: the agent stays
// up, says what it lacks, and joins once it is there.
func TestWaitsForKeysAndSeed(t *testing.T) {
	e := newEngine(t)
	g := newGateway(t)
	dir := t.TempDir()
	cfg := agent.Default()
	cfg.Engine, cfg.Pool, cfg.GPUs, cfg.DrainFor = []string{e.http.URL}, "p", "none", 0
	cfg.MetricsListen, cfg.ProbeListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Gossip.Bind, cfg.Gossip.Join = "127.0.0.1:0", []string{g.mesh.LocalAddr()}
	cfg.SeedFile, cfg.Gossip.KeyFile = filepath.Join(dir, "seed"), filepath.Join(dir, "gossip.key")
	log := &logBuffer{}
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	a, err := agent.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	a.LookEvery(20 * time.Millisecond)
	run(t, a.Run)
	reason := func() string {
		if w := a.Status().Waiting; w != nil {
			return w.Reason
		}
		return ""
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := reason(); got != "no seed file" {
		t.Errorf("reason %q, want no seed file", got)
	}
	for _, step := range []struct{ file, content, want string }{
		{"seed", "not a number", "seed file unusable"},
		{"seed", "1337", "no gossip key file"},
		{"gossip.key", "short", "gossip key file unusable"},
	} {
		write(step.file, step.content)
		eventually(t, step.want, func() bool { return reason() == step.want })
	}
	if code, body := get(t, "http://"+a.ProbeAddr()+"/livez"); code != http.StatusOK {
		t.Errorf("livez while waiting: %d %s", code, body)
	}
	if _, body := get(t, "http://"+a.ProbeAddr()+"/metrics"); !strings.Contains(body, `grapevine_agent_waiting{reason="gossip key file unusable"} 1`) {
		t.Errorf("metrics do not say what is missing:\n%s", body)
	}
	_, body := get(t, "http://"+a.AdminAddr()+"/status")
	var status agent.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil || status.Waiting == nil || status.Waiting.Remedy == "" {
		t.Errorf("status %s: %v", body, err)
	}
	if strings.Contains(log.String(), "not a number") || strings.Contains(log.String(), "short\n") {
		t.Errorf("a secret's content is in the log:\n%s", log)
	}
	if n := strings.Count(log.String(), "not in the mesh"); n != 4 {
		t.Errorf("%d log lines for four reasons:\n%s", n, log)
	}

	// The gateway of this test gossips in plain: a key would keep the agent apart.
	write("gossip.key", base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n")
	eventually(t, "units", func() bool { return reason() == "" && len(a.Status().Engines) == 1 })
	eventually(t, "engine's metrics", func() bool {
		_, body := get(t, "http://"+a.ProbeAddr()+"/metrics")
		return strings.Contains(body, "grapevine_agent_engine_up") && strings.Contains(body, `grapevine_agent_waiting{reason="none"} 0`)
	})
}

// What others reach has metrics and liveness only.
func TestProbeListenerResetsNothing(t *testing.T) {
	e := newEngine(t)
	r := startAgent(t, e, newGateway(t), func(c *agent.Config) { c.ProbeListen = "127.0.0.1:0" })
	for path, want := range map[string]int{"/livez": 200, "/metrics": 200, "/status": 404, "/healthz": 404} {
		if code, _ := get(t, "http://"+r.ProbeAddr()+path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	resp, err := http.Post("http://"+r.ProbeAddr()+"/reset_prefix_cache", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("reset: %d, want 404", resp.StatusCode)
	}
}

// An engine with an API key lists its models to an agent that has it.
func TestEngineKey(t *testing.T) {
	e := newEngine(t)
	e.set(func() { e.secret = true })
	g := newGateway(t)
	startAgent(t, e, g, func(c *agent.Config) { c.EngineKey = "k3y" })
	eventually(t, "models", func() bool { return len(g.info().Models) == 2 })
}
