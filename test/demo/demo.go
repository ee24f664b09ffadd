// Package demo shows the main job: the same requests go to three fleets side by side, one
// under round robin, one under least load and one under Grapevine, and a table says what became of them.
// Engines are emulated on the clock of an H200; everything between them (ZMQ, gossip, HTTP) is real.
package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/load"
	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

// Config of a demo.
type Config struct {
	Exe       string // the grapevine binary
	Version   string
	Engines   int      // per fleet
	Speedup   float64  // divides every time constant
	Workloads []string // of multi-turn, agentic, documents; empty: all
	Scale     float64  // share of the workloads' requests, (0,1]; for quick looks
	Keep      bool     // leave the fleets running until ctx ends
	JSONFile  string
	Out       io.Writer
	Terminal  bool // Out is a terminal: progress on one line
	// GatewayArgs are passed on to the gateway of the grapevine fleet.
	GatewayArgs []string
	// Fault is what goes wrong in the grapevine fleet in the middle of each workload, one of FaultNames; empty: nothing.
	Fault string
}

// streamInterval is the number of tokens per event of an answer, as vLLM's --stream-interval; the first token
// always leaves alone. Thousands of streams at ten times their speed are otherwise most of what a small machine does.
const streamInterval = 50

// sdkRetries is how often OpenAI's SDK sends a request again by default.
const sdkRetries = 2

// Fleet policies, from the plainest to ours; the second is the gateway's own name of it.
var fleetPolicies = [][2]string{{"round-robin", "round-robin"}, {"least-load", "least-load"}, {"grapevine", "prefix"}}

// WorkloadNames in the order in which they run.
func WorkloadNames() []string { return []string{"multi-turn", "agentic", "documents"} }

// Requests of a workload by name, cut down to scale.
func Requests(name string, scale float64, v load.Vocabulary) ([]load.Request, error) {
	cut := func(n int) int { return max(1, int(float64(n)*scale+0.5)) }
	switch name {
	case "multi-turn":
		w := load.DefaultMultiTurn()
		w.Sessions = cut(w.Sessions)
		return w.Requests(v), nil
	case "agentic":
		w := load.DefaultAgentic()
		w.Tasks = cut(w.Tasks)
		return w.Requests(v), nil
	case "documents":
		w := load.DefaultDocuments()
		w.Questions = cut(w.Questions)
		return w.Requests(v), nil
	}
	return nil, fmt.Errorf("workload %q: give one of %s", name, strings.Join(WorkloadNames(), ", "))
}

// Run brings the fleets up, sends the workloads, prints the table and takes the fleets down.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if len(cfg.Workloads) == 0 {
		cfg.Workloads = WorkloadNames()
	}
	dir, err := cluster.TempDir()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(cfg.Out, "Three fleets of %d emulated H200 engines, each with an agent beside every engine and one gateway, at %g times real speed.\nLogs, kept if anything fails: %s\n", cfg.Engines, cfg.Speedup, dir)
	fleets, err := up(ctx, cfg, dir)
	if err != nil {
		return nil, err
	}
	keepLogs := true // whenever there is something to find in them
	defer func() {
		for _, f := range fleets {
			f.Down()
		}
		if !keepLogs {
			os.RemoveAll(dir)
		}
	}()

	rep := &Report{Version: cfg.Version, Clock: "H200 time", Speedup: cfg.Speedup, Engines: cfg.Engines}
	var own []float64
	for _, name := range cfg.Workloads {
		reqs, err := Requests(name, cfg.Scale, load.DefaultVocabulary())
		if err != nil {
			return nil, err
		}
		rows, gatewayMS, err := runWorkload(ctx, cfg, fleets, name, reqs)
		if err != nil {
			return nil, err
		}
		rep.Workloads = append(rep.Workloads, rows...)
		own = append(own, gatewayMS...)
	}
	rep.GatewayMS = load.QuantilesOf(own)
	rep.WriteTable(cfg.Out)
	if err := writeJSON(cfg.JSONFile, rep); err != nil {
		return nil, err
	}
	if cfg.Keep {
		keep(ctx, cfg.Out, fleets)
	}
	keepLogs = slices.ContainsFunc(rep.Workloads, func(r Row) bool { return r.Errors > 0 })
	return rep, nil
}

