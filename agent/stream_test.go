package agent

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/view"
	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/gpu"
	"github.com/grapevine-llm/grapevine/gpu/gputest"
	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

const testBlock = 4

var (
	testKey  = wire.Key{Endpoint: 7}
	testBase = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
)

func testStream(more func(*streamConfig)) *stream {
	cfg := streamConfig{
		key: testKey, node: wire.NodeHash("n"), hasher: blockhash.NewHasher(1), digest: Default().Digest, blocks: 1000,
		canReplay: true,
	}
	if more != nil {
		more(&cfg)
	}
	return newStream(testBase, cfg)
}

func testTokens(prompt, blocks int) []uint32 {
	out := make([]uint32, blocks*testBlock)
	for i := range out {
		out[i] = uint32(prompt*1000 + i)
	}
	return out
}

// batch is one that stores the first blocks of a prompt.
func batch(prompt, blocks int) []byte {
	toks := testTokens(prompt, blocks)
	hashes := pool.NewHasher("", false).AppendChain(nil, toks, testBlock, pool.Extras{})
	return zmqpub.Form{}.AppendBatch(nil, 1, 0, []pool.Event{{
		Kind: pool.Stored, Hashes: hashes, Tokens: toks, BlockSize: testBlock, ExtraKeys: make([][]string, blocks),
	}})
}

// lowerBatch stores the same blocks in the CPU tier.
func lowerBatch(prompt, blocks int) []byte {
	return []byte(strings.Replace(string(batch(prompt, blocks)), "\xa3GPU", "\xa3CPU", 1))
}

func visible(s *stream, t blockset.Tier, prompt, blocks int) int {
	return s.set.Match(t, blockhash.NewHasher(1).AppendChain(nil, 0, testTokens(prompt, blocks), testBlock))
}

// startUp takes a stream through its first, empty replay.
func startUp(t *testing.T, s *stream) {
	t.Helper()
	if r := s.connected(testBase); r != (request{ask: true}) {
		t.Fatalf("connected: got %+v, want a replay from 0", r)
	}
	if r := s.replayEnd(testBase, true); r.ask {
		t.Fatalf("after an empty replay: got %+v, want no request", r)
	}
}

func TestEpochsRise(t *testing.T) {
	ms := uint64(testBase.UnixMilli())
	tests := []struct {
		name string
		cfg  func(*streamConfig)
		do   func(*stream)
		want uint64
	}{
		{"wall clock", nil, func(*stream) {}, ms},
		{"stored epoch ahead of the clock", func(c *streamConfig) { c.epoch = ms + 50 }, func(*stream) {}, ms + 51},
		{"cache reset", nil, func(s *stream) { s.cleared(testBase) }, ms + 1},
		{"clock went back", nil, func(s *stream) { s.cleared(testBase.Add(-time.Hour)) }, ms + 1},
		{"later reset", nil, func(s *stream) { s.cleared(testBase.Add(time.Second)) }, ms + 1000},
		{"other geometry", nil, func(s *stream) { s.setBlocks(testBase, 2000) }, ms + 1},
		{"same geometry", nil, func(s *stream) { s.setBlocks(testBase, 1000) }, ms},
		{"a gateway knows a later one", nil, func(s *stream) {
			s.hello(testBase, &wire.KnownStream{Key: testKey, Epoch: ms + 500})
		}, ms + 501},
		{"a gateway knows an earlier one", nil, func(s *stream) {
			s.hello(testBase, &wire.KnownStream{Key: testKey, Epoch: ms - 500, TickNo: 9})
		}, ms},
		{"engine started anew", nil, func(s *stream) {
			s.processStart(testBase, 100)
			s.processStart(testBase, 200)
		}, ms + 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := testStream(tt.cfg)
			tt.do(s)
			if got := s.pub.Epoch(); got != tt.want {
				t.Errorf("epoch is %d after the first one, want %d", got-ms, tt.want-ms)
			}
			if got := s.rankInfo().Epoch; got != tt.want {
				t.Errorf("INFO says epoch %d, want %d", got, tt.want)
			}
		})
	}
}

