package envoy

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
)

// The shipped files with our gateway as the picker.
var pickerFiles = []string{"full-duplex.yaml", "buffered.yaml", "sidecar.yaml"}

const chatPath = "/v1/chat/completions"

// Envoy takes every shipped file as it is, and has nothing to say about it.
func TestFilesAreValid(t *testing.T) {
	exe := program(t, envoyVar)
	for _, name := range append([]string{"advise.yaml"}, pickerFiles...) {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(exe, "--mode", "validate", "-l", "warn", "-c", filepath.Join(shipped, name)).CombinedOutput()
			if err != nil || strings.Contains(string(out), "[warning]") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// setup is a shipped file in front of pods that see what reaches them, with the constant picker as the picker.
type setup struct {
	*proxy
	picker    *cluster.Process
	pods      []*pod
	addresses []string // of the pods
}

// newSetup starts n pods and a picker that gives them out in the order of pick, and Envoy.
func newSetup(t *testing.T, file string, n int, pick ...int) *setup {
	t.Helper()
	s := &setup{}
	s.pods, s.addresses = startPods(t, n)
	var list []string
	for _, i := range pick {
		list = append(list, s.addresses[i])
	}
	b := readBootstrap(t, file)
	b.endpoints("pods", s.addresses...)
	listen := pickerAddress(t, file)
	b.endpoints("grapevine", listen.envoy)
	s.picker = startConstant(t, listen.flag, list...)
	s.proxy = startEnvoy(t, b)
	s.healthy(t, "grapevine", 1)
	return s
}

// listenAddress is where a picker listens, as Envoy has it and as a flag.
type listenAddress struct{ envoy, flag string }

func pickerAddress(t *testing.T, file string) listenAddress {
	t.Helper()
	if file != "sidecar.yaml" {
		a := local(ports(t, 1)[0])
		return listenAddress{a, a}
	}
	dir, err := os.MkdirTemp("", "gv") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	return listenAddress{path, "unix://" + path}
}

// stream is an answer that is read as it comes.
type stream struct {
	resp  *http.Response
	lines *bufio.Reader
}

func openStream(t *testing.T, url string) *stream {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+chatPath, strings.NewReader(`{"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	return &stream{resp, bufio.NewReader(resp.Body)}
}

// first reads the first chunk.
func (s *stream) first(t *testing.T) {
	t.Helper()
	line, err := s.lines.ReadString('}')
	if err != nil || !strings.HasPrefix(line, "data:") {
		t.Fatalf("first chunk %q: %v", line, err)
	}
}

// rest reads what comes after the first chunk, which must be everything.
func (s *stream) rest(t *testing.T) {
	t.Helper()
	rest, err := io.ReadAll(s.lines)
	first, _, _ := strings.Cut(chunk(0), "\n")
	if got := first + string(rest); err != nil || got != wholeStream() {
		t.Errorf("the answer is cut: %d of %d bytes, %v", len(got), len(wholeStream()), err)
	}
}

func TestChunksArriveOneByOne(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			s := newSetup(t, file, 1, 0)
			answer := openStream(t, s.url)
			var times []time.Time
			for range chunks {
				if _, err := answer.lines.ReadString('}'); err != nil {
					t.Fatal(err)
				}
				times = append(times, time.Now())
			}
			together := 0
			for i := range chunks - 1 {
				if times[i+1].Sub(times[i]) < chunkGap/4 {
					together++
				}
			}
			if together > 2 { // the machine may be busy
				t.Errorf("%d of %d chunks came together with the one before", together, chunks)
			}
		})
	}
}

// What the client sends reaches the picked pod to the byte, whatever its size.
func TestBodies(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			s := newSetup(t, file, 2, 1)
			s.pods[1].answer = func(http.ResponseWriter, *http.Request) {}
			rng := rand.NewChaCha8([32]byte{})
			for i, size := range []int{0, 100, 128 << 10, 1 << 20, 16 << 20} {
				body := make([]byte, size)
				_, _ = rng.Read(body)
				mustPost(t, http.StatusOK, s.url+chatPath, string(body))
				got := s.pods[1].requests()
				if len(got) != i+1 || got[i].err != nil || got[i].bytes != size || got[i].sum != sha256.Sum256(body) {
					t.Fatalf("%d bytes: the pod saw %+v", size, got[len(got)-1])
				}
			}
			if _, err := get(s.url + "/v1/models"); err != nil { // no body at all
				t.Error(err)
			}
			if got := len(s.pods[1].requests()); got != 6 {
				t.Errorf("the picked pod has %d requests, want 6", got)
			}
			if file == "buffered.yaml" {
				mustPost(t, http.StatusRequestEntityTooLarge, s.url+chatPath, string(make([]byte, 33<<20)))
			}
		})
	}
}

func TestPathsOfClients(t *testing.T) {
	s := newSetup(t, "full-duplex.yaml", 1, 0)
	before := s.stat(t, "http.openai.ext_proc.", "streams_started")
	for _, path := range []string{"/metrics", "/reset_prefix_cache", "/v1/load_lora_adapter", "/v1/x/../unload_lora_adapter", "//v1//load_lora_adapter", "/"} {
		mustPost(t, http.StatusNotFound, s.url+path, "{}")
	}
	if n := s.stat(t, "http.openai.ext_proc.", "streams_started") - before; n != 0 || len(s.pods[0].requests()) != 0 {
		t.Errorf("refused paths: %d streams to the picker, %d requests at the pod", n, len(s.pods[0].requests()))
	}
}

// A picker that dies cuts no answer; new requests get what the file promises, and its return is noticed.
func TestPickerKilled(t *testing.T) {
	for file, down := range map[string]int{"full-duplex.yaml": 503, "buffered.yaml": 200, "sidecar.yaml": 503} {
		t.Run(file, func(t *testing.T) {
			s := newSetup(t, file, 2, 0)
			s.pods[0].release = make(chan struct{})
			running := openStream(t, s.url)
			running.first(t)
			s.picker.Kill()
			close(s.pods[0].release)
			running.rest(t)

			for _, method := range []string{http.MethodPost, http.MethodGet} {
				req, err := http.NewRequestWithContext(t.Context(), method, s.url+chatPath, strings.NewReader("{}"))
				if err != nil {
					t.Fatal(err)
				}
				sent := time.Now()
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if took := time.Since(sent); resp.StatusCode != down || took > 2*time.Second {
					t.Errorf("%s without a picker: status %d after %v, want %d at once", method, resp.StatusCode, took, down)
				}
			}
			if err := s.picker.Start(); err != nil {
				t.Fatal(err)
			}
			back := eventually(t, 20*time.Second, "the picker to be used again", func() error {
				n := len(s.pods[0].requests())
				for range 4 { // least_request alone would spread them
					a, err := post(t.Context(), s.url+chatPath, "{}")
					if err != nil || a.status != http.StatusOK {
						return fmt.Errorf("status %d, %v", a.status, err)
					}
				}
				if n = len(s.pods[0].requests()) - n; n != 4 {
					return fmt.Errorf("%d of 4 at the picked pod", n)
				}
				return nil
			})
			t.Logf("picks again after %v", back.Round(time.Millisecond))
		})
	}
}

// A picker that hangs cuts no answer either. Buffered, its time is limited; else pings find it.
func TestPickerHangs(t *testing.T) {
	for file, want := range map[string]struct {
		status int
		within time.Duration
	}{"full-duplex.yaml": {503, 17 * time.Second}, "buffered.yaml": {200, 3 * time.Second}} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, file, 1, 0)
			s.pods[0].release = make(chan struct{})
			running := openStream(t, s.url)
			running.first(t)
			if err := s.picker.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.picker.Signal(syscall.SIGCONT) }()
			close(s.pods[0].release)
			running.rest(t)
			sent := time.Now()
			a, err := post(t.Context(), s.url+chatPath, "{}")
			took := time.Since(sent)
			if err != nil || a.status != want.status || took > want.within {
				t.Errorf("status %d after %v, %v; want %d within %v", a.status, took, err, want.status, want.within)
			}
			t.Logf("status %d after %v", a.status, took.Round(time.Millisecond))
		})
	}
}

// hijack ends the connection without an answer.
func hijack(w http.ResponseWriter, _ *http.Request) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		c.Close()
	}
}

func TestNextOnTheList(t *testing.T) {
	ok := func(http.ResponseWriter, *http.Request) {}
	tests := map[string]func(p *pod){
		"not there":             func(p *pod) { p.Close() },
		"answers 503":           func(p *pod) { p.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) } },
		"breaks the connection": func(p *pod) { p.answer = hijack },
	}
	for _, file := range []string{"full-duplex.yaml", "buffered.yaml"} {
		for name, spoil := range tests {
			t.Run(file+"/"+name, func(t *testing.T) {
				s := newSetup(t, file, 4, 2, 0, 1)
				for _, p := range s.pods {
					p.answer = ok
				}
				spoil(s.pods[2])
				spoil(s.pods[0])
				for i, size := range []int{100, 1 << 20, 8 << 20} {
					mustPost(t, http.StatusOK, s.url+chatPath, string(make([]byte, size)))
					if got := s.pods[1].requests(); len(got) != i+1 || got[i].bytes != size {
						t.Errorf("%d bytes: the third on the list has %d requests, want %d", size, len(got), i+1)
					}
				}
			})
		}
	}
	t.Run("another error is passed on", func(t *testing.T) {
		s := newSetup(t, "full-duplex.yaml", 2, 0, 1)
		s.pods[0].answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }
		mustPost(t, 500, s.url+chatPath, "{}")
	})
	t.Run("nobody of the list is known", func(t *testing.T) {
		pods, addresses := startPods(t, 2)
		b := readBootstrap(t, "full-duplex.yaml")
		b.endpoints("pods", addresses...)
		listen := pickerAddress(t, "full-duplex.yaml")
		b.endpoints("grapevine", listen.envoy)
		startConstant(t, listen.flag, "192.0.2.1:8000", "192.0.2.2:8000")
		e := startEnvoy(t, b)
		e.healthy(t, "grapevine", 1)
		mustPost(t, http.StatusOK, e.url+chatPath, "{}")
		if n := len(pods[0].requests()) + len(pods[1].requests()); n != 1 {
			t.Errorf("%d requests at the pods, want 1: any of them", n)
		}
	})
}

// A client that names a pod is not listened to, whether there is a picker or not.
func TestClientsDestinationIsIgnored(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			s := newSetup(t, file, 2, 1)
			victim := startPod(t, "not in the pool")
			for _, p := range append(s.pods, victim) {
				p.answer = func(http.ResponseWriter, *http.Request) {}
			}
			for _, to := range []string{s.addresses[0], victim.address()} {
				mustPost(t, http.StatusOK, s.url+chatPath, "{}", "X-Gateway-Destination-Endpoint", to)
			}
			got := s.pods[1].requests()
			if len(got) != 2 {
				t.Fatalf("the picked pod has %d of 2 requests", len(got))
			}
			if h := got[0].header.Get("X-Gateway-Destination-Endpoint"); h != s.addresses[1] {
				t.Errorf("the pod reads %q", h)
			}
			s.picker.Kill()
			for range 6 {
				if _, err := post(t.Context(), s.url+chatPath, "{}", "X-Gateway-Destination-Endpoint", victim.address()); err != nil {
					t.Fatal(err)
				}
			}
			if file == "buffered.yaml" {
				n := 0
				for range 10 {
					mustPost(t, http.StatusOK, s.url+chatPath, "{}", "X-Gateway-Destination-Endpoint", s.addresses[0])
				}
				for _, r := range append(s.pods[0].requests(), s.pods[1].requests()...) {
					if r.header.Get("X-Gateway-Destination-Endpoint") == s.addresses[0] {
						n++
					}
				}
				if n > 0 || len(s.pods[1].requests()) == 2 {
					t.Errorf("without a picker %d requests carry the client's choice, and %d went elsewhere", n, len(s.pods[1].requests())-2)
				}
			}
			if n := len(victim.requests()); n != 0 {
				t.Errorf("%d requests reached an address that a client made up", n)
			}
		})
	}
}

// What joins the picker's and the observer's view of a request is not the client's to choose.
func TestRequestIDsAreEnvoys(t *testing.T) {
	s := newSetup(t, "full-duplex.yaml", 1, 0)
	s.pods[0].answer = func(http.ResponseWriter, *http.Request) {}
	mustPost(t, http.StatusOK, s.url+chatPath, "{}", "X-Request-Id", "mine", "X-Forwarded-For", "10.0.0.1", "X-Envoy-Max-Retries", "9")
	h := s.pods[0].requests()[0].header
	if id := h.Get("X-Request-Id"); id == "mine" || len(id) < 32 || h.Get("X-Envoy-Max-Retries") != "" {
		t.Errorf("the pod reads x-request-id %q, x-envoy-max-retries %q", id, h.Get("X-Envoy-Max-Retries"))
	}
}

// A client that leaves takes its request away from the pod.
func TestClientLeaves(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			s := newSetup(t, file, 1, 0)
			gone := make(chan struct{})
			s.pods[0].answer = func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				close(gone)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, err := post(ctx, s.url+chatPath, "{}"); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("err = %v", err)
			}
			select {
			case <-gone:
			case <-time.After(5 * time.Second):
				t.Error("the pod still works for it")
			}
			eventually(t, 10*time.Second, "the picker to be left too", func() error {
				// Envoy closes observing streams a little later.
				if n := s.stat(t, "cluster.grapevine.upstream_rq_active", ""); n != 0 {
					return fmt.Errorf("%d streams", n)
				}
				return nil
			})
		})
	}
}
