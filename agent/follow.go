package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
	"github.com/grapevine-llm/grapevine/agent/zmqsub"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

const resubscribeAfter = 5 * time.Second

// follow learns the engine's facts when it appears or restarts and now and then,
// and listens to its events where they are.
func (u *unit) follow(ctx context.Context) {
	var current []source
	stop := func() {}
	defer func() { stop() }()
	timer := time.NewTimer(factsEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-u.relearn:
		case <-timer.C:
		}
		sources, err := u.learn(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			u.log.Debug("ask the engine for its facts", slog.Any(keyErr, err))
			timer.Reset(time.Second)
			continue
		case sources != nil && !slices.Equal(sources, current):
			stop()
			current, stop = sources, u.listen(ctx, sources)
		}
		timer.Reset(factsEvery)
	}
}

// learn asks the engine for its models, version and event sources; nil sources
// without an error mean that the engine was not there yet.
func (u *unit) learn(ctx context.Context) ([]source, error) {
	u.mu.Lock()
	sample := u.last
	u.mu.Unlock()
	if sample == nil {
		return nil, nil
	}
	models, modelsErr := u.client.Models(ctx)
	version, versionErr := u.client.Version(ctx)
	said, err := u.client.EventSources(ctx)
	// An engine that answers, but not this question, is taken as it is.
	for _, err := range []error{modelsErr, versionErr, err} {
		var noAnswer *url.Error
		if errors.As(err, &noAnswer) {
			return nil, err
		}
	}
	sources, err := eventSources(u.cfg.KVEvents, u.engine, rankList(sample), said, err == nil)

	u.mu.Lock()
	defer u.mu.Unlock()
	if modelsErr != nil && u.facts.models == nil && u.facts.kvEvents == "" {
		u.log.Warn("engine does not list its models, gateways take it for any model", slog.Any(keyErr, modelsErr))
	}
	if u.facts.version != version {
		u.log.Info("engine version", slog.String(keyVersion, version))
	}
	u.facts = facts{models: models, version: version}
	switch {
	case err != nil:
		u.facts.kvEvents = "absent"
		u.log.Error("KV events are out of reach", slog.Any(keyErr, err))
		sources, err = []source{}, nil
	case len(sources) == 0:
		u.facts.kvEvents = "absent"
		if u.kvEvents != "absent" {
			u.log.Error("engine publishes no KV events", slog.String(keyRemedy, remedySilent))
		}
		sources = []source{}
	case sample.Engine == enginemetrics.VLLM && sample.Ranks[0].Cache.NumBlocks > 0 && !sample.Ranks[0].Cache.PrefixCaching:
		u.facts.kvEvents = "prefix caching is off"
	default:
		u.facts.kvEvents = "waiting for the first event"
	}
	u.openStreams(sample, sources)
	u.judgeEvents(false)
	u.announce()
	u.poke()
	return sources, err
}

// openStreams makes the streams of ranks that have none yet; the caller holds mu.
// An engine without events has streams all the same: they carry its load.
func (u *unit) openStreams(sample *enginemetrics.Sample, sources []source) {
	now := time.Now()
	for _, rank := range rankList(sample) {
		if u.streams[uint16(rank)] != nil {
			continue
		}
		reading := rankOf(sample, rank)
		s := newStream(now, streamConfig{
			key: u.info.Key(uint16(rank)), node: wire.NodeHash(u.info.Node), hasher: u.hasher,
			digest: u.cfg.Digest, full: u.cfg.KVEvents.FullReports, blocks: reading.Cache.NumBlocks,
			canReplay: slices.ContainsFunc(sources, func(src source) bool { return src.rank == rank && src.replay != "" }),
		})
		u.load(s, now)
		s.processStart(now, sample.ProcessStart)
		s.setInfoVersion(u.info.Version)
		s.setMinInterval(u.minInterval())
		s.setLoad(now, u.asked, reading, u.tracker.Prefill(rank), u.tracker.Decode(rank))
		if u.hasGPU {
			s.pub.SetHealth(u.health)
		}
		u.streams[uint16(rank)] = s
	}
	u.flags()
}

// listen starts a subscription for each source; stop ends them and waits.
func (u *unit) listen(ctx context.Context, sources []source) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	for _, src := range sources {
		u.mu.Lock()
		s := u.streams[uint16(src.rank)]
		if s != nil {
			s.feed.Seq.SetCanReplay(src.replay != "")
		}
		u.mu.Unlock()
		if s == nil {
			u.log.Warn("events of a rank that the engine's metrics do not show, ignored", slog.Int(keyRank, src.rank))
			continue
		}
		g.Go(func() error { u.keepListening(ctx, s, src); return nil })
	}
	return func() {
		cancel()
		_ = g.Wait() // keepListening returns no error
	}
}

// keepListening subscribes, again when the sockets could not be opened.
func (u *unit) keepListening(ctx context.Context, s *stream, src source) {
	for ctx.Err() == nil {
		err := u.listenOnce(ctx, s, src)
		if ctx.Err() != nil {
			return
		}
		u.log.Error("KV-event sockets not opened, trying again", slog.Int(keyRank, src.rank), slog.Any(keyErr, err))
		select {
		case <-ctx.Done():
		case <-time.After(resubscribeAfter):
		}
	}
}

func (u *unit) listenOnce(ctx context.Context, s *stream, src source) error {
	listen := src.mayConnect && !answers(ctx, src.endpoint) && ownHost(src.endpoint)
	sub, err := zmqsub.New(zmqsub.Config{Endpoint: src.endpoint, Replay: src.replay, Topic: src.topic, Listen: listen, Logger: u.log})
	if err != nil {
		return err
	}
	how := "dial"
	if listen {
		how = "listen: the engine's endpoint names a host, so it connects"
	}
	u.log.Info("subscribing to KV events", slog.Int(keyRank, src.rank), slog.String(keyEndpoint, src.endpoint),
		slog.String(keyReplay, src.replay), slog.String("how", how), slog.Bool("guessed", src.guessed))
	rank := s.cfg.key.Rank
	u.mu.Lock()
	u.subs[rank] = sub
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.subs, rank)
	}()
	return u.subscription(ctx, s, sub)
}

// answers says whether somebody listens at a tcp endpoint.
func answers(ctx context.Context, endpoint string) bool {
	host, port, ok := hostOf(endpoint)
	if !ok {
		return false
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// ownHost says whether the endpoint's host is one of this machine's addresses.
func ownHost(endpoint string) bool {
	host, _, ok := hostOf(endpoint)
	if !ok {
		return false
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return false
	}
	l.Close()
	return true
}
