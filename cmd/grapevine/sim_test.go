package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/load"
	"github.com/grapevine-llm/grapevine/test/sim"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// simulate runs `grapevine sim` and returns what it wrote.
func simulate(t *testing.T, args string) (stdout, stderr string, err error) {
	t.Helper()
	var out, said bytes.Buffer
	root := newRoot()
	root.SetArgs(append([]string{"sim"}, strings.Fields(args)...))
	root.SetOut(&out)
	root.SetErr(&said)
	err = root.ExecuteContext(t.Context())
	return out.String(), said.String(), err
}

// small is a load that takes milliseconds.
const small = "--generate multi-turn --sessions 6 --turns 3 --pods 2 --policy round-robin,llmd-legacy,grapevine "

func TestSimGivesAnObjectARun(t *testing.T) {
	out, said, err := simulate(t, small+"--seeds 3 --json -")
	if err != nil {
		t.Fatal(err)
	}
	runs, err := readRuns([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 9 {
		t.Fatalf("%d runs, want three policies with three seeds", len(runs))
	}
	means := map[float64]bool{}
	for i, r := range runs {
		if r.Trace != "multi-turn" || r.Seed != uint64(i%3) || !r.Drawn || r.Requests != 18 || r.Unserved != 0 || r.Load != 0.8 || r.Pods != 2 || r.Rate <= 0 ||
			r.Input != "--sessions 6 --turns 3" || r.Options != "" || r.P99ByPrompt[3] <= 0 {
			t.Errorf("run %d: %+v %+v", i, r, r.Result)
		}
		means[r.TTFT.Mean] = true
	}
	if len(means) < 7 {
		t.Errorf("%d different means: do seeds change the arrivals?", len(means))
	}
	var fields []map[string]any
	if err := json.Unmarshal([]byte(out), &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"trace", "policy", "pods", "gateways", "load", "requests", "unserved", "hit_ratio", "ttft_s", "goodput", "gpu_seconds", "work_max_mean", "requests_max_mean",
		"virtual_seconds", "engine", "arrivals", "seed", "late", "late_over_30s", "p99_by_prompt_quartile", "preemptions", "rejected",
	} {
		if _, ok := fields[0][name]; !ok {
			t.Errorf("no field %s", name)
		}
	}
	if !strings.Contains(said, "multi-turn: 18 requests; round robin carries ") || strings.Count(said, "\n") != 10 || !strings.Contains(said, "9/9: ") {
		t.Errorf("said:\n%s", said)
	}
}

func TestSimQuiet(t *testing.T) {
	if _, said, err := simulate(t, small+"--quiet"); err != nil || said != "" {
		t.Errorf("error %v, said %q", err, said)
	}
}

func TestSimMatrix(t *testing.T) {
	out, said, err := simulate(t, "--generate shared-prefix --sessions 12 --pods 1,2 --engine single,chunked --arrivals open,causal --load 0.5,0.9 --policy shared-cache,grapevine --json -")
	if err != nil {
		t.Fatal(err)
	}
	runs, err := readRuns([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string]bool{}
	for _, r := range runs {
		cells[r.key()] = true
		if r.Arrivals != "open" || r.Policy == "shared-cache" && r.Engine == "chunked" {
			t.Errorf("run %s", r.key())
		}
	}
	if len(cells) != 12 { // two fleets at two loads: ours on both engines, the shared cache on one
		t.Errorf("%d cells, want 12", len(cells))
	}
	for _, want := range []string{"no call follows another", "shared-cache is a bound"} {
		if !strings.Contains(said, want) {
			t.Errorf("does not say %q:\n%s", want, said)
		}
	}
}

// What was stopped goes on where it was, though its last line was cut off.
func TestSimGoesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "runs.jsonl")
	args := small + "--policy grapevine-exact --gateways 2 --quiet --parallel 1 --results " + file
	first, _, err := simulate(t, args)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(whole, []byte("\n")); n != 4 {
		t.Fatalf("%d lines, want four", n)
	}
	if err := os.WriteFile(file, whole[:len(whole)-40], 0o600); err != nil {
		t.Fatal(err)
	}
	again, _, err := simulate(t, args)
	if err != nil || again != first {
		t.Errorf("error %v; want the same table again, got\n%s", err, again)
	}
	if got, _ := os.ReadFile(file); !bytes.Equal(got, whole) {
		t.Errorf("want the same lines again, got\n%s", got)
	}
	// Another load is other runs.
	if _, said, err := simulate(t, small+"--load 0.3 --results "+file); err != nil || strings.Count(said, "\n") != 4 {
		t.Errorf("error %v, said:\n%s", err, said)
	}
	if got, _ := os.ReadFile(file); bytes.Count(got, []byte("\n")) != 7 {
		t.Errorf("want three lines more, got\n%s", got)
	}
	table, _, err := simulate(t, "--table "+file)
	if err != nil || !strings.Contains(table, "| multi-turn (--sessions 6 --turns 3) | 80 % | round robin |") || !strings.Contains(table, "30 %") {
		t.Errorf("error %v, table:\n%s", err, table)
	}
}

func TestSimPlaysFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, tick int) string {
		var b strings.Builder
		for i := range 12 {
			fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": 5, "hash_ids": [%d, %d]}`+"\n", i*tick, 1100, i%3, 100+i)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	play := func(args string) (means []float64, said string) {
		t.Helper()
		out, said, err := simulate(t, args+" --pods 2 --policy grapevine --json -")
		if err != nil {
			t.Fatal(err)
		}
		runs, err := readRuns([]byte(out))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			means = append(means, r.TTFT.Mean)
		}
		return means, said
	}
	timed, at := write("timed", 900), write("at=once", 0)
	recorded, _ := play("--trace " + timed)
	other, _ := play("--trace a=" + timed + " --seed 8")
	if !slices.Equal(recorded, other) {
		t.Errorf("means %v and %v: a file's arrivals are as recorded with one seed", recorded, other)
	}
	if drawn, _ := play("--trace " + timed + " --seeds 2"); drawn[0] == recorded[0] || drawn[0] == drawn[1] {
		t.Errorf("means %v, recorded %v: want arrivals drawn anew", drawn, recorded)
	}
	means, said := play("--trace " + at + " --load 0.2,0.9 --seeds 2")
	if !strings.Contains(said, "at=once: all requests have one time") || means[0] >= means[2] {
		t.Errorf("means %v; said:\n%s\nwant arrivals that a load applies to", means, said)
	}
	if _, said := play("--requests 1 --trace " + at); !strings.Contains(said, "one request alone") {
		t.Errorf("said:\n%s", said)
	}
	one, _ := play("--rate 0.1 --trace " + timed)
	if many, _ := play("--rate 100 --trace " + timed); many[0] <= one[0] {
		t.Errorf("mean TTFT %.3f s at 0.1/s, %.3f s at 100/s", one[0], many[0])
	}
}

