package picker

import (
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

// host is one serving address. Its fields are guarded by Picker.mu.
type host struct {
	address string
	url     string
	models  []string // set by SetModels; nil: unknown
	pools   []string // set by SetPools
	ranks   []*endpoint

	failures int       // in a row
	out      bool      // not used until it answers
	until    time.Time // end of the backoff
	probing  bool
}

// usable reports whether requests may go to the host: without a probe the end of its backoff is tried with a request.
func (h *host) usable(now time.Time, probed bool) bool {
	return !h.out || !probed && !now.Before(h.until)
}

// failed puts the host out for a backoff that doubles with each failure in a row.
func (h *host) failed(now time.Time, cfg *FailureConfig, d *draws) {
	pause := cfg.BackoffMax
	if h.failures < 30 {
		pause = min(pause, cfg.BackoffMin<<h.failures)
	}
	h.failures++
	h.out = true
	h.until = now.Add(pause/2 + d.upTo(pause/2))
}

func (h *host) answered() { h.failures, h.out = 0, false }

// endpoint is one rank of a host and what the picker knows of it besides its digest. Guarded by Picker.mu except for what
// never changes.
type endpoint struct {
	public Endpoint // never changes
	host   *host    // never changes
	hash   uint64   // for rendezvous; never changes
	bare   int      // column in the speculation of endpoints without a digest; never changes

	index    int // in the newest table that has the endpoint
	ledger   hold.Ledger
	free     time.Time // when its queue was, or will be, empty
	others   int       // requests in the ledger that other gateways bound
	bound    time.Time // last time that a request was; at first when the endpoint joined
	watched  []*flight // whose end of prefill the digest will show
	lane     *lane     // in the newest table that has the endpoint
	stale    bool      // there is an agent, but silent
	suspect  bool
	age      time.Duration // of the last tick; negative: no agent
	hasLoad  bool
	gap      bool // the digest may have holes just now
	waiting  int  // in the engine's queue
	epoch    uint64
	marked   uint64    // the epoch that the marks beside the digest belong to
	observed time.Time // last reading of the engine given to the ledger, which came at read
	read     time.Time
	cleared  time.Time // CacheCleared; zero: not since the digest was renewed
	stepped  time.Time // the first token of a request that was bound after cleared; zero: none yet

	problem  string // why the agent's digest is not used
	verdict  verdict
	since    time.Time // of the verdict
	excluded bool      // the verdict is heeded

	overclaim float64 // moving average of the share of predicted tokens that were not there
	errors    int     // predictions checked
	bias      float64 // moving average of predicted - actual tokens
}

// verdict is a reason, heard by gossip, not to use an endpoint.
type verdict string

const (
	verdictNone     verdict = ""
	verdictDraining verdict = "draining"
	verdictAsleep   verdict = "asleep"
	verdictDown     verdict = "engine down"
	verdictFault    verdict = "gpu fault"
)

const (
	overclaimRate  = 0.1  // weight of the newest prediction in the moving averages
	overclaimLimit = 0.15 // what eviction between binding and prefill explains
	leastTrust     = 0.1
	suspectTrust   = 0.5
	clearedFor     = 500 * time.Millisecond // a digest as of that long after the engine's next step shows a reset
)

// trust is the share of the digest's match that is believed.
func (e *endpoint) trust() float64 {
	t := 1.0
	if e.suspect {
		t = suspectTrust
	}
	if e.overclaim > overclaimLimit {
		t = min(t, max(leastTrust, 1-e.overclaim))
	}
	return t
}

// checked compares the prediction, and what the digest alone promised of it, with the tokens that the engine found.
func (e *endpoint) checked(predicted, promised, actual int) {
	if promised > 0 {
		missing := float64(max(0, promised-actual)) / float64(promised)
		e.overclaim += overclaimRate * (missing - e.overclaim)
	}
	e.bias += overclaimRate * (float64(predicted-actual) - e.bias)
	e.errors++
}

// refresh takes over what the stream says; its age is judged by clock, which stands still while the view is frozen.
func (e *endpoint) refresh(now, clock time.Time, s *slot, fleet fleetMean, params *score.Params, cfg *Config) {
	e.suspect, e.hasLoad, e.stale, e.gap = false, false, false, false
	v := verdictNone
	e.age = -1
	if s.live != nil {
		l := readLive(s.live, clock)
		e.age = l.age
		e.stale = l.stale
		e.suspect = l.Flags&wire.Suspect != 0
		e.gap = l.GapOpen
		e.hasLoad = l.HasLoad && !e.stale
		if !e.stale {
			v = verdictOf(&l, s, cfg)
		}
		if e.epoch != l.Epoch {
			e.epoch = l.Epoch
			e.cleared = time.Time{}
			e.overclaim = 0
		}
		// An engine tells of a reset with its next step only.
		if !e.cleared.IsZero() && !e.stepped.IsZero() && l.LastTick.Sub(e.stepped) > clearedFor {
			e.cleared = time.Time{}
		}
		if asked := l.asked(); asked.After(e.observed) {
			e.observed = asked
			e.read = now
			e.ledger.Observed(now, asked, int(l.Load.Waiting))
		}
		e.lane.facts = factsOf(&l, fleet)
	} else {
		e.lane.facts = score.Endpoint{Prefill: fleet.prefill}
	}
	if v != e.verdict {
		e.verdict, e.since = v, now
	}
	f := &e.lane.facts
	f.Key = e.hash
	f.BlockSize = s.blockSize
	f.Stale = e.stale
	if !e.hasLoad {
		// As large as the others, and filled by what gateways sent there: else it gets far more than it can take.
		f.Running, f.Waiting, f.Cached = 0, 0, 0
		f.Blocks = fleet.tokens / max(1, s.blockSize)
		f.Free = f.Blocks
	}
	e.waiting = f.Waiting
	params.Prepare(f)
}

const (
	// unsaidAge is how old an engine's figures are taken to be where the tick doesn't say it.
	unsaidAge = 100 * time.Millisecond
	// figuresLag is what an engine needs from a first token to the figures that show it, and the tick to come here.
	figuresLag = 20 * time.Millisecond
)

// asked is the time for which the engine's figures surely hold.
func (l *liveFacts) asked() time.Time {
	if l.LoadAt.IsZero() {
		return l.LastTick.Add(-unsaidAge - figuresLag)
	}
	return l.LoadAt.Add(-figuresLag)
}

func verdictOf(l *liveFacts, s *slot, cfg *Config) verdict {
	switch {
	case l.Flags&wire.Draining != 0 || s.info != nil && s.info.Draining:
		return verdictDraining
	case l.Flags&wire.Asleep != 0:
		return verdictAsleep
	case l.Flags&wire.EngineDown != 0:
		return verdictDown
	case cfg.Failure.ExcludeFaulty && l.HasHealth && l.Health.Fault != 0:
		return verdictFault
	}
	return verdictNone
}

// fleetMean is what is assumed of an endpoint that says nothing of itself.
type fleetMean struct {
	prefill score.Model
	fitted  bool // the mean of measured ones; else as configured
	tokens  int  // that a KV cache holds; 0: unknown
}

// factsOf turns the load of a tick into what score wants.
func factsOf(l *liveFacts, fleet fleetMean) score.Endpoint {
	f := score.Endpoint{Prefill: fleet.prefill}
	if l.HasHealth && l.Health.Known {
		f.Slowdown = float64(l.Health.Slowdown)
	}
	if !l.HasLoad {
		return f
	}
	w := &l.Load
	if w.PrefillPerToken > 0 && (w.PrefillFitted || !fleet.fitted) {
		f.Prefill = modelOf(w)
	}
	f.Running, f.Waiting = int(w.Running), int(w.Waiting)
	f.Blocks, f.Free, f.Cached = int(w.BlocksTotal), int(w.BlocksFree), int(w.BlocksCached)
	f.VictimIdle = ms(w.VictimIdle)
	f.DecodeStep, f.DecodePerToken = ms(w.DecodeStep), w.DecodePerToken*1000
	return f
}

func modelOf(w *wire.Load) score.Model {
	return score.Model{Overhead: ms(w.PrefillOverhead), PerToken: w.PrefillPerToken * 1000, Quadratic: w.PrefillQuadratic * 1000}
}
