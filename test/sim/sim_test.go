package sim

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// agents is a trace of tasks, ten calls at once on 16 shared blocks, one task a second.
func agents(tasks int) *trace.Trace {
	t := &trace.Trace{BlockTokens: 512}
	for task := range tasks {
		for call := range 10 {
			r := trace.Request{At: time.Duration(task)*time.Second + time.Duration(call)*time.Millisecond, Previous: -1, Prompt: 16*512 + 500, Output: 200}
			for b := range 16 {
				r.Blocks = append(r.Blocks, uint64(task*100+b+1))
			}
			t.Requests = append(t.Requests, r)
		}
	}
	return t
}

func run(t *testing.T, cfg Config) *Result {
	t.Helper()
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOursComputesSharedPromptsOnce(t *testing.T) {
	for _, engine := range []Engine{Single, Chunked} {
		for _, tt := range []struct {
			policy    string
			low, high float64 // hit ratio
		}{{ours, 0.83, 0.86}, {roundRobinName, 0.1, 0.7}} {
			cfg := Default()
			cfg.Trace, cfg.Policy, cfg.Engine, cfg.Pods = agents(40), tt.policy, engine, 3
			r := run(t, cfg)
			if r.Unserved > 0 || r.HitRatio < tt.low || r.HitRatio > tt.high {
				t.Errorf("%s engine, %s: hit ratio %.3f, %d unserved; want %g to %g, none", engine, tt.policy, r.HitRatio, r.Unserved, tt.low, tt.high)
			}
		}
	}
}

func TestSameSeedSameResult(t *testing.T) {
	for _, policy := range Policies() {
		var first []byte
		for range 2 {
			cfg := Default()
			cfg.Trace, cfg.Policy, cfg.Gateways, cfg.Seed = agents(10), policy, 3, 5
			if policy != sharedCache {
				cfg.Engine = Chunked
			}
			b, err := json.Marshal(run(t, cfg))
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = b
			} else if string(b) != string(first) {
				t.Errorf("%s: two results of one seed:\n%s\n%s", policy, first, b)
			}
		}
	}
}

// Calls that wait for the one before never overlap, however slow the engine is.
func TestCausalArrivals(t *testing.T) {
	tr := &trace.Trace{BlockTokens: 512}
	for i := range 5 {
		tr.Requests = append(tr.Requests, trace.Request{Session: "s", Previous: i - 1, Think: time.Second, Prompt: 20_000, Output: 100})
	}
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods, cfg.Arrivals = tr, roundRobinName, 1, Causal
	causal := run(t, cfg)
	cfg.Arrivals = Open
	open := run(t, cfg)
	if spread := causal.TTFT.P99 - causal.TTFT.P50; spread > 0.001 {
		t.Errorf("causal: p99 is %.3f s above the median: calls waited for each other", spread)
	}
	if open.TTFT.P99 < 3*causal.TTFT.P99 {
		t.Errorf("open: p99 %.2f s, causal %.2f s: want the calls of one instant to queue", open.TTFT.P99, causal.TTFT.P99)
	}
}

func TestClientsGiveUp(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods, cfg.Timeout = agents(30), ours, 1, 5*time.Second
	for i := range cfg.Trace.Requests {
		for b := range cfg.Trace.Requests[i].Blocks {
			cfg.Trace.Requests[i].Blocks[b] = uint64(1000*i + b + 1) // nothing in common
		}
	}
	r := run(t, cfg)
	// Work comes for 30 s, and nobody waits for longer than 5 s after that: what was given up while held is not computed.
	if r.GPUSeconds < 25 || r.GPUSeconds > 37 {
		t.Errorf("%.1f s of prefill, want about 35", r.GPUSeconds)
	}
	if r.Unserved == 0 || r.Goodput > 0.9 || r.TTFT.P99 != 5 {
		t.Errorf("%d unserved, goodput %.2f, p99 %.1f s: want some that gave up, counted with the whole time-out", r.Unserved, r.Goodput, r.TTFT.P99)
	}
}

