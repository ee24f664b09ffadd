package sim

import (
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/sched"
)

// chunked is a model of vLLM's scheduler (V1, 0.22 to 0.32): steps of at most stepTokens, of which running requests take
// theirs first (a decode one, an unfinished prefill a chunk), then waiting ones in the order of arrival. Who finds no block
// makes the last running request give its own back and wait at the head of the queue. A step takes the time of its decode and
// of its chunks.
type chunked struct {
	clock   sched.Clock
	cache   *cache
	queue   []*job
	running []*job // in the order of admission
	step    []chunk
	due     time.Duration
	held    int // tokens of running requests
	spent   time.Duration
	lost    int // preemptions
}

// chunk is what one request computes in a step.
type chunk struct {
	job    *job
	tokens int
	loaded int // tokens from host memory before these
}

// stepTokens is max_num_batched_tokens of an API server on a large GPU (vLLM 0.32).
const stepTokens = 8192

func (e *chunked) submit(now time.Duration, j *job) {
	e.queue = append(e.queue, j)
	if len(e.step) == 0 {
		e.begin(now)
	}
}

// begin plans a step and sets when it ends.
func (e *chunked) begin(now time.Duration) {
	budget, lost := stepTokens, e.lost
	for i := 0; i < len(e.running) && budget > 0; i++ {
		j := e.running[i]
		n := min(j.table.Len()-j.done, budget)
		if !e.take(j, n) {
			break // it was the last one, and has been preempted itself
		}
		e.step = append(e.step, chunk{job: j, tokens: n})
		budget -= n
	}
	// After a preemption nobody is admitted in the same step. Blocks for the whole prompt must be there.
	for budget > 0 && e.lost == lost && len(e.queue) > 0 && len(e.running) < maxSeqs {
		j := e.queue[0]
		cached, loaded, ok := e.cache.admit(j, 0)
		if !ok {
			break
		}
		n := min(j.table.Len()-cached, budget)
		if !e.cache.fill(j.table, cached+n) {
			e.cache.pool.Release(j.table)
			break
		}
		e.queue = e.queue[1:]
		if !j.admitted {
			j.admitted, j.cached = true, cached
		}
		j.done = cached
		e.running = append(e.running, j)
		e.held += j.table.Len()
		e.step = append(e.step, chunk{j, n, loaded})
		budget -= n
	}
	e.due = now + e.took()
}

// take finds blocks for the next n tokens of j, by preemption if need be. It reports false if j itself had to go.
func (e *chunked) take(j *job, n int) bool {
	for !e.cache.fill(j.table, j.done+n) {
		last := e.running[len(e.running)-1]
		e.running = e.running[:len(e.running)-1]
		e.step = slices.DeleteFunc(e.step, func(c chunk) bool { return c.job == last })
		e.cache.pool.Release(last.table)
		e.held -= last.table.Len()
		e.queue = slices.Insert(e.queue, 0, last)
		e.lost++
		if last == j {
			return false
		}
	}
	return true
}

// took is the time of the planned step.
func (e *chunked) took() time.Duration {
	var took time.Duration
	decoding := false
	for _, c := range e.step {
		took += e.cache.load(c.loaded)
		if c.job.out > 0 && c.tokens == 1 {
			decoding = true
			continue
		}
		t := e.clock.Prefill(c.tokens, c.job.done)
		if c.job.done+c.tokens < c.job.table.Len() {
			t -= e.clock.Overhead // once a prefill, not once a chunk
		}
		took += t
		e.spent += t
	}
	if decoding {
		took += e.clock.Decode(e.held)
	}
	return took
}

func (e *chunked) next() time.Duration {
	if len(e.step) == 0 {
		return never
	}
	return e.due
}

func (e *chunked) advance(now time.Duration, told func(time.Duration, *job, bool)) {
	for len(e.step) > 0 && e.due <= now {
		at := e.due
		step := e.step
		e.step = nil
		for _, c := range step {
			j := c.job
			if j.over { // its client has left
				e.retire(j)
				continue
			}
			if j.done += c.tokens; j.done < j.table.Len() {
				continue
			}
			j.out++
			if j.out == 1 {
				j.first = at
				told(at, j, false)
			}
			if j.out >= j.output() {
				j.ended = at
				e.retire(j)
				told(at, j, true)
				continue
			}
			j.table.Append(uint32(j.index)<<12 | uint32(j.out)&0xfff) // nobody else's
			e.held++
		}
		e.begin(at)
	}
}

// retire takes a running job out.
func (e *chunked) retire(j *job) {
	e.running = slices.DeleteFunc(e.running, func(o *job) bool { return o == j })
	e.held -= j.table.Len()
	e.cache.pool.Release(j.table)
}

// leave takes a job out that waits; one that runs goes with its next step.
func (e *chunked) leave(_ time.Duration, j *job) {
	e.queue = slices.DeleteFunc(e.queue, func(o *job) bool { return o == j })
}

func (e *chunked) jobs() []*job { return slices.Concat(e.running, e.queue) }

func (e *chunked) load() load {
	return load{running: len(e.running), waiting: len(e.queue), used: e.cache.pool.Used(), blocks: e.cache.pool.Usable()}
}

func (e *chunked) backlog(now time.Duration) (rest time.Duration, waiting []*job) {
	if len(e.step) > 0 {
		rest = e.due - now
	}
	for _, j := range e.running {
		if done := j.done + e.planned(j); done < j.table.Len() {
			rest += e.clock.Prefill(j.table.Len()-done, done)
		}
	}
	return rest, e.queue
}

// planned is how many tokens of j the step under way computes.
func (e *chunked) planned(j *job) int {
	for _, c := range e.step {
		if c.job == j {
			return c.tokens
		}
	}
	return 0
}

func (e *chunked) restarted(c *cache) engine {
	return &chunked{clock: e.clock, cache: c, spent: e.spent, lost: e.lost}
}

func (e *chunked) events() []kvEvent { return e.cache.events() }

func (e *chunked) prefillTime() time.Duration { return e.spent }
