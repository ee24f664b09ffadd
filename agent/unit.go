package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
	"github.com/grapevine-llm/grapevine/agent/zmqsub"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

const (
	engineTimeout = 5 * time.Second  // of one question to the engine
	factsEvery    = 15 * time.Second // between looks for new adapters
	snapshotEvery = 30 * time.Second
	// downAfter is how many scrapes in a row must fail before the engine counts as
	// down; an engine under load answers late now and then. One that took the whole
	// engineTimeout is enough: requests would find the engine as stuck.
	downAfter = 3
	// packetsPerPicker: with n agents each sends no more often than every n times this.
	packetsPerPicker = 500 * time.Microsecond
)

// unit is one engine's share of the agent: a node of the mesh, a stream for each
// rank, and what drives them.
type unit struct {
	cfg     Config
	log     *slog.Logger
	engine  string // base URL
	hasher  blockhash.Hasher
	mesh    *mesh.Mesh
	client  *enginemetrics.Client
	scraper *enginemetrics.Scraper
	wake    chan struct{} // capacity 1: something may be due
	relearn chan struct{} // capacity 1: ask the engine for its facts
	ready   func(blocks uint32)
	lag     prometheus.Histogram
	beat    atomic.Int64 // unix nanoseconds: the send loop's last turn

	mu       sync.Mutex // guards what follows
	streams  map[uint16]*stream
	subs     map[uint16]*zmqsub.Subscriber
	pickers  map[uint64]mesh.Member
	agents   int // other agents in the mesh
	tracker  *enginemetrics.Tracker
	last     *enginemetrics.Sample
	asked    time.Time // for last
	failures int
	up       bool
	draining bool
	silence  silence
	events   uint64 // batches received
	facts    facts
	kvEvents string    // state of the engine's events
	info     wire.Info // as last announced
	health   wire.Health
	hasGPU   bool
	budget   budget
	sentAt   time.Time // of the last round of ticks
	counts   counts
}

// facts are what the engine says of itself but for its metrics.
type facts struct {
	models   []enginemetrics.Model
	version  string
	kvEvents string // for the INFO
}

// counts are counters for the metrics.
type counts struct {
	scrapes, scrapeErrors, scrapeBytes uint64
	scrapeTook, scrapeParse            time.Duration
	packets, packetBytes, sendErrors   uint64
	nacks, hellos, infos, badMessages  uint64
}

func newUnit(cfg Config, i int, hasher blockhash.Hasher, ready func(uint32)) (*unit, error) {
	engine, err := baseURL(cfg.Engine[i])
	if err != nil {
		return nil, err
	}
	u := &unit{
		cfg: cfg, engine: engine, hasher: hasher, ready: ready,
		log:     cfg.Logger.With(slog.String(keyEngine, engine)),
		client:  enginemetrics.NewClient(engine, engineTimeout).WithKey(string(cfg.EngineKey)),
		wake:    make(chan struct{}, 1),
		relearn: make(chan struct{}, 1),
		streams: make(map[uint16]*stream),
		subs:    make(map[uint16]*zmqsub.Subscriber),
		pickers: make(map[uint64]mesh.Member),
		tracker: enginemetrics.NewTracker(),
		lag:     newLag(engine),
	}
	u.scraper = enginemetrics.NewScraper(u.client, enginemetrics.ScraperConfig{})
	m, err := cfg.mesh(i)
	if err != nil {
		return nil, err
	}
	m.NodeName = mesh.UniqueName(cfg.NodeName)
	m.SeedFingerprint = hasher.Fingerprint()
	m.Handler = u
	m.Logger = cfg.Logger
	if u.mesh, err = mesh.New(m); err != nil {
		return nil, err
	}
	configured := ""
	if len(cfg.Address) > 0 {
		configured = cfg.Address[i]
	}
	u.info = wire.Info{
		Node: m.NodeName, Pool: cfg.Pool, Pod: cfg.Pod,
		Address: announced(configured, engine, u.mesh.LocalAddr()),
		// Rises over restarts too, as long as fewer than one change a second happens.
		Version:         uint32(time.Now().Unix()),
		SeedFingerprint: hasher.Fingerprint(),
	}
	u.kvEvents = "waiting for the engine"
	u.budget.perSec = float64(cfg.Digest.BytesPerSec)
	return u, nil
}

// run serves the engine until ctx ends; then it says that it drains and leaves.
func (u *unit) run(ctx context.Context) error {
	defer u.client.Close()
	// The mesh outlives ctx by the time that draining takes.
	late, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	g, late := errgroup.WithContext(late)
	g.Go(func() error { return u.mesh.Run(late) })
	g.Go(func() error { u.sendLoop(late); return nil })
	g.Go(func() error {
		following, stop := context.WithCancel(ctx)
		defer context.AfterFunc(late, stop)() // the mesh failed
		inner, innerCtx := errgroup.WithContext(following)
		inner.Go(func() error { return ignoreEnd(innerCtx, u.scraper.Run(innerCtx, u.scraped)) })
		inner.Go(func() error { u.follow(innerCtx); return nil })
		inner.Go(func() error { u.snapshotLoop(innerCtx); return nil })
		err := inner.Wait()
		u.drain(late)
		leave()
		return err
	})
	return ignoreEnd(ctx, g.Wait())
}

