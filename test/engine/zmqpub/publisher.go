// Package zmqpub publishes the KV events of the emulated engine over ZeroMQ the
// way vLLM's ZmqEventPublisher does: a PUB socket with three frames a batch
// (topic, sequence number, payload) and a ROUTER socket that replays the newest
// batches on request.
//
//	live    topic | seq, 8 bytes big-endian, from 0 | MessagePack batch
//	ask     "" | first seq wanted, big-endian        (from a DEALER)
//	replay  "" | topic | seq | batch                 (topic from vLLM 0.26 on)
//	end     "" | "" | ff x 8 | ""                    (one frame less before 0.26)
//
// It is a shell around [Form.AppendBatch]. One goroutine, Run, owns the sockets;
// it sleeps in zmq_poll and is woken through an inproc pair, so an idle publisher
// costs nothing.
package zmqpub

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

// vLLM's defaults for the same settings.
const (
	DefaultBufferSteps = 10_000
	highWaterMark      = 100_000
	maxQueued          = 100_000 // batches between the scheduler and Run
)

// Config says where and how to publish.
type Config struct {
	// Endpoint of the PUB socket for rank 0, tcp:// or ipc://. As in vLLM it is
	// bound if it contains "*" or "::" or is ipc://, and connected otherwise.
	// With port 0 it is always bound, to a free port.
	Endpoint string
	// ReplayEndpoint of the ROUTER socket for rank 0, always bound. Empty: no replay.
	ReplayEndpoint string
	Topic          string
	Rank           int // data-parallel rank: added to both ports unless they are 0
	BufferSteps    int // batches kept for replay; 0 means DefaultBufferSteps
	Form           Form
	// TopiclessReplay answers replays without the topic, as vLLM up to 0.25.
	TopiclessReplay bool
}

// Publisher sends batches in order. Publish may be called from any goroutine.
type Publisher struct {
	cfg    Config
	zctx   *zmq.Context
	pub    *zmq.Socket
	router *zmq.Socket // nil without replay
	woken  *zmq.Socket // Run's end of the pair

	endpoint, replay string

	mu     sync.Mutex // guards the fields below; it also lends wake to one goroutine at a time
	wake   *zmq.Socket
	queue  []batch
	seq    uint64
	closed bool
}

type batch struct {
	seq    uint64
	at     time.Time
	events []pool.Event
}

// Open makes the sockets, so that Endpoints is known; nothing is sent before
// Run. Run closes what Open made; without Run, call Close.
func Open(cfg Config) (*Publisher, error) {
	if cfg.BufferSteps <= 0 {
		cfg.BufferSteps = DefaultBufferSteps
	}
	zctx, err := zmq.NewContext()
	if err != nil {
		return nil, fmt.Errorf("make ZeroMQ context: %w", err)
	}
	p := &Publisher{cfg: cfg, zctx: zctx}
	if err := p.open(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Publisher) open() (err error) {
	if p.woken, err = p.socket(zmq.PAIR, 0); err != nil {
		return err
	}
	if p.wake, err = p.socket(zmq.PAIR, 0); err != nil {
		return err
	}
	if err = errors.Join(p.woken.Bind("inproc://wake"), p.wake.Connect("inproc://wake")); err != nil {
		return fmt.Errorf("join wake-up pair: %w", err)
	}
	if p.pub, err = p.socket(zmq.PUB, highWaterMark); err != nil {
		return err
	}
	at, err := rankEndpoint(p.cfg.Endpoint, p.cfg.Rank)
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	if p.endpoint, err = attach(p.pub, at, binds(at)); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	if p.cfg.ReplayEndpoint == "" {
		return nil
	}
	// As vLLM 0.33: room for a whole replay, so that a slow reader loses nothing.
	if p.router, err = p.socket(zmq.ROUTER, 2*(p.cfg.BufferSteps+1)); err != nil {
		return err
	}
	if at, err = rankEndpoint(p.cfg.ReplayEndpoint, p.cfg.Rank); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	if p.replay, err = attach(p.router, at, true); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

func (p *Publisher) socket(kind zmq.Type, hwm int) (*zmq.Socket, error) {
	s, err := p.zctx.NewSocket(kind)
	if err != nil {
		return nil, fmt.Errorf("make %s socket: %w", kind, err)
	}
	if err := errors.Join(s.SetLinger(0), s.SetSndhwm(hwm), s.SetRcvhwm(hwm)); err != nil {
		return nil, errors.Join(fmt.Errorf("set up %s socket: %w", kind, err), s.Close())
	}
	return s, nil
}

// Endpoints are the addresses in use, with free ports filled in; replay is empty
// without one.
func (p *Publisher) Endpoints() (events, replay string) { return p.endpoint, p.replay }

// Publish queues one batch; an empty one is not sent. It never blocks: a batch
// beyond a backlog of 100,000 is lost, which a reader sees as a gap.
func (p *Publisher) Publish(at time.Time, events []pool.Event) {
	if len(events) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.seq
	p.seq++
	if p.closed || len(p.queue) >= maxQueued {
		return
	}
	p.queue = append(p.queue, batch{seq, at, events})
	if len(p.queue) == 1 {
		p.signal()
	}
}

// signal wakes Run; the caller holds mu. A full pair means that it is awake.
func (p *Publisher) signal() {
	if !p.closed {
		_, _ = p.wake.SendBytes(nil, zmq.DONTWAIT)
	}
}

// Run sends and replays until ctx ends, then closes the sockets. What is queued
// at the end is lost, as vLLM's linger of 0 loses it.
func (p *Publisher) Run(ctx context.Context) error {
	defer p.Close()
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.signal()
	})
	defer stop()

	poller := zmq.NewPoller()
	poller.Add(p.woken, zmq.POLLIN)
	if p.router != nil {
		poller.Add(p.router, zmq.POLLIN)
	}
	ring := make([]sent, p.cfg.BufferSteps)
	next := uint64(0)
	for {
		ready, err := poller.Poll(-1)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for events: %w", err)
		}
		if next, err = p.flush(ring, next); err != nil {
			return err
		}
		for _, r := range ready {
			m, err := r.Socket.RecvMessageBytes(zmq.DONTWAIT)
			if err == nil && r.Socket == p.router {
				p.serve(m, ring, next)
			}
		}
	}
}

