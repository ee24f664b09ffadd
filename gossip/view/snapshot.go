package view

import (
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Snapshot is the set of streams at a moment. It is immutable; the bits in the
// matrices and the facts behind Live go on changing.
type Snapshot struct {
	Streams []Stream // by Key
	// Frozen: the view mistrusts itself. Ages are judged as of FrozenAt, see Clock.
	Frozen   bool
	FrozenAt time.Time
}

// Stream is one data-parallel rank of an endpoint.
type Stream struct {
	Key     wire.Key
	Node    uint64     // wire.NodeHash of the agent's node
	Info    *wire.Info // nil: none yet; not to be changed
	Epoch   uint64
	Problem string // why there are no columns, "" if there are
	Live    *Live
	GPU     Column
	All     Column // Matrix nil: there is no lower tier
}

// Column is a stream's digest.
type Column struct {
	Matrix *bloom.Matrix // nil: none; shared by streams of one geometry and block size
	Index  int
}

// Snapshot returns the current set of streams. It takes no lock. At most
// Config.PollEvery passes until it shows a change of membership or INFO.
func (v *View) Snapshot() *Snapshot { return v.snapshot.Load() }

// Find returns the index of a stream in Streams.
func (s *Snapshot) Find(key wire.Key) (int, bool) {
	return slices.BinarySearchFunc(s.Streams, key, func(st Stream, k wire.Key) int { return compareKeys(st.Key, k) })
}

// Clock returns the time to judge ages by: now, or while the view is frozen the
// moment before it began to doubt. Pass it to Live.Stale and Live.Age.
func (s *Snapshot) Clock(now time.Time) time.Time {
	if s.Frozen && now.After(s.FrozenAt) {
		return s.FrozenAt
	}
	return now
}

func compareKeys(a, b wire.Key) int {
	switch {
	case a.Less(b):
		return -1
	case b.Less(a):
		return 1
	}
	return 0
}

func (v *View) publish(now time.Time) {
	snap := &Snapshot{Streams: make([]Stream, 0, len(v.streams)), Frozen: !v.frozen.IsZero(), FrozenAt: v.frozenAt}
	for _, s := range v.streams {
		st := Stream{Key: s.key, Node: s.node, Epoch: s.epoch, Problem: s.problem, Live: s.live,
			GPU: s.columns[wire.TierGPU].published(), All: s.columns[wire.TierAll].published()}
		if e := v.endpoints[s.key.Endpoint]; e != nil {
			st.Info = e.info
		}
		snap.Streams = append(snap.Streams, st)
	}
	slices.SortFunc(snap.Streams, func(a, b Stream) int { return compareKeys(a.Key, b.Key) })
	v.snapshot.Store(snap)
	v.dirty, v.urgent, v.published = false, false, now
}

func (c *column) published() Column {
	if c.table == nil {
		return Column{}
	}
	return Column{Matrix: c.table.matrix, Index: c.index}
}

// Live holds what changes with each tick. Safe for any goroutine.
type Live struct {
	facts      atomic.Pointer[Facts]
	staleAfter time.Duration
}

// Facts is what the newest tick said. Values are immutable.
type Facts struct {
	Epoch     uint64
	TickNo    uint64    // 0: no tick in this epoch yet
	LastTick  time.Time // when it came; zero: never
	Interval  time.Duration
	Flags     wire.Flags
	Load      wire.Load // the last one sent, HasLoad false: none
	HasLoad   bool
	LoadAt    time.Time // when the engine was asked for it, as far as known; zero: not said
	Health    wire.Health
	HasHealth bool
	// GapOpen: ticks or segments are missing, so that the digest may have holes.
	GapOpen bool
}

func newLive(staleAfter time.Duration) *Live {
	l := &Live{staleAfter: staleAfter}
	l.facts.Store(&Facts{})
	return l
}

// Facts returns the newest facts, never nil.
func (l *Live) Facts() *Facts { return l.facts.Load() }

// Age returns the time since the last tick, at least zero; a very long time if there
// was none.
func (l *Live) Age(now time.Time) time.Duration {
	f := l.Facts()
	if f.LastTick.IsZero() {
		return 1<<63 - 1
	}
	return max(now.Sub(f.LastTick), 0)
}

// Stale reports that the digest is too old to go by: the last tick came longer ago
// than Config.StaleAfter and three announced intervals.
func (l *Live) Stale(now time.Time) bool {
	return l.Age(now) > max(l.staleAfter, 3*l.Facts().Interval)
}

func (l *Live) hear(now time.Time, t *wire.Tick) {
	f := *l.Facts()
	f.Epoch, f.TickNo, f.LastTick, f.Interval, f.Flags = t.Epoch, t.TickNo, now, min(t.Interval, maxInterval), t.Flags
	if t.HasLoad {
		f.Load, f.HasLoad, f.LoadAt = t.Load, true, time.Time{}
		if t.Load.Age > 0 {
			f.LoadAt = now.Add(-t.Load.Age)
		}
	}
	if t.HasHealth {
		f.Health, f.HasHealth = t.Health, true
	}
	l.facts.Store(&f)
}

func (l *Live) gap(open bool) {
	if f := *l.Facts(); f.GapOpen != open {
		f.GapOpen = open
		l.facts.Store(&f)
	}
}

func (l *Live) restart(epoch uint64) {
	f := *l.Facts()
	f.Epoch, f.TickNo, f.GapOpen = epoch, 0, false
	l.facts.Store(&f)
}

// Stats counts what happened since the View was made.
type Stats struct {
	Ticks      uint64 // taken, repeats included
	Duplicates uint64 // ticks whose content was there already
	Segments   uint64
	Gaps       uint64 // opened
	Jumps      uint64 // gaps given up: fetched as segments
	Mismatches uint64 // segments whose checksum differed
	Nacks      uint64 // sent
	Hellos     uint64 // sent
	Epochs     uint64 // streams that began a new epoch
	WentStale  uint64
	Freezes    uint64
	Drops      map[string]uint64 // messages not taken, by reason
	Problems   map[string]uint64 // streams that got no column, by Stream.Problem
}

// Stats returns the counts. Any goroutine may call it.
func (v *View) Stats() Stats {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.stats
	s.Drops, s.Problems = maps.Clone(s.Drops), maps.Clone(s.Problems)
	return s
}