// ignoreEnd turns the error that comes of ctx's end into nil.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (u *unit) poke() { signal(u.wake) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// drain tells the gateways that the endpoint takes nothing new, for a while.
func (u *unit) drain(ctx context.Context) {
	u.mu.Lock()
	u.draining = true
	u.flags()
	u.announce()
	u.mu.Unlock()
	u.log.Info("draining, gateways are told")
	u.poke()
	select {
	case <-ctx.Done():
	case <-time.After(u.cfg.DrainFor):
	}
}

// flags sets the streams' flags; the caller holds mu.
func (u *unit) flags() {
	for _, s := range u.streams {
		var f wire.Flags
		if u.draining {
			f |= wire.Draining
		}
		if !u.up {
			f |= wire.EngineDown
		}
		if asleep(rankOf(u.last, int(s.cfg.key.Rank))) {
			f |= wire.Asleep
		}
		s.flags = f
	}
}

// scraped takes one scrape.
func (u *unit) scraped(sc enginemetrics.Scrape) {
	u.mu.Lock()
	defer u.mu.Unlock()
	defer u.poke()
	u.counts.scrapes++
	u.counts.scrapeBytes += uint64(sc.Bytes)
	u.counts.scrapeTook += sc.Took
	u.counts.scrapeParse += sc.Parse
	if sc.Err != nil {
		u.counts.scrapeErrors++
		u.failures++
		if u.up && sc.Took >= engineTimeout {
			u.failures = max(u.failures, downAfter)
		}
		u.engineDown(sc.Err)
		return
	}
	u.failures = 0
	now := sc.At
	before := u.last
	u.last, u.asked = sc.Sample, now.Add(-sc.Took)
	change := u.tracker.Observe(now, sc.Sample)
	if !u.up {
		u.up = true
		u.log.Info("engine is there", slog.String(keyModel, sc.Sample.Ranks[0].Model), slog.Int(keyBlocks, sc.Sample.Ranks[0].Cache.NumBlocks))
		signal(u.relearn)
		u.ready(clampUint32(sc.Sample.Ranks[0].Cache.NumBlocks))
	}
	if change.Restarted {
		u.log.Warn("engine restarted", slog.String(keyReason, change.Reason))
		u.silence = silence{}
		signal(u.relearn)
		u.ready(clampUint32(sc.Sample.Ranks[0].Cache.NumBlocks))
	}
	var computed uint64
	for i := range sc.Sample.Ranks {
		r := &sc.Sample.Ranks[i]
		computed += r.Counters.PromptTokens - min(r.Counters.PrefixHitTokens, r.Counters.PromptTokens)
		s := u.streams[uint16(r.Rank)]
		if s == nil {
			continue
		}
		u.ask(s, s.processStart(now, sc.Sample.ProcessStart))
		u.ask(s, s.verify(now))
		s.setBlocks(now, r.Cache.NumBlocks)
		if asleep(r) && !asleep(rankOf(before, r.Rank)) {
			u.log.Warn("engine sleeps, its cache is gone", slog.Int(keyRank, r.Rank))
			s.cleared(now)
		}
		s.setLoad(now, u.asked, r, u.tracker.Prefill(r.Rank), u.tracker.Decode(r.Rank))
	}
	silent := len(u.subs) > 0 && u.silence.observe(now, computed, u.events, sc.Sample.Ranks[0].Cache.BlockSize)
	u.judgeEvents(silent)
	u.flags()
	u.announce()
}

// rankOf finds a rank in a sample, nil if it is not there.
func rankOf(s *enginemetrics.Sample, rank int) *enginemetrics.Rank {
	if s == nil {
		return nil
	}
	for i := range s.Ranks {
		if s.Ranks[i].Rank == rank {
			return &s.Ranks[i]
		}
	}
	return nil
}

func asleep(r *enginemetrics.Rank) bool { return r != nil && r.Sleep != enginemetrics.Awake }

// engineDown says once that the engine does not answer; the caller holds mu.
func (u *unit) engineDown(err error) {
	switch {
	case u.last == nil && u.failures == 1:
		u.log.Info("waiting for the engine", slog.Any(keyErr, err))
		u.announce()
	case u.up && u.failures >= downAfter:
		u.up = false
		u.log.Warn("engine does not answer any more, trying again", slog.Any(keyErr, err))
		u.flags()
		u.announce()
	}
}

// subscription runs one rank's sockets and applies what comes.
func (u *unit) subscription(ctx context.Context, s *stream, sub *zmqsub.Subscriber) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return sub.Run(ctx) })
	g.Go(func() error {
		for e := range sub.Events() {
			u.event(s, sub, e)
		}
		return nil
	})
	return g.Wait()
}

