package hint

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

func TestPlaces(t *testing.T) {
	for _, test := range []struct {
		first, count int
		want         []int
	}{
		{0, 0, nil},
		{5, 5, nil},
		{5, 6, []int{5}},
		{0, 2, []int{0, 1}},
		{10, 14, []int{10, 11, 12, 13}},
		{0, 20, []int{0, 1, 3, 7, 10, 12, 16, 18, 19}},
	} {
		if got := AppendPlaces(nil, test.first, test.count); !slices.Equal(got, test.want) {
			t.Errorf("blocks %d to %d: got %v, want %v", test.first, test.count, got, test.want)
		}
	}
	for n := range 5000 {
		got := AppendPlaces(nil, 7, 7+n)
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("%d blocks: places %v are not ascending", n, got)
		}
		if len(got) > wire.MaxHintPoints || n > 0 && (got[0] != 7 || got[len(got)-1] != 6+n) {
			t.Fatalf("%d blocks: places %v", n, got)
		}
	}
}

func points(chain []blockhash.Hash, first, count int) []uint32 {
	var out []uint32
	for _, at := range AppendPlaces(nil, first, count) {
		out = append(out, uint32(chain[at]))
	}
	return out
}

// TestSharedNeverTooMuch compares with what two prompts really share: never more, and what is missing is less than the distance
// to the nearer end of the new part.
func TestSharedNeverTooMuch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var scratch []int
	for range 20_000 {
		other := make([]blockhash.Hash, 1+r.IntN(400))
		for i := range other {
			other[i] = blockhash.Hash(r.Uint64())
		}
		first := r.IntN(len(other))
		shared := r.IntN(len(other) + 1)
		chain := slices.Clone(other[:shared])
		for range r.IntN(100) {
			chain = append(chain, blockhash.Hash(r.Uint64()))
		}
		var got int
		got, scratch = Shared(chain, first, len(other), points(other, first, len(other)), scratch)
		if got > shared {
			t.Fatalf("says %d blocks are shared, %d are", got, shared)
		}
		if shared <= first {
			if got != 0 {
				t.Fatalf("says %d blocks are shared, but they part before the new part, at %d", got, shared)
			}
			continue
		}
		if missing, limit := shared-got, min(shared-first, len(other)-shared); missing > 0 && missing >= limit {
			t.Fatalf("blocks %d to %d, %d shared: says %d, off by %d or more", first, len(other), shared, got, limit)
		}
	}
}

func TestSharedOfAnotherRule(t *testing.T) {
	chain := []blockhash.Hash{1, 2, 3, 4}
	if got, _ := Shared(chain, 0, 4, []uint32{1, 2}, nil); got != 0 {
		t.Errorf("points at unknown places count for %d blocks", got)
	}
}

// world is an outbox and a book with a network between them that loses, repeats and reorders.
type world struct {
	t      *testing.T
	outbox *Outbox
	book   Book[string]
}

const node = 77

func (w *world) deliver(now time.Time, packet []byte) {
	w.t.Helper()
	if len(packet) > wire.MaxPacketBytes {
		w.t.Fatalf("packet of %d bytes", len(packet))
	}
	h, m, err := wire.Decode(packet)
	if err != nil {
		w.t.Fatal(err)
	}
	hint := m.(*wire.Hint)
	w.book.Hear(now, h.Node, hint.Number, int(hint.Held))
	for _, b := range hint.Bound {
		w.book.Add(h.Node, b.ID, fmt.Sprint(b.PromptTokens), now.Add(time.Minute))
	}
	for _, id := range hint.Ended {
		w.book.End(h.Node, id, now.Add(time.Minute))
	}
}

func (w *world) open() []string {
	var out []string
	for _, id := range sortedKeys(w.book.gateways[node].requests) {
		if v, ok := w.book.Get(node, id); ok {
			out = append(out, v)
		}
	}
	return out
}