// What a view makes of the stream's packets must be the set, through all that
// replaces the publisher or the epoch.
func TestPacketsCarryTheSet(t *testing.T) {
	s := testStream(nil)
	v := view.New(view.Config{Node: "gw", SeedFingerprint: s.cfg.hasher.Fingerprint()})
	info := wire.Info{Node: "n", Address: "http://10.0.0.1:8000", Version: 1, SeedFingerprint: s.cfg.hasher.Fingerprint(), BlockSize: testBlock}
	s.cfg.key = info.Key(0)
	s.publish(false)
	now := testBase
	v.NodeUp(now, "n")
	sync := func() {
		t.Helper()
		info.Version++
		info.Ranks = []wire.RankInfo{s.rankInfo()}
		if err := v.Apply(now, info.Append(nil, s.cfg.node)); err != nil {
			t.Fatalf("INFO: %v", err)
		}
		for range 200 {
			now = now.Add(20 * time.Millisecond)
			for _, p := range s.tick(now) {
				_ = v.Apply(now, p) // may be of an epoch that is over
			}
			for _, out := range v.Poll(now) {
				_, msg, err := wire.Decode(out.Packet)
				if err != nil {
					t.Fatal(err)
				}
				switch m := msg.(type) {
				case *wire.Hello:
					for _, r := range s.hello(now, knownOf(m, s.cfg.key)) {
						_ = v.Apply(now, r.Packet)
					}
				case *wire.Nack:
					for _, r := range s.nack(now, m) {
						_ = v.Apply(now, r.Packet)
					}
				}
			}
		}
		snap := v.Snapshot()
		i, ok := snap.Find(s.cfg.key)
		if !ok {
			t.Fatal("the view has no such stream")
		}
		for tier, col := range map[blockset.Tier]view.Column{blockset.GPU: snap.Streams[i].GPU, blockset.All: snap.Streams[i].All} {
			blocks := slices.Collect(s.set.Visible(tier))
			if col.Matrix == nil {
				if tier == blockset.GPU || s.all.Buckets > 0 {
					t.Errorf("tier %d has no column: %s", tier, snap.Streams[i].Problem)
				}
				continue
			}
			want := make([]uint64, col.Matrix.Geometry().Buckets)
			for _, h := range blocks {
				bucket, mask := col.Matrix.Geometry().Locate(h)
				want[bucket] |= mask
			}
			if diff := cmp.Diff(want, col.Matrix.Column(col.Index, nil)); diff != "" {
				t.Errorf("tier %d with %d blocks differs (-set +view):\n%s", tier, len(blocks), diff)
			}
		}
	}
	startUp(t, s)
	s.live(now, 0, batch(1, 30))
	sync()
	s.setBlocks(now, 3000)
	sync()
	s.live(now, 1, lowerBatch(1, 20))
	sync()
	if s.all.Buckets == 0 || visible(s, blockset.All, 1, 30) != 30 {
		t.Errorf("lower tier: geometry %+v, %d blocks visible, want 30", s.all, visible(s, blockset.All, 1, 30))
	}
	s.cleared(now)
	s.live(now, 2, batch(2, 10))
	sync()
	if got := visible(s, blockset.GPU, 1, 30); got != 0 {
		t.Errorf("%d blocks visible after the reset, want none", got)
	}
	s.hello(now, &wire.KnownStream{Key: s.cfg.key, Epoch: s.pub.Epoch() + 10_000})
	sync()
}

func TestRestartAndGap(t *testing.T) {
	s := testStream(nil)
	startUp(t, s)
	s.live(testBase, 0, batch(1, 3))
	if r := s.live(testBase, 5, batch(2, 3)); r != (request{ask: true}) {
		t.Fatalf("gap: got %+v, want a replay from the last batch, 0", r)
	}
	s.replayed(testBase, 0, batch(1, 3))
	s.replayed(testBase, 1, batch(3, 3))
	s.replayed(testBase, 5, batch(2, 3))
	for r := s.replayEnd(testBase, true); r.ask; r = s.replayEnd(testBase, true) {
		s.replayed(testBase, 5, batch(2, 3))
	}
	if !s.set.Suspect() || visible(s, blockset.GPU, 2, 3) != 3 || visible(s, blockset.GPU, 3, 3) != 3 {
		t.Errorf("after a gap that cannot be filled: suspect %v (want true), %d and %d blocks (want 3, 3)",
			s.set.Suspect(), visible(s, blockset.GPU, 2, 3), visible(s, blockset.GPU, 3, 3))
	}
	s.state()
	before := s.restarts
	s.live(testBase, 0, batch(9, 2))
	if s.restarts != before+1 || visible(s, blockset.GPU, 2, 3) != 0 {
		t.Errorf("lower number: %d restarts (want %d), %d old blocks (want 0)", s.restarts, before+1, visible(s, blockset.GPU, 2, 3))
	}
	s.live(testBase, 1, []byte("damaged"))
	if s.lost != 1 {
		t.Errorf("%d undecodable batches counted, want 1", s.lost)
	}
}