// The flags of the fleet and its clients reach it, and are told in the results.
func TestSimWorld(t *testing.T) {
	const ours = "--generate agents --sessions 16 --session-rate 1 --turns 6 --pods 3 --gateways 2 --load 3 --json - --policy grapevine,grapevine"
	base, _, err := simulate(t, ours)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := readRuns([]byte(base))
	if err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{
		"--fault pod-failure@1s+1m", "--loss 0.5", "--noisy-flow true", "--non-streamed 1", "--retries 2 --timeout 50ms", "--speeds 1,0.25", "--wrong-estimates 9",
		"--host-rate 1000 --host-tokens 100000 --pod-tokens 32768", "--state-delay 5s",
	} {
		out, _, err := simulate(t, ours+" "+strings.ReplaceAll(flags, " true", ""))
		if err != nil {
			t.Errorf("%s: %v", flags, err)
			continue
		}
		runs, err := readRuns([]byte(out))
		if err != nil || len(runs) != 1 || runs[0].Options != flags || runs[0].key() == plain[0].key() {
			t.Errorf("%s: error %v, %+v", flags, err, runs)
			continue
		}
		if runs[0].TTFT == plain[0].TTFT && runs[0].Seconds == plain[0].Seconds {
			t.Errorf("%s: changes nothing", flags)
		}
	}
}

