package sim

import (
	"container/heap"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// event is something that will happen.
type event struct {
	at  time.Duration
	seq uint64 // order among equals
	do  func(now time.Duration)
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// pod is an engine and what follows it.
type pod struct {
	index  int
	engine engine
	clock  sched.Clock
	wrong  float64       // by which what is believed of its prefill is wrong
	woken  time.Duration // of the last event set for it
	jobs   int           // of the trace that went there
	down   bool
	life   uint64 // counts its deaths
}

// believed is the clock that others think a pod has.
func (p *pod) believed() sched.Clock { return slower(p.clock, p.wrong) }

// world is one run.
type world struct {
	cfg     *Config
	prompts *prompts
	jobs    []*job  // the trace's, then the noisy sender's
	after   [][]int // causal: which jobs wait for the end of this one
	pods    []*pod
	faults  []fault
	policy  policy
	loss    *rand.Rand
	queue   events
	seq     uint64
	now     time.Duration
	open    int // jobs not over
}

// policy decides where jobs go. Its methods are called in order of time.
type policy interface {
	// arrive is a job at one of the gateways; the policy calls world.send when it has chosen.
	arrive(now time.Duration, j *job)
	// first, done, gone and broken: a job that is streamed has its first token, has ended, its client has left before the
	// first token, or the connection to its pod broke (reached) or could not be made.
	first(now time.Duration, j *job)
	done(now time.Duration, j *job)
	gone(now time.Duration, j *job)
	broken(now time.Duration, j *job, reached bool)
	// changed: an engine has stepped, or got or lost a job.
	changed(now time.Duration, p *pod)
	// died and back: a pod is gone with its cache; it is there again, empty.
	died(now time.Duration, p *pod)
	back(now time.Duration, p *pod)
}

// Run simulates. The same configuration gives the same result. It ends early with ctx.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	w, err := newWorld(cfg)
	if err != nil {
		return nil, err
	}
	if err := w.play(ctx); err != nil {
		return nil, err
	}
	w.jobs = w.jobs[:len(w.cfg.Trace.Requests)]
	w.cfg.Timeout = w.cfg.patience() // what those count with that nobody served
	return w.result(), nil
}

// newWorld is a run before its first event.
func newWorld(cfg Config) (*world, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Policy == exact {
		cfg.Gateways, cfg.StateDelay, cfg.Loss = 1, 0, 0
		cfg.Faults = slices.DeleteFunc(slices.Clone(cfg.Faults), func(s string) bool { f, _ := parseFault(s); return f.kind != podFailure })
	}
	w := &world{
		cfg: &cfg, prompts: newPrompts(cfg.Trace.BlockTokens, newHasher()), loss: rand.New(rand.NewPCG(cfg.Seed, 0x6c6f7373)),
	}
	noise := cfg.noise()
	requests := w.prompts.requests(&trace.Trace{BlockTokens: cfg.Trace.BlockTokens, Requests: append(slices.Clip(cfg.Trace.Requests), noise...)})
	w.jobs, w.after, w.open = make([]*job, len(requests)), make([][]int, len(requests)), len(requests)
	for i, r := range requests {
		w.jobs[i] = &job{index: i, request: r, pod: -1}
		if i >= len(cfg.Trace.Requests) {
			w.jobs[i].flow = noisyFlow
		}
	}
	cache := w.newCache(cfg.Pods)
	for i := range cfg.Pods {
		if cfg.Policy != sharedCache {
			cache = w.newCache(1)
		}
		p := &pod{index: i, woken: never, clock: cfg.clock(i), wrong: cfg.wrong(i)}
		p.engine = w.newEngine(p, cache)
		w.pods = append(w.pods, p)
	}
	w.plan()
	var err error
	if w.policy, err = newPolicy(w); err != nil {
		return nil, err
	}
	for i, r := range requests {
		switch {
		case cfg.Burst:
			w.at(0, w.arrival(i))
		case i >= len(cfg.Trace.Requests):
			w.at(r.At, w.arrival(i))
		case cfg.Arrivals == Causal && r.Previous >= 0:
			w.after[r.Previous] = append(w.after[r.Previous], i)
		default:
			w.at(time.Duration(float64(r.At)/cfg.Rate), w.arrival(i))
		}
	}
	return w, nil
}

// play runs until all jobs are over.
func (w *world) play(ctx context.Context) error {
	for n := 0; w.open > 0 && len(w.queue) > 0; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do(e.at)
	}
	return nil
}

