package pool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// object is one that the API server sends, of which V is kept.
type object[V any] interface {
	runtime.Object
	metav1.Object
	fact() V
}

// scope narrows a watch.
type scope struct {
	kind
	namespace string
	labels    string // selector
	name      string // of the only object; empty: all
}

// mirror keeps what matters of the objects in a scope. What it had last stays while the API server can't be reached.
type mirror[V any] struct {
	scope
	client  rest.Interface
	log     *slog.Logger
	changed func()              // called without a lock
	failed  func(reason string) // counts

	mu     sync.Mutex // guards what follows
	items  map[string]V
	synced bool // items were complete once
	health health
}

// health says whether a watch works.
type health struct {
	reason  string // of the failure; empty: it works
	problem string // with its remedy
	since   time.Time
}

// read calls f with the items. f must not keep the map.
func (m *mirror[V]) read(f func(items map[string]V)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.items)
}

func (m *mirror[V]) isSynced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced
}

func (m *mirror[V]) state() (bool, health) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced, m.health
}

// The first pause after a failure doubles with each further one up to the longest: it is also how long a CRD that was
// installed, or a right that was given, may go unnoticed.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
	pauseJitter  = 0.5
)

// run lists and watches until ctx ends.
func (m *mirror[V]) run(ctx context.Context) {
	backoff := &wait.Backoff{Duration: firstPause, Cap: longestPause, Steps: 100, Factor: 2, Jitter: pauseJitter}
	r := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			out := m.list.DeepCopyObject()
			err := m.request(&o).Do(ctx).Into(out)
			m.tried(ctx, "list", err)
			return out, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := m.request(&o).Watch(ctx)
			streams := o.SendInitialEvents != nil
			if streams && apierrors.IsInvalid(err) {
				return nil, err // an older API server: the list comes next
			}
			if _, stands := w.(*watch.StreamWatcher); err == nil && !stands {
				err = errClosed // the client makes a watch without events of it
			}
			m.tried(ctx, "watch", err)
			if streams && err != nil {
				err = fmt.Errorf("%v", err) // makes the reflector list at once: it knows how to wait there
			}
			return w, err
		},
	}, m.object, m, cache.ReflectorOptions{Name: m.qualified(), Backoff: backoff})
	r.RunWithContext(klog.NewContext(ctx, klog.Logger{})) // what it would log is told by health
}

func (m *mirror[V]) request(o *metav1.ListOptions) *rest.Request {
	o.LabelSelector = m.labels
	if m.name != "" {
		o.FieldSelector = "metadata.name=" + m.name
	}
	// The reflector tries again: if the client did so too, ten seconds would pass before a failure shows.
	return m.client.Get().MaxRetries(0).Namespace(m.namespace).Resource(m.Resource).VersionedParams(o, metav1.ParameterCodec)
}

// tried takes in how a call went. Only a watch that stands is health.
func (m *mirror[V]) tried(ctx context.Context, verb string, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil:
		m.fails(verb, err)
	case verb == "watch":
		m.works()
	}
}

func (m *mirror[V]) fails(verb string, err error) {
	reason, problem := m.explain(verb, err)
	m.failed(reason)
	m.mu.Lock()
	old := m.health
	if m.health.reason == "" {
		m.health.since = time.Now()
	}
	m.health.reason, m.health.problem = reason, problem
	m.mu.Unlock()
	if old.reason != reason {
		m.log.Warn("kubernetes watch fails: what was known last stays", keyResource, m.qualified(), keyNamespace, m.namespace, keyProblem, problem)
	}
	if old.problem != problem {
		m.changed()
	}
}

func (m *mirror[V]) works() {
	m.mu.Lock()
	old := m.health
	m.health = health{}
	m.mu.Unlock()
	if old.reason != "" {
		m.log.Info("kubernetes watch works again", keyResource, m.qualified(), keyNamespace, m.namespace, keyAfter, time.Since(old.since).Round(time.Millisecond))
		m.changed()
	}
}

