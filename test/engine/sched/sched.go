// Package sched is the scheduler of the emulated engine: it admits requests into
// the block pool, lets time pass for their prefill and decode, and hands out
// tokens and KV events when they are due.
//
// What it keeps of a real engine, and what it leaves out:
//
//   - First come, first served; the head of the queue waits, and everybody behind
//     it, until blocks for its prompt and its whole output are free. So a running
//     request never runs out of blocks, and there is no preemption but by Reset
//     (vLLM admits with less and preempts).
//   - One prefill at a time, in chunks; a chunk's blocks are stored when it ends.
//     A hit is looked up when the prefill starts. A chunk under way can't be
//     stopped: an aborted prefill still holds the engine until its chunk is over.
//   - Running requests decode side by side, StreamInterval tokens an event (the
//     first token on its own, as vLLM's stream interval has it). Prefill does not
//     slow decode. A block of generated tokens is stored when it is full; the last
//     token's KV is never computed.
//
// The package is a core: time is an argument, in emulated time since the
// engine's start, and nothing happens between calls. Each event takes effect at
// the time it was due, not at the time Advance was called, so a late caller
// does not slow the emulated clock.
package sched

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

// Config of a Scheduler. All fields are required.
type Config struct {
	Clock          Clock
	Pool           pool.Config
	MaxSeqs        int // requests running at once
	ChunkTokens    int // prompt tokens in one step
	StreamInterval int // tokens in one decode event
}

// Reason tells why a request ended; the text is vLLM's finish_reason.
type Reason string

// The reasons. Length and Stop are the caller's to choose, see Request.End.
const (
	Length Reason = "length"
	Stop   Reason = "stop"
	Abort  Reason = "abort"
)

// Request is one prompt to complete. The caller fills the first group and then
// leaves it to the scheduler, which fills the second.
type Request struct {
	Table       *pool.Table
	Output      []uint32 // what the model is going to say; at least one token
	End         Reason
	NoCacheRead bool // prompt_logprobs: nothing is read from the cache

	// Valid from the first Progress on; emulated time.
	Prompt  int // tokens
	Cached  int // of these, found in the cache at first admission
	Arrived time.Duration
	Started time.Duration // prefill began
	First   time.Duration // first token

	seq       uint64
	state     state
	admitted  bool
	generated int
	cached    int           // at this admission
	begun     time.Duration // this prefill
	chunked   int           // new tokens whose chunk is over
	due       time.Duration // next event
	last      time.Duration // latest decode event
	index     int           // in the heap
}

// Admitted reports whether r has left the queue. Only for the scheduler's owner.
func (r *Request) Admitted() bool { return r.admitted }

type state uint8

const (
	waiting state = iota
	prefilling
	running
	ended
)

// Progress is what one request got at one time.
type Progress struct {
	Request *Request
	At      time.Duration // emulated
	Tokens  []uint32      // new output
	Step    time.Duration // emulated time for each of Tokens; 0 for the first token
	Reason  Reason        // "" while it goes on
}

// Stats are counters since the start and gauges of now. Times are emulated.
type Stats struct {
	Admitted        int
	PromptTokens    int // of the admitted
	CachedTokens    int
	ColdPrefills    int // under a fifth of the prompt was cached
	GeneratedTokens int
	Preemptions     int
	PrefillTime     time.Duration // spent
	FullPrefillTime time.Duration // what the same prompts cost without a cache
	Running         int           // the one in prefill included
	Waiting         int
	BlocksUsed      int // held by running requests
	BlocksUsable    int
	BlocksResident  int // with reusable content, held or not
	Asleep          bool
}

// Scheduler is one engine core. Not safe for concurrent use.
type Scheduler struct {
	cfg      Config
	pool     *pool.Pool
	queue    []*Request
	prefill  *Request // nil: none
	running  decoding
	resident int // tokens in the tables of running
	seq      uint64
	stats    Stats
}

// New makes an idle scheduler with an empty cache.
func New(cfg Config) *Scheduler { return &Scheduler{cfg: cfg, pool: pool.New(cfg.Pool)} }

