package pool

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// podJSON is a pod of app "llama" at 10.0.0.n.
func podJSON(n int, status string) string { return podOf("llama", n, status) }

func podOf(app string, n int, status string) string {
	deleted := ""
	if status == "terminating" {
		deleted = `,"deletionTimestamp":"2026-01-01T00:00:00Z"`
	}
	ready := "False"
	if status == "ready" || status == "terminating" {
		ready = "True"
	}
	return fmt.Sprintf(`{"metadata":{"labels":{"app":%q}%s},"spec":{"nodeName":"n"},"status":{"phase":"Running","podIP":"10.0.0.%d","conditions":[{"type":"Ready","status":%q}]}}`, app, deleted, n, ready)
}

func poolJSON(app string, ports ...int) string {
	var list []string
	for _, p := range ports {
		list = append(list, fmt.Sprintf(`{"number":%d}`, p))
	}
	return fmt.Sprintf(`{"spec":{"selector":{"matchLabels":{"app":%q}},"targetPorts":[%s],"appProtocol":"http"}}`, app, strings.Join(list, ","))
}

// running is a Watcher that runs, and what it has called back with.
type running struct {
	*Watcher
	log *buffer
	reg *prometheus.Registry

	mu    sync.Mutex // guards calls
	calls [][]string
}

func start(t testing.TB, a *api, cfg Config) *running {
	t.Helper()
	r := &running{log: &buffer{}, reg: prometheus.NewRegistry()}
	var err error
	r.Watcher, err = newWatcher(cfg, a.conn(), slog.New(slog.NewTextHandler(r.log, nil)), r.reg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx, func(endpoints []string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.calls = append(r.calls, endpoints)
		})
	}()
	t.Cleanup(func() {
		cancel()
		a.cutWatches()
		<-ended
	})
	return r
}

// last is what the callback got last; nil: it was not called.
func (r *running) last() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) == 0 {
		return nil
	}
	return r.calls[len(r.calls)-1]
}

func (r *running) wants(t testing.TB, want ...string) {
	t.Helper()
	if want == nil {
		want = []string{}
	}
	eventually(t, fmt.Sprintf("the endpoints are %v", want), func() bool { got := r.last(); return got != nil && slices.Equal(got, want) })
}

// metric is the value of a metric by its labels' values, in the order of their names.
func (r *running) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(have, labels) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s of %v", name, labels)
	return 0
}

type buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var llama = Config{InferencePools: []string{"models/llama"}}

func TestPodsOfAnInferencePool(t *testing.T) {
	for _, streams := range []bool{true, false} {
		t.Run(fmt.Sprintf("streamed lists %v", streams), func(t *testing.T) {
			a := newAPI(t)
			a.streams = streams
			a.put(poolsPath, "llama", poolJSON("llama", 8000, 8001))
			a.put(poolsPath, "other", poolJSON("other", 1))
			a.put(podsPath, "a", podJSON(1, "ready"))
			a.put(podsPath, "b", podJSON(2, "starting"))
			a.put(podsPath, "x", podOf("other", 9, "ready"))
			r := start(t, a, llama)
			r.wants(t, "10.0.0.1:8000", "10.0.0.1:8001")
			if !r.Synced() || r.Waiting() != "" {
				t.Errorf("synced %v, waiting for %q", r.Synced(), r.Waiting())
			}

			a.put(podsPath, "b", podJSON(2, "ready"))
			r.wants(t, "10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001")
			a.put(podsPath, "a", podJSON(1, "terminating"))
			r.wants(t, "10.0.0.2:8000", "10.0.0.2:8001")
			want := []Status{{Name: "models/llama", Kind: "InferencePool", Synced: true, Endpoints: 2, Terminating: 1}}
			if d := cmp.Diff(want, r.Status()); d != "" {
				t.Error(d)
			}
			for state, want := range map[string]float64{"eligible": 2, "not_ready": 0, "terminating": 1} {
				if got := r.metric(t, "grapevine_pool_endpoints", "models/llama", state); got != want {
					t.Errorf("%v endpoints %s, want %v", got, state, want)
				}
			}
			a.remove(podsPath, "a")
			a.put(podsPath, "b", podOf("retired", 2, "ready")) // its labels no longer match
			r.wants(t)
			if got, ok := r.Members("models/llama"); !ok || got == nil || len(got) != 0 {
				t.Errorf("members %#v, %v; want none, but known", got, ok)
			}
			if strings.Contains(r.log.String(), "level=WARN") {
				t.Error(r.log)
			}
		})
	}
}

