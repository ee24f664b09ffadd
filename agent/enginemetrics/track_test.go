package enginemetrics

import (
	"math"
	"testing"
	"time"
)

// sampleOf is an idle sample with these counters in one rank.
func sampleOf(start float64, c Counters) *Sample {
	return &Sample{Engine: VLLM, ProcessStart: start, Ranks: []Rank{{
		Counters: c, Cache: CacheConfig{BlockSize: 16, NumBlocks: 10000},
	}}}
}

func TestTrackerRestart(t *testing.T) {
	tests := []struct {
		name   string
		before *Sample
		after  *Sample
		want   Change
	}{
		{"nothing new", sampleOf(1, Counters{PromptTokens: 5}), sampleOf(1, Counters{PromptTokens: 5}), Change{}},
		{"counters rise", sampleOf(1, Counters{PromptTokens: 5}), sampleOf(1, Counters{PromptTokens: 9}), Change{}},
		{"other process", sampleOf(1, Counters{PromptTokens: 5}), sampleOf(2, Counters{PromptTokens: 9}), Change{Restarted: true, Reason: "process start time"}},
		{"start time gone", sampleOf(1, Counters{PromptTokens: 5}), sampleOf(0, Counters{PromptTokens: 9}), Change{}},
		{"counter fell", sampleOf(0, Counters{PromptTokens: 5}), sampleOf(0, Counters{PromptTokens: 4}), Change{Restarted: true, Reason: "counter fell"}},
		{"hits fell to nothing", sampleOf(0, Counters{PrefixQueryTokens: 5}), sampleOf(0, Counters{}), Change{Restarted: true, Reason: "counter fell"}},
		{"asleep", sampleOf(1, Counters{}), &Sample{ProcessStart: 1, Ranks: []Rank{{}, {Rank: 1, Sleep: DiscardAll}}}, Change{Asleep: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := NewTracker()
			if ch := tr.Observe(t0, tt.before); ch != (Change{}) {
				t.Errorf("first sample: %+v", ch)
			}
			if got := tr.Observe(t0.Add(time.Second), tt.after); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if got := tr.Observe(t0.Add(2*time.Second), tt.after); got.Restarted {
				t.Errorf("restart told twice")
			}
		})
	}
}

// requests feeds prefills of an engine as their counters show them.
func TestTrackerLearnsPrefill(t *testing.T) {
	e := engine{0.03, 4e-5, 3e-10}
	tests := []struct {
		name string
		step func(c *Counters, n, cached int, took float64)
	}{
		{"vLLM that counts computed tokens", func(c *Counters, n, cached int, took float64) {
			c.PrefillTime = Sum{c.PrefillTime.Sum + took, c.PrefillTime.Count + 1}
			c.PrefillComputed = Sum{c.PrefillComputed.Sum + float64(n), c.PrefillComputed.Count + 1}
			c.RequestPrompt = Sum{c.RequestPrompt.Sum + float64(n+cached), c.RequestPrompt.Count + 1}
		}},
		{"older vLLM", func(c *Counters, n, cached int, took float64) {
			c.PrefillTime = Sum{c.PrefillTime.Sum + took, c.PrefillTime.Count + 1}
			c.PromptTokens += uint64(n + cached)
			c.PrefixQueryTokens += uint64(n + cached)
			c.PrefixHitTokens += uint64(cached)
		}},
		{"SGLang", func(c *Counters, n, cached int, took float64) {
			c.TTFT = Sum{c.TTFT.Sum + took, c.TTFT.Count + 1}
			c.PromptTokens += uint64(n + cached)
			c.CachedPromptTokens += uint64(cached)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := NewTracker()
			var c Counters
			now := t0
			for i := range 40 {
				tr.Observe(now, sampleOf(1, c))
				now = now.Add(time.Second)
				n, cached := 100*(1+i*i%90), 800*(i%5)
				tt.step(&c, n, cached, e.seconds(n, cached))
			}
			got := tr.Prefill(0)
			if miss := missOf(got, e, [][2]int{{200, 0}, {1000, 3000}, {8000, 0}}); !got.Fitted || miss > 0.05 {
				t.Errorf("misses by %.0f %%: %+v", miss*100, got)
			}
			// A restart keeps what was learned and learns nothing from the fall.
			tr.Observe(now, sampleOf(2, Counters{}))
			if again := tr.Prefill(0); again != got {
				t.Errorf("after a restart %+v, before %+v", again, got)
			}
		})
	}
}

func TestTrackerLearnsDecode(t *testing.T) {
	tr := NewTracker()
	var c Counters
	now := t0
	for i := range 120 {
		s := sampleOf(1, c)
		s.Ranks[0].Running = 4
		s.Ranks[0].KVUsage = float64(i%10) / 10
		tr.Observe(now, s)
		now = now.Add(100 * time.Millisecond)
		// The next window holds as much as the mean of its ends.
		used := (float64(i%10) + float64((i+1)%10)) / 20 * 160000
		c.InterToken = Sum{c.InterToken.Sum + 20*(0.01+5e-8*used), c.InterToken.Count + 20}
		if i%3 != 0 {
			c.PromptTokens += 1000 // a prefill: this window is left out
			c.InterToken.Sum += 3
		}
	}
	got := tr.Decode(0)
	if have, want := got.Step.Seconds()+got.PerToken*80000, 0.014; !got.Fitted || math.Abs(have-want)/want > 0.05 {
		t.Errorf("at 80,000 tokens %.4f s, want %.4f: %+v", have, want, got)
	}
}

func TestTrackerUnknownRank(t *testing.T) {
	tr := NewTracker()
	tr.ObservePrefill(t0, 3, 100, 0, time.Second)
	if tr.Prefill(3).Fitted || tr.Decode(3).Fitted {
		t.Error("a rank never seen is fitted")
	}
	tr.Observe(t0, sampleOf(1, Counters{}))
	for range 3 {
		tr.ObservePrefill(t0, 0, 1000, 0, time.Second)
	}
	if got := tr.Prefill(0); !got.Fitted || got.Predict(1000, 0) < 900*time.Millisecond {
		t.Errorf("observed by others: %+v", got)
	}
}
