package blockset

import (
	"fmt"
	"time"

	"github.com/zeebo/xxh3"
)

// ActionKind is what a [Sequencer] wants done.
type ActionKind uint8

// The actions, to be carried out in the order returned.
const (
	// ActApply: apply the batch.
	ActApply ActionKind = 1 + iota
	// ActReplay: ask the engine to replay from Seq and pass on each answer to Replayed
	// and the end to ReplayEnd. Answers to an earlier request must not be passed on
	// any more.
	ActReplay
	// ActRestart: the engine started anew; everything known of it is void.
	ActRestart
	// ActPartial: batches before Seq are out of reach; what they stored stays unknown.
	ActPartial
	// ActSuspect: Missing batches before Seq are lost for good, removals among them.
	ActSuspect
	// ActDuplicate: the batch was applied before; nothing to do.
	ActDuplicate
)

func (k ActionKind) String() string {
	switch k {
	case ActApply:
		return "apply"
	case ActReplay:
		return "replay"
	case ActRestart:
		return "restart"
	case ActPartial:
		return "partial"
	case ActSuspect:
		return "suspect"
	case ActDuplicate:
		return "duplicate"
	}
	return fmt.Sprintf("ActionKind(%d)", uint8(k))
}

// Action is one thing to do.
type Action struct {
	Kind    ActionKind
	Seq     uint64
	Missing uint64 // ActSuspect
	Payload []byte // ActApply
}

// SequencerConfig fixes a Sequencer's limits.
type SequencerConfig struct {
	// CanReplay says that the engine has a replay socket. Without it a late start is
	// partial and a gap suspect at once.
	CanReplay bool
	// MaxHeld bounds live batches and their bytes held back during a replay; beyond it
	// the replay is given up. 0 means 20,000 batches and 64 MiB.
	MaxHeld      int
	MaxHeldBytes int
}

// Position is where a reader stands in an engine's event stream.
type Position struct {
	Known bool         // a batch was applied
	Seq   uint64       // the last one's number
	Sum   xxh3.Uint128 // and its payload's hash
	Start time.Time    // the engine's process start, zero if not known
}

const (
	maxAttempts = 2    // requests for one stretch of a replay
	keptSums    = 1024 // payload hashes kept to tell duplicates from restarts
)

// Sequencer decides in which order batches of one publisher are applied: it finds
// gaps, late starts, duplicates and restarts. An engine announces none of them; its
// numbers start at 0 in each process and rise by one, a number can be burned, and a
// restart can look like a gap.
//
// The replay is asked for from the last number applied, not the next: if that batch
// comes back with other bytes, the engine is another one. A restart whose first batch
// seen carries the number after the old engine's last shows in no number at all:
// report each new connection and, where it is known, the process start time.
//
// The methods return slices that are valid until the next call. A Sequencer is not
// safe for concurrent use and keeps payloads only while a replay runs.
type Sequencer struct {
	cfg SequencerConfig
	out []Action

	pos      Position
	high     uint64 // highest live number applied, with haveHigh
	haveHigh bool
	sums     []xxh3.Uint128 // of the last numbers, at number % keptSums
	sumSeqs  []uint64       // number + 1 there
	oldStart time.Time      // start of the process before a restart seen by numbers

	replay    replay
	held      []Action
	heldBytes int
}

// replay is the state of the request under way.
type replay struct {
	active   bool
	verify   bool   // the first answer must be the last batch applied
	answered bool   // something came
	hole     bool   // an answer was missing in between; the rest was left out
	next     uint64 // number expected next
	attempts int
}

// NewSequencer returns a Sequencer that knows nothing yet.
func NewSequencer(cfg SequencerConfig) *Sequencer {
	if cfg.MaxHeld == 0 {
		cfg.MaxHeld = 20_000
	}
	if cfg.MaxHeldBytes == 0 {
		cfg.MaxHeldBytes = 64 << 20
	}
	return &Sequencer{cfg: cfg, sums: make([]xxh3.Uint128, keptSums), sumSeqs: make([]uint64, keptSums)}
}