func TestPoolChanges(t *testing.T) {
	a := newAPI(t)
	a.put(podsPath, "blue", podOf("blue", 1, "ready"))
	a.put(podsPath, "green", podOf("green", 2, "ready"))
	r := start(t, a, llama)
	r.wants(t) // there is no such pool yet
	if got := r.Status()[0].Note; got != "there is no such InferencePool" {
		t.Errorf("note %q", got)
	}
	a.put(poolsPath, "llama", poolJSON("blue", 8000))
	r.wants(t, "10.0.0.1:8000")
	a.put(poolsPath, "llama", poolJSON("blue", 9000))
	r.wants(t, "10.0.0.1:9000")

	// A change of the selector goes over to the other pods without a moment of none.
	a.put(poolsPath, "llama", poolJSON("green", 9000))
	r.wants(t, "10.0.0.2:9000")
	r.mu.Lock()
	for _, c := range r.calls[1:] {
		if len(c) == 0 {
			t.Errorf("the pool was empty in between: %v", r.calls)
		}
	}
	r.mu.Unlock()
	eventually(t, "the old pods are not watched any more", func() bool {
		a.put(podsPath, "blue", podOf("blue", 3, "ready"))
		return !slices.Contains(r.last(), "10.0.0.3:9000")
	})
	if n := a.asked("watch pods?app=blue"); n != 1 {
		t.Errorf("%d watches of the old pods, want 1", n)
	}

	a.remove(poolsPath, "llama")
	r.wants(t)
	a.put(poolsPath, "llama", poolJSON("green", 9000))
	r.wants(t, "10.0.0.2:9000")
	a.put(poolsPath, "llama", `{"spec":{"targetPorts":[{"number":9000}]}}`)
	r.wants(t)
	if got := r.Status()[0].Note; !strings.Contains(got, "selector is empty") {
		t.Errorf("note %q", got)
	}
}

