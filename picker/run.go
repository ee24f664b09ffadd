package picker

import (
	"context"
	"math/bits"
	"sync"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/picker/score"
)

// How often Run looks, network and gateway times all: they don't scale with the engines.
const (
	leastPause  = 2 * time.Millisecond   // between two looks at what waits, however many ticks come
	heldPause   = 25 * time.Millisecond  // at most, while requests wait: patience grows with age alone
	idlePause   = 50 * time.Millisecond  // at most: staleness must show
	repairPause = 20 * time.Millisecond  // between two questions to the view
	probePause  = 100 * time.Millisecond // between two looks for endpoints to be probed
)

// Run listens to the gossip, expires what is in flight and gives held requests their opportunities, until ctx ends. Then
// it binds every held request at once, and returns when all it started has ended: nil, or why gossip could not start.
func (p *Picker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var gossip error
	if p.mesh != nil {
		wg.Go(func() {
			defer cancel()
			gossip = p.mesh.Run(ctx)
		})
		wg.Go(func() { every(ctx, repairPause, p.repair) })
		wg.Go(func() { p.telling(ctx) })
	}
	if p.cfg.Probe != nil {
		wg.Go(func() { every(ctx, probePause, func(now time.Time) { p.probe(ctx, &wg, now) }) })
	}
	p.mu.Lock()
	p.running = true
	p.mu.Unlock()

	p.loop(ctx)

	p.Drain()
	p.mu.Lock()
	p.running = false
	p.mu.Unlock()
	wg.Wait()
	return gossip
}

func every(ctx context.Context, pause time.Duration, do func(now time.Time)) {
	t := time.NewTicker(pause)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			do(time.Now())
		}
	}
}

// loop gives held requests an opportunity at each tick, predicted end of a prefill and end of a hold.
func (p *Picker) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-p.wake:
			// Many ticks make one look.
			pause := time.NewTimer(leastPause)
			select {
			case <-ctx.Done():
				pause.Stop()
				return
			case <-pause.C:
			}
		}
		timer.Reset(p.look(time.Now()))
	}
}

// look takes over what has changed, gives held requests an opportunity, and returns when to look again at the latest.
func (p *Picker) look(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.refreshed) >= idlePause {
		p.refreshAll(now)
	}
	p.freshen(now)
	p.pump(now)
	p.hintHeld(now)
	return p.nextLook(now)
}

// changed marks the endpoint of a stream that has ticked. It is called by the view's writer.
func (p *Picker) changed(key wire.Key) {
	if t := p.table.Load(); t != nil {
		if i, ok := t.byKey[key]; ok {
			t.dirty[i/64].Or(1 << (i % 64))
		}
	}
	p.wakeUp()
}

func (p *Picker) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// freshen takes over what has changed since the last call. Caller holds p.mu.
func (p *Picker) freshen(now time.Time) {
	t := p.table.Load()
	if snap := p.view.Snapshot(); snap != t.snapshot {
		p.rebuild(now, snap)
		return
	}
	for w := range t.dirty {
		if t.dirty[w].Load() == 0 {
			continue
		}
		for ticked := t.dirty[w].Swap(0); ticked != 0; ticked &= ticked - 1 {
			p.refresh(now, t, 64*w+bits.TrailingZeros64(ticked))
		}
	}
}

func (p *Picker) refresh(now time.Time, t *table, i int) {
	e := t.endpoints[i]
	waiting, room := e.waiting, e.lane.facts.Free+e.lane.facts.Cached
	e.refresh(now, t.clock(now), &t.slots[i], p.fleet, &p.params, &p.cfg)
	e.lane.facts.MeanPrefill, e.lane.facts.MeanOutput = p.meanPrefill, p.meanOutput
	if e.waiting < waiting || e.lane.facts.Free+e.lane.facts.Cached > room {
		p.opened(now, e)
	}
	p.book(now, e)
	t.judge(i)
	// A new epoch means an empty cache: of the engine after a restart or a reset, or of a digest that is being sent anew.
	// Its digest may be unusable at first, for want of INFO; its marks are dropped when their place is known again.
	if e.epoch != e.marked && t.slots[i].group >= 0 {
		if e.marked != 0 {
			p.forgetMarks(t, i)
		}
		e.marked = e.epoch
	}
	if e.gap {
		p.gaps.Store(true)
	}
	p.arrived(now, t, i)
}

