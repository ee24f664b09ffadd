// Package inspect shows what an engine's KV-event stream says: it decodes batches from
// a capture file or a live engine into lines for people and scripts, names gaps and
// anomalies with their remedy, and answers which prefix of a prompt was cached at any
// point of the stream. It is the library behind `grapevine events`.
//
// [Inspector] holds the state; [ReadCapture] feeds it from a file, [Watch] from an
// engine. A capture is one JSON object a line, plain or gzip:
//
//	{"topic": "kv@10.0.0.5:8000@m", "seq_hex": "0000000000000000", "payload_b64": "k8tB..."}
package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Message is one batch as it was received.
type Message struct {
	Line    int // in the capture, from 0; -1: not from a file
	Topic   string
	Seq     uint64
	Payload []byte
}

// Emit takes what there is to show: an [Event] or a [Notice]. An error stops the run.
type Emit func(v any) error

// Inspector follows one publisher. It is not safe for concurrent use.
type Inspector struct {
	set    *blockset.Set
	seq    *blockset.Sequencer
	hasher blockhash.Hasher
	emit   Emit
	failed error // first error of emit

	current Message // the message at work
	sum     Summary
	topic   string
	topics  bool // a second topic was seen and named
}

// New returns an Inspector that has seen nothing. With canReplay it wants gaps
// repaired: see Ask. emit may be nil.
func New(canReplay bool, emit Emit) *Inspector {
	if emit == nil {
		emit = func(any) error { return nil }
	}
	h := blockhash.NewHasher(blockhash.DefaultSeed)
	return &Inspector{
		set:    blockset.New(blockset.Config{Hasher: h}, silent{}),
		seq:    blockset.NewSequencer(blockset.SequencerConfig{CanReplay: canReplay}),
		hasher: h,
		emit:   emit,
		sum:    Summary{FirstSeq: -1, LastSeq: -1, Reasons: map[string]int{}},
	}
}

// silent is a Sink: an Inspector asks the set itself.
type silent struct{}

func (silent) Set(blockset.Tier, blockhash.Hash)   {}
func (silent) Clear(blockset.Tier, blockhash.Hash) {}

// Ask is a replay that the engine should be asked for.
type Ask struct {
	Wanted bool
	From   uint64
}

// Live takes a message of the live stream, or of a capture.
func (x *Inspector) Live(now time.Time, m Message) (Ask, error) {
	x.enter(m)
	return x.do(now, x.seq.Live(m.Seq, m.Payload))
}

// Replayed takes an answer of the replay asked for.
func (x *Inspector) Replayed(now time.Time, m Message) (Ask, error) {
	x.enter(m)
	return x.do(now, x.seq.Replayed(m.Seq, m.Payload))
}

// ReplayEnd says that the answer is over; complete is false without an end marker.
func (x *Inspector) ReplayEnd(now time.Time, complete bool) (Ask, error) {
	return x.do(now, x.seq.ReplayEnd(complete))
}

// Connected says that the live stream was connected, first or again.
func (x *Inspector) Connected(now time.Time) (Ask, error) { return x.do(now, x.seq.Connected()) }

// SetBlocks tells the engine's number of GPU blocks: more copies make the set suspect.
func (x *Inspector) SetBlocks(n int) { x.set.SetBlocks(n) }

// Replaying reports that a replay is under way.
func (x *Inspector) Replaying() bool { return x.seq.Replaying() }

func (x *Inspector) enter(m Message) {
	x.current = m
	switch {
	case x.sum.Messages == 0:
		x.topic = m.Topic
	case m.Topic != x.topic && m.Topic != "" && !x.topics:
		x.topics = true
		x.notice(Notice{Notice: "second topic", Detail: fmt.Sprintf("%q beside %q", m.Topic, x.topic),
			Remedy: "two publishers share this stream: choose one with --topic"})
	}
	x.sum.Messages++
}

func (x *Inspector) do(now time.Time, actions []blockset.Action) (Ask, error) {
	var ask Ask
	for _, a := range actions {
		x.current.Seq = a.Seq
		switch a.Kind {
		case blockset.ActApply:
			x.apply(now, a)
		case blockset.ActReplay:
			ask = Ask{true, a.Seq}
			x.notice(Notice{Notice: "replay", Detail: fmt.Sprintf("asking for batches from %d", a.Seq)})
		case blockset.ActRestart:
			ask = Ask{}
			x.sum.Restarts++
			x.set.Reset()
			x.notice(Notice{Notice: "restart", Detail: "the engine started anew: everything it held is gone"})
		case blockset.ActPartial:
			x.set.MarkPartial()
			x.notice(Notice{Notice: "late start", Missing: a.Seq,
				Detail: "blocks stored before this batch are unknown",
				Remedy: "record from the engine's start, or give --replay while the engine still has batch 0 (buffer_steps)"})
		case blockset.ActSuspect:
			x.sum.Lost += a.Missing
			x.set.MarkSuspect()
			x.notice(Notice{Notice: "gap", Missing: a.Missing,
				Detail: fmt.Sprintf("batches %d to %d are missing", a.Seq-a.Missing, a.Seq-1),
				Remedy: "give --replay, or raise hwm and buffer_steps of the engine; a number that the engine failed to encode cannot be had again"})
		case blockset.ActDuplicate:
			x.sum.Duplicates++
			x.notice(Notice{Notice: "duplicate", Detail: "this batch was applied before"})
		}
	}
	return ask, x.failed
}

