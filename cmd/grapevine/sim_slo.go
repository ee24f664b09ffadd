package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/test/sim"
)

// simNeed is how many pods a policy needs for an aim, as `grapevine sim --slo-ttft-p99 --json` writes it.
type simNeed struct {
	Trace    string  `json:"trace"`
	Policy   string  `json:"policy"`
	Gateways int     `json:"gateways"`
	Engine   string  `json:"engine"`
	Arrivals string  `json:"arrivals"`
	Rate     float64 `json:"rate_per_s"`
	SLO      float64 `json:"slo_ttft_p99_s"`
	Pods     int     `json:"pods_needed"` // 0: more than most
	Most     int     `json:"pods_at_most"`
	// TTFT, HitRatio and GPUSeconds are those with that many pods, or with most: medians of the seeds.
	TTFT       sim.Quantiles `json:"ttft_s"`
	HitRatio   float64       `json:"hit_ratio"`
	GPUSeconds float64       `json:"gpu_seconds"`
	Seeds      int           `json:"seeds"`
	Input      string        `json:"input,omitempty"`
	Options    string        `json:"options,omitempty"`
	Version    string        `json:"version"`
}

// simMostPods is the largest fleet that the simulator plays.
const simMostPods = 64

// least finds the smallest fleet for which meets holds, if more pods are never worse: 1, 2, 4 and so on up to most, then between.
// It returns 0 if not even most will do.
func least(most int, meets func(pods int) (bool, error)) (int, error) {
	low, high := 0, 1 // low does not
	for {
		ok, err := meets(high)
		if err != nil {
			return 0, err
		}
		if ok {
			break
		}
		if high == most {
			return 0, nil
		}
		low, high = high, min(2*high, most)
	}
	for high-low > 1 {
		mid := (low + high) / 2
		ok, err := meets(mid)
		if err != nil {
			return 0, err
		}
		if ok {
			high = mid
		} else {
			low = mid
		}
	}
	return high, nil
}

// need finds the least number of pods for one policy. The cell's load counts for nothing: what comes does not depend on the fleet.
func (r *simRunner) need(ctx context.Context, c simCell, seeds int, slo float64) (simNeed, error) {
	c.load = 0
	tried := map[int]simSummary{}
	pods, err := least(simMostPods, func(pods int) (bool, error) {
		c := c
		c.cfg.Pods = pods
		var runs []simRun
		for i := range seeds {
			c.cfg.Seed = r.seed + uint64(i)
			run, err := r.run(ctx, c)
			if err != nil {
				return false, err
			}
			runs = append(runs, run)
		}
		tried[pods] = summarize(runs)[0]
		return tried[pods].TTFT.P99 <= slo, nil
	})
	if err != nil {
		return simNeed{}, err
	}
	shown, ok := tried[pods]
	if !ok {
		shown = tried[simMostPods]
	}
	return simNeed{
		Trace: shown.Trace, Policy: shown.Policy, Gateways: shown.Gateways, Engine: shown.Engine, Arrivals: shown.Arrivals, Rate: shown.Rate,
		SLO: slo, Pods: pods, Most: simMostPods, TTFT: shown.TTFT, HitRatio: shown.HitRatio, GPUSeconds: shown.GPUSeconds, Seeds: seeds,
		Input: shown.Input, Options: shown.Options, Version: version,
	}, nil
}

// needs finds the least number of pods for each cell, some at a time; in the order of the cells, fewer if it was stopped.
func (r *simRunner) needs(ctx context.Context, cells []simCell, seeds int, slo float64, parallel int) ([]simNeed, error) {
	found := make([]*simNeed, len(cells))
	var g *errgroup.Group
	g, ctx = errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i := range cells {
		g.Go(func() error {
			n, err := r.need(ctx, cells[i], seeds, slo)
			if err == nil {
				found[i] = &n
			}
			return err
		})
	}
	err := g.Wait()
	out := []simNeed{}
	for _, n := range found {
		if n != nil {
			out = append(out, *n)
		}
	}
	return out, err
}

// writeNeeds writes a table.
func writeNeeds(out io.Writer, needs []simNeed) {
	t := simTable("Trace", "rate", "policy", "pods needed", "p99", "mean", "hit", "prefill GPU s")
	for i, n := range needs {
		name, rate := fmt.Sprintf("%s (%s, %s)", n.Trace, n.Engine, n.Arrivals), fmt.Sprintf("%.3g/s", n.Rate)
		if i > 0 {
			if b := needs[i-1]; b.Trace == n.Trace && b.Engine == n.Engine && b.Arrivals == n.Arrivals {
				name, rate = "", ""
			} else {
				t.AppendSeparator()
			}
		}
		pods := fmt.Sprint(n.Pods)
		if n.Pods == 0 {
			pods = fmt.Sprintf("over %d", n.Most)
		}
		t.AppendRow(table.Row{name, rate, n.Policy, pods, fmt.Sprintf("%.2f s", n.TTFT.P99), fmt.Sprintf("%.2f s", n.TTFT.Mean), fmt.Sprintf("%.1f %%", 100*n.HitRatio), fmt.Sprintf("%.0f", n.GPUSeconds)})
	}
	if len(needs) > 0 {
		fmt.Fprintf(out, "pods for a p99 of time to first token of at most %g s; where not even %d pods do, figures are theirs\n", needs[0].SLO, simMostPods)
	}
	render(out, t, false)
}