func TestVerifyOnceAfterConnecting(t *testing.T) {
	s := testStream(nil)
	startUp(t, s)
	if r := s.verify(testBase.Add(verifyAfter / 2)); r.ask {
		t.Error("asked before the subscription is in place")
	}
	if r := s.verify(testBase.Add(verifyAfter)); !r.ask {
		t.Error("did not ask")
	}
	s.replayEnd(testBase, true)
	if r := s.verify(testBase.Add(time.Hour)); r.ask {
		t.Error("asked twice")
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	a := testStream(nil)
	startUp(t, a)
	a.live(testBase, 0, batch(1, 30))
	a.live(testBase, 1, lowerBatch(1, 30))
	b := testStream(nil)
	if err := b.resume(testBase, a.snapshot(nil, testBase)); err != nil {
		t.Fatalf("resume: %v", err)
	}
	if visible(b, blockset.GPU, 1, 30) != 30 || b.all.Buckets == 0 || b.pub.Epoch() <= a.pub.Epoch() {
		t.Errorf("resumed with %d blocks, geometry %+v, epoch %d (before %d)", visible(b, blockset.GPU, 1, 30), b.all, b.pub.Epoch(), a.pub.Epoch())
	}
	if r := b.connected(testBase); r != (request{ask: true, from: 1}) {
		t.Errorf("connected: got %+v, want a replay from the last batch", r)
	}
	if b.replayed(testBase, 1, batch(7, 2)); visible(b, blockset.GPU, 1, 30) != 0 {
		t.Error("another last batch is another engine: the snapshot must go")
	}
	other := testStream(func(c *streamConfig) { c.hasher = blockhash.NewHasher(2) })
	if err := other.resume(testBase, a.snapshot(nil, testBase)); err == nil || other.pub.Epoch() <= a.pub.Epoch() {
		t.Errorf("snapshot of another seed: %v, epoch %d; want an error and an epoch above %d", err, other.pub.Epoch(), a.pub.Epoch())
	}
}

func FuzzResume(f *testing.F) {
	s := testStream(nil)
	s.live(testBase, 0, batch(1, 5))
	f.Add(s.snapshot(nil, testBase))
	f.Add([]byte(snapshotMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := testStream(nil)
		if err := s.resume(testBase, b); err != nil && s.set.Stats().Blocks != 0 {
			t.Errorf("%v, but %d blocks taken", err, s.set.Stats().Blocks)
		}
		s.tick(testBase.Add(time.Second))
	})
}

func TestLoadCountsBlocks(t *testing.T) {
	s := testStream(func(c *streamConfig) { c.blocks = 100 })
	startUp(t, s)
	s.live(testBase, 0, batch(1, 60))
	s.setLoad(testBase, testBase, &enginemetrics.Rank{Running: 2, KVUsage: 0.25, Cache: enginemetrics.CacheConfig{NumBlocks: 100}},
		enginemetrics.PrefillCost{Overhead: time.Millisecond, Fitted: true}, enginemetrics.DecodeCost{})
	_, msg, err := wire.Decode(s.tick(testBase)[0])
	if err != nil {
		t.Fatal(err)
	}
	l := msg.(*wire.Tick).Load
	got := [4]uint32{l.BlocksTotal, l.BlocksUsed, l.BlocksCached, l.BlocksFree}
	if want := [4]uint32{100, 25, 35, 40}; got != want || l.Running != 2 || !l.PrefillFitted {
		t.Errorf("total, used, cached, free: got %v, want %v; load %+v", got, want, l)
	}
}

func TestSilence(t *testing.T) {
	const enough = silenceBlocks * 16
	tests := []struct {
		name   string
		steps  [][2]uint64 // computed tokens, events; ten seconds apart
		silent bool
	}{
		{"nothing ran", [][2]uint64{{0, 0}, {0, 0}, {0, 0}, {0, 0}}, false},
		{"ran before the agent", [][2]uint64{{9999, 0}, {9999, 0}, {9999, 0}, {9999, 0}}, false},
		{"ran, nothing came", [][2]uint64{{0, 0}, {enough, 0}, {enough, 0}, {enough, 0}}, true},
		{"too little to be sure", [][2]uint64{{0, 0}, {enough - 1, 0}, {enough - 1, 0}, {enough - 1, 0}}, false},
		{"events came", [][2]uint64{{0, 0}, {enough, 0}, {enough, 1}, {9 * enough, 1}, {9 * enough, 1}, {9 * enough, 1}}, false},
		{"restart", [][2]uint64{{5000, 0}, {9000, 0}, {10, 0}, {10, 0}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s silence
			got := false
			for i, step := range tt.steps {
				got = s.observe(testBase.Add(time.Duration(i)*10*time.Second), step[0], step[1], 16)
			}
			if got != tt.silent {
				t.Errorf("silent %v, want %v", got, tt.silent)
			}
		})
	}
}

func TestBatchTime(t *testing.T) {
	at, ok := batchTime(zmqpub.Form{}.AppendBatch(nil, 1795979163.25, 0, nil))
	if want := time.UnixMilli(1795979163250); !ok || !at.Equal(want) {
		t.Errorf("got %v, %v; want %v", at, ok, want)
	}
	nan := binary.BigEndian.AppendUint64([]byte{0x93, 0xcb}, math.Float64bits(math.NaN()))
	for _, b := range [][]byte{nil, {0x93}, []byte("\x83\xcb12345678"), nan} {
		if _, ok := batchTime(b); ok {
			t.Errorf("%x has no time, but one was found", b)
		}
	}
}

func TestBudget(t *testing.T) {
	b := budget{perSec: 20_000}
	now := testBase
	sent := 0
	for now.Before(testBase.Add(20 * time.Second)) {
		if ready := b.readyAt(now); ready.After(now) {
			now = ready
			continue
		}
		b.spend(now, 400, 3)
		sent += 3 * 400
		now = now.Add(25 * time.Millisecond)
	}
	if perSec := sent / 20; perSec < 19_000 || perSec > 22_000 {
		t.Errorf("%d bytes a second over 20 s, want about 20,000 and the first burst", perSec)
	}
	if ready := b.readyAt(now.Add(time.Minute)); ready != now.Add(time.Minute) {
		t.Errorf("not ready after a minute's pause but %v later", ready.Sub(now.Add(time.Minute)))
	}
}

func TestGPUVerdictsBecomeHealth(t *testing.T) {
	w := newGPUWatch(slog.New(slog.DiscardHandler))
	w.reader = &gputest.Reader{Steps: []gputest.Step{{Stats: gputest.Healthy(2)}}}
	ctx, cancel := context.WithCancel(t.Context())
	var got wire.Health
	w.run(ctx, "", func(h wire.Health) {
		got = h
		cancel()
	})
	if !got.Known || got.GPUs != 2 || got.Fault != 0 || got.Slowdown != 1 || got.MemTotalBytes != 160<<30 {
		t.Errorf("got %+v, want two healthy GPUs of 80 GiB", got)
	}
	lost := gputest.Healthy(2)
	lost[1].Lost = true
	for i := range 5 {
		got = w.observe(testBase.Add(time.Duration(i)*time.Second), lost)
	}
	if gpu.Fault(got.Fault) != gpu.FaultLost {
		t.Errorf("fault %d, want %d", got.Fault, gpu.FaultLost)
	}
}

// BenchmarkLive is the cost of an engine at 10,000 prefill tokens a second with
// blocks of 16 tokens, by batches of 256 tokens: evict, store, tick.
func BenchmarkLive(b *testing.B) {
	const perBatch, resident = 16, 40_000
	s := testStream(func(c *streamConfig) { c.blocks = resident })
	s.replayEnd(testBase, true)
	const half, distinct = resident / perBatch, 2 * resident / perBatch
	events := make([]pool.Event, distinct)
	for i := range events {
		toks := make([]uint32, perBatch*16)
		for k := range toks {
			toks[k] = uint32(i*len(toks) + k)
		}
		hashes := pool.NewHasher("", false).AppendChain(nil, toks, 16, pool.Extras{})
		events[i] = pool.Event{Kind: pool.Stored, Hashes: hashes, Tokens: toks, BlockSize: 16, ExtraKeys: make([][]string, perBatch)}
	}
	payloads := make([][]byte, distinct)
	for i, stored := range events {
		removed := pool.Event{Kind: pool.Removed, Hashes: events[(i+half)%distinct].Hashes}
		payloads[i] = zmqpub.Form{}.AppendBatch(nil, 1, 0, []pool.Event{removed, stored})
	}
	now := testBase
	seq := uint64(0)
	bytes := 0
	b.ReportAllocs()
	for b.Loop() {
		s.live(now, seq, payloads[seq%distinct])
		seq++
		now = now.Add(25600 * time.Microsecond)
		for _, p := range s.tick(now) {
			bytes += len(p)
		}
	}
	const batchesPerSec = 10_000.0 / (perBatch * 16)
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)*batchesPerSec*100, "%core")
	b.ReportMetric(float64(bytes)/float64(b.N)*batchesPerSec, "B/s")
}