func (u *unit) event(s *stream, sub *zmqsub.Subscriber, e zmqsub.Event) {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	rank := slog.Int(keyRank, int(s.cfg.key.Rank))
	restarts, partial, suspect := s.restarts, s.set.Partial(), s.set.Suspect()
	rankInfo, blockSize, kvEvents := s.rankInfo(), s.set.BlockSize(), u.kvEvents
	var r request
	switch e.Kind {
	case zmqsub.Connected:
		u.log.Info("listening to KV events", rank)
		r = s.connected(now)
	case zmqsub.Disconnected:
		u.log.Warn("KV-event connection lost, trying again", rank)
		return
	case zmqsub.Live:
		u.events++
		r = s.live(now, e.Message.Seq, e.Message.Payload)
		if at, ok := batchTime(e.Message.Payload); ok {
			u.lag.Observe(max(0, now.Sub(at).Seconds()))
		}
		u.scraper.Wake()
	case zmqsub.Replayed:
		u.events++
		r = s.replayed(now, e.Message.Seq, e.Message.Payload)
	case zmqsub.ReplayDone:
		if !e.Replay.Answered {
			u.log.Warn("engine did not answer a replay request", rank, slog.String(keyRemedy, "give the engine a replay_endpoint in --kv-events-config and, for engines that do not tell it, the agent --kv-events-replay"))
		}
		r = s.replayEnd(now, e.Replay.Complete)
	}
	u.ask(s, r)
	if s.restarts != restarts {
		u.log.Warn("engine restarted, its cache is empty", rank, slog.Uint64(keyEpoch, s.pub.Epoch()))
	}
	if !partial && s.set.Partial() {
		u.log.Warn("picture of the cache is partial: events from before the replay buffer are out of reach, blocks come back as they are stored again", rank)
	}
	if !suspect && s.set.Suspect() {
		u.log.Warn("picture of the cache is suspect: events were lost for good, gateways give it less weight", rank)
	}
	u.judgeEvents(false)
	if s.rankInfo() != rankInfo || s.set.BlockSize() != blockSize || u.kvEvents != kvEvents {
		u.announce()
	}
	u.poke()
}

// ask passes a replay request on; the caller holds mu.
func (u *unit) ask(s *stream, r request) {
	if sub := u.subs[s.cfg.key.Rank]; r.ask && sub != nil {
		sub.Replay(r.from)
	}
}

// cleared forgets the engine's cache; see stream.cleared.
func (u *unit) cleared(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.streams {
		s.cleared(now)
	}
	u.announce()
	u.log.Info("cache was reset, picture cleared")
	u.poke()
}

// sendLoop sends the ticks that are due to every gateway.
func (u *unit) sendLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.wake:
		case <-timer.C:
		}
		packets, pickers, due := u.collect(time.Now())
		u.beat.Store(time.Now().UnixNano())
		bytes, failed := 0, 0
		for _, node := range pickers {
			for _, p := range packets {
				if err := u.mesh.Send(node, p); err != nil {
					failed++
				}
				bytes += len(p)
			}
		}
		if len(packets) > 0 {
			u.mu.Lock()
			u.counts.packets += uint64(len(packets) * len(pickers))
			u.counts.packetBytes += uint64(bytes)
			u.counts.sendErrors += uint64(failed)
			u.mu.Unlock()
		}
		timer.Reset(max(time.Until(due), time.Millisecond))
	}
}

// collect returns what is to be sent now, to whom, and when to ask again. Over the
// budget only heartbeats go out.
func (u *unit) collect(now time.Time) (packets [][]byte, pickers []uint64, due time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	heartbeat := u.sentAt.Add(u.cfg.Digest.MaxInterval)
	if ready := u.budget.readyAt(now); ready.After(now) && now.Before(heartbeat) {
		if heartbeat.Before(ready) {
			ready = heartbeat
		}
		return nil, nil, ready
	}
	due = now.Add(time.Second)
	bytes := 0
	for _, s := range u.streams {
		for _, p := range s.tick(now) {
			packets = append(packets, p)
			bytes += len(p)
		}
		if d := s.due(now); d.Before(due) {
			due = d
		}
	}
	for node := range u.pickers {
		pickers = append(pickers, node)
	}
	if len(packets) > 0 {
		u.sentAt = now
		u.budget.spend(now, bytes, len(pickers))
	}
	return packets, pickers, due
}

// setHealth takes the state of the pod's GPUs.
func (u *unit) setHealth(h wire.Health) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.health, u.hasGPU = h, true
	for _, s := range u.streams {
		s.pub.SetHealth(h)
	}
}

func rankList(s *enginemetrics.Sample) []int {
	var out []int
	for i := range s.Ranks {
		out = append(out, s.Ranks[i].Rank)
	}
	return out[:min(len(out), wire.MaxRanks)]
}
