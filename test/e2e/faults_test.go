package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/demo"
	"github.com/grapevine-llm/grapevine/test/load"
)

// TestGatewayRestartCostsNoColdPrefill: a gateway that is restarted under load learns from the agents what the pods hold
// before it serves.
func TestGatewayRestartCostsNoColdPrefill(t *testing.T) {
	for name, end := range map[string]func(*cluster.Gateway){
		"update": func(g *cluster.Gateway) { g.Stop(30 * time.Second) },
		"crash":  func(g *cluster.Gateway) { g.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			f := up(t, cluster.Options{})
			// Questions far enough apart that each document's first prefill is over before the restart.
			w := load.DefaultDocuments()
			w.Users, w.Questions = 6, 5
			reqs := w.Requests(load.DefaultVocabulary())
			var answered atomic.Int64
			var wg sync.WaitGroup
			results := send(t, f.Gateways[0].URL, reqs, func(load.Result) {
				if answered.Add(1) == int64(len(reqs)/2) {
					wg.Go(func() {
						end(f.Gateways[0])
						if err := f.Gateways[0].Start(); err != nil {
							t.Error(err)
						}
					})
				}
			})
			wg.Wait()
			again := 0
			for _, r := range results {
				again += r.Retries
				if r.Err != nil && (name == "update" || r.TTFT == 0) {
					t.Errorf("request %d failed after %v to its first output: %v", r.Index, r.TTFT, r.Err)
				}
			}
			t.Logf("%d requests were sent again", again)
			stats, err := f.EngineStats()
			if err != nil {
				t.Fatal(err)
			}
			if stats.ColdPrefills != 6 {
				t.Errorf("engines report %d cold prefills, want one for each of 6 documents", stats.ColdPrefills)
			}
		})
	}
}

// TestGossipBlocked: with every gossip port shut, long enough for all nodes to give each other up, nothing fails and routing is no
// worse than least load; when they open, prefix routing is back.
func TestGossipBlocked(t *testing.T) {
	wall := newWall(t)
	ours := up(t, cluster.Options{Name: "ours", Wrap: wall.front})
	plain := up(t, cluster.Options{Name: "plain", Policy: "least-load"})
	wall.closed.Store(true)
	eventually(t, 10*time.Second, "all endpoints off the digest rung", func() error {
		for i := range ours.Engines {
			if r, err := rung(t, ours, ours.Gateways[0], i); err != nil || r == "digest" {
				return fmt.Errorf("engine %d: rung %s, %v", i, r, err)
			}
		}
		return nil
	})
	// Which pod a document lands on is luck under both policies: rounds are added up until the ratio is clear.
	const rounds, limit = 2, 1.1
	var a, b []load.Result
	var reqs []load.Request
	for round := range rounds {
		reqs = newDocuments(uint64(round+1), 6, 6)
		var wg sync.WaitGroup
		wg.Go(func() { a = append(a, send(t, ours.Gateways[0].URL, reqs, nil)...) })
		wg.Go(func() { b = append(b, send(t, plain.Gateways[0].URL, reqs, nil)...) })
		wg.Wait()
		t.Logf("round %d: ratio %.2f", round+1, meanTTFT(a[len(a)-len(reqs):])/meanTTFT(b[len(b)-len(reqs):]))
	}
	noErrors(t, a)
	noErrors(t, b)
	blocked, least := meanTTFT(a), meanTTFT(b)
	t.Logf("mean TTFT of %d requests on the engines' clock: gossip blocked %.0f ms, least load %.0f ms", len(a), blocked, least)
	if blocked > limit*least {
		t.Errorf("mean TTFT with gossip blocked is %.0f ms, over %g times least load's %.0f ms", blocked, limit, least)
	}

	wall.closed.Store(false)
	took := eventually(t, 10*time.Second, "all endpoints back on the digest rung", func() error {
		for i := range ours.Engines {
			if r, err := rung(t, ours, ours.Gateways[0], i); err != nil || r != "digest" {
				return fmt.Errorf("engine %d: rung %s, %v", i, r, err)
			}
		}
		return nil
	})
	t.Logf("back on the digest rung after %v", took.Round(10*time.Millisecond))
	time.Sleep(max(0, 2*time.Second-took)) // what was missed is fetched by then
	for _, req := range reqs[len(reqs)-3:] {
		if predicted, r := ask(t, ours.Gateways[0].URL, req); r.CachedTokens < req.PromptTokens()/2 || predicted != r.CachedTokens {
			t.Errorf("after opening: predicted %d, engine reports %d cached of %d", predicted, r.CachedTokens, req.PromptTokens())
		}
	}
}

