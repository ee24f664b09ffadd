package sim

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// played is a run that shows what became of each job.
func played(t *testing.T, cfg Config, spy func(policy) policy) *world {
	t.Helper()
	w, err := newWorld(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if spy != nil {
		w.policy = spy(w.policy)
	}
	if err := w.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w
}

func bytesOf(t *testing.T, cfg Config) string {
	t.Helper()
	b, err := json.Marshal(run(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// troubled is a small run with all that can go wrong.
func troubled(policy string, engine Engine) Config {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Engine, cfg.Pods, cfg.Gateways, cfg.Timeout, cfg.PodTokens = agents(9), policy, engine, 6, 3, 5*time.Second, 100*512
	cfg.Loss, cfg.NonStreamed, cfg.Retries, cfg.Speeds, cfg.WrongEstimates = 0.1, 0.3, 2, []float64{1, 0.5, 2}, 0.3
	cfg.HostTokens, cfg.NoisyFlow, cfg.Seed = 100_000, true, 7
	if policy != sharedCache {
		cfg.Faults = []string{digestMissing, digestStale + "@3s+3s", digestLying + "@2s", podFailure + "@4s+3s"}
	}
	return cfg
}

func TestSameSeedSameResultInTrouble(t *testing.T) {
	for _, policy := range Policies() {
		for _, engine := range []Engine{Single, Chunked} {
			if (engine == Chunked) == (policy == sharedCache) && policy != ours {
				continue // one engine will do for most
			}
			cfg := troubled(policy, engine)
			first := bytesOf(t, cfg)
			if again := bytesOf(t, cfg); again != first {
				t.Errorf("%s, %s engine: two results of one seed:\n%s\n%s", policy, engine, first, again)
			}
			if cfg.Seed++; policy == ours && bytesOf(t, cfg) == first {
				t.Errorf("%s engine: another seed changes nothing", engine)
			}
		}
	}
}

func TestLoss(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods, cfg.Gateways = agents(30), ours, 3, 2
	whole := bytesOf(t, cfg)
	cfg.Loss = 0.3
	if bytesOf(t, cfg) == whole {
		t.Error("three of ten packets lost, and nothing is different")
	}
	cfg.Gateways = 1
	if r := run(t, cfg); r.Unserved > 0 || r.HitRatio < 0.8 {
		t.Errorf("three of ten packets lost: hit ratio %.2f, %d unserved; want what comes later to mend it", r.HitRatio, r.Unserved)
	}
	w := played(t, cfg, nil)
	lost := 0
	for range 10_000 {
		if w.lost() {
			lost++
		}
	}
	if math.Abs(float64(lost)/10_000-0.3) > 0.02 {
		t.Errorf("%d of 10,000 packets lost, want 3,000", lost)
	}
}

// counted counts first tokens that a policy hears of.
type counted struct {
	policy
	firsts map[int]bool
}

func (c *counted) first(now time.Duration, j *job) {
	c.firsts[j.index] = true
	c.policy.first(now, j)
}

func TestNonStreamed(t *testing.T) {
	var whole []bool
	for _, name := range []string{ours, "dynamo"} {
		cfg := Default()
		cfg.Trace, cfg.Policy, cfg.NonStreamed = agents(40), name, 0.25
		c := &counted{firsts: map[int]bool{}}
		w := played(t, cfg, func(p policy) policy { c.policy = p; return c })
		now := make([]bool, len(w.jobs))
		n := 0
		for i, j := range w.jobs {
			if now[i] = j.whole; j.whole {
				n++
			}
			if j.whole == c.firsts[i] {
				t.Fatalf("%s: request %d non-streamed: %v, first token seen: %v", name, i, j.whole, c.firsts[i])
			}
			if j.first <= j.arrived || j.ended <= j.first {
				t.Fatalf("%s: request %d: first token at %v, end at %v", name, i, j.first, j.ended)
			}
		}
		if n < 80 || n > 120 {
			t.Errorf("%s: %d of 400 requests in one piece, want about 100", name, n)
		}
		if whole == nil {
			whole = now
		} else if !slices.Equal(whole, now) {
			t.Error("two policies were dealt other requests")
		}
		if p, ok := w.policy.(*counted).policy.(*peers); ok {
			for i, r := range p.routed {
				if r.outstanding != 0 || r.prefills != 0 || r.uncached != 0 || r.tokens != 0 || r.prompts != 0 {
					t.Errorf("pod %d, all over: the router still counts %+v", i, r)
				}
			}
		}
	}
}

// moody refuses the first tries of everybody.
type moody struct {
	policy
	w       *world
	refuses int
	tries   map[int][]time.Duration
}

func (m *moody) arrive(now time.Duration, j *job) {
	m.tries[j.index] = append(m.tries[j.index], now)
	if j.failures < m.refuses {
		m.w.refuse(now, j)
		return
	}
	m.policy.arrive(now, j)
}

func TestRetries(t *testing.T) {
	for n, want := range []time.Duration{0, 500, 1000, 2000, 4000, 8000, 8000} {
		if n > 0 && pause(n) != want*time.Millisecond {
			t.Errorf("pause %d: %v, want %v", n, pause(n), want*time.Millisecond)
		}
	}
	cfg := Default()
	cfg.Trace, cfg.Policy = agents(3), roundRobinName
	for _, tt := range []struct{ retries, unserved int }{{0, 30}, {1, 30}, {2, 0}, {5, 0}} {
		cfg.Retries = tt.retries
		m := &moody{refuses: 2, tries: map[int][]time.Duration{}}
		w := played(t, cfg, func(p policy) policy { m.policy = p; return m.with(p.(*peers).w) })
		r := w.result()
		if r.Unserved != tt.unserved || r.Rejected != tt.unserved {
			t.Errorf("%d retries: %d unserved, %d of them refused; want %d", tt.retries, r.Unserved, r.Rejected, tt.unserved)
		}
		for i, at := range m.tries {
			if len(at) != min(tt.retries, 2)+1 {
				t.Fatalf("%d retries: request %d was tried %d times", tt.retries, i, len(at))
			}
			for n := 1; n < len(at); n++ {
				if d := at[n] - at[n-1]; d > pause(n) || d < pause(n)*3/4 {
					t.Errorf("request %d: pause %d of %v, want %v less up to a quarter", i, n, d, pause(n))
				}
			}
		}
		// The first tries came within ten milliseconds of their second; the pauses count.
		if tt.unserved == 0 && r.TTFT.P50 < 1.1 {
			t.Errorf("median to the first token %.2f s: want it from the first try", r.TTFT.P50)
		}
	}
}

func (m *moody) with(w *world) *moody { m.w = w; return m }

// leavers counts requests that wait in an engine when their clients have left.
type leavers struct {
	policy
	waiting int
}

func (l *leavers) gone(now time.Duration, j *job) {
	l.policy.gone(now, j)
	w := l.policy.(*peers).w
	w.at(now, func(time.Duration) {
		if slices.Contains(w.pods[j.pod].engine.(*single).queue, j) {
			l.waiting++
		}
	})
}

// A client that leaves takes its request out of the engine, and comes again.
func TestRetriesAfterTimeout(t *testing.T) {
	for _, engine := range []Engine{Single, Chunked} {
		cfg := Default()
		cfg.Trace = &trace.Trace{BlockTokens: 512}
		for range 8 {
			cfg.Trace.Requests = append(cfg.Trace.Requests, trace.Request{Previous: -1, Prompt: 30_000, Output: 20}) // 3.4 s each
		}
		cfg.Policy, cfg.Pods, cfg.Engine, cfg.Timeout = roundRobinName, 1, engine, 9*time.Second
		once := run(t, cfg)
		cfg.Retries = 5
		l := &leavers{}
		w := played(t, cfg, func(p policy) policy {
			if l.policy = p; engine == Chunked {
				return p
			}
			return l
		})
		if l.waiting > 0 {
			t.Errorf("%s engine: %d requests wait for nobody", engine, l.waiting)
		}
		again := 0
		for _, j := range w.jobs {
			again += j.failures
		}
		r := run(t, cfg)
		if once.Unserved < 4 || again < 4 || r.Unserved != 0 {
			t.Errorf("%s engine: %d unserved at once; %d tries more, then %d unserved; want all served in the end", engine, once.Unserved, again, r.Unserved)
		}
		if r.TTFT.P99 < 20 {
			t.Errorf("%s engine: the last waited %.1f s, want it counted from its first try", engine, r.TTFT.P99)
		}
		if l := w.pods[0].engine.load(); l.used != 0 || l.running != 0 || l.waiting != 0 {
			t.Errorf("%s engine, all over: %+v", engine, l)
		}
	}
}

// What nobody waits for any more is not begun, and what has been begun comes to no answer.
func TestLeave(t *testing.T) {
	cfg := Default()
	cfg.Trace = strangers(4)
	w := &world{cfg: &cfg, prompts: newPrompts(512, newHasher())}
	requests := w.prompts.requests(cfg.Trace)
	for _, kind := range []Engine{Single, Chunked} {
		cfg.Engine = kind
		e := w.newEngine(&pod{clock: cfg.clock(0)}, w.newCache(1))
		var jobs []*job
		for i, r := range requests {
			jobs = append(jobs, &job{index: i, request: r, table: w.prompts.table(r)})
			e.submit(0, jobs[i])
		}
		gone := []int{0, 3} // in prefill, and waiting
		for _, i := range gone {
			e.leave(0, jobs[i])
			jobs[i].over = true
		}
		if kind == Single && e.load().waiting != 2 {
			t.Errorf("%s engine: %d wait, want 2", kind, e.load().waiting)
		}
		ended := 0
		for e.next() != never {
			e.advance(e.next(), func(_ time.Duration, j *job, end bool) {
				if j.over {
					t.Errorf("%s engine: news of request %d, whose client has left", kind, j.index)
				} else if end {
					ended++
				}
			})
		}
		if l := e.load(); ended != 2 || l.used != 0 || l.running != 0 || l.waiting != 0 || len(e.jobs()) != 0 {
			t.Errorf("%s engine: %d ended, want 2; then %+v", kind, ended, l)
		}
		// 4,196 tokens take 0.41 s.
		if s := e.prefillTime().Seconds(); kind == Single && s > 3.1*0.41 {
			t.Errorf("%s engine: %.2f s of prefill, want three prompts'", kind, s)
		}
	}
}

func TestSpeeds(t *testing.T) {
	for _, engine := range []Engine{Single, Chunked} {
		cfg := Default()
		cfg.Trace, cfg.Policy, cfg.Engine, cfg.Pods, cfg.Speeds = agents(40), roundRobinName, engine, 4, []float64{2, 0.5}
		w := played(t, cfg, nil)
		fast, slow := w.pods[0].engine.prefillTime().Seconds(), w.pods[1].engine.prefillTime().Seconds()
		if slow < 3.6*fast || slow > 4.4*fast {
			t.Errorf("%s engine: as many prompts take %.1f s and %.1f s, want four times", engine, fast, slow)
		}
		cfg.Policy = ours
		w = played(t, cfg, nil)
		if a, b := w.pods[0].jobs+w.pods[2].jobs, w.pods[1].jobs+w.pods[3].jobs; a < 2*b {
			t.Errorf("%s engine: %d requests on fast pods, %d on slow ones", engine, a, b)
		}
	}
}

func TestWrongEstimates(t *testing.T) {
	cfg := Default()
	cfg.WrongEstimates, cfg.Seed = 0.5, 3
	var low, high int
	for i := range maxPods {
		f := cfg.wrong(i)
		if f < 1/1.5 || f > 1.5 {
			t.Errorf("pod %d: factor %g", i, f)
		}
		if f < 0.9 {
			low++
		} else if f > 1.1 {
			high++
		}
		p := &pod{clock: sched.H200(), wrong: f}
		if got := float64(p.believed().Prefill(10_000, 0)) / float64(p.clock.Prefill(10_000, 0)); math.Abs(got-f) > 1e-6 {
			t.Errorf("pod %d: a prefill is believed to take %g times as long, want %g", i, got, f)
		}
	}
	if low < 15 || high < 15 {
		t.Errorf("of %d pods %d seem fast and %d slow", maxPods, low, high)
	}
	// What is left of a prefill under way seems as much shorter as all others: 4.4 s against 3.9 would choose the second pod.
	s := &sight{peers: &peers{w: &world{cfg: &cfg}, routed: make([]routed, 2)}, matched: make([]int, 2)}
	cfg.Trace = agents(1)
	s.job = &job{request: newPrompts(512, newHasher()).requests(cfg.Trace)[0]}
	for i, rest := range []time.Duration{4 * time.Second, 3 * time.Second} {
		s.w.pods = append(s.w.pods, &pod{clock: sched.H200(), wrong: []float64{0.5, 1}[i], engine: &single{busy: &job{}, due: rest}})
	}
	if got := minTTFT(0, s); got != 0 {
		t.Errorf("min-ttft: pod %d, want the one that seems twice as fast", got)
	}
	// Engines are as they were: who asks for no estimates is none the worse.
	cfg = Default()
	cfg.Trace = agents(20)
	for policy, differs := range map[string]bool{roundRobinName: false, "dynamo": false, "min-ttft": true, ours: true} {
		cfg.Policy, cfg.WrongEstimates = policy, 0
		right := bytesOf(t, cfg)
		cfg.WrongEstimates = 2
		if (bytesOf(t, cfg) != right) != differs {
			t.Errorf("%s: wrong estimates make a difference: %v, want %v", policy, !differs, differs)
		}
	}
}

// rounds is n prompts of 16 shared blocks, each three times, one every ten seconds.
func rounds(n int) *trace.Trace {
	t := &trace.Trace{BlockTokens: 512}
	for i := range 3 * n {
		r := trace.Request{At: time.Duration(i) * 10 * time.Second, Previous: -1, Prompt: 16*512 + 100, Output: 20}
		for b := range 16 {
			r.Blocks = append(r.Blocks, uint64(i%n*100+b+1))
		}
		t.Requests = append(t.Requests, r)
	}
	return t
}

func TestHostMemory(t *testing.T) {
	for _, engine := range []Engine{Single, Chunked} {
		for _, policy := range []string{roundRobinName, ours} {
			cfg := Default()
			cfg.Trace, cfg.Policy, cfg.Engine, cfg.Pods, cfg.PodTokens = rounds(10), policy, engine, 1, 50*512
			if r := run(t, cfg); r.HitRatio > 0.01 {
				t.Fatalf("%s engine: hit ratio %.2f in the GPU: the test wants more prompts than fit", engine, r.HitRatio)
			}
			cfg.HostTokens = 170 * 512
			r := run(t, cfg)
			if want := 2.0 / 3 * 8192 / 8292; math.Abs(r.HitRatio-want) > 0.001 {
				t.Errorf("%s engine: hit ratio %.4f, want %.4f", engine, r.HitRatio, want)
			}
			// 8,192 tokens take 49 ms to load and 100 more 31 ms to compute.
			if want := sched.H200().Prefill(100, 8192).Seconds() + 8192/cfg.HostRate; math.Abs(r.TTFT.P50-want) > 0.001 {
				t.Errorf("%s engine: median to the first token %.4f s, want %.4f s", engine, r.TTFT.P50, want)
			}
			cfg.HostTokens = 100 * 512 // of 160 blocks; the least recently used are those that come next
			if r := run(t, cfg); r.HitRatio > 0.1 {
				t.Errorf("%s engine: hit ratio %.2f from a host memory that is too small", engine, r.HitRatio)
			}
		}
	}
}

// Gateways hear of host memory by the digest over all tiers, and count on it.
func TestHostMemoryIsPublished(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods, cfg.PodTokens, cfg.HostTokens = rounds(20), ours, 3, 50*512, 170*512
	w := played(t, cfg, nil)
	for _, j := range w.jobs[20:] {
		if j.cached != 16*512 {
			t.Errorf("request %d: %d tokens cached, want it sent where its blocks are", j.index, j.cached)
		}
	}
	for i, a := range w.policy.(*fleet).agents {
		st := a.set.Stats()
		if want := len(w.pods[i].engine.(*single).cache.host.at); st.Lower != want || st.Unpaired > 0 || st.Orphans > 0 {
			t.Errorf("pod %d: the agent counts %+v, the host has %d blocks", i, st, want)
		}
	}
}

func TestHostEvictsLeastRecentlyUsed(t *testing.T) {
	d := func(n byte) pool.Digest { return pool.Digest{n} }
	h := newHost(2)
	if _, stored := h.put(d(1)); !stored {
		t.Error("a first block is not stored")
	}
	h.put(d(2))
	if _, stored := h.put(d(1)); stored { // used again
		t.Error("a block is stored twice")
	}
	if evicted, stored := h.put(d(3)); !stored || evicted == nil || *evicted != d(2) {
		t.Errorf("block 3 replaces %v, want 2", evicted)
	}
	if h.use(d(2)) || !h.use(d(1)) || !h.use(d(3)) {
		t.Error("want 1 and 3")
	}
}

// What makes digests inexact does not touch the reference.
func TestExact(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods = agents(20), exact, 4
	want := bytesOf(t, cfg)
	cfg.Loss, cfg.Gateways, cfg.StateDelay, cfg.Faults = 0.5, 3, time.Second, []string{digestMissing, digestLying, digestStale + "@0s"}
	if got := bytesOf(t, cfg); got != want {
		t.Errorf("with loss, delay and faults:\n%s\nwithout:\n%s", got, want)
	}
	wrong := map[string]int{}
	for _, policy := range []string{ours, exact} {
		cfg := Default()
		cfg.Trace, cfg.Policy, cfg.Pods, cfg.PodTokens = strangers(3000), policy, 8, 200*512
		w := played(t, cfg, nil)
		for _, j := range w.jobs {
			wrong[policy] += claimed(j) // nothing is ever sent twice
		}
	}
	if wrong[ours] == 0 || wrong[exact] > 0 {
		t.Errorf("blocks claimed that were not there, by policy: %v; want none in %s, some elsewhere", wrong, exact)
	}
}

func TestValidateRanges(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"loss 1":                func(c *Config) { c.Loss = 1 },
		"non-streamed 1.5":      func(c *Config) { c.NonStreamed = 1.5 },
		"retries 11":            func(c *Config) { c.Retries = 11 },
		"speed 0":               func(c *Config) { c.Speeds = []float64{1, 0} },
		"wrong estimates NaN":   func(c *Config) { c.WrongEstimates = math.NaN() },
		`fault "flood"`:         func(c *Config) { c.Faults = []string{"flood"} },
		"-1 tokens in host":     func(c *Config) { c.HostTokens = -1 },
		"at least a block":      func(c *Config) { c.HostTokens = 100 },
		"0 tokens a second":     func(c *Config) { c.HostTokens, c.HostRate = 1000, 0 },
		"dies with no pod":      func(c *Config) { c.Policy, c.Faults = sharedCache, []string{podFailure} },
		"65 speeds":             func(c *Config) { c.Speeds = slices.Repeat([]float64{1}, 65) },
		"65 faults":             func(c *Config) { c.Faults = slices.Repeat([]string{digestMissing}, 65) },
		fmt.Sprint("loss ", -1): func(c *Config) { c.Loss = -1 },
	} {
		cfg := Default()
		cfg.Trace, cfg.Policy = agents(1), ours
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}
