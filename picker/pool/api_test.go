package pool

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

// api is as much of an API server as a watch needs: list, watch with resource versions and bookmarks, lists that are
// streamed, label selectors, objects by name.
type api struct {
	*httptest.Server
	mu        sync.Mutex // guards what follows
	objects   map[string]map[string]any
	log       []event // all that happened
	version   int
	oldest    int           // watches from before it are told that it is gone
	more      chan struct{} // closed when the log grows, or watches are cut
	cut       chan struct{} // closed to cut watches
	down      bool
	streams   bool                        // lists can be streamed
	refuse    func(verb, path string) int // status; 0: serve
	requested map[string]int              // "verb resource?selector"
}

type event struct {
	typ, path string
	version   int
	object    map[string]any
	before    map[string]any // nil: added
}

func newAPI(t testing.TB) *api {
	a := &api{objects: map[string]map[string]any{}, more: make(chan struct{}), cut: make(chan struct{}), requested: map[string]int{}, version: 100, streams: true}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.cutWatches()
		a.Close()
	})
	return a
}

func (a *api) conn() *rest.Config { return &rest.Config{Host: a.URL} }

const (
	podsPath       = "/api/v1/namespaces/models/pods"
	slicesPath     = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
	poolsPath      = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"
	objectivesPath = "/apis/llm-d.ai/v1alpha2/namespaces/models/inferenceobjectives"
)

var kindOf = map[string][2]string{
	podsPath: {"v1", "Pod"}, slicesPath: {"discovery.k8s.io/v1", "EndpointSlice"},
	poolsPath: {"inference.networking.k8s.io/v1", "InferencePool"}, objectivesPath: {"llm-d.ai/v1alpha2", "InferenceObjective"},
}

// put creates or changes an object, given as JSON without kind and resource version.
func (a *api) put(path, name, text string) {
	var o map[string]any
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(fmt.Sprint(text, err))
	}
	md, _ := o["metadata"].(map[string]any)
	if md == nil {
		md = map[string]any{}
		o["metadata"] = md
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	md["name"], md["namespace"], md["resourceVersion"] = name, "models", strconv.Itoa(a.version)
	o["apiVersion"], o["kind"] = kindOf[path][0], kindOf[path][1]
	key := path + "/" + name
	typ := "MODIFIED"
	if a.objects[key] == nil {
		typ = "ADDED"
	}
	a.happened(event{typ: typ, path: path, object: o, before: a.objects[key]})
	a.objects[key] = o
}

func (a *api) remove(path, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := path + "/" + name
	a.version++
	a.happened(event{typ: "DELETED", path: path, object: a.objects[key], before: a.objects[key]})
	delete(a.objects, key)
}

func (a *api) happened(e event) {
	e.version = a.version
	a.log = append(a.log, e)
	close(a.more)
	a.more = make(chan struct{})
}

// set changes how the server behaves, under its lock; watches that run are cut.
func (a *api) set(f func()) {
	a.mu.Lock()
	f()
	a.mu.Unlock()
	a.cutWatches()
}

func (a *api) cutWatches() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.cut)
	a.cut = make(chan struct{})
}

func (a *api) asked(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.requested[what]
}

func status(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"as the test wants it","reason":%q,"code":%d}`, reason, code)
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	verb := "list"
	if q.Get("watch") == "true" {
		verb = "watch"
	}
	a.mu.Lock()
	a.requested[verb+" "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]+"?"+q.Get("labelSelector")]++
	down, refuse, streams := a.down, a.refuse, a.streams
	a.mu.Unlock()
	if down {
		panic(http.ErrAbortHandler)
	}
	if refuse != nil {
		switch code := refuse(verb, r.URL.Path); code {
		case 0:
		case http.StatusForbidden:
			status(w, code, "Forbidden")
			return
		case http.StatusNotFound:
			http.NotFound(w, r) // as for an unknown group
			return
		default:
			status(w, code, "")
			return
		}
	}
	selector, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		status(w, http.StatusBadRequest, "BadRequest")
		return
	}
	matches := func(o map[string]any) bool {
		if o == nil {
			return false
		}
		md := o["metadata"].(map[string]any)
		if f := q.Get("fieldSelector"); f != "" && f != "metadata.name="+md["name"].(string) {
			return false
		}
		set := labels.Set{}
		if have, ok := md["labels"].(map[string]any); ok {
			for k, v := range have {
				set[k] = v.(string)
			}
		}
		return selector.Matches(set)
	}
	w.Header().Set("Content-Type", "application/json")
	if verb == "list" {
		a.list(w, r.URL.Path, matches)
		return
	}
	initial := q.Get("sendInitialEvents") == "true"
	if initial && !streams {
		status(w, http.StatusUnprocessableEntity, "Invalid")
		return
	}
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	a.watch(w, r, from, initial, matches)
}

func (a *api) list(w http.ResponseWriter, path string, matches func(map[string]any) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []any{}
	for _, key := range slices.Sorted(maps.Keys(a.objects)) {
		if o := a.objects[key]; strings.HasPrefix(key, path+"/") && matches(o) {
			items = append(items, o)
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": kindOf[path][0], "kind": kindOf[path][1] + "List", "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
	})
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, from int, initial bool, matches func(map[string]any) bool) {
	enc := json.NewEncoder(w)
	send := func(typ string, o any) { _ = enc.Encode(map[string]any{"type": typ, "object": o}) }
	path := r.URL.Path
	a.mu.Lock()
	cut := a.cut
	if !initial && from < a.oldest {
		a.mu.Unlock()
		send("ERROR", map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410})
		return
	}
	if initial {
		for _, key := range slices.Sorted(maps.Keys(a.objects)) {
			if o := a.objects[key]; strings.HasPrefix(key, path+"/") && matches(o) {
				send("ADDED", o)
			}
		}
		from = a.version
		send("BOOKMARK", map[string]any{"apiVersion": kindOf[path][0], "kind": kindOf[path][1], "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(from), "annotations": map[string]string{"k8s.io/initial-events-end": "true"},
		}})
	}
	a.mu.Unlock()
	for at := 0; ; {
		a.mu.Lock()
		more := a.more
		for ; at < len(a.log); at++ {
			e := a.log[at]
			if e.version <= from || e.path != path {
				continue
			}
			was, is := matches(e.before), matches(e.object)
			switch {
			case e.typ == "DELETED" && was, e.typ == "MODIFIED" && was && !is:
				send("DELETED", e.object)
			case is && !was:
				send("ADDED", e.object)
			case is && e.typ != "DELETED":
				send("MODIFIED", e.object)
			}
		}
		a.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// eventually fails the test if ok does not come true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("it never came that %s", what)
		}
	}
}
