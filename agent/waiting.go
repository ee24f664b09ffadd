package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/gossip/mesh"
)

const (
	// openAgain: keys and seed come with a Secret, which may be made after the pod.
	openAgain = 5 * time.Second
	// stuckAfter is far above a turn of any loop, a second at most.
	stuckAfter = 30 * time.Second
)

// Waiting says why an agent is not in the mesh. It goes on by itself once the
// reason has gone.
type Waiting struct {
	Reason string `json:"reason"` // one of a few
	Error  string `json:"error"`
	Remedy string `json:"remedy"`
}

// seedError is an error of the seed file.
type seedError struct{ error }

func (e seedError) Unwrap() error { return e.error }

// waitingFor says what err makes the agent wait for; nil for errors that waiting
// does not mend.
func waitingFor(err error) *Waiting {
	var seed seedError
	isSeed, isKeys := errors.As(err, &seed), errors.Is(err, mesh.ErrKeys)
	missing := errors.Is(err, os.ErrNotExist)
	w := &Waiting{Error: err.Error()}
	switch {
	case isSeed && missing:
		w.Reason, w.Remedy = "no seed file", "put the pool's seed where --seed-file says; on Kubernetes it is the Secret with the keys, which each namespace needs"
	case isSeed:
		w.Reason, w.Remedy = "seed file unusable", "give it one number of 64 bits, the same as the gateways'"
	case isKeys && missing:
		w.Reason, w.Remedy = "no gossip key file", "put the gateways' keys where --gossip-key-file says; on Kubernetes it is the Secret with the keys, which each namespace needs"
	case isKeys:
		w.Reason, w.Remedy = "gossip key file unusable", "give it the gateways' keys, one a line"
	default:
		return nil
	}
	return w
}

// open makes the units: it reads keys and seed and binds the gossip sockets.
func (a *Agent) open() ([]*unit, error) {
	hasher, err := a.cfg.hasher()
	if err != nil {
		return nil, err
	}
	var units []*unit
	for i := range a.cfg.Engine {
		u, err := newUnit(a.cfg, i, hasher, a.gpus.ready)
		if err != nil {
			for _, u := range units {
				err = errors.Join(err, u.mesh.Close())
			}
			return nil, err
		}
		units = append(units, u)
	}
	return units, nil
}

// state is the units that are there, or what keeps them away.
func (a *Agent) state() ([]*unit, *Waiting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.units, a.waiting
}

// set notes what open gave, and tells a new reason.
func (a *Agent) set(units []*unit, waiting *Waiting) {
	a.mu.Lock()
	before := a.waiting
	a.units, a.waiting = units, waiting
	a.mu.Unlock()
	switch {
	case waiting != nil && (before == nil || before.Error != waiting.Error):
		a.log.Error("not in the mesh, trying again", slog.String(keyReason, waiting.Reason), slog.String(keyErr, waiting.Error), slog.String(keyRemedy, waiting.Remedy))
	case waiting == nil && before != nil:
		a.log.Info("what was missing is there, joining the mesh")
	}
}

// runUnits runs the units, and before that waits for what they need. It never
// ends for lack of it: an agent beside an engine must not keep the pod from
// starting.
func (a *Agent) runUnits(ctx context.Context) error {
	units, waiting := a.state()
	tick := time.NewTicker(a.again)
	defer tick.Stop()
	for waiting != nil {
		a.beat.Store(time.Now().UnixNano())
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var err error
		if units, err = a.open(); err == nil {
			waiting = nil
		} else if waiting = waitingFor(err); waiting == nil {
			waiting = &Waiting{Reason: "gossip port not to be had", Error: err.Error(), Remedy: "give --gossip-bind another port"}
		}
		a.set(units, waiting)
	}
	now := time.Now().UnixNano()
	g, ctx := errgroup.WithContext(ctx)
	for _, u := range units {
		u.beat.Store(now)
		g.Go(func() error { return u.run(ctx) })
	}
	return g.Wait()
}

// alive says whether the loops turn.
func (a *Agent) alive(now time.Time) error {
	units, waiting := a.state()
	if waiting != nil {
		return late(now, a.beat.Load(), "waiting for keys")
	}
	for _, u := range units {
		if err := late(now, u.beat.Load(), u.engine); err != nil {
			return err
		}
	}
	return nil
}

func late(now time.Time, beat int64, what string) error {
	if since := now.Sub(time.Unix(0, beat)); beat != 0 && since > stuckAfter {
		return fmt.Errorf("no turn of the loop for %v: %s", since.Round(time.Second), what)
	}
	return nil
}
