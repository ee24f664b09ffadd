package picker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

func TestGoesWhereThePromptIsCached(t *testing.T) {
	f := newFleet(t, 3, nil)
	ids := prompt(1, 5000)
	f.holds(2, ids[:4000])
	d := f.pick(Request{ID: "a", Model: "llama", TokenIDs: ids})
	if d.Endpoint.ID != id(2) || d.Rung != RungDigest {
		t.Fatalf("went to %s by %v, want %s by its digest", d.Endpoint.ID, d.Rung, id(2))
	}
	if d.MatchedBlocks < 250 || d.MatchedBlocks > 252 || d.PromptBlocks != 312 || d.PredictedCachedTokens != d.MatchedBlocks*blockSize {
		t.Errorf("matched %d of %d blocks, %d tokens; want 250 of 312, 4000", d.MatchedBlocks, d.PromptBlocks, d.PredictedCachedTokens)
	}
	r, ok := f.Receipt("a")
	if !ok || r.Endpoint != id(2) || len(r.Candidates) != 3 || r.Outcome != nil {
		t.Fatalf("receipt %+v", r)
	}
	if c := r.Candidates[0]; c.Endpoint != id(2) || c.Prefill <= 0 || c.Spread != leastCrowding*c.Prefill || c.CostMs >= r.Candidates[1].CostMs {
		t.Errorf("cheapest candidate %+v", c)
	}
	f.Done(d, answered(4000, 5000))
	if r, _ = f.Receipt("a"); r.Outcome == nil || r.Outcome.CachedTokens != 4000 {
		t.Errorf("outcome %+v, want 4000 cached tokens", r.Outcome)
	}
}

func TestNothingIsReadFromTheCache(t *testing.T) {
	f := newFleet(t, 2, nil)
	ids := prompt(1, 4096)
	f.holds(1, ids)
	if d := f.pick(Request{ID: "whole", TokenIDs: ids}); d.PredictedCachedTokens != 4080 {
		t.Errorf("a prompt that is cached whole: %d tokens predicted, want 4080: the last one is computed", d.PredictedCachedTokens)
	}
	if d := f.pick(Request{ID: "logprobs", TokenIDs: ids, NoCacheRead: true}); d.PredictedCachedTokens != 0 {
		t.Errorf("prompt_logprobs: %d tokens predicted, want 0", d.PredictedCachedTokens)
	}
	if d := f.pick(Request{ID: "salted", TokenIDs: ids, Extras: []blockhash.Extra{{Kind: blockhash.CacheSalt, Value: "x"}}}); d.PredictedCachedTokens != 0 {
		t.Errorf("another salt: %d tokens predicted, want 0", d.PredictedCachedTokens)
	}
	d := f.pick(Request{ID: "image", TokenIDs: ids, Extras: []blockhash.Extra{{Kind: blockhash.Multimodal, Value: "i", Offset: 1000}}})
	if d.PredictedCachedTokens != 992 {
		t.Errorf("image at token 1000: %d tokens predicted, want 992 before it", d.PredictedCachedTokens)
	}
	if d := f.pick(Request{ID: "unknown", PromptTokens: 4096}); d.PredictedCachedTokens != 0 || d.Rung != RungLoad {
		t.Errorf("unknown tokens: %d predicted by %v, want 0 by load", d.PredictedCachedTokens, d.Rung)
	}
}

