package score

import (
	"math"
	"testing"
)

// h200 is the prefill of Llama-3.1-70B FP8 on an H200: 3.7 s for 32,000 tokens.
var h200 = Model{Overhead: 20, PerToken: 0.77 * 3680 / 32000, Quadratic: 0.23 * 3680 / 32000 / 32000}

// idle is an endpoint with a known, empty engine of 12,000 blocks of 16 tokens.
func idle() Endpoint {
	return Endpoint{
		BlockSize: 16, Trust: 1, Prefill: h200,
		Blocks: 12000, Free: 12000,
		MeanPrefill: 300, MeanOutput: 200, DecodeStep: 18, DecodePerToken: 85e-6,
	}
}

func price(p *Params, r *Request, e *Endpoint, index int) (c Candidate) {
	p.Price(&c, r, e, index)
	return c
}

func TestPriceTerms(t *testing.T) {
	tests := []struct {
		name string
		why  string
		req  Request
		set  func(*Endpoint)
		want Terms
	}{
		{
			name: "cold on an idle endpoint",
			why:  "8,192 tokens cost 20 + 725 + 55 ms; g doubles what is computed",
			req:  Request{PromptTokens: 8192},
			want: Terms{Prefill: 800.9, Spread: 800.9},
		},
		{
			name: "warm",
			why:  "512 of 544 blocks are read; the other 500 tokens attend to 8,192 before them",
			req:  Request{PromptTokens: 8692},
			set:  func(e *Endpoint) { e.Matched = 512 },
			want: Terms{Prefill: 71.3, Spread: 71.3},
		},
		{
			name: "three blocks are no match",
			why:  "a match of under 4 blocks may be chance and saves next to nothing",
			req:  Request{PromptTokens: 100},
			set:  func(e *Endpoint) { e.Matched = 3 },
			want: Terms{Prefill: 28.9, Spread: 28.9},
		},
		{
			name: "half the match is believed",
			why:  "a suspect digest claims 4,096 tokens: 2,048 are priced as cached",
			req:  Request{PromptTokens: 4097},
			set:  func(e *Endpoint) { e.Matched, e.Trust = 256, 0.5 },
			want: Terms{Prefill: 211.9, Spread: 211.9},
		},
		{
			name: "the last token is always computed",
			why:  "64 tokens fill 4 blocks, but only 3 can be read: under the least match",
			req:  Request{PromptTokens: 64},
			set:  func(e *Endpoint) { e.Matched = 4 },
			want: Terms{Prefill: 25.7, Spread: 25.7},
		},
		{
			name: "lower tier",
			why:  "4,096 tokens come from CPU memory at 0.006 ms each",
			req:  Request{PromptTokens: 8193},
			set:  func(e *Endpoint) { e.Matched, e.MatchedAll = 256, 512 },
			want: Terms{Prefill: 20.1, Spread: 20.1, LowerTier: 24.6},
		},
		{
			name: "displacement of fresh victims",
			why:  "100 blocks are needed, 40 are free: 60 victims that were used just now cost 60 x 16 tokens of prefill where a fifth comes again",
			req:  Request{PromptTokens: 1600, Reuse: 0.2},
			set:  func(e *Endpoint) { e.Free, e.Cached = 40, 11960 },
			want: Terms{Prefill: 163.8, Spread: 163.8, Displacement: 85.0},
		},
		{
			name: "displacement of old victims",
			why:  "victims that idled for 60 s count 1/e",
			req:  Request{PromptTokens: 1600, Reuse: 0.2},
			set:  func(e *Endpoint) { e.Free, e.Cached, e.VictimIdle = 40, 11960, 60_000 },
			want: Terms{Prefill: 163.8, Spread: 163.8, Displacement: 31.3},
		},
		{
			name: "blocks bound before displace too",
			why:  "40 free blocks are already spoken for by a request on its way: all 100 must be taken from others",
			req:  Request{PromptTokens: 1600, Reuse: 0.2},
			set:  func(e *Endpoint) { e.Free, e.Cached, e.PendingBlocks = 40, 11960, 40 },
			want: Terms{Prefill: 163.8, Spread: 163.8, Displacement: 141.7},
		},
		{
			name: "displacement where everything comes again",
			why:  "five times as much of what is evicted will be missed",
			req:  Request{PromptTokens: 1600, Reuse: 1},
			set:  func(e *Endpoint) { e.Free, e.Cached = 40, 11960 },
			want: Terms{Prefill: 163.8, Spread: 163.8, Displacement: 425.0},
		},
		{
			name: "slow endpoint of a mixed fleet",
			why:  "the work for others counts at the fleet's speed, and so does what has to be computed again",
			req:  Request{PromptTokens: 1600, Reuse: 0.2, Fleet: h200},
			set:  func(e *Endpoint) { e.Prefill, e.Free, e.Cached = h200.Scaled(0.5), 40, 11960 },
			want: Terms{Prefill: 327.6, Spread: 163.8, Displacement: 85.0},
		},
		{
			name: "another gateway's turn",
			why:  "it may bind something here before this gateway hears of it",
			req:  Request{PromptTokens: 160},
			set:  func(e *Endpoint) { e.Contention = 40 },
			want: Terms{Prefill: 34.2, Spread: 34.2, Load: 40},
		},
		{
			name: "decode interference",
			why:  "64,000 resident tokens slow each of 200 steps by 5.4 ms, of which a twentieth counts; 4 running requests add 5 ms each",
			req:  Request{PromptTokens: 160, OutputTokens: 200},
			set:  func(e *Endpoint) { e.Free, e.Running = 8000, 4 },
			want: Terms{Prefill: 34.2, Spread: 34.2, Interference: 54.4, Load: 20},
		},
		{
			name: "slow GPU",
			why:  "at half speed everything that is computed takes twice as long",
			req:  Request{PromptTokens: 8192},
			set:  func(e *Endpoint) { e.Slowdown = 0.5 },
			want: Terms{Prefill: 1601.8, Spread: 1601.8},
		},
		{
			name: "no agent",
			why:  "nothing is known but three own requests",
			req:  Request{PromptTokens: 160},
			set:  func(e *Endpoint) { *e = Endpoint{BlockSize: 16, Prefill: h200, Outstanding: 3} },
			want: Terms{Prefill: 34.2, Spread: 34.2, Load: 15},
		},
	}
	p := Default()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := idle()
			if tt.set != nil {
				tt.set(&e)
			}
			got := price(&p, &tt.req, &e, 0)
			check := func(term string, got, want float64) {
				if math.Abs(got-want) > 0.06 {
					t.Errorf("%s = %.1f ms, want %.1f: %s", term, got, want, tt.why)
				}
			}
			check("prefill", got.Terms.Prefill, tt.want.Prefill)
			check("spread", got.Terms.Spread, tt.want.Spread)
			check("displacement", got.Terms.Displacement, tt.want.Displacement)
			check("lower tier", got.Terms.LowerTier, tt.want.LowerTier)
			check("interference", got.Terms.Interference, tt.want.Interference)
			check("load", got.Terms.Load, tt.want.Load)
			check("cost", got.Cost, got.Terms.Cost())
		})
	}
}

