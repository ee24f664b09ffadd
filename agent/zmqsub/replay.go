package zmqsub

const (
	// maxAsks bounds the requests of one replay.
	maxAsks = 8
	// maxRanges bounds the list of what is missing; more are merged into the last.
	maxRanges = 64
)

// Range is a run of sequence numbers, both ends included.
type Range struct{ First, Last uint64 }

// Replay says how a replay ended.
type Replay struct {
	From     uint64  // number that was asked for
	Next     uint64  // one past the last number received; From if there was none
	Missing  []Range // numbers in [From, Next) that the engine no longer has, rising
	Answered bool    // the engine said something, if only the end marker
	Complete bool    // the end marker came; else the replay ran out of time or was cut off
}

// replay is the state of one replay; a core without sockets.
type replay struct {
	result Replay
	asks   int
	fresh  bool // no data yet since the last request
}

func newReplay(from uint64) *replay {
	return &replay{result: Replay{From: from, Next: from}, asks: 1, fresh: true}
}

// action is what to do about an answer.
type action uint8

const (
	ignore  action = iota
	deliver        // hand the message over
	ask            // drop it, ask again from result.Next
	finish         // the replay is over
)

// data takes the number of a data message. A jump in the middle of an answer was
// most likely dropped on the way: ask again. A jump at its start is how it is.
func (r *replay) data(seq uint64) action {
	r.result.Answered = true
	fresh := r.fresh
	r.fresh = false
	switch {
	case seq < r.result.Next:
		return ignore
	case seq > r.result.Next && !fresh && r.again():
		return ask
	case seq > r.result.Next:
		r.lost(Range{r.result.Next, seq - 1})
	}
	r.result.Next = seq + 1
	return deliver
}

// end takes the end marker.
func (r *replay) end() action {
	r.result.Answered, r.result.Complete = true, true
	return finish
}

// idle takes note that nothing came for a while: the tail may be lost, end marker
// included.
func (r *replay) idle() action {
	if !r.fresh && r.again() {
		return ask
	}
	return finish
}

func (r *replay) again() bool {
	if r.asks >= maxAsks {
		return false
	}
	r.asks++
	r.fresh = true
	return true
}

func (r *replay) lost(g Range) {
	if n := len(r.result.Missing); n == maxRanges {
		r.result.Missing[n-1].Last = g.Last
		return
	}
	r.result.Missing = append(r.result.Missing, g)
}

// held keeps live messages while a replay runs, bounded in number and bytes; when
// full the oldest goes, and the reader sees a gap.
type held struct {
	msgs     []Message
	bytes    int
	maxMsgs  int
	maxBytes int
	dropped  uint64
}

func (h *held) add(m Message) {
	h.msgs = append(h.msgs, m)
	h.bytes += len(m.Payload)
	for len(h.msgs) > h.maxMsgs || h.bytes > h.maxBytes {
		h.bytes -= len(h.msgs[0].Payload)
		h.msgs = h.msgs[1:]
		h.dropped++
	}
}

// take empties h and returns what is not yet known from a replay that ended
// before next. Numbers below next are repeats, unless the numbers fall: then the
// engine restarted meanwhile and all from there on is new.
func (h *held) take(next uint64) []Message {
	var out []Message
	restarted := false
	for i, m := range h.msgs {
		if i > 0 && m.Seq <= h.msgs[i-1].Seq {
			restarted = true
		}
		if restarted || m.Seq >= next {
			out = append(out, m)
		}
	}
	h.msgs, h.bytes = nil, 0
	return out
}