// TestAgentKilled: no request is lost, the pod is routed by load within a second and comes back with its agent.
func TestAgentKilled(t *testing.T) {
	f := up(t, cluster.Options{})
	reqs := documents(6, 8)
	var once sync.Once
	var killed, off atomic.Int64
	var wg sync.WaitGroup
	var answered atomic.Int64
	results := send(t, f.Gateways[0].URL, reqs, func(load.Result) {
		if answered.Add(1) < int64(len(reqs)/3) {
			return
		}
		once.Do(func() {
			f.Agents[0].Kill()
			killed.Store(time.Now().UnixNano())
			wg.Go(func() {
				for range 500 {
					if r, err := rung(t, f, f.Gateways[0], 0); err == nil && r != "digest" {
						off.Store(time.Now().UnixNano())
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		})
	})
	wg.Wait()
	noErrors(t, results)
	took := time.Duration(off.Load() - killed.Load())
	if off.Load() == 0 {
		t.Fatal("the pod without an agent stays on the digest rung")
	}
	t.Logf("off the digest rung %v after the kill", took.Round(10*time.Millisecond))
	if took > 5*time.Second { // far beyond what a busy machine adds to the second that it should be
		t.Errorf("the pod was routed by its digest for %v after its agent's death, want about a second", took)
	}
	if err := f.Agents[0].Start(); err != nil {
		t.Fatal(err)
	}
	if err := f.WaitReporting(t.Context(), f.Gateways[0], 3, 20*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, req := range reqs[len(reqs)-3:] {
		if predicted, r := ask(t, f.Gateways[0].URL, req); predicted != r.CachedTokens || r.CachedTokens < req.PromptTokens()/2 {
			t.Errorf("after the agent's return: predicted %d, engine reports %d cached of %d", predicted, r.CachedTokens, req.PromptTokens())
		}
	}
}

// TestEngineKilled: only streams that had begun on the dead engine end in an error.
func TestEngineKilled(t *testing.T) {
	f := up(t, cluster.Options{})
	reqs := documents(6, 8)
	dead := strings.TrimPrefix(f.Engines[0].URL, "http://")
	var once sync.Once
	var answered atomic.Int64
	results := send(t, f.Gateways[0].URL, reqs, func(load.Result) {
		if answered.Add(1) >= int64(len(reqs)/3) {
			once.Do(f.Engines[0].Kill)
		}
	})
	failed := 0
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		failed++
		if at := r.Header.Get("X-Grapevine-Endpoint"); at != dead || r.TTFT == 0 {
			t.Errorf("request %d failed on %q after %v to its first output: %v; only streams begun on %s may", r.Index, at, r.TTFT, r.Err, dead)
		}
	}
	t.Logf("%d of %d requests had begun on the killed engine", failed, len(results))
	// The engine's documents find a new home: each is computed once more at most.
	rep := load.Summarize(results)
	if rep.Cold > 12 {
		t.Errorf("%d cold prefills, want at most 2 for each of 6 documents", rep.Cold)
	}
	if err := f.Engines[0].Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the restarted engine to answer and report", func() error {
		r, err := rung(t, f, f.Gateways[0], 0)
		if err == nil && r != "digest" {
			err = fmt.Errorf("rung %s", r)
		}
		return err
	})
	for _, req := range reqs[len(reqs)-6:] {
		if predicted, r := ask(t, f.Gateways[0].URL, req); predicted != r.CachedTokens {
			t.Errorf("after the engine's restart: predicted %d, engine reports %d", predicted, r.CachedTokens)
		}
	}
}

// TestSecondGatewayIsWarm: a gateway that starts late predicts as well as the first from its first answer on.
func TestSecondGatewayIsWarm(t *testing.T) {
	f := up(t, cluster.Options{})
	reqs := documents(6, 2)
	noErrors(t, send(t, f.Gateways[0].URL, reqs, nil))
	start := time.Now()
	second, err := f.AddGateway()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the second gateway to answer", func() error {
		resp, err := http.Get(second.URL + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	t.Logf("first answer %v after its start", time.Since(start).Round(10*time.Millisecond))
	for _, req := range reqs[len(reqs)-6:] {
		if predicted, r := ask(t, second.URL, req); predicted != r.CachedTokens || r.CachedTokens < req.PromptTokens()/2 {
			t.Errorf("second gateway: predicted %d, engine reports %d cached of %d", predicted, r.CachedTokens, req.PromptTokens())
		}
	}
}

// TestWithoutSpeculationDocumentsStayHome: the digest alone keeps each document on one pod.
func TestWithoutSpeculationDocumentsStayHome(t *testing.T) {
	f := up(t, cluster.Options{GatewayArgs: []string{"--speculating=false"}})
	w := load.DefaultDocuments() // questions far enough apart that the first one's prefill is over
	w.Users, w.Questions = 6, 3
	rep := noErrors(t, send(t, f.Gateways[0].URL, w.Requests(load.DefaultVocabulary()), nil))
	if rep.Cold != 6 {
		t.Errorf("%d cold prefills, want one for each of 6 documents", rep.Cold)
	}
}

// meanTTFT on the engines' clock, in milliseconds.
func meanTTFT(results []load.Result) float64 {
	var sum float64
	for i := range results {
		sum += demo.EmulatedTTFT(&results[i], speedup)
	}
	return sum / float64(len(results))
}