func TestWaitAndReady(t *testing.T) {
	tests := []struct {
		name  string
		why   string
		set   func(*Endpoint)
		wait  float64
		ready bool
	}{
		{"idle", "nothing is in the way", func(e *Endpoint) {}, 0, true},
		{"about to be free", "a queue that ends within ReadyWithin hides the way there", func(e *Endpoint) { e.Queue = 8 }, 8, true},
		{"prefill queue", "own prefills come first", func(e *Endpoint) { e.Queue = 800 }, 800, false},
		{"foreign queue", "two requests of others wait in the engine, 300 ms each", func(e *Endpoint) { e.Waiting = 2 }, 600, false},
		{
			"memory", "63 blocks needed, 40 to be had beyond the reserve of 360: one of 10 requests must end, each takes 200 steps of 18 ms",
			func(e *Endpoint) { e.Running, e.Free = 10, 400 }, 360, false,
		},
		{
			"memory, speeds unknown", "no decode speed: the configured guess",
			func(e *Endpoint) { e.Running, e.Free, e.DecodeStep = 10, 400, 0 }, 3000, false,
		},
		{"idle engine takes all", "nothing runs, so nothing will free more memory", func(e *Endpoint) { e.Free = 10 }, 0, true},
		{
			"more than there is", "waiting would not help: the engine must say what it makes of it",
			func(e *Endpoint) { e.Running, e.Blocks, e.Free = 10, 60, 5 }, 0, true,
		},
		{"full", "the queue of bound requests is at its limit", func(e *Endpoint) { e.Full = true }, 0, false},
	}
	p := Default()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := idle()
			tt.set(&e)
			got := price(&p, &Request{PromptTokens: 1000}, &e, 0)
			if math.Abs(got.Wait-tt.wait) > 0.5 || got.Ready != tt.ready {
				t.Errorf("wait %.1f ms, ready %v; want %.1f, %v: %s", got.Wait, got.Ready, tt.wait, tt.ready, tt.why)
			}
		})
	}
}

