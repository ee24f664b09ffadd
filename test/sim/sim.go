package sim

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// Engine names a model of a pod.
type Engine string

// The engine models.
const (
	Single  Engine = "single"  // one prefill at a time
	Chunked Engine = "chunked" // prefill in chunks beside decodes
)

// Arrivals say when a call of a session comes.
type Arrivals string

// The ways to arrive.
const (
	Open   Arrivals = "open"   // when the trace says, whatever became of the call before
	Causal Arrivals = "causal" // a think time after the end of the session's call before
)

// Config of one run.
type Config struct {
	Trace    *trace.Trace
	Policy   string // one of Policies
	Pods     int
	Gateways int
	Engine   Engine
	Arrivals Arrivals
	// Rate multiplies the trace's arrival rate; think times stay. Burst lets all requests come at once instead.
	Rate  float64
	Burst bool
	// PodTokens is the size of a pod's KV cache.
	PodTokens int
	// StateDelay is how old what a gateway knows of a pod is when it comes.
	StateDelay time.Duration
	// Timeout is how long a client waits for the first token.
	Timeout time.Duration
	Seed    uint64
}

// Default is a fleet of eight pods, Llama-3.1-70B in FP8 on one H200 each.
func Default() Config {
	return Config{
		Pods: 8, Gateways: 1, Engine: Single, Arrivals: Open, Rate: 1, PodTokens: 372 * 512,
		StateDelay: 50 * time.Millisecond, Timeout: 10 * time.Minute,
	}
}

// Validate joins all faults.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Trace != nil && len(c.Trace.Requests) > 0, "no trace")
	check(slices.Contains(Policies(), c.Policy), "policy %q: give one of %s", c.Policy, strings.Join(Policies(), ", "))
	check(c.Pods >= 1 && c.Pods <= maxPods, "pods %d: give 1 to %d", c.Pods, maxPods)
	check(c.Gateways >= 1, "gateways %d: give 1 or more", c.Gateways)
	check(c.Engine == Single || c.Engine == Chunked, "engine %q: give %s or %s", c.Engine, Single, Chunked)
	check(c.Arrivals == Open || c.Arrivals == Causal, "arrivals %q: give %s or %s", c.Arrivals, Open, Causal)
	check(c.Policy != sharedCache || c.Engine != Chunked, "policy %s: it is a bound for the %s engine only", sharedCache, Single)
	check(!(c.Rate > 1e9) && c.PodTokens <= maxTokens, "rate %g, %d tokens of KV cache a pod: give less", c.Rate, c.PodTokens)
	check(c.Rate > 0, "rate %g: give a number above 0", c.Rate)
	check(c.StateDelay >= 0 && c.Timeout > 0, "state delay %v, timeout %v: give 0 or more, and more than 0", c.StateDelay, c.Timeout)
	if c.Trace != nil {
		check(c.Trace.BlockTokens >= 1 && c.Trace.BlockTokens <= trace.MaxBlockTokens, "blocks of %d tokens: give 1 to %d", c.Trace.BlockTokens, trace.MaxBlockTokens)
		check(c.PodTokens/2 >= c.Trace.BlockTokens, "%d tokens of KV cache a pod: give at least two blocks", c.PodTokens)
	}
	return errors.Join(errs...)
}

// maxTokens bounds a pod's cache.
const maxTokens = 1 << 30

// maxPods is what the peers' index counts in one word.
const maxPods = 64

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
	woken  time.Duration // of the last event set for it
	jobs   int           // that went there
}

// world is one run.
type world struct {
	cfg     *Config
	clock   sched.Clock
	prompts *prompts
	jobs    []*job
	after   [][]int // causal: which jobs wait for the end of this one
	pods    []*pod
	policy  policy
	queue   events
	seq     uint64
	now     time.Duration
	open    int // jobs not over
}

// policy decides where jobs go. Its methods are called in order of time.
type policy interface {
	// arrive is a job at one of the gateways; the policy calls world.send when it has chosen.
	arrive(now time.Duration, j *job)
	// first, end and gone: a job has its first token, has ended, or its client has left before the first token.
	first(now time.Duration, j *job)
	end(now time.Duration, j *job)
	gone(now time.Duration, j *job)
	// changed: an engine has stepped, or got a job.
	changed(now time.Duration, p *pod)
}

