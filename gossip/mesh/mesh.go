package mesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

const (
	reliableWorkers = 8
	reliableDepth   = 1024
	keyPollInterval = 5 * time.Second
	leaveTimeout    = time.Second
	// leaveSpread is how long a node that leaves keeps gossiping it: a few gossip
	// intervals.
	leaveSpread = 300 * time.Millisecond
)

// Errors of Send and SendReliable.
var (
	ErrUnknownNode = errors.New("no such node in the gossip mesh")
	ErrQueueFull   = errors.New("queue of reliable gossip messages is full")
	ErrNotRunning  = errors.New("gossip mesh is not running")
)

// Mesh is this process's place among the nodes. All methods may be called
// concurrently; Run once.
type Mesh struct {
	cfg   Config
	log   *slog.Logger
	logs  *logWriter
	trans memberlist.Transport
	own   *netTransport // trans, unless the caller brought one
	ring  *memberlist.Keyring
	meta  []byte
	inbox *inbox
	out   chan reliable

	strangers *strangers    // nil: this node does not look for any
	lost      chan struct{} // a picker has gone: join again soon

	keys     []byte // content of the key file as installed; watchKeys alone uses it
	keyFault string // what was last said to be wrong with it

	mu    sync.RWMutex // guards what follows
	ml    *memberlist.Memberlist
	peers map[uint64]peer

	sentPackets, sentBytes, receivedPackets, receivedBytes     atomic.Uint64
	sendErrors, reliableSent, reliableFailed, reliableOverflow atomic.Uint64
	joinFailures, foreignMeta, refused, keyReloads, keyErrors  atomic.Uint64
	conflicts                                                  atomic.Uint64
}

type peer struct {
	member Member
	node   memberlist.Node // a copy: memberlist changes its own in place
}

type reliable struct {
	node uint64
	b    []byte
}

// New reads the keys and binds the sockets; it starts nothing. The error says
// what is wrong and what to do, e.g. which line of the key file is no key, or
// that the port is taken.
func New(cfg Config) (*Mesh, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("gossip config: %w", err)
	}
	if cfg.NodeName == "" {
		cfg.NodeName = UniqueName("")
	}
	if cfg.InboxDepth == 0 {
		cfg.InboxDepth = handoffDepth(cfg.Role)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Mesh{
		cfg:   cfg,
		log:   cfg.Logger,
		logs:  &logWriter{log: cfg.Logger},
		meta:  meta{role: cfg.Role, wireVersion: wire.Version, seedFingerprint: cfg.SeedFingerprint, pool: cfg.Pool}.append(nil),
		inbox: newInbox(cfg.InboxDepth),
		out:   make(chan reliable, reliableDepth),
		peers: make(map[uint64]peer),
		lost:  make(chan struct{}, 1),
	}
	if cfg.KeyFile != "" {
		keys, content, err := readKeys(cfg.KeyFile)
		if err != nil {
			return nil, err
		}
		if m.ring, err = memberlist.NewKeyring(keys, keys[0]); err != nil {
			return nil, fmt.Errorf("make gossip keyring: %w", err)
		}
		m.keys = content
	}
	m.trans = cfg.Transport
	if m.trans == nil {
		own, err := listen(cfg.BindAddr, cfg.BindPort, cfg.AllowedCIDRs, &m.refused)
		if err != nil {
			return nil, err
		}
		// memberlist would not even admit this node to its own list.
		if ip, _, err := own.FinalAdvertiseAddr(cfg.AdvertiseAddr, cfg.AdvertisePort); err != nil {
			return nil, errors.Join(err, own.Shutdown())
		} else if !own.permits(ip) {
			return nil, errors.Join(fmt.Errorf("gossip config: own address %s is outside the allowed networks %v: add its network", ip, cfg.AllowedCIDRs), own.Shutdown())
		}
		m.own, m.trans = own, own
		if cfg.Role == RolePicker {
			m.strangers = newStrangers()
			own.sender = m.strangers.see
		}
	}
	return m, nil
}

// handoffDepth is how many packets wait, for memberlist and for the Handler.
func handoffDepth(r Role) int {
	if r == RolePicker {
		return 8192
	}
	return 1024
}

