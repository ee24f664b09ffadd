package view

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

const (
	ms      = time.Millisecond
	oneNode = 77
)

var (
	smallGPU = bloom.Geometry{Buckets: 300, K: 4}
	oneInfo  = wire.Info{Node: "n", Pool: testPool, Address: "http://10.0.0.1:8000", Version: 1, SeedFingerprint: testSeed,
		BlockSize: 16, Ranks: []wire.RankInfo{{Epoch: 5, GPU: smallGPU}}}
	oneKey = oneInfo.Key(0)
)

// rig is a view that one agent talks to, message by message.
type rig struct {
	t *testing.T
	v *View
}

func newRig(t *testing.T, cfg Config) *rig {
	cfg.Node, cfg.Pool, cfg.SeedFingerprint = "g", testPool, testSeed
	return &rig{t, New(cfg)}
}

func (r *rig) apply(at time.Duration, m wire.Message) error {
	return r.v.Apply(start.Add(at), m.Append(nil, oneNode))
}

func (r *rig) tick(at time.Duration, no uint64, set, cleared []uint32) {
	r.t.Helper()
	t := &wire.Tick{Key: oneKey, Epoch: 5, TickNo: no, Interval: 200 * ms, InfoVersion: 1}
	t.Set[0], t.Clear[0] = set, cleared
	if err := r.apply(at, t); err != nil {
		r.t.Fatal(err)
	}
}

// asked polls and decodes what goes out.
func (r *rig) asked(at time.Duration) (nacks []*wire.Nack, hellos []*wire.Hello) {
	r.t.Helper()
	for _, out := range r.v.Poll(start.Add(at)) {
		_, m, err := wire.Decode(out.Packet)
		if err != nil {
			r.t.Fatal(err)
		}
		switch m := m.(type) {
		case *wire.Nack:
			nacks = append(nacks, m)
		case *wire.Hello:
			hellos = append(hellos, m)
		}
	}
	return nacks, hellos
}

func (r *rig) stream(at time.Duration) Stream {
	r.t.Helper()
	r.v.Poll(start.Add(at))
	snap := r.v.Snapshot()
	i, ok := snap.Find(oneKey)
	if !ok {
		r.t.Fatal("no stream")
	}
	return snap.Streams[i]
}

func (r *rig) word(at time.Duration, bucket int) uint64 {
	r.t.Helper()
	c := r.stream(at).GPU
	if c.Matrix == nil {
		r.t.Fatal("no column")
	}
	return c.Matrix.Column(c.Index, nil)[bucket]
}

// TestOrderDoesNotMatter applies three ticks that fight over one bit in all orders.
func TestOrderDoesNotMatter(t *testing.T) {
	for _, order := range [][]uint64{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {2, 3, 1}, {3, 1, 2}, {3, 2, 1}, {3, 3, 2, 1, 2, 1}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			r := newRig(t, Config{})
			r.apply(0, &oneInfo)
			for _, no := range order {
				switch no {
				case 1:
					r.tick(0, 1, []uint32{0, 1}, nil)
				case 2:
					r.tick(0, 2, []uint32{2}, []uint32{0, 1})
				case 3:
					r.tick(0, 3, []uint32{1}, []uint32{2})
				}
			}
			if got := r.word(0, 0); got != 0b10 {
				t.Errorf("word %b, want 10", got)
			}
			if r.stream(0).Live.Facts().GapOpen {
				t.Error("gap open")
			}
		})
	}
}

func TestGapIsHeldThenAsked(t *testing.T) {
	r := newRig(t, Config{})
	r.apply(0, &oneInfo)
	r.tick(0, 1, nil, nil)
	r.tick(10*ms, 3, nil, nil)
	if !r.stream(20 * ms).Live.Facts().GapOpen {
		t.Error("gap not shown")
	}
	if nacks, _ := r.asked(60 * ms); len(nacks) != 0 {
		t.Fatalf("asked after 50 ms: %+v", nacks[0])
	}
	nacks, _ := r.asked(71 * ms)
	if len(nacks) != 1 || nacks[0].From != 2 || nacks[0].To != 2 {
		t.Fatalf("asked %+v, want tick 2", nacks)
	}
	for at := 80 * ms; at < 240*ms; at += 20 * ms {
		if again, _ := r.asked(at); len(again) != 0 {
			t.Fatalf("asked again at %v", at)
		}
	}
	r.tick(250*ms, 2, nil, nil)
	if r.stream(260 * ms).Live.Facts().GapOpen {
		t.Error("gap still open")
	}
	if nacks, _ := r.asked(900 * ms); len(nacks) != 0 {
		t.Errorf("asked for a closed gap: %+v", nacks[0])
	}
}

func TestAllGapsAreAskedAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		came []uint64
		want []span
	}{
		{"three gaps", []uint64{1, 3, 5, 6, 9}, []span{{2, 2}, {4, 4}, {7, 8}}},
		{"the first tick", []uint64{3, 2}, []span{{1, 1}}},
		{"more than fit", []uint64{2, 4, 6, 8, 10, 12, 14, 16, 18, 20},
			[]span{{1, 1}, {3, 3}, {5, 5}, {7, 7}, {9, 9}, {11, 11}, {13, 13}, {15, 15}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{})
			r.apply(0, &oneInfo)
			for _, no := range tt.came {
				r.tick(0, no, nil, nil)
			}
			nacks, _ := r.asked(71 * ms)
			var got []span
			for _, n := range nacks {
				got = append(got, span{n.From, n.To})
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("asked %v, want %v", got, tt.want)
			}
			if st := r.v.Stats(); st.Nacks != uint64(len(tt.want)) {
				t.Errorf("%d NACKs counted", st.Nacks)
			}
		})
	}
}

// TestGapIsGivenUp: after a second, or at once when too much is missing, segments
// are asked for, and their tick number holds older ticks off.
func TestGapIsGivenUp(t *testing.T) {
	for _, tt := range []struct {
		name string
		no   uint64
		at   time.Duration
	}{{"age", 3, 1200 * ms}, {"size", 100, 20 * ms}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{})
			r.apply(0, &oneInfo)
			r.tick(0, 1, []uint32{5}, nil)
			r.tick(0, tt.no, nil, nil)
			r.v.Poll(start)
			r.v.Poll(start.Add(tt.at)) // notices
			nacks, _ := r.asked(tt.at + 20*ms)
			if n := r.v.Stats().Jumps; n != 1 {
				t.Fatalf("%d jumps", n)
			}
			if st := r.v.Stats(); st.Nacks == 0 {
				t.Fatalf("no NACK: %+v", nacks)
			}
			words := make([]uint64, 300)
			words[0] = 1 << 9
			if err := r.apply(tt.at+30*ms, &wire.Segment{Key: oneKey, Epoch: 5, TickNo: tt.no, Geometry: smallGPU, Words: words}); err != nil {
				t.Fatal(err)
			}
			r.tick(tt.at+40*ms, 2, []uint32{1}, nil) // late, and superseded
			if got := r.word(tt.at+50*ms, 0); got != 1<<9 {
				t.Errorf("word %b", got)
			}
			if r.stream(tt.at + 60*ms).Live.Facts().GapOpen {
				t.Error("gap open after all segments came")
			}
		})
	}
}

// TestSegmentUnderLaterTicks: a segment that is older than the newest ticks does
// not undo them.
func TestSegmentUnderLaterTicks(t *testing.T) {
	r := newRig(t, Config{})
	r.apply(0, &oneInfo)
	r.tick(0, 100, []uint32{1}, nil) // jump: all segments wanted
	r.tick(10*ms, 101, []uint32{2}, []uint32{1})
	r.tick(20*ms, 102, []uint32{3}, nil)
	words := make([]uint64, 300)
	words[0] = 1<<1 | 1<<8
	if err := r.apply(30*ms, &wire.Segment{Key: oneKey, Epoch: 5, TickNo: 100, Geometry: smallGPU, Words: words}); err != nil {
		t.Fatal(err)
	}
	if got, want := r.word(40*ms, 0), uint64(1<<8|1<<2|1<<3); got != want {
		t.Errorf("word %b, want %b", got, want)
	}
}

func TestChecksumMismatchPullsTheSegment(t *testing.T) {
	r := newRig(t, Config{})
	r.apply(0, &oneInfo)
	bad := &wire.Tick{Key: oneKey, Epoch: 5, TickNo: 1, InfoVersion: 1, CRCs: []wire.SegmentCRC{
		{Segment: 0, CRC: wire.Checksum(make([]uint64, 128))}, {Segment: 1, CRC: 1}, {Segment: 9, CRC: 1}, {Tier: wire.TierAll, CRC: 1}}}
	if err := r.apply(0, bad); err != nil {
		t.Fatal(err)
	}
	nacks, _ := r.asked(ms)
	if len(nacks) != 1 || len(nacks[0].Segments) != 1 || nacks[0].Segments[0] != 1 || nacks[0].From != 0 {
		t.Fatalf("asked %+v, want segment 1", nacks)
	}
	if n := r.v.Stats().Mismatches; n != 1 {
		t.Errorf("%d mismatches", n)
	}
}

