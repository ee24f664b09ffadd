package enginemetrics

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// engine is a true cost to be found.
type engine struct{ overhead, perToken, quadratic float64 }

func (e engine) seconds(n, c int) float64 {
	x := prefillTerms(float64(n), float64(c))
	return e.overhead + e.perToken*x[1] + e.quadratic*x[2]
}

func sane(t *testing.T, p PrefillCost, d DecodeCost) {
	t.Helper()
	for _, v := range []float64{p.PerToken, p.Quadratic, p.Error, d.PerToken, d.Error, float64(p.Overhead), float64(d.Step)} {
		if !(v >= 0) || math.IsInf(v, 0) {
			t.Fatalf("not sane: %+v %+v", p, d)
		}
	}
	if p.Predict(1000, 0) <= 0 && p.Predict(1<<20, 1<<20) <= 0 {
		t.Fatalf("prefill is free: %+v", p)
	}
}

// missOf is the greatest share by which a cost misses the truth over sizes.
func missOf(p PrefillCost, e engine, sizes [][2]int) float64 {
	worst := 0.0
	for _, s := range sizes {
		want := e.seconds(s[0], s[1])
		worst = max(worst, math.Abs(p.Predict(s[0], s[1]).Seconds()-want)/want)
	}
	return worst
}

var allSizes = [][2]int{{100, 0}, {100, 8000}, {1000, 0}, {1000, 30000}, {4000, 4000}, {16000, 0}, {16000, 16000}, {32000, 0}}

func TestPrefillFit(t *testing.T) {
	engines := map[string]engine{
		"as the default": {defaultOverhead, defaultPerToken, defaultQuadratic},
		"slow":           {0.15, 1e-3, 3e-9},
		"fast":           {0.004, 1.2e-5, 4e-11},
		"no overhead":    {0, 5e-5, 1e-10},
		"no attention":   {0.02, 5e-5, 0},
	}
	any := func(r *rand.Rand) (int, int) {
		return int(math.Exp(r.Float64()*6+4)) + 1, r.IntN(3) * r.IntN(15000)
	}
	small := func(r *rand.Rand) (int, int) { return r.IntN(400) + 100, r.IntN(8000) }
	tests := []struct {
		name   string
		points int
		draw   func(*rand.Rand) (int, int)
		noise  float64 // log-normal
		others float64 // share of prefills that ran beside others
		sizes  [][2]int
		limit  float64
	}{
		{"clean", 60, any, 0, 0, allSizes, 0.03},
		{"noise", 200, any, 0.15, 0, allSizes, 0.15},
		{"a third beside others", 300, any, 0.05, 0.33, allSizes, 0.20},
		{"small ones only, asked within", 100, small, 0.1, 0, [][2]int{{100, 0}, {100, 8000}, {400, 4000}}, 0.30},
		{"one size, asked for another", 50, func(*rand.Rand) (int, int) { return 500, 0 }, 0.1, 0, [][2]int{{500, 0}, {1000, 0}, {4000, 0}}, 0.5},
		{"three", 3, any, 0.05, 0, [][2]int{{2000, 0}, {8000, 0}}, 0.8},
	}
	for _, tt := range tests {
		for name, e := range engines {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				r := rand.New(rand.NewPCG(7, 11))
				f := NewPrefillFit()
				for i := range tt.points {
					n, c := tt.draw(r)
					took := e.seconds(n, c) * math.Exp(r.NormFloat64()*tt.noise)
					if r.Float64() < tt.others {
						took *= 1 + 3*r.Float64()
					}
					f.Observe(t0.Add(time.Duration(i)*time.Second), 1, n, c, time.Duration(took*1e9))
				}
				got := f.Cost()
				sane(t, got, NewDecodeFit().Cost())
				if miss := missOf(got, e, tt.sizes); !got.Fitted || miss > tt.limit {
					t.Errorf("misses by %.0f %%, limit %.0f %%: %+v", miss*100, tt.limit*100, got)
				}
			})
		}
	}
}

func TestPrefillFitBeforeData(t *testing.T) {
	f := NewPrefillFit()
	got := f.Cost()
	if got.Fitted || got.Points != 0 {
		t.Errorf("fitted without data: %+v", got)
	}
	if took := got.Predict(32000, 0); took < 3*time.Second || took > 5*time.Second {
		t.Errorf("default for 32,000 tokens: %v", took)
	}
	f.Observe(t0, 0, 100, 0, time.Second)
	f.Observe(t0, 1, 0, 0, time.Second)
	f.Observe(t0, 1, 100, -1, time.Second)
	f.Observe(t0, 1, 100, 0, 0)
	f.Observe(t0, 100, 10000, 0, time.Second)
	if got := f.Cost(); got.Points != 0 {
		t.Errorf("took what can't be: %+v", got)
	}
}