// lost draws whether a packet comes.
func (w *world) lost() bool { return w.cfg.Loss > 0 && w.loss.Float64() < w.cfg.Loss }

// wrong is by how much what is believed of a pod's prefill is wrong: as often too long as too short.
func (c *Config) wrong(pod int) float64 {
	if c.WrongEstimates == 0 {
		return 1
	}
	return math.Pow(1+c.WrongEstimates, 2*c.draw("wrong", pod, 0)-1)
}

// newEngine is the engine of a pod that starts.
func (w *world) newEngine(p *pod, c *cache) engine {
	if w.cfg.Engine == Chunked {
		return &chunked{clock: p.clock, cache: c}
	}
	return &single{clock: p.clock, cache: c}
}

// newCache makes the KV cache of a number of pods.
func (w *world) newCache(pods int) *cache {
	b := w.cfg.Trace.BlockTokens
	c := &cache{pool: pool.New(pool.Config{Blocks: pods*w.cfg.PodTokens/b + 1, BlockSize: b}), blockTokens: b}
	if w.cfg.HostTokens > 0 {
		c.host, c.rate = newHost(pods*w.cfg.HostTokens/b), w.cfg.HostRate
	}
	return c
}

// at puts an event into the queue.
func (w *world) at(t time.Duration, do func(now time.Duration)) {
	w.seq++
	heap.Push(&w.queue, event{max(t, w.now), w.seq, do})
}

// send gives a job to a pod.
func (w *world) send(now time.Duration, j *job, pod int) {
	p := w.pods[pod]
	j.pod = pod
	if p.down {
		w.at(now+refusedAfter, func(now time.Duration) { w.lose(now, j, false) })
		return
	}
	j.table = w.prompts.table(j.request)
	if j.index < len(w.cfg.Trace.Requests) {
		p.jobs++
	}
	p.engine.submit(now, j)
	w.policy.changed(now, p)
	w.wake(p)
}

// wake sets the event of a pod's next step.
func (w *world) wake(p *pod) {
	next := p.engine.next()
	if next == never || next == p.woken {
		return
	}
	p.woken = next
	w.at(next, func(now time.Duration) {
		if p.woken == now {
			p.woken = never
		}
		w.step(now, p)
	})
}

// step lets a pod's time pass.
func (w *world) step(now time.Duration, p *pod) {
	type told struct {
		job *job
		end bool
	}
	var news []told
	p.engine.advance(now, func(_ time.Duration, j *job, end bool) { news = append(news, told{j, end}) })
	w.policy.changed(now, p)
	for _, n := range news {
		switch {
		case n.end:
			w.policy.done(now, n.job)
			w.end(now, n.job)
		case !n.job.whole:
			n.job.seen = true
			w.policy.first(now, n.job)
		}
	}
	w.wake(p)
}

// Saturation is how many requests a second the fleet of a configuration carries under round robin: all come at once, and their
// number is divided by the mean time at which the pods are done. Loads are shares of it.
func Saturation(ctx context.Context, cfg Config) (float64, error) {
	cfg.Policy, cfg.Burst, cfg.Timeout, cfg.Gateways = roundRobinName, true, longest, 1
	cfg.Retries, cfg.Faults, cfg.NoisyFlow = 0, nil, false
	r, err := Run(ctx, cfg)
	if err != nil {
		return 0, err
	}
	return float64(r.Requests) / r.MeanCompletion, nil
}

// longest is a client's time-out where nobody may give up.
const longest = 1000 * time.Hour

// Load sets the rate at which a share of the saturation arrives, taken over the whole trace.
func (c *Config) Load(share, saturation float64) {
	span := c.Trace.Requests[len(c.Trace.Requests)-1].At
	if span <= 0 {
		return
	}
	c.Rate = share * saturation * span.Seconds() / float64(len(c.Trace.Requests))
}
