package mesh

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/vmihailenco/msgpack/v5"
)

// What a node's refusal means, for whoever probes it; wrapped.
var (
	ErrOtherKey  = errors.New("the node uses none of these gossip keys")
	ErrKeyWanted = errors.New("the node's gossip is encrypted, and no key is given")
	ErrNoKey     = errors.New("the node's gossip is not encrypted, and a key is given")
	ErrHungUp    = errors.New("the node hung up without a word: its gossip label differs, or it does not allow this network")
	ErrNotANode  = errors.New("what answers there is no gossip node")
)

const (
	probeTries = 3
	probeWait  = 500 * time.Millisecond // for the answer to a packet
	greetWait  = time.Second            // for a picker to look who sent it a packet
	// maxProbeBytes bounds a node's answer, as memberlist does.
	maxProbeBytes = 20 << 20
	maxProbeNodes = 1 << 20
)

// Prober asks a node what it knows without becoming a member: the mesh does not
// notice it. Fields are as in Config.
type Prober struct {
	Label string
	Keys  [][]byte // see ReadKeys; none: no encryption
}

// ProbeResult is what a node answered.
type ProbeResult struct {
	Self    Member   // the node itself; zero if it advertises another address than the one that was asked
	Members []Member // all that it takes for up, itself among them, by name; none in the moment of its start
	// KeyTaken and KeyUsed are positions in Prober.Keys: of the key that the node
	// could read, and of the one it writes with; -1 without encryption.
	KeyTaken, KeyUsed int
	// RoundTrip of a packet; 0: none of several came back.
	RoundTrip time.Duration
	// PacketBack says that a packet which the node sent to a port of this machine
	// that had sent it none came through; a firewall may well stop it.
	PacketBack bool
	// StreamBack says that the node opened a connection to this machine. Only pickers
	// do, to see who sent them a packet.
	StreamBack bool
}

// ReadKeys reads a key file (see Config.KeyFile). The error says what is wrong
// and what to do.
func ReadKeys(path string) ([][]byte, error) {
	keys, _, err := readKeys(path)
	return keys, err
}

