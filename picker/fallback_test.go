package picker

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

func TestOnly(t *testing.T) {
	f := newFleet(t, 4, nil)
	ids := prompt(1, 5000)
	f.holds(2, ids) // which everybody would take
	tests := []struct {
		name  string
		only  []string
		avoid []string
		want  []string // one of them; none: ErrNoEndpoints
	}{
		{name: "any", want: []string{id(2)}},
		{name: "the cheapest is in it", only: []string{id(0), id(2)}, want: []string{id(2)}},
		{name: "the cheapest is not in it", only: []string{id(1), id(3)}, want: []string{id(1), id(3)}},
		{name: "in no order, twice, and strangers", only: []string{"10.9.9.9:1", id(3), "", id(1), id(3)}, want: []string{id(1), id(3)}},
		{name: "without those that failed", only: []string{id(1), id(3)}, avoid: []string{id(3)}, want: []string{id(1)}},
		{name: "strangers alone", only: []string{"10.9.9.9:1"}},
		{name: "all of it failed", only: []string{id(1)}, avoid: []string{id(1)}},
		{name: "none", only: []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for range 5 {
				d, err := f.Pick(t.Context(), Request{Model: "llama", TokenIDs: ids, Only: tt.only, Avoid: tt.avoid})
				f.Done(d, answered(-1, 0))
				if len(tt.want) == 0 {
					if !errors.Is(err, ErrNoEndpoints) {
						t.Errorf("went to %q, error %v; want ErrNoEndpoints", d.Endpoint.ID, err)
					}
					continue
				}
				if err != nil || !slices.Contains(tt.want, d.Endpoint.ID) {
					t.Errorf("went to %q, error %v; want one of %v", d.Endpoint.ID, err, tt.want)
				}
			}
		})
	}
}

// TestOnlyCoversRanks: an address stands for all ranks of its engine.
func TestOnlyCoversRanks(t *testing.T) {
	f := newFleet(t, 3, nil)
	a := f.agents[1]
	a.info.Version++
	agents := slices.Clone(f.agents)
	for rank := uint16(1); rank < 3; rank++ {
		a.info.Ranks = append(a.info.Ranks, wire.RankInfo{Rank: rank, Epoch: 1, GPU: a.info.Ranks[0].GPU})
		agents = append(agents, &agent{clock: a.clock, load: a.load, pub: digest.New(digest.Config{
			Key: a.info.Key(rank), Node: wire.NodeHash(a.info.Node), GPU: a.info.Ranks[0].GPU, Epoch: 1,
			MinInterval: time.Millisecond, MaxInterval: 200 * time.Millisecond, BytesPerSec: 1 << 30,
		})})
	}
	f.sendInfo(a)
	f.tick(agents...)
	f.Status()
	got := map[string]int{}
	for i := range 30 {
		d := f.pick(Request{ID: fmt.Sprint(i), PromptTokens: 1000, Only: []string{id(1)}, Fallbacks: 2})
		if d.Endpoint.Address() != id(1) || len(d.Fallbacks) > 0 {
			t.Fatalf("went to %s, fallbacks %v; want a rank of %s and none", d.Endpoint.ID, d.Fallbacks, id(1))
		}
		got[d.Endpoint.ID]++
	}
	if len(got) != 3 {
		t.Errorf("requests by rank: %v, want all three", got)
	}
	d := f.pick(Request{PromptTokens: 1000, Only: []string{id(0), id(1)}, Avoid: []string{id(0)}, Fallbacks: 5})
	if d.Endpoint.Address() != id(1) || len(d.Fallbacks) != 0 {
		t.Errorf("went to %s, fallbacks %v; want no other rank of the same engine", d.Endpoint.ID, d.Fallbacks)
	}
	d = f.pick(Request{PromptTokens: 1000, Only: []string{id(0), id(1)}, Fallbacks: 5})
	if d.Endpoint.ID != id(0) || len(d.Fallbacks) != 1 || d.Fallbacks[0].Address() != id(1) {
		t.Errorf("went to %s, fallbacks %v; want %s and one rank of %s", d.Endpoint.ID, d.Fallbacks, id(0), id(1))
	}
}

// TestOnlyOfHeldRequests: they wait for their own endpoints while others are free, and end with these.
func TestOnlyOfHeldRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, func(c *Config) { c.Discover, c.Endpoints = false, []string{id(0), id(1), id(2)} })
		defer f.running()()
		first := f.pick(Request{ID: "first", TokenIDs: prompt(1, 8000), Only: []string{id(1)}})
		results := make(chan Decision)
		for _, name := range []string{"second", "third"} {
			go func() {
				d, err := f.Pick(t.Context(), Request{ID: name, TokenIDs: prompt(uint64(len(name)), 8000), Only: []string{id(1)}, Fallbacks: 1})
				if err != nil && !errors.Is(err, ErrNoEndpoints) || (err == nil) != (name == "second") {
					t.Errorf("%s: %v", name, err)
				}
				results <- d
			}()
			time.Sleep(50 * time.Millisecond)
		}
		if err := f.SetEndpoints([]string{id(0), id(1), id(2), id(3)}); err != nil { // another table
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		f.FirstToken(first)
		if d := <-results; d.Endpoint.ID != id(1) || d.Held < 200*time.Millisecond || len(d.Fallbacks) > 0 {
			t.Errorf("second: %s after %v, fallbacks %v; want %s when it was free", d.Endpoint.ID, d.Held, d.Fallbacks, id(1))
		}
		if err := f.SetEndpoints([]string{id(0), id(2)}); err != nil {
			t.Fatal(err)
		}
		if d := <-results; d.Endpoint.ID != "" {
			t.Errorf("third went to %s, though its endpoint has left", d.Endpoint.ID)
		}
	})
}

