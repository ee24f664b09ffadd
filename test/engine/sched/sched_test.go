package sched

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
)

var hasher = pool.NewHasher("", false)

func config(blocks int) Config {
	return Config{
		Clock:          H200(),
		Pool:           pool.Config{Blocks: blocks + 1, BlockSize: 16},
		MaxSeqs:        256,
		ChunkTokens:    8192,
		StreamInterval: 1,
	}
}

// ask is a request with a prompt of n tokens that starts at a number.
func ask(first, n, out int) *Request {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(first + i)
	}
	return &Request{
		Table:  pool.NewTable(hasher, tokens, 16, pool.Extras{}),
		Output: make([]uint32, out),
		End:    Length,
	}
}

// next is the time of the next event.
func next(s *Scheduler) (time.Duration, bool) {
	prefill, decode := s.Next()
	due := min(prefill, decode)
	return due, due != Never
}

// run advances to the end and returns everything that came.
func run(s *Scheduler) (all []Progress) {
	for {
		due, ok := next(s)
		if !ok {
			return all
		}
		p, _ := s.Advance(due)
		all = append(all, p...)
	}
}

func near(a, b time.Duration) bool { return (a - b).Abs() < time.Millisecond }

func TestClock(t *testing.T) {
	c := H200()
	for _, x := range []struct {
		n, cached int
		want      time.Duration
	}{
		{32000, 0, 3700 * time.Millisecond},
		{32768, 0, 3810 * time.Millisecond},
		{200, 32768, 49 * time.Millisecond},
		{8192, 0, 800 * time.Millisecond},
	} {
		if got := c.Prefill(x.n, x.cached); (got - x.want).Abs() > 10*time.Millisecond {
			t.Errorf("Prefill(%d, %d) = %v, want %v", x.n, x.cached, got, x.want)
		}
	}
	if got := c.Decode(100_000); got != 26500*time.Microsecond {
		t.Errorf("Decode(100000) = %v, want 26.5ms", got)
	}
}