// TestProblemsAreNamed: streams without a column say why, and keep their load.
func TestProblemsAreNamed(t *testing.T) {
	change := func(f func(*wire.Info)) wire.Info {
		in := oneInfo
		f(&in)
		return in
	}
	tests := []struct {
		name string
		info wire.Info
		want string
	}{
		{"good", oneInfo, ""},
		{"seed", change(func(in *wire.Info) { in.SeedFingerprint++ }), problemSeed},
		{"block size", change(func(in *wire.Info) { in.BlockSize = 0 }), problemBlockSize},
		{"no digest", change(func(in *wire.Info) { in.Ranks = []wire.RankInfo{{Epoch: 5}} }), problemDigest},
		{"info behind", change(func(in *wire.Info) { in.Ranks = []wire.RankInfo{{Epoch: 4, GPU: smallGPU}} }), ProblemEpoch},
		{"memory", change(func(in *wire.Info) {
			in.Ranks = []wire.RankInfo{{Epoch: 5, GPU: bloom.Geometry{Buckets: 3000, K: 4}}}
		}), problemMemory},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Config{MaxMatrixBytes: 1 << 20})
			r.apply(0, &wire.Tick{Key: oneKey, Epoch: 5, TickNo: 1, HasLoad: true, Load: wire.Load{Running: 3}})
			r.apply(0, &tt.info)
			s := r.stream(ms)
			if s.Problem != tt.want || (s.GPU.Matrix == nil) != (tt.want != "") {
				t.Errorf("problem %q, column %v, want %q", s.Problem, s.GPU.Matrix != nil, tt.want)
			}
			if f := s.Live.Facts(); f.Load.Running != 3 {
				t.Errorf("load %+v", f.Load)
			}
		})
	}
	t.Run("pool", func(t *testing.T) {
		r := newRig(t, Config{})
		in := change(func(in *wire.Info) { in.Pool = "other" })
		r.apply(0, &in)
		r.v.Poll(start)
		if got := r.v.Snapshot().Streams[0].Problem; got != problemPool {
			t.Errorf("problem %q", got)
		}
		if n := r.v.Stats().Problems[problemPool]; n != 1 {
			t.Errorf("counted %d times", n)
		}
	})
}

func TestHelloToStrangers(t *testing.T) {
	r := newRig(t, Config{})
	r.tick(0, 1, nil, nil)
	_, hellos := r.asked(50 * ms)
	if len(hellos) != 1 {
		t.Fatalf("%d HELLOs to an unknown agent", len(hellos))
	}
	for i := range uint64(50) { // ticks don't multiply HELLOs
		r.tick(60*ms, 2+i, nil, nil)
		if _, again := r.asked(60 * ms); len(again) > 0 {
			t.Fatal("another HELLO at once")
		}
	}
	r.apply(70*ms, &oneInfo)
	for at := 80 * ms; at < 9*time.Second; at += 20 * ms {
		if _, again := r.asked(at); len(again) > 0 {
			t.Fatalf("HELLO at %v although INFO came", at)
		}
	}
	// A tick that announces a newer INFO.
	r.apply(9*time.Second, &wire.Tick{Key: oneKey, Epoch: 5, TickNo: 52, InfoVersion: 2})
	nacks, _ := r.asked(9*time.Second + 10*ms)
	if len(nacks) != 1 || !nacks[0].WantInfo {
		t.Errorf("asked %+v, want INFO", nacks)
	}
}

