package digest

import (
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Reply is a packet for the node that asked. Reliable ones are larger than a
// datagram.
type Reply struct {
	Reliable bool
	Packet   []byte
}

// Nack answers a receiver that misses ticks or segments: ticks verbatim from the
// ring; if one of them is no longer there, the whole digest. It answers nothing for
// another key or epoch (the next tick tells the receiver) or when the repair budget
// is spent (the receiver asks again). INFO is the caller's to send.
func (p *Publisher) Nack(now time.Time, n *wire.Nack) []Reply {
	if n.Key != p.cfg.Key || n.Epoch != p.epoch {
		return nil
	}
	p.repair.refill(now)
	var replies []Reply
	if n.From != 0 {
		ticks, ok := p.ring.span(n.From, min(n.To, p.tick))
		if !ok {
			return p.everything()
		}
		replies = p.replay(ticks)
	}
	if s := p.tiers[n.Tier%wire.Tiers]; s != nil && len(n.Segments) > 0 {
		replies = append(replies, p.some(n.Tier, n.Segments)...)
	}
	return replies
}

// Hello answers a receiver that is new, with what it knows of this stream, nil if
// nothing: the ticks since then if the ring has them, else the whole digest. Ask
// Behind first.
func (p *Publisher) Hello(now time.Time, known *wire.KnownStream) []Reply {
	p.repair.refill(now)
	since := uint64(0) // an epoch begins empty
	if known != nil && known.Key == p.cfg.Key && known.Epoch == p.epoch {
		since = known.TickNo
	}
	if since > 0 || p.tick <= epochReplay {
		if ticks, ok := p.ring.span(since+1, p.tick); ok {
			return p.replay(ticks)
		}
	}
	return p.everything()
}

// pay takes size bytes from the repair budget, or refuses.
func (p *Publisher) pay(size int) bool {
	if float64(size) > p.repair.tokens {
		p.stats.Refused++
		return false
	}
	p.repair.tokens -= float64(size)
	return true
}

func (p *Publisher) replay(ticks [][]byte) []Reply {
	var replies []Reply
	for _, packet := range ticks {
		if !p.pay(len(packet)) {
			break
		}
		replies = append(replies, Reply{Packet: packet})
		p.stats.Replayed++
	}
	return replies
}

// everything returns all segments of all tiers.
func (p *Publisher) everything() []Reply {
	if !p.pay(p.digestBytes()) {
		return nil
	}
	var replies []Reply
	for i, s := range p.tiers {
		if s != nil {
			replies = append(replies, p.run(wire.Tier(i), 0, wire.Segments(s.geometry()))...)
		}
	}
	return replies
}

// some returns the segments asked for; many of them as one run from the first to
// the last, since a stream costs more than the bytes between.
func (p *Publisher) some(t wire.Tier, wanted []uint16) []Reply {
	total := wire.Segments(p.tiers[t].geometry())
	var indexes []int
	low, high := total, -1
	for _, w := range wanted {
		if i := int(w); i < total {
			indexes = append(indexes, i)
			low, high = min(low, i), max(high, i)
		}
	}
	if len(indexes) > datagramSegs {
		if !p.pay((high + 1 - low) * wire.SegmentWords * 8) {
			return nil
		}
		return p.run(t, low, high+1)
	}
	var replies []Reply
	for _, i := range indexes {
		if !p.pay(wire.MaxPacketBytes) {
			break
		}
		replies = append(replies, Reply{Packet: p.segment(t, i, i+1)})
	}
	return replies
}

// run returns the segments from..to-1 in as few messages as the format allows.
func (p *Publisher) run(t wire.Tier, from, to int) []Reply {
	var replies []Reply
	for ; from < to; from += wire.MaxSegmentsPerMessage {
		end := min(to, from+wire.MaxSegmentsPerMessage)
		packet := p.segment(t, from, end)
		replies = append(replies, Reply{Reliable: len(packet) > wire.MaxPacketBytes, Packet: packet})
	}
	return replies
}

func (p *Publisher) segment(t wire.Tier, from, to int) []byte {
	s := p.tiers[t]
	first, _ := wire.SegmentSpan(s.geometry(), from)
	_, end := wire.SegmentSpan(s.geometry(), to-1)
	p.stats.Segments += uint64(to - from)
	m := wire.Segment{
		Key: p.cfg.Key, Epoch: p.epoch, TickNo: p.tick, Tier: t,
		Geometry: s.geometry(), Index: uint16(from), Words: s.published[first:end],
	}
	return m.Append(nil, p.cfg.Node)
}

// ring holds the last ticks as they were sent.
type ring struct {
	numbers [ringTicks]uint64 // 0: empty
	packets [ringTicks][]byte
}

func (r *ring) reset() { *r = ring{} }

func (r *ring) add(number uint64, packet []byte) {
	i := number % ringTicks
	r.numbers[i], r.packets[i] = number, packet
}

// span returns the ticks from..to; false if one is missing. An empty span is fine.
func (r *ring) span(from, to uint64) ([][]byte, bool) {
	if from > to {
		return nil, true
	}
	if to-from >= ringTicks {
		return nil, false
	}
	packets := make([][]byte, 0, to-from+1)
	for n := from; n <= to; n++ {
		if r.numbers[n%ringTicks] != n {
			return nil, false
		}
		packets = append(packets, r.packets[n%ringTicks])
	}
	return packets, true
}

// bucket is a token bucket of bytes. Ticks may overdraw it by one packet.
type bucket struct {
	rate   int // a second
	size   int
	tokens float64
	at     time.Time // of tokens; zero: never used, full
}

func (b *bucket) refill(now time.Time) {
	switch {
	case b.at.IsZero():
		b.tokens = float64(b.size)
	case now.After(b.at):
		b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*float64(b.rate), float64(b.size))
	}
	b.at = now
}

// positiveAt returns when the bucket rises above zero.
func (b *bucket) positiveAt() time.Time {
	if b.tokens > 0 {
		return b.at
	}
	return b.at.Add(time.Duration((1-b.tokens)/float64(b.rate)*float64(time.Second)) + 1)
}
