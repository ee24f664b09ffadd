package agent

import (
	"iter"
	"time"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// defaultBlocks sizes the digest of an engine that does not say how many blocks
// it has.
const defaultBlocks = 32_768

// verifyAfter is when a subscription is surely in place.
const verifyAfter = time.Second

// streamConfig fixes a stream.
type streamConfig struct {
	key       wire.Key
	node      uint64 // wire.NodeHash of the own node
	hasher    blockhash.Hasher
	digest    DigestConfig
	full      bool // EventsConfig.FullReports
	blocks    int  // GPU blocks of the engine, 0 not known
	canReplay bool
	epoch     uint64 // the highest one used before, 0 none
}

// stream is one rank's way from events to packets; a core. Not safe for
// concurrent use.
//
// Methods that take events return which replay to ask for, if any.
type stream struct {
	cfg   streamConfig
	set   *blockset.Set
	feed  blockset.Feed
	pub   *digest.Publisher
	gpu   bloom.Geometry
	all   bloom.Geometry
	epoch uint64 // the highest one used or heard of
	now   time.Time
	min   time.Duration // shortest time between ticks
	flags wire.Flags    // of the endpoint; partial and suspect come from the set
	info  uint32

	verifyAt time.Time // zero: no need

	restarts uint64
	odd      map[string]uint64 // skipped events and anomalies by reason; the reasons are a fixed set
	lost     uint64            // batches that could not be decoded
	batches  uint64
	sent     sentStats
}

// sentStats sums up what publishers did that were replaced.
type sentStats struct{ ticks, bytes, replayed, segments, refused uint64 }

// request is a replay to ask for.
type request struct {
	ask  bool
	from uint64
}

func newStream(now time.Time, cfg streamConfig) *stream {
	s := &stream{cfg: cfg, now: now, epoch: cfg.epoch, min: cfg.digest.MinInterval, odd: make(map[string]uint64)}
	s.set = blockset.New(blockset.Config{Hasher: cfg.hasher, Blocks: cfg.blocks, FullReports: cfg.full}, sink{s})
	s.feed = blockset.Feed{
		Set:       s.set,
		Seq:       blockset.NewSequencer(blockset.SequencerConfig{CanReplay: cfg.canReplay}),
		Restarted: s.restarted,
		Lost:      func(uint64, error) { s.lost++ },
		Odd:       func(r kvevent.Reason, n int) { s.odd[string(r)] += uint64(n) },
	}
	s.publish(false)
	return s
}

// sink passes changes of the set on to the publisher, whichever it is.
type sink struct{ s *stream }

func (k sink) Set(t blockset.Tier, h blockhash.Hash)   { k.s.pub.Set(wire.Tier(t), h) }
func (k sink) Clear(t blockset.Tier, h blockhash.Hash) { k.s.pub.Clear(wire.Tier(t), h) }

// publish makes a new publisher in a new epoch with what the set holds: the
// geometry changed.
func (s *stream) publish(lower bool) {
	blocks := s.cfg.blocks
	if blocks == 0 {
		blocks = defaultBlocks
	}
	s.gpu = bloom.GeometryFor(blocks, s.cfg.digest.BitsPerBlock)
	s.all = bloom.Geometry{}
	if lower {
		n := s.cfg.digest.LowerBlocks
		if n == 0 {
			n = 4 * blocks
		}
		s.all = bloom.GeometryFor(n, s.cfg.digest.BitsPerBlock)
	}
	if s.pub != nil {
		s.sent = s.total()
	}
	s.pub = digest.New(digest.Config{
		Key: s.cfg.key, Node: s.cfg.node, GPU: s.gpu, All: s.all, Epoch: s.nextEpoch(),
		MinInterval: s.min, MaxInterval: s.cfg.digest.MaxInterval, BytesPerSec: s.cfg.digest.BytesPerSec,
		Blocks: func(t wire.Tier) iter.Seq[blockhash.Hash] { return s.set.Visible(blockset.Tier(t)) },
	})
	s.pub.SetInfoVersion(s.info)
	for _, t := range []blockset.Tier{blockset.GPU, blockset.All} {
		for h := range s.set.Visible(t) {
			s.pub.Set(wire.Tier(t), h)
		}
	}
}

func (s *stream) total() sentStats {
	st := s.pub.Stats()
	return sentStats{
		s.sent.ticks + st.Ticks, s.sent.bytes + st.TickBytes, s.sent.replayed + st.Replayed,
		s.sent.segments + st.Segments, s.sent.refused + st.Refused,
	}
}

// nextEpoch is above all epochs used or heard of, and no lower than the wall
// clock in ms, so that it rises over restarts of the agent without any memory.
func (s *stream) nextEpoch() uint64 {
	s.epoch = max(uint64(max(s.now.UnixMilli(), 0)), s.epoch+1)
	return s.epoch
}

// restarted is called when the set was emptied because the engine started anew.
func (s *stream) restarted() {
	s.restarts++
	s.pub.Restart(s.nextEpoch())
}

// do carries out what the sequencer wants.
func (s *stream) do(now time.Time, actions []blockset.Action) request {
	s.now = now
	cleared := s.set.Stats().Cleared
	out := s.feed.Do(now, actions)
	s.batches += uint64(out.Applied)
	if s.set.Stats().Cleared > cleared {
		// Gateways then also forget what they only expected to be cached.
		s.pub.Supersede(s.nextEpoch())
	}
	if s.all.Buckets == 0 && s.set.Stats().Lower > 0 {
		s.publish(true)
	}
	return request{out.Ask, out.From}
}

// connected says that the live socket is connected, first or again.
func (s *stream) connected(now time.Time) request {
	s.verifyAt = now.Add(verifyAfter)
	return s.do(now, s.feed.Seq.Connected())
}

// verify asks once more a moment after connecting: what was published between
// the first replay and the moment when the subscription was in place would stay
// unknown until the next batch.
func (s *stream) verify(now time.Time) request {
	if s.verifyAt.IsZero() || now.Before(s.verifyAt) || s.feed.Seq.Replaying() {
		return request{}
	}
	s.verifyAt = time.Time{}
	return s.do(now, s.feed.Seq.Connected())
}

func (s *stream) live(now time.Time, seq uint64, payload []byte) request {
	return s.do(now, s.feed.Seq.Live(seq, payload))
}

func (s *stream) replayed(now time.Time, seq uint64, payload []byte) request {
	return s.do(now, s.feed.Seq.Replayed(seq, payload))
}

func (s *stream) replayEnd(now time.Time, complete bool) request {
	return s.do(now, s.feed.Seq.ReplayEnd(complete))
}

// processStart tells the engine's start time, in seconds since 1970; 0 is not known.
func (s *stream) processStart(now time.Time, start float64) request {
	if start == 0 {
		return request{}
	}
	return s.do(now, s.feed.Seq.ProcessStart(time.UnixMilli(int64(start*1000))))
}

// cleared empties the picture: the engine's cache was reset or the engine sleeps,
// and its own event about that comes with its next step only, if ever.
func (s *stream) cleared(now time.Time) {
	s.now = now
	s.set.Reset()
	s.pub.Restart(s.nextEpoch())
}

// setBlocks tells the engine's number of GPU blocks.
func (s *stream) setBlocks(now time.Time, n int) {
	if n == 0 || n == s.cfg.blocks {
		return
	}
	s.now, s.cfg.blocks = now, n
	s.set.SetBlocks(n)
	s.publish(s.all.Buckets > 0)
}

// setLoad takes a reading of the engine's metrics, asked for at the given time, and what was learned of its speed.
func (s *stream) setLoad(now, asked time.Time, r *enginemetrics.Rank, prefill enginemetrics.PrefillCost, decode enginemetrics.DecodeCost) {
	l := wire.Load{
		Running: clampUint32(r.Running), Waiting: clampUint32(r.Waiting),
		VictimIdle:      s.set.VictimIdle(now),
		PrefillOverhead: prefill.Overhead, PrefillPerToken: prefill.PerToken, PrefillQuadratic: prefill.Quadratic, PrefillFitted: prefill.Fitted,
		DecodeStep: decode.Step, DecodePerToken: decode.PerToken,
		HitTokens: r.Counters.PrefixHitTokens, QueryTokens: r.Counters.PrefixQueryTokens,
	}
	total := r.Cache.NumBlocks
	used := min(int(r.KVUsage*float64(total)+0.5), total)
	// Of the blocks that hold a hash, running requests use about as many as they
	// have in all: only their last, partial blocks hold none.
	cached := min(max(s.set.Stats().Copies-used, 0), total-used)
	l.BlocksTotal, l.BlocksUsed = clampUint32(total), clampUint32(used)
	l.BlocksCached, l.BlocksFree = clampUint32(cached), clampUint32(total-used-cached)
	s.pub.SetLoad(asked, l)
}

func clampUint32(n int) uint32 { return uint32(min(max(n, 0), 1<<32-1)) }

func (s *stream) setMinInterval(d time.Duration) {
	s.min = d
	s.pub.SetMinInterval(d)
}

func (s *stream) setInfoVersion(v uint32) {
	s.info = v
	s.pub.SetInfoVersion(v)
}

// due is when tick should be called next.
func (s *stream) due(now time.Time) time.Time {
	s.state()
	return s.pub.Due(now)
}

// tick returns what is to be sent to every gateway now.
func (s *stream) tick(now time.Time) [][]byte {
	s.now = now
	s.state()
	return s.pub.Ticks(now)
}

func (s *stream) state() {
	f := s.flags
	if s.set.Partial() {
		f |= wire.Partial
	}
	if s.set.Suspect() {
		f |= wire.Suspect
	}
	s.pub.SetFlags(f)
}

// hello answers a gateway; known is what it has of this stream, nil if nothing. A
// gateway that knows a later state than this one has heard of an epoch from before
// a clock went back, or of a forged one: go above it.
func (s *stream) hello(now time.Time, known *wire.KnownStream) []digest.Reply {
	s.now = now
	if known != nil && s.pub.Behind(known) {
		s.epoch = max(s.epoch, known.Epoch)
		s.pub.Supersede(s.nextEpoch())
		known = nil
	}
	return s.pub.Hello(now, known)
}

func (s *stream) nack(now time.Time, n *wire.Nack) []digest.Reply {
	s.now = now
	return s.pub.Nack(now, n)
}

func (s *stream) rankInfo() wire.RankInfo {
	return wire.RankInfo{Rank: s.cfg.key.Rank, Epoch: s.pub.Epoch(), GPU: s.gpu, All: s.all}
}

// coverage is the share of the blocks that the engine reported and still holds
// whose place in a prompt is known; 1 for an empty cache.
func (s *stream) coverage() float64 {
	st := s.set.Stats()
	if st.Blocks+st.Orphans == 0 {
		return 1
	}
	return float64(st.Visible[blockset.GPU]) / float64(st.Blocks+st.Orphans)
}

// snapshot appends the state to dst, see saved.
func (s *stream) snapshot(dst []byte, now time.Time) []byte {
	dst = appendSnapshotHeader(dst, s.epoch)
	return s.set.AppendSnapshot(dst, now, s.feed.Seq.Position())
}

// resume takes up a snapshot. On an error the stream is as new, but above the
// snapshot's epoch if that could be read.
func (s *stream) resume(now time.Time, b []byte) error {
	s.now = now
	epoch, body, err := readSnapshotHeader(b)
	if err != nil {
		return err
	}
	s.epoch = max(s.epoch, epoch)
	s.pub.Restart(s.nextEpoch())
	pos, err := s.set.LoadSnapshot(body, now)
	if err != nil {
		return err
	}
	s.feed.Seq.Resume(pos)
	if s.set.Stats().Lower > 0 {
		s.publish(true)
	}
	return nil
}
