package picker

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// benchFleet has n endpoints that hold 50 prompts of 32,000 tokens in all, each to a different depth in several places.
func benchFleet(b testing.TB, n int) (*fleet, [][]uint32) {
	f := newFleet(b, n, nil)
	prompts := make([][]uint32, 50)
	for i := range prompts {
		prompts[i] = prompt(uint64(i), 32000)
		for k := range 3 {
			f.holds((7*i+11*k)%n, prompts[i][:32000*(k+1)/4])
		}
	}
	return f, prompts
}

// BenchmarkPick is a whole pick of a 32,000-token prompt: hash, match, price, bind, receipt, and its end.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{8, 64, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			f, prompts := benchFleet(b, n)
			ids := make([]string, 1000)
			for i := range ids {
				ids[i] = fmt.Sprint("request ", i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				d, err := f.Pick(b.Context(), Request{ID: ids[i%len(ids)], Model: "llama", TokenIDs: prompts[i%len(prompts)]})
				if err != nil {
					b.Fatal(err)
				}
				f.Done(d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
				i++
			}
		})
	}
}

// BenchmarkPickShort is a pick of a prompt of 500 tokens among 64 endpoints: all but hashing, matching and marks.
func BenchmarkPickShort(b *testing.B) {
	f := newFleet(b, 64, nil)
	ids := prompt(1, 500)
	b.ReportAllocs()
	for b.Loop() {
		d, err := f.Pick(b.Context(), Request{ID: "r", Model: "llama", TokenIDs: ids})
		if err != nil {
			b.Fatal(err)
		}
		f.Done(d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
	}
}

// BenchmarkPickParallel is BenchmarkPick with 64 endpoints by 64 callers at once, each prompt new to the fleet but for its
// first half.
func BenchmarkPickParallel(b *testing.B) {
	f, prompts := benchFleet(b, 64)
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.ReportAllocs()
	var callers atomic.Uint32
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		n := callers.Add(1)
		ids := slices.Clone(prompts[int(n)%len(prompts)])
		for pb.Next() {
			ids[16000] = n
			n += 64
			d, err := f.Pick(b.Context(), Request{Model: "llama", TokenIDs: ids})
			if err != nil {
				b.Error(err)
				return
			}
			f.Done(d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
		}
	})
}

// BenchmarkPickLocked tells for how long a pick like those of BenchmarkPickParallel and its end hold the lock.
func BenchmarkPickLocked(b *testing.B) {
	f, prompts := benchFleet(b, 64)
	var locked time.Duration
	n := uint32(0)
	for b.Loop() {
		n++
		ids := prompts[int(n)%len(prompts)]
		ids[16000] = n
		now := time.Now()
		q := f.prepared(now, Request{Model: "llama", TokenIDs: ids})
		f.mu.Lock()
		from := time.Now()
		_, err := f.admit(now, q)
		locked += time.Since(from)
		f.mu.Unlock()
		if err != nil {
			b.Fatal(err)
		}
		q.makeMarks(time.Now)
		d := q.decision
		f.release(q)
		from = time.Now()
		f.Done(d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
		locked += time.Since(from)
	}
	b.ReportMetric(float64(locked.Nanoseconds())/float64(b.N), "locked-ns/op")
}

// BenchmarkMatchAndPrice is the part of a pick that grows with the fleet.
func BenchmarkMatchAndPrice(b *testing.B) {
	for _, n := range []int{8, 64, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			f, prompts := benchFleet(b, n)
			queries := f.queriesOf(prompts)
			now := time.Now()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				f.matchAndPrice(now, queries[i%len(queries)])
				i++
			}
		})
	}
}

func (f *fleet) queriesOf(prompts [][]uint32) []*query {
	var out []*query
	for _, ids := range prompts {
		out = append(out, f.prepared(time.Now(), Request{Model: "llama", TokenIDs: ids}))
	}
	return out
}

func (f *fleet) matchAndPrice(now time.Time, q *query) {
	q.match(now, f.lookup())
	f.mu.Lock()
	c := f.price(now, q)
	if f.params.Best(c, q.key, 0) < 0 {
		f.t.Fatal("no endpoint is ready")
	}
	f.mu.Unlock()
}