// The made-up workloads have the shapes of `grapevine demo`'s.
func TestWorkloadsAreTheDemos(t *testing.T) {
	v := load.DefaultVocabulary()
	for name, reqs := range map[string][]load.Request{
		"W1": load.DefaultMultiTurn().Requests(v), "W2": load.DefaultAgentic().Requests(v), "W3": load.DefaultDocuments().Requests(v),
	} {
		l, _ := trace.LoadOf(name)
		made, err := trace.Generate(l, 512)
		if err != nil {
			t.Fatal(err)
		}
		type shape struct{ prompt, output int }
		var got, want []shape
		starts := map[string]time.Duration{}
		for _, r := range made.Requests {
			got = append(got, shape{r.Prompt, r.Output})
			starts[r.Session] = max(starts[r.Session], r.At)
		}
		sessions := map[string]bool{}
		for _, r := range reqs {
			want = append(want, shape{r.PromptTokens(), r.MaxTokens})
			sessions[r.Session] = true
		}
		order := func(a, b shape) int { return a.prompt - b.prompt }
		slices.SortFunc(got, order)
		slices.SortFunc(want, order)
		if !slices.Equal(got, want) || len(starts) != len(sessions) {
			t.Errorf("%s: %d requests of %d sessions, want %d of %d with equal lengths", name, len(got), len(starts), len(want), len(sessions))
		}
		if span, recorded := made.Span().Seconds(), reqs[len(reqs)-1].At.Seconds(); span < 0.7*recorded || span > 1.4*recorded {
			t.Errorf("%s: takes %.0f s, want about %.0f", name, span, recorded)
		}
	}
}

func TestLeast(t *testing.T) {
	for want := range 65 {
		tries := 0
		got, err := least(64, func(pods int) (bool, error) { tries++; return want > 0 && pods >= want, nil })
		if got != want || err != nil || tries > 13 {
			t.Errorf("%d after %d tries, error %v; want %d", got, tries, err, want)
		}
	}
	if _, err := least(64, func(pods int) (bool, error) { return false, errors.New("no") }); err == nil {
		t.Error("the error is lost")
	}
}

func TestSimFindsPods(t *testing.T) {
	args := "--generate multi-turn --sessions 12 --turns 2 --session-rate 5 --slo-ttft-p99 "
	out, _, err := simulate(t, args+"600ms --policy round-robin,grapevine --json -")
	if err != nil {
		t.Fatal(err)
	}
	var needs []simNeed
	if err := json.Unmarshal([]byte(out), &needs); err != nil {
		t.Fatal(err)
	}
	if len(needs) != 2 || needs[0].Pods < 2 || needs[1].Pods < 1 || needs[1].TTFT.P99 > 0.6 || needs[1].Rate <= 0 || needs[1].Policy != "grapevine" {
		t.Errorf("%+v", needs)
	}
	out, _, err = simulate(t, args+"1ms --policy round-robin")
	if err != nil || !strings.Contains(out, "over 64") {
		t.Errorf("error %v; nothing takes a millisecond:\n%s", err, out)
	}
}

// stopper ends a simulation when the first run is written.
type stopper struct{ stop context.CancelFunc }

func (s stopper) Write(b []byte) (int, error) { s.stop(); return len(b), nil }

func TestSimStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	l, _ := trace.LoadOf("W3")
	in := &simInput{name: "x", draws: map[uint64]*trace.Trace{}, read: func(uint64) (*trace.Trace, error) { return trace.Generate(l, 512) }}
	cfg := sim.Default()
	cfg.Policy = "round-robin"
	r := &simRunner{progress: newProgress(&bytes.Buffer{}, true), results: stopper{stop}, known: map[string]simRun{}, saturation: map[string]func() (float64, error){}}
	runs, err := r.all(ctx, []simCell{{input: in, cfg: cfg}, {input: in, cfg: cfg, rate: 1}, {input: in, cfg: cfg, rate: 2}}, 1)
	if !errors.Is(err, context.Canceled) || len(runs) != 1 || runs[0].Requests != 200 {
		t.Errorf("%d runs, error %v; want the first one", len(runs), err)
	}
}