// The choice that late binding stands on: waiting for the pod that is computing the shared context beats computing it
// again elsewhere, but only with g.
func TestSharedContextIsWorthTheWait(t *testing.T) {
	home, other := idle(), idle()
	home.Matched, home.Queue = 512, 800
	r := Request{PromptTokens: 8692}
	p := Default()
	h, o := price(&p, &r, &home, 0), price(&p, &r, &other, 1)
	if h.Wait+h.Cost >= o.Cost {
		t.Errorf("home %.0f ms, elsewhere %.0f ms: want home cheaper with g = 1", h.Wait+h.Cost, o.Cost)
	}
	p.Spread = 0
	h, o = price(&p, &r, &home, 0), price(&p, &r, &other, 1)
	if h.Wait+h.Cost <= o.Cost {
		t.Errorf("home %.0f ms, elsewhere %.0f ms: want elsewhere cheaper with g = 0", h.Wait+h.Cost, o.Cost)
	}
}

func TestBest(t *testing.T) {
	p := Default()
	fresh := func(key uint64, cost, wait float64, ready bool) Candidate {
		return Candidate{Key: key, Cost: cost, Wait: wait, Ready: ready}
	}
	stale := func(key uint64, cost float64) Candidate {
		return Candidate{Key: key, Cost: cost, Ready: true, Stale: true}
	}
	full := Candidate{Key: 9, Cost: 1, Full: true}
	tests := []struct {
		name       string
		c          []Candidate
		ready, any int
	}{
		{"none", nil, -1, -1},
		{"cheapest", []Candidate{fresh(1, 100, 0, true), fresh(2, 50, 0, true)}, 1, 1},
		{"cheapest is busy", []Candidate{fresh(1, 100, 0, true), fresh(2, 50, 20, false)}, 0, 1},
		{"none ready", []Candidate{fresh(1, 100, 90, false), fresh(2, 150, 20, false)}, -1, 1},
		{"stale ranks behind", []Candidate{stale(1, 10), fresh(2, 500, 0, true)}, 1, 1},
		{"stale ranks behind a busy one", []Candidate{stale(1, 10), fresh(2, 500, 900, false)}, -1, 1},
		{"only stale", []Candidate{stale(1, 10), stale(2, 500)}, 0, 0},
		{"full is never taken", []Candidate{full, fresh(2, 500, 900, false)}, -1, 1},
		{"stale before full", []Candidate{full, stale(2, 500)}, 1, 1},
		{"all full", []Candidate{full}, -1, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := p.Best(tt.c, 7, Ready); got != tt.ready {
				t.Errorf("Best(Ready) = %d, want %d", got, tt.ready)
			}
			if got := p.Best(tt.c, 7, Any); got != tt.any {
				t.Errorf("Best(Any) = %d, want %d", got, tt.any)
			}
		})
	}
}

