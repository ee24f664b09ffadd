package picker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// toyEngine runs one prefill at a time, in order, and never evicts. Its agent reports blocks when their prefill is over.
type toyEngine struct {
	turn   chan struct{} // holds one token: whose prefill runs has it; a mutex would stop the fake clock
	blocks map[blockhash.Hash]bool
	agent  *agent
	fleet  *fleet
}

// serve runs a request up to its first token and returns the tokens that were cached.
func (e *toyEngine) serve(ids []uint32) (cached int) {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	hashes := chain(e.fleet.Picker, ids)
	for cached < len(hashes)*blockSize && e.blocks[hashes[cached/blockSize]] {
		cached += blockSize
	}
	cached = min(cached, (len(ids)-1)/blockSize*blockSize)
	model := e.fleet.cfg.Score.prefill()
	time.Sleep(duration(model.Time(len(ids)-cached, cached)))
	e.fleet.viewMu.Lock()
	for _, h := range hashes {
		if !e.blocks[h] {
			e.blocks[h] = true
			e.agent.pub.Set(wire.TierGPU, h)
			e.agent.load.BlocksFree--
			e.agent.load.BlocksUsed++
		}
	}
	e.agent.load.Running++
	e.fleet.viewMu.Unlock()
	return cached
}

func (e *toyEngine) end() {
	e.fleet.viewMu.Lock()
	defer e.fleet.viewMu.Unlock()
	e.agent.load.Running--
}

// The whole picker against toy engines in fake time: agents' tasks of ten calls within a millisecond on 8,192 shared
// tokens, one task per 1.1 s on three endpoints, ticks every 150 ms. Each task's context should be computed once;
// round robin computes it three times.
func TestAgentsUnderLoad(t *testing.T) {
	const tasks = 40
	for _, tt := range []struct {
		policy    string
		least, at int
	}{{PolicyPrefix, tasks, tasks + 2}, {PolicyRoundRobin, 3 * tasks, 3 * tasks}} {
		t.Run(tt.policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 0, func(c *Config) { c.Policy.Shares = map[string]float64{tt.policy: 1} })
				engines := map[string]*toyEngine{}
				for i := range 3 {
					a := f.newAgent(i)
					a.info.Ranks[0].GPU = bloom.GeometryFor(60000, 8)
					a.pub = newPublisher(a)
					a.load.BlocksTotal, a.load.BlocksFree = 60000, 60000
					f.agents = append(f.agents, a)
					f.sendInfo(a)
					engines[id(i)] = &toyEngine{turn: make(chan struct{}, 1), blocks: map[blockhash.Hash]bool{}, agent: a, fleet: f}
				}
				f.tick()
				defer f.running()()

				var cold, wrong atomic.Int64
				var ttft atomic.Int64
				call := func(name string, ids []uint32) {
					start := time.Now()
					d, err := f.Pick(t.Context(), Request{ID: name, Model: "llama", TokenIDs: ids})
					if err != nil {
						t.Error(err)
						return
					}
					e := engines[d.Endpoint.ID]
					cached := e.serve(ids)
					f.FirstToken(d)
					ttft.Add(int64(time.Since(start)))
					if 5*cached < len(ids) {
						cold.Add(1)
					}
					if diff := d.PredictedCachedTokens - cached; diff < -64 || diff > 64 {
						wrong.Add(1)
					}
					time.Sleep(3600 * time.Millisecond)
					e.end()
					f.Done(d, answered(cached, len(ids)))
				}
				rng := rand.New(rand.NewPCG(4, 2))
				var wg sync.WaitGroup
				for task := range tasks {
					time.Sleep(time.Duration(rng.ExpFloat64() * 1.1e9))
					shared := prompt(uint64(1000+task), 8192)
					for i := range 10 {
						ids := append(slices.Clone(shared), prompt(uint64(task*10+i), 500)...)
						wg.Go(func() { call(fmt.Sprint(task, "/", i), ids) })
						time.Sleep(100 * time.Microsecond)
					}
				}
				wg.Wait()
				t.Logf("%d cold of %d, mean TTFT %v, %d predictions off by more than 4 blocks",
					cold.Load(), tasks*10, time.Duration(ttft.Load()/(tasks*10)), wrong.Load())
				if n := int(cold.Load()); n < tt.least || n > tt.at {
					t.Errorf("%d cold prefills, want %d to %d", n, tt.least, tt.at)
				}
				if wrong.Load() > tasks/10 && tt.policy == PolicyPrefix {
					t.Errorf("%d predictions were off by more than 4 blocks", wrong.Load())
				}
			})
		})
	}
}

// A request that waits in the engine is not somebody else's as long as it may be one of ours.
func TestOwnRequestsAreNotOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		waiting := func(why string, asked time.Duration, want int) {
			t.Helper()
			f.agents[0].load.Waiting, f.agents[0].read = 1, asked
			f.tick()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.freshen(time.Now())
			if got := f.table.Load().lanes[0].facts.Waiting; got != want {
				t.Errorf("%s: %d waiting requests of others, want %d", why, got, want)
			}
		}
		waiting("nothing bound here", 0, 1)
		d := f.pick(Request{ID: "a", Model: "llama", TokenIDs: prompt(1, 2000)})
		waiting("before the first token", 0, 0)
		time.Sleep(time.Second)
		f.FirstToken(d)
		time.Sleep(500 * time.Millisecond)
		waiting("figures of before the first token", 600*time.Millisecond, 0)
		waiting("figures of after it", 400*time.Millisecond, 1)
	})
}