// Ten calls of one agent in one moment: the first binds, the others wait for its endpoint and go there one by one,
// though nothing has been reported yet and two endpoints idle.
func TestParallelCallsGoHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 3, nil)
		defer f.running()()
		shared := prompt(1, 8192)
		type result struct {
			d  Decision
			at time.Duration
		}
		results := make(chan result, 10)
		start := time.Now()
		for call := range 10 {
			ids := append(slices.Clone(shared), prompt(uint64(100+call), 500)...)
			go func() {
				d, err := f.Pick(t.Context(), Request{ID: fmt.Sprint("call ", call), Model: "llama", TokenIDs: ids})
				if err != nil {
					t.Error(err)
				}
				results <- result{d, time.Since(start)}
			}()
			time.Sleep(100 * time.Microsecond)
		}
		var got []result
		for range 10 {
			r := <-results
			got = append(got, r)
			// The engine: one prefill at a time, 0.86 s cold and 0.07 s warm.
			took := 860 * time.Millisecond
			if r.d.PredictedCachedTokens >= 8192 {
				took = 71 * time.Millisecond
			}
			time.Sleep(took)
			f.FirstToken(r.d)
		}
		cold := 0
		for i, r := range got {
			if r.d.Endpoint != got[0].d.Endpoint {
				t.Errorf("call %d went to %s, the first to %s", i, r.d.Endpoint.ID, got[0].d.Endpoint.ID)
			}
			if r.d.PredictedCachedTokens == 0 {
				cold++
			}
			f.Done(r.d, answered(r.d.PredictedCachedTokens, 8692))
		}
		if cold != 1 {
			t.Errorf("%d calls compute the shared tokens, want 1", cold)
		}
		if last := got[9]; last.d.Held < 850*time.Millisecond || last.at > 2*time.Second || last.d.Reason != "ready" {
			t.Errorf("last call: %s after %v", last.d.Reason, last.at)
		}
	})
}

func TestPrefillEnds(t *testing.T) {
	ids := prompt(1, 8192)
	tests := []struct {
		name string
		end  func(f *fleet, d Decision)
		want time.Duration // that the second request waits
	}{
		{"twice the predicted time, if nothing is told", func(*fleet, Decision) {}, 1600 * time.Millisecond},
		{"first token", func(f *fleet, d Decision) { f.FirstToken(d) }, 300 * time.Millisecond},
		{"cancelled", func(f *fleet, d Decision) { f.Done(d, Outcome{Cancelled: true, CachedTokens: -1}) }, 300 * time.Millisecond},
		{"last block in the digest", func(f *fleet, _ Decision) { f.holds(0, ids) }, 300 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, nil)
				defer f.running()()
				d := f.pick(Request{ID: "a", TokenIDs: ids})
				go func() {
					time.Sleep(300 * time.Millisecond)
					tt.end(f, d)
				}()
				b := f.pick(Request{ID: "b", TokenIDs: prompt(2, 1000)})
				if b.Held < tt.want-20*time.Millisecond || b.Held > tt.want+40*time.Millisecond {
					t.Errorf("held for %v, want about %v", b.Held, tt.want)
				}
			})
		})
	}
	t.Run("predicted end, less the time to get there, where nothing can tell", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, 1, nil)
			defer f.running()()
			f.pick(Request{ID: "a", PromptTokens: len(ids), NoFirstToken: true})
			if b := f.pick(Request{ID: "b", PromptTokens: 1000}); b.Held < 755*time.Millisecond || b.Held > 815*time.Millisecond {
				t.Errorf("held for %v, want about 775ms", b.Held)
			}
		})
	})
}

