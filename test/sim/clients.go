package sim

import (
	"math"
	"time"

	"github.com/grapevine-llm/grapevine/test/trace"
)

// The pauses of a client that tries again: openai-python 1.x, _base_client.py (INITIAL_RETRY_DELAY, MAX_RETRY_DELAY and the
// jitter of _calculate_retry_timeout). A Retry-After of the gateway, which they would heed, is within the same seconds.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 8 * time.Second
	pauseJitter  = 0.25
)

// pause is how long a client waits after its nth failed try, of 1 and more, without jitter.
func pause(n int) time.Duration { return min(longestPause, firstPause<<min(n-1, 10)) }

// patience is how long a client is ready to wait in all.
func (c *Config) patience() time.Duration {
	d := c.Timeout
	for n := 1; n <= c.Retries; n++ {
		d += pause(n) + c.Timeout
	}
	return d
}

// arrival is the first try of job i.
func (w *world) arrival(i int) func(time.Duration) {
	return func(now time.Duration) {
		j := w.jobs[i]
		j.arrived, j.whole = now, w.cfg.draw("non-streamed", i, 0) < w.cfg.NonStreamed
		w.try(now, j)
	}
}

// try hands a job to a gateway, the next one each time.
func (w *world) try(now time.Duration, j *job) {
	j.gateway = (j.index + j.failures) % w.cfg.Gateways
	if w.cfg.Engine == Chunked && j.prompt()+j.output() > w.cfg.PodTokens {
		w.fail(now, j) // as vLLM does: it would wait for ever
		return
	}
	j.deadline = now + w.cfg.Timeout
	w.watch(j)
	w.policy.arrive(now, j)
}

// watch lets the client of a job leave when its time is over.
func (w *world) watch(j *job) {
	w.at(j.deadline, func(now time.Duration) { w.expire(now, j) })
}

// expire is a client that leaves without a first token.
func (w *world) expire(now time.Duration, j *job) {
	if j.over || j.first > 0 {
		return
	}
	w.policy.gone(now, j)
	if j.pod >= 0 {
		p := w.pods[j.pod]
		p.engine.leave(now, j)
		w.policy.changed(now, p)
		w.wake(p)
	}
	w.again(now, j, j.arrived+w.cfg.patience())
}

// refuse is a gateway that turns a job down.
func (w *world) refuse(now time.Duration, j *job) {
	j.rejected++
	w.again(now, j, now)
}

// again lets the client of a failed try make another one, or give the job up, which then counts as ended at the given time.
func (w *world) again(now time.Duration, j *job, ended time.Duration) {
	if j.failures >= w.cfg.Retries {
		w.fail(now, j)
		j.ended = ended
		return
	}
	next := w.replace(j)
	next.failures, next.moves, next.avoid = j.failures+1, 0, 0
	wait := float64(pause(next.failures)) * (1 - pauseJitter*w.cfg.draw("retry", j.index, next.failures))
	w.at(now+time.Duration(wait), func(now time.Duration) { w.try(now, next) })
}

// replace ends a job without a result, and returns the one in its place: engines may still know the old one.
func (w *world) replace(j *job) *job {
	j.over = true
	next := &job{
		index: j.index, request: j.request, pod: -1, flow: j.flow, whole: j.whole, gateway: j.gateway,
		arrived: j.arrived, deadline: j.deadline, failures: j.failures, moves: j.moves, rejected: j.rejected, avoid: j.avoid,
	}
	w.jobs[j.index] = next
	return next
}

// fail gives a job up.
func (w *world) fail(now time.Duration, j *job) {
	j.failed, j.ended = true, now
	w.end(now, j)
}

// end counts a job off and lets those come that waited for it.
func (w *world) end(now time.Duration, j *job) {
	j.over = true
	w.open--
	for _, i := range w.after[j.index] {
		w.at(now+w.jobs[i].request.Think, w.arrival(i))
	}
}

// The noisy sender's requests: so many for each of the trace's, in tokens.
const (
	noisyFlow    = "noisy"
	noisyTimes   = 10
	noisyPrompts = 256
	noisyAnswers = 32
)

// noise are the requests that NoisyFlow adds. Their times are the run's, not the trace's.
func (c *Config) noise() []trace.Request {
	if !c.NoisyFlow {
		return nil
	}
	n := noisyTimes * len(c.Trace.Requests)
	out := make([]trace.Request, n)
	for i := range out {
		at := c.draw("noise", i, 0) * c.span().Seconds()
		out[i] = trace.Request{At: time.Duration(math.Round(1e9 * at)), Previous: -1, Prompt: noisyPrompts, Output: noisyAnswers}
	}
	return out
}

// span is the time over which the trace's requests come, as far as they wait for nobody.
func (c *Config) span() time.Duration {
	if c.Burst {
		return 0
	}
	return time.Duration(float64(c.Trace.Requests[len(c.Trace.Requests)-1].At) / c.Rate)
}
