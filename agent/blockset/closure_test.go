package blockset

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

var (
	testHasher = blockhash.NewHasher(blockhash.DefaultSeed)
	testTime   = time.Unix(1_764_430_000, 0)
)

// order is a Sink that checks the order of calls against the set's own tree: an
// ancestor is set before and cleared after its descendants, nothing is told twice.
type order struct {
	t      testing.TB
	parent map[blockhash.Hash]blockhash.Hash
	have   [numTiers]map[blockhash.Hash]bool
	calls  int
}

func newOrder(t testing.TB) *order {
	return &order{t: t, parent: map[blockhash.Hash]blockhash.Hash{}, have: [numTiers]map[blockhash.Hash]bool{{}, {}}}
}

func (o *order) Set(t Tier, h blockhash.Hash) {
	o.calls++
	if o.have[t][h] {
		o.t.Fatalf("tier %d: %x set twice", t, h)
	}
	if p := o.parent[h]; p != 0 && !o.have[t][p] {
		o.t.Fatalf("tier %d: %x set before its parent %x", t, h, p)
	}
	o.have[t][h] = true
}

func (o *order) Clear(t Tier, h blockhash.Hash) {
	o.calls++
	if !o.have[t][h] {
		o.t.Fatalf("tier %d: %x cleared but not set", t, h)
	}
	for c, p := range o.parent {
		if p == h && o.have[t][c] {
			o.t.Fatalf("tier %d: %x cleared before its child %x", t, h, c)
		}
	}
	delete(o.have[t], h)
}

// twin is the naive version: maps, counts, and the closure recomputed from scratch.
type twin struct {
	gpu, low map[uint64]int    // copies by engine hash
	parent   map[uint64]uint64 // engine parent, 0: root
	canon    map[uint64]blockhash.Hash
	known    map[uint64]bool // linked to a root at some time since it was stored
}

func (w *twin) resident(t Tier, h uint64) bool {
	same := w.canon[h]
	for o, c := range w.canon { // any engine hash of the same block
		if c == same && w.known[o] && (w.gpu[o] > 0 || t == All && w.low[o] > 0) {
			return true
		}
	}
	return false
}

func (w *twin) closure(t Tier) map[blockhash.Hash]bool {
	out := map[blockhash.Hash]bool{}
	for h := range w.canon {
		ok := true
		for a := h; a != 0 && ok; a = w.parent[a] {
			ok = w.resident(t, a)
		}
		if ok {
			out[w.canon[h]] = true
		}
	}
	return out
}

// forest is a fixed random family of prompts: engine hash 1..n, each with a parent
// below it, two engine hashes (h and h+n) for each block.
type forest struct {
	n      int
	parent []int
	canon  []blockhash.Hash
}

func newForest(r *rand.Rand, n int) *forest {
	f := &forest{n: n, parent: make([]int, n+1), canon: make([]blockhash.Hash, n+1)}
	for i := 1; i <= n; i++ {
		f.parent[i] = max(0, i-1-r.IntN(4))
		if r.IntN(10) == 0 {
			f.parent[i] = 0
		}
		f.canon[i] = testHasher.Next(f.canon[f.parent[i]], testHasher.Local(f.tokens(i)))
	}
	return f
}

func (f *forest) tokens(i int) []uint32 { return []uint32{uint32(i), 7} }

func (f *forest) stored(i int, second bool, medium string) *kvevent.Stored {
	h, p := uint64(i), uint64(f.parent[i])
	if second {
		h += uint64(f.n)
	}
	return &kvevent.Stored{Hashes: []uint64{h}, Parent: p, HasParent: p != 0, Tokens: f.tokens(i), BlockSize: 2, Medium: medium, Group: -1}
}