func (m *Mesh) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = m.cfg.NodeName
	c.Transport = m.trans
	c.Label = m.cfg.Label
	c.BindAddr = m.cfg.BindAddr
	c.AdvertiseAddr = m.cfg.AdvertiseAddr
	c.AdvertisePort = m.cfg.AdvertisePort
	c.ProbeInterval, c.ProbeTimeout = 500*time.Millisecond, 250*time.Millisecond
	c.SuspicionMult, c.SuspicionMaxTimeoutMult = 4, 3
	c.GossipInterval, c.GossipNodes = 100*time.Millisecond, 3
	c.GossipToTheDeadTime = 15 * time.Second
	c.PushPullInterval = 30 * time.Second
	c.TCPTimeout = 3 * time.Second
	c.UDPBufferSize = 1400
	c.HandoffQueueDepth = handoffDepth(m.cfg.Role)
	c.EnableCompression = false // LZW grows filters that are half full
	c.Keyring = m.ring
	c.Delegate = delegate{m}
	c.Events = events{m}
	c.Conflict = conflicts{m}
	c.Logger = log.New(m.logs, "", 0)
	if m.own != nil {
		c.CIDRsAllowed = m.own.allowed
	}
	return c
}

// Name is this node's name.
func (m *Mesh) Name() string { return m.cfg.NodeName }

// LocalAddr is the address that others reach this node by, "ip:port".
func (m *Mesh) LocalAddr() string {
	ip, port, err := m.trans.FinalAdvertiseAddr(m.cfg.AdvertiseAddr, m.cfg.AdvertisePort)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

// Close frees the sockets of a Mesh that was never run.
func (m *Mesh) Close() error { return m.trans.Shutdown() }

// Run takes part in the mesh until ctx ends, then says goodbye to the others,
// closes the sockets and returns nil. Any other end is an error.
func (m *Mesh) Run(ctx context.Context) error {
	if m.own != nil {
		m.own.start()
	}
	ml, err := memberlist.Create(m.memberlistConfig())
	if err != nil {
		return errors.Join(fmt.Errorf("start gossip: %w", err), m.trans.Shutdown())
	}
	m.setList(ml)
	m.log.Info("gossip started", slog.String(keyNode, m.cfg.NodeName), slog.String(keyRole, m.cfg.Role.String()),
		slog.String(keyPool, m.cfg.Pool), slog.String(keyAddr, m.LocalAddr()), slog.Bool("encrypted", m.ring != nil))
	if ip, _, err := m.trans.FinalAdvertiseAddr(m.cfg.AdvertiseAddr, m.cfg.AdvertisePort); m.ring == nil && err == nil && !ip.IsLoopback() {
		m.log.Warn("gossip is not encrypted, and anybody who reaches its port can take part", slog.String(keyRemedy, "give all nodes the same key file"))
	}

	// What is queued when ctx ends is still sent, the last words of an agent
	// among it; hence two contexts.
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var senders, others sync.WaitGroup
	for range reliableWorkers {
		senders.Go(func() { m.sendLoop(ctx) })
	}
	others.Go(func() { m.handle(stop) })
	others.Go(func() { m.keepJoined(ctx) })
	if m.strangers != nil {
		others.Go(func() { m.greetStrangers(ctx) })
	}
	others.Go(func() { m.watchKeys(ctx) })

	<-ctx.Done()
	senders.Wait()
	err = ml.Leave(leaveTimeout)
	if err == nil && ml.NumMembers() > 0 {
		time.Sleep(leaveSpread)
	}
	if err != nil {
		m.log.Debug("leave the gossip mesh", slog.Any(keyErr, err))
	}
	m.inbox.close()
	m.setList(nil)
	cancel()
	err = ml.Shutdown()
	others.Wait()
	if err != nil {
		return fmt.Errorf("stop gossip: %w", err)
	}
	return nil
}

func (m *Mesh) setList(ml *memberlist.Memberlist) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ml = ml
}

func (m *Mesh) list() *memberlist.Memberlist {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.ml
}

// handle feeds the Handler from one goroutine.
func (m *Mesh) handle(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.inbox.wake:
		}
		for ctx.Err() == nil {
			c, msg, ok := m.inbox.next()
			if !ok {
				break
			}
			now := time.Now()
			switch {
			case msg != nil:
				m.cfg.Handler.Message(now, msg)
			case c.up:
				m.cfg.Handler.NodeUp(now, c.member)
			default:
				m.cfg.Handler.NodeDown(now, c.member)
			}
		}
	}
}

