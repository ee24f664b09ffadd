package mesh_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/grapevine-llm/grapevine/gossip/mesh"
)

func keysOf(t *testing.T, lines ...string) [][]byte {
	t.Helper()
	if len(lines) == 0 {
		return nil
	}
	keys, err := mesh.ReadKeys(keyFile(t, lines...))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestProbe(t *testing.T) { overLoopback(t, probe) }

func probe(t *testing.T, ip string) {
	tests := []struct {
		name         string
		node, ours   []string // keys
		label        string
		want         error
		taken, using int
	}{
		{"plain", nil, nil, "", nil, -1, -1},
		{"label", nil, nil, "blue", nil, -1, -1},
		{"same key", []string{key(1)}, []string{key(1)}, "blue", nil, 0, 0},
		{"key is being changed: it reads both", []string{key(1), key(2)}, []string{key(2), key(1)}, "", nil, 0, 1},
		{"key is being changed: the new one has not reached it", []string{key(1)}, []string{key(2), key(1)}, "blue", nil, 1, 1},
		{"another key", []string{key(1)}, []string{key(2), key(3)}, "", mesh.ErrOtherKey, -1, -1},
		{"no key given", []string{key(1)}, nil, "", mesh.ErrKeyWanted, -1, -1},
		{"it has none", nil, []string{key(1)}, "", mesh.ErrNoKey, -1, -1},
		{"another label", nil, nil, "red", mesh.ErrHungUp, -1, -1},
		{"another label, encrypted", []string{key(1)}, []string{key(1)}, "red", mesh.ErrHungUp, -1, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := mesh.Config{BindAddr: ip, Pool: "llama", Label: tt.label, SeedFingerprint: 7}
			if tt.want == mesh.ErrHungUp {
				cfg.Label = "blue"
			}
			if tt.node != nil {
				cfg.KeyFile = keyFile(t, tt.node...)
			}
			picker := start(t, cfg)
			cfg.NodeName, cfg.Role, cfg.Handler, cfg.Join = "pod-1", mesh.RoleAgent, nil, []string{picker.LocalAddr()}
			agent := start(t, cfg)
			eventually(t, "they meet", func() bool { return picker.peers() == 1 && agent.peers() == 1 })

			got, err := mesh.Prober{Label: tt.label, Keys: keysOf(t, tt.ours...)}.Probe(t.Context(), netip.MustParseAddrPort(picker.LocalAddr()))
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if err != nil {
				return
			}
			if len(got.Members) != 2 || got.Self.Name != picker.Name() || got.Self.SeedFingerprint != 7 || got.Self.Role != mesh.RolePicker {
				t.Errorf("members %+v, itself %+v", got.Members, got.Self)
			}
			if got.KeyTaken != tt.taken || got.KeyUsed != tt.using {
				t.Errorf("key %d taken, %d used, want %d and %d", got.KeyTaken, got.KeyUsed, tt.taken, tt.using)
			}
			if got.RoundTrip == 0 || !got.PacketBack || !got.StreamBack {
				t.Errorf("round trip %v, packet back %v, stream back %v", got.RoundTrip, got.PacketBack, got.StreamBack)
			}
			if n := picker.peers() + agent.peers(); n != 2 {
				t.Error("the probe has become a member")
			}
		})
	}
}

// TCP reaches the node and UDP does not, as behind a firewall that knows of TCP only.
func TestProbeWithoutUDP(t *testing.T) {
	agent := start(t, mesh.Config{Role: mesh.RoleAgent})
	// Its sockets answer before it counts itself among the members.
	eventually(t, "it runs", func() bool { return !errors.Is(agent.Send(0, nil), mesh.ErrNotRunning) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		from, err := l.Accept()
		if err != nil {
			return
		}
		defer from.Close()
		to, err := net.Dial("tcp", agent.LocalAddr())
		if err != nil {
			return
		}
		defer to.Close()
		back := make(chan struct{})
		go func() { defer close(back); _, _ = io.Copy(from, to); from.Close() }()
		_, _ = io.Copy(to, from)
		<-back
	}()
	got, err := mesh.Prober{}.Probe(t.Context(), l.Addr().(*net.TCPAddr).AddrPort())
	<-done
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Members) != 1 || got.RoundTrip != 0 {
		t.Errorf("members %v, round trip %v: want one, and none", got.Members, got.RoundTrip)
	}
}

func TestProbeOfSomethingElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "220 mail.example ESMTP\r\n")
			c.Close()
		}
	}()
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	if _, err := (mesh.Prober{}).Probe(t.Context(), addr); !errors.Is(err, mesh.ErrNotANode) {
		t.Errorf("got %v, want ErrNotANode", err)
	}
	l.Close()
	<-done
	if _, err := (mesh.Prober{}).Probe(t.Context(), addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: got %v", err)
	}
}