func sliceJSON(family string, members string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{"kubernetes.io/service-name":"llama"}},"addressType":%q,"ports":[{"name":"http","port":8000,"protocol":"TCP"},{"name":"metrics","port":9000,"protocol":"TCP"}],"endpoints":[%s]}`, family, members)
}

func TestService(t *testing.T) {
	a := newAPI(t)
	a.put(slicesPath, "llama-1", sliceJSON("IPv4", `{"addresses":["10.0.0.1"],"conditions":{"ready":true},"targetRef":{"kind":"Pod","name":"a"}},{"addresses":["10.0.0.2"],"conditions":{"ready":false}}`))
	a.put(slicesPath, "other", `{"metadata":{"labels":{"kubernetes.io/service-name":"other"}},"addressType":"IPv4","ports":[{"port":1}],"endpoints":[{"addresses":["10.9.9.9"]}]}`)
	r := start(t, a, Config{Namespace: "models", Services: []string{"llama:http"}})
	r.wants(t, "10.0.0.1:8000")
	a.put(slicesPath, "llama-2", sliceJSON("IPv4", `{"addresses":["10.0.0.3"]}`))
	r.wants(t, "10.0.0.1:8000", "10.0.0.3:8000")
	a.put(slicesPath, "llama-1", sliceJSON("IPv4", `{"addresses":["10.0.0.1"],"conditions":{"ready":false,"serving":true,"terminating":true},"targetRef":{"kind":"Pod","name":"a"}}`))
	r.wants(t, "10.0.0.3:8000")
	want := []Status{{Name: "models/llama:http", Kind: "Service", Synced: true, Endpoints: 1, Terminating: 1}}
	if d := cmp.Diff(want, r.Status()); d != "" {
		t.Error(d)
	}
	a.remove(slicesPath, "llama-1")
	a.remove(slicesPath, "llama-2")
	r.wants(t)
}

// TestServerAway: what was known last stays, its age is told, and what happened meanwhile is caught up with.
func TestServerAway(t *testing.T) {
	a := newAPI(t)
	a.put(poolsPath, "llama", poolJSON("llama", 8000))
	a.put(podsPath, "a", podJSON(1, "ready"))
	a.put(podsPath, "b", podJSON(2, "ready"))
	r := start(t, a, llama)
	r.wants(t, "10.0.0.1:8000", "10.0.0.2:8000")

	a.set(func() { a.down = true })
	eventually(t, "the failure shows", func() bool { return r.Status()[0].Error != "" })
	a.remove(podsPath, "a")
	a.put(podsPath, "c", podJSON(3, "ready"))
	eventually(t, "its age grows", func() bool { return r.Status()[0].AgeSeconds > 0.3 })
	if got, ok := r.Members("models/llama"); !ok || len(got) != 2 || !r.Synced() {
		t.Errorf("members %v, %v", got, ok)
	}
	for _, want := range []string{"what was known last stays", "can't watch", "resource=pods"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("%s\ndoes not say %s", r.log, want)
		}
	}
	a.set(func() { a.down = false })
	r.wants(t, "10.0.0.2:8000", "10.0.0.3:8000")
	eventually(t, "all is well", func() bool { s := r.Status()[0]; return s.Error == "" && s.AgeSeconds == 0 })
	if !strings.Contains(r.log.String(), "works again") {
		t.Errorf("%s\ndoes not say that it works again", r.log)
	}

	// A watch whose place the server has forgotten starts anew.
	a.set(func() { a.down = true })
	eventually(t, "the failure shows", func() bool { return r.Status()[0].Error != "" })
	a.remove(podsPath, "b")
	a.set(func() { a.down, a.oldest = false, a.version })
	r.wants(t, "10.0.0.3:8000")
}

// TestRefused: each reason says its remedy, what is unknown is not called empty, and it is tried until it works.
func TestRefused(t *testing.T) {
	tests := []struct {
		name   string
		refuse func(verb, path string) int
		reason string
		want   []string
	}{
		{"no right to list pods", func(_, path string) int { return map[bool]int{true: 403}[path == podsPath] }, reasonForbidden,
			[]string{`may not list pods in namespace models`, `apiGroups [""], resources [pods], verbs [get, list, watch]`}},
		{"no right to watch pools", func(verb, path string) int { return map[bool]int{true: 403}[path == poolsPath] }, reasonForbidden,
			[]string{`inferencepools in namespace models`, `apiGroups [inference.networking.k8s.io], resources [inferencepools]`}},
		{"CRD absent", func(_, path string) int { return map[bool]int{true: 404}[path == poolsPath] }, reasonAbsent,
			[]string{`does not know inferencepools.inference.networking.k8s.io v1: install the CRDs of the Gateway API Inference Extension`}},
		{"credentials", func(string, string) int { return 401 }, reasonUnauthorized, []string{`does not accept this gateway's credentials`}},
		{"error of the server", func(string, string) int { return 500 }, reasonRefused, []string{`refuses to list inferencepools`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t)
			a.refuse = tt.refuse
			a.put(poolsPath, "llama", poolJSON("llama", 8000))
			a.put(podsPath, "a", podJSON(1, "ready"))
			r := start(t, a, llama)
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(r.Status(), r.log)
				}
			})
			eventually(t, "the failure shows", func() bool {
				s := r.Status()[0]
				return !slices.ContainsFunc(tt.want, func(w string) bool { return !strings.Contains(s.Error, w) })
			})
			if _, known := r.Members("models/llama"); known || r.Synced() || r.last() != nil {
				t.Errorf("known %v, synced %v, called with %v; want nothing known", known, r.Synced(), r.last())
			}
			if w := r.Waiting(); !strings.Contains(w, tt.want[0]) {
				t.Errorf("waiting %q", w)
			}
			if !strings.Contains(r.log.String(), "level=WARN") {
				t.Errorf("nothing logged: %s", r.log)
			}
			eventually(t, "failures are counted by reason", func() bool {
				return r.metric(t, "grapevine_pool_watch_failures_total", "models/llama", tt.reason) > 0
			})
			a.set(func() { a.refuse = nil })
			r.wants(t, "10.0.0.1:8000")
		})
	}
}

// TestOnlyWatchRefused: with the right to list alone the set follows by lists, and the lack is told.
func TestOnlyWatchRefused(t *testing.T) {
	a := newAPI(t)
	a.refuse = func(verb, _ string) int { return map[bool]int{true: http.StatusForbidden}[verb == "watch"] }
	a.put(poolsPath, "llama", poolJSON("llama", 8000))
	a.put(podsPath, "a", podJSON(1, "ready"))
	r := start(t, a, llama)
	r.wants(t, "10.0.0.1:8000")
	eventually(t, "the lack shows", func() bool { return strings.Contains(r.Status()[0].Error, "may not watch") })
	a.put(podsPath, "b", podJSON(2, "ready"))
	r.wants(t, "10.0.0.1:8000", "10.0.0.2:8000")
	if n := strings.Count(r.log.String(), "level=WARN"); n > 3 {
		t.Errorf("%d warnings of the same\n%s", n, r.log)
	}
}