// Usable is the number of tokens that fit the pool: the longest prompt and output
// that can ever be admitted.
func (s *Scheduler) Usable() int { return s.pool.Usable() * s.cfg.Pool.BlockSize }

// Submit queues r. Call Advance first.
func (s *Scheduler) Submit(now time.Duration, r *Request) {
	s.seq++
	r.seq, r.state, r.Arrived, r.Prompt = s.seq, waiting, now, r.Table.Len()
	s.queue = append(s.queue, r)
	s.start(now)
}

// Abort ends r without another Progress. Call Advance first.
func (s *Scheduler) Abort(now time.Duration, r *Request) {
	switch r.state {
	case waiting:
		s.queue = slices.DeleteFunc(s.queue, func(x *Request) bool { return x == r })
	case running:
		heap.Remove(&s.running, r.index)
		s.resident -= r.Table.Len()
		s.pool.Release(r.Table)
	}
	r.state = ended // a prefill goes on to the end of its chunk
	s.start(now)
}

// Never is the time of an event that does not come without a call.
const Never = time.Duration(math.MaxInt64)

// Next is when the chunk in prefill ends and when the next tokens of a decoding
// request are due. The caller may be late for the second, to carry out several at
// once: only their delivery is late then.
func (s *Scheduler) Next() (prefill, decode time.Duration) {
	prefill, decode = Never, Never
	if s.prefill != nil {
		prefill = s.prefill.due
	}
	if len(s.running) > 0 {
		decode = s.running[0].due
	}
	return prefill, decode
}

// Advance carries out what is due by now, in order of time. The KV events are
// one batch, nil if there was no step.
func (s *Scheduler) Advance(now time.Duration) (out []Progress, events []pool.Event) {
	stepped := false
	for {
		prefill, decode := s.Next()
		if min(prefill, decode) > now {
			break
		}
		stepped = true
		if prefill <= decode {
			out = s.endChunk(prefill, out)
		} else {
			out = s.decode(decode, out)
		}
	}
	if stepped {
		events = s.pool.TakeEvents()
	}
	return out, events
}

// start begins the prefill of the head of the queue if the engine is free and
// its blocks fit.
func (s *Scheduler) start(now time.Duration) {
	if s.prefill != nil || len(s.queue) == 0 || len(s.running) >= s.cfg.MaxSeqs || s.stats.Asleep {
		return
	}
	r := s.queue[0]
	cached, ok := s.pool.Admit(r.Table, r.Prompt+len(r.Output), r.NoCacheRead)
	if !ok {
		return
	}
	s.queue[0] = nil
	s.queue = s.queue[1:]
	if !r.admitted {
		r.admitted, r.Cached, r.Started = true, cached, now
		s.stats.Admitted++
		s.stats.PromptTokens += r.Prompt
		s.stats.CachedTokens += cached
		s.stats.FullPrefillTime += s.cfg.Clock.Prefill(r.Prompt, 0)
		if 5*cached < r.Prompt {
			s.stats.ColdPrefills++
		}
	}
	r.state, r.cached, r.begun, r.chunked = prefilling, cached, now, 0
	s.prefill = r
	s.nextChunk(r)
}

func (s *Scheduler) nextChunk(r *Request) {
	n := min(r.chunked+s.cfg.ChunkTokens, r.Table.Len()-r.cached)
	r.due = r.begun + s.cfg.Clock.Prefill(n, r.cached)
}

func (s *Scheduler) endChunk(now time.Duration, out []Progress) []Progress {
	r := s.prefill
	total := r.Table.Len() - r.cached
	r.chunked = min(r.chunked+s.cfg.ChunkTokens, total)
	s.pool.Fill(r.Table, r.cached+r.chunked)
	if r.chunked < total && r.state != ended {
		s.nextChunk(r)
		return out
	}
	s.stats.PrefillTime += now - r.begun
	s.prefill = nil
	if r.state == ended { // aborted
		s.pool.Release(r.Table)
		s.start(now)
		return out
	}
	if r.generated == 0 {
		r.First = now
	}
	r.state, r.last = running, now
	s.resident += r.Table.Len()
	out = s.emit(now, r, 1, out)
	s.start(now)
	return out
}

