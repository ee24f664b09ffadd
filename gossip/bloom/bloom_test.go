package bloom

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func hashes(r *rand.Rand, n int) []blockhash.Hash {
	out := make([]blockhash.Hash, n)
	for i := range out {
		out[i] = blockhash.Hash(r.Uint64())
	}
	return out
}

func TestGeometryFor(t *testing.T) {
	for _, c := range []struct {
		name   string
		blocks int
		bits   float64
		want   uint32
	}{
		{"on a step", 20480, 8, 2560},
		{"between steps", 20000, 8, 2560},
		{"one more than a step", 20481, 8, 2816},
		{"an octave", 32768, 8, 4096},
		{"so few that all are steps", 15 * 8, 8, 15},
		{"the first that is none", 17 * 8, 8, 18},
		{"rounded up", 9, 8, 2},
		{"no blocks", 0, 8, 1},
		{"negative", -5, 8, 1},
		{"not a number", 20000, math.NaN(), 1},
		{"too many", math.MaxInt, 8, MaxBuckets},
		{"infinite", 1, math.Inf(1), MaxBuckets},
	} {
		g := GeometryFor(c.blocks, c.bits)
		if g.Buckets != c.want || g.K != 4 {
			t.Errorf("%s: got %+v, want %d buckets, K 4", c.name, g, c.want)
		}
		if err := g.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if g.Bits() != int(c.want)*64 || g.Bytes() != int(c.want)*8 {
			t.Errorf("%s: %d bits, %d bytes", c.name, g.Bits(), g.Bytes())
		}
	}
}

// TestGeometryForSteps: enough bits, at most an eighth more, and few shapes.
func TestGeometryForSteps(t *testing.T) {
	shapes := map[Geometry]bool{}
	for blocks := 1024; blocks < 65536; blocks++ {
		g := GeometryFor(blocks, 8)
		if asked := 8 * blocks; g.Bits() < asked || float64(g.Bits()) > 1.125*float64(asked)+64 {
			t.Fatalf("%d blocks: %d bits", blocks, g.Bits())
		}
		shapes[g] = true
	}
	if len(shapes) != 6*8+1 { // the last blocks need the first step of the next octave
		t.Errorf("%d shapes in 6 octaves", len(shapes))
	}
}

