package picker

import (
	"fmt"
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
