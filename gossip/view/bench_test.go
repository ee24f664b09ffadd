package view

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// BenchmarkViewApply is a gateway of 300 pods with 40,000 blocks each, whose agents
// tick every 50 ms at 1,250 block changes a second; one operation is one tick.
func BenchmarkViewApply(b *testing.B) {
	const pods = 300
	g := bloom.GeometryFor(40_000, 8)
	v := New(Config{Node: "g", Pool: testPool, SeedFingerprint: testSeed})
	// The packets of one busy agent, for every pod by turns under its own key.
	r := rand.New(rand.NewPCG(1, 1))
	keys := make([]wire.Key, pods)
	for i := range keys {
		in := wire.Info{Pool: testPool, Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250), Version: 1, SeedFingerprint: testSeed, BlockSize: 16, Ranks: []wire.RankInfo{{Epoch: 1, GPU: g}}}
		keys[i] = in.Key(0)
		if err := v.Apply(start, in.Append(nil, uint64(i))); err != nil {
			b.Fatal(err)
		}
	}
	p := digest.New(digest.Config{Epoch: 1, GPU: g, BytesPerSec: 1 << 30})
	resident := make([]blockhash.Hash, 40_000)
	for i := range resident {
		resident[i] = blockhash.Hash(r.Uint64())
		p.Set(wire.TierGPU, resident[i])
	}
	p.Ticks(start)
	var ticks []*wire.Tick
	for i := range 200 {
		for range 31 {
			j := r.IntN(len(resident))
			p.Clear(wire.TierGPU, resident[j])
			resident[j] = blockhash.Hash(r.Uint64())
			p.Set(wire.TierGPU, resident[j])
		}
		for _, packet := range p.Ticks(start.Add(time.Duration(i+1) * 50 * ms)) {
			_, m, err := wire.Decode(packet)
			if err != nil {
				b.Fatal(err)
			}
			t := m.(*wire.Tick)
			t.CRCs = nil // these columns hold only the changes
			ticks = append(ticks, t)
		}
	}
	var packet []byte
	numbers := make([]uint64, pods)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		i := n % pods
		t := *ticks[n/pods%len(ticks)]
		numbers[i]++
		t.Key, t.TickNo = keys[i], numbers[i]
		packet = t.Append(packet[:0], uint64(i))
		if err := v.Apply(start.Add(time.Duration(n)*50*ms/pods), packet); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

// BenchmarkViewVerify is one tick of an idle agent with 40,000 blocks: its checksums are right and there is nothing else.
func BenchmarkViewVerify(b *testing.B) {
	g := bloom.GeometryFor(40_000, 8)
	v := New(Config{Node: "g", Pool: testPool, SeedFingerprint: testSeed, CheckWordsPerSec: 1 << 40})
	in := wire.Info{Pool: testPool, Address: "10.0.0.1:8000", Version: 1, SeedFingerprint: testSeed, BlockSize: 16, Ranks: []wire.RankInfo{{Epoch: 1, GPU: g}}}
	if err := v.Apply(start, in.Append(nil, 1)); err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	p := digest.New(digest.Config{Key: in.Key(0), Node: 1, Epoch: 1, GPU: g, BytesPerSec: 1 << 30})
	now := start
	apply := func() (packets [][]byte) {
		now = now.Add(time.Second)
		packets = p.Ticks(now)
		for _, packet := range packets {
			if err := v.Apply(now, packet); err != nil {
				b.Fatal(err)
			}
		}
		return packets
	}
	for range 400 { // as much at once as ticks carry
		for range 100 {
			p.Set(wire.TierGPU, blockhash.Hash(r.Uint64()))
		}
		apply()
	}
	var idle []*wire.Tick // the checksums of all segments
	number := uint64(0)
	for range wire.Segments(g) {
		_, m, err := wire.Decode(apply()[0])
		if err != nil {
			b.Fatal(err)
		}
		idle = append(idle, m.(*wire.Tick))
		number = idle[len(idle)-1].TickNo
	}
	var packet []byte
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		t := *idle[n%len(idle)]
		n++
		t.TickNo = number + uint64(n)
		packet = t.Append(packet[:0], 1)
		if err := v.Apply(now, packet); err != nil {
			b.Fatal(err)
		}
	}
	if st := v.Stats(); st.Mismatches > 0 || st.Gaps > 0 {
		b.Fatalf("%d mismatches, %d gaps", st.Mismatches, st.Gaps)
	}
}
