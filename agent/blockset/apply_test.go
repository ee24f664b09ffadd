package blockset

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

const size = 4

// prompt returns n blocks of tokens that start with first.
func prompt(first uint32, n int) []uint32 {
	out := make([]uint32, n*size)
	for i := range out {
		out[i] = first + uint32(i)
	}
	return out
}

// store is a GPU store of hashes with their tokens; parent 0 means none.
func store(parent uint64, tokens []uint32, hashes ...uint64) *kvevent.Stored {
	return &kvevent.Stored{Hashes: hashes, Parent: parent, HasParent: parent != 0, Tokens: tokens, BlockSize: size, Medium: "GPU", Group: -1}
}

func with(ev *kvevent.Stored, f func(*kvevent.Stored)) *kvevent.Stored {
	f(ev)
	return ev
}

func removed(medium string, hashes ...uint64) *kvevent.Removed {
	return &kvevent.Removed{Hashes: hashes, Medium: medium, Group: -1}
}

func TestApply(t *testing.T) {
	p := prompt(100, 3)
	child := prompt(900, 1)
	long := append(append([]uint32{}, p...), child...)
	salted := func(ev *kvevent.Stored) { ev.ExtraKeys = [][]kvevent.ExtraKey{{{Kind: kvevent.ExtraText, Text: "x"}}} }
	lora := func(ev *kvevent.Stored) {
		ev.LoRAName = "x"
		ev.ExtraKeys = [][]kvevent.ExtraKey{{{Kind: kvevent.ExtraText, Text: "x"}}}
	}
	image := func(off int64) func(ev *kvevent.Stored) {
		return func(ev *kvevent.Stored) {
			ev.ExtraKeys = [][]kvevent.ExtraKey{{{Kind: kvevent.ExtraItem, Text: "img", Num: off}}}
		}
	}
	group := func(g int, kind string) func(ev *kvevent.Stored) {
		return func(ev *kvevent.Stored) { ev.Group, ev.SpecKind = g, kind }
	}
	cpu := func(ev *kvevent.Stored) { ev.Medium = "cpu" }
	placeholder := func(hashes ...uint64) *kvevent.Stored {
		return &kvevent.Stored{Hashes: hashes, Medium: "CPU", Group: -1}
	}

	for _, c := range []struct {
		name   string
		events []kvevent.Event
		ask    []uint32
		extras []blockhash.Extra
		gpu    int // leading blocks of ask
		all    int
		check  func(Stats) bool
	}{
		{name: "plain", events: []kvevent.Event{store(0, p, 1, 2, 3)}, ask: p, gpu: 3, all: 3},
		{name: "one of two copies removed (T1)", events: []kvevent.Event{store(0, p, 1, 2, 3), store(2, p[8:], 3), removed("GPU", 3)}, ask: p, gpu: 3, all: 3},
		{name: "hole", events: []kvevent.Event{store(0, p, 1, 2, 3), removed("GPU", 2)}, ask: p, gpu: 1, all: 1,
			check: func(s Stats) bool { return s.Blocks == 2 && s.Visible[GPU] == 1 }},
		{name: "hole returns", events: []kvevent.Event{store(0, p, 1, 2, 3), removed("GPU", 2), store(1, p[4:8], 2)}, ask: p, gpu: 3, all: 3},
		{name: "removed and stored again in one batch (T32)", events: []kvevent.Event{store(0, p, 1, 2, 3), removed("GPU", 3), store(2, p[8:], 3)}, ask: p, gpu: 3, all: 3},
		{name: "two engine hashes for one block", events: []kvevent.Event{store(0, p, 1, 2, 3), store(0, p[:4], 11), removed("GPU", 1)}, ask: p, gpu: 3, all: 3},
		{name: "two engine hashes, both gone", events: []kvevent.Event{store(0, p, 1, 2, 3), store(0, p[:4], 11), removed("GPU", 1), removed("GPU", 11)}, ask: p, gpu: 0, all: 0},
		{name: "orphan (T10)", events: []kvevent.Event{store(3, child, 4)}, ask: long, gpu: 0, all: 0,
			check: func(s Stats) bool { return s.Orphans == 1 && s.Copies == 1 && s.Blocks == 0 }},
		{name: "orphans linked when the parent shows up", events: []kvevent.Event{store(3, child, 4), store(2, p[8:], 3), store(0, p[:8], 1, 2)}, ask: long, gpu: 4, all: 4,
			check: func(s Stats) bool { return s.Orphans == 0 }},
		{name: "orphan removed before its parent shows up", events: []kvevent.Event{store(3, child, 4), removed("GPU", 4), store(0, p, 1, 2, 3)}, ask: long, gpu: 3, all: 3,
			check: func(s Stats) bool { return s.Orphans == 0 && s.UnknownRemoved == 0 }},
		{name: "parents in a circle", events: []kvevent.Event{store(2, p[:4], 1), store(1, p[4:8], 2)}, ask: p, gpu: 0, all: 0,
			check: func(s Stats) bool { return s.Orphans == 2 }},
		{name: "salt", events: []kvevent.Event{with(store(0, p[:4], 1), salted)}, ask: p, extras: []blockhash.Extra{{Kind: blockhash.CacheSalt, Value: "x"}}, gpu: 1, all: 1},
		{name: "salt is no LoRA name", events: []kvevent.Event{with(store(0, p[:4], 1), salted)}, ask: p, extras: []blockhash.Extra{{Kind: blockhash.LoRA, Value: "x"}}},
		{name: "LoRA name", events: []kvevent.Event{with(store(0, p[:4], 1), lora)}, ask: p, extras: []blockhash.Extra{{Kind: blockhash.LoRA, Value: "x"}}, gpu: 1, all: 1},
		{name: "LoRA name is no salt (T23)", events: []kvevent.Event{with(store(0, p[:4], 1), lora)}, ask: p, extras: []blockhash.Extra{{Kind: blockhash.CacheSalt, Value: "x"}}},
		{name: "SGLang's salt", events: []kvevent.Event{with(store(0, p[:4], 1), func(ev *kvevent.Stored) { ev.CacheSalt = "x" })}, ask: p, extras: []blockhash.Extra{{Kind: blockhash.CacheSalt, Value: "x"}}, gpu: 1, all: 1},
		{name: "image is no plain block", events: []kvevent.Event{with(store(0, p[:4], 1), image(1))}, ask: p},
		{name: "sparse (T7)", events: []kvevent.Event{store(0, p, 3)}, ask: p, check: func(s Stats) bool { return s.Unpaired == 1 }},
		{name: "no hashes (T8)", events: []kvevent.Event{store(0, p)}, ask: p},
		{name: "window group", events: []kvevent.Event{with(store(0, p, 1, 2, 3), group(0, "full_attention")), with(store(0, p, 3), group(1, "sliding_window")),
			&kvevent.Removed{Hashes: []uint64{3}, Group: 1}}, ask: p, gpu: 3, all: 3, check: func(s Stats) bool { return s.OtherGroup == 2 }},
		{name: "full attention is not group 0", events: []kvevent.Event{with(store(0, p[:4], 9), group(0, "mamba")), with(store(0, p, 1, 2, 3), group(2, "mla_attention")),
			&kvevent.Removed{Hashes: []uint64{3}, Group: 0}}, ask: p, gpu: 3, all: 3},
		{name: "lower tiers name no group", events: []kvevent.Event{with(store(0, p, 1, 2, 3), group(2, "full_attention")), placeholder(1, 2, 3), removed("CPU", 3),
			&kvevent.Removed{Hashes: []uint64{1, 2, 3}, Medium: "GPU", Group: 2}}, ask: p, gpu: 0, all: 2},
		{name: "kind unknown: group 0", events: []kvevent.Event{with(store(0, p, 1, 2, 3), group(0, "")), with(store(0, child, 4), group(1, ""))}, ask: p, gpu: 3, all: 3},
		{name: "CPU placeholder (T11)", events: []kvevent.Event{store(0, p, 1, 2, 3), placeholder(1, 2, 3), removed("GPU", 3)}, ask: p, gpu: 2, all: 3},
		{name: "CPU placeholder of unknown blocks", events: []kvevent.Event{placeholder(1)}, ask: p, check: func(s Stats) bool { return s.Unpaired == 1 && s.Lower == 0 }},
		{name: "CPU removal leaves the GPU copy", events: []kvevent.Event{store(0, p, 1, 2, 3), placeholder(1, 2), removed("CPU", 1, 2)}, ask: p, gpu: 3, all: 3},
		{name: "GPU within GPU, All over all", events: []kvevent.Event{store(0, p, 1, 2, 3), placeholder(1), removed("GPU", 1)}, ask: p, gpu: 0, all: 3},
		{name: "CPU with tokens", events: []kvevent.Event{store(0, p[:4], 1), with(store(1, p[4:], 2, 3), cpu)}, ask: p, gpu: 1, all: 3},
		{name: "CPU with a wrong parent keeps the known place", events: []kvevent.Event{store(0, p, 1, 2, 3), with(store(1, p[8:], 3), cpu)}, ask: p, gpu: 3, all: 3,
			check: func(s Stats) bool { return s.Conflicts == 0 }},
		{name: "other block size", events: []kvevent.Event{store(0, p, 1, 2, 3), with(store(0, p[:8], 7), func(ev *kvevent.Stored) { ev.BlockSize = 8 })}, ask: p, gpu: 3, all: 3,
			check: func(s Stats) bool { return s.OtherSize == 1 }},
		{name: "cleared", events: []kvevent.Event{store(0, p, 1, 2, 3), store(8, child, 9), &kvevent.Cleared{}}, ask: p,
			check: func(s Stats) bool { return s.Copies == 0 && s.Orphans == 0 && s.Blocks == 0 }},
		{name: "cleared with a lower tier that reports no removals", events: []kvevent.Event{store(0, p, 1, 2, 3), placeholder(1), &kvevent.Cleared{}}, ask: p},
		{name: "cleared with a lower tier that does", events: []kvevent.Event{store(0, p, 1, 2, 3), placeholder(1, 2), removed("CPU", 2), &kvevent.Cleared{}}, ask: p, all: 1},
		{name: "hash that changes its meaning", events: []kvevent.Event{store(0, p[:4], 1), store(0, child, 1)}, ask: p,
			check: func(s Stats) bool { return s.Conflicts == 1 && s.Blocks == 1 && s.Copies == 2 }},
		{name: "unknown removal", events: []kvevent.Event{removed("GPU", 5)}, ask: p, check: func(s Stats) bool { return s.UnknownRemoved == 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, split := range []bool{false, true} {
				s := New(Config{Hasher: testHasher}, newOrder(t))
				if split {
					for _, e := range c.events {
						s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{e}})
					}
				} else {
					s.Apply(testTime, kvevent.Batch{Events: c.events})
				}
				chain := testHasher.AppendChain(nil, testHasher.Root(c.extras...), c.ask, size)
				if gpu, all := s.Match(GPU, chain), s.Match(All, chain); gpu != c.gpu || all != c.all {
					t.Errorf("split %v: matches %d in the GPU, %d in all tiers, want %d, %d", split, gpu, all, c.gpu, c.all)
				}
				if c.check != nil && !c.check(s.Stats()) {
					t.Errorf("split %v: stats %+v", split, s.Stats())
				}
				checkInvariants(t, s)
			}
		})
	}
}

