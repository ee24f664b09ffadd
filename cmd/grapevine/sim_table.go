package main

import (
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/grapevine-llm/grapevine/test/sim"
)

// simSummary is what the runs of one cell with different seeds came to: the median of each figure, and the range of the mean TTFT.
type simSummary struct {
	simRun    // the first; its figures are the medians
	seeds     int
	low, high float64
	unserved  float64
	late      float64
}

// summarize puts the seeds of each cell together, in the order of the cells' first runs.
func summarize(runs []simRun) []simSummary {
	var order []string
	cells := map[string][]simRun{}
	for _, r := range runs {
		one := r
		one.Seed = 0
		key := one.key()
		if cells[key] == nil {
			order = append(order, key)
		}
		cells[key] = append(cells[key], r)
	}
	out := make([]simSummary, 0, len(order))
	for _, key := range order {
		of := cells[key]
		median := func(value func(r *sim.Result) float64) float64 {
			v := make([]float64, len(of))
			for i := range of {
				v[i] = value(of[i].Result)
			}
			slices.Sort(v)
			return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
		}
		s := simSummary{simRun: of[0], seeds: len(of), low: math.Inf(1)}
		for _, r := range of {
			s.low, s.high = min(s.low, r.TTFT.Mean), max(s.high, r.TTFT.Mean)
		}
		result := *of[0].Result
		s.Result = &result
		result.HitRatio = median(func(r *sim.Result) float64 { return r.HitRatio })
		result.TTFT = sim.Quantiles{
			Mean: median(func(r *sim.Result) float64 { return r.TTFT.Mean }), P50: median(func(r *sim.Result) float64 { return r.TTFT.P50 }),
			P90: median(func(r *sim.Result) float64 { return r.TTFT.P90 }), P99: median(func(r *sim.Result) float64 { return r.TTFT.P99 }),
		}
		for q := range result.P99ByPrompt {
			result.P99ByPrompt[q] = median(func(r *sim.Result) float64 { return r.P99ByPrompt[q] })
		}
		result.GPUSeconds = median(func(r *sim.Result) float64 { return r.GPUSeconds })
		s.late = median(func(r *sim.Result) float64 { return float64(r.Late) })
		s.unserved = median(func(r *sim.Result) float64 { return float64(r.Unserved) })
		out = append(out, s)
	}
	return out
}

