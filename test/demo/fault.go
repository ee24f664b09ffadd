package demo

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
)

// FaultNames are the faults that Config knows.
func FaultNames() []string { return []string{"gateway", "agent", "agents", "engine"} }

const (
	drainTime   = 30 * time.Second
	faultLength = 2 * time.Second // wall clock
)

// fault happens once, when enough requests have been answered. Safe for concurrent use; the zero fault never happens.
type fault struct {
	do    func() error
	after int

	mu    sync.Mutex // guards what follows
	count int
	wg    sync.WaitGroup
	err   error
}

func newFault(name string, f *cluster.Fleet, after int) *fault {
	faults := map[string]func() error{
		// Restarted as by an update: it ends what has begun.
		"gateway": func() error {
			f.Gateways[0].Stop(drainTime)
			return f.Gateways[0].Start()
		},
		"agent": func() error {
			f.Agents[0].Kill()
			time.Sleep(faultLength)
			return f.Agents[0].Start()
		},
		// All silent, as when gossip is blocked.
		"agents": func() error {
			var errs []error
			for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
				for _, a := range f.Agents {
					errs = append(errs, a.Signal(sig))
				}
				if sig == syscall.SIGSTOP {
					time.Sleep(faultLength)
				}
			}
			return errors.Join(errs...)
		},
		"engine": func() error {
			f.Engines[0].Kill()
			time.Sleep(faultLength)
			return f.Engines[0].Start()
		},
	}
	return &fault{do: faults[name], after: max(1, after)}
}

// answered counts a request.
func (f *fault) answered() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	if f.do == nil || f.count != f.after {
		return
	}
	f.wg.Go(func() {
		if err := f.do(); err != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.err = fmt.Errorf("make the fault: %w", err)
		}
	})
}

// wait returns when the fault is over.
func (f *fault) wait() error {
	f.wg.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
