package picker

import (
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/view"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Status is the picker at a moment, for a person or a page.
type Status struct {
	Time time.Time `json:"time"`
	Pool string    `json:"pool"`
	Policy
	Endpoints       []EndpointStatus `json:"endpoints"` // by address and rank
	Models          []string         `json:"models"`    // known, sorted
	Reporting       int              `json:"reporting"` // endpoints whose agent speaks
	Frozen          bool             `json:"frozen"`    // the gateway mistrusts its own view
	IgnoredVerdicts int              `json:"ignored_verdicts"`
	Draining        bool             `json:"draining"`
	Warm            bool             `json:"warm"`             // see Picker.Warm
	SeedFingerprint uint32           `json:"seed_fingerprint"` // of the seed of block hashes
	Held            HeldStatus       `json:"held"`
	Gossip          *GossipStatus    `json:"gossip,omitempty"` // nil: gossip is off
}

// EndpointStatus is one endpoint in a Status.
type EndpointStatus struct {
	Endpoint
	Rung          Rung     `json:"rung"`                // the best one that a request can have
	Problem       string   `json:"problem,omitempty"`   // why there is no digest though there is an agent
	Verdict       string   `json:"verdict,omitempty"`   // heard by gossip
	Excluded      bool     `json:"excluded"`            // for the verdict
	Out           bool     `json:"out"`                 // could not be reached
	Stale         bool     `json:"stale"`               // the agent is silent
	Partial       bool     `json:"partial"`             // the agent does not know everything that is cached
	Suspect       bool     `json:"suspect"`             // the agent doubts what it knows
	DigestAgeMs   float64  `json:"digest_age_ms"`       // -1: no agent
	Epoch         uint64   `json:"epoch,omitempty"`     // of the digest
	Pod           string   `json:"pod,omitempty"`       // as the agent says
	Engine        string   `json:"engine,omitempty"`    // name and version
	KVEvents      string   `json:"kv_events,omitempty"` // as the agent says
	Models        []string `json:"models,omitempty"`    // of the agent, and set
	BlockSize     int      `json:"block_size"`
	Running       int      `json:"running"` // the engine's figures, 0 where unknown
	Waiting       int      `json:"waiting"`
	Blocks        int      `json:"blocks"`
	FreeBlocks    int      `json:"free_blocks"`
	CachedBlocks  int      `json:"cached_blocks"`
	Outstanding   int      `json:"outstanding"` // this gateway's requests
	Others        int      `json:"others"`      // other gateways' requests heard of lately
	Prefills      int      `json:"prefills"`    // of all these, not over
	QueueMs       float64  `json:"queue_ms"`
	Prefill1kMs   float64  `json:"prefill_1k_ms"` // predicted, 1,000 tokens, idle
	Slowdown      float64  `json:"slowdown,omitempty"`
	Trust         float64  `json:"trust"`
	Checked       int      `json:"checked"`        // predictions compared with answers
	MeanError     float64  `json:"mean_error"`     // predicted - actual cached tokens, moving average
	OverclaimRate float64  `json:"overclaim_rate"` // share of promised tokens that were not there, moving average
}

// HeldStatus is what waits at the gateway.
type HeldStatus struct {
	Requests       int     `json:"requests"`
	Bytes          int64   `json:"bytes"`
	UncachedTokens int     `json:"uncached_tokens"`
	PrefillMs      float64 `json:"prefill_ms"`
	Wanted         int     `json:"wanted_endpoints"`
}

// GossipStatus is the state of the mesh and the view.
type GossipStatus struct {
	Addr string     `json:"addr"` // host:port that the agents join
	Mesh mesh.Stats `json:"mesh"`
	View view.Stats `json:"view"`
	Hint HintStats  `json:"hint"` // between gateways
}

// Status returns what the picker knows now.
func (p *Picker) Status() Status {
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freshen(now)
	t := p.table.Load()
	s := Status{
		Time: now, Pool: p.cfg.Pool, Policy: p.policy.Load().Policy, Models: t.known,
		Frozen: t.snapshot != nil && t.snapshot.Frozen, IgnoredVerdicts: p.ignored, Draining: p.draining,
		Warm: p.warm(t), SeedFingerprint: p.hasher.Fingerprint(), Held: p.held(now), Endpoints: make([]EndpointStatus, 0, len(t.endpoints)),
	}
	for i := range t.endpoints {
		e := p.endpointStatus(now, t, i)
		if e.DigestAgeMs >= 0 && !e.Stale {
			s.Reporting++
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	if p.mesh != nil {
		s.Gossip = &GossipStatus{Addr: p.mesh.LocalAddr(), Mesh: p.mesh.Stats(), View: p.view.Stats(), Hint: p.hints.status()}
	}
	return s
}

func (p *Picker) endpointStatus(now time.Time, t *table, i int) EndpointStatus {
	e, s, f := t.endpoints[i], &t.slots[i], &t.lanes[i].facts
	out := EndpointStatus{
		Endpoint: e.public, Rung: p.bestRung(t, i), Problem: s.problem, Verdict: string(e.verdict), Excluded: e.excluded,
		Out: !e.host.usable(now, p.cfg.Probe != nil), Stale: e.stale, DigestAgeMs: -1, Models: slices.Clone(e.host.models),
		BlockSize: s.blockSize, Running: f.Running, Waiting: e.waiting,
		Outstanding: e.ledger.Outstanding() - e.others, Others: e.others, QueueMs: ms(e.ledger.Queue(now)), Prefills: e.ledger.Prefills(),
		Prefill1kMs: f.Prefill.Time(1000, 0), Slowdown: f.Slowdown,
		Trust: e.trust(), Checked: e.errors, MeanError: e.bias, OverclaimRate: e.overclaim,
	}
	if e.hasLoad {
		out.Blocks, out.FreeBlocks, out.CachedBlocks = f.Blocks, f.Free, f.Cached
	}
	if e.age >= 0 {
		out.DigestAgeMs, out.Epoch = ms(e.age), e.epoch
		flags := s.live.Facts().Flags
		out.Partial, out.Suspect = flags&wire.Partial != 0, flags&wire.Suspect != 0
	}
	if in := s.info; in != nil {
		out.Pod, out.KVEvents = in.Pod, in.KVEvents
		if out.Engine = in.Engine; in.EngineVersion != "" {
			out.Engine += " " + in.EngineVersion
		}
		for _, m := range in.Models {
			if !slices.Contains(out.Models, m.Name) {
				out.Models = append(out.Models, m.Name)
			}
		}
	}
	return out
}

// bestRung is the rung of a request whose tokens are known.
func (p *Picker) bestRung(t *table, i int) Rung {
	e := t.endpoints[i]
	switch {
	case p.hasDigest(t, i) && e.trust() < 1:
		return RungSuspect
	case p.hasDigest(t, i):
		return RungDigest
	case e.hasLoad:
		return RungLoad
	}
	return RungOwn
}

// wantedWithin is the time in which what waits should be prefilled, at real speed.
const wantedWithin = time.Second

// held sums up the queue. Wanted is what an autoscaler needs to know: the endpoints that are busy, and as many more as
// would work off what waits within a second.
func (p *Picker) held(now time.Time) HeldStatus {
	w := p.queue.Waiting()
	busy := 0
	for _, e := range p.table.Load().endpoints {
		if e.ledger.Outstanding() > 0 || e.lane.facts.Running > 0 {
			busy++
		}
	}
	within := duration(ms(wantedWithin) / p.cfg.scale())
	return HeldStatus{
		Requests: w.Requests, Bytes: w.Bytes, UncachedTokens: w.UncachedTokens, PrefillMs: ms(w.Work),
		Wanted: busy + int((w.Work+within-1)/within),
	}
}
