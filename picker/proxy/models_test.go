package proxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestModelsOfWhoJoins: endpoints that join are asked for their models at once, and again soon if they do not answer yet;
// one that hangs does not keep the answers of others back.
func TestModelsOfWhoJoins(t *testing.T) {
	var up atomic.Bool
	serves := func(model string, up func() bool) *httptest.Server {
		return engine(t, func(w http.ResponseWriter, _ *http.Request) {
			if !up() {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, model)
		})
	}
	llama := serves("llama", func() bool { return true })
	qwen := serves("qwen", up.Load)
	hung := engine(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	g := newGateway(t, Default())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- g.proxy.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	knows := func(models ...string) time.Duration {
		t.Helper()
		start := time.Now()
		for strings.Join(g.picker.Status().Models, " ") != strings.Join(models, " ") {
			if time.Since(start) > 10*time.Second {
				t.Fatalf("models %v, want %v", g.picker.Status().Models, models)
			}
			time.Sleep(time.Millisecond)
		}
		return time.Since(start)
	}
	if err := g.picker.SetPools(map[string][]string{"a": {llama.URL}, "b": {qwen.URL}, "c": {hung.URL}}); err != nil {
		t.Fatal(err)
	}
	g.proxy.EndpointsChanged()
	if d := knows("llama"); d > 1500*time.Millisecond {
		t.Errorf("known after %v", d)
	}
	up.Store(true)
	if d := knows("llama", "qwen"); d > 8*time.Second {
		t.Errorf("known after %v", d)
	}
}

func TestWhatAWatcherTells(t *testing.T) {
	why := ""
	cfg := Default()
	cfg.Pools = func() any { return []string{"models/llama"} }
	cfg.NotReady = func() string { return why }
	g := newGateway(t, cfg, "http://127.0.0.1:1")
	ask := func(path string) (int, string) {
		w := httptest.NewRecorder()
		g.proxy.Admin(prometheus.NewRegistry()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		body, _ := io.ReadAll(w.Body)
		return w.Code, string(body)
	}
	if code, _ := ask("/health"); code != http.StatusOK {
		t.Errorf("health %d, want 200", code)
	}
	why = "pods may not be listed"
	if code, text := ask("/health"); code != http.StatusServiceUnavailable || !strings.Contains(text, why) {
		t.Errorf("health %d %s, want 503 and why", code, text)
	}
	if _, text := ask("/status"); !strings.Contains(text, `"models/llama"`) {
		t.Errorf("status without pools: %s", text)
	}
}