func TestSimTables(t *testing.T) {
	var runs []simRun
	add := func(trace, policy string, seed uint64, mean float64) {
		runs = append(runs, simRun{
			Trace: trace, Engine: "chunked", Arrivals: "open", Load: 0.8, Seed: seed, Drawn: true,
			Result: &sim.Result{
				Policy: policy, Pods: 8, Gateways: 3, Requests: 100, HitRatio: 0.5, Late: int(mean), TTFT: sim.Quantiles{Mean: mean, P50: mean / 2, P90: 2 * mean, P99: 4 * mean},
				P99ByPrompt: [4]float64{mean, mean, mean, 4 * mean}, GPUSeconds: 100,
			},
		})
	}
	for seed, by := range []float64{1, 3, 2} {
		add("a", "dynamo", uint64(seed), 10*by)
		add("a", "shared-cache", uint64(seed), by/10)
		add("a", "grapevine", uint64(seed), by)
		add("b", "grapevine", uint64(seed), by)
	}
	var b bytes.Buffer
	writeRuns(&b, runs, true)
	want := `**8 pods, 3 gateways, chunked engine, open arrivals**

| Trace | Load | Policy | Hit | TTFT mean | p50 | p90 | p99 | over 30 s | unserved | prefill GPU s |
| --- | --- | --- | ---:| ---:| ---:| ---:| ---:| ---:| ---:| ---:|
| a | 80 % | Dynamo | 50.0 % | 20.00 s (10.00–30.00) | 10.00 s | 40.00 s | 80.00 s | 20 | 0 | 100 |
|  |  | one shared cache (bound) | 50.0 % | 0.20 s (0.10–0.30) | 0.10 s | 0.40 s | 0.80 s | 0 | 0 | 100 |
|  |  | Grapevine | 50.0 % | 2.00 s (1.00–3.00) | 1.00 s | 4.00 s | 8.00 s | 2 | 0 | 100 |
| b | 80 % | Grapevine | 50.0 % | 2.00 s (1.00–3.00) | 1.00 s | 4.00 s | 8.00 s | 2 | 0 | 100 |

Grapevine ` + comparison + `:

| Trace | Load | best other | its mean | mean | p50 | p99 | p99, worst quarter of prompts | hit | over 30 s |
| --- | --- | --- | ---:| ---:| ---:| ---:| ---:| ---:| ---:|
| a | 80 % | Dynamo | 20.00 s | 0.10 | 0.10 | 0.10 | 0.10 | +0.0 | 2, 20 |
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestSimFaults(t *testing.T) {
	dir := t.TempDir()
	array := filepath.Join(dir, "array.json")
	if err := os.WriteFile(array, []byte("[]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"", 2, "--trace or --generate is needed"},
		{"--generate nope", 2, "W1"},
		{"--generate W1 --turns 0", 2, "turns 0"},
		{"--generate W1 --policy nope", 2, "round-robin"},
		{"--generate W1 --load 0", 2, "--load 0"},
		{"--generate W1 --load 0.5 --rate 1", 2, "leave it out"},
		{"--generate W1 --pods 8 --slo-ttft-p99 2s", 2, "leave it out"},
		{"--generate W1 --seeds 0", 2, "--seeds 0"},
		{"--generate W1 --parallel 0", 2, "--parallel 0"},
		{"--generate W1 --pods 65", 2, "pods 65"},
		{"--generate W1 --loss 2", 2, "loss 2"},
		{"--generate W1 --fault nope", 2, "digest-stale"},
		{"--generate W1 --engine nope", 2, "nope"},
		{"--generate W1 --arrivals nope", 2, "nope"},
		{"--generate W1,W1", 2, "NAME=FILE"},
		{"--generate W1 --policy shared-cache", 2, "single"},
		{"--generate W3 --pod-tokens 2048", 1, "--pod-tokens"},
		{"--trace nowhere", 1, "nowhere"},
		{"--trace sim_test.go", 1, "line 1"},
		{"--trace x --format nope", 2, "azure"},
		{"--generate W1 --results " + array, 1, "array"},
		{"--table nowhere", 1, "nowhere"},
		{"--table sim_test.go", 1, "line 1"},
	} {
		_, _, err := simulate(t, tt.args)
		if err == nil || exitCode(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want exit code %d and %q", tt.args, err, tt.code, tt.want)
		}
	}
}
