package sim

import (
	"math"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
)

// never is the time of an event that does not come by itself.
const never = time.Duration(math.MaxInt64)

// job is one request on its way.
type job struct {
	index   int
	request *request
	table   *pool.Table

	flow     string // that the gateway counts it in
	whole    bool   // answered in one piece
	seen     bool   // the gateway has seen the first token
	over     bool   // served, given up, or replaced by another try
	failures int    // of its client's tries, before this one
	rejected int    // of these, refused by a gateway
	moves    int    // from pods that failed, in this try
	avoid    uint64 // these pods, a bit each
	deadline time.Duration

	gateway  int
	pod      int  // -1: with none yet
	state    any  // of the policy
	cached   int  // tokens
	done     int  // tokens whose KV is computed
	out      int  // tokens generated
	admitted bool // before, by an engine that preempts
	failed   bool

	arrived, first, ended time.Duration
}

// prompt and output in tokens.
func (j *job) prompt() int { return j.request.Prompt }
func (j *job) output() int { return j.request.Output }

// load is what an engine's metrics say.
type load struct {
	running, waiting int
	used, blocks     int // KV blocks that requests hold, of all
}

// engine is a model of one pod. Time never goes back.
type engine interface {
	submit(now time.Duration, j *job)
	// leave: the client of a job is gone. told does not hear of the job any more.
	leave(now time.Duration, j *job)
	// jobs are those in the engine.
	jobs() []*job
	// restarted is the same engine anew, with an empty cache.
	restarted(c *cache) engine
	// next is when something happens by itself.
	next() time.Duration
	// advance lets time pass up to now; told hears of first tokens and ends in their order, and must not call the engine.
	advance(now time.Duration, told func(at time.Duration, j *job, end bool))
	load() load
	// backlog is what is before a new request: the rest of the prefills under way, and those that wait. Real engines don't
	// tell.
	backlog(now time.Duration) (rest time.Duration, waiting []*job)
	events() []kvEvent
	prefillTime() time.Duration // spent
}

// maxSeqs is vLLM's default max_num_seqs on one large GPU.
const maxSeqs = 256

// single runs one prefill at a time, first come first served, beside decodes that it does not slow down. A prefill starts when
// blocks for the prompt and the whole answer are free; the length of a decode is fixed when it begins. It is the model of the
// public reference figures.
type single struct {
	clock   sched.Clock
	cache   *cache
	queue   []*job
	busy    *job // in prefill
	due     time.Duration
	running []*job // by end
	held    int    // tokens of prompts and answers in the engine
	spent   time.Duration
}

func (e *single) submit(now time.Duration, j *job) {
	e.queue = append(e.queue, j)
	e.start(now)
}

func (e *single) start(now time.Duration) {
	if e.busy != nil || len(e.queue) == 0 || len(e.running) >= maxSeqs {
		return
	}
	j := e.queue[0]
	cached, loaded, ok := e.cache.admit(j, j.prompt()+j.output())
	if !ok && len(e.running) == 0 {
		// Larger than the pool: the engine would refuse it. Nothing else runs, so it is let through without a cache.
		cached, loaded, ok = 0, 0, true
	}
	if !ok {
		return
	}
	e.queue = e.queue[1:]
	j.cached = cached
	e.busy = j
	took := e.clock.Prefill(j.prompt()-cached, cached)
	e.due, e.spent = now+e.cache.load(loaded)+took, e.spent+took
	e.held += j.prompt() + j.output()
}

func (e *single) next() time.Duration {
	t := never
	if e.busy != nil {
		t = e.due
	}
	if len(e.running) > 0 {
		t = min(t, e.running[0].ended)
	}
	return t
}

func (e *single) advance(now time.Duration, told func(time.Duration, *job, bool)) {
	for {
		at := e.next()
		if at > now {
			return
		}
		if len(e.running) > 0 && e.running[0].ended == at {
			j := e.running[0]
			e.running = e.running[1:]
			e.held -= j.prompt() + j.output()
			e.cache.pool.Release(j.table)
			told(at, j, true)
		} else if e.busy.over {
			j := e.busy
			e.busy = nil
			e.held -= j.prompt() + j.output()
			e.cache.fill(j.table, j.prompt())
			e.cache.pool.Release(j.table)
		} else {
			j := e.busy
			e.busy = nil
			e.cache.fill(j.table, j.prompt())
			j.first = at
			j.ended = at + time.Duration(j.output())*e.clock.Decode(e.held)
			i := len(e.running)
			for i > 0 && e.running[i-1].ended > j.ended {
				i--
			}
			e.running = append(e.running, nil)
			copy(e.running[i+1:], e.running[i:])
			e.running[i] = j
			told(at, j, false)
		}
		e.start(at)
	}
}

func (e *single) load() load {
	l := load{running: len(e.running), waiting: len(e.queue), used: e.cache.pool.Used(), blocks: e.cache.pool.Usable()}
	if e.busy != nil {
		l.running++
	}
	return l
}

func (e *single) backlog(now time.Duration) (time.Duration, []*job) {
	if e.busy == nil {
		return 0, e.queue
	}
	return e.due - now, e.queue
}

func (e *single) leave(now time.Duration, j *job) {
	e.queue = slices.DeleteFunc(e.queue, func(o *job) bool { return o == j })
	e.start(now)
}

func (e *single) jobs() []*job {
	all := slices.Clone(e.running)
	if e.busy != nil {
		all = append(all, e.busy)
	}
	return append(all, e.queue...)
}

func (e *single) restarted(c *cache) engine { return &single{clock: e.clock, cache: c, spent: e.spent} }

func (e *single) events() []kvEvent { return e.cache.events() }

func (e *single) prefillTime() time.Duration { return e.spent }
