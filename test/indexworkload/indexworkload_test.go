package indexworkload

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// vector is one entry of the test vectors.
type vector struct {
	Pods      int      `json:"pods"`
	HotLocal  []string `json:"hot_local"`  // of blocks 0, 31, 32, 1999 of the hot document
	HotSeq    []string `json:"hot_seq"`    // of the same
	Depth     [][2]int `json:"doc1_depth"` // pod, depth of document 1
	Fill      []int    `json:"fill"`       // number of private chains of the first 8 pods
	Events    int      `json:"events"`     // of all pods
	Blocks    int      `json:"blocks"`     // in them
	EventSum  string   `json:"event_sum"`
	ChurnSum  string   `json:"churn_sum"` // of steps 0..99
	Queries   [][4]int `json:"queries"`   // document, cut, best answer, pods that have it: the first 8
	QuerySeq  []string `json:"query_seq"` // of their last block
	HoleSum   string   `json:"hole_sum"`
	HoleMatch int      `json:"hole_match"` // sum of the right answers to 1,000 queries, with holes
	MatchSum  int      `json:"match_sum"`  // without
}

func hex(x uint64) string { return fmt.Sprintf("%016x", x) }

// sum is a checksum of events that depends on their order.
func sum(h uint64, events []Event) uint64 {
	for _, e := range events {
		removed := uint64(0)
		if e.Remove {
			removed = 1
		}
		for _, x := range []uint64{uint64(e.Pod), removed, e.Parent} {
			h = mix(h ^ x)
		}
		for _, b := range e.Blocks {
			h = mix(mix(h^b.Local) ^ b.Seq)
		}
	}
	return h
}

func compute(pods int) vector {
	w := New(Standard(pods))
	v := vector{Pods: pods}
	hot := w.Document(0, w.Length)
	for _, i := range []int{0, 31, 32, 1999} {
		v.HotLocal, v.HotSeq = append(v.HotLocal, hex(hot[i].Local)), append(v.HotSeq, hex(hot[i].Seq))
	}
	var h uint64
	for pod := range pods {
		if n := w.Depth[1][pod]; n > 0 {
			v.Depth = append(v.Depth, [2]int{pod, n})
		}
		if pod < 8 {
			v.Fill = append(v.Fill, len(w.Own[pod]))
		}
		events := w.PodEvents(pod)
		v.Events += len(events)
		for _, e := range events {
			v.Blocks += len(e.Blocks)
		}
		h = sum(h, events)
	}
	v.EventSum = hex(h)
	h = 0
	for s := range 100 {
		h = sum(h, w.Churn(s))
	}
	v.ChurnSum = hex(h)
	events, holes := w.Holes()
	v.HoleSum = hex(sum(0, events))
	for i, q := range w.Queries(1000) {
		best, n := 0, 0
		for pod := range pods {
			got := w.Match(q, pod)
			v.MatchSum += got
			v.HoleMatch += w.MatchWithHoles(q, pod, holes)
			if got > best {
				best, n = got, 0
			}
			if got == best {
				n++
			}
		}
		if i < 8 {
			v.Queries = append(v.Queries, [4]int{q.Document, q.Cut, best, n})
			v.QuerySeq = append(v.QuerySeq, hex(q.Chain[w.Length-1].Seq))
		}
	}
	return v
}

func TestVectors(t *testing.T) {
	b, err := os.ReadFile("testdata/index-workload-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var want []vector
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if len(want) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range want {
		if d := cmp.Diff(v, compute(v.Pods)); d != "" {
			t.Errorf("%d pods (-want +got):\n%s", v.Pods, d)
		}
	}
}

// TestAnswers replays all events into plain sets and walks every query: the closed formula must agree.
func TestAnswers(t *testing.T) {
	w := New(Standard(8))
	queries := w.Queries(200)
	holeEvents, holes := w.Holes()
	for pod := range w.Pods {
		held := map[uint64]bool{}
		for _, e := range w.PodEvents(pod) {
			apply(t, held, e)
		}
		if len(held) != w.Capacity {
			t.Fatalf("pod %d holds %d blocks", pod, len(held))
		}
		check(t, held, pod, queries, func(q Query) int { return w.Match(q, pod) })
		for _, e := range holeEvents {
			if e.Pod == pod {
				apply(t, held, e)
			}
		}
		check(t, held, pod, queries, func(q Query) int { return w.MatchWithHoles(q, pod, holes) })
	}
}

// TestChurnKeepsCapacity checks that churn removes only what is held and leaves every pod as full as before.
func TestChurnKeepsCapacity(t *testing.T) {
	w := New(Standard(8))
	held := make([]map[uint64]bool, w.Pods)
	for pod := range held {
		held[pod] = map[uint64]bool{}
		for _, e := range w.PodEvents(pod) {
			apply(t, held[pod], e)
		}
	}
	for s := range 500 {
		for _, e := range w.Churn(s) {
			apply(t, held[e.Pod], e)
		}
	}
	for pod := range held {
		if len(held[pod]) != w.Capacity {
			t.Errorf("pod %d holds %d blocks after churn", pod, len(held[pod]))
		}
	}
}

func apply(t *testing.T, held map[uint64]bool, e Event) {
	t.Helper()
	if e.HasParent && !held[e.Parent] {
		t.Fatal("parent is not held")
	}
	for _, b := range e.Blocks {
		if held[b.Seq] != e.Remove {
			t.Fatalf("remove %v of a block with held %v", e.Remove, held[b.Seq])
		}
		if e.Remove {
			delete(held, b.Seq)
		} else {
			held[b.Seq] = true
		}
	}
}

func check(t *testing.T, held map[uint64]bool, pod int, queries []Query, said func(Query) int) {
	t.Helper()
	for i, q := range queries {
		n := 0
		for n < len(q.Chain) && held[q.Chain[n].Seq] {
			n++
		}
		if n != said(q) {
			t.Fatalf("query %d, pod %d: walked %d, said %d", i, pod, n, said(q))
		}
	}
}
