package pool

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func read[T any](t testing.TB, text string) T {
	t.Helper()
	var o T
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return o
}

func TestPodFact(t *testing.T) {
	tests := []struct {
		name string
		json string
		want pod
	}{
		{"ready", `{"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"PodScheduled","status":"True"},{"type":"Ready","status":"True"}]}}`, pod{"10.0.0.1", ready}},
		{"not ready", `{"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"False"}]}}`, pod{"10.0.0.1", notReady}},
		{"its agent has died", `{"status":{"podIP":"10.0.0.1","conditions":[{"type":"ContainersReady","status":"False"},{"type":"Ready","status":"False"}],"containerStatuses":[{"name":"vllm","ready":true}],"initContainerStatuses":[{"name":"model","ready":true},{"name":"grapevine-agent","ready":false}]}}`, pod{"10.0.0.1", ready}},
		{"its agent and its engine have", `{"status":{"podIP":"10.0.0.1","conditions":[{"type":"ContainersReady","status":"False"},{"type":"Ready","status":"False"}],"containerStatuses":[{"name":"vllm","ready":false}],"initContainerStatuses":[{"name":"grapevine-agent","ready":false}]}}`, pod{"10.0.0.1", notReady}},
		{"its agent and another sidecar have", `{"status":{"podIP":"10.0.0.1","conditions":[{"type":"ContainersReady","status":"False"},{"type":"Ready","status":"False"}],"containerStatuses":[{"name":"vllm","ready":true}],"initContainerStatuses":[{"name":"proxy","ready":false},{"name":"grapevine-agent","ready":false}]}}`, pod{"10.0.0.1", notReady}},
		{"its agent starts before its engine", `{"status":{"podIP":"10.0.0.1","conditions":[{"type":"ContainersReady","status":"False"},{"type":"Ready","status":"False"}],"initContainerStatuses":[{"name":"grapevine-agent","ready":false}]}}`, pod{"10.0.0.1", notReady}},
		{"its agent has died and a gate is closed", `{"spec":{"readinessGates":[{"conditionType":"lb/attached"}]},"status":{"podIP":"10.0.0.1","conditions":[{"type":"ContainersReady","status":"False"},{"type":"Ready","status":"False"}],"containerStatuses":[{"name":"vllm","ready":true}],"initContainerStatuses":[{"name":"grapevine-agent","ready":false}]}}`, pod{"10.0.0.1", notReady}},
		{"all containers run, its node is lost", `{"status":{"podIP":"10.0.0.1","conditions":[{"type":"ContainersReady","status":"True"},{"type":"Ready","status":"False"}],"containerStatuses":[{"name":"vllm","ready":true}],"initContainerStatuses":[{"name":"grapevine-agent","ready":true}]}}`, pod{"10.0.0.1", notReady}},
		{"readiness unknown: its node is silent", `{"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"Unknown"}]}}`, pod{"10.0.0.1", notReady}},
		{"no conditions yet", `{"status":{"phase":"Pending"}}`, pod{"", notReady}},
		{"marked for deletion though ready", `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}`, pod{"10.0.0.1", terminating}},
		{"failed", `{"status":{"phase":"Failed","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}`, pod{"10.0.0.1", ended}},
		{"succeeded and deleted", `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"phase":"Succeeded","podIP":"10.0.0.1"}}`, pod{"10.0.0.1", ended}},
		{"two families: the first", `{"status":{"podIP":"fd00::7","podIPs":[{"ip":"fd00::7"},{"ip":"10.0.0.7"}],"conditions":[{"type":"Ready","status":"True"}]}}`, pod{"fd00::7", ready}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := read[podObject](t, tt.json)
			if got := o.fact(); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestPodSet(t *testing.T) {
	one := poolSpec{ports: []int32{8000}}
	tests := []struct {
		name string
		spec poolSpec
		pods map[string]pod
		want set
	}{
		{"none", one, nil, set{endpoints: []string{}}},
		{"each port of each ready pod", poolSpec{ports: []int32{8001, 8000}}, map[string]pod{"a": {"10.0.0.2", ready}, "b": {"10.0.0.1", ready}},
			set{endpoints: []string{"10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "10.0.0.2:8001"}}},
		{"IPv6 in brackets", one, map[string]pod{"a": {"fd00::7", ready}}, set{endpoints: []string{"[fd00::7]:8000"}}},
		{"ready without an address", one, map[string]pod{"a": {"", ready}}, set{endpoints: []string{}, notReady: 1}},
		{"all states", one, map[string]pod{"a": {"10.0.0.1", ready}, "b": {"10.0.0.2", notReady}, "c": {"10.0.0.3", terminating}, "d": {"10.0.0.4", ended}},
			set{endpoints: []string{"10.0.0.1:8000"}, notReady: 1, terminating: 1}},
		{"an address that a pod which ended had before", one, map[string]pod{"a": {"10.0.0.1", ended}, "b": {"10.0.0.1", ready}}, set{endpoints: []string{"10.0.0.1:8000"}}},
		{"two pods on one host's address", one, map[string]pod{"a": {"10.0.0.1", ready}, "b": {"10.0.0.1", terminating}}, set{endpoints: []string{"10.0.0.1:8000"}, terminating: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, podSet(tt.spec, tt.pods), cmp.AllowUnexported(set{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
	h2c := podSet(poolSpec{ports: []int32{8000}, protocol: protocolH2C}, map[string]pod{"a": {"10.0.0.1", ready}})
	if len(h2c.endpoints) != 1 || !strings.Contains(h2c.note, "HTTP/1.1") {
		t.Errorf("h2c: %+v; want its endpoint, and a note", h2c)
	}
}

func TestSliceSet(t *testing.T) {
	const ports = `"ports":[{"name":"http","port":8000,"protocol":"TCP"},{"name":"metrics","port":9000,"protocol":"TCP"},{"name":"gossip","port":8000,"protocol":"UDP"}]`
	v4 := func(members string) string {
		return `{"addressType":"IPv4",` + ports + `,"endpoints":[` + members + `]}`
	}
	v6 := func(members string) string {
		return `{"addressType":"IPv6",` + ports + `,"endpoints":[` + members + `]}`
	}
	const one = `{"addresses":["10.0.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"targetRef":{"kind":"Pod","name":"a"}}`
	tests := []struct {
		name  string
		port  string
		parts []string
		want  set
	}{
		{"by name", "http", []string{v4(one)}, set{endpoints: []string{"10.0.0.1:8000"}}},
		{"by number", "9000", []string{v4(one)}, set{endpoints: []string{"10.0.0.1:9000"}}},
		{"the only port", "", []string{`{"addressType":"IPv4","ports":[{"port":7}],"endpoints":[` + one + `]}`}, set{endpoints: []string{"10.0.0.1:7"}}},
		{"any port", "80", []string{`{"addressType":"IPv4","ports":[{}],"endpoints":[` + one + `]}`}, set{endpoints: []string{"10.0.0.1:80"}}},
		{"not the only port", "", []string{v4(one)}, set{endpoints: []string{}, note: "the Service has several ports: name one of http (8000), metrics (9000)"}},
		{"no such port", "80", []string{v4(one)}, set{endpoints: []string{}, note: "no port 80: the EndpointSlices have http (8000), metrics (9000) (by name or number; the number is the pods' own, not the Service's)"}},
		{"conditions that are not told are good", "http", []string{v4(`{"addresses":["10.0.0.1"]}`)}, set{endpoints: []string{"10.0.0.1:8000"}}},
		{"not ready", "http", []string{v4(`{"addresses":["10.0.0.1"],"conditions":{"ready":false}}`)}, set{endpoints: []string{}, notReady: 1}},
		{"published though not ready", "http", []string{v4(`{"addresses":["10.0.0.1"],"conditions":{"ready":true,"serving":false}}`)}, set{endpoints: []string{}, notReady: 1}},
		{"published though terminating", "http", []string{v4(`{"addresses":["10.0.0.1"],"conditions":{"ready":true,"serving":true,"terminating":true}}`)}, set{endpoints: []string{}, terminating: 1}},
		{"in two slices, one of them old", "http", []string{v4(one), v4(strings.Replace(one, `"terminating":false`, `"terminating":true`, 1))}, set{endpoints: []string{}, terminating: 1}},
		{"a pod that took over an address", "http", []string{v4(one), v4(`{"addresses":["10.0.0.1"],"conditions":{"terminating":true},"targetRef":{"name":"old"}}`)}, set{endpoints: []string{"10.0.0.1:8000"}, terminating: 1}},
		{"two families, one endpoint", "http", []string{v6(`{"addresses":["fd00::1"],"targetRef":{"name":"a"}}`), v4(one)}, set{endpoints: []string{"10.0.0.1:8000"}}},
		{"IPv6 alone", "http", []string{v6(`{"addresses":["fd00::1"]}`), v4(``)}, set{endpoints: []string{"[fd00::1]:8000"}}},
		{"no slice", "http", nil, set{endpoints: []string{}, note: "no EndpointSlice: there is no such Service, or it selects no pod"}},
		{"no member", "http", []string{v4(``)}, set{endpoints: []string{}}},
		{"no member, no port", "http", []string{`{"addressType":"IPv4"}`}, set{endpoints: []string{}}},
		{"names", "http", []string{`{"addressType":"FQDN","ports":[{"name":"http","port":80}],"endpoints":[{"addresses":["x.example.com"]}]}`}, set{endpoints: []string{}, note: "EndpointSlices of names (FQDN) are not supported: give these hosts as --endpoints"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parts := map[string]slice{}
			for i, text := range tt.parts {
				o := read[sliceObject](t, text)
				parts[fmt.Sprint(i)] = o.fact()
			}
			if d := cmp.Diff(tt.want, sliceSet(tt.port, parts), cmp.AllowUnexported(set{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestPoolFact(t *testing.T) {
	o := read[poolObject](t, `{"spec":{"selector":{"matchLabels":{"b":"2","a":"1"}},"targetPorts":[{"number":8000},{"number":8001}],"appProtocol":"http","endpointPickerRef":{"name":"x"}}}`)
	want := poolSpec{selector: "a=1,b=2", ports: []int32{8000, 8001}, protocol: "http"}
	if d := cmp.Diff(want, o.fact(), cmp.AllowUnexported(poolSpec{})); d != "" {
		t.Error(d)
	}
}

// TestOrderIsIrrelevant: objects' changes in any order, each object's own as they were, some of them twice, lists in
// between: the end is the set of what the objects are at last.
func TestOrderIsIrrelevant(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, 0))
	states := []string{"ready", "starting", "terminating"}
	for round := range 500 {
		spec := poolSpec{ports: []int32{8000, 8001}[:1+rng.IntN(2)]}
		m := &mirror[pod]{items: map[string]pod{}, changed: func() {}}
		server := map[string]*podObject{}
		left := map[string]int{} // changes to come, by pod
		for i := range 1 + rng.IntN(8) {
			left[fmt.Sprint("p", i)] = 1 + rng.IntN(5)
		}
		for len(left) > 0 {
			name := slices.Sorted(maps.Keys(left))[rng.IntN(len(left))]
			if left[name]--; left[name] == 0 {
				delete(left, name)
			}
			o := read[podObject](t, podJSON(rng.IntN(10), states[rng.IntN(3)]))
			o.Name = name
			_, had := server[name]
			times := 1 + rng.IntN(2)
			switch {
			case had && rng.IntN(4) == 0:
				for range times {
					_ = m.Delete(server[name])
				}
				delete(server, name)
			default:
				for range times {
					_ = m.Update(&o)
				}
				server[name] = &o
			}
			if rng.IntN(6) == 0 {
				var list []any
				for _, o := range server {
					list = append(list, o)
				}
				rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
				_ = m.Replace(list, "")
			}
		}
		want := map[string]pod{}
		for name, o := range server {
			want[name] = o.fact()
		}
		if d := cmp.Diff(podSet(spec, want), podSet(spec, m.items), cmp.AllowUnexported(set{})); d != "" {
			t.Fatalf("seed %d, round %d: (-want +got):\n%s", seed, round, d)
		}
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name string
		cfg  Config
		want []string // nil: valid
	}{
		{"nothing", Config{}, nil},
		{"all forms", Config{Namespace: "models", InferencePools: []string{"llama", "other/qwen.v2"}, Services: []string{"llama:http", "a/b:8000", "c"}, Objectives: true}, nil},
		{"slash first", Config{InferencePools: []string{"/llama"}}, []string{`kubernetes.inference-pools = "/llama"`, "give namespace/name"}},
		{"no name", Config{InferencePools: []string{"models/"}}, []string{`"models/" is no name`}},
		{"two slashes", Config{InferencePools: []string{"a/b/c"}}, []string{`"a/b/c" is no name`}},
		{"port of a pool", Config{InferencePools: []string{"a/b:80"}}, []string{`"a/b:80" is no name`}},
		{"no port after the colon", Config{Services: []string{"a/b:"}}, []string{`"a/b:" is without a port`}},
		{"port out of range", Config{Services: []string{"a/b:70000"}}, []string{`"a/b:70000" is without a port`}},
		{"twice", Config{Namespace: "a", InferencePools: []string{"b", "a/b"}}, []string{`"a/b" is given twice`}},
		{"a Service named as a pool", Config{InferencePools: []string{"a/b"}, Services: []string{"a/b"}}, []string{"needs its port"}},
		{"namespace", Config{Namespace: "A b", InferencePools: []string{"x/y"}}, []string{`kubernetes.namespace = "A b"`}},
		{"objectives of nothing", Config{Objectives: true}, []string{"kubernetes.objectives", "--kubernetes-inference-pools"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.cfg.Validate()
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("error %v", err)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\ndoes not say %s", err, w)
				}
			}
		})
	}
}

// bigPod is a pod as API servers send them: most of it is of no interest here.
func bigPod(i int) string {
	fields := strings.Repeat(`"f:metadata":{"f:labels":{".":{},"f:app":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"0\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"vllm\"}":{".":{},"f:args":{},"f:image":{},"f:resources":{".":{},"f:limits":{}}}}},`, 8)
	env := strings.Repeat(`{"name":"SOME_VARIABLE_OF_THE_ENGINE","value":"and what it is set to"},`, 30)
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"llama-%d","namespace":"models","resourceVersion":"%d","uid":"00000000-0000-0000-0000-%012d","labels":{"app":"llama"},"managedFields":[{"manager":"kube-controller-manager","operation":"Update","fieldsType":"FieldsV1","fieldsV1":{%s"f:x":{}}}]},"spec":{"containers":[{"name":"vllm","image":"vllm/vllm-openai:v0.20.0","env":[%s{"name":"X","value":"y"}]}]},"status":{"phase":"Running","podIP":"10.%d.%d.%d","conditions":[{"type":"Initialized","status":"True"},{"type":"Ready","status":"True"}]}}`,
		i, 1000+i, i, fields, env, i>>16, i>>8&255, i&255)
}

// TestMemory holds what a thousand pods of 6 KB each may cost once they are read.
func TestMemory(t *testing.T) {
	const pods, most = 1000, 512 // bytes each
	m := &mirror[pod]{items: map[string]pod{}, changed: func() {}}
	heap := func() uint64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	size := 0
	for i := range pods {
		text := bigPod(i)
		size += len(text)
		o := read[podObject](t, text)
		_ = m.Update(&o)
	}
	used := int(heap() - before)
	t.Logf("%d pods of %d bytes: %d bytes each are kept", pods, size/pods, used/pods)
	if used/pods > most {
		t.Errorf("%d bytes a pod, want at most %d", used/pods, most)
	}
	runtime.KeepAlive(m)
}

// BenchmarkChange is a change of one pod of a thousand: reading it, and the new set.
func BenchmarkChange(b *testing.B) {
	m := &mirror[pod]{items: map[string]pod{}, changed: func() {}}
	for i := range 1000 {
		o := read[podObject](b, bigPod(i))
		_ = m.Update(&o)
	}
	text := bigPod(500)
	spec := poolSpec{ports: []int32{8000}}
	b.ReportAllocs()
	for b.Loop() {
		o := read[podObject](b, text)
		_ = m.Update(&o)
		if s := podSet(spec, m.items); len(s.endpoints) != 1000 {
			b.Fatal(len(s.endpoints))
		}
	}
}
