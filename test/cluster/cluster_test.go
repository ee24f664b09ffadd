package cluster

import (
	"slices"
	"sync"
	"testing"
	"time"
)

func TestPortsAreHandedOutOnce(t *testing.T) {
	var ports Ports
	var mu sync.Mutex
	var all []int
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			got, err := ports.Take(20)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, got...)
		})
	}
	wg.Wait()
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != 160 {
		t.Errorf("%d different ports of 160", n)
	}
}

func TestProcess(t *testing.T) {
	p, err := StartProcess("/bin/sh", "child", t.TempDir(), "-c", "echo one; echo two; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for p.Tail(1) != "two" {
		if time.Now().After(deadline) {
			t.Fatalf("log ends in %q, want two", p.Tail(1))
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.Stop(10 * time.Second)
	select {
	case <-p.Ended():
	default:
		t.Error("stopped, yet not ended")
	}
	if err := p.Start(); err != nil {
		t.Fatalf("start again: %v", err)
	}
	p.Kill()
}
