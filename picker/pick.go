package picker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/view"
	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/picker/hint"
	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

// Picker chooses endpoints. All its methods may be called concurrently.
type Picker struct {
	cfg     Config
	clock   func() time.Time
	hasher  blockhash.Hasher
	log     *slog.Logger
	params  score.Params
	metrics *metrics
	queries sync.Pool // of *query
	table   atomic.Pointer[table]
	bare    atomic.Bool // some endpoint has no digest that can be used just now
	gaps    atomic.Bool // some digest may have holes just now
	wake    chan struct{}
	draws   draws

	mesh *mesh.Mesh // nil: no gossip
	// viewMu makes its holder the view's one writer. Never taken while holding mu.
	viewMu sync.Mutex
	view   *view.View

	receipts receipts

	policy atomic.Pointer[shares] // stored under mu

	mu          sync.Mutex       // guards what follows, and the endpoints
	hosts       map[string]*host // by address
	static      map[string]bool  // addresses that are in the pool without an agent's word
	marks       marks
	recent      recent
	hints       hints
	queue       *hold.Queue[*query]
	priceHeld   hold.Price[*query]
	running     bool
	draining    bool
	next        uint64 // turn of the round robin
	ignored     int    // verdicts beyond what gossip may exclude
	trouble     bool   // some endpoint may be excluded or out
	refreshed   time.Time
	fleet       fleetMean
	crowd       float64 // see crowding
	meanPrefill float64
	meanOutput  float64
	reuse       float64
	candidates  []score.Candidate // of the last price
	equal       []score.Candidate // scratch
	cheapest    []int             // scratch
	accused     []*endpoint       // scratch
}

// New returns a picker that knows the endpoints of cfg. It starts nothing: see Run. Without Run it picks from its own
// counts and holds nothing.
func New(cfg Config) (*Picker, error) { return newPicker(cfg, time.Now, rand.Uint64()) }

// newPicker takes the clock, and a seed for all that is drawn.
func newPicker(cfg Config, clock func() time.Time, seed uint64) (*Picker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("validate picker configuration: %w", err)
	}
	hasher, err := cfg.hasher()
	if err != nil {
		return nil, err
	}
	cfg.Endpoints = slices.Clone(cfg.Endpoints)
	if cfg.Gossip.NodeName == "" {
		cfg.Gossip.NodeName = mesh.UniqueName("")
	}
	p := &Picker{
		cfg: cfg, clock: clock, hasher: hasher, log: cfg.Logger, params: cfg.params(),
		wake:  make(chan struct{}, 1),
		hosts: map[string]*host{}, static: map[string]bool{},
		meanPrefill: cfg.Score.prefill().Time(2048, 0),
		meanOutput:  float64(cfg.Score.OutputTokens),
		reuse:       0.5,
	}
	p.draws.seed = seed
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.policy.Store(newShares(cfg.Policy))
	p.queries.New = func() any { return new(query) }
	p.queue = hold.New[*query](cfg.Hold.queue(), p.params)
	p.priceHeld = p.repriced
	p.receipts.init(cfg.Receipts)
	p.view = newView(&cfg, hasher, seed, p.changed)
	p.hints.node = wire.NodeHash(cfg.Gossip.NodeName)
	p.hints.out = hint.NewOutbox(p.hints.node)
	p.hints.gateways = map[uint64]bool{}
	if cfg.Gossip.Enabled {
		if p.mesh, err = p.newMesh(); err != nil {
			return nil, fmt.Errorf("prepare gossip: %w", err)
		}
	}
	if err := p.SetEndpoints(cfg.Endpoints); err != nil {
		return nil, err
	}
	if p.metrics, err = newMetrics(p, cfg.Registerer); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return p, nil
}

// Pick chooses the endpoint for a request and returns when the request is bound: at once if an endpoint is ready, else
// after a bounded hold. The decision must be given to Done. Errors: ErrNoEndpoints, ErrOverloaded, ErrUnknownModel, or
// the context's.
func (p *Picker) Pick(ctx context.Context, req Request) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	now := p.clock()
	q := p.prepared(now, req)
	p.mu.Lock()
	waits, err := p.admit(now, q)
	p.mu.Unlock()
	if !waits {
		q.makeMarks(p.clock)
		d := q.decision
		p.release(q)
		return d, err
	}
	select {
	case <-q.done:
	case <-ctx.Done():
		p.mu.Lock()
		removed := p.queue.Remove(&q.item)
		p.mu.Unlock()
		if removed {
			p.release(q)
			return Decision{}, ctx.Err()
		}
		<-q.done // bound or refused in the same moment
		q.makeMarks(p.clock)
		if q.err == nil {
			p.Done(q.decision, Outcome{Err: ctx.Err(), Cancelled: true, CachedTokens: -1})
		}
		p.release(q)
		return Decision{}, ctx.Err()
	}
	q.makeMarks(p.clock)
	d, err := q.decision, q.err
	p.release(q)
	return d, err
}

