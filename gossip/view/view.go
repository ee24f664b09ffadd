// Package view merges the ticks of many agents into one picture of who holds which
// KV-cache blocks, and asks for what is missing. It is the gateway's side of the
// gossip protocol; docs/protocol.md has the rules.
//
// It owns the streams' state and the matrices. It owns no socket and no clock: one
// goroutine feeds it packets, membership and time, and sends what Poll returns.
// Readers on other goroutines take Snapshot and read the matrices in place.
//
//	v := view.New(view.Config{Node: "gateway-1", Pool: "llama"})
//	v.Apply(now, packet)              // for every packet
//	for _, out := range v.Poll(now) { // every Config.PollEvery
//		send(out.Node, out.Packet)
//	}
//	s := v.Snapshot()                 // any goroutine
package view

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

const (
	maxMissing  = 32                     // ticks missing beyond which segments are fetched
	maxKept     = 64                     // ticks kept per stream
	maxAsked    = 8                      // spans of missing ticks asked for at once
	maxGap      = time.Second            // a gap's age beyond which segments are fetched
	nackBackoff = 250 * time.Millisecond // doubles with each unanswered NACK
	maxBackoff  = 4 * time.Second
	helloSpread = 50 * time.Millisecond // first HELLOs are spread over it
	helloTries  = 8                     // unanswered HELLOs until the node is heard of again
	helloRest   = 10 * time.Second      // after which HELLOs begin anew, without backoff
	staleSpan   = time.Second           // window in which a mass staleness is counted
	staleShare  = 0.3                   // of the live endpoints
	timerSlack  = 200 * time.Millisecond
	clockSlack  = time.Second
	maxInterval = 10 * time.Second // believed of an announced interval; a fleet of 10,000 needs 5 s
)

// Config describes a View. Zero values take the defaults.
type Config struct {
	Node            string // own node name
	Pool            string // endpoints of other pools get no column; "": all pools are fine
	SeedFingerprint uint32 // blockhash.Hasher.Fingerprint of the pool's seed
	// Seed of the jitter of NACK and HELLO.
	Seed uint64

	// StaleAfter is the least age of the last tick at which a stream is stale; three
	// times the announced interval if that is more. Default 700 ms.
	StaleAfter time.Duration
	// PollEvery is how often the owner calls Poll, default 20 ms. A Poll that comes
	// more than 200 ms late freezes the view.
	PollEvery time.Duration
	// FreezeFor is how long the view mistrusts itself, default 3 s.
	FreezeFor time.Duration
	// GapHold is how long a gap may close by itself, default 60 ms.
	GapHold time.Duration
	// ForgetAfter is how long streams of a node that left are kept, default 10 s.
	ForgetAfter time.Duration

	NacksPerSec      int // default 200
	CheckWordsPerSec int // words of digests read for checksums, default 100,000: about 1 % of a core
	MaxStreams       int // default 4096
	MaxMatrixBytes   int // of all matrices, default 2 GiB
	MaxPendingBytes  int // of all ticks kept for repairs, default 32 MiB

	// OnChange, if set, is called by Apply when a stream's bits or facts changed.
	OnChange func(wire.Key)
}

func (c *Config) defaults() {
	duration := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	number := func(n *int, def int) {
		if *n <= 0 {
			*n = def
		}
	}
	duration(&c.StaleAfter, 700*time.Millisecond)
	duration(&c.PollEvery, 20*time.Millisecond)
	duration(&c.FreezeFor, 3*time.Second)
	duration(&c.GapHold, 60*time.Millisecond)
	duration(&c.ForgetAfter, 10*time.Second)
	number(&c.NacksPerSec, 200)
	number(&c.CheckWordsPerSec, 100_000)
	number(&c.MaxStreams, 4096)
	number(&c.MaxMatrixBytes, 2<<30)
	number(&c.MaxPendingBytes, 32<<20)
}

// ErrDropped is wrapped by Apply's errors about well-formed messages that the view
// did not take; the text begins with the reason under which Stats counts them.
var ErrDropped = errors.New("message dropped")

// View is the receiver's state. Apply, NodeUp, NodeDown and Poll are for one
// goroutine; Snapshot and Stats for any.
type View struct {
	cfg       Config
	self      uint64
	rng       *rand.Rand
	streams   map[wire.Key]*stream
	endpoints map[uint64]*endpoint
	nodes     map[uint64]*node
	order     []*stream // streams and nodes in the order they came, so that runs repeat
	nodeOrder []*node
	tables    map[shape]*table
	pending   int // bytes of kept ticks

	last      time.Time
	lastPoll  time.Time
	nacks     bucket
	checks    bucket
	wentStale []staleness
	frozenAt  time.Time // the time that readers go by while frozen
	frozen    time.Time // until; zero: not frozen

	dirty     bool // the snapshot misses something
	urgent    bool // readers hold a matrix that is no longer written
	published time.Time
	snapshot  atomic.Pointer[Snapshot]

	mu    sync.Mutex // guards stats
	stats Stats
}

// endpoint is what INFO says, shared by the streams of all ranks.
type endpoint struct {
	info *wire.Info
	node uint64
}

// New returns an empty View.
func New(cfg Config) *View {
	cfg.defaults()
	v := &View{
		cfg: cfg, self: wire.NodeHash(cfg.Node), rng: rand.New(rand.NewPCG(cfg.Seed, 0x76696577)),
		streams: make(map[wire.Key]*stream), endpoints: make(map[uint64]*endpoint),
		nodes: make(map[uint64]*node), tables: make(map[shape]*table),
		nacks:  bucket{rate: cfg.NacksPerSec, size: max(cfg.NacksPerSec/2, 1)},
		checks: bucket{rate: cfg.CheckWordsPerSec, size: cfg.CheckWordsPerSec},
		stats:  Stats{Drops: make(map[string]uint64), Problems: make(map[string]uint64)},
	}
	v.snapshot.Store(&Snapshot{})
	return v
}

