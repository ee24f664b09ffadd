package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/grapevine-llm/grapevine/test/load"
)

// report is the outcome of one run.
type report struct {
	Machine    string       `json:"machine"`
	Engines    string       `json:"engines"`
	Count      int          `json:"engine_count"`
	Requests   int          `json:"requests"` // in each cell, to each target
	Skipped    []string     `json:"skipped,omitempty"`
	Cells      []cell       `json:"cells"`
	Background []background `json:"background"`
	// Scaling is how many prompts a gateway tokenizes a request, by the number of its engines.
	Scaling []scaling `json:"scaling,omitempty"`
}

// background is the CPU time that a process takes without requests.
type background struct {
	Target   string  `json:"target"`
	BeforeMs float64 `json:"before_ms_per_s"` // the first request, in a second
	AfterMs  float64 `json:"after_ms_per_s"`  // the last one
}

type scaling struct {
	Engines   int     `json:"engines"`
	Tokenized float64 `json:"tokenized"`
}

// cell is one size of bodies, cold or warm.
type cell struct {
	KiB  int   `json:"kib"`
	Warm bool  `json:"warm"`
	Rows []row `json:"targets"`
}

// row is one target of a cell.
type row struct {
	Target    string         `json:"target"`
	FirstByte load.Quantiles `json:"first_byte_ms"`
	Gateway   bool           `json:"gateway"`
	HasCPU    bool           `json:"has_cpu"`
	CPU       load.Quantiles `json:"cpu_ms"`      // between a request and the end of its answer
	MeanCPUMs float64        `json:"cpu_mean_ms"` // of the whole process by request, less the background before the first one
	Tokenized float64        `json:"tokenized"`   // prompts that the gateway tokenized, a request
	LateMs    float64        `json:"late_p99_ms"` // of the client
}

// of finds a target's row, nil if it was skipped.
func (c *cell) of(target string) *row {
	for i := range c.Rows {
		if c.Rows[i].Target == target {
			return &c.Rows[i]
		}
	}
	return nil
}

// write prints the report for people.
func (rep *report) write(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s; %d engines: %s; %d requests in each line, open loop, all lines of one run\n", rep.Machine, rep.Count, rep.Engines, rep.Requests)
	for _, s := range rep.Skipped {
		fmt.Fprintf(&b, "skipped: %s\n", s)
	}
	t := table.NewWriter()
	t.SetOutputMirror(&b)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"body", "", "target", "first byte p50", "p99", "added p50", "CPU p50", "p99", "mean", "tokenized", "p50 : forward only", ": nginx"})
	for i := range rep.Cells {
		c := &rep.Cells[i]
		if i > 0 {
			t.AppendSeparator()
		}
		for k := range c.Rows {
			t.AppendRow(c.line(&c.Rows[k], k == 0))
		}
	}
	t.Render()
	fmt.Fprintln(&b, "added: to the engine's own first byte, medians. CPU p50, p99: of the proxy's process from a request to the end of its answer.")
	fmt.Fprintln(&b, "mean: all its CPU by request, collecting garbage and forgetting marks included, less what it takes before the first one.")
	for _, g := range rep.Background {
		fmt.Fprintf(&b, "without requests %s takes %.1f ms of CPU in a second before the first of them, %.1f ms after the last\n", g.Target, g.BeforeMs, g.AfterMs)
	}
	for _, s := range rep.Scaling {
		fmt.Fprintf(&b, "with %d engines the gateway tokenizes %.2f prompts a request\n", s.Engines, s.Tokenized)
	}
	fmt.Fprintf(&b, "the client sent within %.1f ms of its plan (p99 of the worst line)\n", rep.lateness())
	_, err := w.Write(b.Bytes())
	return err
}

func (c *cell) line(r *row, first bool) table.Row {
	body, state := "", ""
	if first {
		body, state = fmt.Sprintf("%d KiB", c.KiB), "cold"
		if c.Warm {
			state = "warm"
		}
	}
	added, cpu, ratios, tokenized := "", [3]string{}, [2]string{}, ""
	if engine := c.of("engine"); engine != nil && r != engine {
		added = fmt.Sprintf("%+.2f ms", r.FirstByte.P50-engine.FirstByte.P50)
	}
	if r.HasCPU {
		for i, ms := range []float64{r.CPU.P50, r.CPU.P99, r.MeanCPUMs} {
			cpu[i] = fmt.Sprintf("%.2f ms", ms)
		}
		for i, other := range []string{"forward only", "nginx"} {
			if o := c.of(other); o != nil && o != r && o.CPU.P50 > 0 {
				ratios[i] = fmt.Sprintf("%.1f", r.CPU.P50/o.CPU.P50)
			}
		}
	}
	if r.Gateway {
		tokenized = fmt.Sprintf("%.2f", r.Tokenized)
	}
	return table.Row{
		body, state, r.Target, fmt.Sprintf("%.2f ms", r.FirstByte.P50), fmt.Sprintf("%.2f ms", r.FirstByte.P99), added,
		cpu[0], cpu[1], cpu[2], tokenized, ratios[0], ratios[1],
	}
}

func (rep *report) lateness() float64 {
	worst := 0.0
	for _, c := range rep.Cells {
		for _, r := range c.Rows {
			worst = max(worst, r.LateMs)
		}
	}
	return worst
}
