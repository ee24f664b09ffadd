package enginemetrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	c := NewClient(srv.URL+"/", time.Second)
	t.Cleanup(func() { c.Close(); srv.Close() })
	return c
}

func TestClient(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[
				{"id":"tiny","object":"model","owned_by":"vllm","root":"tiny-model","parent":null,"max_model_len":16384,"permission":[]},
				{"id":"ad-a","object":"model","owned_by":"vllm","root":"adapters/ad-a","parent":"tiny","max_model_len":null}]}`)
		case "/version":
			io.WriteString(w, `{"version":"0.32.0"}`)
		case "/kv_event_sources":
			io.WriteString(w, `{"1":{"endpoint":"tcp://127.0.0.1:5558","replay_endpoint":null,"topic":"kv","buffer_steps":10000,"new":1},
				"0":{"endpoint":"tcp://127.0.0.1:5557","replay_endpoint":"tcp://127.0.0.1:6557","topic":"kv","buffer_steps":10000}}`)
		}
	})
	models, err := c.Models(t.Context())
	if diff := cmp.Diff([]Model{{"tiny", "tiny-model", "", 16384}, {"ad-a", "adapters/ad-a", "tiny", 0}}, models); err != nil || diff != "" {
		t.Errorf("models: %v\n%s", err, diff)
	}
	if v, err := c.Version(t.Context()); v != "0.32.0" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	want := []EventSource{
		{0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:6557", "kv", 10000},
		{1, "tcp://127.0.0.1:5558", "", "kv", 10000},
	}
	sources, err := c.EventSources(t.Context())
	if diff := cmp.Diff(want, sources); err != nil || diff != "" {
		t.Errorf("event sources: %v\n%s", err, diff)
	}
}

func TestClientFaults(t *testing.T) {
	tests := []struct {
		name   string
		answer http.HandlerFunc
		want   string
		is     error
	}{
		{"absent", http.NotFound, "status 404", ErrUnsupported},
		{"closed", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "status 403", ErrUnsupported},
		{"dead engine", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "status 503", nil},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, "decode /version", nil},
		{"endless", func(w http.ResponseWriter, _ *http.Request) {
			for range 5 << 10 {
				if _, err := io.WriteString(w, strings.Repeat(" ", 1024)); err != nil {
					return
				}
			}
		}, "over 4194304 bytes", ErrTooLarge},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		}, "status 302", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := serve(t, tt.answer).Version(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %q, %v", err, tt.want, tt.is)
			}
		})
	}
}

func TestClientKeepsOneConnection(t *testing.T) {
	seen := make(chan string, 100)
	text := read(t, "vllm-0.32.txt")
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r.RemoteAddr
		w.Write(text)
	})
	var buf []byte
	for range 10 {
		var err error
		if buf, err = c.Metrics(t.Context(), buf); err != nil || len(buf) != len(text) {
			t.Fatalf("%d bytes, %v", len(buf), err)
		}
	}
	close(seen)
	addrs := map[string]bool{}
	for a := range seen {
		addrs[a] = true
	}
	if len(addrs) != 1 {
		t.Errorf("%d connections, want 1", len(addrs))
	}
}

// fakeEngine answers inside a bubble, after took.
type fakeEngine struct {
	running atomic.Int32
	broken  atomic.Bool
	took    time.Duration
}

func (e *fakeEngine) RoundTrip(*http.Request) (*http.Response, error) {
	time.Sleep(e.took)
	if e.broken.Load() {
		return nil, errors.New("connection refused")
	}
	body := fmt.Sprintf("vllm:num_requests_running{engine=\"0\"} %d\n", e.running.Load())
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func TestScraperIntervals(t *testing.T) {
	tests := []struct {
		name    string
		running int32
		took    time.Duration
		wake    bool
		broken  bool
		want    int // scrapes in 3 s, one at 0 included
	}{
		{"idle", 0, time.Millisecond, false, false, 3},
		{"busy", 1, time.Millisecond, false, false, 30},
		{"idle but woken after half a second", 0, time.Millisecond, true, false, 4},
		{"busy and slow to answer", 1, 20 * time.Millisecond, false, false, 8},
		{"stalled", 1, 900 * time.Millisecond, false, false, 2},
		{"broken", 0, time.Millisecond, false, true, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &fakeEngine{took: tt.took}
				e.running.Store(tt.running)
				e.broken.Store(tt.broken)
				c := NewClient("http://engine", time.Second)
				c.http.Transport = e
				s := NewScraper(c, ScraperConfig{})
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				if tt.wake {
					time.AfterFunc(500*time.Millisecond, s.Wake)
				}
				var got int
				err := s.Run(ctx, func(sc Scrape) {
					got++
					if (sc.Err != nil) != tt.broken || !tt.broken && (sc.Bytes == 0 || sc.Took != tt.took || sc.Sample == nil) {
						t.Errorf("scrape %+v", sc)
					}
				})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("ended with %v", err)
				}
				if got != tt.want {
					t.Errorf("%d scrapes, want %d", got, tt.want)
				}
			})
		})
	}
}

func TestEngineOnLoopbackByTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"version":%q}`, r.Header.Get("Authorization"))
	}))
	defer srv.Close()
	c := NewClient(srv.URL, time.Second).WithKey("k")
	defer c.Close()
	if v, err := c.Version(t.Context()); err != nil || v != "Bearer k" {
		t.Errorf("got %q, %v", v, err)
	}
	if TLS("https://10.0.0.5:8000").InsecureSkipVerify {
		t.Error("another host's certificate is not checked")
	}
}
