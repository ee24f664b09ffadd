package digest

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// segmentWords joins the GPU segments of replies, all true at the given tick.
func segmentWords(t *testing.T, replies []Reply, tick uint64) (words []uint64) {
	t.Helper()
	for _, r := range replies {
		if r.Reliable != (len(r.Packet) > wire.MaxPacketBytes) {
			t.Errorf("packet of %d bytes, reliable %v", len(r.Packet), r.Reliable)
		}
		_, m, err := wire.Decode(r.Packet)
		if err != nil {
			t.Fatal(err)
		}
		s, ok := m.(*wire.Segment)
		if !ok {
			t.Fatalf("reply %T, want a segment", m)
		}
		if s.TickNo != tick {
			t.Errorf("segment true at tick %d, want %d", s.TickNo, tick)
		}
		words = append(words, s.Words...)
	}
	return words
}

func TestNackReplaysVerbatim(t *testing.T) {
	p := New(config(1000))
	var sent [][]byte
	now := start
	for _, h := range hashes(6, 10) {
		p.Set(wire.TierGPU, h)
		sent = append(sent, p.Ticks(now)...)
		now = now.Add(25 * time.Millisecond)
	}
	replies := p.Nack(now, &wire.Nack{Key: testKey, Epoch: 100, From: 3, To: 5})
	if len(replies) != 3 {
		t.Fatalf("%d replies, want 3", len(replies))
	}
	for i, r := range replies {
		if r.Reliable || !bytes.Equal(r.Packet, sent[2+i]) {
			t.Errorf("reply %d is not the tick as it was sent", i)
		}
	}
	if got := p.Nack(now, &wire.Nack{Key: testKey, Epoch: 100, From: 9, To: 1 << 60}); len(got) != 2 {
		t.Errorf("%d replies for ticks 9 and those to come, want 2", len(got))
	}
}

func TestNack(t *testing.T) {
	cfg := config(0)
	cfg.GPU, cfg.All = bloom.Geometry{Buckets: 5000, K: 4}, bloom.Geometry{Buckets: 10_000, K: 4}
	tests := []struct {
		name     string
		nack     wire.Nack
		segments []int // lengths in words of each reply
	}{
		{"another key", wire.Nack{Epoch: 100, From: 1, To: 1}, nil},
		{"an old epoch", wire.Nack{Key: testKey, Epoch: 99, From: 1, To: 1}, nil},
		{"only INFO", wire.Nack{Key: testKey, Epoch: 100, WantInfo: true}, nil},
		{"ticks that left the ring", wire.Nack{Key: testKey, Epoch: 100, From: 1, To: 2}, []int{5000, 10_000}},
		{"two segments", wire.Nack{Key: testKey, Epoch: 100, Segments: []uint16{0, 39}}, []int{128, 5000 % 128}},
		{"many segments", wire.Nack{Key: testKey, Epoch: 100, Tier: wire.TierAll, Segments: []uint16{9, 2, 5, 6}}, []int{8 * 128}},
		{"segments past the end", wire.Nack{Key: testKey, Epoch: 100, Segments: []uint16{40, 65535}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := New(cfg)
			now := start
			for range 2 * ringTicks {
				p.Ticks(now)
				now = now.Add(200 * time.Millisecond)
			}
			var got []int
			for _, r := range p.Nack(now, &tt.nack) {
				_, m, err := wire.Decode(r.Packet)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, len(m.(*wire.Segment).Words))
			}
			if d := cmp.Diff(tt.segments, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestHello(t *testing.T) {
	known := func(epoch, tick uint64) *wire.KnownStream {
		return &wire.KnownStream{Key: testKey, Epoch: epoch, TickNo: tick}
	}
	tests := []struct {
		name     string
		ticks    int // sent before
		known    *wire.KnownStream
		replayed int // else segments
	}{
		{"new receiver, young epoch", 10, nil, 10},
		{"new receiver", 50, nil, 0},
		{"knows another epoch", 50, known(99, 48), 0},
		{"missed a few", 50, known(100, 47), 3},
		{"missed many", 200, known(100, 100), 0},
		{"knows another key", 50, &wire.KnownStream{Epoch: 100, TickNo: 47}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(1000)
			p := New(cfg)
			now := start
			for range tt.ticks {
				p.Ticks(now)
				now = now.Add(200 * time.Millisecond)
			}
			replies := p.Hello(now, tt.known)
			if tt.replayed == 0 {
				if words := segmentWords(t, replies, p.TickNo()); len(words) != int(cfg.GPU.Buckets) {
					t.Errorf("%d words, want the whole digest", len(words))
				}
				return
			}
			if len(replies) != tt.replayed {
				t.Fatalf("%d replies, want %d ticks", len(replies), tt.replayed)
			}
			for i, r := range replies {
				if n := decodeTick(t, r.Packet).TickNo; n != p.TickNo()-uint64(tt.replayed-1-i) {
					t.Errorf("reply %d is tick %d", i, n)
				}
			}
		})
	}
}

// TestRepairBudget: askers can spend no more than the budget, and ticks don't
// suffer from it.
func TestRepairBudget(t *testing.T) {
	cfg := config(40_000)
	p := New(cfg)
	p.Ticks(start)
	now, total := start, 0
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		for _, r := range p.Nack(now, &wire.Nack{Key: testKey, Epoch: 100, Segments: []uint16{0, 1, 2, 39}}) {
			total += len(r.Packet)
		}
		p.Ticks(now)
	}
	if limit := 8*cfg.GPU.Bytes() + 10*20_000 + 4096; total > limit {
		t.Errorf("%d bytes of repairs in 10 s, limit %d", total, limit)
	}
	if st := p.Stats(); st.Refused == 0 || st.Ticks < 50 {
		t.Errorf("%d refused, %d ticks", st.Refused, st.Ticks)
	}
}

func TestEpochs(t *testing.T) {
	cfg := config(1000)
	cfg.AfterTick = 5000
	p := New(cfg)
	p.Set(wire.TierGPU, 1<<40)
	if tick := decodeTick(t, p.Ticks(start)[0]); tick.Epoch != 100 || tick.TickNo != 5001 {
		t.Errorf("resumed at epoch %d tick %d", tick.Epoch, tick.TickNo)
	}
	behind := map[wire.KnownStream]bool{
		{Key: testKey, Epoch: 100, TickNo: 5001}: false,
		{Key: testKey, Epoch: 99, TickNo: 9999}:  false,
		{Key: testKey, Epoch: 100, TickNo: 5002}: true,
		{Key: testKey, Epoch: 101, TickNo: 1}:    true,
		{Epoch: 101}:                             false,
	}
	for k, want := range behind {
		if got := p.Behind(&k); got != want {
			t.Errorf("Behind(%+v) = %v", k, got)
		}
	}
	now := start.Add(time.Second)
	p.Supersede(200)
	if tick := decodeTick(t, p.Ticks(now)[0]); tick.Epoch != 200 || tick.TickNo != rebaseJump+1 {
		t.Errorf("superseded at epoch %d tick %d", tick.Epoch, tick.TickNo)
	}
	twin := bloom.NewCounting(cfg.GPU)
	twin.Add(1 << 40)
	if got := segmentWords(t, p.Hello(now, nil), p.TickNo()); !slices.Equal(got, twin.Words()) {
		t.Error("content lost by Supersede")
	}
	p.Restart(150) // not above the last: still a new epoch
	tick := decodeTick(t, p.Ticks(now)[0])
	if tick.Epoch != 201 || tick.TickNo != 1 || len(tick.Set[0])+len(tick.Clear[0]) != 0 {
		t.Errorf("restarted as %+v", tick)
	}
}
