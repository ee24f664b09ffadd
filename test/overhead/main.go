// Command overhead measures what the gateway adds to a request: time to first byte and CPU time,
// for bodies of several sizes, cold (each a new conversation) and warm (the next turn of a
// known one).
//
// The same requests go, in one run and in turn, to an engine itself, nginx as a bare proxy, and
// gateways: one with the policy round-robin and no model's files, which only forwards, one with
// round-robin and files, one with the policy prefix. The load is an open loop: each request is
// sent at its time, whatever became of those before. By default the engines are stubs that
// answer at once, so that only the proxy's part shows; -engines emulated starts emulated vLLMs
// with agents instead, and their work shows too.
//
// scripts/overhead.sh builds and runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

// config of a run.
type config struct {
	exe      string // the grapevine binary
	model    string // folder; empty: the tiny model
	engines  int
	emulated bool
	sizes    []int // of bodies, bytes
	requests int   // measured in each cell, to each target
	load     float64
	dir      string // logs
	seed     uint64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "overhead:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	cfg, asJSON, err := parse(args)
	if err != nil {
		return err
	}
	if cfg.dir, err = cluster.TempDir(); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(cfg.dir)
		} else {
			err = fmt.Errorf("%w (logs in %s)", err, cfg.dir)
		}
	}()
	if cfg.model == "" {
		cfg.model = cfg.dir + "/tiny"
		if err := tinymodel.Extract(cfg.model); err != nil {
			return err
		}
	}
	rep, err := measure(ctx, cfg)
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(rep)
	}
	return rep.write(os.Stdout)
}

func parse(args []string) (cfg config, asJSON bool, err error) {
	f := flag.NewFlagSet("overhead", flag.ContinueOnError)
	var sizes, engines string
	f.StringVar(&cfg.exe, "exe", "bin/grapevine", "the grapevine binary")
	f.StringVar(&cfg.model, "model", "", "folder with another model's tokenizer.json and chat template; empty: the tiny model's")
	f.StringVar(&engines, "engines", "stub", "stub (answers at once) or emulated (with agents; only for the tiny model)")
	f.IntVar(&cfg.engines, "count", 4, "number of engines")
	f.StringVar(&sizes, "sizes", "2,32,128,512", "sizes of bodies in KiB")
	f.IntVar(&cfg.requests, "requests", 100, "requests of each size, cold and warm, to each target")
	f.Float64Var(&cfg.load, "load", 1, "multiplies the rates: 100 requests a second to all targets together, 40 above 32 KiB, 10 above 128 KiB")
	f.Uint64Var(&cfg.seed, "seed", 1, "seed of the texts")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return cfg, false, err
	}
	for _, s := range strings.Split(sizes, ",") {
		kib, err := strconv.Atoi(s)
		if err != nil || kib < 1 || kib > 8<<10 {
			return cfg, false, fmt.Errorf("-sizes %q: give sizes from 1 to 8192 KiB, such as 2,32", sizes)
		}
		cfg.sizes = append(cfg.sizes, kib<<10)
	}
	cfg.emulated = engines == "emulated"
	switch {
	case engines != "stub" && engines != "emulated":
		err = fmt.Errorf("-engines %q: give stub or emulated", engines)
	case cfg.emulated && cfg.model != "":
		err = errors.New("-engines emulated knows the tiny model's tokens only: leave out -model")
	case cfg.engines < 1 || cfg.requests < 1 || !(cfg.load > 0):
		err = errors.New("-count, -requests and -load must be above 0")
	}
	return cfg, asJSON, err
}

// gap is the time between two requests, whatever their targets.
func (c *config) gap(size int) time.Duration {
	perSec := 100.0
	switch {
	case size > 128<<10:
		perSec = 10
	case size > 32<<10:
		perSec = 40
	}
	return time.Duration(float64(time.Second) / (perSec * c.load))
}
