package sim

import (
	"fmt"
	"iter"
	"time"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

// fleet is the product itself: each pod's engine events go through a block set and a digest, the ticks to every gateway's view,
// and each gateway's picker decides by what it has heard.
type fleet struct {
	w        *world
	gateways []*gateway
	agents   []*agent
	pods     map[string]int // by endpoint id
}

const (
	pollEvery   = 20 * time.Millisecond  // the view's questions, as in a picker that runs
	scrapeBusy  = 100 * time.Millisecond // an agent's reading of its engine
	scrapeIdle  = time.Second
	bitsOfBlock = 8
	engineBlock = 16 // vLLM's default block size, for which the defaults are
)

func newFleet(w *world) (policy, error) {
	f := &fleet{w: w, pods: map[string]int{}}
	cfg := picker.Default()
	cfg.Receipts, cfg.Gossip.NodeName = 0, "gateway"
	// In blocks: as many tokens as with the engine's own block size.
	cfg.Score.MinMatch = max(1, cfg.Score.MinMatch*engineBlock/w.cfg.Trace.BlockTokens)
	for i := range w.cfg.Gateways {
		s, err := picker.NewStepped(cfg, at(0), w.cfg.Seed+uint64(i))
		if err != nil {
			return nil, err
		}
		f.gateways = append(f.gateways, &gateway{fleet: f, index: i, picker: s, woken: never})
	}
	for i, p := range w.pods {
		a := newAgent(w, p)
		f.pods[fmt.Sprintf("10.0.0.%d:8000", i+1)] = i
		f.agents = append(f.agents, a)
		info := a.info.Append(nil, a.node)
		for _, g := range f.gateways {
			if err := g.picker.Hear(at(0), info); err != nil {
				return nil, fmt.Errorf("gateway %d hears of pod %d: %w", g.index, i, err)
			}
		}
		w.at(0, func(now time.Duration) { f.scrape(now, a) })
	}
	for _, g := range f.gateways {
		w.at(0, g.poll)
		g.step(0)
	}
	return f, nil
}

func (f *fleet) arrive(now time.Duration, j *job) {
	g := f.gateways[j.gateway]
	req := picker.Request{
		ID: fmt.Sprint(j.index), PromptTokens: j.prompt(), Session: fmt.Sprint(j.request.session),
		Chains: []blockhash.Chain{{BlockSize: f.w.cfg.Trace.BlockTokens, Seed: f.w.prompts.hasher.Fingerprint(), Hashes: j.request.chain}},
	}
	s := g.picker.Submit(at(now), req, func(d picker.Decision, err error) {
		if err != nil {
			f.w.refuse(f.w.now, j)
			return
		}
		j.state = d
		f.w.send(f.w.now, j, f.pods[d.Endpoint.ID])
	})
	if j.pod < 0 && !j.failed {
		j.state = s
	}
	g.wake(now)
}

func (f *fleet) first(now time.Duration, j *job) {
	g := f.gateways[j.gateway]
	g.picker.FirstToken(at(now), j.state.(picker.Decision))
	g.wake(now)
}

func (f *fleet) end(now time.Duration, j *job) {
	g := f.gateways[j.gateway]
	g.picker.Done(at(now), j.state.(picker.Decision), picker.Outcome{
		Status: 200, Connected: true, CachedTokens: j.cached, PromptTokens: j.prompt(), OutputTokens: j.output(),
	})
	g.wake(now)
}

func (f *fleet) gone(now time.Duration, j *job) {
	if s, ok := j.state.(*picker.Submitted); ok {
		f.gateways[j.gateway].picker.Withdraw(at(now), s)
	}
}

func (f *fleet) changed(now time.Duration, p *pod) {
	a := f.agents[p.index]
	a.hear(now, p.engine.events())
	f.publish(now, a)
}

// gateway is one picker.
type gateway struct {
	fleet  *fleet
	index  int
	picker *picker.Stepped
	woken  time.Duration // of the next step
}

// step gives the picker its turn.
func (g *gateway) step(now time.Duration) {
	next := g.picker.Step(at(now)).Sub(start)
	if next < g.woken {
		g.woken = next
		g.fleet.w.at(next, func(now time.Duration) {
			if g.woken == now {
				g.woken = never
				g.step(now)
			}
		})
	}
}

// wake is for whoever has told the picker something.
func (g *gateway) wake(now time.Duration) { g.step(now) }

// poll carries the view's questions to the agents and their answers back.
func (g *gateway) poll(now time.Duration) {
	w := g.fleet.w
	for _, out := range g.picker.Ask(at(now)) {
		for _, a := range g.fleet.agents {
			if a.node != out.Node {
				continue
			}
			w.at(now+w.cfg.StateDelay, func(now time.Duration) {
				for _, packet := range a.answer(now, out.Packet) {
					g.hear(now+w.cfg.StateDelay, packet)
				}
			})
		}
	}
	w.at(now+pollEvery, g.poll)
}

// hear delivers a packet.
func (g *gateway) hear(when time.Duration, packet []byte) {
	g.fleet.w.at(when, func(now time.Duration) {
		_ = g.picker.Hear(at(now), packet) // the view counts what is wrong with it
		g.step(now)
	})
}

// agent follows one pod's engine.
type agent struct {
	pod   *pod
	w     *world
	info  wire.Info
	node  uint64
	set   *blockset.Set
	pub   *digest.Publisher
	woken time.Duration
}

func newAgent(w *world, p *pod) *agent {
	blocks := w.cfg.PodTokens / w.cfg.Trace.BlockTokens
	a := &agent{pod: p, w: w, woken: never}
	a.info = wire.Info{
		Node: fmt.Sprintf("agent-%d", p.index), Pool: "default", Address: fmt.Sprintf("http://10.0.0.%d:8000", p.index+1), Version: 1,
		SeedFingerprint: w.prompts.hasher.Fingerprint(), BlockSize: uint32(w.cfg.Trace.BlockTokens), NumBlocks: uint32(blocks),
		Engine: "vllm", KVEvents: "ok", Models: []wire.Model{{Name: "model"}},
		Ranks: []wire.RankInfo{{Epoch: 1, GPU: bloom.GeometryFor(blocks, bitsOfBlock)}},
	}
	a.node = wire.NodeHash(a.info.Node)
	a.set = blockset.New(blockset.Config{Hasher: w.prompts.hasher, Blocks: blocks}, sink{a})
	a.pub = digest.New(digest.Config{
		Key: a.info.Key(0), Node: a.node, GPU: a.info.Ranks[0].GPU, Epoch: 1,
		Blocks: func(t wire.Tier) iter.Seq[blockhash.Hash] { return a.set.Visible(blockset.Tier(t)) },
	})
	a.pub.SetInfoVersion(1)
	return a
}

// sink passes changes of the set on to the digest.
type sink struct{ a *agent }

func (s sink) Set(t blockset.Tier, h blockhash.Hash)   { s.a.pub.Set(wire.Tier(t), h) }
func (s sink) Clear(t blockset.Tier, h blockhash.Hash) { s.a.pub.Clear(wire.Tier(t), h) }

// hear takes a step's events.
func (a *agent) hear(now time.Duration, events []pool.Event) {
	if len(events) == 0 {
		return
	}
	batch := kvevent.Batch{TS: float64(at(now).UnixMicro()) / 1e6}
	for _, e := range events {
		hashes := make([]uint64, len(e.Hashes))
		for i, d := range e.Hashes {
			hashes[i] = d.Low64()
		}
		if e.Kind == pool.Removed {
			batch.Events = append(batch.Events, &kvevent.Removed{Hashes: hashes, Medium: "GPU", Group: -1})
			continue
		}
		stored := &kvevent.Stored{Hashes: hashes, BlockSize: e.BlockSize, Medium: "GPU", Group: -1, Tokens: make([]uint32, 0, len(hashes)*e.BlockSize)}
		for i, d := range e.Hashes {
			tokens := e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize] // of an answer
			if id, ok := a.w.prompts.ids[d]; ok {
				tokens = a.w.prompts.tokens(id)
			}
			stored.Tokens = append(stored.Tokens, tokens...)
		}
		if e.Parent != nil {
			stored.Parent, stored.HasParent = e.Parent.Low64(), true
		}
		batch.Events = append(batch.Events, stored)
	}
	a.set.Apply(at(now), batch)
}