// TestTouchedBlock: an image enters at the block it lies in, with its offset there.
func TestTouchedBlock(t *testing.T) {
	p := prompt(1, 2)
	ev := store(0, p, 1, 2)
	ev.ExtraKeys = [][]kvevent.ExtraKey{
		{{Kind: kvevent.ExtraItem, Text: "img", Num: 3}, {Kind: kvevent.ExtraText, Text: "tenant"}},
		{{Kind: kvevent.ExtraItem, Text: "img", Num: -1}, {Kind: kvevent.ExtraBytes, Text: "\x01\x02"}, {Kind: kvevent.ExtraInt, Num: 9}},
	}
	s := New(Config{Hasher: testHasher}, newOrder(t))
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{ev}})
	first := testHasher.Next(testHasher.Root(blockhash.Extra{Kind: blockhash.CacheSalt, Value: "tenant"}),
		testHasher.Touch(testHasher.Local(p[:size]), blockhash.Extra{Kind: blockhash.Multimodal, Value: "img", Offset: 3}))
	second := testHasher.Next(first, testHasher.Touch(testHasher.Local(p[size:]),
		blockhash.Extra{Kind: blockhash.PromptEmbeds, Value: "\x01\x02"}, blockhash.Extra{Kind: blockhash.Multimodal, Value: "img", Offset: -1}))
	if got := s.Match(GPU, []blockhash.Hash{first, second}); got != 2 {
		t.Errorf("matches %d blocks, want 2", got)
	}
}

