package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/test/trace"
)

// simInput is one trace that `grapevine sim` plays, perhaps with several draws of its arrivals.
type simInput struct {
	name  string // in results
	flags string // that say what of it is played
	read  func(seed uint64) (*trace.Trace, error)
	drawn bool // arrivals are those of a seed, not those on record

	mu    sync.Mutex // guards drawn-out traces
	draws map[uint64]*trace.Trace
}

// trace returns the trace with the arrivals of a seed. It may be called by several goroutines; nobody may change the trace.
func (in *simInput) trace(seed uint64) (*trace.Trace, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if t, ok := in.draws[seed]; ok {
		return t, nil
	}
	t, err := in.read(seed)
	if err != nil {
		return nil, err
	}
	in.draws[seed] = t
	return t, nil
}

// inputs are the traces of the command line in its order: files, then made-up loads. note hears of what isn't as recorded.
func (f *simFlags) inputs(fs *pflag.FlagSet, note func(format string, args ...any)) ([]*simInput, error) {
	var all []*simInput
	for _, arg := range f.traces {
		all = append(all, f.file(fs, arg, note))
	}
	for _, name := range f.generate {
		in, err := f.made(fs, name)
		if err != nil {
			return nil, err
		}
		all = append(all, in)
	}
	for i, in := range all {
		if slices.ContainsFunc(all[:i], func(o *simInput) bool { return o.name == in.name }) {
			return nil, usageError(fmt.Sprintf("two traces are called %s: name one with --trace NAME=FILE", in.name))
		}
	}
	return all, nil
}

// file is a trace from FILE or NAME=FILE.
func (f *simFlags) file(fs *pflag.FlagSet, arg string, note func(string, ...any)) *simInput {
	name, path := filepath.Base(arg), arg
	if n, p, ok := strings.Cut(arg, "="); ok {
		if _, err := os.Stat(arg); err != nil {
			name, path = n, p
		}
	}
	format := trace.Format(f.format)
	in := &simInput{name: name, flags: changed(fs, fileFlags), drawn: f.seeds > 1 || format == trace.CC, draws: map[uint64]*trace.Trace{}}
	var recorded *trace.Trace
	in.read = func(seed uint64) (*trace.Trace, error) {
		t := recorded
		if t == nil || format == trace.CC { // whose reader draws the sessions' starts
			o := f.read
			o.Seed = seed
			var err error
			if t, err = trace.Read(path, format, o); err != nil {
				return nil, err
			}
			if n := f.blockTokens / t.BlockTokens; n > 1 {
				t = t.Regroup(n)
			}
			recorded = t
		}
		switch {
		case t.Span() == 0 && len(t.Requests) > 1:
			note("%s: all requests have one time: arrivals are a Poisson process drawn by the seed", name)
			return t.Poisson(seed), nil
		case t.Span() == 0:
			note("%s: one request alone has no rate: loads change nothing", name)
		case f.seeds > 1 && format != trace.CC:
			return t.Redrawn(seed), nil
		}
		return t, nil
	}
	return in
}

// made is a made-up load with what the flags change of it.
func (f *simFlags) made(fs *pflag.FlagSet, name string) (*simInput, error) {
	l, ok := trace.LoadOf(name)
	if !ok {
		return nil, usageError(fmt.Sprintf("--generate %s: give some of %s", name, strings.Join(trace.LoadNames(), ", ")))
	}
	given := func(flag string, set func()) {
		if fs.Changed(flag) {
			set()
		}
	}
	given("sessions", func() { l.Sessions = f.load.Sessions })
	given("session-rate", func() { l.SessionsPerSec = f.load.SessionsPerSec })
	given("groups", func() { l.Groups = f.load.Groups })
	given("prefix-tokens", func() { l.PrefixTokens = f.load.PrefixTokens })
	given("context-tokens", func() { l.ContextTokens = f.load.ContextTokens })
	given("turns", func() { l.Turns = f.load.Turns })
	given("turn-tokens", func() { l.TurnTokens = f.load.TurnTokens })
	given("output-tokens", func() { l.OutputTokens = f.load.OutputTokens })
	given("think", func() { l.ThinkMin, l.ThinkMax = f.think/2, f.think+f.think/2 })
	if err := l.Validate(); err != nil {
		return nil, usageError(fmt.Sprintf("--generate %s: %v", name, err))
	}
	return &simInput{name: name, flags: changed(fs, loadFlags), drawn: true, draws: map[uint64]*trace.Trace{}, read: func(seed uint64) (*trace.Trace, error) {
		l := l
		l.Seed = seed
		t, err := trace.Generate(l, f.blockTokens)
		if err == nil && f.read.Limit > 0 && len(t.Requests) > f.read.Limit {
			t.Requests = t.Requests[:f.read.Limit]
		}
		return t, err
	}}, nil
}

// The flags that say what of a file, or which made-up load, is played.
var (
	fileFlags = []string{"block-tokens", "max-prompt", "requests"}
	loadFlags = []string{"block-tokens", "context-tokens", "groups", "output-tokens", "prefix-tokens", "requests", "session-rate", "sessions", "think", "turn-tokens", "turns"}
)

// changed writes down those of the named flags that were given.
func changed(fs *pflag.FlagSet, names []string) string {
	var out []string
	for _, name := range names {
		flag := fs.Lookup(name)
		if flag == nil || !flag.Changed {
			continue
		}
		value := flag.Value.String()
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values := list.GetSlice()
			for i, v := range values {
				if x, err := strconv.ParseFloat(v, 64); err == nil {
					values[i] = strconv.FormatFloat(x, 'g', -1, 64)
				}
			}
			value = strings.Join(values, ",")
		}
		out = append(out, "--"+name+" "+value)
	}
	return strings.Join(out, " ")
}

// loadTable describes the made-up loads for the help.
func loadTable() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %-14s %8s %9s %6s %6s %7s %5s %11s %6s %s\n", "", "sessions", "a second", "groups", "prefix", "context", "turns", "turn tokens", "output", "think")
	for _, name := range trace.LoadNames() {
		l, _ := trace.LoadOf(name)
		turn, think := fmt.Sprint(l.TurnTokens), fmt.Sprintf("%v-%v", l.ThinkMin, l.ThinkMax)
		if l.Grows {
			turn = "+" + turn
		}
		switch {
		case l.Parallel:
			think = "none, at once"
		case l.Turns == 1:
			think = "-"
		}
		fmt.Fprintf(&b, "  %-14s %8d %9.3g %6d %6d %7d %5d %11s %6d %s\n", name, l.Sessions, l.SessionsPerSec, l.Groups, l.PrefixTokens, l.ContextTokens, l.Turns, turn, l.OutputTokens, think)
	}
	return b.String()
}

// ownRate is the requests a second that a trace has.
func ownRate(t *trace.Trace) float64 {
	if t.Span() <= 0 {
		return 0
	}
	return float64(len(t.Requests)) / (float64(t.Span()) / float64(time.Second))
}