// title says what all runs of a table have in common.
func (s *simSummary) title() string {
	t := fmt.Sprintf("%s, %s, %s engine, %s arrivals", count(s.Pods, "pod"), count(s.Gateways, "gateway"), s.Engine, s.Arrivals)
	if s.Options != "" {
		t += ", " + s.Options
	}
	return t
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// loadOf is a run's load as people write it.
func loadOf(r *simRun) string {
	if r.Load > 0 {
		return fmt.Sprintf("%.0f %%", 100*r.Load)
	}
	return fmt.Sprintf("%.3g/s", r.Rate)
}

// policyNames are those by which other routers' rules are known.
var policyNames = map[string]string{
	"round-robin": "round robin", "least-outstanding": "least outstanding", "session-hash": "session hash, bounded load",
	"llmd-legacy": "llm-d, weighted scorers", "llmd-default": "llm-d, affinity filter", "dynamo": "Dynamo", "sglang": "SGLang",
	"min-ttft": "least predicted TTFT", "shared-cache": "one shared cache (bound)", "grapevine": "Grapevine", "grapevine-exact": "Grapevine, exact index (bound)",
}

func policyName(policy string, markdown bool) string {
	if known, ok := policyNames[policy]; ok && markdown {
		return known
	}
	return policy
}

// writeRuns writes a table, or in Markdown those of docs/comparison.md, for each kind of fleet, and how ours compares.
func writeRuns(out io.Writer, runs []simRun, markdown bool) {
	sections := map[string][]simSummary{}
	var titles []string
	for _, s := range summarize(runs) {
		title := s.title()
		if sections[title] == nil {
			titles = append(titles, title)
		}
		sections[title] = append(sections[title], s)
	}
	for i, title := range titles {
		if i > 0 {
			fmt.Fprintln(out)
		}
		of := sections[title]
		// Runs that were made at different times may come between each other.
		place := map[string]int{}
		for _, s := range of {
			if k := s.Trace + s.Input + loadOf(&s.simRun); place[k] == 0 {
				place[k] = len(place) + 1
			}
		}
		at := func(s simSummary) int { return place[s.Trace+s.Input+loadOf(&s.simRun)] }
		slices.SortStableFunc(of, func(a, b simSummary) int { return at(a) - at(b) })
		if markdown {
			fmt.Fprintf(out, "**%s**\n\n", title)
		} else {
			fmt.Fprintln(out, title)
		}
		writeSection(out, of, markdown)
		writeComparison(out, of, markdown)
	}
}

func writeSection(out io.Writer, of []simSummary, markdown bool) {
	t := simTable("Trace", "Load", "Policy", "Hit", "TTFT mean", "p50", "p90", "p99", "over 30 s", "unserved", "prefill GPU s")
	for i, r := range of {
		name, load := cellName(of, i, markdown)
		if name+load != "" && i > 0 {
			t.AppendSeparator()
		}
		s := func(v float64) string { return fmt.Sprintf("%.2f s", v) }
		mean := s(r.TTFT.Mean)
		if r.seeds > 1 {
			mean += fmt.Sprintf(" (%.2f–%.2f)", r.low, r.high)
		}
		t.AppendRow(table.Row{
			name, load, policyName(r.Policy, markdown), fmt.Sprintf("%.1f %%", 100*r.HitRatio), mean, s(r.TTFT.P50), s(r.TTFT.P90), s(r.TTFT.P99),
			fmt.Sprintf("%.0f", r.late), fmt.Sprintf("%.0f", r.unserved), fmt.Sprintf("%.0f", r.GPUSeconds),
		})
	}
	render(out, t, markdown)
}

const comparison = "against the best other policy of each column: times as long, points of hits more, requests over 30 s of both"

// writeComparison compares ours with the best of the other routers in each figure.
func writeComparison(out io.Writer, of []simSummary, markdown bool) {
	t := simTable("Trace", "Load", "best other", "its mean", "mean", "p50", "p99", "p99, worst quarter of prompts", "hit", "over 30 s")
	rows := 0
	for from := 0; from < len(of); {
		to := from + 1
		for to < len(of) && of[to].Trace == of[from].Trace && of[to].Input == of[from].Input && loadOf(&of[to].simRun) == loadOf(&of[from].simRun) {
			to++
		}
		if row := compareRuns(of[from:to], markdown); row != nil {
			name, load := cellName(of, from, markdown)
			if load == "" {
				load = loadOf(&of[from].simRun)
			}
			t.AppendRow(append(table.Row{name, load}, row...))
			rows++
		}
		from = to
	}
	if rows == 0 {
		return
	}
	if markdown {
		fmt.Fprintf(out, "\nGrapevine %s:\n\n", comparison)
	} else {
		fmt.Fprintf(out, "%s %s\n", ourPolicy, comparison)
	}
	render(out, t, markdown)
}

// compareRuns compares the policies of one cell; nil without ours or others.
func compareRuns(of []simSummary, markdown bool) table.Row {
	ours := slices.IndexFunc(of, func(s simSummary) bool { return s.Policy == ourPolicy })
	if ours < 0 {
		return nil
	}
	us := of[ours]
	best := simSummary{}
	var mean, p50, p99, hit, late, worst float64
	var p99s [4]float64
	for i, s := range of {
		if i == ours || !isPeer(s.Policy) {
			continue
		}
		if best.Result == nil {
			best, mean, p50, p99, hit, late, p99s = s, s.TTFT.Mean, s.TTFT.P50, s.TTFT.P99, s.HitRatio, s.late, s.P99ByPrompt
			continue
		}
		if s.TTFT.Mean < mean {
			best = s
		}
		mean, p50, p99, late, hit = min(mean, s.TTFT.Mean), min(p50, s.TTFT.P50), min(p99, s.TTFT.P99), min(late, s.late), max(hit, s.HitRatio)
		for q := range p99s {
			p99s[q] = min(p99s[q], s.P99ByPrompt[q])
		}
	}
	if best.Result == nil {
		return nil
	}
	over := func(a, b float64) float64 {
		if b <= 0 {
			return 1
		}
		return a / b
	}
	for q := range p99s {
		worst = max(worst, over(us.P99ByPrompt[q], p99s[q]))
	}
	x := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	return table.Row{
		policyName(best.Policy, markdown), fmt.Sprintf("%.2f s", mean), x(over(us.TTFT.Mean, mean)), x(over(us.TTFT.P50, p50)), x(over(us.TTFT.P99, p99)), x(worst),
		fmt.Sprintf("%+.1f", 100*(us.HitRatio-hit)), fmt.Sprintf("%.0f, %.0f", us.late, late),
	}
}

// cellName is the trace and the load of row i where they differ from those of the row before.
func cellName(of []simSummary, i int, markdown bool) (name, load string) {
	r := &of[i]
	name, load = r.Trace, loadOf(&r.simRun)
	if r.Input != "" && markdown {
		name += " (" + r.Input + ")"
	}
	if i > 0 && of[i-1].Trace == r.Trace && of[i-1].Input == r.Input && loadOf(&of[i-1].simRun) == load {
		return "", ""
	}
	return name, load
}

// simTable is a table whose columns stand to the right but for the first three.
func simTable(header ...any) table.Writer {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.AppendHeader(header)
	var columns []table.ColumnConfig
	for n := 4; n <= len(header); n++ {
		columns = append(columns, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	return t
}

func render(out io.Writer, t table.Writer, markdown bool) {
	if !markdown {
		fmt.Fprintln(out, t.Render())
		return
	}
	t.Style().Format.Header = text.FormatDefault
	fmt.Fprintln(out, t.RenderMarkdown())
}