// Probe asks the node at addr: over a stream as a member would, then with
// packets both ways. The error is of the stream: one of those above, or that of
// the connection. A node that answers there but not to packets gives no error but
// RoundTrip 0.
func (p Prober) Probe(ctx context.Context, addr netip.AddrPort) (ProbeResult, error) {
	out := ProbeResult{KeyTaken: -1, KeyUsed: -1}
	tries := p.Keys
	if len(tries) == 0 {
		tries = [][]byte{nil}
	}
	var nodes []pushNode
	var own netip.Addr
	var err error
	for i, key := range tries {
		var used int
		nodes, used, own, err = p.pushPull(ctx, addr, key)
		if err == nil && key != nil {
			out.KeyTaken, out.KeyUsed = i, used
		}
		if !errors.Is(err, ErrOtherKey) { // it may know a later one
			break
		}
	}
	if err != nil {
		return out, fmt.Errorf("ask gossip node %s: %w", addr, err)
	}
	for _, n := range nodes {
		m, ok := n.member()
		if !ok {
			continue
		}
		out.Members = append(out.Members, m)
		if m.Addr == addr.String() {
			out.Self = m
		}
	}
	slices.SortFunc(out.Members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	var key []byte
	if out.KeyTaken >= 0 {
		key = p.Keys[out.KeyTaken]
	}
	return out, p.packets(ctx, addr, own, key, &out)
}

// pushNode is a node in memberlist's state exchange (net.go, pushNodeState).
type pushNode struct {
	Name  string
	Addr  []byte
	Port  uint16
	Meta  []byte
	State int // 0: alive
}

func (n *pushNode) member() (Member, bool) {
	ip, ok := netip.AddrFromSlice(n.Addr)
	info, err := decodeMeta(n.Meta)
	if n.State != 0 || !ok || err != nil {
		return Member{}, false
	}
	return info.of(n.Name, netip.AddrPortFrom(ip.Unmap(), n.Port).String()), true
}

// pushPull exchanges states with a node, telling it of no node, encrypted with
// key. It returns which of the keys the node used, and the address by which this
// machine reached it.
func (p Prober) pushPull(ctx context.Context, addr netip.AddrPort, key []byte) (nodes []pushNode, used int, own netip.Addr, err error) {
	d := net.Dialer{Timeout: streamTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, -1, own, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := conn.SetDeadline(time.Now().Add(2 * streamTimeout)); err != nil {
		return nil, -1, own, err
	}
	own = conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	msg, err := encodeMsg(pushPullMsg, struct {
		Nodes, UserStateLen int
		Join                bool
	}{})
	if err != nil {
		return nil, -1, own, err
	}
	if msg, err = sealStream(key, msg, p.Label); err != nil {
		return nil, -1, own, err
	}
	if err = memberlist.AddLabelHeaderToStream(conn, p.Label); err == nil {
		_, err = conn.Write(msg)
	}
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(io.LimitReader(conn, maxProbeBytes))
	}
	if len(answer) == 0 && (err == nil || hungUp(err.Error())) {
		return nil, -1, own, ErrHungUp
	}
	if err != nil && len(answer) == 0 {
		return nil, -1, own, err
	}
	nodes, used, err = p.readAnswer(answer, key != nil)
	return nodes, used, own, err
}

// readAnswer reads what a node sent back over a stream.
func (p Prober) readAnswer(answer []byte, encrypted bool) (nodes []pushNode, used int, err error) {
	used = -1
	if answer[0] == encryptMsg {
		if !encrypted {
			return nil, -1, ErrKeyWanted
		}
		if answer, used, err = openStream(p.Keys, answer, p.Label); err != nil {
			return nil, -1, err
		}
	}
	dec := msgpack.NewDecoder(bytes.NewReader(answer[1:]))
	switch answer[0] {
	case errMsg:
		var fault struct{ Error string }
		if err := dec.Decode(&fault); err != nil {
			return nil, -1, ErrNotANode
		}
		switch {
		case !isKeyFault(fault.Error):
			return nil, -1, fmt.Errorf("the node says: %q", fault.Error)
		case used >= 0:
			return nil, -1, ErrOtherKey // of these; it used another itself
		case encrypted:
			return nil, -1, ErrNoKey
		}
		return nil, -1, ErrKeyWanted
	case pushPullMsg:
	default:
		return nil, -1, ErrNotANode
	}
	var header struct{ Nodes int }
	if err := dec.Decode(&header); err != nil || header.Nodes < 0 || header.Nodes > maxProbeNodes {
		return nil, -1, ErrNotANode
	}
	for range header.Nodes {
		var n pushNode
		if err := dec.Decode(&n); err != nil {
			return nil, -1, fmt.Errorf("read the node's list of members: %w", err)
		}
		nodes = append(nodes, n)
	}
	return nodes, used, nil
}

// packets pings the node from one port, asks it to ping another port of this
// machine, and waits for a picker's look at who that was.
func (p Prober) packets(ctx context.Context, addr netip.AddrPort, own netip.Addr, key []byte, out *ProbeResult) error {
	trans, err := listen(own.String(), 0, nil, nil)
	if err != nil {
		return err
	}
	defer trans.Shutdown()
	other, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(own, 0)))
	if err != nil {
		return fmt.Errorf("probe gossip node: %w", err)
	}
	defer other.Close()

	send := func(kind byte, body any) error {
		msg, err := encodeMsg(kind, body)
		if err == nil {
			msg, err = sealPacket(key, msg, p.Label)
		}
		if err == nil {
			_, err = trans.udp.WriteToUDPAddrPort(msg, addr)
		}
		if err != nil {
			return fmt.Errorf("send a packet to gossip node %s: %w", addr, err)
		}
		return nil
	}
	for range probeTries {
		sent := time.Now()
		if err := send(pingMsg, struct {
			SeqNo uint32
			Node  string
		}{SeqNo: 1}); err != nil {
			return err
		}
		if heard(ctx, trans.udp) {
			out.RoundTrip = max(time.Since(sent), 1)
			break
		}
	}
	if out.RoundTrip == 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	port := uint16(other.LocalAddr().(*net.UDPAddr).Port)
	for range probeTries {
		if err := send(indirectPingMsg, struct {
			SeqNo  uint32
			Target []byte
			Port   uint16
			Node   string
		}{SeqNo: 2, Target: own.AsSlice(), Port: port}); err != nil {
			return err
		}
		if out.PacketBack = heard(ctx, other); out.PacketBack {
			break
		}
	}
	if out.Self.Role == RolePicker && ctx.Err() == nil {
		if err := trans.tcp.SetDeadline(time.Now().Add(greetWait)); err == nil {
			if conn, err := trans.tcp.Accept(); err == nil {
				out.StreamBack = true
				conn.Close()
			}
		}
	}
	return ctx.Err()
}

// heard waits for any packet. Nobody but the node knows the port.
func heard(ctx context.Context, c *net.UDPConn) bool {
	if c.SetReadDeadline(time.Now().Add(probeWait)) != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
	n, _, err := c.ReadFromUDPAddrPort(make([]byte, 2048))
	return err == nil && n > 0
}