// Position returns where the reader stands, for a snapshot.
func (q *Sequencer) Position() Position { return q.pos }

// Resume goes on from a snapshot's position.
func (q *Sequencer) Resume(p Position) {
	q.forget()
	q.pos = p
	if p.Known {
		q.remember(p.Seq, p.Sum)
	}
}

// SetCanReplay tells whether the engine has a replay socket, once that is found out.
func (q *Sequencer) SetCanReplay(can bool) { q.cfg.CanReplay = can }

// Replaying reports that a replay is under way and live batches are held.
func (q *Sequencer) Replaying() bool { return q.replay.active }

// Connected says that the live socket was connected, first or again: what was sent
// before is lost to it.
func (q *Sequencer) Connected() []Action {
	q.out = q.out[:0]
	if q.cfg.CanReplay && !q.replay.active {
		q.ask(q.pos.Known)
	}
	return q.out
}

// ProcessStart reports the engine's process start time as its metrics show it. A
// change is a restart.
func (q *Sequencer) ProcessStart(t time.Time) []Action {
	const same = time.Second
	q.out = q.out[:0]
	switch {
	case t.IsZero() || t.Sub(q.oldStart).Abs() < same: // a scrape from before the restart
	case q.pos.Start.IsZero():
		q.pos.Start = t
	case t.Sub(q.pos.Start).Abs() >= same:
		q.restart()
		q.pos.Start = t
		if q.cfg.CanReplay {
			q.ask(false)
		}
	}
	return q.out
}

// Live takes a batch from the live socket. The payload is kept while a replay runs.
func (q *Sequencer) Live(seq uint64, payload []byte) []Action {
	q.out = q.out[:0]
	if q.replay.active {
		q.hold(seq, payload)
	} else {
		q.accept(seq, payload, q.cfg.CanReplay)
	}
	return q.out
}

// hold keeps a live batch until the replay is over.
func (q *Sequencer) hold(seq uint64, payload []byte) {
	if n := len(q.held); n > 0 && seq <= q.held[n-1].Seq {
		if seq == q.held[n-1].Seq && string(payload) == string(q.held[n-1].Payload) {
			q.emit(Action{Kind: ActDuplicate, Seq: seq})
			return
		}
		q.restart()
		q.accept(seq, payload, q.cfg.CanReplay)
		return
	}
	q.held = append(q.held, Action{Kind: ActApply, Seq: seq, Payload: payload})
	q.heldBytes += len(payload)
	if len(q.held) > q.cfg.MaxHeld || q.heldBytes > q.cfg.MaxHeldBytes {
		q.finish()
	}
}

// accept takes a live batch in its turn. With mayAsk false what is missing is lost.
func (q *Sequencer) accept(seq uint64, payload []byte, mayAsk bool) {
	sum := xxh3.Hash128(payload)
	switch {
	case !q.pos.Known && seq > 0 || q.pos.Known && seq > q.pos.Seq && seq-q.pos.Seq > 1:
		if mayAsk {
			q.ask(q.pos.Known)
			q.hold(seq, payload)
			return
		}
		if q.pos.Known {
			q.emit(Action{Kind: ActSuspect, Seq: seq, Missing: seq - q.pos.Seq - 1})
		} else {
			q.emit(Action{Kind: ActPartial, Seq: seq})
		}
		q.apply(seq, payload, sum)
	case !q.pos.Known || seq > q.pos.Seq:
		q.apply(seq, payload, sum)
	case q.applied(seq, sum):
		q.emit(Action{Kind: ActDuplicate, Seq: seq})
	default:
		q.restart()
		q.accept(seq, payload, mayAsk)
		return
	}
	if !q.haveHigh || seq > q.high {
		q.high, q.haveHigh = seq, true
	}
}

