package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/load"
)

// long is a request with a prompt that no other has, of about 1.7 s on this fleet's engines.
func long(seed uint64) load.Request {
	rng := rand.New(rand.NewPCG(seed, 1))
	ids := make([]uint32, 100_000)
	for i := range ids {
		ids[i] = 300 + rng.Uint32N(3700)
	}
	return load.Request{Parts: [][]uint32{ids}, MaxTokens: 4}
}

// others adds up the requests of other gateways that g counts.
func others(t *testing.T, f *cluster.Fleet, g *cluster.Gateway) int {
	t.Helper()
	endpoints, err := f.Status(g)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range endpoints {
		n += e.Others
	}
	return n
}

// knownGateways is how many other gateways g tells.
func knownGateways(f *cluster.Fleet, g *cluster.Gateway) (float64, error) {
	m, err := f.Metrics(g.Admin + "/metrics")
	return m["grapevine_other_gateways"], err
}

// TestGatewaysTellEachOther: three gateways that get a long prompt each, one after the other, use three engines; and the
// requests of a gateway that is killed don't count for long.
func TestGatewaysTellEachOther(t *testing.T) {
	f := up(t, cluster.Options{GatewayArgs: []string{"--holding=false"}}) // so that queues at engines get long
	for range 2 {
		g, err := f.AddGateway()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := f.WaitReporting(ctx, g, 3, 20*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range f.Gateways {
		eventually(t, 10*time.Second, g.Name+" to know both others", func() error {
			n, err := knownGateways(f, g)
			if err == nil && n != 2 {
				err = fmt.Errorf("knows %g", n)
			}
			return err
		})
	}

	var wg sync.WaitGroup
	results := make([]load.Result, 3)
	for i, g := range f.Gateways {
		wg.Go(func() { results[i] = send(t, g.URL, []load.Request{long(uint64(i))}, nil)[0] })
		if i == 2 {
			break
		}
		next := f.Gateways[i+1]
		took := eventually(t, time.Second, next.Name+" to hear of the requests before its own", func() error {
			if n := others(t, f, next); n != i+1 {
				return fmt.Errorf("counts %d", n)
			}
			return nil
		})
		t.Logf("heard within %v of the request being sent", took.Round(time.Millisecond))
	}
	wg.Wait()
	noErrors(t, results)
	engines := map[string]bool{}
	for _, r := range results {
		engines[r.Header.Get("X-Grapevine-Endpoint")] = true
	}
	if len(engines) != 3 {
		t.Errorf("three prompts at three gateways went to %d engines, want 3", len(engines))
	}

	// Twelve requests are seven seconds of prefill on each engine.
	var many []load.Request
	for i := range 12 {
		many = append(many, long(uint64(10+i)))
	}
	wg.Go(func() { send(t, f.Gateways[0].URL, many, nil) }) // most end in an error
	for _, g := range f.Gateways[1:] {
		eventually(t, 5*time.Second, g.Name+" to hear of most requests", func() error {
			if n := others(t, f, g); n < 9 {
				return fmt.Errorf("counts %d", n)
			}
			return nil
		})
	}
	f.Gateways[0].Kill()
	for _, g := range f.Gateways[1:] {
		took := eventually(t, 6*time.Second, g.Name+" to forget them", func() error {
			n, err := knownGateways(f, g)
			if left := others(t, f, g); err == nil && (n != 1 || left > 0) {
				err = fmt.Errorf("knows %g other gateways and counts %d requests", n, left)
			}
			return err
		})
		t.Logf("%s forgot them within %v", g.Name, took.Round(10*time.Millisecond))
	}
	wg.Wait()
}