func TestMatchAndPriceAllocateNothing(t *testing.T) {
	f, prompts := benchFleet(t, 64)
	queries := f.queriesOf(prompts)
	now := time.Now()
	for _, q := range queries {
		f.matchAndPrice(now, q) // grows the scratch
	}
	i := 0
	if got := testing.AllocsPerRun(100, func() { f.matchAndPrice(now, queries[i%len(queries)]); i++ }); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

// BenchmarkPickHeld1000x1000 is one opportunity to bind: of 1,000 busy endpoints one becomes ready, and 1,000 requests with
// prompts of 32,000 tokens wait: every second one for an endpoint that has some of it, the others for any.
func BenchmarkPickHeld1000x1000(b *testing.B) {
	const n = 1000
	f, prompts := benchFleet(b, n)
	now := time.Now()
	f.clock = func() time.Time { return now }
	f.Picker.running = true // it holds
	var bound []Decision
	var held []*query
	admit := func(ids []uint32) {
		q := f.prepared(now, Request{ID: fmt.Sprint(len(bound) + len(held)), Model: "llama", TokenIDs: ids})
		f.mu.Lock()
		waits, err := f.admit(now, q)
		f.mu.Unlock()
		switch {
		case err != nil:
			b.Fatal(err)
		case waits:
			held = append(held, q)
		default:
			q.makeMarks(f.clock)
			bound = append(bound, q.decision)
		}
	}
	for i := range n { // each finds an endpoint that is idle, since nobody has its prompt
		admit(prompt(uint64(1000+i), 32000))
	}
	for i := 0; len(held) < n; i++ {
		if i%2 == 0 {
			admit(prompts[i%len(prompts)])
		} else {
			admit(prompt(uint64(2000+i), 32000))
		}
	}
	var took, slowest time.Duration
	binds := 0
	for b.Loop() {
		now = now.Add(time.Millisecond)
		d := bound[0]
		bound = bound[1:]
		from := time.Now()
		f.Done(d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
		since := time.Since(from)
		took, slowest = took+since, max(slowest, since)
		for i, q := range held {
			select {
			case <-q.done:
			default:
				continue
			}
			binds++
			q.makeMarks(f.clock)
			bound = append(bound, q.decision)
			ids := q.req.TokenIDs
			f.release(q)
			held = slices.Delete(held, i, i+1)
			admit(ids)
			break // what was bound besides is seen the next time
		}
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms/opportunity")
	b.ReportMetric(float64(slowest.Microseconds())/1000, "ms-at-most")
	b.ReportMetric(float64(binds)/float64(b.N), "binds/opportunity")
}

// BenchmarkApplyWhilePicking applies ticks of 64 agents, 60 changed blocks each, while another goroutine picks.
func BenchmarkApplyWhilePicking(b *testing.B) {
	f, prompts := benchFleet(b, 64)
	r := rand.New(rand.NewPCG(1, 1))
	resident := make([][]blockhash.Hash, len(f.agents))
	var packets [][]byte
	flips := 0
	more := func() {
		packets = packets[:0]
		for range 50 {
			for i, a := range f.agents {
				for range 30 {
					h := blockhash.Hash(r.Uint64())
					a.pub.Set(wire.TierGPU, h)
					if resident[i] = append(resident[i], h); len(resident[i]) > 3000 {
						a.pub.Clear(wire.TierGPU, resident[i][0])
						resident[i] = resident[i][1:]
					}
				}
				a.clock = a.clock.Add(201 * time.Millisecond)
				for _, packet := range a.pub.Ticks(a.clock) {
					_, m, err := wire.Decode(packet)
					if err != nil {
						b.Fatal(err)
					}
					t := m.(*wire.Tick)
					for tier := range t.Set {
						flips += len(t.Set[tier]) + len(t.Clear[tier])
					}
					packets = append(packets, slices.Clone(packet))
				}
			}
		}
	}
	for range 2 {
		more()
		for _, packet := range packets {
			if err := f.view.Apply(time.Now(), packet); err != nil {
				b.Fatal(err)
			}
		}
	}
	packets, flips = packets[:0], 0

	var stop atomic.Bool
	var picks atomic.Int64
	var picker sync.WaitGroup
	picker.Go(func() {
		for i := 0; !stop.Load(); i++ {
			d, err := f.Pick(b.Context(), Request{Model: "llama", TokenIDs: prompts[i%len(prompts)]})
			if err != nil {
				b.Error(err)
				return
			}
			f.Done(d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
			picks.Add(1)
		}
	})
	var applying time.Duration
	applied := 0
	start := time.Now()
	for b.Loop() {
		if len(packets) == 0 {
			more()
			from := time.Now()
			for _, packet := range packets {
				f.viewMu.Lock()
				err := f.view.Apply(from, packet)
				f.viewMu.Unlock()
				if err != nil {
					b.Fatal(err)
				}
			}
			applying += time.Since(from)
			applied += len(packets)
		}
		packets = packets[1:]
	}
	stop.Store(true)
	picker.Wait()
	b.ReportMetric(float64(flips)/applying.Seconds()/1e6, "Mflips/s")
	b.ReportMetric(float64(applying.Nanoseconds())/float64(applied), "ns/tick")
	b.ReportMetric(float64(picks.Load())/time.Since(start).Seconds(), "picks/s")
}
