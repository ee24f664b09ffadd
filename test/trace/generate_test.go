package trace

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func generate(t *testing.T, l Load) *Trace {
	t.Helper()
	tr, err := Generate(l, 512)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// reuse is the share of the tokens that an endless cache would have.
func reuse(t *Trace) float64 {
	seen := map[uint64]bool{}
	cached, all := 0, 0
	for _, r := range t.Requests {
		n := 0
		for n < len(r.Blocks) && seen[r.Blocks[n]] {
			n++
		}
		for _, b := range r.Blocks {
			seen[b] = true
		}
		cached, all = cached+n*t.BlockTokens, all+r.Prompt
	}
	return float64(cached) / float64(all)
}

func TestGeneratedLoads(t *testing.T) {
	for _, tt := range []struct {
		name            string
		requests        int
		shortest, last  int // tokens of prompts
		reuse           float64
		chained, perSec bool
	}{
		// Reuse of W1 to W3: 80.0, 84.8 and 94.4 % are the public figures for these shapes, the last with the ends of documents.
		{name: "W1", requests: 1000, shortest: 3072, last: 7168, reuse: 0.80, chained: true},
		{name: "W2", requests: 1000, shortest: 8692, last: 8692, reuse: 0.848},
		{name: "W3", requests: 200, shortest: 32_968, last: 32_968, reuse: 0.944, chained: true},
		{name: "shared-prefix", requests: 3000, shortest: 5120, last: 5120, reuse: 0.79},
		{name: "multi-turn", requests: 3200, shortest: 3072, last: 10_072, reuse: 0.80, chained: true},
		{name: "agents", requests: 3200, shortest: 14_336, last: 53_336, reuse: 0.96, chained: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, ok := LoadOf(tt.name)
			if !ok {
				t.Fatal("not known")
			}
			tr := generate(t, l)
			shortest, longest, followers := math.MaxInt, 0, 0
			for i, r := range tr.Requests {
				shortest, longest = min(shortest, r.Prompt), max(longest, r.Prompt)
				if i > 0 && r.At < tr.Requests[i-1].At || len(r.Blocks)*512 > r.Prompt {
					t.Fatalf("request %d: %+v", i, r)
				}
				if r.Previous >= 0 {
					p := tr.Requests[r.Previous]
					followers++
					if p.Session != r.Session || r.At < p.At+r.Think {
						t.Fatalf("request %d at %v follows %d at %v with think time %v", i, r.At, r.Previous, p.At, r.Think)
					}
				}
			}
			if len(tr.Requests) != tt.requests || shortest != tt.shortest || longest != tt.last {
				t.Errorf("%d requests of %d to %d tokens, want %d of %d to %d", len(tr.Requests), shortest, longest, tt.requests, tt.shortest, tt.last)
			}
			if got := reuse(tr); math.Abs(got-tt.reuse) > 0.03 {
				t.Errorf("reuse %.3f, want %.3f", got, tt.reuse)
			}
			if want := len(tr.Requests) - l.Sessions; tt.chained && followers != want || !tt.chained && followers != 0 {
				t.Errorf("%d calls wait for another, want %d or none", followers, want)
			}
			starts := float64(l.Sessions) / tr.Requests[len(tr.Requests)-1].At.Seconds()
			if starts > 2*l.SessionsPerSec {
				t.Errorf("%.2f sessions a second, want at most about %.2f", starts, l.SessionsPerSec)
			}
		})
	}
	for _, name := range LoadNames() {
		if _, ok := LoadOf(name); !ok {
			t.Errorf("%s is not known", name)
		}
	}
	if _, ok := LoadOf("nope"); ok {
		t.Error("nope is known")
	}
}

func TestGeneratedLoadIsOfItsSeed(t *testing.T) {
	l, _ := LoadOf("agents")
	l.Seed = 1
	a, b := generate(t, l), generate(t, l)
	l.Seed = 2
	c := generate(t, l)
	same := func(x, y *Trace) bool {
		return slices.EqualFunc(x.Requests, y.Requests, func(r, q Request) bool { return r.At == q.At && slices.Equal(r.Blocks, q.Blocks) })
	}
	if !same(a, b) || same(a, c) {
		t.Error("want the same load of the same seed only")
	}
}

func TestFaultyLoads(t *testing.T) {
	good, _ := LoadOf("multi-turn")
	for _, tt := range []struct {
		want  string
		spoil func(l *Load)
	}{
		{"sessions 0", func(l *Load) { l.Sessions = 0 }},
		{"sessions 4194304", func(l *Load) { l.Sessions = maxCalls }},
		{"session rate 0", func(l *Load) { l.SessionsPerSec = 0 }},
		{"session rate NaN", func(l *Load) { l.SessionsPerSec = math.NaN() }},
		{"groups 0", func(l *Load) { l.Groups = 0 }},
		{"prefix -1", func(l *Load) { l.PrefixTokens = -1 }},
		{"output 0", func(l *Load) { l.OutputTokens = 0 }},
		{"no token", func(l *Load) { l.PrefixTokens, l.ContextTokens = 0, 0 }},
		{"last prompt", func(l *Load) { l.Turns, l.Sessions = 1<<20, 1 }},
		{"think time", func(l *Load) { l.ThinkMin = time.Hour }},
	} {
		l := good
		tt.spoil(&l)
		if _, err := Generate(l, 512); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want one with %q", err, tt.want)
		}
	}
	if _, err := Generate(good, 0); err == nil {
		t.Error("blocks of no token are accepted")
	}
}
