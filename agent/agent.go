package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Agent is one agent process. Make it with New, then call Run once.
type Agent struct {
	cfg   Config
	log   *slog.Logger
	gpus  *gpuWatch
	admin net.Listener // nil: none
	probe net.Listener // nil: none
	again time.Duration
	beat  atomic.Int64 // unix nanoseconds: the last turn of the wait for keys

	mu      sync.Mutex // guards what follows
	units   []*unit
	waiting *Waiting // nil: the units are there
}

// New checks the configuration, reads keys and seed, and binds the sockets; it
// starts nothing. Keys and seed that are not there yet are no error: Run waits for
// them.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.StateDir != "" {
		if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
			return nil, fmt.Errorf("make state-dir: %w", err)
		}
	}
	a := &Agent{cfg: cfg, log: cfg.Logger, gpus: newGPUWatch(cfg.Logger), again: openAgain}
	var err error
	if a.admin, err = listen("metrics-listen", cfg.MetricsListen); err != nil {
		return nil, err
	}
	if a.probe, err = listen("probe-listen", cfg.ProbeListen); err != nil {
		return nil, errors.Join(err, a.close())
	}
	units, err := a.open()
	var waiting *Waiting
	if err != nil {
		if waiting = waitingFor(err); waiting == nil {
			return nil, errors.Join(err, a.close())
		}
	}
	a.set(units, waiting)
	return a, nil
}

// listen binds one of the listeners, nil for none.
func listen(name, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s %s is taken by another process: give another address, or none: %w", name, addr, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

// close frees the listeners.
func (a *Agent) close() error {
	var errs []error
	for _, l := range []net.Listener{a.admin, a.probe} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// AdminAddr is the admin listener's address, "" without one.
func (a *Agent) AdminAddr() string {
	if a.admin == nil {
		return ""
	}
	return a.admin.Addr().String()
}

// ProbeAddr is the address of metrics and /livez alone, "" without one.
func (a *Agent) ProbeAddr() string {
	if a.probe == nil {
		return ""
	}
	return a.probe.Addr().String()
}

// Run serves until ctx ends: then it tells the gateways that it drains, leaves
// and returns nil. An engine that is not there is waited for.
func (a *Agent) Run(ctx context.Context) error {
	a.log.Info("agent started", slog.String(keyVersion, a.cfg.Version), slog.Any(keyEngine, a.cfg.Engine), slog.String(keyAddr, a.AdminAddr()))
	if len(a.cfg.Gossip.Join) == 0 {
		a.log.Warn("no gateway to join is given, this agent waits to be joined", slog.String(keyRemedy, "give --gossip-join, e.g. the gateways' headless Service"))
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.runUnits(ctx) })
	g.Go(func() error {
		a.gpus.run(ctx, a.cfg.GPUs, func(h wire.Health) {
			units, _ := a.state()
			for _, u := range units {
				u.setHealth(h)
			}
		})
		return nil
	})
	if a.admin != nil {
		g.Go(func() error { return serve(ctx, a.admin, a.adminHandler()) })
	}
	if a.probe != nil {
		g.Go(func() error { return serve(ctx, a.probe, a.probeHandler()) })
	}
	return g.Wait()
}
