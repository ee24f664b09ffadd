package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/test/sim"
	"github.com/grapevine-llm/grapevine/test/trace"
)

const (
	// ourPolicy is the product's own. Those whose names begin with it are the product with something made perfect: bounds, no peers.
	ourPolicy   = "grapevine"
	sharedCache = "shared-cache" // a bound too
)

func isPeer(policy string) bool {
	return policy != sharedCache && !strings.HasPrefix(policy, ourPolicy)
}

// simFlags are those that are not a sim.Config's own.
type simFlags struct {
	traces, generate           []string
	policies, engines, arrival []string
	pods                       []int
	format                     string
	loads                      []float64
	rate                       float64
	seeds                      int
	blockTokens                int
	read                       trace.Options
	load                       trace.Load
	think, slo                 time.Duration
	json, results, table       string
	parallel                   int
	quiet                      bool
}

// newSimCommand is `grapevine sim`.
func newSimCommand() *cobra.Command {
	cfg := sim.Default()
	f := simFlags{
		format: string(trace.Mooncake), loads: []float64{0.8}, blockTokens: 512, seeds: 1, parallel: runtime.GOMAXPROCS(0),
		policies: []string{"round-robin", "llmd-legacy", "llmd-default", "dynamo", "sglang", ourPolicy},
		engines:  []string{string(sim.Chunked)}, arrival: []string{string(cfg.Arrivals)}, pods: []int{cfg.Pods},
	}
	cmd := &cobra.Command{
		Use:   "sim --trace FILE | --generate NAME",
		Short: "Play a request trace against a simulated fleet under our policy and other routers'",
		Long:  simLong + loadTable() + simLongEnd,
		Example: `  grapevine sim --trace conversation_trace.jsonl.gz --pods 8 --load 0.5,0.8,0.95
  grapevine sim --trace agents=cc-traces.jsonl.zst --format cc --max-prompt 65536 --policy llmd-legacy,grapevine --seeds 5 --json -
  grapevine sim --generate agents,W3 --sessions 40
  grapevine sim --trace mine.jsonl.gz --format grapevine --slo-ttft-p99 2s --policy round-robin,llmd-default,grapevine
  grapevine sim --table sim-full.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.table != "" {
				return f.print(cmd.OutOrStdout())
			}
			if err := f.validate(cmd.Flags()); err != nil {
				return err
			}
			f.policies, f.engines, f.arrival = unique(f.policies), unique(f.engines), unique(f.arrival)
			f.pods, f.loads = unique(f.pods), unique(f.loads)
			return f.run(cmd, cfg)
		},
	}
	fs := cmd.Flags()
	f.register(fs)
	registerWorld(fs, &cfg)
	return cmd
}

const simLong = `Plays a trace in virtual time: model engines, the product's own code for block sets, digests, gossip packets, matching
and binding, and other routers' rules as published, with an exact index. Says time to first token, hits and GPU time of
each. It takes seconds a run and needs no fleet.

Loads are shares of what the fleet can carry under round robin. Engines: single (one prefill at a time) or chunked
(prefill in chunks beside decodes, as vLLM's scheduler). Arrivals: open (as the trace says) or causal (a call comes a think
time after the one before has ended).

With --seeds N each cell is played N times, with arrivals drawn anew: the median is shown, and the range of the mean. Where
sessions start is drawn within their ten seconds, so that order, bursts and think times stay; in cc-traces, which don't say
when sessions start, and in made-up loads all of it is drawn. With one seed, files are played as recorded.

With --slo-ttft-p99 2s it says how many pods each policy needs for that, at the trace's own rate or at --rate, where unserved
requests count with their whole time-out.

A trace in our own form is a JSON object a line, with a number for each block of the prompt: equal numbers mean that two prompts
are equal up to the end of that block. Times are milliseconds, lengths tokens; block_tokens is 512 if it is not given, session
and think_ms (since the end of the session's call before) may be missing:

  {"timestamp": 1200, "input_length": 1540, "output_length": 100, "hash_ids": [1, 2, 3], "block_tokens": 512, "session": "a"}

Mooncake's form is the same without the last two. If all times are equal, arrivals are a Poisson process.

Without a trace, --generate makes loads up. Sessions start at random; their prompts are their group's prefix, a context of their
own, and the turns: with a + each adds to all before, answers too, else each stands alone behind the context. The flags
--sessions, --session-rate, --groups, --prefix-tokens, --context-tokens, --turns, --turn-tokens, --output-tokens and --think change
them. W1 to W3 are those of grapevine demo.

`

const simLongEnd = `
--results FILE adds each run to a file, and skips those that are there already: what was stopped goes on. --table FILE shows such a
file, or one of --json, as the tables of docs/comparison.md.`

func (f *simFlags) register(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.traces, "trace", nil, "files with request traces, plain, gzip or zstd; NAME=FILE names one in the results")
	fs.StringVar(&f.format, "format", f.format, "their form: grapevine, mooncake, cc or azure")
	fs.StringSliceVar(&f.generate, "generate", nil, "made-up loads: "+strings.Join(trace.LoadNames(), ", "))
	fs.IntVar(&f.load.Sessions, "sessions", 0, "made-up: sessions")
	fs.Float64Var(&f.load.SessionsPerSec, "session-rate", 0, "made-up: sessions that start in a second")
	fs.IntVar(&f.load.Groups, "groups", 0, "made-up: groups of sessions with a common prefix")
	fs.IntVar(&f.load.PrefixTokens, "prefix-tokens", 0, "made-up: tokens of a group's prefix")
	fs.IntVar(&f.load.ContextTokens, "context-tokens", 0, "made-up: tokens of a session's own behind it: a document, a first message")
	fs.IntVar(&f.load.Turns, "turns", 0, "made-up: calls of a session")
	fs.IntVar(&f.load.TurnTokens, "turn-tokens", 0, "made-up: tokens that a call adds")
	fs.IntVar(&f.load.OutputTokens, "output-tokens", 0, "made-up: tokens of an answer")
	fs.DurationVar(&f.think, "think", 0, "made-up: mean pause before a session's next call, drawn from half to one and a half")
	fs.StringSliceVar(&f.policies, "policy", f.policies, "of "+strings.Join(sim.Policies(), ", "))
	fs.Float64SliceVar(&f.loads, "load", f.loads, "shares of what round robin can carry")
	fs.Float64Var(&f.rate, "rate", 0, "requests a second instead of a load; with --slo-ttft-p99, 0: the trace's own")
	fs.IntSliceVar(&f.pods, "pods", f.pods, fmt.Sprintf("model pods, at most %d; several numbers: each", simMostPods))
	fs.StringSliceVar(&f.engines, "engine", f.engines, "single, chunked or both")
	fs.StringSliceVar(&f.arrival, "arrivals", f.arrival, "open, causal or both")
	fs.IntVar(&f.seeds, "seeds", f.seeds, "runs of each cell, with arrivals drawn by --seed and those after it")
	fs.IntVar(&f.read.Limit, "requests", 0, "the first so many requests; 0: all")
	fs.IntVar(&f.read.MaxPrompt, "max-prompt", 0, "leave out longer prompts, and what follows in their sessions; in tokens, 0: none")
	fs.IntVar(&f.blockTokens, "block-tokens", f.blockTokens, "tokens of a block at least; smaller ones of the trace are put together")
	fs.DurationVar(&f.slo, "slo-ttft-p99", 0, "find how many pods each policy needs for this 99th percentile of time to first token")
	fs.StringVar(&f.json, "json", "", "write the runs as JSON to this file, - for standard output")
	fs.StringVar(&f.results, "results", "", "add a line a run to this file, and skip the runs that it has")
	fs.StringVar(&f.table, "table", "", "show the runs of a file of --json or --results, and play nothing")
	fs.IntVar(&f.parallel, "parallel", f.parallel, "runs at a time")
	fs.BoolVar(&f.quiet, "quiet", false, "say nothing of the progress")
}

// registerWorld adds the flags of a sim.Config.
func registerWorld(fs *pflag.FlagSet, cfg *sim.Config) {
	fs.IntVar(&cfg.Gateways, "gateways", cfg.Gateways, "gateways; those of other routers know of each other's requests at once, ours do not")
	fs.DurationVar(&cfg.StateDelay, "state-delay", cfg.StateDelay, "age of what gateways hear of engines")
	fs.DurationVar(&cfg.Timeout, "timeout", cfg.Timeout, "how long a client waits for its first token")
	fs.IntVar(&cfg.PodTokens, "pod-tokens", cfg.PodTokens, "KV cache of a pod")
	fs.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "of what the trace does not say")
	fs.Float64Var(&cfg.Loss, "loss", 0, "share of gossip packets that never come, 0 to 0.9")
	fs.Float64Var(&cfg.NonStreamed, "non-streamed", 0, "share of requests that are answered in one piece, so that gateways see no first token")
	fs.IntVar(&cfg.Retries, "retries", 0, "how often clients try again that were refused or have waited in vain; OpenAI's SDKs do twice")
	fs.Float64SliceVar(&cfg.Speeds, "speeds", nil, "of pods' prefill and decode, times the model's; gone through again and again")
	fs.Float64Var(&cfg.WrongEstimates, "wrong-estimates", 0, "x: what is believed of a pod's prefill time is wrong by a factor of up to 1+x, either way")
	fs.StringSliceVar(&cfg.Faults, "fault", nil, "what befalls a third of the pods: digest-missing, digest-stale, digest-lying or pod-failure, each[@time[+duration]]")
	fs.IntVar(&cfg.HostTokens, "host-tokens", 0, "second cache of each pod in host memory")
	fs.Float64Var(&cfg.HostRate, "host-rate", cfg.HostRate, "tokens a second that a pod loads from it")
	fs.BoolVar(&cfg.NoisyFlow, "noisy-flow", false, "a second sender with ten times as many short prompts; results are of the trace's own requests")
}

// worldFlags are those of registerWorld that tell two runs apart in their results; gateways and seed have fields of their own.
var worldFlags = []string{
	"fault", "host-rate", "host-tokens", "loss", "noisy-flow", "non-streamed", "pod-tokens", "retries", "speeds", "state-delay", "timeout", "wrong-estimates",
}

func (f *simFlags) validate(fs *pflag.FlagSet) error {
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
	switch {
	case len(f.traces)+len(f.generate) == 0:
		return usageError("--trace or --generate is needed: files, or made-up loads, comma-separated")
	case f.blockTokens < 1 || f.blockTokens > trace.MaxBlockTokens:
		return usageError(fmt.Sprintf("--block-tokens %d: give 1 to %d", f.blockTokens, trace.MaxBlockTokens))
	case !slices.Contains(trace.Formats(), trace.Format(f.format)):
		return usageError(fmt.Sprintf("--format %s: give grapevine, mooncake, cc or azure", f.format))
	case f.seeds < 1 || f.seeds > 1000:
		return usageError(fmt.Sprintf("--seeds %d: give 1 to 1000", f.seeds))
	case f.parallel < 1:
		return usageError(fmt.Sprintf("--parallel %d: give 1 or more", f.parallel))
	case !(f.rate >= 0 && f.rate <= 1e6):
		return usageError(fmt.Sprintf("--rate %g: give requests a second, 0 to 1e6", f.rate))
	case f.slo < 0:
		return usageError(fmt.Sprintf("--slo-ttft-p99 %v: give more than 0", f.slo))
	case fs.Changed("load") && (f.rate > 0 || f.slo > 0):
		return usageError("--load is a share of what a fleet carries: leave it out with --rate and --slo-ttft-p99")
	case fs.Changed("pods") && f.slo > 0:
		return usageError("--pods: leave it out with --slo-ttft-p99, which finds it")
	case len(f.policies)*len(f.pods)*len(f.engines)*len(f.arrival) == 0 || len(f.loads) == 0:
		return usageError("--policy, --pods, --engine, --arrivals and --load: give at least one of each")
	case f.read.Limit < 0 || f.read.MaxPrompt < 0:
		return usageError(fmt.Sprintf("--requests %d, --max-prompt %d: give 0 or more", f.read.Limit, f.read.MaxPrompt))
	}
	return nil
}

// unique drops what was said before: a cell that is played twice would count as two draws.
func unique[T comparable](list []T) []T {
	var out []T
	for _, v := range list {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// fleets lists the configurations to play but for policy, trace and load.
func (f *simFlags) fleets(cfg sim.Config) []sim.Config {
	pods := f.pods
	if f.slo > 0 {
		pods = []int{simMostPods} // need tries others
	}
	var out []sim.Config
	for _, engine := range f.engines {
		for _, arrivals := range f.arrival {
			for _, n := range pods {
				cfg.Engine, cfg.Arrivals, cfg.Pods = sim.Engine(engine), sim.Arrivals(arrivals), n
				out = append(out, cfg)
			}
		}
	}
	return out
}

// cells lists the runs to make, the seeds of one cell beside each other. note hears of what has no meaning and is left out.
func (f *simFlags) cells(cfg sim.Config, inputs []*simInput, note func(string, ...any)) ([]simCell, error) {
	loads, seeds := f.loads, f.seeds
	if f.rate > 0 || f.slo > 0 {
		loads = []float64{0}
	}
	if f.slo > 0 {
		seeds = 1 // need goes through them itself
	}
	var cells []simCell
	for _, input := range inputs {
		t, err := input.trace(cfg.Seed)
		if err != nil {
			return nil, err
		}
		chained := slices.ContainsFunc(t.Requests, func(r trace.Request) bool { return r.Previous >= 0 })
		for _, fleet := range f.fleets(cfg) {
			if fleet.Arrivals == sim.Causal && !chained && len(f.arrival) > 1 {
				note("%s: no call follows another, so causal arrivals would be open ones: left out", input.name)
				continue
			}
			for _, load := range loads {
				for _, policy := range f.policies {
					if policy == sharedCache && fleet.Engine == sim.Chunked && len(f.engines) > 1 {
						note("%s is a bound for the single engine only: left out with the other", policy)
						continue
					}
					c := simCell{input: input, cfg: fleet, load: load, rate: f.rate}
					c.cfg.Policy, c.cfg.Trace = policy, t
					if err := c.cfg.Validate(); err != nil {
						return nil, usageError(err.Error())
					}
					c.cfg.Trace = nil
					for i := range seeds {
						c.cfg.Seed = cfg.Seed + uint64(i)
						cells = append(cells, c)
					}
				}
			}
		}
	}
	return cells, nil
}

func (f *simFlags) run(cmd *cobra.Command, cfg sim.Config) error {
	said := newProgress(cmd.ErrOrStderr(), f.quiet)
	inputs, err := f.inputs(cmd.Flags(), said.note)
	if err != nil {
		return err
	}
	cells, err := f.cells(cfg, inputs, said.note)
	if err != nil {
		return err
	}
	r := &simRunner{
		options: changed(cmd.Flags(), worldFlags), seed: cfg.Seed, progress: said,
		known: map[string]simRun{}, saturation: map[string]func() (float64, error){},
	}
	if f.results != "" {
		file, known, err := openResults(f.results)
		if err != nil {
			return err
		}
		defer file.Close()
		r.results, r.known = file, known
		for _, run := range known {
			if run.Version != version {
				said.note("%s has runs of version %s, this is %s: take another file if what they say may have changed", f.results, run.Version, version)
			}
		}
	}
	out := cmd.OutOrStdout()
	if f.slo > 0 {
		needs, err := r.needs(cmd.Context(), cells, f.seeds, f.slo.Seconds(), f.parallel)
		said.end()
		return f.write(out, needs, err, func() { writeNeeds(out, needs) })
	}
	said.total = len(cells)
	runs, err := r.all(cmd.Context(), cells, f.parallel)
	said.end()
	if errors.Is(err, context.Canceled) {
		said.note("stopped: %d of %d runs are made", len(runs), len(cells))
	}
	return f.write(out, runs, err, func() { writeRuns(out, runs, false) })
}

// write gives out what was found, though it may not be all because of err, which it returns.
func (f *simFlags) write(out io.Writer, found any, err error, table func()) error {
	if f.json == "" {
		table()
		return err
	}
	b, wrong := json.MarshalIndent(found, "", "  ")
	if wrong != nil {
		return errors.Join(err, fmt.Errorf("write runs: %w", wrong))
	}
	if f.json == "-" {
		_, wrong = fmt.Fprintf(out, "%s\n", b)
	} else {
		wrong = os.WriteFile(f.json, append(b, '\n'), 0o644)
	}
	return errors.Join(err, wrong)
}

// print shows the tables of a file.
func (f *simFlags) print(out io.Writer) error {
	b, err := os.ReadFile(f.table)
	if err != nil {
		return fmt.Errorf("open results: %w", err)
	}
	runs, err := readRuns(b)
	if err != nil {
		return fmt.Errorf("read results %s: %w", f.table, err)
	}
	writeRuns(out, runs, true)
	return nil
}
