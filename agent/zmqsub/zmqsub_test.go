package zmqsub_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/agent/zmqsub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a publisher as vLLM's: PUB, and a ROUTER that replays a ring. The
// mutex stands in for its one thread.
type engine struct {
	t           *testing.T
	zctx        *zmq.Context
	live, rep   string
	topic       string
	withTopic   bool // replay answers carry the topic (vLLM from v0.26)
	pub, router *zmq.Socket
	done        chan struct{}
	stopped     chan struct{}

	mu   sync.Mutex // guards what follows, and the sockets
	next uint64
	ring map[uint64][]byte
	drop map[uint64]int // replay answers lost on the way, how often; endMarker for the marker
}

const endMarker = ^uint64(0)

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func newEngine(t *testing.T, live, rep string) *engine {
	t.Helper()
	e := &engine{t: t, live: live, rep: rep, topic: "kv@pod", withTopic: true, ring: make(map[uint64][]byte), drop: make(map[uint64]int)}
	e.start(false)
	t.Cleanup(e.stop)
	return e
}

func (e *engine) start(connect bool) {
	e.t.Helper()
	var err error
	check := func(what string) {
		if err != nil {
			e.t.Fatalf("%s: %v", what, err)
		}
	}
	e.zctx, err = zmq.NewContext()
	check("context")
	e.pub, err = e.zctx.NewSocket(zmq.PUB)
	check("PUB")
	e.router, err = e.zctx.NewSocket(zmq.ROUTER)
	check("ROUTER")
	for _, s := range []*zmq.Socket{e.pub, e.router} {
		err = s.SetLinger(0)
		check("linger")
		err = s.SetIpv6(true)
		check("IPv6")
	}
	if connect {
		err = e.pub.Connect(e.live)
	} else {
		err = e.pub.Bind(e.live)
	}
	check("open " + e.live)
	err = e.router.Bind(e.rep)
	check("bind " + e.rep)
	e.done, e.stopped = make(chan struct{}), make(chan struct{})
	go e.serve()
}

func (e *engine) serve() {
	defer close(e.stopped)
	for {
		select {
		case <-e.done:
			return
		case <-time.After(time.Millisecond):
		}
		e.mu.Lock()
		if frames, err := e.router.RecvMessageBytes(zmq.DONTWAIT); err == nil && len(frames) == 3 && len(frames[1]) == 0 {
			e.answer(frames[0], binary.BigEndian.Uint64(frames[2]))
		}
		e.mu.Unlock()
	}
}

func (e *engine) answer(to []byte, from uint64) {
	send := func(seq uint64, payload []byte) {
		if e.drop[seq] > 0 {
			e.drop[seq]--
			return
		}
		frames := []any{to, []byte{}}
		if e.withTopic {
			topic := []byte(e.topic)
			if seq == endMarker {
				topic = []byte{}
			}
			frames = append(frames, topic)
		}
		frames = append(frames, binary.BigEndian.AppendUint64(nil, seq), payload)
		if _, err := e.router.SendMessage(frames...); err != nil {
			e.t.Errorf("replay: %v", err)
		}
	}
	for seq := from; seq < e.next; seq++ {
		if p, ok := e.ring[seq]; ok {
			send(seq, p)
		}
	}
	send(endMarker, []byte{})
}

func (e *engine) publish(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for range n {
		p := fmt.Appendf(nil, "batch %d", e.next)
		e.ring[e.next] = p
		if _, err := e.pub.SendMessage(e.topic, binary.BigEndian.AppendUint64(nil, e.next), p); err != nil {
			e.t.Errorf("publish: %v", err)
		}
		e.next++
	}
}

// forget makes the ring lack these batches.
func (e *engine) forget(seqs ...uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range seqs {
		delete(e.ring, s)
	}
}

func (e *engine) stop() {
	if e.zctx == nil {
		return
	}
	close(e.done)
	<-e.stopped
	e.pub.Close()
	e.router.Close()
	if err := e.zctx.Term(); err != nil {
		e.t.Errorf("end context: %v", err)
	}
	e.zctx = nil
}

// restart is a new process on the same ports.
func (e *engine) restart() {
	e.stop()
	e.next, e.ring = 0, make(map[uint64][]byte)
	e.start(false)
}