// TestClosureAgainstTwin: random stores, removals and clears in random batches; after
// each batch the sink holds exactly the closure that the naive twin computes.
func TestClosureAgainstTwin(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := newForest(r, 40)
		sink := newOrder(t)
		for i := 1; i <= f.n; i++ {
			sink.parent[f.canon[i]] = f.canon[f.parent[i]]
		}
		s := New(Config{Hasher: testHasher}, sink)
		s.lowerRemovals = true
		s.blockSize = 2 // only GPU stores teach it
		w := &twin{gpu: map[uint64]int{}, low: map[uint64]int{}, parent: map[uint64]uint64{}, canon: map[uint64]blockhash.Hash{}, known: map[uint64]bool{}}
		for i := 1; i <= f.n; i++ {
			for _, h := range []uint64{uint64(i), uint64(i + f.n)} {
				w.parent[h], w.canon[h] = uint64(f.parent[i]), f.canon[i]
			}
		}
		now := testTime
		for step := range 150 {
			var b kvevent.Batch
			for range 1 + r.IntN(8) {
				i := 1 + r.IntN(f.n)
				second := r.IntN(8) == 0
				h := uint64(i)
				if second {
					h += uint64(f.n)
				}
				medium, counts := "GPU", w.gpu
				if r.IntN(4) == 0 {
					medium, counts = "CPU", w.low
				}
				switch k := r.IntN(100); {
				case k == 0:
					b.Events = append(b.Events, &kvevent.Cleared{})
					clear(w.gpu)
					w.settle(f)
				case k < 55:
					b.Events = append(b.Events, f.stored(i, second, medium))
					counts[h]++
					w.settle(f)
				default:
					b.Events = append(b.Events, &kvevent.Removed{Hashes: []uint64{h}, Medium: medium, Group: -1})
					if counts[h] > 0 {
						counts[h]--
					}
					w.settle(f)
				}
			}
			now = now.Add(time.Second)
			s.Apply(now, b)
			for tier := range numTiers {
				if d := cmp.Diff(w.closure(tier), sink.have[tier]); d != "" {
					t.Fatalf("seed %d, step %d, tier %d (-twin +set):\n%s", seed, step, tier, d)
				}
				visible := map[blockhash.Hash]bool{}
				for h := range s.Visible(tier) {
					visible[h] = true
				}
				if !maps.Equal(visible, sink.have[tier]) || len(visible) != s.Stats().Visible[tier] {
					t.Fatalf("seed %d, step %d, tier %d: Visible yields %d blocks, the sink has %d, stats say %d", seed, step, tier, len(visible), len(sink.have[tier]), s.Stats().Visible[tier])
				}
			}
			checkInvariants(t, s)
			if step%50 == 49 {
				s = reload(t, s, sink, now)
			}
		}
	}
}

// settle links orphans and forgets what has no copies left, as the set does.
func (w *twin) settle(f *forest) {
	for h := range w.canon {
		if w.gpu[h] == 0 && w.low[h] == 0 {
			delete(w.known, h)
		}
	}
	for changed := true; changed; {
		changed = false
		for h := range w.canon {
			held := w.gpu[h] > 0 || w.low[h] > 0
			if held && !w.known[h] && (w.parent[h] == 0 || w.known[w.parent[h]]) {
				w.known[h], changed = true, true
			}
		}
	}
}

// reload passes the set through a snapshot; the closure must come out the same.
func reload(t *testing.T, s *Set, sink *order, now time.Time) *Set {
	t.Helper()
	want := Position{Known: true, Seq: 42, Start: testTime}
	want.Sum.Hi, want.Sum.Lo = 1, 2
	b := s.AppendSnapshot(nil, now, want)
	old := sink.have
	sink.have = [numTiers]map[blockhash.Hash]bool{{}, {}}
	fresh := New(Config{Hasher: testHasher}, sink)
	p, err := fresh.LoadSnapshot(b, now)
	if err != nil {
		t.Fatal(err)
	}
	if p.Seq != want.Seq || p.Sum != want.Sum || !p.Known || !p.Start.Equal(want.Start) {
		t.Errorf("got position %+v, want %+v", p, want)
	}
	if d := cmp.Diff(old, sink.have); d != "" {
		t.Errorf("closure after a snapshot (-before +after):\n%s", d)
	}
	if d := cmp.Diff(maps.Collect(s.Copies(All)), maps.Collect(fresh.Copies(All))); d != "" {
		t.Errorf("copies after a snapshot (-before +after):\n%s", d)
	}
	if a, b := now.UnixNano()-s.nodes[s.lru.front].used, now.UnixNano()-fresh.nodes[fresh.lru.front].used; a/1e9 != b/1e9 {
		t.Errorf("oldest leaf unused for %v before, %v after a snapshot", time.Duration(a), time.Duration(b))
	}
	checkInvariants(t, fresh)
	return fresh
}

// checkInvariants looks at every link and count.
func checkInvariants(t testing.TB, s *Set) {
	t.Helper()
	var gpu, low, orphans, blocks int
	for i := range s.entries {
		e := &s.entries[i]
		gpu, low = gpu+int(e.gpu), low+int(e.low)
		if (e.gpu > 0 || e.low > 0) && e.node == 0 {
			orphans++
		}
	}
	kids := map[int32]int32{}
	for i := 1; i < len(s.nodes); i++ {
		n := &s.nodes[i]
		if !n.live {
			continue
		}
		if n.gpu > 0 {
			blocks++
			kids[n.parent]++
		}
		if n.entries == 0 && n.child == 0 {
			t.Fatalf("node %d is of no use", i)
		}
		for tier := range numTiers {
			if want := n.resident(tier) && s.nodes[n.parent].visible[tier]; n.visible[tier] != want {
				t.Fatalf("node %d, tier %d: visible %v, want %v", i, tier, n.visible[tier], want)
			}
		}
	}
	leaves := 0
	for i := 1; i < len(s.nodes); i++ {
		n := &s.nodes[i]
		if n.live && n.gpuKids != kids[int32(i)] {
			t.Fatalf("node %d: %d resident children, want %d", i, n.gpuKids, kids[int32(i)])
		}
		if want := n.live && n.gpu > 0 && n.gpuKids == 0; n.inLRU != want {
			t.Fatalf("node %d: in the LRU list %v, want %v", i, n.inLRU, want)
		} else if want {
			leaves++
		}
	}
	for i, prev := s.lru.front, int32(0); i != 0; prev, i = i, s.nodes[i].next {
		if leaves--; s.nodes[i].prev != prev || leaves < 0 {
			t.Fatal("the LRU list is broken")
		}
	}
	st := s.Stats()
	if leaves != 0 || st.Copies != gpu || st.Lower != low || st.Orphans != orphans || st.Blocks != blocks {
		t.Fatalf("stats %+v, counted %d copies, %d lower, %d orphans, %d blocks, %d leaves not listed", st, gpu, low, orphans, blocks, leaves)
	}
}

