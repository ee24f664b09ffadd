package picker

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// gateways are several stepped pickers that hear the same agents and each other.
type gateways struct {
	t      *testing.T
	now    time.Time
	all    []*Stepped
	agents []*agent
}

func newGateways(t *testing.T, n, agents int) *gateways {
	g := &gateways{t: t, now: time.Unix(1000, 0)}
	for i := range n {
		cfg := Default()
		cfg.Gossip.NodeName = fmt.Sprintf("gateway-%d", i)
		s, err := NewStepped(cfg, g.now, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		g.all = append(g.all, s)
	}
	for i := range agents {
		a := (&fleet{Picker: g.all[0].picker, t: t}).newAgent(i)
		a.clock = g.now
		g.agents = append(g.agents, a)
		for _, s := range g.all {
			if err := s.Hear(g.now, a.info.Append(nil, wire.NodeHash(a.info.Node))); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.tick()
	return g
}

// tick lets every agent say its load.
func (g *gateways) tick() {
	for _, a := range g.agents {
		a.pub.SetLoad(g.now, a.load)
		for _, b := range a.pub.Ticks(g.now) {
			for _, s := range g.all {
				if err := s.Hear(g.now, b); err != nil {
					g.t.Fatal(err)
				}
			}
		}
	}
	for _, s := range g.all {
		s.Ask(g.now)
		s.Step(g.now)
	}
}

// pass lets time go by and the gateways tell each other.
func (g *gateways) pass(d time.Duration) {
	g.now = g.now.Add(d)
	for i, s := range g.all {
		packets, _ := s.Tell(g.now)
		for j, other := range g.all {
			for _, b := range packets {
				if j == i {
					continue
				}
				if err := other.Hear(g.now, b); err != nil {
					g.t.Fatal(err)
				}
			}
		}
	}
	g.tick()
}

// submit hands a request to a gateway. The decision's reason is empty as long as the request is held.
func (g *gateways) submit(gateway int, id string, tokens []uint32) *Decision {
	d := new(Decision)
	g.all[gateway].Submit(g.now, Request{ID: id, TokenIDs: tokens}, func(got Decision, err error) {
		if err != nil {
			g.t.Errorf("%s: %v", id, err)
		}
		*d = got
	})
	return d
}

func (g *gateways) endpoint(gateway int, id string) EndpointStatus {
	for _, e := range g.all[gateway].picker.Status().Endpoints {
		if e.ID == id {
			return e
		}
	}
	g.t.Fatalf("gateway %d has no endpoint %s", gateway, id)
	return EndpointStatus{}
}

func TestGatewaysKnowEachOthersRequests(t *testing.T) {
	g := newGateways(t, 2, 2)
	first := g.submit(0, "first", prompt(1, 8000))
	g.pass(hintPause)
	if e := g.endpoint(1, first.Endpoint.ID); e.Others != 1 || e.Prefills != 1 || e.QueueMs <= 0 || e.Outstanding != 0 {
		t.Fatalf("the other gateway sees %+v", e)
	}
	second := g.submit(1, "second", prompt(2, 8000))
	if second.Endpoint.ID == "" || second.Endpoint.ID == first.Endpoint.ID {
		t.Fatalf("the second request went to %q, want the endpoint that is free", second.Endpoint.ID)
	}
	g.pass(hintPause)
	third := g.submit(0, "third", prompt(3, 8000))
	if third.Reason != "" {
		t.Fatalf("the third request went to %q, but both endpoints are busy", third.Endpoint.ID)
	}
	g.pass(200 * time.Millisecond)
	g.all[1].FirstToken(g.now, *second)
	if g.pass(hintPause); third.Endpoint.ID != "" && third.Endpoint.ID != second.Endpoint.ID {
		t.Errorf("the third request went to %s, want %s, whose prefill is over", third.Endpoint.ID, second.Endpoint.ID)
	}
	if g.pass(2 * turnPause); third.Endpoint.ID != second.Endpoint.ID {
		t.Errorf("the third request went to %q, want %s", third.Endpoint.ID, second.Endpoint.ID)
	}
	g.all[0].Done(g.now, *first, Outcome{Status: 200, Connected: true, CachedTokens: -1})
	g.all[1].Done(g.now, *second, Outcome{Status: 200, Connected: true, CachedTokens: -1})
	g.pass(hintPause)
	for i := range g.all {
		for _, a := range []string{first.Endpoint.ID, second.Endpoint.ID} {
			want := 0
			if e := g.endpoint(i, a); i == 1 && a == third.Endpoint.ID {
				want = 1
			} else if e.Others != want {
				t.Errorf("gateway %d still counts %d requests of others on %s", i, e.Others, a)
			}
		}
	}
}

// TestWorkWeighsMoreWhereMoreWaits: what a choice adds for others counts the more the more endpoints are at work and the more
// requests are held, by any gateway.
func TestWorkWeighsMoreWhereMoreWaits(t *testing.T) {
	g := newGateways(t, 2, 4)
	weighs := func(want float64, when string) {
		t.Helper()
		r, err := g.all[0].picker.Explain(t.Context(), Request{ID: "x", TokenIDs: prompt(99, 8000)})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Candidates[0].Spread / r.Candidates[0].Prefill; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s it counts %v times, want %v", when, got, want)
		}
	}
	weighs(leastCrowding, "with nothing to do")
	shared := prompt(1, 8000)
	g.submit(1, "first", shared)
	if s := g.submit(1, "second", append(append([]uint32(nil), shared[:7680]...), prompt(2, 320)...)); s.Reason != "" {
		t.Fatalf("the second request went to %s at once", s.Endpoint.ID)
	}
	g.pass(hintPause)
	weighs(1/3.+2/4., "with one of 4 endpoints at work and one request held for it, at the other gateway,")
	for i := range 100 {
		g.submit(0, fmt.Sprint("more ", i), prompt(uint64(100+i), 8000))
	}
	g.pass(time.Millisecond)
	weighs(mostCrowding, "with many held")
}

func TestCrowding(t *testing.T) {
	for _, tt := range []struct {
		endpoints, open, held int
		want                  float64
	}{
		{8, 8, 0, leastCrowding},
		{8, 7, 0, leastCrowding},
		{8, 4, 0, 1},
		{8, 2, 0, 3},
		{8, 1, 0, mostCrowding},
		{8, 0, 0, mostCrowding},
		{8, 8, 4, 1},
		{8, 4, 8, 3},
		{8, 8, 1000, mostCrowding},
		{0, 0, 0, mostCrowding},
	} {
		if got := crowding(tt.endpoints, tt.open, tt.held); got != tt.want {
			t.Errorf("%d of %d endpoints open, %d held: %v, want %v", tt.open, tt.endpoints, tt.held, got, tt.want)
		}
	}
}

func TestGatewaysMarkForEachOther(t *testing.T) {
	g := newGateways(t, 2, 2)
	shared := prompt(1, 8000)
	first := g.submit(0, "first", shared)
	g.pass(hintPause)
	// The same beginning, and 320 tokens of its own: cheaper to wait for the endpoint that computes it.
	second := g.submit(1, "second", append(append([]uint32(nil), shared[:7680]...), prompt(2, 320)...))
	if second.Reason != "" {
		t.Fatalf("the second request went to %s at once; the first is on %s", second.Endpoint.ID, first.Endpoint.ID)
	}
	g.pass(100 * time.Millisecond)
	g.all[0].FirstToken(g.now, *first)
	g.pass(hintPause)
	if g.pass(2 * turnPause); second.Endpoint.ID != first.Endpoint.ID {
		t.Fatalf("the second request went to %q, want %s", second.Endpoint.ID, first.Endpoint.ID)
	}
	if got, want := second.MatchedBlocks, 7680/blockSize; got < want*9/10 || got > want {
		t.Errorf("%d blocks matched, %d are shared", got, want)
	}
}

// Two gateways that choose in the same moment, before one hears of the other, choose different endpoints of several that are
// free, as long as each has one whose turn is its own.
func TestGatewaysShareFreeEndpoints(t *testing.T) {
	g := newGateways(t, 2, 8)
	apart := 0
	for round := range uint64(20) {
		var turns [2]int
		for i, s := range g.all {
			for _, e := range s.picker.table.Load().endpoints {
				if others, _ := s.picker.turn(g.now, e); others == 0 {
					turns[i]++
				}
			}
		}
		a, b := g.submit(0, "a", prompt(2*round, 2000)), g.submit(1, "b", prompt(2*round+1, 2000))
		if round > 0 && turns[0] > 0 && turns[1] > 0 { // in the first they don't know of each other
			if apart++; a.Endpoint.ID == b.Endpoint.ID {
				t.Errorf("round %d: both went to %s", round, a.Endpoint.ID)
			}
		}
		g.pass(hintPause)
		for i, d := range []*Decision{a, b} {
			g.all[i].FirstToken(g.now, *d)
			g.all[i].Done(g.now, *d, Outcome{Status: 200, Connected: true, CachedTokens: -1})
		}
		g.pass(hintPause)
		g.now = g.now.Add(900 * time.Millisecond)
		g.tick()
	}
	if apart < 10 {
		t.Errorf("only %d rounds with a turn for both", apart)
	}
}

func TestGatewayForgetsAnother(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func(g *gateways)
	}{
		{"its requests' time is over", func(g *gateways) { g.pass(10 * time.Second) }},
		{"it has left", func(g *gateways) {
			(*listener)(g.all[1].picker).NodeDown(g.now, mesh.Member{Role: mesh.RolePicker, Hash: g.all[0].picker.hints.node})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newGateways(t, 2, 1)
			d := g.submit(0, "first", prompt(1, 8000))
			if g.pass(hintPause); g.endpoint(1, d.Endpoint.ID).Others != 1 {
				t.Fatal("nothing was heard of the request")
			}
			test.do(g)
			if e := g.endpoint(1, d.Endpoint.ID); e.Others != 0 || e.Prefills != 0 {
				t.Errorf("%d requests and %d prefills of it still count", e.Others, e.Prefills)
			}
		})
	}
}

// Word of an end may be lost. A request may then be stuck in an engine where others wait, but not for ever.
func TestLostEndIsNotWaitedForForEver(t *testing.T) {
	g := newGateways(t, 1, 1)
	s, a := g.all[0], g.agents[0]
	a.load.Waiting = 5
	g.pass(250 * time.Millisecond)
	lost := wire.Hint{Number: 1, Bound: []wire.HintBound{{ID: 1, Key: a.info.Key(0), PromptTokens: 8000, Told: true}}}
	if err := s.Hear(g.now, lost.Append(nil, 5)); err != nil {
		t.Fatal(err)
	}
	g.pass(hintStuck / 2)
	if e := g.endpoint(0, id(0)); e.Others != 1 {
		t.Fatalf("%d requests of others count, want the one that may be stuck", e.Others)
	}
	g.pass(hintStuck / 2)
	if e := g.endpoint(0, id(0)); e.Others != 0 {
		t.Errorf("%d requests of others still count", e.Others)
	}
}

// Nor does an endpoint seem free whose agent says nonsense of its engine's speed.
func TestNonsenseSpeedIsBounded(t *testing.T) {
	for name, bind := range map[string]func(g *gateways){
		"another's request": func(g *gateways) {
			b := wire.Hint{Number: 1, Bound: []wire.HintBound{{ID: 1, Key: g.agents[0].info.Key(0), PromptTokens: 8000, Told: true}}}
			if err := g.all[0].Hear(g.now, b.Append(nil, 5)); err != nil {
				t.Fatal(err)
			}
		},
		"an own one": func(g *gateways) { g.submit(0, "own", prompt(1, 8000)) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateways(t, 1, 1)
			g.agents[0].load.PrefillPerToken = 1e30
			g.pass(250 * time.Millisecond)
			if bind(g); g.endpoint(0, id(0)).QueueMs < ms(hintWork) {
				t.Errorf("busy for %v ms", g.endpoint(0, id(0)).QueueMs)
			}
		})
	}
}

