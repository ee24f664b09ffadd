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
		blocks := l.UnseenBlocks()
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
	l.Observed(at(2*sec), at(2*sec), 0)
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

// What the engine's figures as of a reading may not show yet.
func TestLedgerUnseen(t *testing.T) {
	for _, tc := range []struct {
		name    string
		over    time.Duration // signal of the end; 0: none
		reading time.Duration
		waiting int // as read
		want    int
	}{
		{"before the end", 0, 2 * sec, 0, 1},
		{"after the predicted end: it may take longer", 0, 5 * sec, 0, 1},
		{"at twice the prediction", 0, 8 * sec, 0, 0},
		{"at twice the prediction, but a request waits", 0, 8 * sec, 1, 1},
		{"after the first token", 3 * sec, 3 * sec, 0, 0},
		{"after the first token, another waits", 3 * sec, 3 * sec, 1, 0},
		{"before the first token", 3 * sec, 2 * sec, 0, 1},
		{"before a first token later than predicted", 6 * sec, 5 * sec, 0, 1},
		{"after a first token later than predicted", 6 * sec, 6 * sec, 0, 0},
	} {
		var l hold.Ledger
		f := &hold.Flight{Work: 4 * sec, Blocks: 1}
		l.Bind(at(0), f)
		if tc.over > 0 {
			l.Over(at(tc.over), f)
			l.Over(at(tc.over+sec), f)
		} else {
			l.Advance(at(tc.reading))
		}
		l.Observed(at(tc.reading), at(tc.reading), tc.waiting)
		if got := l.UnseenBlocks(); got != tc.want {
			t.Errorf("%s: %d blocks unseen, want %d", tc.name, got, tc.want)
		}
	}
}

// Of the flights on an endpoint, those that its figures may count as waiting.
func TestLedgerQueued(t *testing.T) {
	var l hold.Ledger
	a, b, c := &hold.Flight{Work: 2 * sec}, &hold.Flight{Work: 2 * sec}, &hold.Flight{Work: sec}
	l.Bind(at(0), a)
	l.Bind(at(0), b)
	l.Bind(at(sec), c)
	l.Over(at(2*sec), a)
	l.Over(at(4*sec), b)
	for _, tc := range []struct {
		read, old time.Duration
		want      int
		why       string
	}{
		{sec / 2, 0, 2, "c was not there; b ended later, and a"},
		{sec, sec / 2, 3, "c has come"},
		{3 * sec, 2 * sec, 2, "figures of before a's end, but from its second half: it had begun"},
		{4 * sec, 3 * sec / 2, 2, "figures of before b's second half"},
		{5 * sec, 0, 1, "c"},
	} {
		if got := l.Queued(at(tc.read-tc.old), at(tc.read)); got != tc.want {
			t.Errorf("figures of %v, read at %v: %d, want %d: %s", tc.read-tc.old, tc.read, got, tc.want, tc.why)
		}
	}
}

// A prefill whose end will be told is not taken to be over because it should be.
func TestLedgerTold(t *testing.T) {
	for _, tc := range []struct{ over, now, want time.Duration }{
		{0, sec, 3 * sec},
		{0, 4 * sec, sec},
		{0, 7 * sec, sec},
		{0, 8 * sec, 0}, // twice the prediction
		{5 * sec, 5 * sec, 0},
	} {
		var l hold.Ledger
		f := &hold.Flight{Work: 4 * sec, Told: true}
		l.Bind(at(0), f)
		if tc.over > 0 {
			l.Over(at(tc.over), f)
		}
		if got := l.Queue(at(tc.now)); got != tc.want {
			t.Errorf("told at %v: queue %v at %v, want %v", tc.over, got, tc.now, tc.want)
		}
	}
}

// A request that the engine can't admit for want of memory takes its time when it is admitted, not when it should have.
func TestLedgerStuck(t *testing.T) {
	var l hold.Ledger
	f := &hold.Flight{Work: 2 * sec, Blocks: 9}
	l.Bind(at(0), f)
	l.Observed(at(sec), at(sec), 1)
	if got := l.Queue(at(3 * sec)); got != 0 {
		t.Fatalf("queue %v after the predicted end", got)
	}
	l.Observed(at(20*sec), at(20*sec), 1)
	if got := l.UnseenBlocks(); got != 9 {
		t.Errorf("%d blocks unseen of a request that still waits, want 9", got)
	}
	l.Observed(at(21*sec), at(21*sec), 0)
	if got := l.Queue(at(22 * sec)); got != sec {
		t.Errorf("queue %v, want 1s: it has begun a second ago", got)
	}
	l.Over(at(23*sec), f)
	l.Observed(at(24*sec), at(24*sec), 0)
	l.Observed(at(25*sec), at(25*sec), 1)
	l.Observed(at(26*sec), at(26*sec), 0)
	if got := l.Queue(at(26 * sec)); got != 0 || l.UnseenBlocks() != 0 {
		t.Errorf("queue %v and %d blocks unseen after its first token: another's wait was taken for its own", got, l.UnseenBlocks())
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