func TestValidate(t *testing.T) {
	for _, g := range []Geometry{{}, {Buckets: 1}, {K: 4}, {MaxBuckets + 1, 4}, {1, MaxK + 1}} {
		if g.Validate() == nil {
			t.Errorf("%+v passes", g)
		}
	}
	for _, g := range []Geometry{{1, 1}, {MaxBuckets, MaxK}} {
		if err := g.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// TestLocate pins where a block lies: agents and gateways of all versions must agree.
func TestLocate(t *testing.T) {
	for _, c := range []struct {
		g      Geometry
		h      blockhash.Hash
		bucket uint32
		mask   uint64
	}{
		{Geometry{2500, 4}, 0, 0, 1},
		{Geometry{2500, 4}, math.MaxUint64, 2499, 1 << 63},
		{Geometry{2500, 4}, 1<<63 | 1 | 2<<6 | 3<<12 | 4<<18 | 5<<24, 1250, 0b11110},
		{Geometry{2500, 2}, 1<<63 | 1 | 2<<6 | 3<<12 | 4<<18, 1250, 0b110},
		{Geometry{1, 4}, 7 | 7<<6 | 7<<12 | 9<<18, 0, 1<<7 | 1<<9},
		{Geometry{2500, 4}, 0xd6edfd302f881960, 2098, 1<<0x20 | 1<<0x25 | 1<<0x01 | 1<<0x22},
	} {
		bucket, mask := c.g.Locate(c.h)
		if bucket != c.bucket || mask != c.mask {
			t.Errorf("%+v, %016x: got %d, %x, want %d, %x", c.g, uint64(c.h), bucket, mask, c.bucket, c.mask)
		}
	}
}

func TestFPRateIsMeasured(t *testing.T) {
	for _, c := range []struct {
		bits     float64
		lo, hi   float64
		blocks   int
		measured int
	}{
		{8, 0.033, 0.036, 20480, 1 << 20},
		{12, 0.008, 0.013, 20480, 1 << 20},
		{16, 0.003, 0.006, 20480, 1 << 20},
	} {
		t.Run(fmt.Sprint(c.bits), func(t *testing.T) {
			r, g := newRand(1), GeometryFor(c.blocks, c.bits)
			f := NewCounting(g)
			for _, h := range hashes(r, c.blocks) {
				f.Add(h)
			}
			wrong := 0
			for range c.measured {
				if b, mask := g.Locate(blockhash.Hash(r.Uint64())); f.Words()[b]&mask == mask {
					wrong++
				}
			}
			got, said := float64(wrong)/float64(c.measured), FPRate(g, c.blocks)
			t.Logf("%v bits a block: measured %.4f, predicted %.4f", c.bits, got, said)
			if got < c.lo || got > c.hi {
				t.Errorf("measured %.4f, want %.3f to %.3f", got, c.lo, c.hi)
			}
			if math.Abs(got-said) > 0.1*got {
				t.Errorf("predicted %.4f, measured %.4f", said, got)
			}
		})
	}
	if got := FPRate(Geometry{2500, 4}, 0); got != 0 {
		t.Errorf("empty filter: %v", got)
	}
	if got := FPRate(Geometry{1, 4}, 1<<20); math.Abs(got-1) > 1e-6 {
		t.Errorf("full filter: %v", got)
	}
}

// TestCountingAgainstSets adds and removes at random beside a plain multiset: what is held is found, what flips is told,
// and bits are exactly those of what is held.
func TestCountingAgainstSets(t *testing.T) {
	for seed := range uint64(20) {
		r := newRand(seed)
		g := Geometry{Buckets: 1 + r.Uint32N(60), K: uint8(1 + r.IntN(MaxK))}
		c, copyOf := NewCounting(g), make([]uint64, g.Buckets)
		var held []blockhash.Hash
		for range 2000 {
			if len(held) > 0 && r.IntN(100) < 48 {
				i := r.IntN(len(held))
				b, cleared := c.Remove(held[i])
				if copyOf[b]&cleared != cleared {
					t.Fatal("cleared a bit that was not set")
				}
				copyOf[b] &^= cleared
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
				continue
			}
			h := blockhash.Hash(r.Uint64())
			if len(held) > 0 && r.IntN(4) == 0 {
				h = held[r.IntN(len(held))] // the same block again
			}
			b, set := c.Add(h)
			if copyOf[b]&set != 0 {
				t.Fatal("set a bit twice")
			}
			copyOf[b] |= set
			held = append(held, h)
		}
		want := make([]uint64, g.Buckets)
		for _, h := range held {
			b, mask := g.Locate(h)
			want[b] |= mask
		}
		for b := range want {
			if want[b]&^c.Words()[b] != 0 {
				t.Fatalf("seed %d: a held block is not found", seed)
			}
			if c.Stuck() == 0 && want[b] != c.Words()[b] {
				t.Fatalf("seed %d: bucket %d is %x, want %x", seed, b, c.Words()[b], want[b])
			}
			if copyOf[b] != c.Words()[b] {
				t.Fatalf("seed %d: told flips lead to %x, bits are %x", seed, copyOf[b], c.Words()[b])
			}
		}
		if c.Stuck() == 0 {
			for _, h := range held {
				c.Remove(h)
			}
			for b, w := range c.Words() {
				if w != 0 {
					t.Fatalf("seed %d: bucket %d keeps %x when all is removed", seed, b, w)
				}
			}
		}
	}
}

func TestCountingSaturates(t *testing.T) {
	g := Geometry{Buckets: 4, K: 4}
	c, h := NewCounting(g), blockhash.Hash(1|2<<6|3<<12|4<<18)
	for range 14 {
		c.Add(h)
	}
	if c.Stuck() != 0 {
		t.Errorf("%d counters stuck after 14", c.Stuck())
	}
	for range 14 {
		c.Remove(h)
	}
	if c.Words()[0] != 0 {
		t.Errorf("14 added, 14 removed: %x", c.Words()[0])
	}
	for range 40 {
		c.Add(h)
	}
	if c.Stuck() != 4 {
		t.Errorf("%d counters stuck after 40, want 4", c.Stuck())
	}
	for range 60 {
		if _, cleared := c.Remove(h); cleared != 0 {
			t.Fatalf("cleared %x of counters that lost count", cleared)
		}
	}
	if _, mask := g.Locate(h); c.Words()[0] != mask {
		t.Errorf("bits %x, want %x", c.Words()[0], mask)
	}
	c.Reset()
	if c.Stuck() != 0 || c.Words()[0] != 0 {
		t.Error("reset leaves something")
	}
	if _, set := c.Add(h); bits.OnesCount64(set) != 4 {
		t.Errorf("added after reset: %x", set)
	}
}

func TestRemoveOfAbsentDoesNotUnderflow(t *testing.T) {
	c, h := NewCounting(Geometry{Buckets: 1, K: 4}), blockhash.Hash(99)
	c.Remove(h)
	c.Add(h)
	if _, mask := c.Geometry().Locate(h); c.Words()[0] != mask {
		t.Errorf("got %x, want %x", c.Words()[0], mask)
	}
}

func TestNoAllocations(t *testing.T) {
	g := GeometryFor(20000, 8)
	c, m := NewCounting(g), NewMatrix(g, 64)
	dst := make([]uint64, 0, g.Buckets)
	if n := testing.AllocsPerRun(10, func() {
		b, set := c.Add(12345)
		m.SetBits(3, b, set)
		m.Or(5, 777)
		dst = m.Column(3, dst[:0])
		b, cleared := c.Remove(12345)
		m.ClearBits(3, b, cleared)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
