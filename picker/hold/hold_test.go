package hold_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return t0.Add(d) }

// fleet prices by hand: what each request costs on each endpoint.
type fleet map[string][]score.Candidate

func (f fleet) price(_ time.Time, name string, _ bool) []score.Candidate {
	return slices.Clone(f[name])
}

// ready is an endpoint that would take ms of prefill now, at that price.
func ready(ms float64) score.Candidate {
	return score.Candidate{Ready: true, Cost: ms, Terms: score.Terms{Prefill: ms}, Uncached: int(10 * ms)}
}

// busy is one that is free after wait.
func busy(ms, wait float64) score.Candidate {
	return score.Candidate{Cost: ms, Wait: wait, Terms: score.Terms{Prefill: ms}, Uncached: int(10 * ms)}
}

func on(c ...score.Candidate) []score.Candidate {
	for i := range c {
		c[i].Index = i
	}
	return c
}

// all asks until nothing more may go.
func all(q *hold.Queue[string], now time.Time, f fleet) (got []string) {
	for b, ok := q.Next(now, true, f.price); ok; b, ok = q.Next(now, true, f.price) {
		got = append(got, fmt.Sprintf("%s:%v", b.Item.Value, b.Reason))
	}
	return got
}

func queue(change func(*hold.Config)) *hold.Queue[string] {
	cfg := hold.Default()
	cfg.MaxAge = 10 * time.Second
	if change != nil {
		change(&cfg)
	}
	return hold.New[string](cfg, score.Default())
}