// TestNearlyEqualPricesGoToTheCache: learned speeds are noisy; where prices differ by less than that, what is cached decides.
func TestNearlyEqualPricesGoToTheCache(t *testing.T) {
	p := Default()
	tests := []struct {
		name string
		c    []Candidate
		want int
	}{
		{"prefill so cheap that prices are equal", []Candidate{
			{Key: 1, Cost: 20.5, Ready: true, Uncached: 320}, {Key: 2, Cost: 20.9, Ready: true, Uncached: 32},
		}, 1},
		{"a tenth dearer by a noisy speed", []Candidate{
			{Key: 1, Cost: 38.8, Ready: true, Uncached: 320}, {Key: 2, Cost: 42.9, Ready: true, Uncached: 32},
		}, 1},
		{"a few milliseconds dearer", []Candidate{
			{Key: 1, Cost: 40.5, Ready: true, Uncached: 420}, {Key: 2, Cost: 55.8, Ready: true, Uncached: 100},
		}, 1},
		{"a third dearer: too busy to be worth it", []Candidate{
			{Key: 1, Cost: 300, Ready: true, Uncached: 3200}, {Key: 2, Cost: 400, Ready: true, Uncached: 32},
		}, 0},
		{"of two with the cache the cheaper one", []Candidate{
			{Key: 1, Cost: 100, Ready: true, Uncached: 320}, {Key: 2, Cost: 110, Ready: true, Uncached: 32}, {Key: 3, Cost: 102, Ready: true, Uncached: 40},
		}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for request := range uint64(20) {
				if i := p.Best(tt.c, Mix(request), Ready); i != tt.want {
					t.Fatalf("request %d: candidate %d, want %d", request, i, tt.want)
				}
			}
		})
	}
}

func TestTiesAreSpread(t *testing.T) {
	p := Default()
	c := make([]Candidate, 4)
	for i := range c {
		c[i] = Candidate{Key: Mix(uint64(i)), Cost: 1000 + float64(i), Ready: true}
	}
	c[3].Cost = 1020 // out of the margin of 10 ms
	var hits [4]int
	for request := range uint64(3000) {
		i := p.Best(c, Mix(request), Ready)
		if again := p.Best(c, Mix(request), Ready); again != i {
			t.Fatalf("request %d: %d, then %d", request, i, again)
		}
		hits[i]++
	}
	for i, n := range hits[:3] {
		if n < 900 || n > 1100 {
			t.Errorf("endpoint %d of three equal ones got %d of 3000", i, n)
		}
	}
	if hits[3] != 0 {
		t.Errorf("endpoint outside the margin got %d", hits[3])
	}
}

func TestScaledKeepsDecisions(t *testing.T) {
	const s = 20
	r := Request{PromptTokens: 5000, OutputTokens: 100}
	e := idle()
	e.Free, e.Cached, e.VictimIdle, e.Queue, e.Running, e.MatchedAll = 50, 7000, 30_000, 100, 3, 100
	f := e // not prepared yet
	f.Prefill = e.Prefill.Scaled(s)
	f.VictimIdle, f.Queue, f.MeanPrefill = e.VictimIdle/s, e.Queue/s, e.MeanPrefill/s
	f.DecodeStep, f.DecodePerToken = e.DecodeStep/s, e.DecodePerToken/s
	p := Default()
	q := p.Scaled(s)
	a, b := price(&p, &r, &e, 0), price(&q, &r, &f, 0)
	if math.Abs(a.Cost-b.Cost*s) > 1e-6 || math.Abs(a.Wait-b.Wait*s) > 1e-6 || a.Ready != b.Ready {
		t.Errorf("at speed %d: %+v, want %d times less than %+v", s, b, s, a)
	}
}

func BenchmarkPrice(b *testing.B) {
	p := Default()
	r := Request{PromptTokens: 32000, OutputTokens: 200}
	e := idle()
	e.Free, e.Cached, e.Running = 50, 7000, 3
	c := make([]Candidate, 64)
	p.Prepare(&e)
	b.ReportAllocs()
	for b.Loop() {
		for i := range c {
			e.Matched = i * 16
			p.Price(&c[i], &r, &e, i)
		}
		if p.Best(c, 1, Any) < 0 {
			b.Fatal("no candidate")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/endpoint")
}
