package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Agent is one agent process. Make it with New, then call Run once.
type Agent struct {
	cfg   Config
	log   *slog.Logger
	seed  uint32 // fingerprint of the hash seed
	units []*unit
	gpus  *gpuWatch
	admin net.Listener // nil: none
}

// New checks the configuration, reads keys and seed, and binds the sockets; it
// starts nothing.
func New(cfg Config) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	hasher, err := cfg.hasher()
	if err != nil {
		return nil, err
	}
	if cfg.StateDir != "" {
		if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
			return nil, fmt.Errorf("make state-dir: %w", err)
		}
	}
	a := &Agent{cfg: cfg, log: cfg.Logger, seed: hasher.Fingerprint(), gpus: newGPUWatch(cfg.Logger)}
	if cfg.MetricsListen != "" {
		if a.admin, err = net.Listen("tcp", cfg.MetricsListen); err != nil {
			if errors.Is(err, syscall.EADDRINUSE) {
				return nil, fmt.Errorf("metrics-listen %s is taken by another process: give another address, or none: %w", cfg.MetricsListen, err)
			}
			return nil, fmt.Errorf("metrics-listen: %w", err)
		}
	}
	for i := range cfg.Engine {
		u, err := newUnit(cfg, i, hasher, a.gpus.ready)
		if err != nil {
			return nil, errors.Join(err, a.close())
		}
		a.units = append(a.units, u)
	}
	return a, nil
}

// close frees what New bound.
func (a *Agent) close() error {
	var errs []error
	if a.admin != nil {
		errs = append(errs, a.admin.Close())
	}
	for _, u := range a.units {
		errs = append(errs, u.mesh.Close())
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

// Run serves until ctx ends: then it tells the gateways that it drains, leaves
// and returns nil. An engine that is not there is waited for.
func (a *Agent) Run(ctx context.Context) error {
	a.log.Info("agent started", slog.String(keyVersion, a.cfg.Version), slog.Any(keyEngine, a.cfg.Engine), slog.String(keyAddr, a.AdminAddr()))
	if len(a.cfg.Gossip.Join) == 0 {
		a.log.Warn("no gateway to join is given, this agent waits to be joined", slog.String(keyRemedy, "give --gossip-join, e.g. the gateways' headless Service"))
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, u := range a.units {
		g.Go(func() error { return u.run(ctx) })
	}
	g.Go(func() error {
		a.gpus.run(ctx, a.cfg.GPUs, func(h wire.Health) {
			for _, u := range a.units {
				u.setHealth(h)
			}
		})
		return nil
	})
	if a.admin != nil {
		g.Go(func() error { return a.serveAdmin(ctx) })
	}
	return g.Wait()
}
