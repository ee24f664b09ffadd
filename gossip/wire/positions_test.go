package wire

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

func TestPositions(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	lists := map[string][]uint32{
		"one":          {0},
		"last":         {maxPosition},
		"ends":         {0, maxPosition},
		"neighbours":   {5, 6, 7, 8},
		"long run":     {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1_000_000},
		"dense":        nil,
		"sparse":       nil,
		"half and far": nil,
	}
	for i := range uint32(4000) {
		if r.IntN(3) > 0 {
			lists["dense"] = append(lists["dense"], i)
		}
	}
	for range 300 {
		lists["sparse"] = append(lists["sparse"], r.Uint32N(maxPosition))
	}
	slices.Sort(lists["sparse"])
	lists["sparse"] = slices.Compact(lists["sparse"])
	lists["half and far"] = append(slices.Clone(lists["dense"]), maxPosition-1, maxPosition)
	for name, want := range lists {
		t.Run(name, func(t *testing.T) {
			b := appendPositions(nil, want)
			if n := PositionsBytes(want); n != len(b) {
				t.Errorf("%d bytes announced, %d written", n, len(b))
			}
			in := reader{b: b}
			got := in.positions()
			if in.err != nil {
				t.Fatal(in.err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// flips returns the SET and CLEAR lists of one tick of an engine of 40,000 blocks
// that stores and evicts the given number of blocks.
func flips(r *rand.Rand, changes int) (set, cleared []uint32, g bloom.Geometry) {
	const blocks = 40_000
	g = bloom.GeometryFor(blocks, 8)
	c := bloom.NewCounting(g)
	resident := make([]blockhash.Hash, blocks)
	for i := range resident {
		resident[i] = blockhash.Hash(r.Uint64())
		c.Add(resident[i])
	}
	before := slices.Clone(c.Words())
	for i := range changes / 2 {
		c.Remove(resident[i])
		c.Add(blockhash.Hash(r.Uint64()))
	}
	for w, now := range c.Words() {
		for bit := range 64 {
			switch was, is := before[w]>>bit&1, now>>bit&1; {
			case was < is:
				set = append(set, uint32(w*64+bit))
			case was > is:
				cleared = append(cleared, uint32(w*64+bit))
			}
		}
	}
	return set, cleared, g
}

// TestBytesPerChange holds the format to about 3.5 bytes a changed block: 250
// changes are what a busy engine (1,250 a second) does in 200 ms.
func TestBytesPerChange(t *testing.T) {
	const changes = 250
	r := rand.New(rand.NewPCG(7, 7))
	total := 0
	const rounds = 10
	for range rounds {
		set, cleared, _ := flips(r, changes)
		total += len(appendPositions(nil, set)) + len(appendPositions(nil, cleared))
	}
	perChange := float64(total) / (rounds * changes)
	t.Logf("%.2f B a changed block", perChange)
	if perChange > 3.7 {
		t.Errorf("%.2f B a changed block, want about 3.5", perChange)
	}
}

// FuzzDecode: no bytes panic, and what decodes survives another round trip.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/v1/*.hex")
	if err != nil || len(files) == 0 {
		f.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		f.Add(readHex(f, file))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, m, err := Decode(b)
		if err != nil {
			if m != nil || Reason(err) == "other" {
				t.Fatalf("message %v, error %v", m, err)
			}
			return
		}
		_, again, err := Decode(m.Append(nil, h.Node))
		if err != nil {
			t.Fatalf("written again it does not decode: %v", err)
		}
		if d := cmp.Diff(m, again, cmpopts.EquateEmpty()); d != "" { // an empty list may be left out
			t.Fatalf("round trip changed the message (-first +second):\n%s", d)
		}
	})
}

// FuzzPositions: any list survives.
func FuzzPositions(f *testing.F) {
	f.Add([]byte{0, 1, 2, 255, 255, 3}, uint8(3))
	f.Fuzz(func(t *testing.T, gaps []byte, shift uint8) {
		var want []uint32
		next := uint64(0)
		for _, g := range gaps {
			p := next + uint64(g)<<(shift%19)
			if p > maxPosition {
				break
			}
			want = append(want, uint32(p))
			next = p + 1
		}
		in := reader{b: appendPositions(nil, want)}
		got := in.positions()
		if in.err != nil || !slices.Equal(want, got) {
			t.Fatalf("got %v (%v), want %v", got, in.err, want)
		}
	})
}

func busyTick() *Tick {
	set, cleared, _ := flips(rand.New(rand.NewPCG(3, 3)), 250)
	tick := messages()["tick"].(*Tick)
	tick.Set, tick.Clear = [Tiers][]uint32{set}, [Tiers][]uint32{cleared}
	return tick
}

func BenchmarkAppendTick(b *testing.B) {
	tick := busyTick()
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = tick.Append(dst[:0], testNode)
	}
	b.ReportMetric(float64(len(dst)), "B/tick")
}

func BenchmarkDecodeTick(b *testing.B) {
	packet := busyTick().Append(nil, testNode)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Decode(packet); err != nil {
			b.Fatal(err)
		}
	}
}
