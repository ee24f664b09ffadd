package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progress says on standard error how far a simulation is: one line that changes on a terminal, else a line a run.
type progress struct {
	out      io.Writer
	terminal bool
	quiet    bool
	total    int // runs; 0: unknown

	mu      sync.Mutex // guards all below
	begun   time.Time
	made    int
	skipped int
	said    map[string]bool
}

func newProgress(out io.Writer, quiet bool) *progress {
	p := &progress{out: out, quiet: quiet, begun: time.Now(), said: map[string]bool{}}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			p.terminal = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

// note says something once.
func (p *progress) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	if p.quiet || p.said[line] {
		return
	}
	p.said[line] = true
	p.clear()
	fmt.Fprintln(p.out, line)
}

// ran is a run that has been made.
func (p *progress) ran(run *simRun, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made++
	if p.quiet {
		return
	}
	line := fmt.Sprintf("%s %s, %s, %s, %s, seed %d: %s (%.1f s)", run.Trace, loadOf(run), count(run.Pods, "pod"), run.Engine, run.Arrivals, run.Seed, run.Policy, took.Seconds())
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s%.60s", p.state(time.Since(p.begun)), line)
		return
	}
	fmt.Fprintln(p.out, p.state(time.Since(p.begun))+line)
}

// skip is a run that was found among earlier ones.
func (p *progress) skip() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skipped++
}

// state is how many runs are done, and how long the rest will take if it is like those.
func (p *progress) state(elapsed time.Duration) string {
	done := p.made + p.skipped
	if p.total == 0 || p.made == 0 {
		return ""
	}
	left := elapsed / time.Duration(p.made) * time.Duration(p.total-done)
	if done >= p.total {
		return fmt.Sprintf("%d/%d: ", done, p.total)
	}
	return fmt.Sprintf("%d/%d, about %v left: ", done, p.total, left.Round(time.Second))
}

// clear wipes the line that changes. The caller holds the lock, or is alone.
func (p *progress) clear() {
	if p.terminal && !p.quiet {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// end wipes the line that changes when all is done.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}