func (s *Scheduler) decode(now time.Duration, out []Progress) []Progress {
	r := heap.Pop(&s.running).(*Request)
	out = s.emit(now, r, min(s.cfg.StreamInterval, len(r.Output)-r.generated), out)
	if r.state == ended {
		s.start(now)
	}
	return out
}

// emit gives a running request its next n tokens.
func (s *Scheduler) emit(now time.Duration, r *Request, n int, out []Progress) []Progress {
	tokens := r.Output[r.generated : r.generated+n]
	r.generated += n
	r.Table.Append(tokens...)
	s.pool.Fill(r.Table, r.Table.Len()-1)
	s.resident += n
	s.stats.GeneratedTokens += n
	p := Progress{Request: r, At: now, Tokens: tokens, Step: (now - r.last) / time.Duration(n)}
	r.last = now
	if r.generated < len(r.Output) {
		next := min(s.cfg.StreamInterval, len(r.Output)-r.generated)
		r.due = now + time.Duration(next)*s.cfg.Clock.Decode(s.resident)
		heap.Push(&s.running, r)
		return append(out, p)
	}
	r.state, p.Reason = ended, r.End
	s.resident -= r.Table.Len()
	s.pool.Release(r.Table)
	return append(out, p)
}

// Reset forgets the cached blocks. It reports false, with nothing changed, while
// requests hold blocks, unless preempt is set: then these go back to the head of
// the queue and are computed again. Call Advance first.
func (s *Scheduler) Reset(now time.Duration, preempt bool) bool {
	if preempt {
		back := s.release()
		s.stats.Preemptions += len(back)
		for _, r := range back {
			r.state = waiting
		}
		s.queue = append(back, s.queue...)
	}
	ok := s.pool.Reset()
	s.start(now)
	return ok
}

// release takes the blocks from all that have some, and returns those that have
// not been aborted, in order of arrival.
func (s *Scheduler) release() []*Request {
	held := slices.Clone([]*Request(s.running))
	if s.prefill != nil {
		held = append(held, s.prefill)
	}
	slices.SortFunc(held, func(a, b *Request) int { return cmp.Compare(a.seq, b.seq) })
	for _, r := range held {
		s.pool.Release(r.Table)
	}
	s.running, s.prefill, s.resident = nil, nil, 0
	return slices.DeleteFunc(held, func(r *Request) bool { return r.state == ended })
}

// Sleep aborts all requests, forgets the cache and admits nobody until Wake.
// Call Advance first.
func (s *Scheduler) Sleep(now time.Duration) []Progress {
	var out []Progress
	for _, r := range append(s.release(), s.queue...) {
		r.state = ended
		out = append(out, Progress{Request: r, At: now, Reason: Abort})
	}
	s.queue = nil
	s.stats.Asleep = true
	s.pool.Reset()
	return out
}

// Wake ends a sleep.
func (s *Scheduler) Wake(now time.Duration) {
	s.stats.Asleep = false
	s.start(now)
}

// Stats returns the counters.
func (s *Scheduler) Stats() Stats {
	out := s.stats
	out.Running, out.Waiting = len(s.running), len(s.queue)
	if s.prefill != nil {
		out.Running++
	}
	out.BlocksUsed, out.BlocksUsable = s.pool.Used(), s.pool.Usable()
	out.BlocksResident = s.pool.Hashed()
	return out
}

// decoding is a heap of running requests by the time of their next event.
type decoding []*Request

func (d decoding) Len() int { return len(d) }
func (d decoding) Less(i, j int) bool {
	if d[i].due != d[j].due {
		return d[i].due < d[j].due
	}
	return d[i].seq < d[j].seq
}
func (d decoding) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}
func (d *decoding) Push(x any) {
	r := x.(*Request)
	r.index = len(*d)
	*d = append(*d, r)
}
func (d *decoding) Pop() any {
	old := *d
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	return r
}
