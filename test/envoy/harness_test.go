package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
)

// Where the programs are, set by scripts/test-envoy.sh.
const (
	envoyVar    = "GRAPEVINE_ENVOY"          // Envoy
	binVar      = "GRAPEVINE_BIN"            // grapevine
	constantVar = "GRAPEVINE_ENVOY_CONSTANT" // command constant
)

func program(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Skipf("%s is not set: run `make test-envoy`, which installs Envoy, builds the programs and says where they are", variable)
	}
	return path
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

func local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// logDir is the test's folder, or one under GRAPEVINE_LOGS, which stays.
func logDir(t *testing.T) string {
	t.Helper()
	keep := os.Getenv("GRAPEVINE_LOGS")
	if keep == "" {
		return t.TempDir()
	}
	dir, err := filepath.Abs(filepath.Join(keep, t.Name()))
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// start a process that ends with the test; the end of its log is shown if the test has failed.
func start(t *testing.T, exe, name, dir string, args ...string) *cluster.Process {
	t.Helper()
	p, err := cluster.StartProcess(exe, name, dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(5 * time.Second)
		if t.Failed() {
			t.Logf("%s ends with:\n%s", p.Name, p.Tail(12))
		}
	})
	return p
}

// proxy is a running Envoy.
type proxy struct {
	*cluster.Process
	urls  []string // of the listeners
	url   string   // of the first one
	admin string
}

// startEnvoy runs a configuration with listeners of its own.
func startEnvoy(t *testing.T, b *bootstrap) *proxy {
	t.Helper()
	exe := program(t, envoyVar)
	p := ports(t, len(b.listeners())+1)
	e := &proxy{admin: "http://" + local(p[0])}
	b.root["admin"] = object{"address": address(local(p[0]))}
	for i, l := range b.listeners() {
		l.(object)["address"] = address(local(p[i+1]))
		e.urls = append(e.urls, "http://"+local(p[i+1]))
	}
	e.url = e.urls[0]
	dir := logDir(t)
	path := filepath.Join(dir, "envoy.yaml")
	b.write(t, path)
	e.Process = start(t, exe, "envoy", dir, "-c", path, "-l", "warn", "--concurrency", "1", "--disable-hot-restart")
	eventually(t, 20*time.Second, "Envoy to be ready", func() error {
		select {
		case <-e.Ended():
			t.Fatalf("Envoy ended:\n%s", e.Tail(10))
		default:
		}
		_, err := get(e.admin + "/ready")
		return err
	})
	return e
}

// stat is the sum of Envoy's counters and gauges whose names begin with prefix and end with suffix.
func (e *proxy) stat(t *testing.T, prefix, suffix string) int {
	t.Helper()
	text, err := get(e.admin + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) {
			n, _ := strconv.Atoi(value) // histograms are no numbers
			sum += n
		}
	}
	return sum
}

// healthy waits until a cluster has n endpoints that Envoy uses.
func (e *proxy) healthy(t *testing.T, cluster string, n int) {
	t.Helper()
	eventually(t, 20*time.Second, fmt.Sprintf("%d healthy in cluster %s", n, cluster), func() error {
		if got := e.stat(t, "cluster."+cluster+".", "membership_healthy"); got != n {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
	time.Sleep(50 * time.Millisecond) // the gauge is the main thread's; those that serve hear of it a moment later
}

// client keeps no connections, so that tests do not share any; answers are not unpacked.
var client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// get fetches a page that must be there.
func get(url string) (string, error) {
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d: %.200s", url, resp.StatusCode, body)
	}
	return string(body), err
}

// answer to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

// post sends a request and reads its answer to the end. Headers are pairs.
func post(ctx context.Context, url, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(text)}, err
}

// mustPost is post where only the wanted status will do.
func mustPost(t *testing.T, status int, url, body string, headers ...string) answer {
	t.Helper()
	a, err := post(t.Context(), url, body, headers...)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	if a.status != status {
		t.Fatalf("POST %s: status %d, want %d: %.300s", url, a.status, status, a.body)
	}
	return a
}

// eventually polls until ok returns nil and reports how long that took.
func eventually(t *testing.T, limit time.Duration, what string, ok func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := ok()
		if err == nil {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("wait for %s: not within %v: %v", what, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// startConstant runs the picker that always answers with the same pods.
func startConstant(t *testing.T, listen string, pick ...string) *cluster.Process {
	t.Helper()
	args := []string{"-listen", listen, "-pick", strings.Join(pick, ",")}
	if os.Getenv("GRAPEVINE_LOGS") != "" {
		args = append(args, "-trace")
	}
	p := start(t, program(t, constantVar), "constant", logDir(t), args...)
	eventually(t, 10*time.Second, "the constant picker", func() error {
		if !strings.Contains(p.Tail(3), "listening on") {
			return errors.New("it does not listen")
		}
		return nil
	})
	return p
}
