package digest

import (
	"iter"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

var (
	start   = time.Unix(1_790_000_000, 0)
	testKey = wire.Key{Endpoint: 42, Rank: 1}
)

func config(blocks int) Config {
	return Config{Key: testKey, Node: 7, Epoch: 100, GPU: bloom.GeometryFor(blocks, 8)}
}

// mirror is what a receiver that misses nothing has.
type mirror struct {
	t     *testing.T
	words [wire.Tiers][]uint64
	tick  uint64
}

func newMirror(t *testing.T, cfg Config) *mirror {
	return &mirror{t: t, words: [wire.Tiers][]uint64{make([]uint64, cfg.GPU.Buckets), make([]uint64, cfg.All.Buckets)}}
}

func (m *mirror) apply(packets ...[]byte) {
	m.t.Helper()
	for _, b := range packets {
		tick := decodeTick(m.t, b)
		if tick.TickNo != m.tick+1 {
			m.t.Fatalf("tick %d after %d", tick.TickNo, m.tick)
		}
		m.tick = tick.TickNo
		for tier := range m.words {
			for _, pos := range tick.Clear[tier] {
				m.words[tier][pos/64] &^= 1 << (pos % 64)
			}
			for _, pos := range tick.Set[tier] {
				m.words[tier][pos/64] |= 1 << (pos % 64)
			}
		}
		for _, c := range tick.CRCs {
			from := int(c.Segment) * wire.SegmentWords
			to := min(from+wire.SegmentWords, len(m.words[c.Tier]))
			if got := wire.Checksum(m.words[c.Tier][from:to]); got != c.CRC {
				m.t.Fatalf("tick %d: tier %d segment %d has CRC %08x, announced %08x", tick.TickNo, c.Tier, c.Segment, got, c.CRC)
			}
		}
	}
}

func decodeTick(t *testing.T, b []byte) *wire.Tick {
	t.Helper()
	if len(b) > wire.MaxPacketBytes {
		t.Fatalf("tick of %d bytes", len(b))
	}
	_, m, err := wire.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*wire.Tick)
}

