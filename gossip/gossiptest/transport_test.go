package gossiptest_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/gossiptest"
)

// arrive counts the packets that lie ready.
func arrive(t *gossiptest.Transport) int {
	n := 0
	for {
		select {
		case <-t.PacketCh():
			n++
		default:
			return n
		}
	}
}

func TestTransportLosesDelaysAndCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := func(seed uint64) uint64 {
			net := gossiptest.NewTransportNetwork(gossiptest.TransportConfig{Seed: seed, Loss: 0.1, Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond})
			a, b := net.Transport(), net.Transport()
			send := func(n int) {
				for range n {
					if _, err := a.WriteTo([]byte("x"), b.Addr()); err != nil {
						t.Fatal(err)
					}
				}
			}
			send(1000)
			time.Sleep(9 * time.Millisecond)
			if n := arrive(b); n != 0 {
				t.Errorf("%d packets arrived before the delay", n)
			}
			time.Sleep(10 * time.Millisecond)
			s := net.Stats()
			if n := arrive(b); s.Lost < 60 || s.Lost > 140 || n != 1000-int(s.Lost) {
				t.Errorf("%d of 1000 arrived, %d lost; want about 100 lost", n, s.Lost)
			}
			net.Cut(a.Addr(), b.Addr(), true)
			send(10)
			net.Cut(a.Addr(), b.Addr(), false)
			net.SetLoss(0)
			send(5)
			time.Sleep(20 * time.Millisecond)
			if n := arrive(b); n != 5 || net.Stats().Cut != 10 {
				t.Errorf("%d arrived, %d cut; want 5, 10", n, net.Stats().Cut)
			}
			return s.Lost
		}
		if first, again := lost(7), lost(7); first != again {
			t.Errorf("one seed, two outcomes: %d and %d lost", first, again)
		}
	})
}

// A node that stopped reading must not stop the others.
func TestTransportNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := gossiptest.NewTransportNetwork(gossiptest.TransportConfig{})
		a, b := net.Transport(), net.Transport()
		for range 5000 {
			if _, err := a.WriteTo([]byte("x"), b.Addr()); err != nil {
				t.Fatal(err)
			}
		}
		if s := net.Stats(); arrive(b) == 0 || s.Overflow == 0 {
			t.Errorf("stats %+v, want some packets kept and the rest dropped", s)
		}
	})
}

func TestTransportStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := gossiptest.NewTransportNetwork(gossiptest.TransportConfig{Loss: 1})
		a, b := net.Transport(), net.Transport()
		conn, err := a.DialTimeout(b.Addr(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer conn.Close()
			if _, err := conn.Write([]byte("hello")); err != nil {
				t.Error(err)
			}
		}()
		got, err := io.ReadAll(<-b.StreamCh())
		if err != nil || string(got) != "hello" {
			t.Errorf("got %q, %v", got, err)
		}

		// A peer that never reads holds its sender no longer than the time-out.
		stuck, err := a.DialTimeout(b.Addr(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if _, err := stuck.Write([]byte("hello")); err == nil || time.Since(begin) != time.Second {
			t.Errorf("write to a stuck peer: %v after %v, want a time-out after 1 s", err, time.Since(begin))
		}

		net.Cut(b.Addr(), a.Addr(), true)
		begin = time.Now()
		if _, err := a.DialTimeout(b.Addr(), time.Second); err == nil || time.Since(begin) != time.Second {
			t.Errorf("dial across a cut: %v after %v, want a time-out after 1 s", err, time.Since(begin))
		}
		if err := b.Shutdown(); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		if _, err := a.DialTimeout(b.Addr(), time.Second); err == nil || time.Since(begin) != 0 {
			t.Errorf("dial to a node that is down: %v after %v, want a refusal at once", err, time.Since(begin))
		}
	})
}
