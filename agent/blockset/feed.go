package blockset

import (
	"time"

	"github.com/grapevine-llm/grapevine/agent/kvevent"
)

// Feed carries out a Sequencer's actions on a Set: the whole of an agent's event
// handling but for its sockets. Not safe for concurrent use.
type Feed struct {
	Set *Set
	Seq *Sequencer
	// Restarted, if set, is called after the Set was emptied because the engine started
	// anew and before anything of the new engine is applied: start a new epoch.
	Restarted func()
	// Lost, if set, is called for a batch that could not be decoded. It counts as a gap.
	Lost func(seq uint64, err error)
	// Odd, if set, is called for each reason why events were skipped, with their
	// number, and for each anomaly, with 1.
	Odd func(r kvevent.Reason, n int)
}

// Outcome sums up what Do did.
type Outcome struct {
	Ask     bool   // ask the engine to replay from From
	From    uint64 //
	Applied int    // batches
}

// Do carries out actions.
func (f *Feed) Do(now time.Time, actions []Action) Outcome {
	var out Outcome
	for _, a := range actions {
		switch a.Kind {
		case ActApply:
			f.apply(now, a)
			out.Applied++
		case ActReplay:
			out.Ask, out.From = true, a.Seq
		case ActRestart:
			f.Set.Reset()
			out.Ask = false
			if f.Restarted != nil {
				f.Restarted()
			}
		case ActPartial:
			f.Set.MarkPartial()
		case ActSuspect:
			f.Set.MarkSuspect()
		}
	}
	return out
}

func (f *Feed) apply(now time.Time, a Action) {
	b, err := kvevent.Decode(a.Payload)
	if err != nil {
		f.Set.MarkSuspect()
		if f.Lost != nil {
			f.Lost(a.Seq, err)
		}
		return
	}
	if f.Odd != nil {
		for _, s := range b.Skipped {
			f.Odd(s.Reason, s.Count)
		}
		for _, r := range b.Anomalies {
			f.Odd(r, 1)
		}
	}
	f.Set.Apply(now, b)
}