func TestMaxHold(t *testing.T) {
	tests := []struct {
		name string
		max  time.Duration
		want time.Duration
	}{
		{"as configured", 0, 600 * time.Millisecond},
		{"shorter", 100 * time.Millisecond, 100 * time.Millisecond},
		{"longer than configured", time.Hour, 600 * time.Millisecond},
		{"none", -1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, func(c *Config) { c.Hold.MaxAge = 600 * time.Millisecond })
				defer f.running()()
				f.pick(Request{ID: "first", TokenIDs: prompt(1, 16000)})
				d := f.pick(Request{ID: "second", TokenIDs: prompt(2, 16000), MaxHold: tt.max})
				if d.Held < tt.want || d.Held > tt.want+5*time.Millisecond || d.Reason != "expired" {
					t.Errorf("%s after %v, want expired after %v", d.Reason, d.Held, tt.want)
				}
			})
		})
	}
}

func TestFallbacks(t *testing.T) {
	f := newFleet(t, 5, nil)
	ids := prompt(1, 16000)
	for i, depth := range []int{4000, 16000, 0, 12000, 8000} {
		f.holds(i, ids[:depth])
	}
	of := func(list []Endpoint) []string {
		out := []string{}
		for _, e := range list {
			out = append(out, e.ID)
		}
		return out
	}
	order := []string{id(3), id(4), id(0), id(2)} // by what they have
	for _, n := range []int{-1, 0, 1, 3, 4, 9} {
		d := f.pick(Request{Model: "llama", TokenIDs: ids, Fallbacks: n})
		f.Done(d, answered(-1, 0))
		if want := order[:min(max(0, n), 4)]; d.Endpoint.ID != id(1) || !cmp.Equal(of(d.Fallbacks), append([]string{}, want...)) {
			t.Errorf("%d wanted: %s, then %v; want %s, then %v", n, d.Endpoint.ID, of(d.Fallbacks), id(1), want)
		}
	}
	for range f.cfg.Hold.MaxBound { // full: last
		f.pick(Request{TokenIDs: ids, Only: []string{id(3)}, MaxHold: -1})
	}
	d := f.pick(Request{Model: "llama", TokenIDs: ids, Fallbacks: 9})
	if want := []string{id(4), id(0), id(2), id(3)}; !cmp.Equal(of(d.Fallbacks), want) {
		t.Errorf("with %s full: %v, want %v", id(3), of(d.Fallbacks), want)
	}
}

func TestServed(t *testing.T) {
	outstanding := func(f *fleet) (out []int) {
		for _, e := range f.Status().Endpoints {
			out = append(out, e.Outstanding)
		}
		return out
	}
	tests := []struct {
		name   string
		served string
		want   []int // outstanding
		out    bool  // the picked endpoint is
	}{
		{"as picked", id(0), []int{1, 0, 0}, false},
		{"elsewhere", id(1), []int{0, 1, 0}, true},
		{"by a stranger", "10.9.9.9:1", []int{0, 0, 0}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(t, 3, nil)
			ids := prompt(1, 5000)
			f.holds(0, ids)
			d := f.Served(f.pick(Request{ID: "a", Model: "llama", TokenIDs: ids}), tt.served)
			if d.Endpoint.Address() != tt.served {
				t.Errorf("the decision is for %s, want %s", d.Endpoint.ID, tt.served)
			}
			if got := outstanding(f); !cmp.Equal(got, tt.want) {
				t.Errorf("requests by endpoint %v, want %v", got, tt.want)
			}
			if got := f.hosts[id(0)].out; got != tt.out {
				t.Errorf("picked endpoint out: %v, want %v", got, tt.out)
			}
			f.FirstToken(d)
			f.Done(d, answered(0, 5000))
			f.Done(d, answered(0, 5000))
			if got := outstanding(f); !cmp.Equal(got, []int{0, 0, 0}) {
				t.Errorf("at the end requests by endpoint %v", got)
			}
			if n := f.table.Load().endpoints[1].errors; n != 0 {
				t.Errorf("%d predictions checked where nothing was predicted", n)
			}
		})
	}
}

// BenchmarkPickOnly is BenchmarkPickShort with 1,000 endpoints, all of them named.
func BenchmarkPickOnly(b *testing.B) {
	f := newFleet(b, 1000, nil)
	ids := prompt(1, 500)
	var only []string
	for _, e := range f.table.Load().endpoints {
		only = append(only, e.host.address)
	}
	for name, only := range map[string][]string{"any": nil, "sorted": only, "in no order": shuffled(only)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d, err := f.Pick(b.Context(), Request{ID: "r", Model: "llama", TokenIDs: ids, Only: only})
				if err != nil {
					b.Fatal(err)
				}
				f.Done(d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
			}
		})
	}
}

func shuffled(s []string) []string {
	s = slices.Clone(s)
	for i := range s {
		j := (i*617 + 11) % len(s)
		s[i], s[j] = s[j], s[i]
	}
	return s
}