func TestHoldEnds(t *testing.T) {
	busy := func(f *fleet) { f.pick(Request{ID: "busy", TokenIDs: prompt(9, 200_000)}) } // a prefill of 50 s
	req := Request{ID: "a", TokenIDs: prompt(1, 1000)}
	tests := []struct {
		name   string
		change func(*Config)
		req    func(*Request)
		during func(f *fleet, cancel func())
		want   time.Duration
		reason string
		err    error
	}{
		{name: "age", want: 10 * time.Second, reason: "expired"},
		{name: "age, scaled", change: func(c *Config) { *c = c.Scaled(10) }, want: time.Second, reason: "expired"},
		{
			name: "deadline", req: func(r *Request) { r.Deadline = time.Now().Add(4 * time.Second) },
			want: time.Second, reason: "expired",
		},
		{name: "sheddable", req: func(r *Request) { r.Sheddable = true }, want: 10 * time.Second, err: ErrOverloaded{}},
		{name: "bound queue at its limit", change: func(c *Config) { c.Hold.MaxBound = 1 }, want: 10 * time.Second, err: ErrOverloaded{}},
		{name: "client gone", during: func(_ *fleet, cancel func()) { cancel() }, want: time.Second, err: context.Canceled},
		{name: "drain", during: func(f *fleet, _ func()) { f.Drain() }, want: time.Second, reason: "drained"},
		{
			name: "hold turned off", during: func(f *fleet, _ func()) {
				p := DefaultPolicy()
				p.Hold = false
				f.SetPolicy(p)
			}, want: time.Second, reason: "drained",
		},
		{name: "pool emptied", during: func(f *fleet, _ func()) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.cfg.Discover = false
			f.rebuild(time.Now(), f.view.Snapshot())
			f.pump(time.Now())
		}, want: time.Second, err: ErrNoEndpoints},
		{name: "hold off", change: func(c *Config) { c.Policy.Hold = false }, want: 0, reason: "early"},
		{name: "held bytes", change: func(c *Config) { c.Hold.MaxBytes = 100 }, want: 0, reason: "crowded"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1, func(c *Config) {
					c.Hold.MaxAge = 10 * time.Second
					if tt.change != nil {
						tt.change(c)
					}
				})
				defer f.running()()
				busy(f)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.during != nil {
					go func() {
						time.Sleep(time.Second)
						tt.during(f, cancel)
					}()
				}
				r := req
				if tt.req != nil {
					tt.req(&r)
				}
				start := time.Now()
				d, err := f.Pick(ctx, r)
				if took := time.Since(start); took < tt.want || took > tt.want+50*time.Millisecond {
					t.Errorf("took %v, want %v", took, tt.want)
				}
				if overloaded := (ErrOverloaded{}); errors.As(tt.err, &overloaded) {
					if !errors.As(err, &overloaded) || overloaded.RetryAfter < time.Second || overloaded.RetryAfter > 2*time.Second {
						t.Errorf("error %v, want overloaded with a jittered second", err)
					}
				} else if !errors.Is(err, tt.err) {
					t.Errorf("error %v, want %v", err, tt.err)
				}
				if d.Reason != tt.reason {
					t.Errorf("bound as %q, want %q", d.Reason, tt.reason)
				}
				if s := f.Status(); s.Held.Requests != 0 {
					t.Errorf("%d still held", s.Held.Requests)
				}
			})
		})
	}
}

// SIGTERM: what is held is bound before Run returns.
func TestRunBindsAllWhenItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, nil)
		stop := f.running()
		f.pick(Request{ID: "busy", TokenIDs: prompt(9, 100_000)})
		reasons := make(chan string, 5)
		for i := range 5 {
			go func() {
				d, err := f.Pick(t.Context(), Request{ID: fmt.Sprint(i), TokenIDs: prompt(uint64(i), 1000)})
				if err != nil {
					t.Error(err)
				}
				reasons <- d.Reason
			}()
		}
		synctest.Wait()
		if s := f.Status(); s.Held.Requests != 5 || s.Held.Wanted < 2 {
			t.Errorf("held %+v, want 5 requests", s.Held)
		}
		stop()
		for range 5 {
			if got := <-reasons; got != "drained" {
				t.Errorf("bound as %q, want drained", got)
			}
		}
		if d := f.pick(Request{ID: "late", TokenIDs: prompt(8, 1000)}); d.Reason != "early" {
			t.Errorf("after Run: bound as %q, want early", d.Reason)
		}
	})
}