// TestReports: kv_cache_report_mode "full" repeats a reused prefix as a store.
func TestReports(t *testing.T) {
	p, more := prompt(1, 3), prompt(500, 1)
	first := kvevent.Batch{Events: []kvevent.Event{store(0, p, 1, 2, 3)}}
	for _, c := range []struct {
		name  string
		full  bool
		batch []kvevent.Event
		want  map[uint64]int
	}{
		{"followed by the request's own blocks", false, []kvevent.Event{store(0, p, 1, 2, 3), store(3, more, 4)}, map[uint64]int{1: 1, 2: 1, 3: 1, 4: 1}},
		{"alone, it looks like a store", false, []kvevent.Event{store(0, p, 1, 2, 3)}, map[uint64]int{1: 2, 2: 2, 3: 2}},
		{"alone, reports expected", true, []kvevent.Event{store(0, p, 1, 2, 3)}, map[uint64]int{1: 1, 2: 1, 3: 1}},
		{"one block, stored again", false, []kvevent.Event{store(0, p[:4], 1), store(1, more, 4)}, map[uint64]int{1: 2, 2: 1, 3: 1, 4: 1}},
		{"partly unknown, reports expected", true, []kvevent.Event{store(0, append(prompt(1, 3), more...), 1, 2, 3, 4)}, map[uint64]int{1: 1, 2: 1, 3: 1, 4: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(Config{Hasher: testHasher, FullReports: c.full}, newOrder(t))
			s.Apply(testTime, first)
			s.Apply(testTime, kvevent.Batch{Events: c.batch})
			if d := cmp.Diff(c.want, maps.Collect(s.Copies(GPU))); d != "" {
				t.Errorf("copies (-want +got):\n%s", d)
			}
		})
	}
}

