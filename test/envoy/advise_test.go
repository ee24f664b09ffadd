package envoy

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
)

// watched is advise.yaml in front of pods: the constant picker is the other router, and our gateway watches.
type watched struct {
	*proxy
	router, recorder *cluster.Process
	status           string // base URL of the recorder's
	pods             []*pod
	addresses        []string
}

// startRecorder runs a gateway that watches.
func startRecorder(t *testing.T, listen, admin string, endpoints []string) *cluster.Process {
	t.Helper()
	return start(t, program(t, binVar), "gateway", logDir(t), "gateway", "--listen=", "--admin-listen", admin, "--gossip-enabled=false",
		"--endpoints", strings.Join(endpoints, ","), "--ext-proc-listen", listen, "--ext-proc-advise")
}

// newWatched starts it; without a recorder nothing listens where Envoy looks for one.
func newWatched(t *testing.T, recording bool) *watched {
	t.Helper()
	w := &watched{}
	w.pods, w.addresses = startPods(t, 2)
	p := ports(t, 3)
	w.status = "http://" + local(p[2])
	b := readBootstrap(t, "advise.yaml")
	b.endpoints("pods", w.addresses...)
	b.endpoints("other-router", local(p[0]))
	b.endpoints("grapevine", local(p[1]))
	w.router = startConstant(t, local(p[0]), w.addresses[1], w.addresses[0])
	if recording {
		w.recorder = startRecorder(t, local(p[1]), local(p[2]), w.addresses)
	}
	w.proxy = startEnvoy(t, b)
	if recording {
		w.healthy(t, "grapevine", 1)
	}
	return w
}

// echo answers with what it was sent.
func echo(bodies map[string][]byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(bodies[r.Header.Get("X-Body")]) }
}

// sent are the requests with a body at the pod that the other router chooses. A gateway that starts asks pods for their models
// besides.
func (w *watched) sent(body string) []seen {
	return slices.DeleteFunc(slices.Clone(w.pods[1].requests()), func(s seen) bool { return s.header.Get("X-Body") != body })
}

// passesWhole sends bodies of all sizes both ways, and a stream, and compares what arrives with what was sent.
func (w *watched) passesWhole(t *testing.T) {
	t.Helper()
	rng := rand.NewChaCha8([32]byte{1})
	bodies := map[string][]byte{}
	for name, size := range map[string]int{"empty": 0, "small": 100, "128 KiB": 128 << 10, "1 MiB": 1 << 20, "8 MiB": 8 << 20} {
		body := make([]byte, size)
		_, _ = rng.Read(body)
		bodies[name] = body
	}
	w.pods[1].answer = echo(bodies)
	altered := 0
	for name, body := range bodies {
		before := len(w.sent(name))
		a := mustPost(t, http.StatusOK, w.url+chatPath, string(body), "X-Body", name)
		got := w.sent(name)
		switch {
		case len(got) != before+1:
			t.Errorf("%s: %d requests at the pod that the other router chose, want 1", name, len(got)-before)
		case got[before].sum != sha256.Sum256(body), a.body != string(body):
			altered++
		}
	}
	w.pods[1].answer = nil
	a := mustPost(t, http.StatusOK, w.url+chatPath, "{}")
	if a.body != wholeStream() {
		altered++
	}
	if altered > 0 {
		t.Errorf("%d of %d bodies were altered", altered, len(bodies)+1)
	}
}

func TestAdviseAltersNothing(t *testing.T) {
	for name, recording := range map[string]bool{"with a recorder": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			w := newWatched(t, recording)
			w.passesWhole(t)
			if n := w.stat(t, "http.openai.ext_proc.", "streams_started"); n == 0 {
				t.Error("Envoy opened no stream")
			}
			if recording {
				w.saw(t, 6)
			}
		})
	}
}

func TestAdviseRecorderKilled(t *testing.T) {
	w := newWatched(t, true)
	w.pods[1].release = make(chan struct{})
	running := openStream(t, w.url)
	running.first(t)
	w.recorder.Kill()
	close(w.pods[1].release)
	running.rest(t)
	w.pods[1].release = nil
	sent := time.Now()
	w.passesWhole(t)
	t.Logf("all bodies pass without the recorder in %v", time.Since(sent).Round(time.Millisecond))
	if err := w.recorder.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the recorder to be back", func() error {
		_, err := get(w.status + "/health")
		return err
	})
	w.healthy(t, "grapevine", 1)
	w.passesWhole(t)
	w.saw(t, 6)
}

// saw waits until the recorder has seen requests to their ends.
func (w *watched) saw(t *testing.T, requests int) {
	t.Helper()
	eventually(t, 10*time.Second, "the recorder to have seen all", func() error {
		a, err := adviceOf(w.status)
		if err == nil && (a.Requests != requests || a.InProgress > 0) {
			err = fmt.Errorf("it says %+v", a)
		}
		return err
	})
}

// A recorder that hangs takes nothing in; requests go on all the same, and Envoy soon leaves it alone.
func TestAdviseRecorderHangs(t *testing.T) {
	w := newWatched(t, true)
	w.healthy(t, "grapevine", 1)
	w.pods[1].release = make(chan struct{})
	running := openStream(t, w.url)
	running.first(t)
	if err := w.recorder.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.recorder.Signal(syscall.SIGCONT) }()
	close(w.pods[1].release)
	running.rest(t)
	w.pods[1].release = nil
	slowest := time.Duration(0)
	for start := time.Now(); time.Since(start) < 6*time.Second; {
		sent := time.Now()
		mustPost(t, http.StatusOK, w.url+chatPath, strings.Repeat("x", 128<<10))
		slowest = max(slowest, time.Since(sent)-chunks*chunkGap)
	}
	w.healthy(t, "grapevine", 0)
	w.passesWhole(t)
	if slowest > time.Second {
		t.Errorf("a request waited %v", slowest)
	}

	// What is longer than any buffer passes too: the recorder is out of use.
	const size = 256 << 20
	w.pods[1].answer = func(rw http.ResponseWriter, _ *http.Request) {
		piece := strings.Repeat("x", 64<<10)
		for range size / len(piece) {
			_, _ = io.WriteString(rw, piece)
		}
	}
	sent := time.Now()
	if a := mustPost(t, http.StatusOK, w.url+chatPath, "{}"); len(a.body) != size {
		t.Errorf("%d of %d bytes", len(a.body), size)
	}
	t.Logf("slowest request of 128 KiB %v, %d MiB in %v, Envoy has %d MiB allocated", slowest.Round(time.Millisecond),
		size>>20, time.Since(sent).Round(time.Millisecond), w.stat(t, "server.memory_allocated", "")>>20)
}

// Even what is longer than any buffer waits only until Envoy notices that the recorder hangs.
func TestAdviseLongAnswerToHungRecorder(t *testing.T) {
	w := newWatched(t, true)
	w.healthy(t, "grapevine", 1)
	const size = 256 << 20
	w.pods[1].answer = func(rw http.ResponseWriter, _ *http.Request) {
		piece := strings.Repeat("x", 64<<10)
		for range size / len(piece) {
			_, _ = io.WriteString(rw, piece)
		}
	}
	if err := w.recorder.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.recorder.Signal(syscall.SIGCONT) }()
	sent := time.Now()
	if a := mustPost(t, http.StatusOK, w.url+chatPath, "{}"); len(a.body) != size {
		t.Errorf("%d of %d bytes", len(a.body), size)
	}
	if took := time.Since(sent); took > 10*time.Second {
		t.Errorf("it took %v", took)
	} else {
		t.Logf("%d MiB in %v", size>>20, took.Round(time.Millisecond))
	}
}
