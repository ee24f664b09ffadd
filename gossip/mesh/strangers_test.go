package mesh

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

type nobody struct{}

func (nobody) Message(time.Time, []byte)  {}
func (nobody) NodeUp(time.Time, Member)   {}
func (nobody) NodeDown(time.Time, Member) {}

// TestPickerGreetsStrangers: one packet from a node that a restarted picker does not know makes it join that node.
func TestPickerGreetsStrangers(t *testing.T) {
	for _, ip := range []string{"127.0.0.1", "::1"} {
		t.Run(ip, func(t *testing.T) { greetsStrangers(t, ip) })
	}
}

func greetsStrangers(t *testing.T, ip string) {
	if l, err := net.Listen("tcp", net.JoinHostPort(ip, "0")); err != nil {
		t.Skipf("this machine has no loopback address %s: %v", ip, err)
	} else {
		l.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	start := func(role Role) *Mesh {
		m, err := New(Config{Role: role, BindAddr: ip, Handler: nobody{}})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := m.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
		return m
	}
	picker, agent := start(RolePicker), start(RoleAgent)
	to := netip.MustParseAddrPort(picker.LocalAddr())
	deadline := time.Now().Add(10 * time.Second)
	for len(picker.Members()) == 0 {
		if time.Now().After(deadline) {
			t.Fatal("the picker has not joined the sender")
		}
		// No node speaks like this: the source alone counts.
		if _, err := agent.own.udp.WriteToUDPAddrPort([]byte("?"), to); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if got := picker.Members()[0]; got.Name != agent.Name() || got.Role != RoleAgent {
		t.Errorf("picker's member is %+v, want the agent %s", got, agent.Name())
	}
}

func TestStrangersAreMetOnce(t *testing.T) {
	s := newStrangers()
	a, b := netip.MustParseAddrPort("10.0.0.1:7946"), netip.MustParseAddrPort("[fd00::2]:7946")
	s.know(a.String())
	s.see(a)
	s.see(b)
	s.see(b)
	if got := <-s.met; got != b {
		t.Errorf("met %v, want %v", got, b)
	}
	s.know(b.String())
	s.see(b)
	s.forget(a.String())
	s.see(a)
	if got := <-s.met; got != a {
		t.Errorf("met %v, want %v, which was forgotten", got, a)
	}
	var none *strangers
	none.know(a.String()) // an agent has none
}