func TestPrefillFitBatches(t *testing.T) {
	e := engine{0.02, 2e-5, 1e-10}
	r := rand.New(rand.NewPCG(1, 2))
	f := NewPrefillFit()
	for i := range 200 {
		k := 1 + i%4
		n, c, took := 0, 0, 0.0
		for range k {
			ni, ci := r.IntN(6000)+50, r.IntN(6000)
			n, c, took = n+ni, c+ci, took+e.seconds(ni, ci)
		}
		f.Observe(t0.Add(time.Duration(i)*time.Second), k, n, c, time.Duration(took*1e9))
	}
	if miss := missOf(f.Cost(), e, [][2]int{{500, 0}, {3000, 3000}, {6000, 0}}); miss > 0.1 {
		t.Errorf("misses by %.0f %%: %+v", miss*100, f.Cost())
	}
}

func TestPrefillFitFollowsChange(t *testing.T) {
	before, after := engine{0.02, 2e-5, 1e-10}, engine{0.02, 6e-5, 3e-10}
	r := rand.New(rand.NewPCG(3, 4))
	f := NewPrefillFit()
	now := t0
	feed := func(e engine, n int, largest float64) {
		for range n {
			now = now.Add(2 * time.Second)
			size := int(math.Exp(5 + r.Float64()*(math.Log(largest)-5)))
			f.Observe(now, 1, size, 0, time.Duration(e.seconds(size, 0)*1e9))
		}
	}
	feed(before, 300, 20000)
	feed(after, 300, 20000)
	if miss := missOf(f.Cost(), after, [][2]int{{500, 0}, {4000, 0}, {16000, 0}}); miss > 0.1 {
		t.Errorf("misses by %.0f %%: %+v", miss*100, f.Cost())
	}
	// Hours later and slower again, with no large ones to show it.
	now = now.Add(3 * time.Hour)
	last := engine{0.02, 2e-4, 3e-10}
	feed(last, 40, 2000)
	if miss := missOf(f.Cost(), last, [][2]int{{500, 0}, {2000, 0}, {16000, 0}}); miss > 0.2 {
		t.Errorf("old large ones still count, misses by %.0f %%: %+v", miss*100, f.Cost())
	}
}

// A long time of small prefills must not drive out what is known of large ones.
func TestPrefillFitKeepsLargeOnes(t *testing.T) {
	e := engine{0.02, 2e-5, 2e-9}
	f := NewPrefillFit()
	for i := range 8 {
		n := 8000 + 3000*i
		f.Observe(t0, 1, n, 0, time.Duration(e.seconds(n, 0)*1e9))
	}
	for i := range 5000 {
		f.Observe(t0.Add(time.Duration(i)*100*time.Millisecond), 1, 100+i%50, 0, time.Duration(e.seconds(100+i%50, 0)*1e9))
	}
	if miss := missOf(f.Cost(), e, [][2]int{{120, 0}, {20000, 0}}); miss > 0.1 {
		t.Errorf("misses by %.0f %%: %+v", miss*100, f.Cost())
	}
}

func TestDecodeFit(t *testing.T) {
	f := NewDecodeFit()
	if f.Cost().Fitted || f.Cost().Step <= 0 {
		t.Errorf("before data: %+v", f.Cost())
	}
	r := rand.New(rand.NewPCG(5, 6))
	truth := func(tokens float64) float64 { return 0.012 + 6e-8*tokens }
	for i := range 300 {
		tokens := r.Float64() * 400_000
		took := truth(tokens) * math.Exp(0.05*r.NormFloat64())
		if i%5 == 0 {
			took *= 1 + 4*r.Float64() // a prefill was in the way
		}
		f.Observe(t0.Add(time.Duration(i)*time.Second), tokens, time.Duration(took*1e9))
	}
	got := f.Cost()
	for _, tokens := range []float64{1000, 100_000, 400_000} {
		want := truth(tokens)
		if have := got.Step.Seconds() + got.PerToken*tokens; math.Abs(have-want)/want > 0.12 {
			t.Errorf("at %.0f tokens %.4f s, want %.4f: %+v", tokens, have, want, got)
		}
	}
}

func BenchmarkPrefillCost(b *testing.B) {
	r := rand.New(rand.NewPCG(7, 11))
	f := NewPrefillFit()
	for range 2000 {
		n := int(math.Exp(r.Float64()*11)) + 1
		f.Observe(t0, 1, n, 0, time.Duration((0.01+1e-4*float64(n))*1e9))
	}
	b.ReportAllocs()
	for b.Loop() {
		f.Observe(t0, 1, 1000, 0, 110*time.Millisecond)
		f.Cost()
	}
}
