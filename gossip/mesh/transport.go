package mesh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// udpReceiveBytes is asked of the kernel for the packet socket, so that a
	// burst of ticks waits there instead of being lost. The kernel may give less.
	udpReceiveBytes = 8 << 20
	maxUDPBytes     = 65536
	// bindTries bounds the search for a port that is free for UDP and TCP.
	bindTries = 10
	// streamTimeout bounds dialling and a whole user message; memberlist itself
	// sets a new deadline for a push/pull.
	streamTimeout = 2 * time.Second
)

// netTransport carries packets over UDP and streams over TCP on one port.
//
// It differs from memberlist's own transport in four ways: it works on
// IPv6-only hosts, it allocates what a packet needs instead of 64 KiB for each,
// it drops packets from networks that are not allowed before they are
// decrypted, and no connection can block its user for longer than the time it
// was given for dialling.
type netTransport struct {
	tcp     *net.TCPListener
	udp     *net.UDPConn
	packets chan *memberlist.Packet
	streams chan net.Conn
	allowed []net.IPNet
	refused *atomic.Uint64
	sender  func(netip.AddrPort) // told of each packet's source; nil: nobody

	done   context.Context // ends with Shutdown; memberlist's interface has no context to pass
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

var _ memberlist.NodeAwareTransport = (*netTransport)(nil)

// listen binds both sockets; it starts nothing.
func listen(addr string, port int, cidrs []string, refused *atomic.Uint64) (*netTransport, error) {
	allowed, err := parseCIDRs(cidrs)
	if err != nil {
		return nil, err
	}
	for range bindTries {
		var tcp *net.TCPListener
		var udp *net.UDPConn
		tcp, udp, err = bind(addr, port)
		if err == nil {
			ctx, cancel := context.WithCancel(context.Background())
			return &netTransport{
				tcp: tcp, udp: udp,
				packets: make(chan *memberlist.Packet, 256),
				streams: make(chan net.Conn),
				allowed: allowed,
				refused: refused,
				done:    ctx, cancel: cancel,
			}, nil
		}
		if port != 0 || !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	hostport := net.JoinHostPort(addr, strconv.Itoa(port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("gossip port %s is taken by another process on this host: give another port (--gossip-bind), or stop the other one: %w", hostport, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("this host has no address %s: leave the gossip bind address empty for all addresses: %w", addr, err)
	}
	return nil, fmt.Errorf("bind gossip address %s: %w", hostport, err)
}

func bind(addr string, port int) (*net.TCPListener, *net.UDPConn, error) {
	ip := net.ParseIP(addr) // nil for "": all addresses of both families
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: ip, Port: port})
	if err != nil {
		return nil, nil, err
	}
	port = tcp.Addr().(*net.TCPAddr).Port
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip, Port: port})
	if err != nil {
		tcp.Close()
		return nil, nil, err
	}
	// Best effort: the kernel clamps it to its own limit.
	_ = udp.SetReadBuffer(udpReceiveBytes)
	return tcp, udp, nil
}

// start runs the two listeners until Shutdown.
func (t *netTransport) start() {
	t.wg.Go(t.readPackets)
	t.wg.Go(t.acceptStreams)
}

func (t *netTransport) port() int { return t.tcp.Addr().(*net.TCPAddr).Port }

func (t *netTransport) permits(ip net.IP) bool {
	if len(t.allowed) == 0 {
		return true
	}
	for _, n := range t.allowed {
		if n.Contains(ip) {
			return true
		}
	}
	t.refused.Add(1)
	return false
}

func (t *netTransport) readPackets() {
	buf := make([]byte, maxUDPBytes)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			if !t.pause() {
				return
			}
			continue
		}
		addr := net.UDPAddrFromAddrPort(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		if n == 0 || !t.permits(addr.IP) {
			continue
		}
		if t.sender != nil {
			t.sender(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		}
		p := &memberlist.Packet{Buf: bytes.Clone(buf[:n]), From: addr, Timestamp: time.Now()}
		select {
		case t.packets <- p:
		case <-t.done.Done():
			return
		}
	}
}

func (t *netTransport) acceptStreams() {
	for {
		conn, err := t.tcp.AcceptTCP()
		if err != nil {
			if !t.pause() {
				return
			}
			continue
		}
		if !t.permits(conn.RemoteAddr().(*net.TCPAddr).IP) {
			conn.Close()
			continue
		}
		select {
		case t.streams <- conn:
		case <-t.done.Done():
			conn.Close()
			return
		}
	}
}

// pause keeps an erring socket (out of file descriptors, say) from spinning;
// false means the transport was shut down.
func (t *netTransport) pause() bool {
	select {
	case <-t.done.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

// FinalAdvertiseAddr implements [memberlist.Transport].
func (t *netTransport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	if port == 0 {
		port = t.port()
	}
	if ip != "" {
		a := net.ParseIP(ip)
		if a == nil {
			return nil, 0, fmt.Errorf("gossip advertise address %q is no IP address", ip)
		}
		return shortIP(a), port, nil
	}
	bound := t.tcp.Addr().(*net.TCPAddr).IP
	if !bound.IsUnspecified() {
		return shortIP(bound), port, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, 0, fmt.Errorf("list network addresses: %w", err)
	}
	a, ok := pickAddress(addrs)
	if !ok {
		return nil, 0, errors.New("this host has no address but loopback: give the address that others reach it by (gossip advertise address), or bind to 127.0.0.1 if all runs here")
	}
	return a, port, nil
}

// pickAddress chooses what to advertise when bound to all addresses: a private
// IPv4 address, else another IPv4, else a global IPv6 one.
func pickAddress(addrs []net.Addr) (net.IP, bool) {
	var best net.IP
	bestRank := 0
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || n.IP.IsLoopback() || !n.IP.IsGlobalUnicast() {
			continue
		}
		rank := 1
		if n.IP.To4() != nil {
			rank = 2
			if n.IP.IsPrivate() {
				rank = 3
			}
		}
		if rank > bestRank {
			best, bestRank = shortIP(n.IP), rank
		}
	}
	return best, best != nil
}

func shortIP(ip net.IP) net.IP {
	if v4 := ip.To4(); v4 != nil {
		return v4
	}
	return ip
}

// WriteTo implements [memberlist.Transport].
func (t *netTransport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse gossip address: %w", err)
	}
	_, err = t.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

// WriteToAddress implements [memberlist.NodeAwareTransport].
func (t *netTransport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// DialTimeout implements [memberlist.Transport]. The connection has a
// deadline from the start: memberlist sets none for user messages, where a peer that
// stopped reading would hold the sender for ever.
func (t *netTransport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	deadline := time.Now().Add(min(timeout, streamTimeout))
	d := net.Dialer{Deadline: deadline}
	conn, err := d.DialContext(t.done, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(deadline); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// DialAddressTimeout implements [memberlist.NodeAwareTransport].
func (t *netTransport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// PacketCh implements [memberlist.Transport].
func (t *netTransport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements [memberlist.Transport].
func (t *netTransport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements [memberlist.Transport]; it waits for the listeners.
func (t *netTransport) Shutdown() error {
	t.cancel()
	tcpErr, udpErr := t.tcp.Close(), t.udp.Close()
	t.wg.Wait()
	if errors.Is(tcpErr, net.ErrClosed) { // shut down before
		return nil
	}
	return errors.Join(tcpErr, udpErr)
}