// answer does what an agent does with a gateway's question.
func (a *agent) answer(now time.Duration, packet []byte) [][]byte {
	_, m, err := wire.Decode(packet)
	if err != nil {
		return nil
	}
	var replies []digest.Reply
	out := [][]byte{a.info.Append(nil, a.node)}
	switch m := m.(type) {
	case *wire.Nack:
		if !m.WantInfo {
			out = nil
		}
		replies = a.pub.Nack(at(now), m)
	case *wire.Hello:
		var known *wire.KnownStream
		for i := range m.Known {
			if m.Known[i].Key == a.info.Key(0) {
				known = &m.Known[i]
			}
		}
		replies = a.pub.Hello(at(now), known)
	}
	for _, r := range replies {
		out = append(out, r.Packet)
	}
	return out
}

// scrape reads the engine's metrics.
func (f *fleet) scrape(now time.Duration, a *agent) {
	l := a.pod.engine.load()
	c := f.w.clock
	cached := min(max(a.set.Stats().Copies-l.used, 0), l.blocks-l.used)
	a.pub.SetLoad(at(now), wire.Load{
		Running: uint32(l.running), Waiting: uint32(l.waiting), BlocksTotal: uint32(l.blocks), BlocksUsed: uint32(l.used),
		BlocksCached: uint32(cached), BlocksFree: uint32(l.blocks - l.used - cached), VictimIdle: a.set.VictimIdle(at(now)),
		PrefillOverhead: c.Overhead, PrefillPerToken: c.PerToken, PrefillQuadratic: c.Quadratic, PrefillFitted: true,
		DecodeStep: c.Step, DecodePerToken: c.PerKV,
	})
	f.publish(now, a)
	next := scrapeBusy
	if l.running+l.waiting == 0 {
		next = scrapeIdle
	}
	f.w.at(now+next, func(now time.Duration) { f.scrape(now, a) })
}

// publish sends what is due, and comes back when something will be.
func (f *fleet) publish(now time.Duration, a *agent) {
	for _, packet := range a.pub.Ticks(at(now)) {
		for _, g := range f.gateways {
			g.hear(now+f.w.cfg.StateDelay, packet)
		}
	}
	due := a.pub.Due(at(now)).Sub(start)
	if due < a.woken || a.woken <= now {
		a.woken = due
		f.w.at(due, func(now time.Duration) {
			if a.woken == now {
				a.woken = never
				f.publish(now, a)
			}
		})
	}
}