func TestDrops(t *testing.T) {
	r := newRig(t, Config{MaxStreams: 1})
	r.apply(0, &oneInfo)
	tests := []struct {
		reason string
		packet []byte
		err    error
	}{
		{"short", []byte{1}, wire.ErrShort},
		{"version", append([]byte{9, 2}, make([]byte, 8)...), wire.ErrVersion},
		{"type", append([]byte{1, 6}, make([]byte, 8)...), wire.ErrType},
		{"not for a gateway", (&wire.Hello{}).Append(nil, 1), ErrDropped},
		{"old epoch", (&wire.Tick{Key: oneKey, Epoch: 4, TickNo: 1}).Append(nil, oneNode), ErrDropped},
		{"too many streams", (&wire.Tick{Key: wire.Key{Endpoint: 9}, TickNo: 1}).Append(nil, oneNode), ErrDropped},
		{"other geometry", (&wire.Segment{Key: oneKey, Epoch: 5, Geometry: bloom.Geometry{Buckets: 1, K: 4}, Words: []uint64{1}}).Append(nil, oneNode), ErrDropped},
		{"segment before info", (&wire.Segment{Key: oneKey, Epoch: 6, Geometry: bloom.Geometry{Buckets: 1, K: 4}, Words: []uint64{1}}).Append(nil, oneNode), ErrDropped},
		{"position outside", (&wire.Tick{Key: oneKey, Epoch: 5, TickNo: 1, Set: [2][]uint32{{64 * 300}}}).Append(nil, oneNode), nil},
		{"too many nodes", (&wire.Hello{}).Append(nil, 2), ErrDropped},
	}
	for _, tt := range tests {
		before := r.v.Stats().Drops[tt.reason]
		if err := r.v.Apply(start, tt.packet); !errors.Is(err, tt.err) {
			t.Errorf("%s: error %v, want %v", tt.reason, err, tt.err)
		}
		if n := r.v.Stats().Drops[tt.reason] - before; n != 1 {
			t.Errorf("%s: counted %d times", tt.reason, n)
		}
	}
}

// TestPendingIsBounded: a sender of ticks without end and without INFO takes no
// more memory than allowed.
func TestPendingIsBounded(t *testing.T) {
	r := newRig(t, Config{MaxPendingBytes: 10_000})
	set := make([]uint32, 200)
	for i := range set {
		set[i] = uint32(i)
	}
	for no := uint64(1); no < 1000; no += 2 {
		r.tick(0, no, set, nil)
		if r.v.pending > 12_000 {
			t.Fatalf("%d bytes pending at tick %d", r.v.pending, no)
		}
	}
}

func TestStaleness(t *testing.T) {
	r := newRig(t, Config{})
	r.apply(0, &oneInfo)
	if !r.stream(0).Live.Stale(start) {
		t.Error("fresh before any tick")
	}
	r.tick(0, 1, nil, nil)
	live := r.stream(ms).Live
	if live.Stale(start.Add(700*ms)) || !live.Stale(start.Add(701*ms)) {
		t.Error("want stale after 700 ms")
	}
	r.apply(100*ms, &wire.Tick{Key: oneKey, Epoch: 5, TickNo: 2, Interval: time.Second})
	if live.Stale(start.Add(3100*ms)) || !live.Stale(start.Add(3101*ms)) {
		t.Error("want stale after three announced intervals")
	}
	if got := live.Age(start); got != 0 {
		t.Errorf("age %v of a tick in the future", got)
	}
}

// FuzzApply: no sequence of packets panics, or takes more than the bounds.
func FuzzApply(f *testing.F) {
	in := oneInfo
	messages := []wire.Message{&in, &wire.Tick{Key: oneKey, Epoch: 5, TickNo: 1, Set: [2][]uint32{{1, 2}}}, &wire.Tick{Key: oneKey, Epoch: 5, TickNo: 1<<64 - 1},
		&wire.Segment{Key: oneKey, Epoch: 5, TickNo: 3, Geometry: smallGPU, Index: 2, Words: make([]uint64, 44)}}
	for i := range messages {
		f.Add(messages[i].Append(nil, 1), messages[(i+1)%len(messages)].Append(nil, 1), messages[(i+2)%len(messages)].Append(nil, 2))
	}
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		v := New(Config{Pool: testPool, SeedFingerprint: testSeed, MaxStreams: 4, MaxMatrixBytes: 1 << 20, MaxPendingBytes: 1 << 16})
		v.Apply(start, in.Append(nil, 1))
		for i, packet := range [][]byte{a, b, c, b, a} {
			v.Apply(start.Add(time.Duration(i)*700*ms), packet)
			v.Poll(start.Add(time.Duration(i) * 700 * ms))
		}
		if len(v.streams) > 4 || v.pending > 1<<17 {
			t.Errorf("%d streams, %d bytes pending", len(v.streams), v.pending)
		}
	})
}