// sent is a batch kept for replay, at its sequence number modulo the ring's size.
type sent struct {
	seq     uint64
	payload []byte // nil: never used
}

func (p *Publisher) flush(ring []sent, next uint64) (uint64, error) {
	p.mu.Lock()
	queue := p.queue
	p.queue = nil
	p.mu.Unlock()
	for _, b := range queue {
		ts := float64(b.at.UnixMicro()) / 1e6
		payload := p.cfg.Form.AppendBatch(nil, ts, p.cfg.Rank, b.events)
		ring[b.seq%uint64(len(ring))] = sent{b.seq, payload}
		if _, err := p.pub.SendMessage(p.cfg.Topic, seqFrame(b.seq), payload); err != nil {
			return next, fmt.Errorf("publish batch %d: %w", b.seq, err)
		}
		next = b.seq + 1
	}
	return next, nil
}

// serve answers one replay request: identity, delimiter, start. Anything else is
// left without an answer, as vLLM leaves it.
func (p *Publisher) serve(m [][]byte, ring []sent, next uint64) {
	if len(m) != 3 {
		return
	}
	start, size := uint64(0), uint64(len(ring))
	for _, b := range m[2] {
		if start > next {
			break
		}
		start = start<<8 | uint64(b)
	}
	if next > size {
		start = max(start, next-size)
	}
	reply := func(topic string, seq, payload []byte) {
		// An asker that has gone away is dropped by the ROUTER without an error.
		if p.cfg.TopiclessReplay {
			_, _ = p.router.SendMessage(m[0], "", seq, payload)
		} else {
			_, _ = p.router.SendMessage(m[0], "", topic, seq, payload)
		}
	}
	for ; start < next; start++ {
		if s := ring[start%size]; s.payload != nil && s.seq == start {
			reply(p.cfg.Topic, seqFrame(start), s.payload)
		}
	}
	reply("", seqFrame(^uint64(0)), nil)
}

func seqFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// Close closes the sockets of a publisher that is not running.
func (p *Publisher) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	for _, s := range []*zmq.Socket{p.pub, p.router, p.woken, p.wake} {
		if s != nil {
			_ = s.Close()
		}
	}
	_ = p.zctx.Term()
}

// binds is vLLM's rule for the PUB socket, and true for port 0, to which nobody
// can connect.
func binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") ||
		strings.HasPrefix(endpoint, "ipc://") || strings.HasSuffix(endpoint, ":0")
}

// attach binds or connects s and returns the address in use.
func attach(s *zmq.Socket, endpoint string, bind bool) (string, error) {
	if !bind {
		if err := s.Connect(endpoint); err != nil {
			return "", fmt.Errorf("connect to %s: %w", endpoint, err)
		}
		return endpoint, nil
	}
	if err := s.Bind(endpoint); err != nil {
		return "", fmt.Errorf("bind %s: %w", endpoint, err)
	}
	if !strings.HasSuffix(endpoint, ":0") {
		return endpoint, nil
	}
	bound, err := s.GetLastEndpoint()
	if err != nil {
		return "", fmt.Errorf("look up the port of %s: %w", endpoint, err)
	}
	return endpoint[:len(endpoint)-1] + bound[strings.LastIndexByte(bound, ':')+1:], nil
}

// rankEndpoint moves a rank's endpoint: port + rank for TCP, except for port 0.
func rankEndpoint(endpoint string, rank int) (string, error) {
	switch {
	case strings.HasPrefix(endpoint, "ipc://"):
		if rank > 0 {
			return "", fmt.Errorf("endpoint %q: ipc:// serves rank 0 only (as in vLLM), use tcp://", endpoint)
		}
		return endpoint, nil
	case strings.HasPrefix(endpoint, "tcp://"):
		colon := strings.LastIndexByte(endpoint, ':')
		port, err := strconv.ParseUint(endpoint[colon+1:], 10, 16)
		if err != nil {
			return "", fmt.Errorf("endpoint %q: want tcp://HOST:PORT: %w", endpoint, err)
		}
		if rank == 0 || port == 0 {
			return endpoint, nil
		}
		return fmt.Sprintf("%s:%d", endpoint[:colon], port+uint64(rank)), nil
	default:
		return "", fmt.Errorf("endpoint %q: want tcp://HOST:PORT or ipc://PATH", endpoint)
	}
}
