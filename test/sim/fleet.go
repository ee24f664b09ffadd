package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker"
)

// fleet is the product itself: each pod's engine events go through a block set and a digest, the ticks to every gateway's view,
// and each gateway's picker decides by what it has heard.
type fleet struct {
	w        *world
	gateways []*gateway
	agents   []*agent
	pods     map[string]int // by endpoint id
}

const (
	pollEvery   = 20 * time.Millisecond  // the view's questions, as in a picker that runs
	probeEvery  = 100 * time.Millisecond // looks for pods to be asked whether they answer, likewise
	engineBlock = 16                     // vLLM's default block size, for which the defaults are
)

func newFleet(w *world) (policy, error) {
	f := &fleet{w: w, pods: map[string]int{}}
	cfg := picker.Default()
	cfg.Receipts = 0
	cfg.Policy.Hold = w.cfg.Policy != early
	// In blocks: as many tokens as with the engine's own block size.
	cfg.Score.MinMatch = max(1, cfg.Score.MinMatch*engineBlock/w.cfg.Trace.BlockTokens)
	cfg.BlockSize = w.cfg.Trace.BlockTokens
	cfg.Probe = func(_ context.Context, e picker.Endpoint) error {
		if w.pods[f.pods[e.ID]].down {
			return errNoAnswer
		}
		return nil
	}
	for i := range w.pods {
		cfg.Endpoints = append(cfg.Endpoints, endpointID(i))
		f.pods[endpointID(i)] = i
	}
	for i := range w.cfg.Gateways {
		cfg.Gossip.NodeName = fmt.Sprintf("gateway-%d", i)
		s, err := picker.NewStepped(cfg, at(0), w.cfg.Seed+uint64(i))
		if err != nil {
			return nil, err
		}
		f.gateways = append(f.gateways, &gateway{fleet: f, index: i, picker: s, woken: never, tells: never})
	}
	f.agents = make([]*agent, len(w.pods))
	for _, p := range w.pods {
		f.back(0, p)
	}
	for _, g := range f.gateways {
		w.at(0, g.poll)
		w.at(0, g.probe)
		g.step(0)
	}
	return f, nil
}

// endpointID is the picker's name of a pod.
func endpointID(pod int) string { return fmt.Sprintf("10.0.0.%d:8000", pod+1) }

func (f *fleet) arrive(now time.Duration, j *job) {
	g := f.gateways[j.gateway]
	req := picker.Request{
		ID: fmt.Sprint(j.index), PromptTokens: j.prompt(), Session: fmt.Sprint(j.request.session), Flow: j.flow, Avoid: avoided(j), NoFirstToken: j.whole,
		Chains: []blockhash.Chain{{BlockSize: f.w.cfg.Trace.BlockTokens, Seed: f.w.prompts.hasher.Fingerprint(), Hashes: j.request.chain}},
	}
	s := g.picker.Submit(at(now), req, func(d picker.Decision, err error) {
		if err != nil {
			f.w.refuse(f.w.now, j)
			return
		}
		j.state = d
		f.w.send(f.w.now, j, f.pods[d.Endpoint.ID])
	})
	if j.pod < 0 && !j.over {
		j.state = s
	}
	g.wake(now)
}

func (f *fleet) first(now time.Duration, j *job) {
	g := f.gateways[j.gateway]
	g.picker.FirstToken(at(now), j.state.(picker.Decision))
	g.wake(now)
}

func (f *fleet) done(now time.Duration, j *job) {
	g := f.gateways[j.gateway]
	g.picker.Done(at(now), j.state.(picker.Decision), picker.Outcome{
		Status: 200, Connected: true, CachedTokens: j.cached, PromptTokens: j.prompt(), OutputTokens: j.output(),
	})
	g.wake(now)
}

func (f *fleet) gone(now time.Duration, j *job) {
	g := f.gateways[j.gateway]
	if s, ok := j.state.(*picker.Submitted); ok && j.pod < 0 {
		g.picker.Withdraw(at(now), s)
		return
	}
	g.hangUp(now, j, true, true)
}

func (f *fleet) changed(now time.Duration, p *pod) {
	events := p.engine.events()
	a := f.agents[p.index]
	if a == nil {
		return
	}
	a.hear(now, events)
	f.publish(now, a)
	for _, l := range a.liars {
		f.publish(now, l)
	}
}

// gateway is one picker.
type gateway struct {
	fleet  *fleet
	index  int
	picker *picker.Stepped
	woken  time.Duration // of the next step
	tells  time.Duration // when the other gateways are told next
}

// step gives the picker its turn.
func (g *gateway) step(now time.Duration) {
	next := g.picker.Step(at(now)).Sub(start)
	if next < g.woken {
		g.woken = next
		g.fleet.w.at(next, func(now time.Duration) {
			if g.woken == now {
				g.woken = never
				g.step(now)
			}
		})
	}
	g.tell(now)
}

// tell sends the other gateways what is due, and comes back when something will be.
func (g *gateway) tell(now time.Duration) {
	f := g.fleet
	packets, due := g.picker.Tell(at(now))
	for _, packet := range packets {
		for _, other := range f.gateways {
			if other != g {
				other.hear(now+f.w.cfg.StateDelay, packet)
			}
		}
	}
	if next := due.Sub(start); !due.IsZero() && next < g.tells {
		g.tells = next
		f.w.at(next, func(now time.Duration) {
			g.tells = never
			g.tell(now)
		})
	}
}

// wake is for whoever has told the picker something.
func (g *gateway) wake(now time.Duration) { g.step(now) }

// poll carries the view's questions to the agents and their answers back.
func (g *gateway) poll(now time.Duration) {
	w := g.fleet.w
	for _, out := range g.picker.Ask(at(now)) {
		for _, a := range g.fleet.agents {
			if a == nil || a.node != out.Node || w.lost() {
				continue
			}
			w.at(now+w.cfg.StateDelay, func(now time.Duration) {
				for _, packet := range a.answer(now, out.Packet) {
					g.hear(now+w.cfg.StateDelay, packet)
				}
			})
		}
	}
	w.at(now+pollEvery, g.poll)
}

// hear delivers a packet, unless it is lost.
func (g *gateway) hear(when time.Duration, packet []byte) {
	if g.fleet.w.lost() {
		return
	}
	g.fleet.w.at(when, func(now time.Duration) {
		_ = g.picker.Hear(at(now), packet) // the view counts what is wrong with it
		g.step(now)
	})
}

// hangUp tells the picker of a job that ends without an answer.
func (g *gateway) hangUp(now time.Duration, j *job, reached, left bool) {
	d, ok := j.state.(picker.Decision)
	if !ok {
		return
	}
	g.picker.Done(at(now), d, picker.Outcome{Err: errNoAnswer, Connected: reached, CachedTokens: -1, Cancelled: left})
	g.wake(now)
}

var errNoAnswer = errors.New("no answer")
