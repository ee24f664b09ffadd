package load

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Quantiles sums up a set of durations in milliseconds.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

// QuantilesOf sorts ms in place. Quantiles are the nearest-rank kind; all zero for no values.
func QuantilesOf(ms []float64) Quantiles {
	if len(ms) == 0 {
		return Quantiles{}
	}
	slices.Sort(ms)
	var sum float64
	for _, x := range ms {
		sum += x
	}
	at := func(q float64) float64 { return ms[min(len(ms)-1, max(0, int(math.Ceil(q*float64(len(ms))))-1))] }
	return Quantiles{Mean: sum / float64(len(ms)), P50: at(0.5), P90: at(0.9), P99: at(0.99)}
}

// Millis converts to milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ColdShare: a request is cold when less than this share of its prompt was cached.
const ColdShare = 0.2

// Report sums up the results of a run.
type Report struct {
	Requests     int       `json:"requests"`
	Errors       int       `json:"errors"`
	FirstError   string    `json:"first_error,omitempty"`
	PromptTokens int       `json:"prompt_tokens"`
	CachedTokens int       `json:"cached_tokens"` // of the requests whose server told
	CachedKnown  int       `json:"cached_known"`  // requests whose server told
	HitRatio     float64   `json:"hit_ratio"`     // cached over prompt tokens, of those
	Cold         int       `json:"cold"`          // of those, under 20 % cached
	OutputTokens int       `json:"output_tokens"`
	TTFT         Quantiles `json:"ttft_ms"`         // wall clock
	Latency      Quantiles `json:"latency_ms"`      // wall clock
	LatenessP99  float64   `json:"lateness_p99_ms"` // of the generator itself
}

// Summarize sums up results; failed requests count as errors and nowhere else.
func Summarize(results []Result) Report {
	rep := Report{Requests: len(results)}
	var ttft, latency, late []float64
	var knownPrompt int
	for i := range results {
		r := &results[i]
		late = append(late, Millis(r.Lateness))
		if r.Err != nil {
			rep.Errors++
			if rep.FirstError == "" {
				rep.FirstError = r.Err.Error()
			}
			continue
		}
		ttft = append(ttft, Millis(r.TTFT))
		latency = append(latency, Millis(r.Latency))
		rep.PromptTokens += r.PromptTokens
		rep.OutputTokens += r.OutputTokens
		if r.CachedTokens >= 0 {
			rep.CachedKnown++
			rep.CachedTokens += r.CachedTokens
			knownPrompt += r.PromptTokens
			if float64(r.CachedTokens) < ColdShare*float64(r.PromptTokens) {
				rep.Cold++
			}
		}
	}
	if knownPrompt > 0 {
		rep.HitRatio = float64(rep.CachedTokens) / float64(knownPrompt)
	}
	rep.TTFT, rep.Latency, rep.LatenessP99 = QuantilesOf(ttft), QuantilesOf(latency), QuantilesOf(late).P99
	return rep
}

// WriteTable prints the report for people.
func (rep Report) WriteTable(w io.Writer) {
	fmt.Fprintf(w, "requests      %d (%d failed)\n", rep.Requests, rep.Errors)
	if rep.FirstError != "" {
		fmt.Fprintf(w, "first error   %s\n", rep.FirstError)
	}
	if rep.Errors == rep.Requests {
		return // nothing was answered
	}
	if rep.CachedKnown > 0 {
		fmt.Fprintf(w, "cached        %.1f %% of prompt tokens (%d of the requests told), %d cold\n", 100*rep.HitRatio, rep.CachedKnown, rep.Cold)
	} else {
		fmt.Fprintln(w, "cached        unknown: start the server with --enable-prompt-tokens-details")
	}
	line := func(name string, q Quantiles) {
		fmt.Fprintf(w, "%-13s mean %.1f ms, p50 %.1f, p90 %.1f, p99 %.1f\n", name, q.Mean, q.P50, q.P90, q.P99)
	}
	line("TTFT", rep.TTFT)
	line("latency", rep.Latency)
	if rep.LatenessP99 > 50 {
		fmt.Fprintf(w, "warning       the generator itself was late by %.0f ms (p99): lower the rate\n", rep.LatenessP99)
	}
}
