package view

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/gossiptest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

const (
	testPool = "llama"
	testSeed = 0xfeed
	step     = 10 * time.Millisecond
)

var start = time.Unix(1_790_000_000, 0)

// agent is a publisher with the exact set behind it.
type agent struct {
	name    string
	hash    uint64
	pub     *digest.Publisher
	info    wire.Info
	exact   [wire.Tiers]*bloom.Counting
	blocks  [wire.Tiers][]blockhash.Hash
	rng     *rand.Rand
	skew    time.Duration // of its clock
	gpu     bloom.Geometry
	all     bloom.Geometry
	lastRun uint64
}

func newAgent(i int, seed uint64) *agent {
	a := &agent{rng: rand.New(rand.NewPCG(seed, uint64(i))), gpu: bloom.GeometryFor(3000, 8)}
	if i%2 == 0 {
		a.all = bloom.GeometryFor(9000, 8)
	}
	a.info = wire.Info{Pool: testPool, Address: fmt.Sprintf("http://10.0.0.%d:8000", i), SeedFingerprint: testSeed, BlockSize: 16, NumBlocks: 3000}
	a.boot(1000)
	return a
}

// boot starts the agent's process: a new node, a new epoch, an empty cache.
func (a *agent) boot(epoch uint64) {
	a.lastRun++
	a.name = fmt.Sprintf("%s-%d", a.info.Address, a.lastRun)
	a.hash = wire.NodeHash(a.name)
	a.info.Node, a.info.Version = a.name, 0
	a.pub = digest.New(digest.Config{Key: a.key(), Node: a.hash, GPU: a.gpu, All: a.all, Epoch: epoch})
	a.empty()
	a.announce()
}

func (a *agent) empty() {
	for t, g := range [wire.Tiers]bloom.Geometry{a.gpu, a.all} {
		a.exact[t], a.blocks[t] = nil, nil
		if g.Buckets > 0 {
			a.exact[t] = bloom.NewCounting(g)
		}
	}
}

// announce makes a new INFO.
func (a *agent) announce() {
	a.info.Version++
	a.info.Ranks = []wire.RankInfo{{Epoch: a.pub.Epoch(), GPU: a.gpu, All: a.all}}
	a.pub.SetInfoVersion(a.info.Version)
}

func (a *agent) key() wire.Key { return a.info.Key(0) }

// restartEngine empties the cache under the same agent.
func (a *agent) restartEngine() {
	a.pub.Restart(a.pub.Epoch() + 1)
	a.empty()
	a.announce()
}

// churn stores and evicts up to n blocks in each tier.
func (a *agent) churn(n int) {
	for t, limit := range [wire.Tiers]int{3000, 9000} {
		if a.exact[t] == nil {
			continue
		}
		for range a.rng.IntN(n + 1) {
			list := &a.blocks[t]
			if have := len(*list); have == limit || have > 0 && a.rng.IntN(5) < 2 {
				i := a.rng.IntN(have)
				h := (*list)[i]
				(*list)[i] = (*list)[have-1]
				*list = (*list)[:have-1]
				a.exact[t].Remove(h)
				a.pub.Clear(wire.Tier(t), h)
				continue
			}
			h := blockhash.Hash(a.rng.Uint64())
			*list = append(*list, h)
			a.exact[t].Add(h)
			a.pub.Set(wire.Tier(t), h)
		}
	}
}

// world is agents and gateways on one network.
type world struct {
	t        *testing.T
	net      *gossiptest.Net
	agents   []*agent
	gateways []*gateway
}

type gateway struct {
	name string
	hash uint64
	v    *View
	skew time.Duration
	// asleep: it neither polls nor reads.
	asleep bool
}

func newWorld(t *testing.T, seed uint64, agents, gateways int, c gossiptest.Conditions) *world {
	w := &world{t: t, net: gossiptest.NewNet(seed, start, c)}
	for i := range agents {
		w.agents = append(w.agents, newAgent(i, seed))
	}
	for i := range gateways {
		w.gateways = append(w.gateways, &gateway{})
		w.boot(w.gateways[i], fmt.Sprintf("gateway-%d", i))
	}
	return w
}

// boot starts a gateway's process, with an empty view.
func (w *world) boot(g *gateway, name string) {
	g.name, g.hash = name, wire.NodeHash(name)
	g.v = New(Config{Node: name, Pool: testPool, SeedFingerprint: testSeed, Seed: g.hash, CheckWordsPerSec: 10_000})
	for _, a := range w.agents {
		g.v.NodeUp(w.net.Now().Add(g.skew), a.name)
	}
}

// reboot restarts an agent's process: membership sees one node die, another join.
func (w *world) reboot(a *agent) {
	old := a.name
	a.boot(a.pub.Epoch() + 1)
	for _, g := range w.gateways {
		g.v.NodeDown(w.net.Now().Add(g.skew), old)
		g.v.NodeUp(w.net.Now().Add(g.skew), a.name)
	}
}