// TestOnePoolDoesNotHoldUpAnother: what can be read serves while something else is refused.
func TestOnePoolDoesNotHoldUpAnother(t *testing.T) {
	a := newAPI(t)
	a.refuse = func(_, path string) int { return map[bool]int{true: http.StatusForbidden}[path == slicesPath] }
	a.put(poolsPath, "llama", poolJSON("llama", 8000))
	a.put(podsPath, "a", podJSON(1, "ready"))
	r := start(t, a, Config{InferencePools: []string{"models/llama"}, Services: []string{"models/qwen:http"}})
	r.wants(t, "10.0.0.1:8000")
	if r.Synced() {
		t.Error("synced though a Service can't be read")
	}
	a.set(func() { a.refuse = nil })
	eventually(t, "all is read", r.Synced)
	if got := r.Status()[1].Note; !strings.Contains(got, "no EndpointSlice") {
		t.Errorf("note %q", got)
	}
	if d := cmp.Diff(map[string][]string{"models/llama": {"10.0.0.1:8000"}, "models/qwen:http": {}}, r.Pools()); d != "" {
		t.Error(d)
	}
}

func TestObjectives(t *testing.T) {
	a := newAPI(t)
	a.refuse = func(_, path string) int { return map[bool]int{true: http.StatusNotFound}[path == objectivesPath] }
	a.put(poolsPath, "llama", poolJSON("llama", 8000))
	a.put(objectivesPath, "chat", `{"spec":{"priority":10,"poolRef":{"name":"llama"}}}`)
	a.put(objectivesPath, "batch", `{"spec":{"poolRef":{"name":"other"}}}`)
	a.put(objectivesPath, "unset", `{"spec":{"poolRef":{"name":"llama"}}}`)
	r := start(t, a, Config{InferencePools: []string{"models/llama"}, Objectives: true})
	r.wants(t)
	if !r.Synced() {
		t.Error("objectives hold the pool up")
	}
	eventually(t, "the lack shows", func() bool { return strings.Contains(r.Status()[0].Note, "install llm-d's CRDs") })
	a.set(func() { a.refuse = nil })
	eventually(t, "the priority is known", func() bool { p, ok := r.Objective("models/llama", "chat"); return ok && p == 10 })
	for _, o := range []struct {
		pool, name string
		want       bool
	}{{"models/llama", "unset", true}, {"models/llama", "batch", false}, {"models/llama", "none", false}, {"other/llama", "chat", false}, {"nonsense:", "chat", false}} {
		if p, ok := r.Objective(o.pool, o.name); ok != o.want || p != 0 {
			t.Errorf("%s of %s: %d, %v; want 0, %v", o.name, o.pool, p, ok, o.want)
		}
	}
	if p, ok := r.Objective("", "chat"); !ok || p != 10 {
		t.Errorf("chat of any pool: %d, %v", p, ok)
	}
	a.put(objectivesPath, "chat", `{"spec":{"priority":-5,"poolRef":{"name":"llama"}}}`)
	eventually(t, "the priority changes", func() bool { p, _ := r.Objective("models/llama", "chat"); return p == -5 })
}

// TestChurn: many changes at once, readers beside them, and the end is right. It is for the race detector.
func TestChurn(t *testing.T) {
	a := newAPI(t)
	a.put(poolsPath, "llama", poolJSON("llama", 8000))
	r := start(t, a, llama)
	r.wants(t)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.Members("models/llama")
				r.Status()
				r.Pools()
				_, _ = r.reg.Gather()
			}
		}
	})
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				name := fmt.Sprintf("p%d-%d", g, i%10)
				a.put(podsPath, name, podJSON(10*g+i%10, []string{"ready", "starting", "terminating"}[i%3]))
				if i%7 == 0 {
					a.cutWatches()
				}
			}
			for i := range 10 {
				if name := fmt.Sprintf("p%d-%d", g, i); i > 0 {
					a.remove(podsPath, name)
				} else {
					a.put(podsPath, name, podJSON(10*g, "ready"))
				}
			}
		})
	}
	eventually(t, "the end is right", func() bool {
		return slices.Equal(r.last(), []string{"10.0.0.0:8000", "10.0.0.10:8000", "10.0.0.20:8000", "10.0.0.30:8000"})
	})
	close(stop)
	wg.Wait()
}

// TestBurst: a burst comes in few calls, and its first change at once.
func TestBurst(t *testing.T) {
	a := newAPI(t)
	a.put(poolsPath, "llama", poolJSON("llama", 8000))
	r := start(t, a, llama)
	r.wants(t)
	begin := time.Now()
	for i := range 250 {
		a.put(podsPath, fmt.Sprint("p", i), podJSON(i, "ready"))
	}
	eventually(t, "all are there", func() bool { return len(r.last()) == 250 })
	took := time.Since(begin)
	r.mu.Lock()
	defer r.mu.Unlock()
	if most := 3 + int(took/coalesce); len(r.calls) > most {
		t.Errorf("%d calls in %v, want at most %d", len(r.calls), took, most)
	}
}
