package engine

import (
	"sync"
	"time"
)

// Stats is what really happened, for tests and reports to hold against what
// others believe. Totals are over all ranks; seconds are on the emulated clock.
type Stats struct {
	Totals
	Ranks []RankStats `json:"ranks"`
	// Latest are the last 4,096 requests that got a first token, oldest first.
	Latest []RequestStats `json:"latest"`
}

// Totals are counters since the start.
type Totals struct {
	Requests           int     `json:"requests"` // admitted
	PromptTokens       int     `json:"prompt_tokens"`
	CachedTokens       int     `json:"cached_tokens"`
	GeneratedTokens    int     `json:"generated_tokens"`
	ColdPrefills       int     `json:"cold_prefills"`        // under a fifth of the prompt was cached
	PrefillSeconds     float64 `json:"prefill_seconds"`      // spent
	FullPrefillSeconds float64 `json:"full_prefill_seconds"` // what the same prompts cost without a cache
	Preemptions        int     `json:"preemptions"`
}

// RankStats are one rank's totals and its state now.
type RankStats struct {
	Totals
	Running        int  `json:"running"`
	Waiting        int  `json:"waiting"`
	BlocksUsed     int  `json:"blocks_used"`     // held by running requests
	BlocksResident int  `json:"blocks_resident"` // with reusable content, held or not
	BlocksUsable   int  `json:"blocks_usable"`
	Asleep         bool `json:"asleep"`
}

// RequestStats is one request as the engine saw it.
type RequestStats struct {
	ID           string    `json:"id"`
	Rank         int       `json:"rank"`
	PromptTokens int       `json:"prompt_tokens"`
	CachedTokens int       `json:"cached_tokens"`
	Arrival      time.Time `json:"arrival"` // real time
	TTFTMillis   float64   `json:"ttft_ms"` // emulated
}

// Stats returns the truth.
func (e *Engine) Stats() Stats {
	out := Stats{Latest: e.history.list()}
	for _, r := range e.ranks {
		st := r.stats()
		t := Totals{
			Requests: st.Admitted, PromptTokens: st.PromptTokens, CachedTokens: st.CachedTokens,
			GeneratedTokens: st.GeneratedTokens, ColdPrefills: st.ColdPrefills, Preemptions: st.Preemptions,
			PrefillSeconds: st.PrefillTime.Seconds(), FullPrefillSeconds: st.FullPrefillTime.Seconds(),
		}
		out.Ranks = append(out.Ranks, RankStats{
			Totals: t, Running: st.Running, Waiting: st.Waiting, BlocksUsed: st.BlocksUsed,
			BlocksResident: st.BlocksResident, BlocksUsable: st.BlocksUsable, Asleep: st.Asleep,
		})
		out.add(t)
	}
	return out
}

func (t *Totals) add(o Totals) {
	t.Requests += o.Requests
	t.PromptTokens += o.PromptTokens
	t.CachedTokens += o.CachedTokens
	t.GeneratedTokens += o.GeneratedTokens
	t.ColdPrefills += o.ColdPrefills
	t.Preemptions += o.Preemptions
	t.PrefillSeconds += o.PrefillSeconds
	t.FullPrefillSeconds += o.FullPrefillSeconds
}

// history is a ring of the latest requests.
type history struct {
	mu   sync.Mutex // guards the fields below
	ring []RequestStats
	next int
}

const historySize = 4096

func (h *history) add(r RequestStats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ring) < historySize {
		h.ring = append(h.ring, r)
		return
	}
	h.ring[h.next] = r
	h.next = (h.next + 1) % historySize
}

// list returns the requests, oldest first.
func (h *history) list() []RequestStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]RequestStats, 0, len(h.ring))
	return append(append(out, h.ring[h.next:]...), h.ring[:h.next]...)
}
