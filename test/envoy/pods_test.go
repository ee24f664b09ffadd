package envoy

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// pod is a server that stands for an engine where the test must see what reaches it to the byte.
type pod struct {
	*httptest.Server
	name    string
	answer  http.HandlerFunc // nil: chunks of a stream; runs when the body has been read
	release chan struct{}    // a stream's rest waits for it if it is not nil
	forget  bool             // requests are not noted

	mu   sync.Mutex // guards seen
	seen []seen
}

// seen is one request at a pod.
type seen struct {
	header http.Header
	bytes  int
	sum    [sha256.Size]byte
	err    error // of reading the body
}

func startPod(t *testing.T, name string) *pod {
	t.Helper()
	p := &pod{name: name}
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
	})
	return p
}

// startPods starts n of them and returns their addresses too.
func startPods(t *testing.T, n int) (pods []*pod, addresses []string) {
	t.Helper()
	for i := range n {
		p := startPod(t, fmt.Sprintf("pod-%d", i))
		pods, addresses = append(pods, p), append(addresses, p.address())
	}
	return pods, addresses
}

func (p *pod) address() string { return p.Listener.Addr().String() }

// chunks of a pod's stream, and the time between two.
const (
	chunks   = 20
	chunkGap = 20 * time.Millisecond
)

func chunk(i int) string { return fmt.Sprintf("data: {\"n\":%d}\n\n", i) }

// wholeStream is what a client must have read at the end.
func wholeStream() string {
	var b strings.Builder
	for i := range chunks {
		b.WriteString(chunk(i))
	}
	return b.String()
}

func (p *pod) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.forget {
		_, _ = io.Copy(io.Discard, r.Body)
		p.answer(w, r)
		return
	}
	hash := sha256.New()
	n, err := io.Copy(hash, r.Body)
	p.mu.Lock()
	p.seen = append(p.seen, seen{header: r.Header.Clone(), bytes: int(n), sum: [sha256.Size]byte(hash.Sum(nil)), err: err})
	p.mu.Unlock()
	w.Header().Set("X-Pod", p.name)
	if p.answer != nil {
		p.answer(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range chunks {
		_, _ = io.WriteString(w, chunk(i))
		_ = http.NewResponseController(w).Flush()
		if p.release != nil && i == 0 {
			select {
			case <-p.release:
			case <-r.Context().Done():
				return
			}
		}
		select {
		case <-time.After(chunkGap):
		case <-r.Context().Done():
			return
		}
	}
}

// requests that came so far.
func (p *pod) requests() []seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[:len(p.seen):len(p.seen)]
}