func TestAnyOrderEndsTheSame(t *testing.T) {
	now := time.Unix(0, 0)
	chain := make([]blockhash.Hash, 2000)
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := &world{t: t, outbox: NewOutbox(node)}
		var packets [][]byte
		var want []string
		for i := range 100 {
			id := w.outbox.Bound(now, wire.HintBound{PromptTokens: uint32(i), Count: 2000}, chain)
			if r.IntN(2) == 0 {
				w.outbox.Over(now, id)
				w.outbox.Ended(now, id)
			} else {
				want = append(want, fmt.Sprint(i))
			}
			if r.IntN(5) == 0 {
				packets = append(packets, w.outbox.Take(now)...)
			}
		}
		packets = append(packets, w.outbox.Take(now)...)
		packets = append(packets, packets[:len(packets)/2]...) // some come twice
		r.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] })
		for _, p := range packets {
			w.deliver(now, p)
		}
		if d := cmp.Diff(want, w.open()); d != "" {
			t.Fatalf("seed %d: open requests (-want +got):\n%s", seed, d)
		}
	}
}

func TestTakeSplitsAndEmpties(t *testing.T) {
	now := time.Unix(10, 0)
	o := NewOutbox(node)
	chain := make([]blockhash.Hash, 8000)
	for range 30 {
		o.Bound(now.Add(-20*time.Millisecond), wire.HintBound{Count: 8000}, chain)
	}
	for id := range uint64(500) {
		o.Over(now, id)
	}
	bound, over := 0, 0
	for i, p := range o.Take(now) {
		if len(p) > wire.MaxPacketBytes {
			t.Fatalf("packet of %d bytes", len(p))
		}
		_, m, err := wire.Decode(p)
		if err != nil {
			t.Fatal(err)
		}
		h := m.(*wire.Hint)
		if h.Number != uint64(i+1) {
			t.Errorf("packet %d has number %d", i, h.Number)
		}
		for _, b := range h.Bound {
			bound++
			if b.Age != 20*time.Millisecond || b.ID != uint64(bound) {
				t.Errorf("request %d: id %d, age %v", bound, b.ID, b.Age)
			}
		}
		over += len(h.Over)
	}
	if bound != 30 || over != 500 {
		t.Errorf("%d requests and %d ends of prefill went out, want 30 and 500", bound, over)
	}
	if !o.Empty() || o.Take(now) != nil {
		t.Error("something is left")
	}
}

func TestOutboxIsBounded(t *testing.T) {
	o := NewOutbox(node)
	for id := range uint64(maxPending + 10) {
		o.Ended(time.Unix(0, 0), id)
	}
	if len(o.ended) != maxPending || o.Dropped() != 10 || o.ended[0] != 10 {
		t.Errorf("%d kept from id %d on, %d dropped", len(o.ended), o.ended[0], o.Dropped())
	}
}

func TestBook(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var b Book[string]
	if b.Add(1, 1, "nobody", at(9)) {
		t.Error("a request of a gateway that was never heard")
	}
	b.Hear(at(0), 1, 5, 0)
	b.Hear(at(0), 1, 9, 0) // 6, 7, 8 are missing
	b.Hear(at(0), 1, 7, 0) // late
	if got := b.Stats().Lost; got != 2 {
		t.Errorf("%d packets lost, want 2", got)
	}
	b.Add(1, 1, "one", at(5))
	b.Add(1, 2, "two", at(9))
	if b.Add(1, 2, "two again", at(9)) {
		t.Error("a request was taken in twice")
	}
	if got := b.Expire(nil, at(5), func(string) bool { return true }); !slices.Equal(got, []string{"one"}) {
		t.Errorf("expired at 5: %v", got)
	}
	b.End(1, 3, at(20)) // its end came first
	if b.Add(1, 3, "three", at(9)) {
		t.Error("a request that has ended came back")
	}
	if got := b.Leave(nil, 1); !slices.Equal(got, []string{"two"}) || b.Gateways() != 0 {
		t.Errorf("left behind: %v", got)
	}
	for id := range uint64(MaxRequests + 1) {
		b.Hear(at(0), 2, 1, 0)
		b.Add(2, id, "many", at(30))
	}
	for n := range uint64(MaxGateways + 1) {
		b.Hear(at(0), n, 1, 0)
	}
	if got := b.Stats().Refused; got < 2 || b.Gateways() != MaxGateways {
		t.Errorf("refused %d, %d gateways", got, b.Gateways())
	}
}

