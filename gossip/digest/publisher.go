// Package digest turns changes of an engine's set of cached blocks into ticks, and
// answers receivers that miss some. It is the agent's side of the gossip protocol;
// docs/protocol.md has the rules.
//
// It owns the filter's counters, what has been published of them, and the ring of
// the last ticks. It does not own the exact block set (agent/blockset), the network
// (gossip/mesh) or the INFO message.
//
//	p := digest.New(cfg)
//	p.Set(wire.TierGPU, hash)
//	for _, packet := range p.Ticks(now) {  // again at p.Due(now)
//		send(packet)                   // to every gateway
//	}
package digest

import (
	"iter"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

const (
	burst        = 8        // packets back to back
	ringTicks    = 64       // ticks kept for replay
	epochReplay  = 32       // a whole epoch of up to so many ticks is replayed rather than sent as segments
	rebaseJump   = 1 << 10  // tick numbers skipped by a rebase: more than any receiver waits for
	crcsPerTick  = 8        // segments checked with each tick
	datagramSegs = 3        // up to so many segments are answered by datagram
	minRepair    = 64 << 10 // bytes that repairs may always burst to
	rebuildEvery = time.Minute
)

// Config describes a stream. All durations and rates must be positive; zero takes
// the default.
type Config struct {
	Key   wire.Key
	Node  uint64 // wire.NodeHash of the own node name
	GPU   bloom.Geometry
	All   bloom.Geometry // Buckets == 0: there is no lower tier
	Epoch uint64
	// AfterTick is zero for a new epoch. An agent that resumes its epoch from a
	// snapshot gives a number that is surely above the last tick it sent, at least
	// 1024 more than the last one that it knows of, so that numbers never repeat and
	// receivers fetch the content anew.
	AfterTick uint64

	// MinInterval is the shortest time between ticks, default 25 ms; see also
	// SetMinInterval.
	MinInterval time.Duration
	// MaxInterval is the longest time between ticks, default 200 ms, never under
	// MinInterval.
	MaxInterval time.Duration
	// BytesPerSec bounds the packets of Ticks, each counted once; an agent that sends
	// them to n gateways sends n times as much. Default 20,000. Up to 8 packets may go
	// at once after a pause. Answers of Nack and Hello have an equal budget of their
	// own, with room for eight full digests at once, so that neither starves the other.
	BytesPerSec int

	// Blocks iterates the exact set of a tier, each hash that was Set and not Cleared
	// once. It is called inside Ticks, at most once a minute, when counters of the
	// filter have saturated and its bits can no longer be cleared. Nil: they stay.
	Blocks func(wire.Tier) iter.Seq[blockhash.Hash]
}

// Publisher is the state of one stream: one data-parallel rank of an endpoint. Not
// safe for concurrent use.
type Publisher struct {
	cfg   Config
	epoch uint64
	tick  uint64 // number of the last tick
	tiers [wire.Tiers]*tier

	ring ring

	load        wire.Load
	loadAt      time.Time
	hasLoad     bool
	health      wire.Health
	hasHealth   bool
	flags       wire.Flags
	infoVersion uint32
	urgent      bool // facts changed that gateways should hear of soon

	started     bool
	last        time.Time // of the last tick
	lastFull    time.Time // of the last tick with load and checksums
	lastRebuild time.Time
	send        bucket
	repair      bucket
	crcTier     wire.Tier
	crcSegment  int
	stats       Stats
}

// Stats counts what a Publisher did since it was made.
type Stats struct {
	Ticks     uint64 // packets
	TickBytes uint64
	Replayed  uint64 // ticks sent again
	Segments  uint64
	Refused   uint64 // NACKs and HELLOs left unanswered for lack of budget
	Rebuilds  uint64 // filters made anew because counters had saturated
	Rebases   uint64 // backlogs that receivers fetch as segments
	Backlog   int    // bit positions waiting to be sent, now
}

// New returns a Publisher whose digests are empty. It panics if a geometry is
// invalid.
func New(cfg Config) *Publisher {
	if cfg.MinInterval <= 0 {
		cfg.MinInterval = 25 * time.Millisecond
	}
	if cfg.MaxInterval <= 0 {
		cfg.MaxInterval = 200 * time.Millisecond
	}
	if cfg.BytesPerSec <= 0 {
		cfg.BytesPerSec = 20_000
	}
	p := &Publisher{cfg: cfg, epoch: cfg.Epoch, tick: cfg.AfterTick}
	p.tiers[wire.TierGPU] = newTier(cfg.GPU)
	if cfg.All.Buckets > 0 {
		p.tiers[wire.TierAll] = newTier(cfg.All)
	}
	p.send = bucket{rate: cfg.BytesPerSec, size: (burst - 1) * wire.MaxPacketBytes}
	p.repair = bucket{rate: cfg.BytesPerSec, size: max(8*p.digestBytes(), minRepair)}
	return p
}

// Set adds a block to a tier's digest. The caller sets a block once until it clears
// it, ancestors before descendants. Blocks of a tier without a digest are ignored.
func (p *Publisher) Set(t wire.Tier, h blockhash.Hash) {
	if s := p.tiers[t]; s != nil {
		s.set(h)
	}
}

// Clear takes a block out of a tier's digest, descendants before ancestors.
func (p *Publisher) Clear(t wire.Tier, h blockhash.Hash) {
	if s := p.tiers[t]; s != nil {
		s.clear(h)
	}
}

// Restart empties the digests and begins a new epoch, at least one above the last:
// the engine's cache was lost.
func (p *Publisher) Restart(epoch uint64) {
	p.begin(epoch, 0)
	for _, s := range p.tiers {
		if s != nil {
			s.reset()
		}
	}
}

// Supersede begins a new epoch, at least one above the last, with the content as it
// is: see Behind.
func (p *Publisher) Supersede(epoch uint64) {
	p.begin(epoch, rebaseJump)
	p.publishAll()
}

func (p *Publisher) begin(epoch, tick uint64) {
	p.epoch = max(epoch, p.epoch+1)
	p.tick = tick
	p.ring.reset()
	p.started = false
}

func (p *Publisher) publishAll() {
	for _, s := range p.tiers {
		if s != nil {
			s.publishAll()
		}
	}
}

// Behind reports whether a receiver knows of this stream what has never been sent:
// the clock went back and the epoch with it, a snapshot was older than thought, or
// somebody sends in this agent's name. Supersede(known.Epoch+1) is the remedy.
func (p *Publisher) Behind(known *wire.KnownStream) bool {
	return known.Key == p.cfg.Key &&
		(known.Epoch > p.epoch || known.Epoch == p.epoch && known.TickNo > p.tick)
}

// Epoch returns the epoch now in force.
func (p *Publisher) Epoch() uint64 { return p.epoch }

// TickNo returns the number of the last tick.
func (p *Publisher) TickNo() uint64 { return p.tick }

// SetLoad replaces the load that ticks carry, which was read at the given time;
// ticks say its age. A change of the request counts makes a tick due; the rest
// travels with the next one.
func (p *Publisher) SetLoad(at time.Time, l wire.Load) {
	p.urgent = p.urgent || !p.hasLoad || l.Running != p.load.Running || l.Waiting != p.load.Waiting
	p.load, p.loadAt, p.hasLoad = l, at, true
}

// SetHealth replaces the GPU health that ticks carry.
func (p *Publisher) SetHealth(h wire.Health) {
	p.urgent = p.urgent || !p.hasHealth || h.Fault != p.health.Fault || h.Known != p.health.Known
	p.health, p.hasHealth = h, true
}

// SetFlags replaces the flags that ticks carry.
func (p *Publisher) SetFlags(f wire.Flags) {
	p.urgent = p.urgent || f != p.flags
	p.flags = f
}

// SetInfoVersion says which INFO is in force; gateways that have an older one ask.
func (p *Publisher) SetInfoVersion(v uint32) {
	p.urgent = p.urgent || v != p.infoVersion
	p.infoVersion = v
}

// SetMinInterval changes Config.MinInterval, which grows with the fleet.
func (p *Publisher) SetMinInterval(d time.Duration) { p.cfg.MinInterval = max(d, time.Millisecond) }

// Stats returns the counts so far.
func (p *Publisher) Stats() Stats {
	st := p.stats
	for _, s := range p.tiers {
		if s != nil {
			st.Backlog += s.pending()
		}
	}
	return st
}

// interval is what ticks announce: the longest time to the next one.
func (p *Publisher) interval() time.Duration { return max(p.cfg.MaxInterval, p.cfg.MinInterval) }

func (p *Publisher) changed() bool {
	for _, s := range p.tiers {
		if s != nil && len(s.queue) > 0 {
			return true
		}
	}
	return p.urgent
}

// Due returns when Ticks should be called next; not after now if at once.
func (p *Publisher) Due(now time.Time) time.Time {
	if !p.started || now.Before(p.last) {
		return now
	}
	heartbeat := p.last.Add(p.interval())
	if !p.changed() {
		return heartbeat
	}
	due := p.last.Add(p.cfg.MinInterval)
	if paid := p.send.positiveAt(); paid.After(due) {
		due = paid
	}
	if due.After(heartbeat) {
		return heartbeat
	}
	return due
}

// Ticks returns the packets to send to every gateway, best effort; nil if nothing
// is due. They are kept for replay: the caller must not change them.
func (p *Publisher) Ticks(now time.Time) [][]byte {
	if now.Before(p.Due(now)) {
		return nil
	}
	heartbeat := !p.started || now.Before(p.last) || !now.Before(p.last.Add(p.interval()))
	p.send.refill(now)
	backlog := p.prepare(now)
	if backlog == 0 && !p.urgent && !heartbeat {
		return nil // changes that undid each other
	}
	// Load, health and checksums go with a tick when the counts changed, and at
	// least as often as heartbeats would.
	full := heartbeat || p.urgent || now.Sub(p.lastFull) >= p.interval()
	if full {
		p.lastFull = now
	}
	p.started, p.last, p.urgent = true, now, false

	var packets [][]byte
	for {
		t := p.next()
		if full && len(packets) == 0 {
			t.Load, t.HasLoad = p.load, p.hasLoad
			t.Load.Age = max(now.Sub(p.loadAt), time.Millisecond)
			t.Health, t.HasHealth = p.health, p.hasHealth
		}
		if p.send.tokens > 0 {
			backlog -= p.fill(&t)
		}
		if full && len(packets) == 0 {
			t.CRCs = p.checksums()
		}
		packet := t.Append(make([]byte, 0, wire.MaxPacketBytes), p.cfg.Node)
		p.send.tokens -= float64(len(packet))
		p.ring.add(p.tick, packet)
		p.stats.Ticks++
		p.stats.TickBytes += uint64(len(packet))
		packets = append(packets, packet)
		if backlog == 0 || len(packets) == burst || p.send.tokens <= 0 {
			return packets
		}
	}
}

// prepare brings the tiers' queues to what has really changed, and returns how many
// positions that is.
func (p *Publisher) prepare(now time.Time) int {
	rebuild := p.cfg.Blocks != nil && (p.lastRebuild.IsZero() || now.Sub(p.lastRebuild) >= rebuildEvery)
	backlog, rebase := 0, false
	for i, s := range p.tiers {
		if s == nil {
			continue
		}
		if rebuild && s.counting.Stuck() > 0 {
			s.rebuild(p.cfg.Blocks(wire.Tier(i)))
			p.lastRebuild = now
			p.stats.Rebuilds++
		}
		s.compact()
		backlog += len(s.queue)
		rebase = rebase || s.cheaperAsSegments()
	}
	if !rebase {
		return backlog
	}
	p.tick += rebaseJump
	p.ring.reset()
	p.publishAll()
	p.stats.Rebases++
	return 0
}

// next returns the frame of the next tick.
func (p *Publisher) next() wire.Tick {
	p.tick++
	return wire.Tick{
		Key: p.cfg.Key, Epoch: p.epoch, TickNo: p.tick,
		Interval: p.interval(), Flags: p.flags, InfoVersion: p.infoVersion,
	}
}

// fill puts as much of the backlog into t as fits, and returns how many positions.
func (p *Publisher) fill(t *wire.Tick) int {
	const (
		listBytes = 1 + 2                                 // tag and length of a list
		crcBytes  = 1 + 1 + 1 + crcsPerTick*(1+2+4)       // reserved
		reserved  = crcBytes + 2*wire.Tiers*listBytes + 1 // checksums and lists
	)
	var frame [wire.MaxPacketBytes]byte
	room := wire.MaxPacketBytes - reserved - len(t.Append(frame[:0], p.cfg.Node))
	gpu, all := p.tiers[wire.TierGPU], p.tiers[wire.TierAll]
	share := room
	if all != nil && len(all.queue) > 0 {
		share = room / 2
	}
	n, used := gpu.take(share, &t.Set[wire.TierGPU], &t.Clear[wire.TierGPU])
	if all != nil {
		m, _ := all.take(room-used, &t.Set[wire.TierAll], &t.Clear[wire.TierAll])
		n += m
	}
	return n
}

// checksums returns the next few segments' CRCs, in turn over all tiers.
func (p *Publisher) checksums() []wire.SegmentCRC {
	var list []wire.SegmentCRC
	for range min(crcsPerTick, p.segments()) {
		s := p.tiers[p.crcTier]
		if s == nil || p.crcSegment >= wire.Segments(s.geometry()) {
			p.crcTier, p.crcSegment = (p.crcTier+1)%wire.Tiers, 0
			if s = p.tiers[p.crcTier]; s == nil {
				p.crcTier = wire.TierGPU
				s = p.tiers[p.crcTier]
			}
		}
		from, to := wire.SegmentSpan(s.geometry(), p.crcSegment)
		list = append(list, wire.SegmentCRC{Tier: p.crcTier, Segment: uint16(p.crcSegment), CRC: wire.Checksum(s.published[from:to])})
		p.crcSegment++
	}
	return list
}

func (p *Publisher) segments() int {
	n := 0
	for _, s := range p.tiers {
		if s != nil {
			n += wire.Segments(s.geometry())
		}
	}
	return n
}

func (p *Publisher) digestBytes() int {
	n := 0
	for _, s := range p.tiers {
		if s != nil {
			n += s.geometry().Bytes()
		}
	}
	return n
}
