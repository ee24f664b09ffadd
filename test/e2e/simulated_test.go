package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/demo"
	"github.com/grapevine-llm/grapevine/test/load"
	"github.com/grapevine-llm/grapevine/test/sim"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// The cell that is simulated and run. Emulated engines are real processes at several times their speed: whatever the machine
// takes for itself counts as many times, and so does the age of what gateways hear. A queue at nine tenths of what a fleet carries
// depends on chance, and small differences grow: times are compared with the range of several draws. (The simulator's
// least outstanding breaks ties by pod, ours by a hash of the prompt's beginning: a little more is found in the caches.)
const (
	cellSpeedup  = 6
	cellPods     = 8
	cellGateways = 3
	cellRequests = 750
	cellPrompt   = 65536 // tokens at most
	cellLoad     = 0.95  // of what round robin carries
	cellAge      = 50 * time.Millisecond
	cellDraws    = 5 // of when sessions start; the first is run
)

// outcome is what both are compared by. Times are seconds of the engines.
type outcome struct {
	mean, p50, p90 float64 // to the first token
	hit, gpu       float64 // share of prompt tokens; seconds of prefill
	failed         int
}

func (o outcome) String() string {
	return fmt.Sprintf("TTFT mean %6.2f s, p50 %5.2f s, p90 %6.2f s; hit %4.1f %%, prefill %5.0f GPU s, %d failed", o.mean, o.p50, o.p90, 100*o.hit, o.gpu, o.failed)
}

// TestFleetAsSimulated plays a part of a trace on the simulator and, scaled down in time, through real gateways, agents and emulated
// engines: with late binding, without, and by load alone.
func TestFleetAsSimulated(t *testing.T) {
	folder := os.Getenv("GRAPEVINE_TRACES")
	if folder == "" {
		t.Skip("needs traces of agents' sessions: set GRAPEVINE_TRACES to a folder with WEKA's cc-traces (make sim-check TRACES=FOLDER); takes six minutes")
	}
	var traces []*trace.Trace
	for seed := range uint64(cellDraws) {
		traces = append(traces, agentTrace(t, folder, 1+seed))
	}
	tr := traces[0]
	cfg := sim.Default()
	cfg.Trace, cfg.Pods, cfg.Gateways, cfg.StateDelay = tr, cellPods, cellGateways, cellSpeedup*cellAge
	saturation, err := sim.Saturation(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests at %.2f/s, %d engines, %d gateways, %d times as fast", len(tr.Requests), cellLoad*saturation, cellPods, cellGateways, cellSpeedup)
	for _, cell := range []struct {
		name, simulated, policy string
		args                    []string
	}{
		{"late binding", "grapevine", "prefix", nil},
		{"early binding", "grapevine-early", "prefix", []string{"--holding=false"}},
		{"least load", "least-outstanding", "least-load", nil},
	} {
		t.Run(strings.ReplaceAll(cell.name, " ", "-"), func(t *testing.T) {
			cfg := cfg
			cfg.Policy = cell.simulated
			var draws []outcome
			for _, cfg.Trace = range traces {
				cfg.Load(cellLoad, saturation)
				r, err := sim.Run(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				draws = append(draws, outcome{r.TTFT.Mean, r.TTFT.P50, r.TTFT.P90, r.HitRatio, r.GPUSeconds, r.Unserved})
			}
			want := draws[0]
			byMean := func(a, b outcome) int { return cmp.Compare(a.mean, b.mean) }
			low, high := slices.MinFunc(draws, byMean).mean, slices.MaxFunc(draws, byMean).mean
			t.Logf("simulated: %v (mean of %d draws from %.2f to %.2f s)", want, cellDraws, low, high)
			cfg.Trace = tr
			cfg.Load(cellLoad, saturation)
			got := played(t, tr, cfg.Rate, cluster.Options{Name: "cell", Policy: cell.policy, GatewayArgs: cell.args})
			t.Logf("processes: %v", got)
			t.Logf("ratio:     TTFT mean %.2f, prefill %.2f", got.mean/want.mean, got.gpu/want.gpu)
			if got.failed > 0 {
				t.Errorf("%d requests failed", got.failed)
			}
			if got.mean < low/1.5 || got.mean > high*1.5 {
				t.Errorf("mean TTFT is far outside what was simulated: was the machine busy with other things?")
			}
			if x := got.gpu / want.gpu; x < 1/1.2 || x > 1.2 {
				t.Errorf("engines computed for %.0f s, simulated were %.0f s", got.gpu, want.gpu)
			}
		})
	}
}

// agentTrace reads the first requests of the cc-traces below a folder. The seed draws when sessions start.
func agentTrace(t *testing.T, folder string, seed uint64) *trace.Trace {
	t.Helper()
	var path string
	err := filepath.WalkDir(folder, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(filepath.Base(p), "cc-traces") && strings.Contains(p, ".jsonl") {
			path = p
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if path == "" {
		t.Skipf("no cc-traces in %s", folder)
	}
	tr, err := trace.Read(path, trace.CC, trace.Options{Limit: cellRequests, MaxPrompt: cellPrompt, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// played sends a trace, rate times as fast as it is, to a fleet, each request to the next gateway.
func played(t *testing.T, tr *trace.Trace, rate float64, o cluster.Options) outcome {
	t.Helper()
	o.Engines, o.Speedup = cellPods, cellSpeedup
	f := up(t, o)
	defer f.Down()
	for range cellGateways - 1 {
		g, err := f.AddGateway()
		if err != nil {
			t.Fatal(err)
		}
		if err := f.WaitReporting(t.Context(), g, cellPods, 30*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	reqs := load.FromTrace(tr, load.DefaultVocabulary())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var results [cellGateways][]load.Result
	var wg sync.WaitGroup
	for i, g := range f.Gateways {
		var mine []load.Request
		for k := i; k < len(reqs); k += cellGateways {
			mine = append(mine, reqs[k])
		}
		wg.Go(func() {
			var err error
			if results[i], err = load.Run(ctx, load.Config{Target: g.URL, Model: "tiny", Speedup: cellSpeedup * rate}, mine); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	var out outcome
	var ttft []float64
	var late time.Duration
	for _, r := range slices.Concat(results[:]...) {
		if r.Err != nil {
			out.failed++
			continue
		}
		ttft = append(ttft, demo.EmulatedTTFT(&r, cellSpeedup)/1000)
		late = max(late, r.Lateness)
	}
	if len(ttft) == 0 {
		t.Fatal("every request failed")
	}
	q := load.QuantilesOf(ttft)
	out.mean, out.p50, out.p90 = q.Mean, q.P50, q.P90
	stats, err := f.EngineStats()
	if err != nil {
		t.Fatal(err)
	}
	out.hit, out.gpu = float64(stats.CachedTokens)/float64(stats.PromptTokens), stats.PrefillSeconds
	t.Logf("sent at most %v late", late.Round(time.Millisecond))
	return out
}
