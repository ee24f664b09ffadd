package gatewaycmd

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/pool"
)

// discovering returns the defaults for args. Where Kubernetes tells which endpoints are eligible, agents add none unless
// they are asked to: gossip can only help.
func (c Config) discovering(args []string) Config {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	given := Default()
	config.Bind(fs, given)
	if fs.Parse(args) == nil {
		_ = config.Load(fs, &given) // faults are told when it is loaded in earnest
		c.Discover = !given.Kubernetes.Enabled()
	}
	return c
}

// watchedPools hands over the endpoints of the pools that are watched to the picker.
type watchedPools struct {
	*pool.Watcher
	pick    *picker.Picker
	static  []string // endpoints that are always in
	on      bool     // pools are watched at all
	log     *slog.Logger
	read    atomic.Bool // all pools were, and the picker has them
	serving atomic.Bool // clients are let in
}

func newWatchedPools(cfg Config, pick *picker.Picker, log *slog.Logger, reg prometheus.Registerer) (*watchedPools, error) {
	w, err := pool.New(cfg.Kubernetes, log, reg)
	if err != nil {
		return nil, err
	}
	out := &watchedPools{Watcher: w, pick: pick, static: cfg.Endpoints, on: cfg.Kubernetes.Enabled(), log: log}
	out.read.Store(!out.on)
	return out, nil
}

// run keeps the picker's pools up to date until ctx ends; after each change it calls changed.
func (w *watchedPools) run(ctx context.Context, changed func()) error {
	return w.Run(ctx, func([]string) {
		pools := w.Pools()
		pools[""] = w.static
		if err := w.pick.SetPools(pools); err != nil {
			w.log.Error("endpoints not taken over", slog.Any("error", err))
			return
		}
		w.read.Store(w.Synced())
		changed()
	})
}

// known is what ext_proc may ask; nil: no pools are watched.
func (w *watchedPools) known() kubernetes {
	if !w.on {
		return nil
	}
	return w
}

// status is what proxy.Config.Pools wants.
func (w *watchedPools) status() func() any {
	if !w.on {
		return nil
	}
	return func() any { return w.Watcher.Status() }
}

// notReady is what proxy.Config.NotReady wants.
func (w *watchedPools) notReady() string {
	waiting := w.Waiting()
	switch {
	case !w.serving.Load() && waiting != "":
		return "starting: " + waiting
	case !w.serving.Load():
		return "starting: the agents' digests are awaited (--warm-wait)"
	case waiting != "" && len(w.pick.Status().Endpoints) == 0:
		return "no endpoint is known: " + waiting
	}
	return ""
}