func subscribe(t *testing.T, cfg zmqsub.Config) *zmqsub.Subscriber {
	t.Helper()
	s, err := zmqsub.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

func next(t *testing.T, s *zmqsub.Subscriber) zmqsub.Event {
	t.Helper()
	select {
	case e, ok := <-s.Events():
		if !ok {
			t.Fatal("events ended")
		}
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event in 20 s")
	}
	return zmqsub.Event{}
}

// expect reads events of this kind and checks that their numbers are first to
// last and that they are the right batches.
func expect(t *testing.T, s *zmqsub.Subscriber, kind zmqsub.Kind, first, last uint64) {
	t.Helper()
	for seq := first; seq <= last; seq++ {
		e := next(t, s)
		if e.Kind != kind || e.Message.Seq != seq || string(e.Message.Payload) != fmt.Sprintf("batch %d", seq) {
			t.Fatalf("got kind %d, number %d, %q; want kind %d, number %d", e.Kind, e.Message.Seq, e.Message.Payload, kind, seq)
		}
	}
}

func expectKind(t *testing.T, s *zmqsub.Subscriber, kind zmqsub.Kind) zmqsub.Event {
	t.Helper()
	e := next(t, s)
	if e.Kind != kind {
		t.Fatalf("got %+v, want kind %d", e, kind)
	}
	return e
}

// connected waits until the subscription is in place: the first batches of a slow
// joiner are lost.
func connected(t *testing.T, s *zmqsub.Subscriber, e *engine) (first uint64) {
	t.Helper()
	expectKind(t, s, zmqsub.Connected)
	for {
		e.publish(1)
		select {
		case ev := <-s.Events():
			if ev.Kind != zmqsub.Live {
				t.Fatalf("got %+v, want a live message", ev)
			}
			// Let what was published meanwhile come in.
			for ev.Message.Seq+1 < e.next {
				ev = expectKind(t, s, zmqsub.Live)
			}
			return e.next
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func TestLateJoinerGetsReplayThenLive(t *testing.T) {
	for _, mode := range []struct {
		name      string
		host      string
		withTopic bool
	}{
		{"IPv4, topic in the replay", "127.0.0.1", true},
		{"IPv6, no topic in the replay", "[::1]", false},
		{"name of both, engine on IPv4", "localhost", true},
	} {
		t.Run(mode.name, func(t *testing.T) {
			l, err := net.Listen("tcp", mode.host+":0")
			if err != nil {
				t.Skipf("this host has no %s: %v", mode.host, err)
			}
			l.Close()
			endpoint := func() string { return "tcp://" + strings.Replace(freePort(t), "127.0.0.1", mode.host, 1) }
			live, rep := endpoint(), endpoint()
			e := newEngine(t, strings.Replace(live, "localhost", "127.0.0.1", 1), strings.Replace(rep, "localhost", "127.0.0.1", 1))
			e.withTopic = mode.withTopic
			e.publish(1000)
			s := subscribe(t, zmqsub.Config{Endpoint: live, Replay: rep, Topic: e.topic})
			n := connected(t, s, e)
			s.Replay(0)
			expect(t, s, zmqsub.Replayed, 0, n-1)
			r := expectKind(t, s, zmqsub.ReplayDone).Replay
			if r.Next != n || r.Missing != nil || !r.Complete {
				t.Errorf("replay ended as %+v, want all up to %d", r, n)
			}
			e.publish(3)
			expect(t, s, zmqsub.Live, n, n+2)
		})
	}
}

func TestDroppedReplayMessagesAreAskedAgain(t *testing.T) {
	e := newEngine(t, "tcp://"+freePort(t), "tcp://"+freePort(t))
	e.publish(100)
	e.forget(0, 1, 2, 50)                                      // ring start and a burned number
	e.drop = map[uint64]int{20: 1, 21: 1, 99: 1, endMarker: 1} // on the way
	s := subscribe(t, zmqsub.Config{Endpoint: e.live, Replay: e.rep, Idle: 200 * time.Millisecond})
	expectKind(t, s, zmqsub.Connected)
	s.Replay(0)
	expect(t, s, zmqsub.Replayed, 3, 49)
	expect(t, s, zmqsub.Replayed, 51, 99)
	r := expectKind(t, s, zmqsub.ReplayDone).Replay
	want := []zmqsub.Range{{First: 0, Last: 2}, {First: 50, Last: 50}}
	if len(r.Missing) != 2 || r.Missing[0] != want[0] || r.Missing[1] != want[1] || r.Next != 100 || !r.Complete {
		t.Errorf("replay ended as %+v, want missing %v and next 100", r, want)
	}
	if got := s.Stats(); got.Replays != 1 || got.ReplayAsks < 3 || got.Replayed != 96 {
		t.Errorf("stats %+v, want 1 replay of 96 messages in at least 3 asks", got)
	}
}

func TestLiveMessagesWaitForTheReplay(t *testing.T) {
	e := newEngine(t, "tcp://"+freePort(t), "tcp://"+freePort(t))
	s := subscribe(t, zmqsub.Config{Endpoint: e.live, Replay: e.rep, Idle: 300 * time.Millisecond})
	n := connected(t, s, e)
	e.publish(5) // live, handed over before the replay
	expect(t, s, zmqsub.Live, n, n+4)
	e.mu.Lock()
	e.drop[endMarker] = 10 // the replay lasts until it is idle
	e.mu.Unlock()
	s.Replay(n + 4)
	expect(t, s, zmqsub.Replayed, n+4, n+4)
	e.publish(5)
	// The second request picks up what came meanwhile; what is left follows live.
	var seqs []uint64
	done := false
	for len(seqs) < 5 {
		ev := next(t, s)
		if ev.Kind == zmqsub.ReplayDone {
			done = true
			continue
		}
		if (ev.Kind == zmqsub.Live) != done {
			t.Fatalf("got kind %d, replay over: %v", ev.Kind, done)
		}
		seqs = append(seqs, ev.Message.Seq)
	}
	for i, seq := range seqs {
		if seq != n+5+uint64(i) {
			t.Errorf("numbers %v, want %d to %d, each once", seqs, n+5, n+9)
			break
		}
	}
}

func TestPublisherRestartsOnTheSamePort(t *testing.T) {
	e := newEngine(t, "tcp://"+freePort(t), "tcp://"+freePort(t))
	s := subscribe(t, zmqsub.Config{Endpoint: e.live, Replay: e.rep, Idle: 300 * time.Millisecond})
	connected(t, s, e)
	e.restart()
	expectKind(t, s, zmqsub.Disconnected)
	n := connected(t, s, e)
	s.Replay(0)
	expect(t, s, zmqsub.Replayed, 0, n-1)
	expectKind(t, s, zmqsub.ReplayDone)

	e.stop() // nobody answers now
	expectKind(t, s, zmqsub.Disconnected)
	s.Replay(5)
	if r := expectKind(t, s, zmqsub.ReplayDone).Replay; r.Answered || r.Complete || r.Next != 5 {
		t.Errorf("replay from a dead engine ended as %+v, want no answer", r)
	}
}

func TestListenMode(t *testing.T) {
	dir := t.TempDir()
	live, rep := "ipc://"+filepath.Join(dir, "live"), "tcp://"+freePort(t)
	s := subscribe(t, zmqsub.Config{Endpoint: live, Listen: true, Topic: "mine"})
	e := &engine{t: t, live: live, rep: rep, topic: "mine", ring: make(map[uint64][]byte)}
	e.start(true)
	t.Cleanup(e.stop)
	connected(t, s, e)
	e.topic = "mine too" // ZMQ matches prefixes
	e.publish(3)
	e.topic = "mine"
	e.publish(1)
	expect(t, s, zmqsub.Live, e.next-1, e.next-1)
	if got := s.Stats().OtherTopic; got != 3 {
		t.Errorf("%d messages of another topic, want 3", got)
	}
	s.Replay(0)
	if r := expectKind(t, s, zmqsub.ReplayDone).Replay; r.Answered {
		t.Errorf("replay without an endpoint ended as %+v", r)
	}
}

func TestForeignMessagesAreCounted(t *testing.T) {
	e := newEngine(t, "tcp://"+freePort(t), "tcp://"+freePort(t))
	s := subscribe(t, zmqsub.Config{Endpoint: e.live})
	n := connected(t, s, e)
	e.mu.Lock()
	for _, frames := range [][]any{{""}, {"t", "1234567", "p"}, {"t", "12345678", ""}, {"a", "b", "c", "d"}} {
		if _, err := e.pub.SendMessage(frames...); err != nil {
			t.Fatal(err)
		}
	}
	e.mu.Unlock()
	e.publish(1)
	expect(t, s, zmqsub.Live, n, n)
	if got := s.Stats().BadFrames; got != 4 {
		t.Errorf("%d bad messages counted, want 4", got)
	}
}

func TestEndpointFaults(t *testing.T) {
	for _, cfg := range []zmqsub.Config{
		{}, {Endpoint: "127.0.0.1:5557"}, {Endpoint: "tcp://host"}, {Endpoint: "tcp://h:1", Replay: "inproc://x"}, {Endpoint: "ipc://"},
	} {
		if _, err := zmqsub.New(cfg); err == nil || !strings.Contains(err.Error(), "give tcp://host:port or ipc://path") {
			t.Errorf("%+v: got %v, want an error with the remedy", cfg, err)
		}
	}
	addr := freePort(t)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s, err := zmqsub.New(zmqsub.Config{Endpoint: "tcp://" + addr, Listen: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "taken by another process") {
		t.Errorf("Run on a taken port: got %v, want an error that says so", err)
	}
}

func BenchmarkLive(b *testing.B) {
	zctx, err := zmq.NewContext()
	if err != nil {
		b.Fatal(err)
	}
	pub, err := zctx.NewSocket(zmq.PUB)
	if err != nil {
		b.Fatal(err)
	}
	endpoint := "ipc://" + filepath.Join(b.TempDir(), "pub")
	if err := pub.Bind(endpoint); err != nil {
		b.Fatal(err)
	}
	s, err := zmqsub.New(zmqsub.Config{Endpoint: endpoint})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	<-s.Events()                       // connected
	time.Sleep(100 * time.Millisecond) // subscription in place
	payload := make([]byte, 1500)
	seq := make([]byte, 8)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := pub.SendMessage("topic", seq, payload); err != nil {
			b.Fatal(err)
		}
		<-s.Events()
	}
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
	if err := pub.SetLinger(0); err != nil {
		b.Error(err)
	}
	pub.Close()
	if err := zctx.Term(); err != nil {
		b.Error(err)
	}
}
