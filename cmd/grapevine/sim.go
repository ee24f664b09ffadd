package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/grapevine-llm/grapevine/test/sim"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// simRun is one run as `grapevine sim --json` writes it.
type simRun struct {
	Trace    string  `json:"trace"`
	Engine   string  `json:"engine"`
	Arrivals string  `json:"arrivals"`
	Load     float64 `json:"load"` // share of what round robin can carry
	Seed     uint64  `json:"seed"`
	*sim.Result
}

// simFlags are those that are not a sim.Config's own.
type simFlags struct {
	traces, policies []string
	format           string
	loads            []float64
	blockTokens      int
	read             trace.Options
	json             string
}

// newSimCommand is `grapevine sim`.
func newSimCommand() *cobra.Command {
	cfg := sim.Default()
	cfg.Engine = sim.Chunked
	f := simFlags{format: string(trace.Mooncake), loads: []float64{0.8}, blockTokens: 512, policies: []string{"round-robin", "llmd-legacy", "llmd-default", "dynamo", "sglang", "grapevine"}}
	engine, arrivals := string(cfg.Engine), string(cfg.Arrivals)
	cmd := &cobra.Command{
		Use:   "sim --trace FILE",
		Short: "Play a request trace against a simulated fleet under our policy and other routers'",
		Long: `Plays a trace in virtual time: model engines, the product's own code for block sets, digests, gossip packets, matching
and binding, and other routers' rules as published, with an exact index. Says time to first token, hits and GPU time of
each. It takes seconds a run and needs no fleet.

Loads are shares of what the fleet can carry under round robin. Engines: single (one prefill at a time) or chunked
(prefill in chunks beside decodes, as vLLM's scheduler). Arrivals: open (as the trace says) or causal (a call comes a think
time after the one before has ended).

A trace in our own form is a JSON object a line, with a number for each block of the prompt: equal numbers mean that two prompts
are equal up to the end of that block. Times are milliseconds, lengths tokens; block_tokens is 512 if it is not given, session
and think_ms (since the end of the session's call before) may be missing:

  {"timestamp": 1200, "input_length": 1540, "output_length": 100, "hash_ids": [1, 2, 3], "block_tokens": 512, "session": "a"}

Mooncake's form is the same without the last two.`,
		Example: `  grapevine sim --trace conversation_trace.jsonl.gz --pods 8 --load 0.5,0.8,0.95
  grapevine sim --trace cc-traces.jsonl.zst --format cc --max-prompt 65536 --policy llmd-legacy,grapevine --json -`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(f.traces) == 0 {
				return usageError("--trace is needed: one or more files, comma-separated")
			}
			if f.blockTokens < 1 || f.blockTokens > trace.MaxBlockTokens {
				return usageError(fmt.Sprintf("--block-tokens %d: give 1 to %d", f.blockTokens, trace.MaxBlockTokens))
			}
			cfg.Engine, cfg.Arrivals = sim.Engine(engine), sim.Arrivals(arrivals)
			for _, policy := range f.policies {
				if !slices.Contains(sim.Policies(), policy) {
					return usageError(fmt.Sprintf("--policy %s: give some of %s", policy, strings.Join(sim.Policies(), ", ")))
				}
			}
			for _, load := range f.loads {
				if !(load >= 0.001 && load <= 1000) {
					return usageError(fmt.Sprintf("--load %g: give 0.001 to 1000", load))
				}
			}
			if !slices.Contains(trace.Formats(), trace.Format(f.format)) {
				return usageError(fmt.Sprintf("--format %s: give grapevine, mooncake, cc or azure", f.format))
			}
			f.read.Seed = cfg.Seed
			var runs []simRun
			for _, path := range f.traces {
				t, err := trace.Read(path, trace.Format(f.format), f.read)
				if err != nil {
					return err
				}
				if n := f.blockTokens / t.BlockTokens; n > 1 {
					t = t.Regroup(n)
				}
				cfg.Trace = t
				more, err := f.run(cmd, cfg, filepath.Base(path))
				if err != nil {
					return err
				}
				runs = append(runs, more...)
			}
			if f.json == "" {
				writeRuns(cmd.OutOrStdout(), runs)
				return nil
			}
			b, err := json.MarshalIndent(runs, "", "  ")
			if err != nil {
				return fmt.Errorf("write runs: %w", err)
			}
			if f.json == "-" {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", b)
			} else {
				err = os.WriteFile(f.json, append(b, '\n'), 0o644)
			}
			return err
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&f.traces, "trace", nil, "files with request traces, plain, gzip or zstd")
	fs.StringVar(&f.format, "format", f.format, "their form: grapevine, mooncake, cc or azure")
	fs.StringSliceVar(&f.policies, "policy", f.policies, "of "+strings.Join(sim.Policies(), ", "))
	fs.Float64SliceVar(&f.loads, "load", f.loads, "shares of what round robin can carry")
	fs.IntVar(&cfg.Pods, "pods", cfg.Pods, "model pods, at most 64")
	fs.IntVar(&cfg.Gateways, "gateways", cfg.Gateways, "gateways; those of other routers know of each other's requests at once, ours do not")
	fs.StringVar(&engine, "engine", engine, "single or chunked")
	fs.StringVar(&arrivals, "arrivals", arrivals, "open or causal")
	fs.DurationVar(&cfg.StateDelay, "state-delay", cfg.StateDelay, "age of what gateways hear of engines")
	fs.DurationVar(&cfg.Timeout, "timeout", cfg.Timeout, "how long a client waits for its first token")
	fs.IntVar(&cfg.PodTokens, "pod-tokens", cfg.PodTokens, "KV cache of a pod")
	fs.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "of what the trace does not say")
	fs.IntVar(&f.read.Limit, "requests", 0, "the first so many requests; 0: all")
	fs.IntVar(&f.read.MaxPrompt, "max-prompt", 0, "leave out longer prompts, and what follows in their sessions; in tokens, 0: none")
	fs.IntVar(&f.blockTokens, "block-tokens", f.blockTokens, "tokens of a block at least; smaller ones of the trace are put together")
	fs.StringVar(&f.json, "json", "", "write the runs as JSON to this file, - for standard output")
	return cmd
}

