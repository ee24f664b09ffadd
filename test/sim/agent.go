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
	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

const (
	scrapeBusy  = 100 * time.Millisecond // an agent's reading of its engine
	scrapeIdle  = time.Second
	bitsOfBlock = 8
	exactBits   = 64 // of a block: hardly a false positive, with as many positions as there can be
)

// agent follows one pod's engine.
type agent struct {
	pod   *pod
	w     *world
	info  wire.Info
	node  uint64
	set   *blockset.Set
	pub   *digest.Publisher
	woken time.Duration

	silent bool
	claims *agent   // whose blocks it claims too
	liars  []*agent // who claim what is stored here
}

// start gives a pod an agent, which says hello to all gateways.
func (f *fleet) start(now time.Duration, p *pod) {
	a := newAgent(f.w, p)
	f.agents[p.index] = a
	f.mend(a)
	info := a.info.Append(nil, a.node)
	for _, g := range f.gateways {
		// As when a node joins: over a stream, nothing is lost.
		f.w.at(now, func(now time.Duration) { _ = g.picker.Hear(at(now), info) })
	}
	f.w.at(now, func(now time.Duration) { f.scrape(now, a) })
}

func newAgent(w *world, p *pod) *agent {
	blocks, lower := w.cfg.PodTokens/w.cfg.Trace.BlockTokens, w.cfg.HostTokens/w.cfg.Trace.BlockTokens
	cfg := digest.Config{Epoch: p.life + 1, GPU: bloom.GeometryFor(blocks, bitsOfBlock)}
	if lower > 0 {
		cfg.All = bloom.GeometryFor(blocks+lower, bitsOfBlock)
	}
	if w.cfg.Policy == exact {
		cfg.MinInterval, cfg.BytesPerSec = time.Millisecond, 1<<30
		cfg.GPU = bloom.Geometry{Buckets: bloom.GeometryFor(blocks, exactBits).Buckets, K: bloom.MaxK}
		if lower > 0 {
			cfg.All = bloom.Geometry{Buckets: bloom.GeometryFor(blocks+lower, exactBits).Buckets, K: bloom.MaxK}
		}
	}
	a := &agent{pod: p, w: w, woken: never}
	a.info = wire.Info{
		Node: fmt.Sprintf("agent-%d", p.index), Pool: "default", Address: "http://" + endpointID(p.index), Version: uint32(p.life) + 1,
		SeedFingerprint: w.prompts.hasher.Fingerprint(), BlockSize: uint32(w.cfg.Trace.BlockTokens), NumBlocks: uint32(blocks),
		Engine: "vllm", KVEvents: "ok", Models: []wire.Model{{Name: "model"}},
		Ranks: []wire.RankInfo{{Epoch: cfg.Epoch, GPU: cfg.GPU, All: cfg.All}},
	}
	a.node = wire.NodeHash(a.info.Node)
	a.set = blockset.New(blockset.Config{Hasher: w.prompts.hasher, Blocks: blocks}, sink{a})
	cfg.Key, cfg.Node, cfg.Blocks = a.info.Key(0), a.node, a.claimed
	a.pub = digest.New(cfg)
	a.pub.SetInfoVersion(a.info.Version)
	return a
}

// claimed are the blocks that the digest is made of.
func (a *agent) claimed(t wire.Tier) iter.Seq[blockhash.Hash] {
	return func(yield func(blockhash.Hash) bool) {
		for _, of := range []*agent{a, a.claims} {
			if of == nil {
				return
			}
			for h := range of.set.Visible(blockset.Tier(t)) {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// sink passes changes of the set on to the digest.
type sink struct{ a *agent }

func (s sink) Set(t blockset.Tier, h blockhash.Hash) {
	s.a.pub.Set(wire.Tier(t), h)
	for _, l := range s.a.liars {
		l.pub.Set(wire.Tier(t), h)
	}
}

func (s sink) Clear(t blockset.Tier, h blockhash.Hash) {
	s.a.pub.Clear(wire.Tier(t), h)
	for _, l := range s.a.liars {
		l.pub.Clear(wire.Tier(t), h)
	}
}

// hear takes a step's events.
func (a *agent) hear(now time.Duration, events []kvEvent) {
	if len(events) == 0 {
		return
	}
	batch := kvevent.Batch{TS: float64(at(now).UnixMicro()) / 1e6}
	for _, e := range events {
		hashes := make([]uint64, len(e.Hashes))
		for i, d := range e.Hashes {
			hashes[i] = d.Low64()
		}
		medium := "GPU"
		if e.host {
			medium = "CPU"
		}
		switch {
		case e.Kind == pool.Removed:
			batch.Events = append(batch.Events, &kvevent.Removed{Hashes: hashes, Medium: medium, Group: -1})
			continue
		case e.host: // says nothing but where
			batch.Events = append(batch.Events, &kvevent.Stored{Hashes: hashes, Medium: medium, Group: -1})
			continue
		}
		stored := &kvevent.Stored{Hashes: hashes, BlockSize: e.BlockSize, Medium: medium, Group: -1, Tokens: make([]uint32, 0, len(hashes)*e.BlockSize)}
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
	if err != nil || a.silent {
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
	if f.agents[a.pod.index] != a {
		return // it died
	}
	l := a.pod.engine.load()
	c := a.pod.believed()
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
	if f.agents[a.pod.index] != a || a.silent {
		return
	}
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
