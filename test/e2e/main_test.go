package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/load"
)

// binary is the grapevine binary under test, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "grapevine-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "grapevine")
	build := exec.Command("go", "build", "-o", binary, "../../cmd/grapevine")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build grapevine: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

const speedup = 10

// up starts a fleet, of three engines if nothing else is said, and takes it down with the test. On failure the logs' ends are shown.
func up(t *testing.T, o cluster.Options) *cluster.Fleet {
	t.Helper()
	if o.Name == "" {
		o.Name = "pool"
	}
	if o.Policy == "" {
		o.Policy = "prefix"
	}
	if o.Engines == 0 {
		o.Engines, o.Speedup = 3, speedup
	}
	o.Exe, o.Dir, o.Model = binary, t.TempDir(), "tiny"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f, err := cluster.Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Down()
		if t.Failed() {
			for _, g := range f.Gateways {
				t.Logf("%s:\n%s", g.Name, g.Tail(15))
			}
			for _, a := range f.Agents {
				t.Logf("%s:\n%s", a.Name, a.Tail(8))
			}
		}
	})
	return f
}

// documents is the document workload cut down to the given number of questions per user, with a mean gap of 6 s of
// emulated time between two questions of a user.
func documents(users, questions int) []load.Request {
	return newDocuments(load.DefaultDocuments().Seed, users, questions)
}

// newDocuments is the same with documents of its own for each seed.
func newDocuments(seed uint64, users, questions int) []load.Request {
	w := load.DefaultDocuments()
	w.Seed, w.Users, w.Questions, w.Gap = seed, users, questions, 6*time.Second
	return w.Requests(load.DefaultVocabulary())
}

// send runs requests against a gateway.
func send(t *testing.T, url string, reqs []load.Request, onResult func(load.Result)) []load.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	results, err := load.Run(ctx, load.Config{Target: url, Model: "tiny", Speedup: speedup, OnResult: onResult, Timeout: time.Minute, Retries: 2}, reqs)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func noErrors(t *testing.T, results []load.Result) load.Report {
	t.Helper()
	rep := load.Summarize(results)
	if rep.Errors > 0 {
		t.Errorf("%d of %d requests failed, first: %s", rep.Errors, rep.Requests, rep.FirstError)
	}
	return rep
}

// ask sends one request and returns what the gateway predicted and where it went.
func ask(t *testing.T, url string, req load.Request) (predicted int, r load.Result) {
	t.Helper()
	req.At = 0
	r = send(t, url, []load.Request{req}, nil)[0]
	if r.Err != nil {
		t.Fatalf("request: %v", r.Err)
	}
	predicted, err := strconv.Atoi(r.Header.Get("X-Grapevine-Predicted-Cached-Tokens"))
	if err != nil {
		t.Fatalf("no prediction in the answer: %v", r.Header)
	}
	return predicted, r
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
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// rung of the endpoint behind an engine.
func rung(t *testing.T, f *cluster.Fleet, g *cluster.Gateway, engine int) (string, error) {
	t.Helper()
	endpoints, err := f.Status(g)
	if err != nil {
		return "", err
	}
	for _, e := range endpoints {
		if "http://"+e.ID == f.Engines[engine].URL {
			return e.Rung, nil
		}
	}
	return "", fmt.Errorf("engine %d is not in the status: %+v", engine, endpoints)
}
