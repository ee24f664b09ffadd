package picker

import (
	"context"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// nobody is the handler of an agent that only sends.
type nobody struct{}

func (nobody) Message(time.Time, []byte)           {}
func (nobody) NodeUp(time.Time, mesh.Member)       {}
func (nobody) NodeDown(_ time.Time, _ mesh.Member) {}

// One real agent node on the loopback: its INFO and ticks make an endpoint with a digest.
func TestGossipOnTheLoopback(t *testing.T) {
	cfg := Default()
	cfg.Gossip.Enabled, cfg.Gossip.Bind = true, "127.0.0.1:0"
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{Picker: p, t: t}
	stop := f.running()
	defer stop()

	a := f.newAgent(0)
	waitFor(t, "the picker's address", func() bool { return p.Status().Gossip.Addr != "" })
	node, err := mesh.New(mesh.Config{
		NodeName: a.info.Node, Role: mesh.RoleAgent, Pool: cfg.Pool, BindAddr: "127.0.0.1",
		Join: []string{p.Status().Gossip.Addr}, SeedFingerprint: p.hasher.Fingerprint(), Handler: nobody{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- node.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	ids := prompt(1, 1000)
	for _, h := range chain(p, ids) {
		a.pub.Set(0, h)
	}
	a.pub.SetLoad(time.Now(), a.load)
	waitFor(t, "an endpoint with a digest that has the prompt", func() bool {
		for _, m := range node.Members() {
			if err := node.SendReliable(m.Hash, a.info.Append(nil, wire.NodeHash(a.info.Node))); err != nil {
				t.Log(err)
			}
			for _, b := range a.pub.Ticks(time.Now()) {
				if err := node.Send(m.Hash, b); err != nil {
					t.Log(err)
				}
			}
		}
		r, err := p.Explain(ctx, Request{TokenIDs: ids})
		return err == nil && r.Rung == RungDigest && r.MatchedBlocks == 62
	})
	if s := p.Status(); s.Reporting != 1 || s.Gossip.Mesh.Members != 1 {
		t.Errorf("%d endpoints report, %d nodes; want 1 and 1", s.Reporting, s.Gossip.Mesh.Members)
	}
}

// waitFor asks every 20 ms for up to 10 s of real time: sockets know no fake clock.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}
