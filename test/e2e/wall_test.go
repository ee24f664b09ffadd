package e2e

import (
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

// wall sits before gossip ports: members advertise its ports, and it passes packets and streams on
// to the real ones until it is closed.
type wall struct {
	t      *testing.T
	closed atomic.Bool
	mu     sync.Mutex // guards conns and fronts
	conns  []io.Closer
	fronts map[int]*net.UDPConn // advertised sockets, by the real port behind
}

// newWall makes an open wall that ends with the test.
func newWall(t *testing.T) *wall {
	w := &wall{t: t, fronts: map[int]*net.UDPConn{}}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, c := range w.conns {
			c.Close()
		}
	})
	return w
}

func (w *wall) keep(c io.Closer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, c)
}

// front opens a port before 127.0.0.1:port.
func (w *wall) front(_ string, port int) (int, error) {
	real := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	w.keep(l)
	advertised := l.Addr().(*net.TCPAddr).Port
	u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: advertised})
	if err != nil {
		return 0, err
	}
	w.keep(u)
	w.mu.Lock()
	w.fronts[port] = u
	w.mu.Unlock()
	go w.streams(l, real)
	go w.packets(u, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	return advertised, nil
}

func (w *wall) streams(l net.Listener, real string) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		if w.closed.Load() {
			in.Close()
			continue
		}
		out, err := net.Dial("tcp", real)
		if err != nil {
			in.Close()
			continue
		}
		w.keep(in)
		w.keep(out)
		pass := func(dst, src net.Conn) {
			_, _ = io.Copy(dst, src)
			dst.Close()
		}
		go pass(out, in)
		go pass(in, out)
	}
}

// packets passes on what comes to u. As without a wall, a packet comes from the address that its sender advertises.
func (w *wall) packets(u *net.UDPConn, real *net.UDPAddr) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := u.ReadFromUDP(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		out := w.fronts[from.Port]
		w.mu.Unlock()
		if out != nil && !w.closed.Load() {
			_, _ = out.WriteToUDP(buf[:n], real)
		}
	}
}