// Gateways come and go under new names, and a last packet may come after the word that one has left.
func TestBookForgetsSilentGateways(t *testing.T) {
	now := time.Unix(100, 0)
	var b Book[string]
	for node := range uint64(MaxGateways) {
		b.Hear(now, node, 1, 0)
	}
	b.Add(0, 1, "stuck", now)
	b.Add(1, 1, "over", now)
	over := func(v string) bool { return v == "over" }
	if got := b.Expire(nil, now.Add(silence-1), over); !slices.Equal(got, []string{"over"}) || b.Gateways() != MaxGateways {
		t.Errorf("expired %v, %d gateways left", got, b.Gateways())
	}
	b.Hear(now.Add(silence), 2, 2, 0)
	b.Expire(nil, now.Add(silence), over)
	if _, ok := b.Get(0, 1); !ok || b.Gateways() != 2 {
		t.Errorf("%d gateways left, want the one that speaks and the one with a request", b.Gateways())
	}
	if !b.Hear(now.Add(silence), 1000, 1, 0) {
		t.Error("no room for a new gateway")
	}
}

func TestBefore(t *testing.T) {
	now := time.Unix(100, 0)
	var b Book[string]
	b.Hear(now, 10, 1, 2)
	b.Hear(now, 30, 1, 0)
	b.Hear(now, 50, 1, 4)
	b.Hear(now.Add(-heldFor), 20, 1, 9) // silent since
	same := func(node uint64) uint64 { return node }
	for _, test := range []struct {
		own          uint64
		all, holding int
	}{{5, 0, 0}, {20, 1, 1}, {40, 2, 1}, {60, 3, 2}} {
		if all, holding := b.Before(now, test.own, same); all != test.all || holding != test.holding {
			t.Errorf("before %d: %d gateways, %d hold requests; want %d, %d", test.own, all, holding, test.all, test.holding)
		}
	}
	if got := b.Held(now); got != 6 {
		t.Errorf("%d requests held, want 6: the silent gateway's do not count", got)
	}
}

func TestHeldIsSaidAgain(t *testing.T) {
	o := NewOutbox(node)
	now := time.Unix(100, 0)
	said := func(held int) int {
		t.Helper()
		o.Held(now, held)
		n := -1
		for _, p := range o.Take(now) {
			_, m, err := wire.Decode(p)
			if err != nil {
				t.Fatal(err)
			}
			n = int(m.(*wire.Hint).Held)
		}
		return n
	}
	for _, step := range []struct {
		wait time.Duration
		held int
		want int // in a packet; -1: none
		why  string
	}{
		{0, 0, -1, "nothing held, nothing to say"},
		{0, 3, 3, "the first"},
		{sayAgain / 2, 5, -1, "known to hold some"},
		{sayAgain / 2, 5, 5, "so that it is believed on"},
		{0, 0, 0, "none any more"},
		{time.Hour, 0, -1, "and none"},
	} {
		now = now.Add(step.wait)
		if got := said(step.held); got != step.want {
			t.Errorf("%s: %d held said, want %d", step.why, got, step.want)
		}
	}
}

func BenchmarkShared(b *testing.B) {
	chain := make([]blockhash.Hash, 2000)
	for i := range chain {
		chain[i] = blockhash.Hash(i) * 0x9e3779b97f4a7c15
	}
	p := points(chain, 100, 2000)
	var scratch []int
	b.ReportAllocs()
	for b.Loop() {
		_, scratch = Shared(chain, 100, 2000, p, scratch)
	}
}
