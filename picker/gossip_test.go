package picker

import (
	"context"
	"fmt"
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

// onLoopback starts a picker with gossip on the loopback that joins the given addresses.
func onLoopback(t *testing.T, name string, join ...string) (f *fleet, stop func()) {
	t.Helper()
	cfg := Default()
	cfg.Gossip.Enabled, cfg.Gossip.Bind, cfg.Gossip.NodeName, cfg.Gossip.Join = true, "127.0.0.1:0", name, join
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f = &fleet{Picker: p, t: t}
	stop = f.running()
	waitFor(t, "the picker's address", func() bool { return p.Status().Gossip.Addr != "" })
	return f, stop
}

// node starts the mesh node of an agent that joins f. What the agent publishes goes to all members each time that say is called.
func (f *fleet) node(a *agent) (say func(), stop func()) {
	f.t.Helper()
	node, err := mesh.New(mesh.Config{
		NodeName: a.info.Node, Role: mesh.RoleAgent, Pool: f.cfg.Pool, BindAddr: "127.0.0.1",
		Join: []string{f.Status().Gossip.Addr}, SeedFingerprint: f.hasher.Fingerprint(), Handler: nobody{},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- node.Run(ctx) }()
	say = func() {
		members := node.Members()
		if len(members) == 0 {
			return // a tick that nobody hears is a gap
		}
		ticks := a.pub.Ticks(time.Now())
		for _, m := range members {
			if err := node.SendReliable(m.Hash, a.info.Append(nil, wire.NodeHash(a.info.Node))); err != nil {
				f.t.Log(err)
			}
			for _, b := range ticks {
				if err := node.Send(m.Hash, b); err != nil {
					f.t.Log(err)
				}
			}
		}
	}
	return say, func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	}
}

// One real agent node on the loopback: its INFO and ticks make an endpoint with a digest.
func TestGossipOnTheLoopback(t *testing.T) {
	f, stop := onLoopback(t, "gateway")
	defer stop()
	a := f.newAgent(0)
	say, leave := f.node(a)
	defer leave()
	ids := prompt(1, 1000)
	for _, h := range chain(f.Picker, ids) {
		a.pub.Set(0, h)
	}
	a.pub.SetLoad(time.Now(), a.load)
	waitFor(t, "an endpoint with a digest that has the prompt", func() bool {
		say()
		r, err := f.Explain(t.Context(), Request{TokenIDs: ids})
		return err == nil && r.Rung == RungDigest && r.MatchedBlocks == 62
	})
	if s := f.Status(); s.Reporting != 1 || s.Gossip.Mesh.Members != 1 {
		t.Errorf("%d endpoints report, %d nodes; want 1 and 1", s.Reporting, s.Gossip.Mesh.Members)
	}
}

// Three gateways and two agents on the loopback: what one gateway binds the others count. The second goes elsewhere, the third
// waits, until the first leaves and its request with it.
func TestGatewaysOnTheLoopback(t *testing.T) {
	var gateways [3]*fleet
	var stops [3]func()
	var join []string
	for i := range gateways {
		gateways[i], stops[i] = onLoopback(t, fmt.Sprintf("gateway-%d", i), join...)
		join = []string{gateways[0].Status().Gossip.Addr}
		if i > 0 {
			defer stops[i]()
		}
	}
	var says [2]func()
	for i := range says {
		a := gateways[0].newAgent(i)
		a.pub.SetLoad(time.Now(), a.load)
		say, leave := gateways[0].node(a)
		says[i] = say
		defer leave()
	}
	meet := func(what string, ok func() bool) {
		t.Helper()
		waitFor(t, what, func() bool {
			for _, say := range says {
				say()
			}
			return ok()
		})
	}
	meet("all to meet", func() bool {
		for _, g := range gateways {
			s := g.Status()
			if s.Reporting != 2 || s.Gossip.Hint.Gateways != 2 || s.Endpoints[0].Rung != RungDigest || s.Endpoints[1].Rung != RungDigest {
				return false
			}
		}
		return true
	})
	others := func(g *fleet, id string) int {
		for _, e := range g.Status().Endpoints {
			if e.ID == id {
				return e.Others
			}
		}
		return -1
	}

	const tokens = 60_000 // take eight seconds
	first := gateways[0].pick(Request{ID: "first", TokenIDs: prompt(1, tokens)})
	meet("the others to hear of the first request", func() bool {
		return others(gateways[1], first.Endpoint.ID) == 1 && others(gateways[2], first.Endpoint.ID) == 1
	})
	second := gateways[1].pick(Request{ID: "second", TokenIDs: prompt(2, tokens)})
	if second.Endpoint == first.Endpoint {
		t.Fatalf("both requests went to %s", first.Endpoint.ID)
	}
	meet("the third to hear of the second request", func() bool { return others(gateways[2], second.Endpoint.ID) == 1 })

	bound := make(chan Decision)
	go func() {
		d, err := gateways[2].Pick(context.Background(), Request{ID: "third", TokenIDs: prompt(3, tokens)})
		if err != nil {
			t.Error(err)
		}
		bound <- d
	}()
	meet("the third request to wait", func() bool { return gateways[2].Status().Held.Requests == 1 })
	stops[0]()
	left := time.Now()
	third := <-bound
	if took := time.Since(left); third.Endpoint != first.Endpoint || third.Reason != "ready" || took > time.Second {
		t.Errorf("the third request went to %q (%s) %v after the first one's gateway left, want %s at once", third.Endpoint.ID, third.Reason, took, first.Endpoint.ID)
	}
	for i, g := range gateways[1:] {
		if n := g.Status().Gossip.Hint.Gateways; n != 1 {
			t.Errorf("gateway %d tells %d others, want 1", i+1, n)
		}
	}
	meet("the second to know where all are", func() bool {
		return others(gateways[1], first.Endpoint.ID) == 1 && others(gateways[1], second.Endpoint.ID) == 0
	})
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