func TestOneRequest(t *testing.T) {
	s := New(config(4000))
	r := ask(0, 20_000, 3)
	s.Submit(time.Second, r)
	var chunks []int
	for s.Stats().GeneratedTokens == 0 {
		due, _ := next(s)
		_, events := s.Advance(due)
		chunks = append(chunks, len(events[0].Hashes))
	}
	if len(chunks) != 3 || chunks[0] != 512 || chunks[1] != 512 || chunks[2] != 226 {
		t.Errorf("blocks stored by chunk: %v", chunks)
	}
	if want := time.Second + H200().Prefill(20_000, 0); r.First != want {
		t.Errorf("first token at %v, want %v", r.First, want)
	}
	rest := run(s)
	if len(rest) != 2 || rest[1].Reason != Length {
		t.Fatalf("decode: %+v", rest)
	}
	step := H200().Decode(20_001)
	if !near(rest[0].At-r.First, step) || !near(rest[1].At-rest[0].At, step) {
		t.Errorf("steps of %v and %v, want %v", rest[0].At-r.First, rest[1].At-rest[0].At, step)
	}
	if st := s.Stats(); st.BlocksUsed != 0 || st.BlocksResident != 1250 || st.ColdPrefills != 1 || st.Running != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestQueueAndHits(t *testing.T) {
	s := New(config(8000))
	a, b, c := ask(0, 32_000, 1), ask(0, 32_000, 1), ask(500_000, 160, 1)
	for _, r := range []*Request{a, b, c} {
		s.Submit(0, r)
	}
	run(s)
	if a.Cached != 0 || b.Cached != 31_984 {
		t.Errorf("cached %d, %d; want 0 and 31984 (the last token is computed)", a.Cached, b.Cached)
	}
	if b.Started != a.First || !near(b.First-b.Started, H200().Prefill(16, 31_984)) {
		t.Errorf("second started at %v, took %v", b.Started, b.First-b.Started)
	}
	if c.Started != b.First {
		t.Errorf("third started at %v, want %v", c.Started, b.First)
	}
}

// TestLateCaller: due times, not call times, drive the emulated clock.
func TestLateCaller(t *testing.T) {
	s := New(config(8000))
	a, b := ask(0, 1600, 5), ask(9000, 1600, 5)
	s.Submit(0, a)
	s.Submit(0, b)
	p, events := s.Advance(time.Hour)
	if len(p) != 10 || len(events) == 0 {
		t.Fatalf("%d progresses, %d events", len(p), len(events))
	}
	for i := 1; i < len(p); i++ {
		if p[i].At < p[i-1].At {
			t.Errorf("out of order: %v after %v", p[i].At, p[i-1].At)
		}
	}
	if want := 2 * H200().Prefill(1600, 0); b.First != want {
		t.Errorf("second first token at %v, want %v", b.First, want)
	}
}

func TestHeadOfLineWaits(t *testing.T) {
	s := New(config(100))                                                         // 1600 tokens
	big, bigger, small := ask(0, 800, 100), ask(5000, 800, 100), ask(9000, 16, 1) // 57, 57, 2 blocks
	s.Submit(0, big)
	s.Submit(0, bigger)
	s.Submit(0, small)
	var end time.Duration
	for _, p := range run(s) {
		if p.Request == big && p.Reason != "" {
			end = p.At
		}
	}
	if bigger.Started != end {
		t.Errorf("second started at %v, want %v, the end of the first", bigger.Started, end)
	}
	if small.Started < bigger.Started {
		t.Error("a small request overtook the head of the queue")
	}
}

func TestDecodeStoresFullBlocks(t *testing.T) {
	s := New(config(100))
	r := ask(0, 32, 33) // 64 tokens of KV: the last one is never computed
	s.Submit(0, r)
	stored := 0
	for {
		due, ok := next(s)
		if !ok {
			break
		}
		_, events := s.Advance(due)
		for _, e := range events {
			stored += len(e.Hashes)
		}
	}
	if stored != 4 {
		t.Errorf("%d blocks stored, want 4", stored)
	}
}

func TestStreamInterval(t *testing.T) {
	cfg := config(100)
	cfg.StreamInterval = 4
	s := New(cfg)
	s.Submit(0, ask(0, 32, 10))
	var got []int
	for _, p := range run(s) {
		got = append(got, len(p.Tokens))
	}
	want := []int{1, 4, 4, 1}
	if len(got) != len(want) {
		t.Fatalf("events of %v tokens, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("events of %v tokens, want %v", got, want)
		}
	}
}

func TestAbort(t *testing.T) {
	for _, c := range []struct {
		name string
		at   time.Duration
	}{
		{"waiting", time.Millisecond},
		{"in prefill", time.Second},
		{"in decode", 3 * time.Second},
		{"after the end", time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(config(8000))
			first, r := ask(90_000, 800, 1), ask(0, 20_000, 100)
			s.Submit(0, first)
			s.Submit(0, r)
			s.Advance(c.at)
			s.Abort(c.at, r)
			for _, p := range run(s) {
				if p.Request == r {
					t.Errorf("progress after the abort: %+v", p)
				}
			}
			if st := s.Stats(); st.BlocksUsed != 0 || st.Running != 0 || st.Waiting != 0 {
				t.Errorf("stats %+v", st)
			}
			if s.resident != 0 {
				t.Errorf("%d resident tokens left", s.resident)
			}
		})
	}
}

