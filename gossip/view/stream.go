package view

import (
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// stream is the state of one publisher's stream in one epoch.
//
// Every tick that arrives is applied at once, and those after it once more: later
// numbers win, whatever the order of arrival. All ticks up to applied are in the
// picture, or superseded by a segment; a gap is open while newest is above. kept
// holds all ticks above keptBase that have arrived: those beyond a gap, and while
// segments are on their way those that may have to be applied over them.
type stream struct {
	key     wire.Key
	node    uint64
	epoch   uint64
	columns [wire.Tiers]column
	problem string // why there are no columns; "" none
	lost    bool   // content unknown, and no columns yet to want it for

	applied, newest uint64
	kept            []*wire.Tick // ascending
	keptBase        uint64

	wantInfo bool
	gapSince time.Time // zero: no gap
	gapAt    uint64    // applied at that time
	askAt    time.Time // next NACK; zero: nothing to ask
	tries    int       // unanswered NACKs
	stale    bool

	live *Live
}

// newStream returns nil if there are too many.
func (v *View) newStream(key wire.Key, epoch, node uint64) *stream {
	if len(v.streams) >= v.cfg.MaxStreams {
		return nil
	}
	s := &stream{key: key, epoch: epoch, node: node, stale: true, live: newLive(v.cfg.StaleAfter)}
	v.streams[key] = s
	v.order = append(v.order, s)
	v.fit(s)
	v.dirty = true
	return s
}

// tick takes a TICK message.
func (v *View) tick(now time.Time, h wire.Header, t *wire.Tick) error {
	s := v.streams[t.Key]
	if s == nil {
		if s = v.newStream(t.Key, t.Epoch, h.Node); s == nil {
			return v.drop("too many streams", h)
		}
	}
	switch {
	case t.Epoch < s.epoch:
		// A late packet, or an agent that must hear which epoch it has to go above.
		v.nodes[h.Node].claim = s.key
		v.hello(now, v.nodes[h.Node])
		return v.drop("old epoch", h)
	case t.Epoch > s.epoch:
		v.restart(s, t.Epoch)
		v.fit(s)
	}
	v.count(func(st *Stats) { st.Ticks++ })
	if t.TickNo > s.live.Facts().TickNo {
		s.node = h.Node
		s.live.hear(now, t)
	}
	if e := v.endpoints[s.key.Endpoint]; e == nil || s.problem == ProblemEpoch {
		v.hello(now, v.nodes[h.Node])
	} else if e.node == h.Node && t.InfoVersion > e.info.Version {
		s.wantInfo = true
		s.ask(now)
	}
	at, known := slices.BinarySearchFunc(s.kept, t.TickNo, func(k *wire.Tick, n uint64) int { return compare(k.TickNo, n) })
	if known || t.TickNo <= s.keptBase {
		if s.live.Stale(now) { // alive, but below what somebody sent in its name
			v.nodes[h.Node].claim = s.key
			v.hello(now, v.nodes[h.Node])
		}
		v.count(func(st *Stats) { st.Duplicates++ })
		return nil
	}
	s.kept = slices.Insert(s.kept, at, t)
	v.pending += cost(t)
	for _, k := range s.kept[at:] {
		v.assign(s, k, nil)
	}
	s.newest = max(s.newest, t.TickNo)
	s.advance()
	if t.TickNo == s.applied && s.applied == s.newest {
		v.verify(now, s, t)
	}
	v.settle(now, s)
	v.changed(s)
	return nil
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// cost estimates the memory of a kept tick.
func cost(t *wire.Tick) int {
	n := 512 + 8*len(t.CRCs)
	for tier := range t.Set {
		n += 4 * (len(t.Set[tier]) + len(t.Clear[tier]))
	}
	return n
}

// segment takes a SEG message.
func (v *View) segment(now time.Time, h wire.Header, m *wire.Segment) error {
	s := v.streams[m.Key]
	if s == nil || m.Epoch > s.epoch {
		v.hello(now, v.nodes[h.Node])
		return v.drop("segment before info", h)
	}
	c := &s.columns[m.Tier]
	switch {
	case m.Epoch < s.epoch:
		return v.drop("old epoch", h)
	case c.table == nil:
		return v.drop("segment before info", h)
	case c.shape.geometry != m.Geometry:
		return v.drop("other geometry", h)
	case m.TickNo < s.keptBase:
		return v.drop("old segment", h) // ticks after it are gone; asked for again
	}
	matrix := c.table.matrix
	first := int(m.Index)
	last := first + (len(m.Words)+wire.SegmentWords-1)/wire.SegmentWords - 1
	for i := first; i <= last; i++ {
		if c.floors[i] > m.TickNo || c.floors[i] == m.TickNo && !c.wanted[i] {
			continue
		}
		from, to := wire.SegmentSpan(m.Geometry, i)
		for w := from; w < to; w++ {
			matrix.SetWord(c.index, uint32(w), m.Words[w-first*wire.SegmentWords])
		}
		c.got(i, m.TickNo)
	}
	span := &segmentRange{tier: m.Tier, first: first, last: last}
	for _, k := range s.kept {
		v.assign(s, k, span)
	}
	v.count(func(st *Stats) { st.Segments += uint64(last - first + 1) })
	s.newest = max(s.newest, m.TickNo)
	s.applied = max(s.applied, s.floor())
	s.advance()
	s.tries = 0
	if !s.askAt.IsZero() {
		s.askAt = now.Add(v.cfg.GapHold)
	}
	v.settle(now, s)
	v.changed(s)
	return nil
}

// segmentRange restricts assign to some segments of one tier.
type segmentRange struct {
	tier        wire.Tier
	first, last int
}

// assign writes a tick's positions into the columns, except where a segment of the
// same or a later tick rules.
func (v *View) assign(s *stream, t *wire.Tick, only *segmentRange) {
	outside := 0
	for tier := range s.columns {
		c := &s.columns[tier]
		if c.table == nil || only != nil && int(only.tier) != tier {
			continue
		}
		m, buckets := c.table.matrix, c.shape.geometry.Buckets
		rules := func(pos uint32) bool {
			if pos/64 >= buckets {
				outside++
				return false
			}
			i := int(pos / 64 / wire.SegmentWords)
			return t.TickNo > c.floors[i] && (only == nil || i >= only.first && i <= only.last)
		}
		for _, pos := range t.Clear[tier] {
			if rules(pos) {
				m.ClearBits(c.index, pos/64, 1<<(pos%64))
			}
		}
		for _, pos := range t.Set[tier] {
			if rules(pos) {
				m.SetBits(c.index, pos/64, 1<<(pos%64))
			}
		}
	}
	if outside > 0 {
		v.count(func(st *Stats) { st.Drops["position outside"] += uint64(outside) })
	}
}

// floor returns the tick up to which segments cover all columns.
func (s *stream) floor() uint64 {
	floor, any := uint64(1<<64-1), false
	for i := range s.columns {
		if c := &s.columns[i]; c.table != nil {
			any = true
			floor = min(floor, slices.Min(c.floors))
		}
	}
	if !any {
		return 0
	}
	return floor
}

// advance moves applied over the ticks that are there.
func (s *stream) advance() {
	for _, k := range s.kept {
		if k.TickNo == s.applied+1 {
			s.applied++
		}
	}
}

// missing counts the ticks that a gap lacks.
func (s *stream) missing() uint64 {
	n := s.newest - s.applied
	for i := len(s.kept) - 1; i >= 0 && s.kept[i].TickNo > s.applied; i-- {
		n--
	}
	return n
}

func (s *stream) wanted() (n int) {
	for i := range s.columns {
		n += s.columns[i].missing
	}
	return n
}

// blind reports that the stream has no columns yet but may get some.
func (s *stream) blind() bool {
	return s.problem == problemInfo || s.problem == ProblemEpoch || s.problem == problemBlockSize
}

// settle follows every change: it opens, closes or gives up a gap, lets go of ticks
// that nothing needs, and tells readers.
func (v *View) settle(now time.Time, s *stream) {
	if s.newest > s.applied {
		switch {
		case s.gapSince.IsZero():
			v.count(func(st *Stats) { st.Gaps++ })
			s.gapSince, s.gapAt = now, s.applied
		case s.gapAt != s.applied: // some of it came; the rest is given time again
			s.gapSince, s.gapAt = now, s.applied
			s.tries, s.askAt = 0, now.Add(v.cfg.GapHold)
		}
		if s.missing() > maxMissing || len(s.kept) > maxKept || now.Sub(s.gapSince) > maxGap || v.pending > v.cfg.MaxPendingBytes {
			v.jump(now, s)
		}
	}
	if s.newest == s.applied {
		s.gapSince = time.Time{}
	}
	v.trim(s)
	if s.lost && s.problem == "" {
		s.lost = false
		s.want(^uint64(0))
	}
	switch need := s.newest > s.applied || s.wanted() > 0 || s.wantInfo; {
	case !need:
		s.askAt, s.tries = time.Time{}, 0
	case s.askAt.IsZero():
		s.askAt = now.Add(v.cfg.GapHold)
	}
	s.live.gap(s.newest > s.applied || s.wanted() > 0 || s.lost)
}

// jump gives up a gap: what it hides is fetched as segments.
func (v *View) jump(now time.Time, s *stream) {
	lastMissing := s.newest
	for i := len(s.kept) - 1; i >= 0 && s.kept[i].TickNo == lastMissing; i-- {
		lastMissing--
	}
	v.forgetTicks(s, lastMissing)
	s.applied = s.newest
	s.lost = true
	if s.problem == "" {
		s.lost = false
		s.want(lastMissing)
	}
	s.tries, s.askAt = 0, now
	v.count(func(st *Stats) { st.Jumps++ })
}

// want marks all segments that are not true at a tick or later.
func (s *stream) want(tick uint64) {
	for i := range s.columns {
		c := &s.columns[i]
		for j := range c.floors {
			if c.floors[j] < tick {
				c.want(j)
			}
		}
	}
}

// trim forgets ticks that are in the picture and that no segment can need.
func (v *View) trim(s *stream) {
	if s.wanted() == 0 && (s.lost || !s.blind()) {
		v.forgetTicks(s, s.applied)
		return
	}
	for len(s.kept) > 0 && s.kept[0].TickNo <= s.applied && (len(s.kept) > maxKept || v.pending > v.cfg.MaxPendingBytes) {
		s.lost = s.lost || s.blind()
		v.forgetTicks(s, s.kept[0].TickNo)
	}
}

// forgetTicks lets go of the ticks up to a number.
func (v *View) forgetTicks(s *stream, upTo uint64) {
	n := 0
	for n < len(s.kept) && s.kept[n].TickNo <= upTo {
		v.pending -= cost(s.kept[n])
		n++
	}
	s.kept = slices.Delete(s.kept, 0, n)
	s.keptBase = max(s.keptBase, upTo)
}

// ask makes a NACK due now, unless one is outstanding.
func (s *stream) ask(now time.Time) {
	if s.tries == 0 {
		s.askAt = now
	}
}

// restart begins a higher epoch, with an empty digest.
func (v *View) restart(s *stream, epoch uint64) {
	v.forgetTicks(s, ^uint64(0))
	s.epoch, s.applied, s.newest, s.keptBase = epoch, 0, 0, 0
	s.lost, s.wantInfo, s.tries = false, false, 0
	s.gapSince, s.askAt = time.Time{}, time.Time{}
	for i := range s.columns {
		s.columns[i].empty()
	}
	s.live.restart(epoch)
	v.dirty = true
	v.count(func(st *Stats) { st.Epochs++ })
}

// verify compares checksums that are true at the very tick that the stream is at,
// as far as the budget for reading columns allows, and wants the segments that
// differ.
func (v *View) verify(now time.Time, s *stream, t *wire.Tick) {
	if len(t.CRCs) == 0 || s.problem != "" {
		return
	}
	v.checks.refill(now)
	var scratch [wire.SegmentWords]uint64
	for _, crc := range t.CRCs {
		if v.checks.tokens <= 0 {
			return
		}
		c, i := &s.columns[crc.Tier], int(crc.Segment)
		if c.table == nil || i >= len(c.floors) || c.wanted[i] || c.floors[i] > t.TickNo {
			continue
		}
		from, to := wire.SegmentSpan(c.shape.geometry, i)
		v.checks.tokens -= float64(to - from)
		if wire.Checksum(c.table.matrix.Words(c.index, from, to, scratch[:0])) != crc.CRC {
			c.want(i)
			s.ask(now)
			v.count(func(st *Stats) { st.Mismatches++ })
		}
	}
}
