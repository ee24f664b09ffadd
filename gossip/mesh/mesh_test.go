package mesh_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/gossip/gossiptest"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Handler that keeps what it gets.
type recorder struct {
	mu   sync.Mutex // guards what follows
	msgs []string
	up   map[string]mesh.Member
	down []string
	slow time.Duration
}

func (r *recorder) Message(_ time.Time, b []byte) {
	time.Sleep(r.slow)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.msgs = append(r.msgs, string(b))
}

func (r *recorder) NodeUp(_ time.Time, m mesh.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up == nil {
		r.up = make(map[string]mesh.Member)
	}
	r.up[m.Name] = m
}

func (r *recorder) NodeDown(_ time.Time, m mesh.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.up, m.Name)
	r.down = append(r.down, m.Name)
}

func (r *recorder) has(msg string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.msgs {
		if m == msg {
			return true
		}
	}
	return false
}

func (r *recorder) peers() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.up)
}

type node struct {
	*mesh.Mesh
	*recorder
	stop func() // ends Run and waits for it
}

// start runs a mesh until the test ends, or until stop.
func start(t *testing.T, cfg mesh.Config) node {
	t.Helper()
	rec, _ := cfg.Handler.(*recorder)
	if rec == nil {
		rec = &recorder{}
		cfg.Handler = rec
	}
	if cfg.Transport == nil && cfg.BindAddr == "" {
		cfg.BindAddr = "127.0.0.1"
	}
	if cfg.Role == 0 {
		cfg.Role = mesh.RolePicker
	}
	m, err := mesh.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return node{m, rec, stop}
}

// eventually polls real time; bubbles sleep instead.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("did not happen in 20 s: %s", what)
}

// overLoopback runs f over IPv4 and over IPv6.
func overLoopback(t *testing.T, f func(t *testing.T, ip string)) {
	for _, ip := range []string{"127.0.0.1", "::1"} {
		t.Run(ip, func(t *testing.T) {
			l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
			if err != nil {
				t.Skipf("this machine has no loopback address %s: %v", ip, err)
			}
			l.Close()
			f(t, ip)
		})
	}
}

func TestTwoNodesOverLoopback(t *testing.T) { overLoopback(t, twoNodes) }

func twoNodes(t *testing.T, ip string) {
	picker := start(t, mesh.Config{Pool: "llama", Label: "test", BindAddr: ip})
	agent := start(t, mesh.Config{
		BindAddr: ip,
		NodeName: "pod-1", Role: mesh.RoleAgent, Pool: "llama", Label: "test", SeedFingerprint: 77,
		Join: []string{picker.LocalAddr()},
	})
	eventually(t, "both see each other", func() bool { return picker.peers() == 1 && agent.peers() == 1 })

	picker.recorder.mu.Lock()
	got := picker.up["pod-1"]
	picker.recorder.mu.Unlock()
	want := mesh.Member{
		Name: "pod-1", Hash: wire.NodeHash("pod-1"), Role: mesh.RoleAgent, Pool: "llama", Addr: agent.LocalAddr(),
		WireVersion: wire.Version, SeedFingerprint: 77,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("member (-want +got):\n%s", diff)
	}

	big := strings.Repeat("x", 300_000)
	eventually(t, "UDP both ways", func() bool {
		return agent.Send(wire.NodeHash(picker.Name()), []byte("tick")) == nil &&
			picker.Send(got.Hash, []byte("nack")) == nil && picker.has("tick") && agent.has("nack")
	})
	if err := agent.SendReliable(wire.NodeHash(picker.Name()), []byte(big)); err != nil {
		t.Fatalf("SendReliable: %v", err)
	}
	eventually(t, "a long message over a stream", func() bool { return picker.has(big) })

	if err := agent.Send(1, nil); err != mesh.ErrUnknownNode {
		t.Errorf("Send to nobody: got %v, want ErrUnknownNode", err)
	}
	agent.stop()
	eventually(t, "picker sees the agent leave", func() bool { return picker.peers() == 0 })
	if err := agent.Send(wire.NodeHash(picker.Name()), nil); err != mesh.ErrNotRunning {
		t.Errorf("Send after Run: got %v, want ErrNotRunning", err)
	}
}

