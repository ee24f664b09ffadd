package engine

import (
	"context"
	"sync"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

// A rank sleeps at least this long (real time) before it looks at its clock again
// for the end of a prefill, or for tokens of streams, so that many events cost
// one wake-up. Emulated times are not affected: they are those at which events
// were due.
const (
	prefillSleep = time.Millisecond
	decodeSleep  = 5 * time.Millisecond
)

// rank is one engine core (data-parallel rank): a scheduler, its clock, and the
// publisher of its events. All methods may be called concurrently.
type rank struct {
	index   int
	speedup float64
	started time.Time
	pub     *zmqpub.Publisher // nil: no events
	observe func(*job, sched.Progress)
	kick    chan struct{} // run looks at the clock again

	mu    sync.Mutex // guards sched and jobs
	sched *sched.Scheduler
	jobs  map[*sched.Request]*job
}

func newRank(e *Engine, index int) *rank {
	return &rank{
		index:   index,
		speedup: e.cfg.Speedup,
		started: e.started,
		observe: e.observe,
		kick:    make(chan struct{}, 1),
		sched: sched.New(sched.Config{
			Clock:          e.cfg.Clock,
			Pool:           pool.Config{Blocks: e.cfg.KVTokens / e.cfg.BlockSize, BlockSize: e.cfg.BlockSize, UncachedLast: e.cfg.Events.Form.ArrayEvents},
			MaxSeqs:        e.cfg.MaxNumSeqs,
			ChunkTokens:    e.cfg.ChunkTokens,
			StreamInterval: e.cfg.StreamInterval,
		}),
		jobs: map[*sched.Request]*job{},
	}
}

// job is one request in a scheduler. The mailbox holds what the HTTP side has not
// taken yet; a slow client never holds up the scheduler.
type job struct {
	rank    *rank
	req     *sched.Request
	id      string
	prompt  []uint32
	adapter *pool.Adapter
	ready   chan struct{} // capacity 1, shared by the jobs of one HTTP request

	arrived   time.Time
	firstWall time.Duration // arrival to first token, real time; valid with the first progress

	mu  sync.Mutex // guards box
	box []sched.Progress
}

func (j *job) deliver(p sched.Progress) {
	j.mu.Lock()
	j.box = append(j.box, p)
	j.mu.Unlock()
	select {
	case j.ready <- struct{}{}:
	default:
	}
}

// take empties the mailbox.
func (j *job) take() []sched.Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	box := j.box
	j.box = nil
	return box
}

// now is the emulated time; the caller holds mu, so that it never runs back
// between two calls on the scheduler.
func (r *rank) now() time.Duration {
	return time.Duration(float64(time.Since(r.started)) * r.speedup)
}

// advance carries out what is due and returns the time it did so for; the caller
// holds mu.
func (r *rank) advance() time.Duration {
	now := r.now()
	out, events := r.sched.Advance(now)
	if r.pub != nil {
		r.pub.Publish(time.Now(), events)
	}
	r.hand(out)
	return now
}

func (r *rank) hand(out []sched.Progress) {
	for _, p := range out {
		j := r.jobs[p.Request]
		if j == nil {
			continue
		}
		if p.At == p.Request.First {
			j.firstWall = time.Since(j.arrived)
		}
		if p.Reason != "" {
			delete(r.jobs, p.Request)
		}
		r.observe(j, p)
		j.deliver(p)
	}
}

// run is the rank's clock; it returns when ctx ends.
func (r *rank) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.kick:
		case <-timer.C:
		}
		r.mu.Lock()
		now := r.advance()
		prefill, decode := r.sched.Next()
		r.mu.Unlock()
		if prefill == sched.Never && decode == sched.Never {
			timer.Stop()
			continue
		}
		timer.Reset(min(r.sleepUntil(prefill, now, prefillSleep), r.sleepUntil(decode, now, decodeSleep)))
	}
}

// sleepUntil is the real time to sleep for an event, rounded up.
func (r *rank) sleepUntil(due, now, least time.Duration) time.Duration {
	if due == sched.Never {
		return sched.Never
	}
	return max(least, time.Duration(float64(due-now)/r.speedup)+1)
}

// do runs f on the scheduler at the current emulated time.
func (r *rank) do(f func(now time.Duration)) {
	r.mu.Lock()
	f(r.advance())
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *rank) submit(j *job) {
	j.rank = r
	r.do(func(now time.Duration) {
		j.arrived = time.Now()
		r.jobs[j.req] = j
		r.sched.Submit(now, j.req)
	})
}

// abort ends a job whose client has gone; an ended one is left alone.
func (r *rank) abort(j *job) {
	r.do(func(now time.Duration) {
		if r.jobs[j.req] == nil {
			return
		}
		delete(r.jobs, j.req)
		r.sched.Abort(now, j.req)
	})
}

func (r *rank) reset(preempt bool) (ok bool) {
	r.do(func(now time.Duration) { ok = r.sched.Reset(now, preempt) })
	return ok
}

func (r *rank) sleep() {
	r.do(func(now time.Duration) { r.hand(r.sched.Sleep(now)) })
}

func (r *rank) wake() { r.do(r.sched.Wake) }

func (r *rank) stats() sched.Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advance()
	return r.sched.Stats()
}

// adapterNames returns the names of the adapters that running and waiting
// requests use.
func (r *rank) adapterNames() (running, waiting map[string]bool) {
	running, waiting = map[string]bool{}, map[string]bool{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.jobs {
		switch {
		case j.adapter == nil:
		case j.req.Admitted():
			running[j.adapter.Name] = true
		default:
			waiting[j.adapter.Name] = true
		}
	}
	return running, waiting
}

// pending weighs the work of a rank as vLLM's own balancer does: four for each
// waiting request, one for each running.
func (r *rank) pending() int {
	st := r.stats()
	return 4*st.Waiting + st.Running
}