// A request that fits no engine is refused and holds nobody up.
func TestTooLong(t *testing.T) {
	for _, policy := range []string{ours, "llmd-legacy"} {
		cfg := Default()
		cfg.Trace, cfg.Policy, cfg.Engine = agents(2), policy, Chunked
		cfg.Trace.Requests[3].Prompt = cfg.PodTokens + 1
		if r := run(t, cfg); r.Unserved != 1 {
			t.Errorf("%s: %d unserved, want the one that is too long", policy, r.Unserved)
		}
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	_, err := Run(context.Background(), Config{Policy: "x", Pods: 65, Engine: "y", Arrivals: "z"})
	for _, want := range []string{"no trace", `policy "x"`, "pods 65", "gateways 0", `engine "y"`, `arrivals "z"`, "rate 0", "timeout 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

// The chunked engine never runs out of blocks for good, and gives every request its tokens.
func TestChunkedPreempts(t *testing.T) {
	e := &chunked{clock: sched.H200(), cache: &cache{pool: pool.New(pool.Config{Blocks: 41, BlockSize: 16})}}
	p := newPrompts(16, newHasher())
	tr := &trace.Trace{BlockTokens: 16}
	for range 4 {
		tr.Requests = append(tr.Requests, trace.Request{Previous: -1, Prompt: 100, Output: 120})
	}
	ended := 0
	var jobs []*job
	for i, r := range p.requests(tr) {
		jobs = append(jobs, &job{index: i, request: r, table: p.table(r)})
		e.submit(0, jobs[i])
	}
	for steps := 0; ended < len(jobs); steps++ {
		if steps > 10_000 || e.next() == never {
			t.Fatalf("after %d steps %d of %d requests have ended", steps, ended, len(jobs))
		}
		e.advance(e.next(), func(_ time.Duration, _ *job, end bool) {
			if end {
				ended++
			}
		})
	}
	if e.lost == 0 {
		t.Error("no preemption, though four answers do not fit")
	}
	for _, j := range jobs {
		if j.out != 120 || j.first == 0 || j.ended <= j.first {
			t.Errorf("request %d: %d tokens, first at %v, end at %v", j.index, j.out, j.first, j.ended)
		}
	}
	if l := e.load(); l.used != 0 || l.running != 0 || l.waiting != 0 || e.held != 0 {
		t.Errorf("idle engine: %+v, %d tokens held", l, e.held)
	}
}

func TestPeersRules(t *testing.T) {
	// Three pods: 0 has all of the prompt and much to do, 1 has a third and something to do, 2 is idle.
	sights := func(queue ...int) *sight {
		cfg := Default()
		cfg.Trace = agents(1)
		w := &world{cfg: &cfg}
		s := &sight{peers: &peers{w: w, routed: make([]routed, 3)}, matched: []int{16, 5, 0}}
		r := newPrompts(512, newHasher()).requests(cfg.Trace)[0]
		s.job = &job{request: r}
		for i, n := range queue {
			s.routed[i] = routed{outstanding: n, prefills: n, uncached: 5000 * n, tokens: 6000 * n, prompts: 6000 * n, load: load{blocks: 100, used: 10 * n}}
			clock := sched.H200()
			e := &single{clock: clock, cache: &cache{pool: pool.New(pool.Config{Blocks: 2, BlockSize: 512})}}
			for range n {
				e.queue = append(e.queue, &job{state: sent{5000, clock.Prefill(5000, 0)}})
			}
			w.pods = append(w.pods, &pod{engine: e, clock: clock, wrong: 1})
		}
		return s
	}
	for _, tt := range []struct {
		name  string
		rule  func(time.Duration, *sight) int
		queue []int
		want  int
	}{
		{"least outstanding", leastOutstanding, []int{3, 1, 0}, 2},
		{"blend: prefix outweighs an uneven queue", blend(3, 2, 2), []int{1, 1, 0}, 0},
		{"blend: queue and memory outweigh the prefix", blend(3, 2, 2), []int{9, 0, 0}, 1},
		{"llm-d: sticky while the penalty is small", llmdDefault, []int{3, 0, 0}, 0},
		{"llm-d: not at 18 s more", llmdDefault, []int{40, 1, 0}, 2},
		{"dynamo: blocks to prefill and to decode", dynamo, []int{1, 0, 0}, 1},
		{"dynamo: nothing to do anywhere", dynamo, []int{0, 0, 0}, 0},
		{"sglang: longest match", sglang, []int{60, 1, 0}, 0},
		{"sglang: shortest queue while uneven", sglang, []int{70, 1, 2}, 1},
		{"min TTFT: a queue is worth a prefill", minTTFT, []int{2, 0, 0}, 1},
		{"min TTFT: the cache", minTTFT, []int{0, 0, 0}, 0},
	} {
		if got := tt.rule(0, sights(tt.queue...)); got != tt.want {
			t.Errorf("%s: pod %d, want %d", tt.name, got, tt.want)
		}
	}
	// Session hash keeps to its pod until that has over 1.25 times the mean.
	home := sessionHash(0, sights(0, 0, 0))
	queue := []int{1, 1, 1}
	queue[home] = 3
	if got := sessionHash(0, sights(queue...)); got == home {
		t.Errorf("session hash: stays at pod %d with 3 of 6 requests", got)
	}
}

func TestIndexMatchesLikeSets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	p := newPrompts(16, newHasher())
	tr := &trace.Trace{BlockTokens: 16}
	for i := range 20 {
		r := trace.Request{Previous: -1, Prompt: 16 * 8}
		for b := range 8 {
			r.Blocks = append(r.Blocks, uint64(i%4*100+b)+1)
		}
		tr.Requests = append(tr.Requests, r)
	}
	reqs := p.requests(tr)
	x := newIndex()
	sets := make([]map[uint64]int, 5)
	for i := range sets {
		sets[i] = map[uint64]int{}
	}
	for range 2000 {
		pod, r := rng.IntN(5), reqs[rng.IntN(20)]
		b := rng.IntN(8)
		e := pool.Event{Kind: pool.Stored, Hashes: r.digests[b : b+1]}
		if id := r.Blocks[b]; rng.IntN(2) == 0 && sets[pod][id] > 0 {
			e.Kind = pool.Removed
			sets[pod][id]--
		} else {
			sets[pod][id]++
		}
		x.apply(e, pod, p)
		q := reqs[rng.IntN(20)]
		got := make([]int, 5)
		x.match(q.chain, got)
		for i := range sets {
			want := 0
			for want < 8 && sets[i][q.Blocks[want]] > 0 {
				want++
			}
			if got[i] != want {
				t.Fatalf("pod %d: %d blocks matched, want %d", i, got[i], want)
			}
		}
	}
}

// The figures that an independent simulation of the same model gave for the public traces (mean TTFT in seconds, exact and
// fresh knowledge, eight pods).
func TestReferenceFigures(t *testing.T) {
	dir := os.Getenv("GRAPEVINE_TRACES")
	if dir == "" {
		t.Skip("GRAPEVINE_TRACES names no folder with the public traces (docs/comparison.md says where they are)")
	}
	tr, err := trace.Read(filepath.Join(dir, "mooncake/conversation_trace.first60pct.jsonl.gz"), trace.Mooncake, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Trace, cfg.StateDelay, cfg.Timeout = tr, 0, longest
	saturation, err := Saturation(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		policy string
		load   float64
		mean   float64
		within float64
	}{
		{roundRobinName, 0.5, 3.53, 0.01}, {roundRobinName, 0.8, 13.82, 0.01}, {roundRobinName, 0.95, 38.9, 0.01},
		{"min-ttft", 0.5, 1.42, 0.02}, {"min-ttft", 0.8, 1.75, 0.02}, {"min-ttft", 0.95, 3.18, 0.02},
		{"least-outstanding", 0.8, 4.91, 0.06}, {"llmd-default", 0.8, 2.99, 0.03}, {"sglang", 0.8, 5.22, 0.03}, {"dynamo", 0.5, 1.53, 0.03},
	} {
		cfg.Policy = tt.policy
		cfg.Load(tt.load, saturation)
		if r := run(t, cfg); math.Abs(r.TTFT.Mean/tt.mean-1) > tt.within {
			t.Errorf("%s at %.0f %%: mean %.2f s, want %.2f within %.0f %%", tt.policy, 100*tt.load, r.TTFT.Mean, tt.mean, 100*tt.within)
		}
	}
}
