package picker

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"
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
