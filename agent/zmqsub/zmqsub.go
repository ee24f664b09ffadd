package zmqsub

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	zmq "github.com/pebbe/zmq4"
)

const (
	receiveDepth = 20_000   // messages in libzmq's queues, twice the usual replay buffer
	maxMessage   = 64 << 20 // bytes of one frame; a peer that sends more is cut off
	maxHeldMsgs  = 20_000
	maxHeldBytes = 16 << 20
	drainAtOnce  = 256 // messages read of one socket before the others are looked at
	eventDepth   = 256

	lookupTimeout = 5 * time.Second
)

// Config says where the events come from.
type Config struct {
	// Endpoint of the live stream: tcp://host:port, ipc://path. When listening, the
	// host is an address of this host or *.
	Endpoint string
	// Listen binds the endpoint instead of dialling it: for engines whose own
	// endpoint names a host, so that they connect (vLLM binds only with * or ::, and
	// ipc).
	Listen bool
	// Replay is the engine's replay endpoint, always dialled; empty: there is none.
	Replay string
	// Topic keeps only messages of exactly this topic; empty keeps all.
	Topic string
	// Idle ends a replay when nothing came for so long; 0 is 2 s.
	Idle time.Duration
	// Logger gets what is worth knowing; nil discards it.
	Logger *slog.Logger
}

// Message is one batch of events.
type Message struct {
	Topic   string
	Seq     uint64
	Payload []byte // for kvevent.Decode; the reader's own
	At      time.Time
}

// Kind says what an Event is.
type Kind uint8

// Kinds of events.
const (
	Live         Kind = iota // Message from the live stream
	Replayed                 // Message from a replay
	ReplayDone               // Replay says how it ended
	Connected                // to the live stream, for the first time or again
	Disconnected             // from the live stream; libzmq keeps trying
)

// Event is what Run hands over.
type Event struct {
	Kind    Kind
	Message Message
	Replay  Replay
}

// Subscriber reads one engine's (or DP rank's) sockets. Replay, Stats and Events
// may be called from any goroutine; Run once.
type Subscriber struct {
	cfg    Config
	log    *slog.Logger
	events chan Event

	mu      sync.Mutex // guards what follows; wake is used under it only
	wake    *zmq.Socket
	wanted  bool
	from    uint64
	counter Stats

	received, bytes atomic.Uint64
}

// Stats are counters since start.
type Stats struct {
	Received    uint64 // live messages
	Bytes       uint64 // of their payloads
	OtherTopic  uint64 // live messages of another topic
	BadFrames   uint64 // multi-part messages that are none of the protocol's
	HeldDropped uint64 // live messages dropped, too many during a replay
	Replays     uint64
	ReplayAsks  uint64 // requests, at least one a replay
	Replayed    uint64 // messages
	Connects    uint64
}

// New checks the configuration; it opens nothing.
func New(cfg Config) (*Subscriber, error) {
	if err := checkEndpoint("KV-event endpoint", cfg.Endpoint); err != nil {
		return nil, err
	}
	if cfg.Replay != "" {
		if err := checkEndpoint("replay endpoint", cfg.Replay); err != nil {
			return nil, err
		}
	}
	if cfg.Idle == 0 {
		cfg.Idle = 2 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Subscriber{cfg: cfg, log: cfg.Logger, events: make(chan Event, eventDepth)}, nil
}

// needsIPv6 says whether to switch IPv6 on, of which libzmq then prefers the
// addresses: a host with both would be dialled by IPv6, where publishers that bind
// tcp://* do not listen.
func needsIPv6(ctx context.Context, endpoint string) bool {
	host, _, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil || !strings.HasPrefix(endpoint, "tcp://") || host == "*" {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Is6()
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for _, ip := range ips {
		if ip.Unmap().Is4() {
			return false
		}
	}
	return err == nil
}

func checkEndpoint(what, e string) error {
	for _, scheme := range []string{"tcp://", "ipc://"} {
		if rest, ok := strings.CutPrefix(e, scheme); ok && rest != "" && (scheme == "ipc://" || strings.Contains(rest, ":")) {
			return nil
		}
	}
	return fmt.Errorf("%s %q: give tcp://host:port or ipc://path", what, e)
}

// Events is where Run hands over what it reads. It is closed when Run ends. A
// reader that stops reading stops the sockets.
func (s *Subscriber) Events() <-chan Event { return s.events }

// Replay asks for all batches from this number on. The answer comes as Replayed
// events and one ReplayDone; without a replay endpoint, ReplayDone alone. While a
// replay runs, one more can wait: a second call replaces it.
func (s *Subscriber) Replay(from uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted, s.from = true, from
	s.signal()
}

// signal wakes Run up; the caller holds mu.
func (s *Subscriber) signal() {
	if s.wake != nil {
		_, _ = s.wake.SendBytes(nil, zmq.DONTWAIT) // full: it is awake already
	}
}

// Stats returns the counters as they stand.
func (s *Subscriber) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counter
	c.Received, c.Bytes = s.received.Load(), s.bytes.Load()
	return c
}

func (s *Subscriber) count(f func(c *Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.counter)
}

// Run owns the sockets until ctx ends; then it returns nil. An error means that
// the sockets could not be opened.
func (s *Subscriber) Run(ctx context.Context) error {
	defer close(s.events)
	zctx, err := zmq.NewContext()
	if err != nil {
		return fmt.Errorf("make ZMQ context: %w", err)
	}
	l := &loop{Subscriber: s, done: ctx.Done(), zctx: zctx, poller: zmq.NewPoller(), ipv6: needsIPv6(ctx, s.cfg.Endpoint)}
	defer l.close()
	if err := l.open(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.signal()
	})()
	return l.run(ctx)
}