// up starts the fleets at the same time.
func up(ctx context.Context, cfg Config, dir string) ([]*cluster.Fleet, error) {
	model := filepath.Join(dir, "tiny")
	if err := tinymodel.Extract(model); err != nil {
		return nil, err
	}
	ports := &cluster.Ports{}
	fleets := make([]*cluster.Fleet, len(fleetPolicies))
	errs := make([]error, len(fleetPolicies))
	var wg sync.WaitGroup
	for i, p := range fleetPolicies {
		wg.Go(func() {
			o := cluster.Options{Name: p[0], Exe: cfg.Exe, Dir: dir, Engines: cfg.Engines, Speedup: cfg.Speedup, Policy: p[1], Model: "tiny", Ports: ports}
			o.GatewayArgs = []string{"--model", "tiny=" + model}
			o.EngineArgs = []string{"--stream-interval", strconv.Itoa(streamInterval)}
			if p[1] == "prefix" {
				o.GatewayArgs = append(o.GatewayArgs, cfg.GatewayArgs...)
			}
			fleets[i], errs[i] = cluster.Up(ctx, o)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			for _, f := range fleets {
				if f != nil {
					f.Down()
				}
			}
			return nil, err
		}
	}
	return fleets, nil
}

// runWorkload sends the same requests to all fleets at the same time.
func runWorkload(ctx context.Context, cfg Config, fleets []*cluster.Fleet, name string, reqs []load.Request) ([]Row, []float64, error) {
	before := make([]cluster.EngineStats, len(fleets))
	for i, f := range fleets {
		var err error
		if before[i], err = f.EngineStats(); err != nil {
			return nil, nil, err
		}
	}
	span := time.Duration(float64(reqs[len(reqs)-1].At) / cfg.Speedup)
	fault := newFault(cfg.Fault, fleets[len(fleets)-1], len(reqs)/2)
	progress := newProgress(cfg, name, len(reqs)*len(fleets), span)
	results := make([][]load.Result, len(fleets))
	errs := make([]error, len(fleets))
	var wg sync.WaitGroup
	for i, f := range fleets {
		wg.Go(func() {
			results[i], errs[i] = load.Run(ctx, load.Config{
				Target: f.Gateways[0].URL, Model: "tiny", Speedup: cfg.Speedup, Retries: sdkRetries,
				OnResult: func(r load.Result) {
					progress.done(r.Err != nil)
					if fleetPolicies[i][1] == "prefix" {
						fault.answered()
					}
				},
			}, reqs)
		})
	}
	wg.Wait()
	progress.stop()
	if err := fault.wait(); err != nil {
		return nil, nil, err
	}
	rows := make([]Row, len(fleets))
	var own []float64
	for i, f := range fleets {
		if errs[i] != nil {
			return nil, nil, errs[i]
		}
		var gatewayMS []float64
		rows[i], gatewayMS = row(name, fleetPolicies[i][0], results[i], cfg.Speedup)
		after, err := f.EngineStats()
		if err != nil {
			return nil, nil, err
		}
		rows[i].GPUSeconds = after.PrefillSeconds - before[i].PrefillSeconds
		rows[i].GPUSecondsFull = after.UncachedSeconds - before[i].UncachedSeconds
		if fleetPolicies[i][1] == "prefix" {
			own = gatewayMS
		}
	}
	return rows, own, nil
}

func writeJSON(path string, rep any) error {
	if path == "" {
		return nil
	}
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// keep tells how to play with the fleets and waits for the end.
func keep(ctx context.Context, out io.Writer, fleets []*cluster.Fleet) {
	g := fleets[len(fleets)-1].Gateways[0]
	fmt.Fprintf(out, `
The fleets stay up until you press Ctrl-C. The Grapevine gateway:
  curl -s %s/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"tiny","messages":[{"role":"user","content":"Say hello"}],"max_tokens":16}'
  grapevine status  --gateway %s
  grapevine explain --gateway %s --request-id ID
  live page: %s/
`, g.URL, g.Admin, g.Admin, g.Admin)
	<-ctx.Done()
}

// progress counts finished requests and shows them as they come.
type progress struct {
	finished, failed atomic.Int64
	quit, ended      chan struct{}
}

func newProgress(cfg Config, name string, total int, span time.Duration) *progress {
	p := &progress{quit: make(chan struct{}), ended: make(chan struct{})}
	every := 10 * time.Second
	if cfg.Terminal {
		every = 200 * time.Millisecond
	}
	start := time.Now()
	go func() {
		defer close(p.ended)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		show := func(end string) {
			line := fmt.Sprintf("%-10s %5d of %d requests answered", name, p.finished.Load(), total)
			if n := p.failed.Load(); n > 0 {
				line += fmt.Sprintf(", %d failed", n)
			}
			line += fmt.Sprintf(" (%.0f of about %.0f s)", time.Since(start).Seconds(), span.Seconds())
			if cfg.Terminal {
				fmt.Fprintf(cfg.Out, "\r\x1b[K%s%s", line, end)
			} else {
				fmt.Fprintln(cfg.Out, line)
			}
		}
		for {
			select {
			case <-ticker.C:
				show("")
			case <-p.quit:
				show("\n")
				return
			}
		}
	}()
	return p
}

func (p *progress) done(failed bool) {
	p.finished.Add(1)
	if failed {
		p.failed.Add(1)
	}
}

func (p *progress) stop() {
	close(p.quit)
	<-p.ended
}
