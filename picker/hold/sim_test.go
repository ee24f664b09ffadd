package hold_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

// The simulation: pods that run one prefill at a time behind a queue of their own, with an LRU block cache, and one
// gateway that binds through score and hold. Virtual time, exact knowledge of the caches, speculation on binding.

const (
	simBlock  = 512 // tokens
	simBlocks = 372 // of one pod: Llama-3.1-70B FP8 on an H200
)

var simPrefill = score.Model{Overhead: 20, PerToken: 0.77 * 3680 / 32000, Quadratic: 0.23 * 3680 / 32000 / 32000}

type simRequest struct {
	at          time.Duration
	prompt, out int
	chain       []string // full prompt blocks, named

	item   hold.Item[*simRequest]
	flight hold.Flight
	pod    *simPod
	cached int
	ttft   time.Duration
}

func (r *simRequest) blocks() int { return (r.prompt + r.out + simBlock - 1) / simBlock }

type simPod struct {
	key     uint64
	ledger  hold.Ledger
	queue   []*simRequest
	busy    bool
	running int
	tokens  int
	private int               // blocks of running requests beyond their prompt's full blocks
	pinned  map[string]int    // references of running requests
	idle    map[string]simAge // evictable
	pending map[string]int    // speculation
}

type simAge struct {
	used time.Duration
	seq  int
}

func (p *simPod) match(r *simRequest, speculate bool) int {
	for i, b := range r.chain {
		if _, ok := p.idle[b]; !ok && p.pinned[b] == 0 && (!speculate || p.pending[b] == 0) {
			return i
		}
	}
	return len(r.chain)
}

func (p *simPod) used() int { return len(p.pinned) + p.private }

// victim returns the block that goes next.
func (p *simPod) victim() (name string, age simAge) {
	for b, a := range p.idle {
		if name == "" || a.used < age.used || a.used == age.used && a.seq > age.seq {
			name, age = b, a
		}
	}
	return name, age
}

type sim struct {
	t      *testing.T
	now    time.Duration
	pods   []*simPod
	queue  *hold.Queue[*simRequest]
	params score.Params
	events simEvents
	seq    int
	cand   []score.Candidate

	polling bool // the next look at the waiting requests is scheduled
}

type simEvent struct {
	at  time.Duration
	seq int
	run func()
}

type simEvents []simEvent

