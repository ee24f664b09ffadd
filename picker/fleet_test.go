package picker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const blockSize = 16

// agent is an engine with its agent, as far as gossip shows it: what it publishes goes straight into a picker's view.
type agent struct {
	info wire.Info
	pub  *digest.Publisher
	load wire.Load
	read time.Duration // age of load

	clock time.Time
}

// fleet is a picker and the agents that it hears.
type fleet struct {
	*Picker
	t      testing.TB
	agents []*agent
}

// newFleet makes a picker that hears n agents at 10.0.0.1:8000 and on.
func newFleet(t testing.TB, n int, change func(*Config)) *fleet {
	t.Helper()
	cfg := Default()
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{Picker: p, t: t}
	for i := range n {
		f.join(i)
	}
	f.tick()
	f.Status() // takes over what has come
	return f
}

// id is the endpoint of agent i.
func id(i int) string { return fmt.Sprintf("10.0.%d.%d:8000", i/250, 1+i%250) }

// join lets the picker hear a new agent.
func (f *fleet) join(i int) {
	f.t.Helper()
	a := f.newAgent(i)
	f.agents = append(f.agents, a)
	f.sendInfo(a)
}

// newAgent makes agent i with an empty engine of 12,000 blocks.
func (f *fleet) newAgent(i int) *agent {
	a := &agent{
		clock: time.Now(),
		info: wire.Info{
			Node: fmt.Sprintf("node-%d", i), Pool: "default", Address: "http://" + id(i), Version: 1,
			SeedFingerprint: f.hasher.Fingerprint(), BlockSize: blockSize, NumBlocks: 12000,
			Ranks: []wire.RankInfo{{Epoch: 1, GPU: bloom.GeometryFor(12000, 8)}}, KVEvents: "ok",
			Models: []wire.Model{{Name: "llama"}},
		},
		load: wire.Load{
			BlocksTotal: 12000, BlocksFree: 12000, PrefillFitted: true,
			PrefillOverhead: 20 * time.Millisecond, PrefillPerToken: 88.55e-6, PrefillQuadratic: 0.83e-9,
			DecodeStep: 18 * time.Millisecond, DecodePerToken: 85e-9,
		},
	}
	a.pub = newPublisher(a)
	return a
}

func newPublisher(a *agent) *digest.Publisher {
	return digest.New(digest.Config{
		Key: a.info.Key(0), Node: wire.NodeHash(a.info.Node), GPU: a.info.Ranks[0].GPU, Epoch: 1,
		MinInterval: time.Millisecond, MaxInterval: 200 * time.Millisecond, BytesPerSec: 1 << 30,
	})
}

func (f *fleet) sendInfo(a *agent) {
	f.t.Helper()
	f.viewMu.Lock()
	defer f.viewMu.Unlock()
	if err := f.view.Apply(time.Now(), a.info.Append(nil, wire.NodeHash(a.info.Node))); err != nil {
		f.t.Fatal(err)
	}
}

// tick lets agents (none given: all) publish what has changed, and the picker's view show it.
func (f *fleet) tick(only ...*agent) {
	f.t.Helper()
	if only == nil {
		only = f.agents
	}
	f.viewMu.Lock()
	defer f.viewMu.Unlock()
	now := time.Now()
	for _, a := range only {
		a.pub.SetLoad(a.clock.Add(201*time.Millisecond-a.read), a.load)
		for {
			a.clock = a.clock.Add(201 * time.Millisecond) // its own: something is always due
			packets := a.pub.Ticks(a.clock)
			for _, b := range packets {
				if err := f.view.Apply(now, b); err != nil {
					f.t.Fatal(err)
				}
			}
			if len(packets) < 2 {
				break
			}
		}
	}
	f.view.Poll(now)
}

// holds makes agent i report the first n tokens of a prompt as cached.
func (f *fleet) holds(i int, tokens []uint32) {
	f.t.Helper()
	a := f.agents[i]
	f.viewMu.Lock()
	for _, h := range chain(f.Picker, tokens) {
		a.pub.Set(wire.TierGPU, h)
		a.load.BlocksFree--
		a.load.BlocksCached++
	}
	f.viewMu.Unlock()
	f.tick(a)
}

func chain(p *Picker, tokens []uint32) []blockhash.Hash {
	return p.hasher.AppendChain(nil, 0, tokens, blockSize)
}

// prompt returns n token ids that only the same seed gives again.
func prompt(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = rng.Uint32N(128000)
	}
	return ids
}

func (f *fleet) pick(req Request) Decision {
	f.t.Helper()
	d, err := f.Pick(f.t.Context(), req)
	if err != nil {
		f.t.Fatalf("pick %s: %v", req.ID, err)
	}
	return d
}

// running runs the picker, and lets the agents tick, until the returned function is called.
func (f *fleet) running() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	if len(f.agents) > 0 {
		go every(ctx, 150*time.Millisecond, func(time.Time) { f.tick() })
	}
	for {
		f.mu.Lock()
		on := f.Picker.running
		f.mu.Unlock()
		if on {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("Run: %v", err)
		}
	}
}

func answered(cached, promptTokens int) Outcome {
	return Outcome{Status: 200, Connected: true, CachedTokens: cached, PromptTokens: promptTokens, OutputTokens: 100}
}