// applied reports whether a batch not above the last one is that of this engine: the
// same bytes, or a late live copy of a replayed batch too old to compare.
func (q *Sequencer) applied(seq uint64, sum xxh3.Uint128) bool {
	if at := seq % keptSums; q.sumSeqs[at] == seq+1 {
		return q.sums[at] == sum
	}
	return q.haveHigh && seq > q.high
}

func (q *Sequencer) apply(seq uint64, payload []byte, sum xxh3.Uint128) {
	q.pos.Known, q.pos.Seq, q.pos.Sum = true, seq, sum
	q.remember(seq, sum)
	q.emit(Action{Kind: ActApply, Seq: seq, Payload: payload})
}

func (q *Sequencer) remember(seq uint64, sum xxh3.Uint128) {
	q.sums[seq%keptSums], q.sumSeqs[seq%keptSums] = sum, seq+1
}

// restart forgets the engine process that was.
func (q *Sequencer) restart() {
	q.emit(Action{Kind: ActRestart})
	start := q.pos.Start
	q.forget()
	q.oldStart = start
}

func (q *Sequencer) forget() {
	q.pos, q.high, q.haveHigh, q.oldStart = Position{}, 0, false, time.Time{}
	clear(q.sumSeqs)
	q.replay = replay{}
	q.held, q.heldBytes = nil, 0
}

// ask starts a replay: of everything, or from the last batch applied.
func (q *Sequencer) ask(verify bool) {
	q.replay = replay{active: true, verify: verify}
	from := uint64(0)
	if q.pos.Known {
		q.replay.next = q.pos.Seq + 1
	}
	if verify {
		from = q.pos.Seq
	}
	q.emit(Action{Kind: ActReplay, Seq: from})
}

// Replayed takes one answer of the replay asked for.
func (q *Sequencer) Replayed(seq uint64, payload []byte) []Action {
	q.out = q.out[:0]
	r := &q.replay
	if !r.active {
		return q.out
	}
	r.answered = true
	sum := xxh3.Hash128(payload)
	if r.verify && seq >= q.pos.Seq {
		r.verify = false
		if seq == q.pos.Seq && sum != q.pos.Sum {
			held, bytes := q.held, q.heldBytes // they come from the new process
			q.restart()
			q.held, q.heldBytes = held, bytes
			q.ask(false)
			return q.out
		}
	}
	switch {
	case seq < r.next || r.hole:
		return q.out
	case seq > r.next && !q.pos.Known:
		q.emit(Action{Kind: ActPartial, Seq: seq})
	case seq > r.next && r.attempts+1 < maxAttempts:
		r.hole = true
		return q.out
	case seq > r.next:
		q.emit(Action{Kind: ActSuspect, Seq: seq, Missing: seq - r.next})
	}
	q.apply(seq, payload, sum)
	r.next = seq + 1
	return q.out
}

// ReplayEnd says that the answer is over: complete if the end marker came, false if
// the engine fell silent or never answered.
func (q *Sequencer) ReplayEnd(complete bool) []Action {
	q.out = q.out[:0]
	r := &q.replay
	switch {
	case !r.active:
	case (r.hole || !complete) && r.attempts+1 < maxAttempts:
		// The replay socket drops messages silently when it is read slowly.
		from := r.next
		if r.verify {
			from = q.pos.Seq
		}
		*r = replay{active: true, verify: r.verify, next: r.next, attempts: r.attempts + 1}
		q.emit(Action{Kind: ActReplay, Seq: from})
	case r.verify && !r.answered && complete && len(q.held) == 0:
		// The engine's newest number is below ours.
		q.restart()
		q.ask(false)
	default:
		q.finish()
	}
	return q.out
}

// finish ends a replay and takes the held batches in their turn.
func (q *Sequencer) finish() {
	held := q.held
	q.held, q.heldBytes, q.replay = nil, 0, replay{}
	for _, h := range held {
		q.accept(h.Seq, h.Payload, false)
	}
}

func (q *Sequencer) emit(a Action) { q.out = append(q.out, a) }