func (e simEvents) Len() int { return len(e) }
func (e simEvents) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e simEvents) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *simEvents) Push(x any)   { *e = append(*e, x.(simEvent)) }
func (e *simEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (s *sim) after(d time.Duration, run func()) {
	s.seq++
	heap.Push(&s.events, simEvent{s.now + d, s.seq, run})
}

var simStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (s *sim) clock() time.Time { return simStart.Add(s.now) }

// simulate runs the requests on n pods and returns when all have got their first token.
func simulate(t *testing.T, n int, cfg hold.Config, requests []*simRequest) {
	t.Helper()
	s := &sim{t: t, params: score.Default()}
	s.queue = hold.New[*simRequest](cfg, s.params)
	for i := range n {
		s.pods = append(s.pods, &simPod{
			key:    uint64(i+1) * 0x9e3779b97f4a7c15,
			pinned: map[string]int{}, idle: map[string]simAge{}, pending: map[string]int{},
		})
	}
	for i, r := range requests {
		s.after(r.at, func() {
			r.item = hold.Item[*simRequest]{Value: r, Key: uint64(i) * 0xbf58476d1ce4e5b9, Arrived: s.clock(), Bytes: 4 * r.prompt}
			s.queue.Add(&r.item)
			s.bind()
		})
	}
	for len(s.events) > 0 {
		e := heap.Pop(&s.events).(simEvent)
		s.now = e.at
		e.run()
	}
	for i, r := range requests {
		if r.ttft == 0 {
			t.Fatalf("request %d got no first token", i)
		}
	}
}

func (s *sim) price(now time.Time, r *simRequest, _ bool) []score.Candidate {
	s.cand = s.cand[:0]
	req := score.Request{PromptTokens: r.prompt, OutputTokens: r.out, Reuse: 0.2}
	for i, p := range s.pods {
		unseen := p.ledger.UnseenBlocks()
		e := score.Endpoint{
			Key: p.key, BlockSize: simBlock, Matched: p.match(r, true), Trust: 1, Prefill: simPrefill,
			Running: p.running, Blocks: simBlocks, Cached: len(p.idle),
			Free:       simBlocks - p.used() - len(p.idle),
			DecodeStep: 18, DecodePerToken: 85e-6, MeanOutput: 200,
			Outstanding: p.ledger.Outstanding(), PendingBlocks: unseen,
			Queue: float64(p.ledger.Queue(now)) / 1e6,
		}
		if name, age := p.victim(); name != "" {
			e.VictimIdle = float64(s.now-age.used) / 1e6
		}
		var c score.Candidate
		s.params.Price(&c, &req, &e, i)
		s.cand = append(s.cand, c)
	}
	return s.cand
}

func (s *sim) bind() {
	for b, ok := s.queue.Next(s.clock(), true, s.price); ok; b, ok = s.queue.Next(s.clock(), true, s.price) {
		if !b.Reason.Bound() {
			s.t.Fatalf("request refused: %v", b.Reason)
		}
		r, p := b.Item.Value, s.pods[b.Candidate.Index]
		r.pod = p
		r.flight = hold.Flight{
			Work:   time.Duration(b.Candidate.Terms.Prefill * 1e6),
			Blocks: r.blocks() - p.match(r, true),
		}
		p.ledger.Bind(s.clock(), &r.flight)
		for _, name := range r.chain {
			p.pending[name]++
		}
		p.queue = append(p.queue, r)
		s.start(p)
	}
	if s.queue.Len() > 0 && !s.polling {
		s.polling = true
		s.after(50*time.Millisecond, func() { s.polling = false; s.bind() })
	}
}

// start is the engine: the head of its queue begins if nothing else is in prefill and its blocks fit.
func (s *sim) start(p *simPod) {
	if p.busy || len(p.queue) == 0 {
		return
	}
	r := p.queue[0]
	m := p.match(r, false)
	extra := r.blocks() - m
	for _, b := range r.chain[:m] {
		if p.pinned[b] == 0 {
			extra++
		}
	}
	if p.used() > 0 && p.used()+extra > simBlocks {
		return
	}
	p.queue = p.queue[1:]
	for _, b := range r.chain {
		delete(p.idle, b)
		p.pinned[b]++
		if p.pending[b]--; p.pending[b] == 0 {
			delete(p.pending, b)
		}
	}
	p.private += r.blocks() - len(r.chain)
	for p.used()+len(p.idle) > simBlocks && len(p.idle) > 0 {
		name, _ := p.victim()
		delete(p.idle, name)
	}
	r.cached = min(m*simBlock, r.prompt-1)
	p.busy = true
	p.tokens += r.prompt + r.out
	took := time.Duration(simPrefill.Time(r.prompt-r.cached, r.cached) * 1e6)
	s.after(took, func() {
		p.busy = false
		p.running++
		r.ttft = s.now - r.at
		p.ledger.Over(s.clock(), &r.flight)
		p.ledger.Observed(s.clock(), s.clock(), 0)
		step := 18e6 + 85*float64(p.tokens)
		s.after(time.Duration(float64(r.out)*step), func() { s.finish(p, r) })
		s.start(p)
		s.bind()
	})
}

func (s *sim) finish(p *simPod, r *simRequest) {
	p.running--
	p.tokens -= r.prompt + r.out
	p.private -= r.blocks() - len(r.chain)
	for i := len(r.chain) - 1; i >= 0; i-- {
		b := r.chain[i]
		if p.pinned[b]--; p.pinned[b] == 0 {
			delete(p.pinned, b)
			p.idle[b] = simAge{s.now, i}
		}
	}
	p.ledger.End(s.clock(), &r.flight)
	s.start(p)
	s.bind()
}

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s/%d", prefix, i)
	}
	return out
}

// agents are tasks of ten parallel calls within 10 ms: 8,192 shared tokens and 500 of their own, 200 tokens out.
func agents(seed uint64, tasks int, every time.Duration) []*simRequest {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out []*simRequest
	var at time.Duration
	for task := range tasks {
		at += time.Duration(rng.ExpFloat64() * float64(every))
		for call := range 10 {
			out = append(out, &simRequest{
				at: at + time.Duration(call)*100*time.Microsecond, prompt: 8692, out: 200,
				chain: names(fmt.Sprintf("task %d", task), 16),
			})
		}
	}
	return out
}