// refreshAll takes over everything, including what changes by time alone. Caller holds p.mu.
func (p *Picker) refreshAll(now time.Time) {
	p.refreshed = now
	t := p.table.Load()
	bare, gaps := false, false
	p.average(t)
	for w := range t.dirty {
		t.dirty[w].Store(0)
	}
	for i, e := range t.endpoints {
		p.refresh(now, t, i)
		bare = bare || !p.hasDigest(t, i)
		gaps = gaps || e.gap
	}
	p.gaps.Store(gaps)
	p.bare.Store(bare)
	p.heedVerdicts(t)
	p.marks.rotate(now, &p.cfg.Speculation)
	p.expireHints(now)
}

// average takes the means of what agents say.
func (p *Picker) average(t *table) {
	var sum score.Model
	n, tokens, sized := 0.0, 0, 0
	for i := range t.slots {
		if t.slots[i].live == nil {
			continue
		}
		l := t.slots[i].live.Facts()
		if !l.HasLoad {
			continue
		}
		if l.Load.BlocksTotal > 0 {
			tokens += int(l.Load.BlocksTotal) * t.slots[i].blockSize
			sized++
		}
		if !l.Load.PrefillFitted || l.Load.PrefillPerToken <= 0 {
			continue
		}
		m := modelOf(&l.Load)
		sum.Overhead += m.Overhead
		sum.PerToken += m.PerToken
		sum.Quadratic += m.Quadratic
		n++
	}
	p.fleet = fleetMean{prefill: p.cfg.Score.prefill(), tokens: tokens / max(1, sized)}
	if n > 0 {
		p.fleet.prefill, p.fleet.fitted = sum.Scaled(n), true
	}
}

// nextLook returns how long nothing can happen that Run is not told of. Caller holds p.mu.
func (p *Picker) nextLook(now time.Time) time.Duration {
	next := idlePause
	if p.queue.Len() == 0 {
		return next
	}
	next = heldPause
	earlier := func(t time.Time) {
		if !t.IsZero() {
			next = min(next, t.Sub(now))
		}
	}
	earlier(p.queue.Due())
	lead := duration(p.params.ReadyWithin)
	for _, e := range p.table.Load().endpoints {
		if end := e.ledger.NextEnd(); !end.IsZero() {
			earlier(end.Add(-lead))
		}
		if open := e.lane.open.Add(-lead); open.After(now) {
			earlier(open)
		}
	}
	return max(next, leastPause)
}

// probe asks the hosts whose backoff is over whether they answer.
func (p *Picker) probe(ctx context.Context, wg *sync.WaitGroup, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.hosts {
		if !h.due(now) {
			continue
		}
		h.probing = true
		target := h.ranks[0].public
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, p.cfg.Failure.ProbeTimeout)
			defer cancel()
			err := p.cfg.Probe(ctx, target)
			p.mu.Lock()
			defer p.mu.Unlock()
			h.probing = false
			p.probed(time.Now(), h, err)
		})
	}
}

// due reports whether the host is to be asked whether it answers again.
func (h *host) due(now time.Time) bool {
	return h.out && !h.probing && !now.Before(h.until) && len(h.ranks) > 0
}

// probed takes in whether a host has answered. Caller holds p.mu.
func (p *Picker) probed(now time.Time, h *host, err error) {
	if err != nil {
		h.failed(now, &p.cfg.Failure, &p.draws)
		p.trouble = true
		return
	}
	h.answered()
	p.log.Info("endpoint answers again", keyEndpoint, h.address)
	p.pump(now)
}
