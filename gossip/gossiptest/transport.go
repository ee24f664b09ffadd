package gossiptest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	packetDepth = 1024
	streamDepth = 64
	// streamTimeout is the deadline of a new connection, as in gossip/mesh.
	streamTimeout = 2 * time.Second
)

// TransportConfig says how a TransportNetwork treats what it carries.
type TransportConfig struct {
	Seed   uint64        // of the random source for loss and jitter
	Loss   float64       // share of packets lost, 0 to 1; streams lose nothing
	Delay  time.Duration // one way, packets only
	Jitter time.Duration // added to Delay, uniform in [0, Jitter): packets overtake each other
	IPv6   bool          // nodes have addresses of fd00::/8 instead of 10.0.0.0/8
}

// TransportNetwork connects memberlist instances in memory, without sockets, so
// that they run inside a testing/synctest bubble. Unlike memberlist's own mock it
// buffers, so that a node that stopped reading never blocks the others.
//
// All methods may be called concurrently. memberlist draws its own random
// numbers, so runs are alike, not equal.
type TransportNetwork struct {
	mu    sync.Mutex // guards what follows
	cfg   TransportConfig
	rng   *rand.Rand
	nodes map[string]*Transport // by address
	cut   map[[2]string]bool    // from, to
	stats TransportStats
}

// TransportStats counts packets.
type TransportStats struct {
	Sent, Lost, Cut, Overflow uint64
}

// NewTransportNetwork makes a network without nodes.
func NewTransportNetwork(cfg TransportConfig) *TransportNetwork {
	return &TransportNetwork{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, 0)),
		nodes: make(map[string]*Transport), cut: make(map[[2]string]bool),
	}
}

// Transport adds a node with an address of its own.
func (n *TransportNetwork) Transport() *Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := len(n.nodes) + 1
	addr := &net.UDPAddr{IP: net.IPv4(10, 0, byte(i>>8), byte(i)).To4(), Port: 7946}
	if n.cfg.IPv6 {
		addr.IP = net.IP{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}
	}
	t := &Transport{
		net: n, addr: addr,
		packets: make(chan *memberlist.Packet, packetDepth),
		streams: make(chan net.Conn, streamDepth),
	}
	n.nodes[addr.String()] = t
	return t
}

// SetLoss changes the share of packets lost from now on.
func (n *TransportNetwork) SetLoss(loss float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cfg.Loss = loss
}

// Cut stops everything that goes from one address to another, or lets it
// through again. Cut both ways for a full partition.
func (n *TransportNetwork) Cut(from, to string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[[2]string{from, to}] = cut
}

// Stats returns the counters as they stand.
func (n *TransportNetwork) Stats() TransportStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// route finds the way of one packet; ok is false if it is lost.
func (n *TransportNetwork) route(from, to string) (dest *Transport, delay time.Duration, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stats.Sent++
	dest = n.nodes[to]
	switch {
	case dest == nil || dest.down || n.cut[[2]string{from, to}]:
		n.stats.Cut++
		return nil, 0, false
	case n.cfg.Loss > 0 && n.rng.Float64() < n.cfg.Loss:
		n.stats.Lost++
		return nil, 0, false
	}
	delay = n.cfg.Delay
	if n.cfg.Jitter > 0 {
		delay += time.Duration(n.rng.Int64N(int64(n.cfg.Jitter)))
	}
	return dest, delay, true
}

// Transport is one node's end of a TransportNetwork.
type Transport struct {
	net     *TransportNetwork
	addr    *net.UDPAddr
	packets chan *memberlist.Packet
	streams chan net.Conn
	down    bool // guarded by net.mu
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

// Addr is the node's address, "ip:port".
func (t *Transport) Addr() string { return t.addr.String() }

// FinalAdvertiseAddr implements [memberlist.Transport].
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.IP, t.addr.Port, nil
}

// WriteTo implements [memberlist.Transport]. Like UDP it never says what became
// of the packet.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	dest, delay, ok := t.net.route(t.Addr(), addr)
	if !ok {
		return now, nil
	}
	b = append([]byte(nil), b...)
	if delay == 0 {
		dest.deliver(b, t.addr)
	} else {
		time.AfterFunc(delay, func() { dest.deliver(b, t.addr) })
	}
	return now, nil
}

func (t *Transport) deliver(b []byte, from net.Addr) {
	select {
	case t.packets <- &memberlist.Packet{Buf: b, From: from, Timestamp: time.Now()}:
	default:
		t.net.mu.Lock()
		t.net.stats.Overflow++
		t.net.mu.Unlock()
	}
}

// WriteToAddress implements [memberlist.NodeAwareTransport].
func (t *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

var errRefused = errors.New("connection refused")

// DialTimeout implements [memberlist.Transport]. A dial across a cut fails after
// the time-out, one to a node that is down at once.
func (t *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	timeout = min(timeout, streamTimeout)
	t.net.mu.Lock()
	dest := t.net.nodes[addr]
	gone := dest == nil || dest.down
	cut := t.net.cut[[2]string{t.Addr(), addr}] || t.net.cut[[2]string{addr, t.Addr()}]
	t.net.mu.Unlock()
	switch {
	case gone:
		return nil, fmt.Errorf("dial %s: %w", addr, errRefused)
	case cut:
		time.Sleep(timeout)
		return nil, fmt.Errorf("dial %s: time-out", addr)
	}
	here, there := net.Pipe()
	if err := here.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	select {
	case dest.streams <- there:
		return here, nil
	default:
		return nil, fmt.Errorf("dial %s: %w: backlog full", addr, errRefused)
	}
}

// DialAddressTimeout implements [memberlist.NodeAwareTransport].
func (t *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// PacketCh implements [memberlist.Transport].
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements [memberlist.Transport].
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements [memberlist.Transport]: what still comes is dropped, new
// connections are refused, waiting ones are closed.
func (t *Transport) Shutdown() error {
	t.net.mu.Lock()
	t.down = true
	t.net.mu.Unlock()
	for {
		select {
		case c := <-t.streams:
			c.Close()
		default:
			return nil
		}
	}
}