// prepared returns a query that is hashed and matched as far as that needs no lock. What goes wrong here, an unknown
// model, shows again under the lock.
func (p *Picker) prepared(now time.Time, req Request) *query {
	q := p.queries.Get().(*query)
	q.reset(req, now, &p.draws)
	t := p.table.Load()
	if q.bind(t, p.hasher) != nil {
		q.table = nil
		return q
	}
	q.match(now, p.lookup())
	return q
}

// lookup says what a match must look at.
func (p *Picker) lookup() lookup {
	return lookup{speculation: p.policy.Load().Speculation, bare: p.bare.Load(), gaps: p.gaps.Load()}
}

// release is for the owner of a query, who has done with it.
func (p *Picker) release(q *query) {
	q.req, q.serves, q.avoid = Request{}, nil, nil
	q.item, q.decision, q.done, q.err = hold.Item[*query]{}, Decision{}, nil, nil
	p.drop(q)
}

// drop gives a query's scratch back if nobody else knows the query any more.
func (p *Picker) drop(q *query) {
	if q.holders.Add(-1) == 0 {
		q.table = nil
		p.queries.Put(q)
	}
}

// SetEndpoints replaces the static part of the pool: URLs or host:port. Requests that are bound to an endpoint that
// leaves go on.
func (p *Picker) SetEndpoints(endpoints []string) error {
	return p.SetPools(map[string][]string{"": endpoints})
}

// SetPools is SetEndpoints for endpoints of which is known that those of one name serve the same models; of those without
// a name it is not. An endpoint may be in several.
//
// An endpoint that nobody tells the models of is taken to serve what others under its name serve, LoRA adapters aside. If
// those are unknown too, it gets requests for models that no other endpoint is known to serve. Without a name it gets
// requests for all models.
func (p *Picker) SetPools(pools map[string][]string) error {
	links := map[string]string{}
	names := map[string][]string{} // by address
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		for _, s := range pools[name] {
			address, link, err := parseEndpoint(s)
			if err != nil {
				faults = append(faults, fmt.Errorf("endpoint %q: %w", s, err))
				continue
			}
			if links[address] == "" {
				links[address] = link
			}
			if name != "" {
				names[address] = append(names[address], name)
			}
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.static)
	for address, link := range links {
		p.static[address] = true
		if h := p.hosts[address]; h == nil || h.url != link {
			p.removeHost(address)
			p.hosts[address] = &host{address: address, url: link}
		}
	}
	for address, h := range p.hosts {
		h.pools = names[address]
	}
	p.rebuild(now, p.view.Snapshot())
	p.pump(now)
	return nil
}

// SetModels says which models endpoints without an agent serve, by their addresses host:port or URLs. Addresses that are
// not in the pool are ignored, endpoints that are not named keep theirs.
func (p *Picker) SetModels(models map[string][]string) {
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := false
	for address, names := range models {
		if a, _, err := parseEndpoint(address); err == nil {
			address = a
		}
		if h := p.hosts[address]; h != nil && !slices.Equal(h.models, names) {
			h.models = slices.Clone(names)
			changed = true
		}
	}
	if changed {
		p.rebuild(now, p.view.Snapshot())
		p.pump(now)
	}
}

// SetPolicy changes the policy. Held requests are bound if the new one does not hold.
func (p *Picker) SetPolicy(policy Policy) error {
	if err := policy.validate(); err != nil {
		return fmt.Errorf("set policy: %w", err)
	}
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.policy.Load()
	if maps.Equal(old.Shares, policy.Shares) && old.Hold == policy.Hold && old.Speculation == policy.Speculation {
		return nil
	}
	p.policy.Store(newShares(policy))
	p.pump(now)
	p.log.Info("policy changed", keyShares, policy.Shares, keyHold, policy.Hold, keySpeculation, policy.Speculation)
	return nil
}

// CacheCleared says that the prefix cache of an endpoint was reset through this gateway: its blocks are not counted on
// until its digest shows the reset.
func (p *Picker) CacheCleared(address string) {
	if a, _, err := parseEndpoint(address); err == nil {
		address = a
	}
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.table.Load()
	for i, e := range t.endpoints {
		if e.host.address == address {
			e.cleared, e.stepped = now, time.Time{}
			t.judge(i)
			p.bare.Store(true)
			p.forgetMarks(t, i)
		}
	}
}

// Warm reports whether the digests of all endpoints are there and whole. It is false without endpoints, and as long as one
// of them has no agent.
func (p *Picker) Warm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freshen(p.clock())
	return p.warm(p.table.Load())
}

// warm is Warm of a fresh table. Caller holds p.mu.
func (p *Picker) warm(t *table) bool {
	for i, e := range t.endpoints {
		if !p.hasDigest(t, i) || e.gap {
			return false
		}
	}
	return len(t.endpoints) > 0
}

// Drain binds all held requests at once and holds none any more: the gateway is about to end.
func (p *Picker) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	p.pump(p.clock())
}

// newEndpoint makes a rank of h. Caller holds p.mu.
func (p *Picker) newEndpoint(h *host, public Endpoint) *endpoint {
	p.log.Info("endpoint joined the pool", keyEndpoint, public.ID)
	return &endpoint{public: public, host: h, bound: p.clock(), bare: p.marks.column(), hash: xxh3.HashString(public.ID), age: -1}
}
