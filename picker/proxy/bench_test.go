package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/grapevine-llm/grapevine/picker"
)

// BenchmarkForward compares the gateway with the standard library's bare reverse proxy on the
// same engine and body: the ratio is what the gateway costs.
func BenchmarkForward(b *testing.B) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		send(w, roleEvent, firstEvent, nextEvent, usageEvent, doneEvent)
	}))
	defer engine.Close()
	target, err := url.Parse(engine.URL)
	if err != nil {
		b.Fatal(err)
	}
	bare := httputil.NewSingleHostReverseProxy(target)
	bare.Transport = &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	pc := picker.Default()
	pc.Endpoints = []string{engine.URL}
	p, err := picker.New(pc)
	if err != nil {
		b.Fatal(err)
	}
	px, err := New(Default(), p, noIDs{}, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{2 << 10, 128 << 10} {
		body := fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}`, strings.Repeat("word ", size/5))
		for name, h := range map[string]http.Handler{"bare": bare, "gateway": px.Handler()} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, name), func(b *testing.B) {
				s := httptest.NewServer(h)
				defer s.Close()
				client := s.Client()
				b.ReportAllocs()
				for b.Loop() {
					resp, err := client.Post(s.URL+chatPath, "application/json", strings.NewReader(body))
					if err != nil {
						b.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
	}
}