// run plays one trace under every load and policy, and says on standard error how far it is.
func (f *simFlags) run(cmd *cobra.Command, cfg sim.Config, name string) ([]simRun, error) {
	cfg.Policy = f.policies[0]
	if err := cfg.Validate(); err != nil {
		return nil, usageError(err.Error())
	}
	saturation, err := sim.Saturation(cmd.Context(), cfg)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d requests; %d pods carry %.2f/s under round robin\n", name, len(cfg.Trace.Requests), cfg.Pods, saturation)
	var runs []simRun
	for _, load := range f.loads {
		for _, policy := range f.policies {
			cfg.Policy = policy
			cfg.Load(load, saturation)
			begun := time.Now()
			r, err := sim.Run(cmd.Context(), cfg)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s at %.0f %%: %s (%.1f s)\n", name, 100*load, policy, time.Since(begun).Seconds())
			runs = append(runs, simRun{name, string(cfg.Engine), string(cfg.Arrivals), load, cfg.Seed, r})
		}
	}
	return runs, nil
}

func writeRuns(out io.Writer, runs []simRun) {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.SetOutputMirror(out)
	t.AppendHeader(table.Row{"TRACE", "LOAD", "POLICY", "HIT", "TTFT MEAN", "P50", "P90", "P99", "OVER 30 S", "UNSERVED", "PREFILL GPU S"})
	var columns []table.ColumnConfig
	for n := 4; n <= 11; n++ {
		columns = append(columns, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	for i, r := range runs {
		name, load := r.Trace, fmt.Sprintf("%.0f %%", 100*r.Load)
		if i > 0 && runs[i-1].Trace == r.Trace && runs[i-1].Load == r.Load {
			name, load = "", ""
		} else if i > 0 {
			t.AppendSeparator()
		}
		s := func(v float64) string { return fmt.Sprintf("%.2f s", v) }
		t.AppendRow(table.Row{
			name, load, r.Policy, fmt.Sprintf("%.1f %%", 100*r.HitRatio), s(r.TTFT.Mean), s(r.TTFT.P50), s(r.TTFT.P90), s(r.TTFT.P99),
			r.Late, r.Unserved, fmt.Sprintf("%.0f", r.GPUSeconds),
		})
	}
	t.Render()
}
