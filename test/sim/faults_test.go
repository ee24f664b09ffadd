package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// strangers is n requests of 8 blocks that nobody else has, 20 a second.
func strangers(n int) *trace.Trace {
	t := &trace.Trace{BlockTokens: 512}
	for i := range n {
		r := trace.Request{At: time.Duration(i) * 50 * time.Millisecond, Previous: -1, Prompt: 8*512 + 100, Output: 5}
		for b := range 8 {
			r.Blocks = append(r.Blocks, uint64(i*8+b+1))
		}
		t.Requests = append(t.Requests, r)
	}
	return t
}

// claimed is how many blocks too many a digest gave for a job.
func claimed(j *job) int {
	d, ok := j.state.(picker.Decision)
	if !ok {
		return 0
	}
	return max(0, d.DigestBlocks-j.cached/512)
}

func TestParseFault(t *testing.T) {
	for s, want := range map[string]fault{
		"digest-missing":        {kind: digestMissing, at: -1},
		"digest-lying":          {kind: digestLying, at: -1},
		"digest-stale":          {kind: digestStale, at: -1},
		"digest-stale@1m30s":    {kind: digestStale, at: 90 * time.Second},
		"pod-failure@10s+500ms": {kind: podFailure, at: 10 * time.Second, lasts: 500 * time.Millisecond},
	} {
		got, err := parseFault(s)
		if err != nil || got.kind != want.kind || got.at != want.at || got.lasts != want.lasts {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for s, want := range map[string]string{
		"":                     "give digest-missing",
		"digest-missing@1s":    "no time",
		"digest-lying@1s+1s":   "no end",
		"pod-failure@":         "time like",
		"pod-failure@-1s":      "time like",
		"pod-failure@9999999h": "time like",
		"pod-failure@1s+0s":    "duration like",
		"pod-failure@1s+x":     "duration like",
	} {
		if _, err := parseFault(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", s, err, want)
		}
	}
}

func TestThird(t *testing.T) {
	seen := map[int]bool{}
	for pods, want := range map[int]int{1: 1, 2: 1, 3: 1, 8: 3, 64: 22} {
		for seed := range uint64(10) {
			cfg := Config{Pods: pods, Seed: seed}
			got := cfg.third(0)
			if len(got) != want {
				t.Errorf("%d of %d pods, want %d", len(got), pods, want)
			}
			if pods == 8 {
				for _, p := range got {
					seen[p] = true
				}
			}
		}
	}
	if len(seen) != 8 {
		t.Errorf("ten seeds never hit some of the pods: %v", seen)
	}
}

func TestDigestMissing(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods, cfg.Gateways, cfg.Faults = agents(40), ours, 6, 2, []string{digestMissing}
	w := played(t, cfg, nil)
	for i, a := range w.policy.(*fleet).agents {
		if _, hit := w.hit(digestMissing, i); hit != (a == nil) {
			t.Errorf("pod %d: missing %v, agent %v", i, hit, a != nil)
		}
		if w.pods[i].jobs == 0 {
			t.Errorf("pod %d gets nothing", i)
		}
	}
	if r := w.result(); r.Unserved > 0 {
		t.Errorf("%d unserved", r.Unserved)
	}
}

func TestDigestStale(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods = agents(40), ours, 3
	cfg.Faults = []string{digestStale + "@10s+10s"}
	w := played(t, cfg, nil)
	sick := w.faults[0].pods[0]
	rungs := map[picker.Rung][2]int{} // of jobs there, in and after the silence
	for _, j := range w.jobs {
		d := j.state.(picker.Decision)
		n := rungs[d.Rung]
		switch at := j.arrived; {
		case j.pod == sick && at > 12*time.Second && at < 20*time.Second:
			n[0]++
		case j.pod == sick && at > 22*time.Second:
			n[1]++
		}
		rungs[d.Rung] = n
		if j.pod != sick && j.arrived >= time.Second && d.Rung != picker.RungDigest {
			t.Errorf("request %d: by %v on a pod that is well", j.index, d.Rung)
		}
	}
	if n := rungs[picker.RungDigest]; n[0] > 0 || n[1] == 0 {
		t.Errorf("by the digest of the silent agent: %d requests in its silence, %d after it", n[0], n[1])
	}
}

func TestDigestLying(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods, cfg.Faults = agents(60), ours, 3, []string{digestLying + "@5s"}
	w := played(t, cfg, nil)
	liar := w.faults[0].pods[0]
	early, late := 0, 0
	for _, j := range w.jobs {
		n := claimed(j)
		switch {
		case j.pod != liar:
		case j.arrived < 5*time.Second:
			early += n
		default:
			late += n
		}
	}
	a := w.policy.(*fleet).agents[liar]
	lies := 0
	for range a.claimed(0) {
		lies++
	}
	if own := a.set.Stats().Visible[0]; early > 0 || lies <= own {
		t.Errorf("%d blocks believed before the lie; the digest claims %d blocks, of which %d are there", early, lies, own)
	}
	cfg.Faults = nil
	honest := played(t, cfg, nil)
	for _, j := range honest.jobs {
		if n := claimed(j); n > 0 && j.pod == liar {
			late -= n
		}
	}
	if late <= 0 {
		t.Errorf("%d more blocks believed of a liar than of an honest agent", late)
	}
}

func TestPodFailure(t *testing.T) {
	for _, engine := range []Engine{Single, Chunked} {
		for _, policy := range []string{ours, roundRobinName, "dynamo", "min-ttft"} {
			cfg := Default()
			cfg.Trace, cfg.Policy, cfg.Engine, cfg.Pods, cfg.Gateways = agents(40), policy, engine, 3, 2
			cfg.Faults = []string{podFailure + "@10.3s+10s"}
			w := played(t, cfg, nil)
			dead := w.faults[0].pods[0]
			moved, broken, back := 0, 0, 0
			for _, j := range w.jobs {
				switch {
				case j.failed && j.first == 0:
					t.Errorf("%s engine, %s: request %d was not tried elsewhere", engine, policy, j.index)
				case j.failed:
					broken++
				case j.moves > 0:
					moved++
				}
				if j.pod == dead && !j.failed && j.first > 10300*time.Millisecond {
					if back++; j.first < 20300*time.Millisecond {
						t.Errorf("%s engine, %s: request %d was served by a dead pod at %v", engine, policy, j.index, j.first)
					}
				}
			}
			if moved+broken == 0 || back == 0 {
				t.Errorf("%s engine, %s: %d requests moved, %d broke, %d were served by the pod that came back", engine, policy, moved, broken, back)
			}
			if p, ok := w.policy.(*peers); ok {
				for i, r := range p.routed {
					if r.outstanding != 0 || r.prefills != 0 || r.uncached != 0 || r.tokens != 0 {
						t.Errorf("%s engine, %s: pod %d, all over: the router still counts %+v", engine, policy, i, r)
					}
				}
				if n := len(p.index.expected); n > 0 {
					t.Errorf("%s engine, %s: %d blocks still expected", engine, policy, n)
				}
			} else if e := w.policy.(*fleet).agents[dead].pub.Epoch(); e != 2 {
				t.Errorf("%s engine: epoch %d after a restart, want 2", engine, e)
			}
		}
	}
}

// The peers' index follows a pod through its death.
func TestIndexForgetsTheDead(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods, cfg.StateDelay, cfg.Faults = agents(30), "dynamo", 3, 2*time.Second, []string{podFailure + "@10.9s+5s"}
	w := played(t, cfg, nil)
	w.open++ // until the last event is known
	if err := w.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	counted := make([]int, cfg.Pods)
	for k, n := range w.policy.(*peers).index.copies {
		counted[k.pod] += n
	}
	for i, p := range w.pods {
		if want := p.engine.(*single).cache.pool.Hashed(); counted[i] != want {
			t.Errorf("pod %d: %d blocks in the index, %d in the cache", i, counted[i], want)
		}
	}
}

// dials counts connections that could not be made.
type dials struct {
	policy
	n, again int
}

func (d *dials) broken(now time.Duration, j *job, reached bool) {
	if !reached {
		d.n++
	}
	if j.avoid&(1<<j.pod) != 0 {
		d.again++
	}
	d.policy.broken(now, j, reached)
}

// A gateway that hears of no agent, and to which a dead pod must seem idle, calls it at one moment, not again and again.
func TestGatewaysAvoidTheDead(t *testing.T) {
	cfg := Default()
	cfg.Trace, cfg.Policy, cfg.Pods = agents(40), ours, 3
	cfg.Faults = append(slices.Repeat([]string{digestMissing}, 30), podFailure+"@0s+1h") // thirds enough for all
	d := &dials{}
	w := played(t, cfg, func(p policy) policy { d.policy = p; return d })
	if f := d.policy.(*fleet); f.agents[0] != nil || f.agents[1] != nil || f.agents[2] != nil {
		t.Fatal("some pod has an agent; the test wants none")
	}
	if r := w.result(); d.n == 0 || d.n > 10 || d.again > 0 || r.Unserved > 0 {
		t.Errorf("%d calls of a dead pod, %d by requests that it had failed, %d unserved; want a few, none, none", d.n, d.again, r.Unserved)
	}
}

// Where all pods are dead clients are refused, and come again.
func TestAllPodsFail(t *testing.T) {
	for _, policy := range []string{ours, "sglang"} {
		cfg := Default()
		cfg.Trace, cfg.Policy, cfg.Pods = agents(3), policy, 1
		cfg.Faults = []string{podFailure + "@0s+5s"}
		if r := run(t, cfg); r.Unserved != 30 || r.Rejected != 30 {
			t.Errorf("%s: %d unserved, %d refused, want all 30", policy, r.Unserved, r.Rejected)
		}
		cfg.Retries = 10
		if r := run(t, cfg); r.Unserved != 0 || r.TTFT.P50 < 3 {
			t.Errorf("%s: %d unserved with ten retries, median %.1f s", policy, r.Unserved, r.TTFT.P50)
		}
	}
}

func TestFaultsFollowSeed(t *testing.T) {
	a, b := Config{Pods: 30, Seed: 1}, Config{Pods: 30, Seed: 2}
	if slices.Equal(a.third(0), b.third(0)) || slices.Equal(a.third(0), a.third(1)) {
		t.Error("two seeds, or two faults, draw the same pods")
	}
}
