package gatewaycmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/pool"
)

// apiServer answers lists with what it was given, by path, and lets watches wait. Its kubeconfig is a file.
func apiServer(t *testing.T, answers *atomic.Pointer[map[string]string]) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		items, known := (*answers.Load())[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		switch {
		case !known:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		case r.URL.Query().Get("sendInitialEvents") == "true":
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		case r.URL.Query().Get("watch") == "true":
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			fmt.Fprint(w, items)
		}
	}))
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], contexts: [{name: c, context: {cluster: c, user: u, namespace: models}}], users: [{name: u, user: {}}], current-context: c}", s.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestKubernetesPool(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"llama","object":"model"}]}`)
	}))
	defer engine.Close()
	u, _ := url.Parse(engine.URL)
	const pods = "/api/v1/namespaces/models/pods"
	inferencePool := fmt.Sprintf(`{"apiVersion":"inference.networking.k8s.io/v1","kind":"InferencePoolList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"llama"},"spec":{"selector":{"matchLabels":{"app":"llama"}},"targetPorts":[{"number":%s}]}}]}`, u.Port())
	var answers atomic.Pointer[map[string]string]
	answers.Store(&map[string]string{"/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools": inferencePool})
	kubeconfig := apiServer(t, &answers)

	listen, admin := freeAddr(t), freeAddr(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	log := &syncBuffer{}
	go func() {
		ended <- Main(ctx, []string{"--listen", listen, "--admin-listen", admin, "--gossip-enabled=false", "--kubernetes-inference-pools", "llama", "--kubernetes-kubeconfig", kubeconfig, "--warm-wait", "1m"}, "test", log, log)
	}()
	defer func() {
		cancel()
		if code := <-ended; code != 0 {
			t.Errorf("exit code %d\n%s", code, log)
		}
	}()
	get := func(addr, path string) (int, string) {
		resp, err := http.Get("http://" + addr + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for limit := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Fatalf("it never came that %s\n%s", what, log)
			}
		}
	}
	until("the gateway says what it lacks", func() bool {
		code, body := get(admin, "/health")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "starting: InferencePool models/llama: may not") && strings.Contains(body, "resources [pods]")
	})
	if strings.Contains(log.String(), "msg=serving") {
		t.Error("it serves before its pool was read")
	}

	// The right is given: it serves.
	answers.Store(&map[string]string{
		"/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools": inferencePool,
		pods: `{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"},"status":{"podIP":"127.0.0.1","phase":"Running","conditions":[{"type":"Ready","status":"True"}]}},{"metadata":{"name":"b"},"status":{"podIP":"127.0.0.2"}}]}`,
	})
	until("the gateway is ready", func() bool { code, _ := get(admin, "/health"); return code == http.StatusOK })
	until("it knows the model", func() bool {
		_, body := get(listen, "/v1/models")
		return strings.Contains(body, `"llama"`)
	})
	_, body := get(admin, "/status")
	var status struct{ Pools []pool.Status }
	if err := json.Unmarshal([]byte(body), &status); err != nil || len(status.Pools) != 1 || status.Pools[0].Endpoints != 1 || status.Pools[0].NotReady != 1 || !status.Pools[0].Synced {
		t.Errorf("pools %+v (%v)", status.Pools, err)
	}
	if _, body := get(admin, "/metrics"); !strings.Contains(body, `grapevine_pool_endpoints{kubernetes_pool="models/llama",state="eligible"} 1`) {
		t.Error("no metrics of the pool")
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestDiscover: agents add endpoints where nothing else tells which there are, or when they are asked to.
func TestDiscover(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte("kubernetes: {services: [a/b:http]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		want bool
	}{
		{"no pool", nil, true},
		{"a pool", []string{"--kubernetes-services", "a/b:http"}, false},
		{"a pool in the file", []string{"--config", file}, false},
		{"a pool, and asked to", []string{"--config", file, "--discover"}, true},
		{"a faulty pool", []string{"--kubernetes-services", "a/b:"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := Main(t.Context(), append(tt.args, "--print-config"), "test", &out, &errs)
			if want := fmt.Sprintf("\ndiscover: %v", tt.want); code == 0 && !strings.Contains("\n"+out.String(), want) {
				t.Errorf("%s\ndoes not say %s", out.String(), want)
			}
			if code != 0 && !strings.Contains(errs.String(), "kubernetes.services") {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
		})
	}
}

func TestKubernetesFaults(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // in a pod, too
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--kubernetes-inference-pools", "a/b"}, 1, "this is no pod of a cluster: give --kubernetes-kubeconfig"},
		{[]string{"--kubernetes-inference-pools", "a/b", "--kubernetes-kubeconfig", "/nowhere"}, 2, `kubernetes.kubeconfig = "/nowhere"`},
		{[]string{"--kubernetes-inference-pools", "a/b/c", "--kubernetes-objectives"}, 2, "kubernetes.inference-pools"},
	} {
		var out, errs bytes.Buffer
		if code := Main(t.Context(), append(tt.args, "--gossip-enabled=false", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"), "test", &out, &errs); code != tt.code || !strings.Contains(errs.String(), tt.want) {
			t.Errorf("%v: exit code %d: %s; want %d, %s", tt.args, code, errs.String(), tt.code, tt.want)
		}
	}
}