// What is queued when the context ends still arrives: an agent's last words.
func TestLastWords(t *testing.T) { overLoopback(t, lastWords) }

func lastWords(t *testing.T, ip string) {
	picker := start(t, mesh.Config{BindAddr: ip})
	agent := start(t, mesh.Config{BindAddr: ip, Role: mesh.RoleAgent, Join: []string{picker.LocalAddr()}})
	eventually(t, "agent joined", func() bool { return agent.peers() == 1 })
	for i := range 20 {
		if err := agent.SendReliable(wire.NodeHash(picker.Name()), fmt.Appendf(nil, "bye %d", i)); err != nil {
			t.Fatalf("SendReliable: %v", err)
		}
	}
	agent.stop()
	eventually(t, "all last words", func() bool {
		for i := range 20 {
			if !picker.has(fmt.Sprintf("bye %d", i)) {
				return false
			}
		}
		return true
	})
}

func TestPortTaken(t *testing.T) { overLoopback(t, portTaken) }

func portTaken(t *testing.T, ip string) {
	first := start(t, mesh.Config{BindAddr: ip})
	_, port, err := net.SplitHostPort(first.LocalAddr())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	_, err = mesh.New(mesh.Config{Role: mesh.RoleAgent, BindAddr: ip, BindPort: n, Handler: &recorder{}})
	if err == nil || !strings.Contains(err.Error(), "is taken by another process") {
		t.Errorf("New on a taken port: got %v, want an error that says so", err)
	}
}

func TestNetworksNotAllowedAreRefused(t *testing.T) {
	overLoopback(t, func(t *testing.T, ip string) {
		cfg, outside := mesh.Config{BindAddr: ip, AllowedCIDRs: []string{"127.0.0.1/32"}}, "127.0.0.2"
		if ip == "::1" { // the only loopback address of its kind: the other comes by IPv4
			cfg, outside = mesh.Config{BindAddr: "::", AdvertiseAddr: ip, AllowedCIDRs: []string{"::1/128"}}, "127.0.0.1"
		}
		picker := start(t, cfg)
		_, port, err := net.SplitHostPort(picker.LocalAddr())
		if err != nil {
			t.Fatal(err)
		}
		start(t, mesh.Config{BindAddr: outside, Join: []string{"127.0.0.1:" + port}})
		start(t, mesh.Config{BindAddr: ip, NodeName: "allowed", Join: []string{picker.LocalAddr()}})
		eventually(t, "the other is let in", func() bool { return picker.peers() > 0 })
		eventually(t, "refusal is counted", func() bool { return picker.Stats().RefusedByCIDR > 0 })
		if got := picker.Members(); len(got) != 1 || got[0].Name != "allowed" {
			t.Errorf("members %v, want the allowed one only", got)
		}
		_, err = mesh.New(mesh.Config{Role: mesh.RoleAgent, Handler: &recorder{}, BindAddr: ip, AllowedCIDRs: []string{"10.0.0.0/8", "fd00::/8"}})
		if err == nil || !strings.Contains(err.Error(), "outside the allowed networks") {
			t.Errorf("own address not allowed: got %v, want an error that says so", err)
		}
	})
}

func key(fill byte) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32))
}

func keyFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	writeKeys(t, path, lines...)
	return path
}

func writeKeys(t *testing.T, path string, lines ...string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}

type logBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func logger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

func TestWrongKeyIsSaidInWords(t *testing.T) { overLoopback(t, wrongKey) }

func wrongKey(t *testing.T, ip string) {
	var pickerLog, agentLog logBuffer
	picker := start(t, mesh.Config{BindAddr: ip, KeyFile: keyFile(t, key(1)), Logger: logger(&pickerLog)})
	agent := start(t, mesh.Config{BindAddr: ip, Role: mesh.RoleAgent, KeyFile: keyFile(t, key(2)), Join: []string{picker.LocalAddr()}, Logger: logger(&agentLog)})
	eventually(t, "both count it", func() bool {
		return picker.Stats().KeyMismatches > 0 && agent.Stats().KeyMismatches > 0 && agent.Stats().JoinFailures > 0
	})
	eventually(t, "both say it", func() bool {
		return strings.Contains(pickerLog.String(), "another node uses a different gossip key") &&
			strings.Contains(agentLog.String(), "same gossip key file")
	})
	if n := picker.peers(); n != 0 {
		t.Errorf("picker has %d members, want none", n)
	}
}

