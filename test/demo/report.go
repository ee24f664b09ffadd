package demo

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/grapevine-llm/grapevine/test/load"
)

// Report is what `grapevine demo --json` writes.
type Report struct {
	Version   string         `json:"version"`
	Clock     string         `json:"clock"` // what a millisecond of ttft_ms means
	Speedup   float64        `json:"speedup"`
	Engines   int            `json:"engines_per_fleet"`
	Workloads []Row          `json:"workloads"`
	GatewayMS load.Quantiles `json:"gateway_ms"` // gateway's own time per request of the grapevine fleet, wall clock
}

// Row is one workload under one policy.
type Row struct {
	Name          string         `json:"name"`   // multi-turn, agentic, documents
	Policy        string         `json:"policy"` // round-robin, least-load, grapevine
	Requests      int            `json:"requests"`
	Errors        int            `json:"errors"`
	FirstError    string         `json:"first_error,omitempty"`
	HitRatio      float64        `json:"hit_ratio"` // cached over prompt tokens, as the engines say
	Cold          int            `json:"cold"`      // requests with under 20 % of their prompt cached
	MatchedByRung map[string]int `json:"matched_by_rung"`
	// Predicted counts the requests whose predicted cached tokens were those that the engine reported.
	Predicted      int            `json:"predicted_exactly"`
	GPUSeconds     float64        `json:"gpu_seconds"`          // spent on prefill
	GPUSecondsFull float64        `json:"gpu_seconds_no_cache"` // the same prompts without any cache
	HeldMS         load.Quantiles `json:"held_ms"`              // wait at the gateway, on the same clock as ttft_ms
	TTFT           load.Quantiles `json:"ttft_ms"`
	GatewayMS      load.Quantiles `json:"gateway_ms"`
	LatenessP99    float64        `json:"lateness_p99_ms"`
}

// row sums up one fleet's results. speedup is 1 for engines that are not emulated.
func row(name, policy string, results []load.Result, speedup float64) (Row, []float64) {
	rep := load.Summarize(results)
	r := Row{
		Name: name, Policy: policy, Requests: rep.Requests, Errors: rep.Errors, FirstError: rep.FirstError,
		HitRatio: rep.HitRatio, Cold: rep.Cold, MatchedByRung: map[string]int{}, LatenessP99: rep.LatenessP99,
	}
	var ttft, own, held []float64
	for i := range results {
		res := &results[i]
		if res.Err != nil {
			continue
		}
		h := headers{res}
		ttft = append(ttft, EmulatedTTFT(res, speedup))
		held = append(held, h.num("X-Grapevine-Held-Ms")*speedup)
		own = append(own, h.num("X-Grapevine-Gateway-Ms"))
		matched, digest := int(h.num("X-Grapevine-Matched-Blocks")), int(h.num("X-Grapevine-Digest-Blocks"))
		if matched > 0 {
			r.MatchedByRung[h.text("X-Grapevine-Rung")] += digest
			if matched > digest {
				r.MatchedByRung["speculation"] += matched - digest
			}
		}
		if predicted := h.text("X-Grapevine-Predicted-Cached-Tokens"); predicted != "" && predicted == strconv.Itoa(res.CachedTokens) {
			r.Predicted++
		}
	}
	r.TTFT, r.HeldMS = load.QuantilesOf(ttft), load.QuantilesOf(held)
	r.GatewayMS = load.QuantilesOf(slices.Clone(own))
	return r, own
}

// EmulatedTTFT puts a result's time to first token on the engines' emulated clock: what the engine
// spent and what the request was held for (a wait for an engine) count in emulated time;
// everything else counts as it was measured at the client's socket. In milliseconds.
func EmulatedTTFT(r *load.Result, speedup float64) float64 {
	h := headers{r}
	held := h.num("X-Grapevine-Held-Ms")
	rest := load.Millis(r.TTFT) - h.num("X-Engine-Wall-Ms") - held
	return h.num("X-Engine-Ttft-Ms") + held*speedup + max(0, rest)
}

// headers reads numbers from a result's answer headers; absent ones are 0.
type headers struct{ r *load.Result }

func (h headers) text(name string) string { return h.r.Header.Get(name) }
func (h headers) num(name string) float64 {
	x, err := strconv.ParseFloat(h.text(name), 64)
	if err != nil {
		return 0
	}
	return x
}

// WriteTable prints the report for people.
func (rep *Report) WriteTable(w io.Writer) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"workload", "policy", "requests", "failed", "hit", "cold", "TTFT p50", "p90", "p99", "mean", "prefill GPU s", "avoided"})
	var columns []table.ColumnConfig
	for i := 3; i <= 12; i++ {
		columns = append(columns, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	last := ""
	for _, r := range rep.Workloads {
		if last != "" && r.Name != last {
			t.AppendSeparator()
		}
		name := r.Name
		if r.Name == last {
			name = ""
		}
		last = r.Name
		gpu, avoided := "-", "-"
		if r.GPUSecondsFull > 0 {
			gpu = fmt.Sprintf("%.0f", r.GPUSeconds)
			avoided = fmt.Sprintf("%.0f %%", 100*(1-r.GPUSeconds/r.GPUSecondsFull))
		}
		t.AppendRow(table.Row{name, r.Policy, r.Requests, r.Errors, fmt.Sprintf("%.1f %%", 100*r.HitRatio), r.Cold,
			seconds(r.TTFT.P50), seconds(r.TTFT.P90), seconds(r.TTFT.P99), seconds(r.TTFT.Mean), gpu, avoided})
	}
	t.Render()
	fmt.Fprintf(w, "TTFT in %s. Gateway's own time per request: p50 %.2f ms, p99 %.2f ms.\n", rep.Clock, rep.GatewayMS.P50, rep.GatewayMS.P99)
	for _, r := range rep.Workloads {
		if r.FirstError != "" {
			fmt.Fprintf(w, "%s, %s: first error: %s\n", r.Name, r.Policy, r.FirstError)
		}
	}
}

// seconds formats milliseconds for people.
func seconds(ms float64) string {
	switch {
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.2f s", ms/1000)
	}
}