// A gateway that says nonsense keeps an endpoint busy for a while, not for ever.
func TestHintedWorkIsBounded(t *testing.T) {
	g := newGateways(t, 1, 1)
	s := g.all[0]
	key := g.agents[0].info.Key(0)
	huge := wire.Hint{Number: 1, Bound: []wire.HintBound{{ID: 1, Key: key, PromptTokens: wire.MaxHintTokens, Told: true}}}
	if err := s.Hear(g.now, huge.Append(nil, 5)); err != nil {
		t.Fatal(err)
	}
	id := id(0)
	if e := g.endpoint(0, id); e.Others != 1 || e.QueueMs != ms(hintWork) {
		t.Errorf("%d requests of others, busy for %v ms", e.Others, e.QueueMs)
	}
	g.pass(2*hintWork + hintTail)
	if e := g.endpoint(0, id); e.Others != 0 || e.QueueMs != 0 {
		t.Errorf("later: %d requests of others, busy for %v ms", e.Others, e.QueueMs)
	}
}

func TestBadHintsAreCounted(t *testing.T) {
	g := newGateways(t, 2, 1)
	s := g.all[1]
	elsewhere := wire.Hint{Number: 1, Bound: []wire.HintBound{{ID: 1, Key: wire.Key{Endpoint: 99}}}}
	if err := s.Hear(g.now, elsewhere.Append(nil, 5)); err != nil {
		t.Error(err)
	}
	cut := elsewhere.Append(nil, 5)
	if err := s.Hear(g.now, cut[:len(cut)-3]); err == nil {
		t.Error("a packet cut short is no error")
	}
	own := wire.Hint{Number: 1, Ended: []uint64{1}}
	if err := s.Hear(g.now, own.Append(nil, s.picker.hints.node)); err != nil {
		t.Error(err)
	}
	got := s.picker.hints.status()
	if got.Unknown != 1 || got.Unread != 1 || got.Received != 1 {
		t.Errorf("counts %+v, want one unknown endpoint, one packet unread, one received", got)
	}
}
