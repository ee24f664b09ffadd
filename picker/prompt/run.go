package prompt

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/picker/openai"
)

// Engine is one engine of the pool, as Run needs to know it.
type Engine struct {
	URL    string
	Epoch  uint64   // changes when it restarts; 0: not known
	Models []string // that it serves; none: not known
}

const (
	checkPause   = time.Second      // between two comparisons of requests, and two looks at the pool
	checkTimeout = 10 * time.Second // of one comparison with one engine
	checkRetry   = 30 * time.Second // after one that failed
	checkBurst   = 8                // engines compared with at start in one go
	// maxSample bounds the body of a request that is compared: an engine has
	// better things to do than to tokenize long prompts twice.
	maxSample = 1 << 20
)

// sampler hands one in so many requests to Run, if that has nothing to do.
type sampler struct {
	every uint64
	n     *atomic.Uint64
	out   chan sample
}

type sample struct {
	model  *ownModel
	req    *openai.Request
	engine string
}

func newSampler(every int) sampler {
	return sampler{uint64(max(0, every)), new(atomic.Uint64), make(chan sample, 1)}
}

// offer is on the path of requests: it does not wait.
func (s *sampler) offer(m *ownModel, req *openai.Request, engineURL string) {
	if s.every == 0 || engineURL == "" || s.n.Add(1)%s.every != 0 || len(req.Body) > maxSample || len(req.Prompts) > 1 {
		return
	}
	if len(s.out) == cap(s.out) {
		return
	}
	kept, err := openai.Parse(req.Path, bytes.Clone(req.Body)) // req's is its caller's
	if err != nil {
		return
	}
	select {
	case s.out <- sample{m, kept, engineURL}:
	default:
	}
}

// starts remembers which engines were compared with since they started.
type starts map[startKey]startState

type startKey struct {
	model *ownModel
	url   string
}

type startState struct {
	epoch uint64
	done  bool
	next  time.Time // not before
}

// Run compares own ids with those of engines until ctx ends: the built-in
// requests with each engine that appears or restarts, and now and then a
// client's request. Its error is ctx's.
func (r *Resolver) Run(ctx context.Context) error {
	if r.cfg.Engines == nil || len(r.folders) == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	seen := starts{}
	tick := time.NewTicker(checkPause)
	defer tick.Stop()
	for {
		r.checkStarts(ctx, seen, time.Now())
		select {
		case s := <-r.sampler.out:
			r.checkSample(ctx, s)
		default:
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// checkStarts compares with the engines that have not been compared with yet.
func (r *Resolver) checkStarts(ctx context.Context, seen starts, now time.Time) {
	engines := r.cfg.Engines()
	left := checkBurst
	for _, m := range r.folders {
		if m.tokErr != nil {
			continue
		}
		if !m.unserved && unserved(m, engines) {
			m.unserved = true
			r.log.Warn("no endpoint serves this model: is its name in --model the one that clients send?", slog.Any("model", m.names), slog.Any("served", engines[0].Models))
		}
		for _, e := range engines {
			name, serves := m.servedBy(e)
			key := startKey{m, e.URL}
			state, known := seen[key]
			if !serves || known && state.epoch == e.Epoch && (state.done || now.Before(state.next)) || left == 0 {
				continue
			}
			left--
			one, cancel := context.WithTimeout(ctx, checkTimeout)
			err := r.Check(one, name, e.URL)
			cancel()
			if ctx.Err() != nil {
				return
			}
			var different *Mismatch
			failed := err != nil && !errors.As(err, &different)
			if failed {
				level := slog.LevelDebug
				if !known {
					level = slog.LevelWarn // once
				}
				r.log.Log(ctx, level, "own token ids could not be compared with the engine's", slog.String("model", name), slog.String("engine", e.URL), slog.Any("error", err))
			}
			seen[key] = startState{epoch: e.Epoch, done: !failed, next: now.Add(checkRetry)}
		}
	}
	for key := range seen {
		if !slices.ContainsFunc(engines, func(e Engine) bool { return e.URL == key.url }) {
			delete(seen, key)
		}
	}
}

// unserved reports whether all engines say what they serve, and none serves the model.
func unserved(m *ownModel, engines []Engine) bool {
	return len(engines) > 0 && !slices.ContainsFunc(engines, func(e Engine) bool {
		_, serves := m.servedBy(e)
		return serves // or does not say
	})
}

// servedBy returns the name by which an engine serves the model, if it does as
// far as is known.
func (m *ownModel) servedBy(e Engine) (name string, ok bool) {
	if len(e.Models) == 0 {
		return m.names[0], true
	}
	for _, name := range m.names {
		if slices.Contains(e.Models, name) {
			return name, true
		}
	}
	return "", false
}

// present reports whether an engine is in the pool.
func (r *Resolver) present(url string) bool {
	return r.cfg.Engines != nil && slices.ContainsFunc(r.cfg.Engines(), func(e Engine) bool { return e.URL == url })
}

func (r *Resolver) checkSample(ctx context.Context, s sample) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var different *Mismatch
	switch err := r.compare(ctx, s.model, s.req, s.engine, -1); {
	case err == nil:
		s.model.trust.equal(s.engine, false, nil)
	case !errors.As(err, &different):
		s.model.trust.counted(CheckFailed)
		r.log.Debug("token ids of a request not compared", slog.String("model", s.req.Model), slog.String("engine", s.engine), slog.Any("error", err))
	}
}