// watchKeys installs the key file again when its content changes.
func (m *Mesh) watchKeys(ctx context.Context) {
	if m.ring == nil {
		return
	}
	tick := time.NewTicker(keyPollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.reloadKeys()
		}
	}
}

// reloadKeys keeps the keys in use when the file cannot be read or has a fault,
// and says each fault once.
func (m *Mesh) reloadKeys() {
	keys, content, err := readKeys(m.cfg.KeyFile)
	if err == nil && bytes.Equal(content, m.keys) {
		m.keyFault = ""
		return
	}
	if err == nil {
		err = installKeys(m.ring, keys)
	}
	if err != nil {
		if err.Error() != m.keyFault {
			m.keyFault = err.Error()
			m.keyErrors.Add(1)
			m.log.Error("gossip key file cannot be used, the old keys stay", slog.Any(keyErr, err))
		}
		return
	}
	m.keys, m.keyFault = content, ""
	m.keyReloads.Add(1)
	m.log.Info("gossip keys changed", slog.Int(keyCount, len(keys)))
}

// Send sends b to a node as one UDP packet; b is the caller's again when it
// returns. A nil error does not mean that it arrives. Errors: ErrUnknownNode,
// ErrNotRunning, or the socket's.
func (m *Mesh) Send(node uint64, b []byte) error {
	m.mu.RLock()
	ml, p, ok := m.ml, m.peers[node], m.ml != nil
	m.mu.RUnlock()
	if !ok {
		return ErrNotRunning
	}
	if p.node.Name == "" {
		return ErrUnknownNode
	}
	if err := ml.SendBestEffort(&p.node, b); err != nil {
		m.sendErrors.Add(1)
		return fmt.Errorf("send gossip packet to %s: %w", p.member.Name, err)
	}
	m.sentPackets.Add(1)
	m.sentBytes.Add(uint64(len(b)))
	return nil
}

// SendReliable queues b, which the mesh then owns, to be sent to a node over its
// own TCP stream within two seconds. Errors: ErrUnknownNode, ErrQueueFull,
// ErrNotRunning; what goes wrong later is counted in Stats.
func (m *Mesh) SendReliable(node uint64, b []byte) error {
	m.mu.RLock()
	_, known := m.peers[node]
	running := m.ml != nil
	m.mu.RUnlock()
	switch {
	case !running:
		return ErrNotRunning
	case !known:
		return ErrUnknownNode
	}
	select {
	case m.out <- reliable{node, b}:
		return nil
	default:
		m.reliableOverflow.Add(1)
		return ErrQueueFull
	}
}

// sendLoop sends what is queued; when ctx ends it empties the queue first.
func (m *Mesh) sendLoop(ctx context.Context) {
	for {
		select {
		case r := <-m.out:
			m.sendOne(r)
			continue
		case <-ctx.Done():
		}
		for {
			select {
			case r := <-m.out:
				m.sendOne(r)
			default:
				return
			}
		}
	}
}

func (m *Mesh) sendOne(r reliable) {
	m.mu.RLock()
	ml, p := m.ml, m.peers[r.node]
	m.mu.RUnlock()
	if ml == nil || p.node.Name == "" { // went away meanwhile
		m.reliableFailed.Add(1)
		return
	}
	if err := ml.SendReliable(&p.node, r.b); err != nil {
		m.reliableFailed.Add(1)
		m.log.Debug("send reliable gossip message", slog.String(keyNode, p.member.Name), slog.Any(keyErr, err))
		return
	}
	m.reliableSent.Add(1)
}

// Members lists the other nodes that are up, in no order.
func (m *Mesh) Members() []Member {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]Member, 0, len(m.peers))
	for _, p := range m.peers {
		out = append(out, p.member)
	}
	return out
}

// knownAddrs returns the addresses that need no joining: this node's and the
// members'.
func (m *Mesh) knownAddrs() map[netip.AddrPort]bool {
	known := make(map[netip.AddrPort]bool)
	if a, err := netip.ParseAddrPort(m.LocalAddr()); err == nil {
		known[a] = true
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, p := range m.peers {
		if a, err := netip.ParseAddrPort(p.member.Addr); err == nil {
			known[a] = true
		}
	}
	return known
}
