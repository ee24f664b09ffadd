package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/test/sim"
)

// simRun is one run as `grapevine sim --json` writes it.
type simRun struct {
	Trace    string  `json:"trace"`
	Engine   string  `json:"engine"`
	Arrivals string  `json:"arrivals"`
	Load     float64 `json:"load"` // share of what round robin can carry; 0 where a rate was played
	Seed     uint64  `json:"seed"`
	*sim.Result
	Rate    float64 `json:"rate_per_s"`                 // requests a second on the mean
	Asked   float64 `json:"asked_rate_per_s,omitempty"` // by --rate
	Drawn   bool    `json:"drawn_arrivals"`             // by the seed; else as recorded
	Input   string  `json:"input,omitempty"`            // flags that say what of the trace was played
	Options string  `json:"options,omitempty"`          // flags that change the fleet or its clients
	Version string  `json:"version"`                    // of the program
}

// key tells a run from all others.
func (r *simRun) key() string {
	return fmt.Sprintf("%q %q %q %s %d %d %s %s %g %g %d %t", r.Trace, r.Input, r.Options, r.Policy, r.Pods, r.Gateways, r.Engine, r.Arrivals, r.Load, r.Asked, r.Seed, r.Drawn)
}

// simCell is a run to be made.
type simCell struct {
	input *simInput
	cfg   sim.Config // without the trace
	load  float64
	rate  float64 // requests a second where load is 0; 0: as the trace has them
}

// simRunner makes runs. Its methods may be called by several goroutines.
type simRunner struct {
	options  string
	seed     uint64 // of the trace by which loads are measured
	progress *progress
	results  io.Writer // gets a line a run; nil: none

	mu         sync.Mutex        // guards all below
	known      map[string]simRun // runs made before
	saturation map[string]func() (float64, error)
}

// begin is the run of a cell as far as it is known beforehand.
func (r *simRunner) begin(c *simCell) simRun {
	run := simRun{
		Trace: c.input.name, Engine: string(c.cfg.Engine), Arrivals: string(c.cfg.Arrivals), Load: c.load, Seed: c.cfg.Seed, Drawn: c.input.drawn,
		Input: c.input.flags, Options: r.options, Version: version, Result: &sim.Result{Policy: c.cfg.Policy, Pods: c.cfg.Pods, Gateways: c.cfg.Gateways},
	}
	if c.load == 0 {
		run.Asked = c.rate
	}
	return run
}

// run makes the run of a cell, or finds it among those made before.
func (r *simRunner) run(ctx context.Context, c simCell) (simRun, error) {
	run := r.begin(&c)
	r.mu.Lock()
	before, ok := r.known[run.key()]
	r.mu.Unlock()
	if ok {
		r.progress.skip()
		return before, nil
	}
	t, err := c.input.trace(c.cfg.Seed)
	if err != nil {
		return simRun{}, err
	}
	c.cfg.Trace = t
	switch {
	case c.load > 0:
		saturation, err := r.saturationOf(ctx, &c)
		if err != nil {
			return simRun{}, err
		}
		c.cfg.Load(c.load, saturation)
	case c.rate > 0 && ownRate(t) > 0:
		c.cfg.Rate = c.rate / ownRate(t)
	}
	begun := time.Now()
	if run.Result, err = sim.Run(ctx, c.cfg); err != nil {
		return simRun{}, err
	}
	run.Gateways = c.cfg.Gateways // a bound may have played fewer, and is looked at beside those that have them
	run.Rate = ownRate(t) * c.cfg.Rate
	r.progress.ran(&run, time.Since(begun))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[run.key()] = run
	if r.results == nil {
		return run, nil
	}
	b, err := json.Marshal(run)
	if err != nil {
		return simRun{}, err
	}
	if _, err := r.results.Write(append(b, '\n')); err != nil {
		return simRun{}, fmt.Errorf("write results: %w", err)
	}
	return run, nil
}

// saturationOf is what the cell's fleet carries of its trace under round robin. It is measured once.
func (r *simRunner) saturationOf(ctx context.Context, c *simCell) (float64, error) {
	key := fmt.Sprintf("%q %q %d %s", c.input.name, c.input.flags, c.cfg.Pods, c.cfg.Engine)
	r.mu.Lock()
	measure, ok := r.saturation[key]
	if !ok {
		input, cfg := c.input, c.cfg
		measure = sync.OnceValues(func() (float64, error) {
			t, err := input.trace(r.seed)
			if err != nil {
				return 0, err
			}
			cfg.Trace, cfg.Seed = t, r.seed
			carried, err := sim.Saturation(ctx, cfg)
			if err != nil {
				return 0, err
			}
			if !(carried > 0) || math.IsInf(carried, 1) {
				return 0, fmt.Errorf("%s: none of its requests fits a pod: give more --pod-tokens than %d, or --max-prompt", input.name, cfg.PodTokens)
			}
			r.progress.note("%s: %d requests; round robin carries %.2f/s on %s (%s)", input.name, len(t.Requests), carried, count(cfg.Pods, "pod"), cfg.Engine)
			return carried, nil
		})
		r.saturation[key] = measure
	}
	r.mu.Unlock()
	return measure()
}

// all makes the runs of all cells, some at a time, and returns those that were made in the order of the cells: fewer, with an
// error, if it was stopped.
func (r *simRunner) all(ctx context.Context, cells []simCell, parallel int) ([]simRun, error) {
	made := make([]*simRun, len(cells))
	var g *errgroup.Group
	g, ctx = errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i := range cells {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			run, err := r.run(ctx, cells[i])
			if err == nil {
				made[i] = &run
			}
			return err
		})
	}
	err := g.Wait()
	runs := []simRun{}
	for _, run := range made {
		if run != nil {
			runs = append(runs, *run)
		}
	}
	return runs, err
}

// readRuns reads runs as --json or --results wrote them: an array or a line each. A last line that was cut off is left out.
func readRuns(b []byte) ([]simRun, error) {
	b = bytes.TrimSpace(b)
	var runs []simRun
	if len(b) > 0 && b[0] == '[' {
		if err := json.Unmarshal(b, &runs); err != nil {
			return nil, err
		}
	} else {
		lines := bytes.Split(b, []byte("\n"))
		for i, line := range lines {
			var run simRun
			if err := json.Unmarshal(line, &run); err != nil {
				if i == len(lines)-1 {
					break
				}
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			runs = append(runs, run)
		}
	}
	for i := range runs {
		if runs[i].Result == nil || runs[i].Policy == "" {
			return nil, fmt.Errorf("run %d has no policy: is it of grapevine sim", i+1)
		}
	}
	return runs, nil
}

// openResults opens a file of results to go on with.
func openResults(path string) (*os.File, map[string]simRun, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, nil, fmt.Errorf("open results: %w", err)
	}
	known := map[string]simRun{}
	b, err := io.ReadAll(f)
	whole := bytes.LastIndexByte(b, '\n') + 1 // what was cut off is written over
	var runs []simRun
	if bytes.HasPrefix(b, []byte("[")) {
		err = errors.New("it is an array: give a file of its own, which gets a line a run")
	}
	if err == nil {
		runs, err = readRuns(b[:whole])
	}
	if err == nil {
		err = f.Truncate(int64(whole))
	}
	if err == nil {
		_, err = f.Seek(int64(whole), io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("read results %s: %w", path, err)
	}
	for _, run := range runs {
		known[run.key()] = run
	}
	return f, known, nil
}
