package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/load"
)

// EnginesConfig is a run against engines that are already there.
type EnginesConfig struct {
	URLs                                   []string
	Model                                  string
	ModelDir                               string // tokenizer.json of the model; empty: the engine's own tokenizer is asked
	ResetCaches                            bool
	Sessions                               int
	Turns                                  int
	PromptTokens, TurnTokens, AnswerTokens int
	Gap                                    time.Duration // mean between two requests
}

// EnginesReport is what a run against real engines came to. Its times are wall time of this machine.
type EnginesReport struct {
	Version string       `json:"version"`
	Clock   string       `json:"clock"`
	Runs    []EnginesRun `json:"runs"`
}

// EnginesRun is one policy's share.
type EnginesRun struct {
	Policy     string         `json:"policy"`
	Requests   int            `json:"requests"`
	Errors     int            `json:"errors"`
	FirstError string         `json:"first_error,omitempty"`
	HitRatio   float64        `json:"hit_ratio"`
	Predicted  int            `json:"predicted_exactly"`  // predicted = reported cached tokens
	CPUSeconds float64        `json:"engine_cpu_seconds"` // of the engines' API processes as their metrics say; 0 unknown
	TTFT       load.Quantiles `json:"ttft_ms"`
}

// RunEngines sends a conversation workload under round robin and then under Grapevine, each
// through a gateway of its own, with one agent that watches all engines.
func RunEngines(ctx context.Context, cfg Config, e EnginesConfig) error {
	dir, err := cluster.TempDir()
	if err != nil {
		return err
	}
	f := &cluster.Fleet{
		Options: cluster.Options{Name: "demo", Exe: cfg.Exe, Dir: dir, Speedup: 1, Model: e.Model, Ports: &cluster.Ports{}},
		Client:  &http.Client{Timeout: 10 * time.Second},
	}
	for _, url := range e.URLs {
		f.Engines = append(f.Engines, &cluster.Engine{URL: strings.TrimSuffix(url, "/")})
	}
	if err := idle(ctx, f); err != nil {
		return err
	}
	fmt.Fprintf(cfg.Out, "%d engines, %d conversations of %d turns, round robin first, then Grapevine. Logs: %s\n", len(f.Engines), e.Sessions, e.Turns, dir)
	rep := EnginesReport{Version: cfg.Version, Clock: "wall time of this machine"}
	for i, p := range [][2]string{{"round-robin", "round-robin"}, {"grapevine", "prefix"}} {
		seed := uint64(1)
		if !e.ResetCaches {
			seed += uint64(i) // conversations of their own: the second run must find nothing of the first
		}
		run, err := runEngines(ctx, cfg, f, e, p, seed)
		if err != nil {
			return err
		}
		rep.Runs = append(rep.Runs, run)
	}
	rep.writeTable(cfg)
	return writeJSON(cfg.JSONFile, rep)
}