func TestTakeOrWait(t *testing.T) {
	tests := []struct {
		name string
		why  string
		c    []score.Candidate
		age  time.Duration
		want int // endpoint, -1: wait
	}{
		{"idle", "a ready endpoint and nothing better", on(ready(100), ready(50)), 0, 1},
		{"none ready", "all are busy", on(busy(100, 20), busy(50, 20)), 0, -1},
		{"home is busy", "waiting for 300 ms of prefill at home is cheaper", on(ready(1000), busy(100, 300)), 0, -1},
		{"home is too busy", "waiting at home takes longer than computing anew", on(ready(1000), busy(100, 1200)), 0, 0},
		{"after a while", "10 s of waiting buy 500 ms of extra cost", on(ready(1000), busy(100, 500)), 10 * time.Second, 0},
		{"not quite", "8 s buy 400 ms, not enough for a difference of 450", on(ready(1000), busy(50, 500)), 8 * time.Second, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := queue(nil).Accept(tt.c, 1, tt.age); got != tt.want {
				t.Errorf("Accept = %d, want %d: %s", got, tt.want, tt.why)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	// Computing anew costs 400 ms more than waiting.
	c := on(ready(1000), busy(100, 500))
	for crowding, enough := range map[float64]time.Duration{
		0:   8 * time.Second,         // unknown: 0.05 a ms
		4:   8 * time.Second,         // never less
		2:   8 * time.Second,         // 0.03
		1:   1600 * time.Millisecond, // 0.25
		0.5: 200 * time.Millisecond,  // 2
	} {
		q := queue(nil)
		q.SetCrowding(crowding)
		if got := q.Accept(c, 1, enough-time.Millisecond); got != -1 {
			t.Errorf("crowding %v: endpoint %d after a little less than %v", crowding, got, enough)
		}
		if got := q.Accept(c, 1, enough); got != 0 {
			t.Errorf("crowding %v: endpoint %d after %v, want the ready one", crowding, got, enough)
		}
	}
}

func TestOrder(t *testing.T) {
	one := func(ms float64) []score.Candidate { return on(ready(ms)) }
	f := fleet{"short": one(100), "long": one(400), "longer": one(500), "home": on(ready(900), busy(50, 10))}
	tests := []struct {
		name  string
		items []hold.Item[string]
		now   time.Duration
		want  string
	}{
		{
			"shortest own prefill first",
			[]hold.Item[string]{{Value: "longer"}, {Value: "long"}, {Value: "short"}},
			time.Millisecond, "short long longer",
		},
		{
			"age makes up for length: 1.5 s are worth 262 ms, 3.0 s are worth 750",
			[]hold.Item[string]{{Value: "long", Arrived: at(1500 * time.Millisecond)}, {Value: "longer"}, {Value: "short", Arrived: at(3 * time.Second)}},
			3 * time.Second, "longer short long",
		},
		{
			"priority before length",
			[]hold.Item[string]{{Value: "short"}, {Value: "longer", Priority: 1}, {Value: "long"}},
			time.Millisecond, "longer short long",
		},
		{
			"who waits for a busy endpoint is in nobody's way",
			[]hold.Item[string]{{Value: "home", Priority: 9}, {Value: "short"}},
			time.Millisecond, "short",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			q := queue(nil)
			for i := range tt.items {
				if tt.items[i].Arrived.IsZero() {
					tt.items[i].Arrived = t0
				}
				q.Add(&tt.items[i])
			}
			got := strings.ReplaceAll(strings.Join(all(q, at(tt.now), f), " "), ":ready", "")
			if got != tt.want {
				t.Errorf("order %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFlowsShareByCountAndBytes(t *testing.T) {
	f := fleet{"x": on(ready(100))}
	q := queue(nil)
	add := func(flow string, n, bytes int) {
		for range n {
			q.Add(&hold.Item[string]{Value: "x", Flow: flow, Bytes: bytes, Arrived: t0})
		}
	}
	add("flood", 60, 0)
	add("bulk", 20, 3*64<<10) // each counts as 4 requests
	add("quiet", 10, 0)
	got := map[string]int{}
	for range 27 {
		b, ok := q.Next(t0, true, f.price)
		if !ok {
			t.Fatal("nothing may go")
		}
		got[b.Item.Flow]++
	}
	want := map[string]int{"flood": 14, "bulk": 3, "quiet": 10} // quiet has no more
	for name, n := range want {
		if d := got[name] - n; d < -1 || d > 1 {
			t.Errorf("of 27 turns got %v, want about %v", got, want)
			break
		}
	}
}

func TestNewFlowDoesNotWaitForAFlood(t *testing.T) {
	f := fleet{"x": on(ready(100)), "late": on(ready(5000))}
	q := queue(nil)
	for range 500 {
		q.Add(&hold.Item[string]{Value: "x", Flow: "flood", Arrived: t0})
	}
	for range 3 {
		q.Next(t0, true, f.price)
	}
	q.Add(&hold.Item[string]{Value: "late", Flow: "late", Arrived: t0})
	for i := range 2 {
		if b, _ := q.Next(t0, true, f.price); b.Item.Value == "late" {
			return
		} else if i == 1 {
			t.Error("the second flow's only request was not among the next two")
		}
	}
}

func TestBounds(t *testing.T) {
	waits := on(busy(100, 500), busy(300, 100))
	f := fleet{
		"a": waits, "b": waits, "c": waits, "d": waits, "shed": waits,
		"full": on(score.Candidate{Full: true}), "gone": nil,
		"idle": on(score.Candidate{Cost: 100, Idle: 6000}, score.Candidate{Cost: 90, Idle: 100}),
	}
	item := func(name string) *hold.Item[string] { return &hold.Item[string]{Value: name, Flow: name, Arrived: t0} }
	tests := []struct {
		name string
		cfg  func(*hold.Config)
		add  func(q *hold.Queue[string])
		want map[time.Duration]string
	}{
		{
			name: "age",
			add:  func(q *hold.Queue[string]) { q.Add(item("a")) },
			want: map[time.Duration]string{0: "", 9999 * time.Millisecond: "", 10 * time.Second: "a:expired"},
		},
		{
			name: "a quarter of the deadline",
			add: func(q *hold.Queue[string]) {
				it := item("a")
				it.Deadline = at(8 * time.Second)
				q.Add(it)
			},
			want: map[time.Duration]string{1999 * time.Millisecond: "", 2 * time.Second: "a:expired"},
		},
		{
			name: "a deadline in the past",
			add: func(q *hold.Queue[string]) {
				it := item("a")
				it.Deadline = at(-time.Second)
				q.Add(it)
			},
			want: map[time.Duration]string{0: "a:expired"},
		},
		{
			name: "off",
			cfg:  func(c *hold.Config) { c.MaxAge = 0 },
			add:  func(q *hold.Queue[string]) { q.Add(item("a")) },
			want: map[time.Duration]string{0: "a:expired"},
		},
		{
			name: "count: the flow with most requests makes room, oldest first",
			cfg:  func(c *hold.Config) { c.MaxRequests = 3 },
			add: func(q *hold.Queue[string]) {
				for i, name := range []string{"a", "b", "c", "d"} {
					it := item(name)
					it.Flow = "flood"
					if name == "a" {
						it.Flow = "quiet"
					}
					it.Arrived = at(time.Duration(i))
					q.Add(it)
				}
			},
			want: map[time.Duration]string{0: "b:crowded"},
		},
		{
			name: "bytes: the flow with most bytes makes room",
			cfg:  func(c *hold.Config) { c.MaxBytes = 1000 },
			add: func(q *hold.Queue[string]) {
				for name, bytes := range map[string]int{"a": 300, "b": 600, "c": 200} {
					it := item(name)
					it.Bytes = bytes
					q.Add(it)
				}
			},
			want: map[time.Duration]string{0: "b:crowded"},
		},
		{
			name: "count: lowest priority first",
			cfg:  func(c *hold.Config) { c.MaxRequests = 1 },
			add: func(q *hold.Queue[string]) {
				a, b := item("a"), item("b")
				a.Flow, b.Flow, a.Priority = "", "", 1
				q.Add(a)
				q.Add(b)
			},
			want: map[time.Duration]string{0: "b:crowded"},
		},
		{
			name: "sheddable",
			add: func(q *hold.Queue[string]) {
				it := item("shed")
				it.Sheddable = true
				q.Add(it)
			},
			want: map[time.Duration]string{9 * time.Second: "", 10 * time.Second: "shed:shed"},
		},
		{
			name: "sheddable, off",
			cfg:  func(c *hold.Config) { c.ShedAfter = 0 },
			add: func(q *hold.Queue[string]) {
				it := item("shed")
				it.Sheddable = true
				q.Add(it)
			},
			want: map[time.Duration]string{0: "shed:shed"},
		},
		{
			name: "an endpoint that gets nothing is tried",
			cfg:  func(c *hold.Config) { c.MaxAge, c.DoubtAfter = time.Hour, 5*time.Second },
			add:  func(q *hold.Queue[string]) { q.Add(item("idle")) },
			want: map[time.Duration]string{4 * time.Second: "", 5 * time.Second: "idle:ready"},
		},
		{
			name: "bound queues at their limit",
			add:  func(q *hold.Queue[string]) { q.Add(item("full")) },
			want: map[time.Duration]string{9 * time.Second: "", 10 * time.Second: "full:full"},
		},
		{
			name: "no endpoint left",
			add:  func(q *hold.Queue[string]) { q.Add(item("gone")) },
			want: map[time.Duration]string{0: "gone:orphaned"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for when, want := range tt.want {
				q := queue(tt.cfg)
				tt.add(q)
				if got := strings.Join(all(q, at(when), f), " "); got != want {
					t.Errorf("after %v: %q, want %q", when, got, want)
				}
			}
		})
	}
}

// The requests that came first wait for an endpoint that is busy; one far behind them could have one that is free.
func TestOthersAreLookedAtInTurn(t *testing.T) {
	q := queue(func(c *hold.Config) { c.MaxScan = 6 })
	prices := fleet{}
	for i := range 50 {
		name := fmt.Sprint(i)
		prices[name] = on(ready(5000), busy(10, 100))
		q.Add(&hold.Item[string]{Value: name, Arrived: at(time.Duration(i) * time.Millisecond)})
	}
	prices["40"] = on(ready(10), busy(10, 100))
	looks := 0
	for ; looks < 50; looks++ {
		if b, ok := q.Next(at(sec), true, prices.price); ok {
			if b.Item.Value != "40" {
				t.Fatalf("request %s was bound", b.Item.Value)
			}
			break
		}
	}
	if looks == 0 || looks >= 30 {
		t.Errorf("request 40 was found at look %d, want it within 23 and not in the first", looks)
	}
}

func TestExpiredIsBoundByWaitAndCost(t *testing.T) {
	q := queue(nil)
	q.Add(&hold.Item[string]{Value: "a", Arrived: t0})
	b, ok := q.Next(at(10*time.Second), true, fleet{"a": on(busy(100, 500), busy(300, 100), busy(90, 900))}.price)
	if !ok || b.Candidate.Index != 1 {
		t.Errorf("bound to endpoint %d, want 1, which has the least wait + cost", b.Candidate.Index)
	}
}

func TestDrain(t *testing.T) {
	waits := on(busy(100, 500))
	f := fleet{"a": waits, "b": waits, "c": waits}
	q := queue(nil)
	q.Add(&hold.Item[string]{Value: "b", Arrived: at(1), Sheddable: true})
	q.Add(&hold.Item[string]{Value: "a", Arrived: at(0), Flow: "other"})
	if got := all(q, at(time.Second), f); got != nil {
		t.Fatalf("bound %v before the drain", got)
	}
	q.Drain(true)
	if diff := cmp.Diff([]string{"a:drained", "b:drained"}, all(q, at(time.Second), f)); diff != "" {
		t.Errorf("drain (-want +got):\n%s", diff)
	}
	q.Add(&hold.Item[string]{Value: "c", Arrived: at(time.Second)})
	if diff := cmp.Diff([]string{"c:drained"}, all(q, at(time.Second), f)); diff != "" {
		t.Errorf("arrival after drain (-want +got):\n%s", diff)
	}
}

func TestRemoveAndSums(t *testing.T) {
	q := queue(nil)
	a := &hold.Item[string]{Value: "a", Flow: "x", Arrived: t0, Bytes: 10}
	b := &hold.Item[string]{Value: "b", Flow: "y", Arrived: at(time.Second), Bytes: 20}
	q.Add(a)
	q.Add(b)
	q.Next(at(time.Second), true, fleet{"a": on(busy(100, 500), busy(70, 900)), "b": on(busy(30, 500))}.price)
	want := hold.Waiting{Requests: 2, Bytes: 30, UncachedTokens: 1000, Work: 100 * time.Millisecond}
	if diff := cmp.Diff(want, q.Waiting()); diff != "" {
		t.Errorf("waiting (-want +got):\n%s", diff)
	}
	if got, want := q.Due(), at(10*time.Second); !got.Equal(want) {
		t.Errorf("due %v, want %v", got, want)
	}
	if !q.Remove(a) || q.Remove(a) {
		t.Error("Remove: want true the first time, false the second")
	}
	if q.Len() != 1 || !q.Due().Equal(at(11*time.Second)) {
		t.Errorf("after Remove: %d wait, due %v", q.Len(), q.Due())
	}
	q.Remove(b)
	if q.Len() != 0 || !q.Due().IsZero() || q.Waiting() != (hold.Waiting{}) {
		t.Errorf("empty queue: %+v, due %v", q.Waiting(), q.Due())
	}
}

// Nothing gets lost, whatever order of arrivals, removals and opportunities.
func TestEveryRequestEndsOnce(t *testing.T) {
	f := fleet{}
	q := queue(func(c *hold.Config) { c.MaxRequests, c.MaxScan = 40, 7 })
	ended := map[string]int{}
	for i := range 400 {
		name := fmt.Sprint(i)
		f[name] = on(busy(float64(50+i*37%500), 10000))
		q.Add(&hold.Item[string]{
			Value: name, Flow: fmt.Sprint(i % 11), Priority: i % 3, Bytes: i * 1000, Arrived: at(time.Duration(i) * 20 * time.Millisecond),
		})
		if i%5 == 0 {
			f[name] = on(ready(float64(50 + i*37%500)))
		}
		for b, ok := q.Next(at(time.Duration(i)*20*time.Millisecond), i%2 == 0, f.price); ok; b, ok = q.Next(at(time.Duration(i)*20*time.Millisecond), i%2 == 0, f.price) {
			ended[b.Item.Value]++
		}
	}
	for b, ok := q.Next(at(time.Hour), true, f.price); ok; b, ok = q.Next(at(time.Hour), true, f.price) {
		ended[b.Item.Value]++
	}
	for name := range f {
		if ended[name] != 1 {
			t.Errorf("request %s ended %d times", name, ended[name])
		}
	}
}
