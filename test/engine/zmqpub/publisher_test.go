package zmqpub

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	zmq "github.com/pebbe/zmq4"
	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start opens a publisher on loopback and runs it until the test ends.
func start(t *testing.T, cfg Config) *Publisher {
	t.Helper()
	cfg.Endpoint, cfg.ReplayEndpoint = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return p
}

func dial(t *testing.T, kind zmq.Type, endpoint string) *zmq.Socket {
	t.Helper()
	zctx, err := zmq.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	s, err := zctx.NewSocket(kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Close()
		_ = zctx.Term()
	})
	_ = s.SetLinger(0)
	_ = s.SetRcvtimeo(5 * time.Second)
	if kind == zmq.SUB {
		_ = s.SetSubscribe("")
	}
	if err := s.Connect(endpoint); err != nil {
		t.Fatal(err)
	}
	return s
}

func recv(t *testing.T, s *zmq.Socket) [][]byte {
	t.Helper()
	m, err := s.RecvMessageBytes(0)
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return m
}

// ask sends a replay request and collects the answer up to the end marker.
func ask(t *testing.T, s *zmq.Socket, start []byte, frames int) (seqs []uint64, end [][]byte) {
	t.Helper()
	if _, err := s.SendMessage("", start); err != nil {
		t.Fatal(err)
	}
	for {
		m := recv(t, s)
		if len(m) != frames {
			t.Fatalf("%d frames, want %d", len(m), frames)
		}
		seq := binary.BigEndian.Uint64(m[frames-2])
		if seq == ^uint64(0) {
			return seqs, m
		}
		seqs = append(seqs, seq)
	}
}

var cleared = []pool.Event{{Kind: pool.Cleared}}

func TestLive(t *testing.T) {
	p := start(t, Config{Topic: "kv@e@m", Rank: 3})
	events, _ := p.Endpoints()
	sub := dial(t, zmq.SUB, events)
	at := time.UnixMicro(1764430000125000)

	// PUB drops everything before the subscription is in place: send until heard.
	_ = sub.SetRcvtimeo(20 * time.Millisecond)
	var m [][]byte
	for len(m) == 0 {
		p.Publish(at, cleared)
		m, _ = sub.RecvMessageBytes(0)
	}
	_ = sub.SetRcvtimeo(5 * time.Second)
	if len(m) != 3 || string(m[0]) != "kv@e@m" || len(m[1]) != 8 {
		t.Fatalf("frames %q", m)
	}
	want := Form{}.AppendBatch(nil, 1764430000.125, 3, cleared)
	if !bytes.Equal(m[2], want) {
		t.Errorf("payload %x, want %x", m[2], want)
	}
	last := binary.BigEndian.Uint64(m[1])
	p.Publish(at, nil) // never sent, uses no number
	for range 100 {
		p.Publish(at, cleared)
	}
	for range 100 {
		if seq := binary.BigEndian.Uint64(recv(t, sub)[1]); seq != last+1 {
			t.Fatalf("sequence %d after %d", seq, last)
		}
		last++
	}
}

func TestReplay(t *testing.T) {
	seq := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	for _, c := range []struct {
		name    string
		sent    int
		start   []byte
		without bool
		want    []uint64
	}{
		{name: "nothing sent", start: seq(0)},
		{name: "from 0", sent: 3, start: seq(0), want: []uint64{0, 1, 2}},
		{name: "one byte is a number too", sent: 3, start: []byte{2}, want: []uint64{2}},
		{name: "empty start is 0", sent: 1, start: nil, want: []uint64{0}},
		{name: "long start with zeros", sent: 3, start: append(make([]byte, 9), 1), want: []uint64{1, 2}},
		{name: "beyond the newest", sent: 3, start: seq(3)},
		{name: "far beyond", sent: 3, start: bytes.Repeat([]byte{0xff}, 12)},
		{name: "older than the ring", sent: 9, start: seq(1), want: []uint64{5, 6, 7, 8}},
		{name: "before 0.26", sent: 1, start: seq(0), without: true, want: []uint64{0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, Config{Topic: "topic", BufferSteps: 4, TopiclessReplay: c.without})
			_, replay := p.Endpoints()
			for range c.sent {
				p.Publish(time.Unix(1, 0), cleared)
			}
			frames := 4
			if c.without {
				frames = 3
			}
			dealer := dial(t, zmq.DEALER, replay)
			if _, err := dealer.SendMessage("no delimiter"); err != nil { // gets no answer
				t.Fatal(err)
			}
			got, end := ask(t, dealer, c.start, frames)
			if len(got) != len(c.want) {
				t.Fatalf("replayed %v, want %v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Fatalf("replayed %v, want %v", got, c.want)
				}
			}
			if len(end[frames-1]) != 0 || !c.without && len(end[1]) != 0 {
				t.Errorf("end marker %x", end)
			}
		})
	}
}

func TestRankEndpoint(t *testing.T) {
	for _, c := range []struct {
		in   string
		rank int
		want string // empty: refused
		bind bool
	}{
		{"tcp://*:5557", 0, "tcp://*:5557", true},
		{"tcp://*:5557", 2, "tcp://*:5559", true},
		{"tcp://10.0.0.5:5557", 1, "tcp://10.0.0.5:5558", false},
		{"tcp://0.0.0.0:5557", 0, "tcp://0.0.0.0:5557", false},
		{"tcp://[::]:5557", 1, "tcp://[::]:5558", true},
		{"tcp://127.0.0.1:0", 3, "tcp://127.0.0.1:0", true},
		{"ipc:///tmp/x", 0, "ipc:///tmp/x", true},
		{"ipc:///tmp/x", 1, "", false},
		{"inproc://x", 0, "", false},
		{"tcp://nohost", 0, "", false},
	} {
		got, err := rankEndpoint(c.in, c.rank)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s rank %d: %q, %v; want %q", c.in, c.rank, got, err, c.want)
		}
		if err == nil && binds(got) != c.bind {
			t.Errorf("%s: bind = %v", got, binds(got))
		}
	}
}

func TestOpenFails(t *testing.T) {
	for _, cfg := range []Config{
		{Endpoint: "tcp://nowhere"},
		{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "bad"},
	} {
		if p, err := Open(cfg); err == nil {
			p.Close()
			t.Errorf("%+v opened", cfg)
		}
	}
}