// Run simulates. The same configuration gives the same result. It ends early with ctx.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w := &world{
		cfg: &cfg, clock: sched.H200(), prompts: newPrompts(cfg.Trace.BlockTokens, newHasher()),
	}
	requests := w.prompts.requests(cfg.Trace)
	w.jobs, w.after, w.open = make([]*job, len(requests)), make([][]int, len(requests)), len(requests)
	for i, r := range requests {
		w.jobs[i] = &job{index: i, request: r, pod: -1}
	}
	cache := w.newPool(cfg.Pods)
	for i := range cfg.Pods {
		if cfg.Policy != sharedCache {
			cache = w.newPool(1)
		}
		p := &pod{index: i, woken: never, engine: &single{clock: w.clock, pool: cache}}
		if cfg.Engine == Chunked {
			p.engine = &chunked{clock: w.clock, pool: cache}
		}
		w.pods = append(w.pods, p)
	}
	var err error
	if w.policy, err = newPolicy(w); err != nil {
		return nil, err
	}
	for i, r := range requests {
		switch {
		case cfg.Burst:
			w.at(0, w.arrival(i))
		case cfg.Arrivals == Causal && r.Previous >= 0:
			w.after[r.Previous] = append(w.after[r.Previous], i)
		default:
			w.at(time.Duration(float64(r.At)/cfg.Rate), w.arrival(i))
		}
	}
	for n := 0; w.open > 0 && len(w.queue) > 0; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		e.do(e.at)
	}
	return w.result(), nil
}

// newPool makes the KV cache of a number of pods.
func (w *world) newPool(pods int) *pool.Pool {
	b := w.cfg.Trace.BlockTokens
	return pool.New(pool.Config{Blocks: pods*w.cfg.PodTokens/b + 1, BlockSize: b})
}

// at puts an event into the queue.
func (w *world) at(t time.Duration, do func(now time.Duration)) {
	w.seq++
	heap.Push(&w.queue, event{max(t, w.now), w.seq, do})
}

func (w *world) arrival(i int) func(time.Duration) {
	return func(now time.Duration) {
		j := w.jobs[i]
		j.arrived, j.gateway = now, i%w.cfg.Gateways
		if w.cfg.Engine == Chunked && j.prompt()+j.output() > w.cfg.PodTokens {
			w.refuse(now, j) // as vLLM does: it would wait for ever
			return
		}
		w.at(now+w.cfg.Timeout, func(now time.Duration) { w.expire(now, j) })
		w.policy.arrive(now, j)
	}
}

// send gives a job to a pod.
func (w *world) send(now time.Duration, j *job, pod int) {
	p := w.pods[pod]
	j.pod, j.table = pod, w.prompts.table(j.request)
	p.jobs++
	p.engine.submit(now, j)
	w.policy.changed(now, p)
	w.wake(p)
}

// refuse ends a job that no pod gets.
func (w *world) refuse(now time.Duration, j *job) {
	j.failed, j.ended = true, now
	w.over(now, j)
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
		if !n.end {
			w.policy.first(now, n.job)
			continue
		}
		w.policy.end(now, n.job)
		w.over(now, n.job)
	}
	w.wake(p)
}

// expire is a client that gives up. What an engine has begun it finishes.
func (w *world) expire(now time.Duration, j *job) {
	if j.failed || j.first > 0 || j.pod >= 0 {
		return
	}
	w.policy.gone(now, j)
	w.refuse(now, j)
}

// over counts a job off and lets those come that waited for it.
func (w *world) over(now time.Duration, j *job) {
	w.open--
	for _, i := range w.after[j.index] {
		w.at(now+w.jobs[i].request.Think, w.arrival(i))
	}
}

// Saturation is how many requests a second the fleet of a configuration carries under round robin: all come at once, and their
// number is divided by the mean time at which the pods are done. Loads are shares of it.
func Saturation(ctx context.Context, cfg Config) (float64, error) {
	cfg.Policy, cfg.Burst, cfg.Timeout, cfg.Gateways = roundRobinName, true, longest, 1
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