func TestModels(t *testing.T) {
	cfg := Default()
	cfg.Endpoints = []string{"http://a:1", "b:2/", "https://c"}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pick := func(model string) (string, error) {
		d, err := p.Pick(t.Context(), Request{ID: model, Model: model, PromptTokens: 10})
		return d.Endpoint.URL, err
	}
	p.SetModels(map[string][]string{"a:1": {"llama", "lora"}, "http://b:2": {"qwen"}, "nowhere:1": {"none"}})
	for model, want := range map[string][]string{
		"llama": {"http://a:1", "https://c"}, "qwen": {"http://b:2", "https://c"}, "other": {"https://c"}, "": {"http://a:1", "http://b:2", "https://c"},
	} {
		for range 5 {
			if got, err := pick(model); err != nil || !slices.Contains(want, got) {
				t.Errorf("model %q went to %s (%v), want one of %v", model, got, err, want)
			}
		}
	}
	p.SetModels(map[string][]string{"c:443": {"qwen"}})
	_, err = pick("other")
	var unknown ErrUnknownModel
	if !errors.As(err, &unknown) {
		t.Fatalf("error %v, want ErrUnknownModel", err)
	}
	if diff := cmp.Diff(ErrUnknownModel{Model: "other", Known: []string{"llama", "lora", "qwen"}}, unknown); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAgentThatHearsNoEventsKnowsNoCache(t *testing.T) {
	f := newFleet(t, 1, nil)
	tell := func(state string) {
		a := f.agents[0]
		a.info.Version++
		a.info.KVEvents = state
		f.sendInfo(a)
		f.tick()
	}
	rung := func() Rung { return f.Status().Endpoints[0].Rung }
	for _, state := range []string{"silent", "absent"} {
		tell(state)
		if got := rung(); got != RungLoad {
			t.Errorf("events %s: rung %v, want load", state, got)
		}
	}
	req := Request{ID: "a", TokenIDs: prompt(1, 1000)}
	f.Done(f.pick(req), answered(0, 1000))
	if d := f.pick(req); d.Rung != RungSpeculation || d.MatchedBlocks == 0 || d.DigestBlocks != 0 {
		t.Errorf("rung %v with %d blocks, want those of the request before, by speculation", d.Rung, d.MatchedBlocks)
	}
	tell("ok")
	if got := rung(); got != RungDigest {
		t.Errorf("events again: rung %v, want digest", got)
	}
}

func TestRanksThatARestartTookAwayAreGone(t *testing.T) {
	f := newFleet(t, 1, nil)
	a := f.agents[0]
	announce := func(ranks ...wire.RankInfo) {
		a.info.Version++
		a.info.Ranks = ranks
		f.sendInfo(a)
	}
	first := a.info.Ranks[0]
	second := wire.RankInfo{Rank: 1, Epoch: 1, GPU: first.GPU}
	announce(first, second)
	other := &agent{clock: a.clock, load: a.load, pub: digest.New(digest.Config{
		Key: a.info.Key(1), Node: wire.NodeHash(a.info.Node), GPU: first.GPU, Epoch: 1,
		MinInterval: time.Millisecond, MaxInterval: 200 * time.Millisecond, BytesPerSec: 1 << 30,
	})}
	f.tick(a, other)
	ids := func() (ids []string) {
		for _, e := range f.Status().Endpoints {
			ids = append(ids, e.ID)
		}
		return ids
	}
	if diff := cmp.Diff([]string{id(0) + "#0", id(0) + "#1"}, ids()); diff != "" {
		t.Fatalf("two ranks (-want +got):\n%s", diff)
	}
	announce(first)
	f.tick(a)
	if diff := cmp.Diff([]string{id(0)}, ids()); diff != "" {
		t.Errorf("one rank (-want +got):\n%s", diff)
	}
}

func TestPool(t *testing.T) {
	f := newFleet(t, 2, func(c *Config) { c.Endpoints = []string{id(0), "other:9"} })
	ids := func() (ids []string) {
		for _, e := range f.Status().Endpoints {
			ids = append(ids, fmt.Sprint(e.ID, " ", e.Rung))
		}
		return ids
	}
	want := []string{id(0) + " digest", id(1) + " digest", "other:9 own"}
	if diff := cmp.Diff(want, ids()); diff != "" {
		t.Errorf("static, announced, and both (-want +got):\n%s", diff)
	}
	ranks := f.agents[1]
	ranks.info.Version++
	ranks.info.Ranks = append(ranks.info.Ranks, wire.RankInfo{Rank: 1, Epoch: 5, GPU: ranks.info.Ranks[0].GPU})
	f.sendInfo(ranks)
	f.tick()
	got := ids()
	if len(got) < 3 || got[1] != id(1)+"#0 digest" {
		t.Errorf("endpoints %v, want the rank in the ID", got)
	}
	if err := f.SetEndpoints([]string{"other:9", "third:1"}); err != nil {
		t.Fatal(err)
	}
	if got := ids(); !slices.Contains(got, "third:1 own") || !slices.Contains(got, id(0)+" digest") {
		t.Errorf("endpoints %v: want third:1, and %s by its agent", got, id(0))
	}
	if err := f.SetEndpoints([]string{"ftp://x", "ok:1"}); err == nil {
		t.Error("an ftp endpoint was taken")
	}
	empty := newFleet(t, 0, nil)
	if _, err := empty.Pick(t.Context(), Request{}); !errors.Is(err, ErrNoEndpoints) {
		t.Errorf("error %v, want ErrNoEndpoints", err)
	}
}

// TestChainsEndAtTheFirstImage: ready chains are cut where hashed ids are.
func TestChainsEndAtTheFirstImage(t *testing.T) {
	f := newFleet(t, 1, nil)
	ids := prompt(1, 1000)
	f.holds(0, ids)
	extras := []blockhash.Extra{{Kind: blockhash.Multimodal, Value: "x", Offset: 330}}
	hashes := chain(f.Picker, ids)
	byIDs := f.pick(Request{ID: "ids", TokenIDs: ids, Extras: extras})
	byChain := f.pick(Request{ID: "chain", PromptTokens: len(ids), Extras: extras,
		Chains: []blockhash.Chain{{BlockSize: blockSize, Seed: f.hasher.Fingerprint(), Root: f.hasher.Root(extras...), Hashes: hashes}}})
	if byIDs.MatchedBlocks != 330/blockSize || byChain.MatchedBlocks != byIDs.MatchedBlocks {
		t.Errorf("%d blocks by ids, %d by a chain, want %d", byIDs.MatchedBlocks, byChain.MatchedBlocks, 330/blockSize)
	}
}

// TestFillsWhatSaysNothingOfItself: an endpoint without an agent is as large as the others, and filled by what was sent there.
func TestFillsWhatSaysNothingOfItself(t *testing.T) {
	f := newFleet(t, 1, func(c *Config) { c.Endpoints = []string{"other:9"} })
	f.agents[0].load.BlocksFree = 0
	f.tick()
	ready := func() bool {
		t.Helper()
		r, err := f.Explain(t.Context(), Request{ID: "x", TokenIDs: prompt(99, 60_000)})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(r.Candidates, func(c Candidate) bool { return c.Endpoint == "other:9" })
		return r.Candidates[i].Ready
	}
	var last Decision
	for i := range 3 { // 3,750 blocks each, and the answer's
		if !ready() {
			t.Fatalf("full with %d prompts of 60,000 tokens; the other endpoint holds 192,000", i)
		}
		last = f.pick(Request{ID: fmt.Sprint(i), TokenIDs: prompt(uint64(i), 60_000)})
		if last.Endpoint.ID != "other:9" {
			t.Fatalf("prompt %d went to %s, which has no room", i, last.Endpoint.ID)
		}
		f.FirstToken(last)
	}
	if ready() {
		t.Error("ready for a fourth prompt of 60,000 tokens; the other endpoint holds 192,000")
	}
	if s := f.Status(); s.Endpoints[slices.IndexFunc(s.Endpoints, func(e EndpointStatus) bool { return e.ID == "other:9" })].Blocks != 0 {
		t.Error("the status says what is only assumed")
	}
	if f.Done(last, answered(0, 60_000)); !ready() {
		t.Error("still full after one of three has ended")
	}
}