// run lets time pass; each step every agent changes up to churn blocks a tier.
func (w *world) run(d time.Duration, churn int) {
	w.t.Helper()
	for end := w.net.Now().Add(d); w.net.Now().Before(end); {
		for _, a := range w.agents {
			a.churn(churn)
			for _, b := range a.pub.Ticks(w.net.Now().Add(a.skew)) {
				for _, g := range w.gateways {
					w.net.Send(a.hash, g.hash, b, false)
				}
			}
		}
		for _, g := range w.gateways {
			if g.asleep {
				continue
			}
			for _, out := range g.v.Poll(w.net.Now().Add(g.skew)) {
				if !out.Reliable && len(out.Packet) > wire.MaxPacketBytes {
					w.t.Fatalf("datagram of %d bytes", len(out.Packet))
				}
				w.net.Send(g.hash, out.Node, out.Packet, out.Reliable)
			}
		}
		w.net.Advance(step, w.deliver)
	}
}

func (w *world) deliver(m gossiptest.Message) {
	for _, g := range w.gateways {
		if g.hash == m.To && !g.asleep {
			g.v.Apply(w.net.Now().Add(g.skew), m.Packet) // drops are expected and counted
		}
	}
	for _, a := range w.agents {
		if a.hash == m.To {
			w.answer(a, m)
		}
	}
}

// answer is what the agent's shell does with a gateway's message.
func (w *world) answer(a *agent, m gossiptest.Message) {
	w.t.Helper()
	_, msg, err := wire.Decode(m.Packet)
	if err != nil {
		w.t.Fatal(err)
	}
	now := w.net.Now().Add(a.skew)
	var replies []digest.Reply
	sendInfo := false
	switch msg := msg.(type) {
	case *wire.Nack:
		sendInfo = msg.WantInfo
		replies = a.pub.Nack(now, msg)
	case *wire.Hello:
		sendInfo = true
		var known *wire.KnownStream
		for i := range msg.Known {
			if msg.Known[i].Key == a.key() {
				known = &msg.Known[i]
			}
		}
		if known != nil && a.pub.Behind(known) {
			a.pub.Supersede(known.Epoch + 1)
			a.announce()
		}
		replies = a.pub.Hello(now, known)
	}
	if sendInfo {
		w.net.Send(a.hash, m.From, a.info.Append(nil, a.hash), true)
	}
	for _, r := range replies {
		w.net.Send(a.hash, m.From, r.Packet, r.Reliable)
	}
}

// fault says how a gateway's picture of an agent differs from the exact one, "" if
// it does not.
func (w *world) fault(g *gateway, a *agent) string {
	if f := w.stateFault(g, a); f != "" {
		return f
	}
	snap := g.v.Snapshot()
	i, _ := snap.Find(a.key())
	s := snap.Streams[i]
	for t, c := range [wire.Tiers]Column{s.GPU, s.All} {
		if a.exact[t] == nil {
			if c.Matrix != nil {
				return fmt.Sprintf("tier %d has a column", t)
			}
			continue
		}
		if c.Matrix == nil {
			return fmt.Sprintf("tier %d has no column", t)
		}
		if !slices.Equal(c.Matrix.Column(c.Index, nil), a.exact[t].Words()) {
			return fmt.Sprintf("tier %d differs", t)
		}
		for _, h := range a.blocks[t] {
			if !c.Matrix.Has(c.Index, h) {
				return fmt.Sprintf("tier %d denies block %x", t, h)
			}
		}
	}
	return ""
}

// stateFault is what the stream itself says.
func (w *world) stateFault(g *gateway, a *agent) string {
	snap := g.v.Snapshot()
	i, ok := snap.Find(a.key())
	if !ok {
		return "no stream"
	}
	s := snap.Streams[i]
	if s.Epoch != a.pub.Epoch() {
		return fmt.Sprintf("epoch %d, want %d", s.Epoch, a.pub.Epoch())
	}
	if s.Problem != "" {
		return s.Problem
	}
	if s.Live.Facts().GapOpen {
		return "gap open"
	}
	return ""
}

// converge runs without changes until every gateway has the exact picture, and
// returns how long that took; it fails after limit.
func (w *world) converge(limit time.Duration) time.Duration {
	w.t.Helper()
	begin := w.net.Now()
	for {
		fault := w.anyFault()
		took := w.net.Now().Sub(begin)
		if fault == "" {
			for _, g := range w.gateways {
				if n := g.v.Stats().Mismatches; n > 0 { // checksums are a net under the rules, not one of them
					w.t.Errorf("%s: %d segments had to be healed by checksum", g.name, n)
				}
			}
			return took
		}
		if took >= limit {
			w.t.Fatalf("not the exact picture after %v: %s; stats %+v, %+v", took, fault, w.gateways[0].v.Stats(), w.agents[0].pub.Stats())
		}
		w.run(step, 0)
	}
}

// anyFault looks at the bits, which takes long, only where all else is right.
func (w *world) anyFault() string {
	for _, fault := range []func(*gateway, *agent) string{w.stateFault, w.fault} {
		for _, g := range w.gateways {
			for _, a := range w.agents {
				if f := fault(g, a); f != "" {
					return fmt.Sprintf("%s of %s: %s", g.name, a.name, f)
				}
			}
		}
	}
	return ""
}