// drain sends until nothing waits.
func drain(t *testing.T, p *Publisher, now time.Time) (packets [][]byte, end time.Time) {
	t.Helper()
	for range 10_000 {
		now = later(now, p.Due(now))
		packets = append(packets, p.Ticks(now)...)
		if !p.changed() {
			return packets, now
		}
	}
	t.Fatal("backlog never ends")
	return nil, now
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func hashes(seed uint64, n int) []blockhash.Hash {
	r := rand.New(rand.NewPCG(seed, 0))
	list := make([]blockhash.Hash, n)
	for i := range list {
		list[i] = blockhash.Hash(r.Uint64())
	}
	return list
}

// TestTicksMirrorTheFilter plays minutes of stores and evictions in two tiers, and
// holds a receiver that hears all ticks to the exact filter.
func TestTicksMirrorTheFilter(t *testing.T) {
	cfg := config(2000)
	cfg.All = bloom.GeometryFor(6000, 8)
	p, m := New(cfg), newMirror(t, cfg)
	twins := [wire.Tiers]*bloom.Counting{bloom.NewCounting(cfg.GPU), bloom.NewCounting(cfg.All)}
	r := rand.New(rand.NewPCG(1, 2))
	var resident [wire.Tiers][]blockhash.Hash
	now := start
	for range 3000 {
		for tier, limit := range [wire.Tiers]int{2000, 6000} {
			for range r.IntN(20) {
				list := &resident[tier]
				if n := len(*list); n == limit || n > 0 && r.IntN(3) == 0 {
					i := r.IntN(n)
					p.Clear(wire.Tier(tier), (*list)[i])
					twins[tier].Remove((*list)[i])
					(*list)[i] = (*list)[n-1]
					*list = (*list)[:n-1]
					continue
				}
				h := blockhash.Hash(r.Uint64())
				p.Set(wire.Tier(tier), h)
				twins[tier].Add(h)
				*list = append(*list, h)
			}
		}
		now = now.Add(time.Duration(r.IntN(60)) * time.Millisecond)
		m.apply(p.Ticks(now)...)
	}
	packets, _ := drain(t, p, now)
	m.apply(packets...)
	for tier := range twins {
		if !slices.Equal(m.words[tier], twins[tier].Words()) {
			t.Errorf("tier %d differs from the exact filter", tier)
		}
	}
	if n := p.Stats().Backlog; n != 0 {
		t.Errorf("backlog %d after the last tick", n)
	}
}

func TestFlapCostsNothing(t *testing.T) {
	p := New(config(1000))
	p.Ticks(start)
	for _, h := range hashes(1, 200) {
		p.Set(wire.TierGPU, h)
		p.Clear(wire.TierGPU, h)
	}
	now := start.Add(100 * time.Millisecond)
	if got := p.Ticks(now); got != nil {
		t.Errorf("%d packets for changes that undid each other", len(got))
	}
	now = start.Add(200 * time.Millisecond)
	packets := p.Ticks(now)
	if len(packets) != 1 {
		t.Fatalf("%d packets, want the heartbeat", len(packets))
	}
	if tick := decodeTick(t, packets[0]); len(tick.Set[0])+len(tick.Clear[0]) != 0 {
		t.Errorf("the heartbeat carries %d SETs and %d CLEARs", len(tick.Set[0]), len(tick.Clear[0]))
	}
}

// TestBacklogKeepsPrefixes: after each packet of a backlog the published picture
// has no block whose ancestor is missing.
func TestBacklogKeepsPrefixes(t *testing.T) {
	cfg := config(200_000) // so sparse that no block is there by chance
	p, m := New(cfg), newMirror(t, cfg)
	chain := hashes(3, 6000)
	held := func() (n int, hole bool) {
		n = len(chain)
		for i, h := range chain {
			bucket, mask := cfg.GPU.Locate(h)
			if has := m.words[0][bucket]&mask == mask; !has && n == len(chain) {
				n = i
			} else if has && n < len(chain) {
				hole = true
			}
		}
		return n, hole
	}
	check := func(what string, packets [][]byte) {
		t.Helper()
		if len(packets) < 5 {
			t.Fatalf("%s: only %d packets", what, len(packets))
		}
		for i, b := range packets {
			m.apply(b)
			if n, hole := held(); hole {
				t.Fatalf("%s: after packet %d of %d a descendant of missing block %d is there", what, i, len(packets), n)
			}
		}
	}
	for _, h := range chain {
		p.Set(wire.TierGPU, h)
	}
	packets, now := drain(t, p, start)
	check("set", packets)
	if n, _ := held(); n != len(chain) {
		t.Fatalf("%d blocks after all, want %d", n, len(chain))
	}
	for _, h := range slices.Backward(chain) {
		p.Clear(wire.TierGPU, h)
	}
	packets, _ = drain(t, p, now)
	check("clear", packets)
	if n, _ := held(); n != 0 {
		t.Fatalf("%d blocks left", n)
	}
}

// TestRate: in no span of time do ticks take more than the rate allows plus one
// burst, and heartbeats come all the same.
func TestRate(t *testing.T) {
	cfg := config(100_000)
	p := New(cfg)
	r := rand.New(rand.NewPCG(5, 5))
	type sent struct {
		at    time.Time
		bytes int
	}
	var log []sent
	for now := start; now.Before(start.Add(20 * time.Second)); now = now.Add(5 * time.Millisecond) {
		for range 60 { // 12,000 blocks a second: twice what the rate can carry
			p.Set(wire.TierGPU, blockhash.Hash(r.Uint64()))
		}
		packets := p.Ticks(now)
		if len(packets) > burst {
			t.Fatalf("%d packets at once", len(packets))
		}
		n := 0
		for _, b := range packets {
			n += len(b)
		}
		if n > 0 {
			log = append(log, sent{now, n})
		}
	}
	gap := time.Duration(0)
	for i := range log {
		total := 0
		for j := i; j < len(log); j++ {
			total += log[j].bytes
			if limit := 20_000*log[j].at.Sub(log[i].at).Seconds() + (burst+1)*wire.MaxPacketBytes; float64(total) > limit {
				t.Fatalf("%d bytes in %v", total, log[j].at.Sub(log[i].at))
			}
		}
		if i > 0 {
			gap = max(gap, log[i].at.Sub(log[i-1].at))
		}
	}
	if gap > 205*time.Millisecond {
		t.Errorf("%v without a tick", gap)
	}
}

func TestDue(t *testing.T) {
	ms := func(n int) time.Time { return start.Add(time.Duration(n) * time.Millisecond) }
	p := New(config(1000))
	steps := []struct {
		name string
		do   func()
		now  int // ms
		want int
	}{
		{"first at once", func() {}, 0, 0},
		{"then a heartbeat", func() { p.Ticks(ms(0)) }, 0, 200},
		{"a block sooner", func() { p.Set(wire.TierGPU, 1) }, 1, 25},
		{"after its tick a heartbeat", func() { p.Ticks(ms(25)) }, 25, 225},
		{"load that only ages", func() {
			p.SetLoad(ms(50), wire.Load{})
			p.Ticks(ms(50))
			p.SetLoad(ms(50), wire.Load{VictimIdle: time.Hour})
		}, 50, 250},
		{"a request more", func() { p.SetLoad(ms(50), wire.Load{Running: 1}) }, 50, 75},
		{"flags", func() { p.Ticks(ms(75)); p.SetFlags(wire.Asleep) }, 75, 100},
		{"a GPU fault", func() { p.Ticks(ms(100)); p.SetHealth(wire.Health{Fault: 1, Known: true}) }, 100, 125},
		{"new info", func() { p.Ticks(ms(125)); p.SetInfoVersion(2) }, 125, 150},
		{"a large fleet", func() { p.Ticks(ms(150)); p.SetMinInterval(500 * time.Millisecond); p.SetInfoVersion(3) }, 150, 650},
		{"the clock goes back", func() { p.Ticks(ms(650)) }, 100, 100},
	}
	for _, s := range steps {
		s.do()
		if got := p.Due(ms(s.now)); !got.Equal(ms(s.want)) {
			t.Errorf("%s: due at %v, want %d ms", s.name, got.Sub(start), s.want)
		}
	}
	p.SetMinInterval(500 * time.Millisecond)
	if tick := decodeTick(t, p.Ticks(ms(2000))[0]); tick.Interval != 500*time.Millisecond {
		t.Errorf("announced interval %v, want 500ms", tick.Interval)
	}
}

func TestFactsTravel(t *testing.T) {
	p := New(config(1000))
	load := wire.Load{Running: 3, BlocksTotal: 1000}
	health := wire.Health{GPUs: 2, Slowdown: 1, Known: true}
	p.SetLoad(start.Add(-30*time.Millisecond), load)
	p.SetHealth(health)
	p.SetFlags(wire.Partial)
	p.SetInfoVersion(9)
	got := decodeTick(t, p.Ticks(start)[0])
	got.CRCs = nil
	load.Age = 30 * time.Millisecond
	want := &wire.Tick{Key: testKey, Epoch: 100, TickNo: 1, Interval: 200 * time.Millisecond, Flags: wire.Partial, InfoVersion: 9,
		Load: load, HasLoad: true, Health: health, HasHealth: true}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestSaturatedCountersAreRebuilt fills one bucket far beyond its counters.
func TestSaturatedCountersAreRebuilt(t *testing.T) {
	cfg := Config{Key: testKey, Epoch: 1, GPU: bloom.Geometry{Buckets: 2, K: 4}}
	exact := make(map[blockhash.Hash]bool)
	cfg.Blocks = func(wire.Tier) iter.Seq[blockhash.Hash] {
		return func(yield func(blockhash.Hash) bool) {
			for h := range exact {
				if !yield(h) {
					return
				}
			}
		}
	}
	p, m := New(cfg), newMirror(t, cfg)
	list := hashes(9, 500)
	for _, h := range list {
		exact[h] = true
		p.Set(wire.TierGPU, h)
	}
	m.apply(p.Ticks(start)...)
	for _, h := range list[1:] {
		delete(exact, h)
		p.Clear(wire.TierGPU, h)
	}
	m.apply(p.Ticks(start.Add(2 * time.Minute))...)
	want := bloom.NewCounting(cfg.GPU)
	want.Add(list[0])
	if !slices.Equal(m.words[0], want.Words()) {
		t.Errorf("published %x, want %x", m.words[0], want.Words())
	}
	if n := p.Stats().Rebuilds; n != 2 {
		t.Errorf("%d rebuilds, want 2", n)
	}
}

// TestHugeBacklogIsRebased: what would take longer to say as flips than as segments
// is announced by a jump of the tick number.
func TestHugeBacklogIsRebased(t *testing.T) {
	cfg := config(40_000)
	p := New(cfg)
	p.Ticks(start)
	twin := bloom.NewCounting(cfg.GPU)
	for _, h := range hashes(4, 40_000) {
		p.Set(wire.TierGPU, h)
		twin.Add(h)
	}
	packets := p.Ticks(start.Add(time.Second))
	if len(packets) != 1 {
		t.Fatalf("%d packets", len(packets))
	}
	if tick := decodeTick(t, packets[0]); tick.TickNo != 2+rebaseJump || len(tick.Set[0]) != 0 {
		t.Errorf("tick %d with %d SETs, want tick %d without", tick.TickNo, len(tick.Set[0]), 2+rebaseJump)
	}
	replies := p.Nack(start.Add(time.Second), &wire.Nack{Key: testKey, Epoch: 100, From: 2, To: 1 + rebaseJump})
	if got := segmentWords(t, replies, p.TickNo()); !slices.Equal(got, twin.Words()) {
		t.Error("segments differ from the filter")
	}
}

// BenchmarkDigestTick is 50 ms of an engine of 40,000 blocks at 1,250 block changes
// a second, and the tick for it.
func BenchmarkDigestTick(b *testing.B) {
	cfg := config(40_000)
	cfg.BytesPerSec = 1 << 30
	p := New(cfg)
	p.SetLoad(start, wire.Load{Running: 12, BlocksTotal: 40_000, BlocksUsed: 9000, BlocksCached: 31_000})
	r := rand.New(rand.NewPCG(1, 1))
	resident := hashes(1, 40_000)
	for _, h := range resident {
		p.Set(wire.TierGPU, h)
	}
	p.Ticks(start)
	now, oldest, changes := start, 0, 0
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(50 * time.Millisecond)
		for range 31 {
			p.Clear(wire.TierGPU, resident[oldest])
			resident[oldest] = blockhash.Hash(r.Uint64())
			p.Set(wire.TierGPU, resident[oldest])
			oldest = (oldest + 1) % len(resident)
			changes += 2
		}
		p.Ticks(now)
	}
	st := p.Stats()
	b.ReportMetric(float64(st.TickBytes)/float64(st.Ticks), "B/tick")
	b.ReportMetric(float64(st.TickBytes)/float64(changes), "B/change")
}