// idle refuses engines that serve others' requests.
func idle(ctx context.Context, f *cluster.Fleet) error {
	requests := func() (map[string]float64, error) {
		counts := map[string]float64{}
		for _, e := range f.Engines {
			m, err := f.Metrics(e.URL + "/metrics")
			if err != nil {
				return nil, fmt.Errorf("engine %s: %w", e.URL, err)
			}
			if n := m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"]; n > 0 {
				return nil, fmt.Errorf("engine %s serves %g requests of others: give engines that are idle", e.URL, n)
			}
			counts[e.URL] = m["vllm:prompt_tokens_total"]
		}
		return counts, nil
	}
	before, err := requests()
	if err != nil {
		return err
	}
	select {
	case <-time.After(2 * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := requests()
	if err != nil {
		return err
	}
	for url, n := range after {
		if n != before[url] {
			return fmt.Errorf("engine %s took requests of others just now: give engines that are idle", url)
		}
	}
	return nil
}

// runEngines is one policy's run.
func runEngines(ctx context.Context, cfg Config, f *cluster.Fleet, e EnginesConfig, policy [2]string, seed uint64) (EnginesRun, error) {
	if e.ResetCaches {
		for _, engine := range f.Engines {
			if err := f.Post(engine.URL + "/reset_prefix_cache"); err != nil {
				return EnginesRun{}, fmt.Errorf("reset the cache of %s (needs VLLM_SERVER_DEV_MODE=1 there): %w", engine.URL, err)
			}
		}
	}
	f.Policy = policy[1]
	f.GatewayArgs = nil
	if e.ModelDir != "" {
		f.GatewayArgs = []string{"--model", e.Model + "=" + e.ModelDir}
	}
	f.GatewayArgs = append(f.GatewayArgs, cfg.GatewayArgs...)
	g, err := f.AddGateway()
	if err != nil {
		return EnginesRun{}, err
	}
	defer f.RemoveGateways()
	agent, err := f.AddAgent()
	if err != nil {
		return EnginesRun{}, err
	}
	defer func() {
		agent.Stop(3 * time.Second)
		f.Agents = nil
	}()
	if err := f.WaitReporting(ctx, g, len(f.Engines), 30*time.Second); err != nil {
		return EnginesRun{}, err
	}
	before, err := cpu(f)
	if err != nil {
		return EnginesRun{}, err
	}
	w := load.MultiTurn{
		Sessions: e.Sessions, Turns: e.Turns, SessionGap: e.Gap * time.Duration(e.Turns),
		SystemTokens: e.PromptTokens / 10, FirstTokens: e.PromptTokens - e.PromptTokens/10, TurnTokens: e.TurnTokens, AnswerTokens: e.AnswerTokens,
		ThinkMin: e.Gap * time.Duration(e.Sessions), ThinkMax: 2 * e.Gap * time.Duration(e.Sessions), Seed: seed,
	}
	reqs := w.Requests(load.DefaultVocabulary())
	p := newProgress(cfg, policy[0], len(reqs), reqs[len(reqs)-1].At)
	results, err := load.Run(ctx, load.Config{Target: g.URL, Model: e.Model, OnResult: func(r load.Result) { p.done(r.Err != nil) }}, reqs)
	p.stop()
	if err != nil {
		return EnginesRun{}, err
	}
	after, err := cpu(f)
	if err != nil {
		return EnginesRun{}, err
	}
	r, _ := row("", policy[0], results, 1)
	rep := load.Summarize(results)
	return EnginesRun{
		Policy: policy[0], Requests: r.Requests, Errors: r.Errors, FirstError: r.FirstError,
		HitRatio: r.HitRatio, Predicted: r.Predicted, CPUSeconds: after - before, TTFT: rep.TTFT,
	}, nil
}

// cpu adds up the CPU seconds of the engines' process trees.
func cpu(f *cluster.Fleet) (float64, error) {
	var sum float64
	var errs []error
	for _, e := range f.Engines {
		s, err := cluster.CPUSeconds(e.URL)
		sum += s
		errs = append(errs, err)
	}
	return sum, errors.Join(errs...)
}

func (rep *EnginesReport) writeTable(cfg Config) {
	t := table.NewWriter()
	t.SetOutputMirror(cfg.Out)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"policy", "requests", "failed", "cached", "predicted = reported", "engines' CPU s", "TTFT p50", "p90", "p99", "mean"})
	for _, r := range rep.Runs {
		t.AppendRow(table.Row{r.Policy, r.Requests, r.Errors, fmt.Sprintf("%.1f %%", 100*r.HitRatio), fmt.Sprintf("%d of %d", r.Predicted, r.Requests),
			fmt.Sprintf("%.1f", r.CPUSeconds), seconds(r.TTFT.P50), seconds(r.TTFT.P90), seconds(r.TTFT.P99), seconds(r.TTFT.Mean)})
	}
	t.Render()
	fmt.Fprintf(cfg.Out, "TTFT in %s.\n", rep.Clock)
	for _, r := range rep.Runs {
		if r.FirstError != "" {
			fmt.Fprintf(cfg.Out, "%s: first error: %s\n", r.Policy, r.FirstError)
		}
	}
}
