package pool

import (
	"context"
	"sync"
)

// source is one pool that is watched. Its methods are called by Run's goroutine alone.
type source interface {
	// tend starts what is to be watched now, and ends what is not.
	tend(ctx context.Context, wg *sync.WaitGroup)
	// look returns the set as of now; false: nothing is known yet.
	look() (set, bool)
	// health is that of its watches: the one that has failed longest.
	health() health
}

// service is a Service's EndpointSlices.
type service struct {
	ref
	slices  *mirror[slice]
	started bool
}

func (s *service) tend(ctx context.Context, wg *sync.WaitGroup) {
	if !s.started {
		s.started = true
		wg.Go(func() { s.slices.run(ctx) })
	}
}

func (s *service) look() (out set, known bool) {
	if !s.slices.isSynced() {
		return set{}, false
	}
	s.slices.read(func(items map[string]slice) { out = sliceSet(s.port, items) })
	return out, true
}

func (s *service) health() health {
	_, h := s.slices.state()
	return h
}

// inferencePool is an InferencePool and the pods of its selector.
type inferencePool struct {
	ref
	spec    *mirror[poolSpec]
	started bool
	podsOf  func(selector string) *mirror[pod]
	pods    *podWatch // in use; nil: none yet
	next    *podWatch // of another selector, to be used once it has been read; nil: none
}

// podWatch is the running watch of one selector.
type podWatch struct {
	*mirror[pod]
	stop context.CancelFunc
}

func (p *inferencePool) tend(ctx context.Context, wg *sync.WaitGroup) {
	if !p.started {
		p.started = true
		wg.Go(func() { p.spec.run(ctx) })
	}
	if !p.spec.isSynced() {
		return
	}
	spec, exists := p.current()
	if !exists || spec.selector == "" {
		p.pods, p.next = p.pods.end(), p.next.end()
		return
	}
	if p.next != nil && p.next.labels != spec.selector {
		p.next = p.next.end()
	}
	switch {
	case p.pods != nil && p.pods.labels == spec.selector:
	case p.pods == nil:
		p.pods = p.watch(ctx, wg, spec.selector)
	case p.next == nil:
		p.next = p.watch(ctx, wg, spec.selector)
	}
	if p.next != nil && p.next.isSynced() {
		p.pods.end()
		p.pods, p.next = p.next, nil
	}
}

func (p *inferencePool) watch(ctx context.Context, wg *sync.WaitGroup, selector string) *podWatch {
	ctx, cancel := context.WithCancel(ctx)
	w := &podWatch{p.podsOf(selector), cancel}
	wg.Go(func() {
		defer cancel()
		w.run(ctx)
	})
	return w
}

// end stops a watch, if there is one, and returns nil.
func (w *podWatch) end() *podWatch {
	if w != nil {
		w.stop()
	}
	return nil
}

func (p *inferencePool) current() (spec poolSpec, exists bool) {
	p.spec.read(func(items map[string]poolSpec) { spec, exists = items[p.name] })
	return spec, exists
}

func (p *inferencePool) look() (out set, known bool) {
	if !p.spec.isSynced() {
		return set{}, false
	}
	spec, exists := p.current()
	if !exists {
		return set{endpoints: []string{}, note: "there is no such InferencePool"}, true
	}
	if spec.selector == "" { // the CRD forbids it; to the API server it would mean every pod
		return set{endpoints: []string{}, note: "its selector is empty: nothing is selected"}, true
	}
	if p.pods == nil || !p.pods.isSynced() {
		return set{}, false
	}
	p.pods.read(func(items map[string]pod) { out = podSet(spec, items) })
	return out, true
}

func (p *inferencePool) health() health {
	_, h := p.spec.state()
	for _, w := range []*podWatch{p.pods, p.next} {
		if w == nil {
			continue
		}
		if _, other := w.state(); other.reason != "" && (h.reason == "" || other.since.Before(h.since)) {
			h = other
		}
	}
	return h
}