func (x *Inspector) apply(now time.Time, a blockset.Action) {
	if x.sum.FirstSeq < 0 {
		x.sum.FirstSeq = int64(a.Seq)
	}
	x.sum.LastSeq = int64(a.Seq)
	b, err := kvevent.Decode(a.Payload)
	if err != nil {
		x.sum.Dropped++
		x.sum.Reasons[string(kvevent.ReasonOf(err))]++
		x.set.MarkSuspect()
		x.notice(Notice{Notice: "batch dropped", Reason: string(kvevent.ReasonOf(err)), Detail: err.Error(),
			Remedy: "the sender is no vLLM or SGLang publisher, or the frame was damaged: its removals are lost"})
		return
	}
	for _, s := range b.Skipped {
		x.sum.Skipped += s.Count
		x.sum.Reasons[string(s.Reason)] += s.Count
		x.notice(Notice{Notice: "events skipped", Reason: string(s.Reason), Count: s.Count,
			Detail: strings.TrimSpace(fmt.Sprintf("first at index %d %s", s.First, s.Tag))})
	}
	for _, r := range b.Anomalies {
		x.sum.Reasons[string(r)]++
		x.notice(Notice{Notice: "anomaly", Reason: string(r), Count: 1})
	}
	x.sum.Events += len(b.Events)
	for i := range b.Events {
		x.show(describe(x.current, b, i))
	}
	was := x.set.Suspect()
	x.set.Apply(now, b)
	if x.set.Suspect() && !was {
		x.notice(Notice{Notice: "too many copies", Detail: "more copies are counted than the engine has blocks",
			Remedy: "removals were lost, or requests use kv_cache_report_mode full: reset the prefix cache or restart the engine to count anew"})
	}
}

func (x *Inspector) notice(n Notice) {
	n.Line, n.Seq = lineOf(x.current), x.current.Seq
	x.show(n)
}

func (x *Inspector) show(v any) {
	if err := x.emit(v); err != nil && x.failed == nil {
		x.failed = err
	}
}

// Summary is the state after what was seen so far.
type Summary struct {
	State      string         `json:"state"` // complete, partial, suspect
	Messages   int            `json:"messages"`
	FirstSeq   int64          `json:"first_seq"` // -1: none applied
	LastSeq    int64          `json:"last_seq"`
	Events     int            `json:"events"`
	Blocks     int            `json:"blocks"`  // distinct blocks in the GPU
	Copies     int            `json:"copies"`  // GPU blocks that hold them
	Lower      int            `json:"lower"`   // copies in lower tiers
	Orphans    int            `json:"orphans"` // copies whose place in a prompt is unknown
	Visible    int            `json:"visible"` // blocks that a request can hit
	BlockSize  int            `json:"block_size"`
	Tokens     int            `json:"tokens"` // that a request can hit
	Restarts   int            `json:"restarts"`
	Lost       uint64         `json:"lost_batches"`
	Dropped    int            `json:"dropped_batches"`
	Skipped    int            `json:"skipped_events"`
	Duplicates int            `json:"duplicates"`
	Reasons    map[string]int `json:"reasons,omitempty"`
}

// Summary returns the state as it stands.
func (x *Inspector) Summary() Summary {
	st, s := x.set.Stats(), x.sum
	s.State = "complete"
	switch {
	case x.set.Suspect():
		s.State = "suspect"
	case x.set.Partial():
		s.State = "partial"
	}
	s.Blocks, s.Copies, s.Lower, s.Orphans = st.Blocks, st.Copies, st.Lower, st.Orphans
	s.Visible, s.BlockSize = st.Visible[blockset.GPU], x.set.BlockSize()
	s.Tokens = s.Visible * s.BlockSize
	s.Reasons = maps.Clone(x.sum.Reasons)
	return s
}

// String is for people.
func (s Summary) String() string {
	var b strings.Builder
	row := func(name, format string, a ...any) {
		fmt.Fprintf(&b, "%-10s "+format+"\n", append([]any{name}, a...)...)
	}
	switch s.State {
	case "partial":
		row("state", "partial: blocks stored before the first batch seen are unknown")
	case "suspect":
		row("state", "suspect: batches were lost, or more copies are counted than the engine has blocks")
	default:
		row("state", "%s", s.State)
	}
	if s.FirstSeq < 0 {
		row("batches", "none")
	} else {
		row("batches", "%d, numbers %d to %d, %d events", s.Messages, s.FirstSeq, s.LastSeq, s.Events)
	}
	row("blocks", "%d of %d tokens, in %d copies", s.Blocks, s.BlockSize, s.Copies)
	row("can be hit", "%d blocks, %d tokens", s.Visible, s.Tokens)
	if s.Orphans > 0 {
		row("orphans", "%d (their parents were never seen)", s.Orphans)
	}
	if s.Lower > 0 {
		row("lower", "%d copies outside the GPU", s.Lower)
	}
	if s.Restarts > 0 {
		row("restarts", "%d", s.Restarts)
	}
	if s.Lost > 0 || s.Dropped > 0 || s.Skipped > 0 || s.Duplicates > 0 {
		row("trouble", "%d batches lost, %d dropped, %d twice, %d events skipped", s.Lost, s.Dropped, s.Duplicates, s.Skipped)
	}
	for _, r := range slices.Sorted(maps.Keys(s.Reasons)) {
		row("", "%s: %d", r, s.Reasons[r])
	}
	return b.String()
}
