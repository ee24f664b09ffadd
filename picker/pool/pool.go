package pool

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
)

// coalesce is the least time between two calls of Run's callback: what changes meanwhile comes in one.
const coalesce = 50 * time.Millisecond

// Watcher keeps the eligible endpoints of its pools. All its methods may be called concurrently; Run once.
type Watcher struct {
	log        *slog.Logger
	metrics    *metrics
	names      []string // of the pools, sorted
	sources    map[string]source
	kinds      map[string]string             // of the pools: InferencePool or Service
	objectives map[string]*mirror[objective] // by namespace
	dirty      chan struct{}
	now        atomic.Pointer[snapshot]
}

// snapshot is what is known of all pools at a moment.
type snapshot struct {
	sets   map[string]*set // by pool; without those that are not known yet
	union  []string
	health map[string]health
}

// New returns a Watcher that has connected to nothing yet. A nil log discards, a nil reg registers no metrics. It fails
// if cfg is faulty or says of no API server.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Watcher, error) {
	var conn *rest.Config
	if cfg.Enabled() {
		var err error
		if conn, cfg.Namespace, err = connect(cfg); err != nil {
			return nil, err
		}
	}
	return newWatcher(cfg, conn, log, reg)
}

// newWatcher takes the API server, and a namespace in cfg.
func newWatcher(cfg Config, conn *rest.Config, log *slog.Logger, reg prometheus.Registerer) (*Watcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	w := &Watcher{
		log: log, sources: map[string]source{}, kinds: map[string]string{}, objectives: map[string]*mirror[objective]{},
		dirty: make(chan struct{}, 1),
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	w.now.Store(&snapshot{})
	if cfg.Enabled() {
		c, err := newClients(conn)
		if err != nil {
			return nil, fmt.Errorf("prepare to ask the API server: %w", err)
		}
		w.add(cfg, c)
	}
	w.names = slices.Sorted(maps.Keys(w.sources))
	var err error
	if w.metrics, err = newMetrics(w, reg); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return w, nil
}

// add makes the sources of a valid cfg.
func (w *Watcher) add(cfg Config, c clients) {
	for _, s := range cfg.InferencePools {
		r, _ := parsePool(s, cfg.Namespace)
		name := r.String()
		w.kinds[name] = poolKind().name
		w.sources[name] = &inferencePool{
			ref:  r,
			spec: newMirror[poolSpec](w, name, c, scope{kind: poolKind(), namespace: r.namespace, name: r.name}),
			podsOf: func(selector string) *mirror[pod] {
				w.log.Info("pods of the pool", keyPool, name, keySelector, selector)
				return newMirror[pod](w, name, c, scope{kind: podKind(), namespace: r.namespace, labels: selector})
			},
		}
		if cfg.Objectives && w.objectives[r.namespace] == nil {
			w.objectives[r.namespace] = newMirror[objective](w, objectivesOf+r.namespace, c, scope{kind: objectiveKind(), namespace: r.namespace})
		}
	}
	for _, s := range cfg.Services {
		r, _ := parseService(s, cfg.Namespace)
		name := r.String()
		w.kinds[name] = "Service"
		w.sources[name] = &service{ref: r, slices: newMirror[slice](w, name, c, scope{kind: sliceKind(), namespace: r.namespace, labels: "kubernetes.io/service-name=" + r.name})}
	}
}

// objectivesOf a namespace are counted under this name.
const objectivesOf = "objectives of "

func newMirror[V any](w *Watcher, pool string, c clients, s scope) *mirror[V] {
	return &mirror[V]{
		scope: s, client: c[s.GroupVersion()], log: w.log.With(keyPool, pool), changed: w.touch,
		failed: func(reason string) { w.metrics.failed(pool, reason) },
		items:  map[string]V{},
	}
}

// touch makes Run look.
func (w *Watcher) touch() {
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// Run watches until ctx ends. It calls changed, from one goroutine, with the eligible endpoints of all pools (host:port,
// sorted, each once; the callee may keep them) when a pool was read for the first time, and whenever they change: within
// milliseconds of the event's coming, but no more often than every 50 ms. Pools that have not been read yet give nothing.
func (w *Watcher) Run(ctx context.Context, changed func(endpoints []string)) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, m := range w.objectives {
		wg.Go(func() { m.run(ctx) })
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		w.look(ctx, &wg, changed)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.dirty:
		}
		pause.Reset(coalesce)
	}
}

// look publishes what is known now.
func (w *Watcher) look(ctx context.Context, wg *sync.WaitGroup, changed func([]string)) {
	old := w.now.Load()
	s := &snapshot{sets: map[string]*set{}, health: map[string]health{}}
	for _, name := range w.names {
		src := w.sources[name]
		src.tend(ctx, wg)
		if h := src.health(); h.reason != "" {
			s.health[name] = h
		}
		if out, known := src.look(); known {
			s.sets[name] = &out
			w.tell(name, old.sets[name], &out)
		} else if last := old.sets[name]; last != nil {
			s.sets[name] = last // nothing that was known is forgotten
		}
	}
	s.union = union(s.sets)
	w.now.Store(s)
	if len(s.sets) != len(old.sets) || !slices.Equal(old.union, s.union) {
		w.metrics.changes.Inc()
		changed(slices.Clone(s.union))
	}
}

// tell logs what a person acts on.
func (w *Watcher) tell(name string, old, now *set) {
	if old == nil {
		w.log.Info("pool read", keyPool, name, keyEndpoints, len(now.endpoints))
	}
	if now.note != "" && (old == nil || old.note != now.note) {
		w.log.Warn("pool is not as it should be", keyPool, name, keyNote, now.note)
	}
}

// Synced reports whether every pool has been read.
func (w *Watcher) Synced() bool { return len(w.now.Load().sets) == len(w.names) }

// Members returns the eligible endpoints of one pool, "namespace/name" (of a Service with its port, as configured),
// sorted, not nil. It is false if the pool is not watched or has not been read yet. It takes no lock; the caller must not
// change the slice.
func (w *Watcher) Members(pool string) ([]string, bool) {
	if s := w.now.Load().sets[pool]; s != nil {
		return s.endpoints, true
	}
	return nil, false
}

// Pools returns the eligible endpoints by pool, of those that have been read. The caller must not change the slices.
func (w *Watcher) Pools() map[string][]string {
	out := map[string][]string{}
	for name, s := range w.now.Load().sets {
		out[name] = s.endpoints
	}
	return out
}

// Objective returns the priority of an InferenceObjective of a pool; of any pool, the highest, if pool is empty. It is
// false if there is none of this name, or none are read.
func (w *Watcher) Objective(pool, name string) (priority int, ok bool) {
	for namespace, m := range w.objectives {
		m.read(func(items map[string]objective) {
			o, found := items[name]
			of := namespace + "/" + o.pool
			if !found || pool != "" && pool != of || w.kinds[of] != poolKind().name {
				return
			}
			if !ok || o.priority > priority {
				priority, ok = o.priority, true
			}
		})
	}
	return priority, ok
}