func TestReset(t *testing.T) {
	s := New(config(8000))
	a, b, c := ask(0, 1600, 50), ask(10_000, 9000, 5), ask(50_000, 100, 1)
	for _, r := range []*Request{a, b, c} {
		s.Submit(0, r)
	}
	s.Advance(900 * time.Millisecond) // a decodes, b is in its second chunk
	if s.Reset(900*time.Millisecond, false) {
		t.Fatal("a reset went through while blocks are in use")
	}
	if !s.Reset(900*time.Millisecond, true) {
		t.Fatal("a reset with preemption was refused")
	}
	got := map[*Request]int{}
	for _, p := range run(s) {
		got[p.Request] += len(p.Tokens)
	}
	if got[b] != 5 || got[c] != 1 || a.generated != 50 {
		t.Errorf("tokens after the reset: %d of b, %d of c; a has %d", got[b], got[c], a.generated)
	}
	if st := s.Stats(); st.Preemptions != 2 || st.Admitted != 3 || st.BlocksUsed != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestClearedComesWithTheNextStep(t *testing.T) {
	s := New(config(100))
	s.Submit(0, ask(0, 64, 1))
	run(s)
	s.Reset(time.Minute, false)
	if _, events := s.Advance(2 * time.Minute); events != nil {
		t.Fatalf("an idle engine told of its reset: %+v", events)
	}
	s.Submit(2*time.Minute, ask(0, 64, 1))
	due, _ := next(s)
	_, events := s.Advance(due)
	if len(events) != 2 || events[0].Kind != pool.Cleared || events[1].Kind != pool.Stored {
		t.Errorf("events %+v", events)
	}
}

func TestSleep(t *testing.T) {
	s := New(config(8000))
	s.Submit(0, ask(0, 16_000, 5))
	s.Submit(0, ask(50_000, 16_000, 5))
	if p := s.Sleep(time.Second); len(p) != 2 || p[0].Reason != Abort {
		t.Errorf("sleep ended %+v", p)
	}
	r := ask(90_000, 160, 1)
	s.Submit(2*time.Second, r)
	if _, ok := next(s); ok {
		t.Error("a sleeping engine works")
	}
	s.Wake(10 * time.Second)
	run(s)
	if r.Started != 10*time.Second {
		t.Errorf("started at %v", r.Started)
	}
}

// TestRandom: whatever happens, all requests end, nothing leaks, and time runs
// forward.
func TestRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	cfg := config(400)
	cfg.StreamInterval, cfg.ChunkTokens, cfg.MaxSeqs = 3, 512, 6
	s := New(cfg)
	var now, last time.Duration
	var open []*Request
	tokens, want := 0, 0
	note := func(out []Progress) {
		for _, p := range out {
			if p.At < last {
				t.Fatalf("time ran back from %v to %v", last, p.At)
			}
			last = p.At
			tokens += len(p.Tokens)
		}
	}
	for range 3000 {
		now += time.Duration(rng.IntN(int(200 * time.Millisecond)))
		out, _ := s.Advance(now)
		note(out)
		switch op := rng.IntN(20); {
		case op < 8:
			r := ask(rng.IntN(3)*10_000, 1+rng.IntN(2000), 1+rng.IntN(60))
			s.Submit(now, r)
			open = append(open, r)
		case op == 8 && len(open) > 0:
			s.Abort(now, open[rng.IntN(len(open))])
		case op == 9:
			s.Reset(now, rng.IntN(2) == 0)
		}
	}
	note(run(s))
	for _, r := range open {
		if r.state != ended {
			t.Fatalf("a request is left in state %d", r.state)
		}
		want += r.generated
	}
	if tokens != want {
		t.Errorf("%d tokens came, %d were generated", tokens, want)
	}
	if st := s.Stats(); st.BlocksUsed != 0 || st.Running+st.Waiting != 0 || s.resident != 0 {
		t.Errorf("left over: %+v, %d resident", st, s.resident)
	}
}

func BenchmarkDecodeEvent(b *testing.B) {
	cfg := config(11_903)
	cfg.StreamInterval = 12
	s := New(cfg)
	for i := range 30 {
		s.Submit(0, ask(i*10_000, 2000, 4096))
	}
	s.Advance(10 * time.Second)
	b.ReportAllocs()
	for b.Loop() {
		due, ok := next(s)
		if !ok {
			b.Fatal("idle")
		}
		out, _ := s.Advance(due)
		for _, p := range out {
			if p.Reason != "" {
				s.Submit(due, ask(0, 2000, 4096))
			}
		}
	}
}
