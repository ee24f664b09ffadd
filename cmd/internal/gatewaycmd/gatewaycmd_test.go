package gatewaycmd

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

func TestFaultsAndTakenPorts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	tests := []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"all at once", []string{"--listen", "127.0.0.1:99999", "--admin-listen", "5", "--max-body-bytes", "3", "--allow-paths", "/v1/completions", "--receipts", "2000000000", "--model", "m=/nowhere/at/all", "--check-every", "-1", "--prompt-cache-bytes", "5"}, 2, []string{
			`listen = "127.0.0.1:99999"`, `admin-listen = "5"`, `max-body-bytes = "3" is too small; give at least 1024`,
			`allow-paths = "/v1/completions" is served already`, `receipts = "2000000000" is too large`,
			`model = "m=/nowhere/at/all" is no folder that can be read`, `check-every = "-1" is negative`, `prompt-cache-bytes = "5" is too small`,
		}},
		{"port of clients", []string{"--listen", addr, "--admin-listen", "127.0.0.1:0", "--gossip-enabled=false"}, 1, []string{addr, "--listen"}},
		{"nobody to serve", []string{"--listen", "", "--ext-proc-deadline", "-1s", "--ext-proc-health-listen", "x"}, 2, []string{"listen: missing port", `ext-proc.deadline = "-1s" is not positive`, `ext-proc.health-listen = "x"`}},
		{"nowhere to listen", []string{"--listen", ""}, 2, []string{"listen: missing port", "--ext-proc-listen"}},
		{"files that are not there", []string{"--gossip-key-file", "nope/1", "--seed-file", "nope/2", "--ext-proc-listen", ":0", "--ext-proc-cert-file", "nope/3", "--ext-proc-key-file", "nope/4", "--kubernetes-kubeconfig", "nope/5"}, 2, []string{
			`gossip.key-file = "nope/1": `, `seed-file = "nope/2": `, `ext-proc.cert-file = "nope/3": `, `ext-proc.key-file = "nope/4": `, `kubernetes.kubeconfig = "nope/5": `, "give a file that exists",
		}},
		{"advice beside clients", []string{"--ext-proc-listen", "127.0.0.1:0", "--ext-proc-advise"}, 2, []string{`ext-proc.advise = "true": a gateway that advises picks nothing`, "clients at :8080", `give --listen ""`}},
		{"advice for nobody", []string{"--listen", "", "--ext-proc-advise"}, 2, []string{"ext-proc.advise", "--ext-proc-listen"}},
		{"port of Envoy", []string{"--listen", "", "--admin-listen", "127.0.0.1:0", "--gossip-enabled=false", "--ext-proc-listen", addr}, 1, []string{addr, "--ext-proc-listen"}},
		{"port of operators", []string{"--listen", "127.0.0.1:0", "--admin-listen", addr, "--gossip-enabled=false"}, 1, []string{addr, "--admin-listen"}},
		{"port of gossip", []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--gossip-bind", addr}, 1, []string{addr, "another port"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := Main(context.Background(), tt.args, "test", &out, &errs); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(errs.String(), want) {
					t.Errorf("%s\ndoes not say %s", errs.String(), want)
				}
			}
		})
	}
}

// TestDamagedModelStarts: a folder whose files cannot be used costs its model a rung, not the gateway.
func TestDamagedModelStarts(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"model": {`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	log := &syncBuffer{}
	go func() {
		ended <- Main(ctx, []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--gossip-enabled=false", "--model", "m=" + dir}, "test", log, log)
	}()
	for until := time.Now().Add(10 * time.Second); !strings.Contains(log.String(), "msg=serving") && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"msg=serving", "model=m", dir + ": tokenizer.json: "} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s\ndoes not say %s", log.String(), want)
		}
	}
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestEngines(t *testing.T) {
	got := engines([]picker.EndpointStatus{
		{Endpoint: picker.Endpoint{URL: "http://a"}, Epoch: 3, Models: []string{"m"}},
		{Endpoint: picker.Endpoint{URL: "http://b"}, Epoch: 1},
		{Endpoint: picker.Endpoint{URL: "http://a"}, Epoch: 5, Models: []string{"m"}},
	})
	want := []prompt.Engine{{URL: "http://a", Epoch: 5, Models: []string{"m"}}, {URL: "http://b", Epoch: 1}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("engines (-want +got):\n%s", d)
	}
}

func TestNeedsRestart(t *testing.T) {
	policy := Default()
	policy.Policy.Shares = map[string]float64{"round-robin": 1}
	policy.Policy.Hold = false
	if needsRestart(Default(), policy) {
		t.Error("a new policy needs a restart")
	}
	limit := policy
	limit.MaxConcurrent = 5
	if !needsRestart(Default(), limit) {
		t.Error("a new limit needs none")
	}
}