func TestSuspectBySum(t *testing.T) {
	s := New(Config{Hasher: testHasher, Blocks: 3}, newOrder(t))
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{store(0, prompt(1, 3), 1, 2, 3)}})
	if s.Suspect() {
		t.Error("suspect with as many copies as blocks")
	}
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{store(2, prompt(1, 3)[8:], 3)}})
	if !s.Suspect() {
		t.Error("not suspect with more copies than blocks")
	}
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{&kvevent.Cleared{}}})
	if s.Suspect() {
		t.Error("suspect after the engine cleared its cache")
	}
}

func TestLimits(t *testing.T) {
	s := New(Config{Hasher: testHasher, MaxBlocks: 50, MaxOrphans: 10}, newOrder(t))
	for i := range uint64(200) {
		s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{
			store(1_000+i, prompt(7, 1), 10_000+i),
			store(0, prompt(uint32(i)*8, 2), 2*i+1, 2*i+2),
		}})
	}
	st := s.Stats()
	if st.Orphans != 10 || len(s.byHash) > 50 || len(s.byCanon) > 50 || st.Dropped == 0 || !s.Partial() {
		t.Errorf("%d hashes, %d blocks, partial %v, stats %+v", len(s.byHash), len(s.byCanon), s.Partial(), st)
	}
	checkInvariants(t, s)
}

func TestExpire(t *testing.T) {
	p := prompt(1, 2)
	s := New(Config{Hasher: testHasher, LowerTTL: time.Minute}, newOrder(t))
	chain := testHasher.AppendChain(nil, 0, p, size)
	s.Apply(testTime, kvevent.Batch{Events: []kvevent.Event{store(0, p, 1, 2),
		&kvevent.Stored{Hashes: []uint64{1, 2}, Medium: "CPU", Group: -1}, removed("GPU", 2)}})
	s.Expire(testTime.Add(59 * time.Second))
	if got := s.Match(All, chain); got != 2 {
		t.Errorf("matches %d blocks before the end of their time, want 2", got)
	}
	s.Expire(testTime.Add(61 * time.Second))
	if got := s.Match(All, chain); got != 1 {
		t.Errorf("matches %d blocks after it, want the GPU's 1", got)
	}
	checkInvariants(t, s)
}

// TestVictimIdle: a chain is as old as its last growth, and its tail goes first.
func TestVictimIdle(t *testing.T) {
	at := func(sec int) time.Time { return testTime.Add(time.Duration(sec) * time.Second) }
	apply := func(s *Set, sec int, ev kvevent.Event) {
		s.Apply(at(sec), kvevent.Batch{Events: []kvevent.Event{ev}})
	}
	s := New(Config{Hasher: testHasher}, newOrder(t))
	if got := s.VictimIdle(at(0)); got != 0 {
		t.Errorf("empty: got %v, want 0", got)
	}
	a, b := prompt(1, 3), prompt(100, 2)
	apply(s, 0, store(0, a[:8], 1, 2))
	apply(s, 10, store(0, b, 11, 12))
	apply(s, 20, store(2, a[8:], 3)) // uses 1 and 2 again
	for _, step := range []struct {
		name string
		ev   kvevent.Event
		want time.Duration
	}{
		{"the chain that did not grow", nil, 20 * time.Second},
		{"its rest is as old", removed("GPU", 12), 20 * time.Second},
		{"then the other chain", removed("GPU", 11), 10 * time.Second},
		{"from its tail, used as late", removed("GPU", 3), 10 * time.Second},
		{"a new block changes nothing", store(0, prompt(300, 1), 31), 10 * time.Second},
		{"what outlives an evicted block was used after it", removed("GPU", 31), 0},
		{"nothing evicted, nothing known", &kvevent.Cleared{}, 0},
	} {
		if step.ev != nil {
			s.Apply(at(30), kvevent.Batch{Events: []kvevent.Event{step.ev}})
		}
		if got := s.VictimIdle(at(30)); got != step.want {
			t.Errorf("%s: got %v, want %v", step.name, got, step.want)
		}
	}
}