// discard is a Sink that only counts.
type discard struct{ calls int }

func (d *discard) Set(Tier, blockhash.Hash)   { d.calls++ }
func (d *discard) Clear(Tier, blockhash.Hash) { d.calls++ }

// bigTree stores prompts of 100 blocks below one root block, n blocks in all.
func bigTree(s *Set, n int) {
	toks := make([]uint32, 16)
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{
		&kvevent.Stored{Hashes: []uint64{1}, Tokens: toks, BlockSize: 16, Group: -1},
	}})
	for h := uint64(2); h <= uint64(n); {
		ev := &kvevent.Stored{Parent: 1, HasParent: true, BlockSize: 16, Group: -1}
		for range min(100, n-int(h)+1) {
			ev.Hashes = append(ev.Hashes, h)
			toks[0] = uint32(h)
			ev.Tokens = append(ev.Tokens, toks...)
			h++
		}
		s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{ev}})
	}
}

func TestFlapWithinABatchIsSilent(t *testing.T) {
	sink := &discard{}
	s := New(Config{Hasher: testHasher}, sink)
	bigTree(s, 12_000)
	before := sink.calls
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{
		&kvevent.Removed{Hashes: []uint64{1}, Group: -1},
		&kvevent.Stored{Hashes: []uint64{1}, Tokens: make([]uint32, 16), BlockSize: 16, Group: -1},
	}})
	if sink.calls != before || s.Stats().Visible[GPU] != 12_000 {
		t.Errorf("%d calls, %d visible, want no call and 12000", sink.calls-before, s.Stats().Visible[GPU])
	}
}

// BenchmarkClosureFlap: the root of 12,000 blocks goes and returns.
func BenchmarkClosureFlap(b *testing.B) {
	gone := &kvevent.Removed{Hashes: []uint64{1}, Group: -1}
	back := &kvevent.Stored{Hashes: []uint64{1}, Tokens: make([]uint32, 16), BlockSize: 16, Group: -1}
	for _, c := range []struct {
		name    string
		batches []kvevent.Batch
	}{
		{"one batch", []kvevent.Batch{{Events: []kvevent.Event{gone, back}}}},
		{"two batches", []kvevent.Batch{{Events: []kvevent.Event{gone}}, {Events: []kvevent.Event{back}}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := New(Config{Hasher: testHasher}, &discard{})
			bigTree(s, 12_000)
			b.ReportAllocs()
			for b.Loop() {
				for _, batch := range c.batches {
					s.Apply(testTime, batch)
				}
			}
			if s.Stats().Visible[GPU] != 12_000 {
				b.Fatalf("%d blocks visible", s.Stats().Visible[GPU])
			}
		})
	}
}

// BenchmarkApply: a full engine of 12,000 blocks takes prompts of 100 blocks and
// evicts as many.
func BenchmarkApply(b *testing.B) {
	s := New(Config{Hasher: testHasher, Blocks: 13_000}, &discard{})
	bigTree(s, 12_000)
	oldest, next := uint64(2), uint64(12_001)
	ev := &kvevent.Stored{Parent: 1, HasParent: true, BlockSize: 16, Group: -1, Hashes: make([]uint64, 100), Tokens: make([]uint32, 1600)}
	rm := make([]kvevent.Removed, 100)
	batch := kvevent.Batch{}
	for i := range rm {
		rm[i] = kvevent.Removed{Hashes: make([]uint64, 1), Group: -1}
		batch.Events = append(batch.Events, &rm[i])
	}
	batch.Events = append(batch.Events, ev)
	now := testTime
	b.ReportAllocs()
	blocks := 0
	for b.Loop() {
		for i := range rm {
			rm[i].Hashes[0] = oldest + 99 - uint64(i)
		}
		oldest += 100
		for i := range ev.Hashes {
			ev.Hashes[i] = next
			ev.Tokens[i*16] = uint32(next)
			next++
		}
		now = now.Add(time.Second)
		s.Apply(now, batch)
		blocks += 100
	}
	b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
}
