package envoy

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
)

// slicesServer is as much of a Kubernetes API server as a gateway needs to read the ready endpoints of Services: it never changes.
func slicesServer(t *testing.T, namespace string, services map[string][]string) *httptest.Server {
	t.Helper()
	items := map[string][]any{} // by label selector
	for service, addresses := range services {
		for i, a := range addresses {
			host, port, err := net.SplitHostPort(a)
			if err != nil {
				t.Fatal(err)
			}
			n, err := strconv.Atoi(port)
			if err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("%s-%d", service, i)
			selector := "kubernetes.io/service-name=" + service
			items[selector] = append(items[selector], object{
				"metadata": object{
					"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1",
					"labels": object{"kubernetes.io/service-name": service},
				},
				"addressType": "IPv4",
				"endpoints":   []any{object{"addresses": []any{host}, "conditions": object{"ready": true, "serving": true}}},
				"ports":       []any{object{"name": "http", "port": n, "protocol": "TCP"}},
			})
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("sendInitialEvents") != "": // lists and watches in one are not served
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422})
		case r.URL.Query().Get("watch") != "":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/namespaces/"+namespace+"/endpointslices"):
			_ = json.NewEncoder(w).Encode(object{
				"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": object{"resourceVersion": "1"},
				"items": items[r.URL.Query().Get("labelSelector")],
			})
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

// One gateway serves two pools: each listener of Envoy has its own, and its requests never reach the other's pods.
func TestTwoPools(t *testing.T) {
	program(t, envoyVar)
	a := newFleetOfEngines(t, 2, "a")
	b := newFleetOfEngines(t, 2, "b")
	api := slicesServer(t, "models", map[string][]string{"a": engineAddresses(a), "b": engineAddresses(b)})
	dir := logDir(t)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"c"}}],"users":[{"name":"c","user":{}}],"current-context":"c"}`, api.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := ports(t, 4)
	start(t, program(t, binVar), "gateway", dir, "gateway", "--listen=", "--admin-listen", local(p[0]), "--gossip-bind", local(p[1]), "--gossip-advertise", local(p[1]),
		"--kubernetes-kubeconfig", kubeconfig, "--kubernetes-services", "models/a:http,models/b:http",
		"--ext-proc-listen", "models/a:http="+local(p[2]), "--ext-proc-listen", "models/b:http="+local(p[3]), "--speedup", "10")

	cfg := readBootstrap(t, "full-duplex.yaml")
	second := readBootstrap(t, "full-duplex.yaml")
	cfg.endpoints("grapevine", local(p[2]))
	cfg.endpoints("pods", engineAddresses(a)...)
	second.endpoints("grapevine", local(p[3]))
	second.endpoints("pods", engineAddresses(b)...)
	cfg.join(second, "-b")
	e := startEnvoy(t, cfg)
	e.healthy(t, "grapevine", 1)
	e.healthy(t, "grapevine-b", 1)

	for i, url := range e.urls {
		for k := range 6 {
			mustPost(t, http.StatusOK, url+chatPath, chat(words(10*i+k, 50), 2, k%2 == 0))
		}
	}
	for name, f := range map[string]*cluster.Fleet{"a": a, "b": b} {
		sum := 0
		for _, g := range f.Engines {
			var stats struct{ Requests int }
			if err := f.GetJSON(g.URL+"/debug/stats", &stats); err != nil {
				t.Fatal(err)
			}
			sum += stats.Requests
		}
		if sum != 6 {
			t.Errorf("pool %s has %d requests, want 6", name, sum)
		}
	}
	// A pool whose pods are gone has no other's.
	for _, g := range b.Engines {
		g.Kill()
	}
	if got, err := post(t.Context(), e.urls[1]+chatPath, chat("x", 1, false)); err != nil || got.status != http.StatusServiceUnavailable {
		t.Errorf("status %d, %v, want 503", got.status, err)
	}
	mustPost(t, http.StatusOK, e.urls[0]+chatPath, chat("x", 1, false))
}

// newFleetOfEngines starts engines alone.
func newFleetOfEngines(t *testing.T, n int, name string) *cluster.Fleet {
	t.Helper()
	f := &cluster.Fleet{
		Options: cluster.Options{Name: name, Exe: program(t, binVar), Dir: logDir(t), Speedup: 10, Model: "tiny", Ports: &portPool},
		Client:  &http.Client{Timeout: 10 * time.Second},
	}
	t.Cleanup(f.Down)
	for range n {
		if err := f.AddEngine(); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range f.Engines {
		eventually(t, 20*time.Second, e.Name+" to listen", func() error { _, err := get(e.URL + "/health"); return err })
	}
	return f
}