// Apply takes one message, in any order, any number of times. An error says why a
// message was not taken, and is counted in Stats; it needs no other reaction.
func (v *View) Apply(now time.Time, packet []byte) error {
	now = v.clock(now)
	h, m, err := wire.Decode(packet)
	if err != nil {
		v.count(func(s *Stats) { s.Drops[wire.Reason(err)]++ })
		return err
	}
	n := v.node(now, h.Node)
	if n == nil {
		return v.drop("too many nodes", h)
	}
	n.heard = now
	switch m := m.(type) {
	case *wire.Tick:
		err = v.tick(now, h, m)
	case *wire.Segment:
		err = v.segment(now, h, m)
	case *wire.Info:
		err = v.info(now, h, m)
	default:
		err = v.drop("not for a gateway", h)
	}
	if v.urgent || v.dirty && now.Sub(v.published) >= v.cfg.PollEvery {
		v.publish(now)
	}
	return err
}

// info takes an INFO message: from the endpoint's node if it is newer, from another
// node if that has taken the endpoint over.
func (v *View) info(now time.Time, h wire.Header, in *wire.Info) error {
	v.nodes[h.Node].answered()
	id := in.Key(0).Endpoint
	e := v.endpoints[id]
	switch {
	case e == nil:
		if len(v.endpoints) >= v.cfg.MaxStreams {
			return v.drop("too many streams", h)
		}
		e = &endpoint{}
		v.endpoints[id] = e
	case e.node == h.Node && in.Version <= e.info.Version:
		return nil // again
	case e.node != h.Node && newestEpoch(in) < newestEpoch(e.info):
		return v.drop("old info", h)
	}
	e.info, e.node = in, h.Node
	v.dirty = true
	for _, r := range in.Ranks {
		key := wire.Key{Endpoint: id, Rank: r.Rank}
		s := v.streams[key]
		if s == nil {
			if s = v.newStream(key, r.Epoch, h.Node); s == nil {
				return v.drop("too many streams", h)
			}
		}
		if r.Epoch > s.epoch {
			v.restart(s, r.Epoch)
		}
		if r.Epoch == s.epoch {
			s.node = h.Node
		}
	}
	for _, s := range v.order {
		if s.key.Endpoint == id {
			s.wantInfo = false
			v.fit(s)
			v.settle(now, s)
			v.changed(s)
		}
	}
	return nil
}

func newestEpoch(in *wire.Info) (epoch uint64) {
	for _, r := range in.Ranks {
		epoch = max(epoch, r.Epoch)
	}
	return epoch
}

// NodeUp says that an agent is a member: its streams are kept, and it is asked for
// what is new.
func (v *View) NodeUp(now time.Time, name string) {
	now = v.clock(now)
	if n := v.node(now, wire.NodeHash(name)); n != nil {
		n.up = true
		v.hello(now, n)
	}
}

// NodeDown says that a member left or died. Its streams are forgotten some time
// later, unless it is heard of again; until then staleness alone judges them.
func (v *View) NodeDown(now time.Time, name string) {
	now = v.clock(now)
	if n := v.nodes[wire.NodeHash(name)]; n != nil && n.up {
		n.up, n.heard = false, now
	}
}

// clock returns the time to go by. Stamps that are a little out of order are held at
// the newest; when the clock was set back, every timer that this would leave in the
// future moves with it.
func (v *View) clock(now time.Time) time.Time {
	if !now.Before(v.last) {
		v.last = now
		return now
	}
	if v.last.Sub(now) < clockSlack {
		return v.last
	}
	v.last = now
	v.lastPoll, v.published, v.frozen, v.wentStale = now, now, time.Time{}, nil
	v.nacks.at, v.checks.at = now, now
	v.dirty = true
	for _, n := range v.nodeOrder {
		n.heard, n.helloAt, n.helloLast = earlier(n.heard, now), earlier(n.helloAt, now), earlier(n.helloLast, now)
	}
	for _, s := range v.order {
		s.askAt, s.gapSince = earlier(s.askAt, now), earlier(s.gapSince, now)
		if f := *s.live.Facts(); f.LastTick.After(now) {
			f.LastTick, f.LoadAt = now, earlier(f.LoadAt, now)
			s.live.facts.Store(&f)
		}
	}
	return now
}

func earlier(a, b time.Time) time.Time {
	if a.After(b) {
		return b
	}
	return a
}

func (v *View) changed(s *stream) {
	if v.cfg.OnChange != nil {
		v.cfg.OnChange(s.key)
	}
}

func (v *View) drop(reason string, h wire.Header) error {
	v.count(func(s *Stats) { s.Drops[reason]++ })
	return fmt.Errorf("%s: type %d of node %016x: %w", reason, h.Type, h.Node, ErrDropped)
}

func (v *View) count(f func(*Stats)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(&v.stats)
}

// bucket is a token bucket.
type bucket struct {
	rate   int // a second
	size   int
	tokens float64
	at     time.Time // zero: never used, full
}

func (b *bucket) refill(now time.Time) {
	if b.at.IsZero() {
		b.tokens = float64(b.size)
	} else if now.After(b.at) {
		b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*float64(b.rate), float64(b.size))
	}
	b.at = now
}
