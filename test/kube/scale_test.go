package kube

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	many     = 1000
	kwokNode = "kwok-0"
)

// thousandPods measures what a pool of a thousand pods costs a gateway: its start, its memory, and its CPU when pods come and go.
func (p *plane) thousandPods(t *testing.T) {
	p.addNode(t, kwokNode, kwokCIDR, map[string]string{"kwok.x-k8s.io/node": "fake"})
	p.start(t, "kwok", "--kubeconfig", p.kubeconf, "--config", filepath.Join(p.parts, "kwok-stages.yaml"),
		"--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake", "--node-ip", "127.0.0.1", "--cidr", kwokCIDR)
	p.namespace(t, "big", nil)
	p.makePool(t, "big", "thousand", "many")
	if _, err := p.run("", "helm", "install", "big", chart, "-n", "big", "--set", "image.registry=grapevine.test", "--set", "image.tag=v1",
		"--set", "injector.enabled=false", "--set", "gateway.replicas=1", "--set", "pools.inferencePools={big/thousand}", "--set", "gateway.preStopSeconds=0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = p.run("", "helm", "uninstall", "big", "-n", "big") })
	g := p.gateway(t, "big", "big")
	time.Sleep(2 * time.Second)
	empty := g.usage(t)

	began := time.Now()
	p.inParallel(t, many, func(i int) error { return p.kwokPod(i) })
	created := time.Since(began)
	g.until(t, 3*time.Minute, "a thousand endpoints", func(e map[string]endpoint) bool { return len(e) == many })
	known := time.Since(began)
	filled := g.usage(t)
	t.Logf("%d pods created in %v, all known to the gateway after %v, for %v of its CPU time; memory %d MB empty, %d MB with them",
		many, created.Round(time.Millisecond), known.Round(time.Millisecond), (filled.cpu - empty.cpu).Round(10*time.Millisecond), empty.rss>>20, filled.rss>>20)

	const idle = 10 * time.Second
	time.Sleep(idle)
	quiet := g.usage(t)
	t.Logf("idle for %v: %.1f %% of a core, memory %d MB", idle, percent(quiet.cpu-filled.cpu, idle), quiet.rss>>20)

	// A rolling update: twenty pods a second go and come.
	before, peak := quiet, quiet.rss
	began = time.Now()
	replaced := 0
	for time.Since(began) < 20*time.Second {
		next := began.Add(time.Duration(replaced) * time.Second / 20)
		time.Sleep(time.Until(next))
		if err := p.remove(fmt.Sprintf("/api/v1/namespaces/big/pods/many-%d", replaced)); err != nil {
			t.Fatal(err)
		}
		if err := p.kwokPod(many + replaced); err != nil {
			t.Fatal(err)
		}
		replaced++
		if replaced%10 == 0 {
			peak = max(peak, g.usage(t).rss)
		}
	}
	churn := time.Since(began)
	g.until(t, time.Minute, "the roll-out to be known", func(e map[string]endpoint) bool { return len(e) == many })
	after := g.usage(t)
	t.Logf("%d pods replaced in %v: %.1f %% of a core, memory %d MB at most", replaced, churn.Round(time.Second), percent(after.cpu-before.cpu, churn), max(peak, after.rss)>>20)

	// A new process: from its start until it knows all of them.
	c := g.containers[0]
	c.signal(syscall.SIGKILL)
	for c.alive() {
		time.Sleep(time.Millisecond)
	}
	for !c.alive() {
		time.Sleep(time.Millisecond)
	}
	began = time.Now()
	g.until(t, time.Minute, "the new process to know all", func(e map[string]endpoint) bool { return len(e) == many })
	t.Logf("a new gateway knew all %d pods %v after its start, for %v of CPU time", many, time.Since(began).Round(time.Millisecond), g.usage(t).cpu)
}

func percent(cpu, over time.Duration) float64 { return 100 * cpu.Seconds() / over.Seconds() }

// kwokPod creates a pod that kwok brings up.
func (p *plane) kwokPod(i int) error {
	pod := enginePod("big", fmt.Sprintf("many-%d", i))
	pod.Labels = map[string]string{"app": "many", inject: "disabled"}
	pod.Spec.NodeName = kwokNode
	return p.create("/api/v1/namespaces/big/pods", pod, nil)
}

// inParallel calls do for 0 to n-1, sixteen at a time.
func (p *plane) inParallel(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}
