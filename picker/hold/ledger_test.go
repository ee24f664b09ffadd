package hold_test

import (
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/hold"
)

const sec = time.Second

func TestLedgerQueue(t *testing.T) {
	var l hold.Ledger
	a, b, c := &hold.Flight{Work: sec, Blocks: 5}, &hold.Flight{Work: 2 * sec, Blocks: 7}, &hold.Flight{Work: 3 * sec, Blocks: 11}
	step := func(now, queue time.Duration, prefills, outstanding, unseenBlocks int, why string) {
		t.Helper()
		got := l.Queue(at(now))
		_, blocks := l.Unseen()
		if got != queue || l.Prefills() != prefills || l.Outstanding() != outstanding || blocks != unseenBlocks {
			t.Errorf("at %v: queue %v, %d prefills, %d outstanding, %d blocks unseen; want %v, %d, %d, %d: %s",
				now, got, l.Prefills(), l.Outstanding(), blocks, queue, prefills, outstanding, unseenBlocks, why)
		}
	}
	step(0, 0, 0, 0, 0, "empty")
	l.Bind(at(0), a)
	step(sec/2, sec/2, 1, 1, 5, "half done")
	l.Bind(at(sec/2), b)
	step(sec/2, 5*sec/2, 2, 2, 12, "b behind a")
	l.Over(at(3*sec/4), a)
	step(3*sec/4, 2*sec, 1, 2, 12, "a's first token came early: b begins; a's blocks are not yet in a tick")
	l.Over(at(sec), a)
	step(7*sec/4, sec, 1, 2, 12, "a second signal for a changes nothing")
	l.Observed(at(2 * sec))
	step(2*sec, 3*sec/4, 1, 2, 7, "a tick after a's end shows its blocks")
	l.Bind(at(2*sec), c)
	step(11*sec/4, 3*sec, 1, 2+1, 18, "b's predicted end has passed")
	step(11*sec/4, 3*sec, 1, 3, 18, "and c begins there")
	l.Over(at(3*sec), b)
	step(3*sec, 11*sec/4, 1, 3, 18, "b's late signal changes nothing")
	l.End(at(3*sec), b)
	l.End(at(3*sec), b)
	step(3*sec, 11*sec/4, 1, 2, 11, "b ended, once")
	l.End(at(4*sec), c)
	step(4*sec, 0, 0, 1, 0, "c was cancelled in its prefill")
	l.End(at(5*sec), a)
	step(5*sec, 0, 0, 0, 0, "all ended")
}

// What the engine's figures may count as waiting, or not at all, as of a reading.
func TestLedgerUnseen(t *testing.T) {
	for _, tc := range []struct {
		name    string
		over    time.Duration // signal of the end; 0: none
		reading time.Duration
		want    int
	}{
		{"before the end", 0, 2 * sec, 1},
		{"after the predicted end: it may take longer", 0, 5 * sec, 1},
		{"at twice the prediction", 0, 8 * sec, 0},
		{"after the first token", 3 * sec, 3 * sec, 0},
		{"before the first token", 3 * sec, 2 * sec, 1},
		{"before a first token later than predicted", 6 * sec, 5 * sec, 1},
		{"after a first token later than predicted", 6 * sec, 6 * sec, 0},
	} {
		var l hold.Ledger
		f := &hold.Flight{Work: 4 * sec}
		l.Bind(at(0), f)
		if tc.over > 0 {
			l.Over(at(tc.over), f)
			l.Over(at(tc.over+sec), f)
		} else {
			l.Advance(at(tc.reading))
		}
		l.Observed(at(tc.reading))
		if got, _ := l.Unseen(); got != tc.want {
			t.Errorf("%s: %d requests unseen, want %d", tc.name, got, tc.want)
		}
	}
}

func TestLedgerNextEnd(t *testing.T) {
	var l hold.Ledger
	if !l.NextEnd().IsZero() {
		t.Error("an empty ledger expects an end")
	}
	l.Bind(at(0), &hold.Flight{Work: sec})
	l.Bind(at(0), &hold.Flight{Work: sec})
	if got := l.NextEnd(); !got.Equal(at(sec)) {
		t.Errorf("next end at %v, want the first prefill's", got.Sub(t0))
	}
	l.Advance(at(sec))
	if got := l.NextEnd(); !got.Equal(at(2 * sec)) {
		t.Errorf("next end at %v, want the second prefill's", got.Sub(t0))
	}
}

// A prefill out of order (chunked prefill lets a short one pass) takes only its own work out of the queue.
func TestLedgerOutOfOrder(t *testing.T) {
	var l hold.Ledger
	a, b := &hold.Flight{Work: 4 * sec}, &hold.Flight{Work: sec}
	l.Bind(at(0), a)
	l.Bind(at(0), b)
	l.Over(at(sec), b)
	if got := l.Queue(at(sec)); got != 3*sec {
		t.Errorf("queue %v, want 3s", got)
	}
}