func TestWrongLabelIsSaidInWords(t *testing.T) { overLoopback(t, wrongLabel) }

func wrongLabel(t *testing.T, ip string) {
	var pickerLog, agentLog logBuffer
	picker := start(t, mesh.Config{BindAddr: ip, Label: "a", Logger: logger(&pickerLog)})
	start(t, mesh.Config{BindAddr: ip, Label: "b", Join: []string{picker.LocalAddr()}, Logger: logger(&agentLog)})
	eventually(t, "picker counts and says it", func() bool {
		return picker.Stats().LabelMismatches > 0 && strings.Contains(pickerLog.String(), "same gossip label")
	})
	eventually(t, "agent guesses it", func() bool { return strings.Contains(agentLog.String(), "same gossip label") })
}

// An address that others must be told is told in their form, IPv6 in brackets, and a bound "all addresses" takes both families.
func TestAdvertisedAddress(t *testing.T) {
	tests := []struct {
		name string
		cfg  mesh.Config
		want string
	}{
		{"IPv4 told", mesh.Config{AdvertiseAddr: "10.0.0.5", AdvertisePort: 7000}, "10.0.0.5:7000"},
		{"IPv6 told", mesh.Config{AdvertiseAddr: "FD00:0:0::5", AdvertisePort: 7000}, "[fd00::5]:7000"},
		{"IPv4 in IPv6 form", mesh.Config{AdvertiseAddr: "::ffff:10.0.0.5", AdvertisePort: 7000}, "10.0.0.5:7000"},
		{"allowed network, IPv6", mesh.Config{AdvertiseAddr: "fd00::5", AdvertisePort: 7000, AllowedCIDRs: []string{"fd00::/8"}}, "[fd00::5]:7000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Role, tt.cfg.Handler = mesh.RoleAgent, &recorder{}
			m, err := mesh.New(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if got := m.LocalAddr(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestKeyFileFaults(t *testing.T) {
	hexKey := hex.EncodeToString(bytes.Repeat([]byte{3}, 32))
	tests := []struct {
		name  string
		lines []string
		want  string // "" means valid
	}{
		{"base64", []string{key(1)}, ""},
		{"hex", []string{hexKey}, ""},
		{"comments, blank lines, several keys", []string{"# fleet", "", key(1) + " # since May", "  " + hexKey}, ""},
		{"unpadded", []string{strings.TrimRight(key(1), "=")}, ""},
		{"url alphabet", []string{base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 32))}, ""},
		{"empty", []string{"# nothing"}, "no key in it"},
		{"AES-128", []string{key(1), hex.EncodeToString(make([]byte, 16))}, "line 2 is no AES-256 key"},
		{"all wrong lines named", []string{"abc", key(1), "def"}, "line 3 is no AES-256 key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := mesh.New(mesh.Config{Role: mesh.RolePicker, Handler: &recorder{}, KeyFile: keyFile(t, tt.lines...), Transport: gossiptest.NewTransportNetwork(gossiptest.TransportConfig{}).Transport()})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want none", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestValidateJoinsAllFaults(t *testing.T) {
	err := mesh.Config{
		Role: 9, Pool: strings.Repeat("p", 300), BindAddr: "localhost", BindPort: 70000,
		Join: []string{"ok", "ok:1", "[::1]:5", "::1", "bad:port", ""}, AllowedCIDRs: []string{"10.0.0.0/8", "10.0.0.1"},
	}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Role 9", "Handler nil", "Pool is 300 bytes", `BindAddr "localhost"`, "BindPort 70000", `Join "bad:port"`, `Join ""`, `AllowedCIDRs "10.0.0.1"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "Join "); n != 2 {
		t.Errorf("%d Join entries refused, want 2:\n%v", n, err)
	}
}

// bubble starts n nodes in a bubble, all joining the first, and returns them
// when they see each other.
func bubble(t *testing.T, net *gossiptest.TransportNetwork, n int, conf func(i int, c *mesh.Config)) []node {
	t.Helper()
	var nodes []node
	var first string
	for i := range n {
		tr := net.Transport()
		cfg := mesh.Config{NodeName: fmt.Sprintf("n%d", i), Transport: tr}
		if i == 0 {
			first = tr.Addr()
		} else {
			cfg.Join = []string{first}
			cfg.Role = mesh.RoleAgent
		}
		if conf != nil {
			conf(i, &cfg)
		}
		nodes = append(nodes, start(t, cfg))
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(30 * time.Second)
	for i, nd := range nodes {
		if nd.peers() != n-1 {
			t.Fatalf("node %d sees %d others, want %d", i, nd.peers(), n-1)
		}
	}
	return nodes
}

// inBubbles runs f over IPv4 and over IPv6, with fake time, and lets memberlist's goroutines end after it:
// its Shutdown does not wait for them.
func inBubbles(t *testing.T, f func(t *testing.T, ipv6 bool)) {
	for name, ipv6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				t.Cleanup(func() { time.Sleep(2 * time.Minute) }) // runs last
				f(t, ipv6)
			})
		})
	}
}

func TestLossyNetworkDeliversMost(t *testing.T) {
	inBubbles(t, func(t *testing.T, ipv6 bool) {
		net := gossiptest.NewTransportNetwork(gossiptest.TransportConfig{Seed: 1, IPv6: ipv6, Loss: 0.05, Delay: time.Millisecond, Jitter: 5 * time.Millisecond})
		nodes := bubble(t, net, 12, nil)
		for i := range 200 {
			for _, nd := range nodes[1:] {
				if err := nd.Send(wire.NodeHash("n0"), fmt.Appendf(nil, "%s %d", nd.Name(), i)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(25 * time.Millisecond)
		}
		time.Sleep(time.Second)
		picker := nodes[0]
		picker.recorder.mu.Lock()
		defer picker.recorder.mu.Unlock()
		if got, all := len(picker.msgs), 200*11; got < all*90/100 || got > all*99/100 {
			t.Errorf("%d of %d messages arrived at 5 %% loss", got, all)
		}
		if len(picker.down) != 0 {
			t.Errorf("nodes falsely down: %v", picker.down)
		}
	})
}

func TestPartitionIsNoticedAndHeals(t *testing.T) {
	inBubbles(t, func(t *testing.T, ipv6 bool) {
		net := gossiptest.NewTransportNetwork(gossiptest.TransportConfig{Seed: 2, IPv6: ipv6, Delay: time.Millisecond})
		nodes := bubble(t, net, 5, nil)
		addr := nodes[4].LocalAddr()
		for _, nd := range nodes[:4] {
			net.Cut(addr, nd.LocalAddr(), true)
			net.Cut(nd.LocalAddr(), addr, true)
		}
		time.Sleep(20 * time.Second)
		if got := nodes[0].peers(); got != 3 {
			t.Errorf("picker sees %d others after the cut, want 3", got)
		}
		for _, nd := range nodes[:4] {
			net.Cut(addr, nd.LocalAddr(), false)
			net.Cut(nd.LocalAddr(), addr, false)
		}
		// Everybody gave everybody up: only joining again heals it.
		time.Sleep(3 * time.Minute)
		for i, nd := range nodes {
			if got := nd.peers(); got != 4 {
				t.Errorf("node %d sees %d others after healing, want 4", i, got)
			}
		}
	})
}

// A stuck handler must cost its own messages only, the oldest first.
func TestSlowHandlerDropsOldest(t *testing.T) {
	inBubbles(t, func(t *testing.T, ipv6 bool) {
		net := gossiptest.NewTransportNetwork(gossiptest.TransportConfig{Seed: 3, IPv6: ipv6, Delay: time.Millisecond})
		nodes := bubble(t, net, 3, func(i int, c *mesh.Config) {
			if i == 0 {
				c.InboxDepth = 10
				c.Handler = &recorder{slow: time.Second}
			}
		})
		for i := range 100 {
			if err := nodes[1].Send(wire.NodeHash("n0"), fmt.Appendf(nil, "%d", i)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		if got := nodes[0].Stats().InboxDropped; got < 80 || got > 92 {
			t.Errorf("%d messages dropped, want about 89", got)
		}
		if !nodes[0].has("99") || nodes[0].has("50") {
			t.Errorf("want the newest kept and the older dropped, got %v", nodes[0].msgs)
		}
		if got := nodes[0].peers(); got != 2 {
			t.Errorf("membership suffered: %d others, want 2", got)
		}
	})
}

func TestKeyRotation(t *testing.T) {
	inBubbles(t, func(t *testing.T, ipv6 bool) {
		net := gossiptest.NewTransportNetwork(gossiptest.TransportConfig{Seed: 4, IPv6: ipv6})
		files := []string{keyFile(t, key(1)), keyFile(t, key(1)), keyFile(t, key(1))}
		var logs logBuffer
		nodes := bubble(t, net, 3, func(i int, c *mesh.Config) {
			c.KeyFile = files[i]
			c.Logger = logger(&logs)
		})
		step := func(lines ...string) {
			for _, f := range files {
				writeKeys(t, f, lines...)
				time.Sleep(7 * time.Second) // not all nodes at once
			}
		}
		step(key(1), key(2))
		step(key(2), key(1))
		step(key(2))
		writeKeys(t, files[0], "oops")
		time.Sleep(20 * time.Second)
		if err := nodes[1].SendReliable(wire.NodeHash("n0"), []byte("after")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for i, nd := range nodes {
			s := nd.Stats()
			if s.KeyReloads != 3 || s.KeyMismatches != 0 || nd.peers() != 2 {
				t.Errorf("node %d: %d reloads (want 3), %d mismatches (want 0), %d peers (want 2)", i, s.KeyReloads, s.KeyMismatches, nd.peers())
			}
		}
		if s := nodes[0].Stats(); s.KeyErrors != 1 || !nodes[0].has("after") {
			t.Errorf("after a faulty file: %d key errors (want 1, said once), message arrived: %v", s.KeyErrors, nodes[0].has("after"))
		}
		if !strings.Contains(logs.String(), "line 1 is no AES-256 key") {
			t.Errorf("the faulty line is not named:\n%s", logs.String())
		}
	})
}

// BenchmarkPackets sends packets of 900 bytes to one node over loopback, ten at a
// time, encrypted.
func BenchmarkPackets(b *testing.B) {
	path := filepath.Join(b.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(key(1)), 0o600); err != nil {
		b.Fatal(err)
	}
	got := make(chan struct{}, 1024)
	run := func(cfg mesh.Config) (*mesh.Mesh, func()) {
		cfg.BindAddr, cfg.KeyFile, cfg.Role = "127.0.0.1", path, mesh.RolePicker
		m, err := mesh.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		return m, func() {
			cancel()
			if err := <-done; err != nil {
				b.Error(err)
			}
		}
	}
	to, stopTo := run(mesh.Config{NodeName: "to", Handler: counter{got: got}})
	up := make(chan struct{}, 1)
	from, stopFrom := run(mesh.Config{NodeName: "from", Handler: counter{up: up}, Join: []string{to.LocalAddr()}})
	<-up
	packet := make([]byte, 900)
	hash := wire.NodeHash("to")
	b.ReportAllocs()
	for b.Loop() {
		for range 10 {
			if err := from.Send(hash, packet); err != nil {
				b.Fatal(err)
			}
		}
		for range 10 {
			select {
			case <-got:
			case <-time.After(time.Second):
				b.Fatal("packet lost")
			}
		}
	}
	stopFrom()
	stopTo()
}

// counter is a Handler that signals.
type counter struct{ got, up chan struct{} }

func (c counter) Message(time.Time, []byte)       { signal(c.got) }
func (c counter) NodeUp(time.Time, mesh.Member)   { signal(c.up) }
func (c counter) NodeDown(time.Time, mesh.Member) {}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // nobody counts
	}
}