var errClosed = errors.New("the connection was closed before an answer came")

// Reasons of failures, as metrics count them.
const (
	reasonForbidden    = "forbidden"
	reasonUnauthorized = "unauthorized"
	reasonAbsent       = "absent" // the API server doesn't know the kind
	reasonExpired      = "expired"
	reasonBusy         = "busy"
	reasonRefused      = "refused" // any other answer of the API server
	reasonUnreachable  = "unreachable"
)

func reasons() []string {
	return []string{reasonForbidden, reasonUnauthorized, reasonAbsent, reasonExpired, reasonBusy, reasonRefused, reasonUnreachable}
}

// explain names a failure and its remedy.
func (m *mirror[V]) explain(verb string, err error) (reason, problem string) {
	switch {
	case apierrors.IsForbidden(err):
		group := m.Group
		if group == "" {
			group = `""`
		}
		return reasonForbidden, fmt.Sprintf("may not %s %s in namespace %s: give this gateway's service account a Role there with apiGroups [%s], resources [%s], verbs [get, list, watch]",
			verb, m.Resource, m.namespace, group, m.Resource)
	case apierrors.IsUnauthorized(err):
		return reasonUnauthorized, "the API server does not accept this gateway's credentials: check its service account or kubeconfig"
	case apierrors.IsNotFound(err) && m.installed != "":
		return reasonAbsent, fmt.Sprintf("the API server does not know %s %s: %s; this is tried again until then", m.qualified(), m.Version, m.installed)
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return reasonExpired, "the API server has forgotten the watch's place: the list is read again"
	case apierrors.IsTooManyRequests(err):
		return reasonBusy, "the API server is overloaded: this is tried again"
	case errors.As(err, new(apierrors.APIStatus)):
		return reasonRefused, fmt.Sprintf("the API server refuses to %s %s: %v", verb, m.Resource, err)
	}
	return reasonUnreachable, fmt.Sprintf("can't %s %s: %v", verb, m.Resource, err)
}

// What follows is the reflector's store. It keeps facts, not objects.

// Replace takes over a complete list.
func (m *mirror[V]) Replace(list []any, _ string) error {
	items := make(map[string]V, len(list))
	for _, o := range list {
		name, v, err := m.factOf(o)
		if err != nil {
			return err
		}
		items[name] = v
	}
	m.mu.Lock()
	m.items, m.synced = items, true
	m.mu.Unlock()
	m.changed()
	return nil
}

// Add takes over an object.
func (m *mirror[V]) Add(o any) error { return m.Update(o) }

// Update takes over an object.
func (m *mirror[V]) Update(o any) error {
	name, v, err := m.factOf(o)
	if err != nil {
		return err
	}
	m.mu.Lock()
	old, had := m.items[name]
	m.items[name] = v
	m.mu.Unlock()
	if !had || !reflect.DeepEqual(old, v) { // most of what happens to a pod changes nothing here
		m.changed()
	}
	return nil
}

// Delete drops an object.
func (m *mirror[V]) Delete(o any) error {
	acc, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.items, acc.GetName())
	m.mu.Unlock()
	m.changed()
	return nil
}

// Resync does nothing: nothing here goes wrong by itself.
func (m *mirror[V]) Resync() error { return nil }

// Transformer keeps a list that is being read small: see cache.TransformingStore.
func (m *mirror[V]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		acc, err := meta.Accessor(o)
		if err != nil {
			return nil, err
		}
		acc.SetManagedFields(nil)
		acc.SetAnnotations(nil)
		acc.SetLabels(nil)
		acc.SetOwnerReferences(nil)
		acc.SetFinalizers(nil)
		return o, nil
	}
}

func (m *mirror[V]) factOf(o any) (string, V, error) {
	x, ok := o.(object[V])
	if !ok {
		var none V
		return "", none, fmt.Errorf("keep %T: no %s", o, m.qualified())
	}
	return x.GetName(), x.fact(), nil
}