// documents are ten users who ask twenty questions each about a 32,768-token document of their own.
func documents(seed uint64) []*simRequest {
	rng := rand.New(rand.NewPCG(seed, 2))
	var out []*simRequest
	for user := range 10 {
		at := 15 * rng.Float64()
		for range 20 {
			out = append(out, &simRequest{
				at: time.Duration(at * 1e9), prompt: 32968, out: 150, chain: names(fmt.Sprintf("document %d", user), 64),
			})
			at += 15 * (0.5 + rng.Float64())
		}
	}
	slices.SortStableFunc(out, func(a, b *simRequest) int { return int(a.at - b.at) })
	return out
}

// unrelated are requests that share nothing.
func unrelated(seed uint64, n int, every time.Duration) []*simRequest {
	rng := rand.New(rand.NewPCG(seed, 3))
	var out []*simRequest
	var at time.Duration
	for i := range n {
		at += time.Duration(rng.ExpFloat64() * float64(every))
		prompt := 500 + rng.IntN(8000)
		out = append(out, &simRequest{at: at, prompt: prompt, out: 100, chain: names(fmt.Sprint(i), prompt/simBlock)})
	}
	return out
}

// cold counts the requests that had under a fifth of their prompt cached.
func cold(rs []*simRequest) (n int) {
	for _, r := range rs {
		if 5*r.cached < r.prompt {
			n++
		}
	}
	return n
}

func meanTTFT(rs []*simRequest) (mean time.Duration) {
	for _, r := range rs {
		mean += r.ttft / time.Duration(len(rs))
	}
	return mean
}

// Ten calls within a millisecond on an idle fleet: the first binds, the nine others wait for its pod although two others
// idle, since one more prefill of the shared context costs more than the wait.
func TestParallelCallsOfOneAgentGoHome(t *testing.T) {
	rs := agents(1, 1, time.Second)
	simulate(t, 3, hold.Default(), rs)
	for i, r := range rs {
		if r.pod != rs[0].pod {
			t.Errorf("call %d was bound elsewhere", i)
		}
	}
	if n := cold(rs); n != 1 {
		t.Errorf("%d calls computed the shared context, want 1", n)
	}
	if rs[9].ttft > 1700*time.Millisecond {
		t.Errorf("last call waited %v for its first token, want under 1.7 s", rs[9].ttft)
	}
}

// A hundred tasks on three pods, 45 % busy. The bound is one cold prefill per task; round robin pays 300.
func TestAgentsUnderLoad(t *testing.T) {
	for seed := range uint64(5) {
		rs := agents(seed, 100, 1100*time.Millisecond)
		simulate(t, 3, hold.Default(), rs)
		n := cold(rs)
		t.Logf("seed %d: %d cold of %d, mean TTFT %v", seed, n, len(rs), meanTTFT(rs))
		if n < 100 || n > 105 {
			t.Errorf("seed %d: %d cold prefills, want 100 to 105", seed, n)
		}
	}
}

// Every user's document is computed once and every later question goes home, though a pod holds only five documents.
func TestDocumentsGoHome(t *testing.T) {
	for seed := range uint64(5) {
		rs := documents(seed)
		simulate(t, 3, hold.Default(), rs)
		t.Logf("seed %d: %d cold of %d, mean TTFT %v", seed, cold(rs), len(rs), meanTTFT(rs))
		if n := cold(rs); n != 10 {
			t.Errorf("seed %d: %d cold prefills, want 10", seed, n)
		}
	}
}

// At light load a pod is nearly always ready: holding must not cost anything.
func TestLightLoadIsNoWorseThanEarlyBinding(t *testing.T) {
	early := hold.Default()
	early.MaxAge = 0
	work := map[string]func(seed uint64) []*simRequest{
		"unrelated": func(seed uint64) []*simRequest { return unrelated(seed, 500, time.Second) },
		"agents":    func(seed uint64) []*simRequest { return agents(seed, 30, 8*time.Second) },
		"documents": documents,
	}
	for name, generate := range work {
		t.Run(name, func(t *testing.T) {
			var sumLate, sumEarly time.Duration
			for seed := range uint64(5) {
				rs := generate(seed)
				simulate(t, 3, hold.Default(), rs)
				sumLate += meanTTFT(rs)
				rs = generate(seed)
				simulate(t, 3, early, rs)
				sumEarly += meanTTFT(rs)
			}
			t.Logf("mean TTFT: late %v, early %v", sumLate/5, sumEarly/5)
			if float64(sumLate) > 1.02*float64(sumEarly) {
				t.Errorf("mean TTFT %v late, %v early: want late no more than 2 %% above", sumLate/5, sumEarly/5)
			}
		})
	}
}
