package picker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/view"
)

// Stepped is a Picker for simulators: its owner gives it the time and its turns, nothing in it waits and no goroutine runs.
// It decides by the same code as a Picker that runs. Not safe for concurrent use; times must not go back.
type Stepped struct {
	picker *Picker
	now    time.Time
	held   []*Submitted
}

// Submitted is a request that was handed to a Stepped.
type Submitted struct {
	q    *query
	done func(Decision, error)
}

// NewStepped returns a Stepped that begins at now. Its owner brings the gossip: it must be off in cfg. The same calls with the
// same seed have the same answers.
func NewStepped(cfg Config, now time.Time, seed uint64) (*Stepped, error) {
	if cfg.Gossip.Enabled {
		return nil, fmt.Errorf("gossip is on: a stepped picker is told what agents say by Hear")
	}
	s := &Stepped{now: now}
	var err error
	if s.picker, err = newPicker(cfg, func() time.Time { return s.now }, seed); err != nil {
		return nil, err
	}
	s.picker.running = true       // it holds
	s.picker.hints.gateways = nil // who takes what Tell returns
	return s, nil
}

// Submit hands in a request. done is called once, with what Pick would return: before Submit returns, or in a later call
// of any method.
func (s *Stepped) Submit(now time.Time, req Request, done func(Decision, error)) *Submitted {
	s.now = now
	p := s.picker
	q := p.prepared(now, req)
	p.mu.Lock()
	waits, err := p.admit(now, q)
	p.mu.Unlock()
	r := &Submitted{q, done}
	s.held = append(s.held, r)
	if !waits {
		s.end(len(s.held)-1, err)
	}
	s.settle()
	return r
}

// Withdraw takes a request back whose client has left. It reports whether it still waited: done is then never called.
func (s *Stepped) Withdraw(now time.Time, r *Submitted) bool {
	s.now = now
	at := slices.Index(s.held, r)
	if at < 0 {
		return false
	}
	p := s.picker
	p.mu.Lock()
	removed := p.queue.Remove(&r.q.item)
	p.mu.Unlock()
	if removed {
		s.held = slices.Delete(s.held, at, at+1)
		p.release(r.q)
	}
	return removed
}

// Step does what a running Picker does on its own, and returns when it wants to be called again at the latest.
func (s *Stepped) Step(now time.Time) time.Time {
	s.now = now
	next := now.Add(s.picker.look(now))
	s.settle()
	return next
}

// Hear takes in one gossip packet. What it changes counts from the next Step or Submit on. Errors are those of
// [view.View.Apply].
func (s *Stepped) Hear(now time.Time, packet []byte) error {
	s.now = now
	return s.picker.take(now, packet)
}

// Tell returns the packets for all other gateways that are due, and when some will be: the zero time if there is nothing to tell.
func (s *Stepped) Tell(now time.Time) (packets [][]byte, next time.Time) {
	s.now = now
	out := s.picker.hints.out
	out.Held(now, s.picker.queue.Len())
	switch {
	case out.Empty():
		return nil, time.Time{}
	case now.Before(out.Since().Add(hintPause)):
		return nil, out.Since().Add(hintPause)
	}
	return out.Take(now), time.Time{}
}

// Probe calls [Config.Probe] for each endpoint that failed and whose backoff is over, as a running Picker does every 100 ms. It
// reports whether there was any.
func (s *Stepped) Probe(now time.Time) (asked bool) {
	s.now = now
	p := s.picker
	p.mu.Lock()
	for _, e := range p.table.Load().endpoints { // hosts have no order
		if e.host.due(now) {
			asked = true
			p.probed(now, e.host, p.cfg.Probe(context.Background(), e.public))
		}
	}
	p.mu.Unlock()
	s.settle()
	return asked
}

// Ask returns the packets that the picker wants to send to agents.
func (s *Stepped) Ask(now time.Time) []view.Out {
	s.now = now
	return s.picker.view.Poll(now)
}

// FirstToken is [Picker.FirstToken].
func (s *Stepped) FirstToken(now time.Time, d Decision) {
	s.now = now
	s.picker.FirstToken(d)
	s.settle()
}

// Done is [Picker.Done].
func (s *Stepped) Done(now time.Time, d Decision, o Outcome) {
	s.now = now
	s.picker.Done(d, o)
	s.settle()
}

// settle tells of the requests that have been bound or refused.
func (s *Stepped) settle() {
	for i := 0; i < len(s.held); {
		q := s.held[i].q
		if q.done == nil {
			i++
			continue
		}
		select {
		case <-q.done:
			s.end(i, q.err)
		default:
			i++
		}
	}
}

// end takes out the request at position i.
func (s *Stepped) end(i int, err error) {
	r := s.held[i]
	s.held = append(s.held[:i], s.held[i+1:]...)
	r.q.makeMarks(s.picker.clock)
	d := r.q.decision
	s.picker.release(r.q)
	r.done(d, err)
}
