package kube

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	pools   = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"
	limit   = time.Second // within which the picker must know of a change
	manual  = "manual-0"  // a node whose pods get their status from the test
	changes = 25
)

// makePool creates an InferencePool of the pods with a label app.
func (p *plane) makePool(t *testing.T, namespace, name, app string) {
	t.Helper()
	p.kubectl(t, fmt.Sprintf(`apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %s, namespace: %s}
spec:
  selector: {matchLabels: {app: %s}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: grapevine-gateway, port: {number: 9002}, failureMode: FailOpen}
`, name, namespace, app), "apply", "--server-side", "--force-conflicts", "-f", "-")
}

// poolChanges measures how soon a gateway knows of what changes on the API server. The pods are objects only, so that
// the moment of each change is known.
func (p *plane) poolChanges(t *testing.T) {
	g := p.gateway(t, release, release)
	p.addNode(t, manual, "10.66.0.0/16", nil)
	p.makePool(t, "models", "tiny", "changing")
	base := "/api/v1/namespaces/models/pods/"
	has := func(address string) func(map[string]endpoint) bool {
		return func(e map[string]endpoint) bool { _, ok := e[address]; return ok }
	}
	hasNot := func(address string) func(map[string]endpoint) bool {
		return func(e map[string]endpoint) bool { _, ok := e[address]; return !ok }
	}
	var ready, unready, again, terminating []time.Duration
	for i := range changes {
		name, ip := fmt.Sprintf("changing-%d", i), fmt.Sprintf("10.66.0.%d", i+1)
		address := ip + ":8000"
		p.objectPod(t, "models", name, "changing", manual)
		p.setReady(t, base+name, ip, true)
		ready = append(ready, g.until(t, 10*time.Second, "a ready pod", has(address)))
		p.setReady(t, base+name, ip, false)
		unready = append(unready, g.until(t, 10*time.Second, "a pod that is not ready", hasNot(address)))
		p.setReady(t, base+name, ip, true)
		again = append(again, g.until(t, 10*time.Second, "a pod that is ready again", has(address)))
		if err := p.do(http.MethodDelete, base+name+"?gracePeriodSeconds=60", nil, nil); err != nil {
			t.Fatal(err)
		}
		terminating = append(terminating, g.until(t, 10*time.Second, "a terminating pod", hasNot(address)))
		if err := p.remove(base + name); err != nil {
			t.Fatal(err)
		}
	}
	// The pool itself changes: other pods are selected, and back.
	var selected []time.Duration
	p.objectPod(t, "models", "other", "other", manual)
	p.setReady(t, base+"other", "10.66.1.1", true)
	for range changes {
		p.patchObject(t, pools+"/tiny", `{"spec":{"selector":{"matchLabels":{"app":"other"}}}}`)
		selected = append(selected, g.until(t, 10*time.Second, "another selector", has("10.66.1.1:8000")))
		p.patchObject(t, pools+"/tiny", `{"spec":{"targetPorts":[{"number":8000},{"number":8001}]}}`)
		selected = append(selected, g.until(t, 10*time.Second, "another target port", has("10.66.1.1:8001")))
		p.patchObject(t, pools+"/tiny", `{"spec":{"targetPorts":[{"number":8000}],"selector":{"matchLabels":{"app":"changing"}}}}`)
		selected = append(selected, g.until(t, 10*time.Second, "the selector of before", hasNot("10.66.1.1:8000")))
	}
	if err := p.remove(base + "other"); err != nil {
		t.Fatal(err)
	}
	p.report(t, map[string][]time.Duration{"pod ready": ready, "pod not ready": unready, "pod ready again": again, "pod terminating": terminating, "InferencePool changed": selected})
}

// report logs and judges how soon changes were known.
func (p *plane) report(t *testing.T, times map[string][]time.Duration) {
	t.Helper()
	for what, taken := range times {
		t.Logf("%-24s known to the gateway after %s", what, spread(taken))
		for _, d := range taken {
			if d > limit {
				t.Errorf("%s: known after %v, more than %v", what, d, limit)
			}
		}
	}
}

// objectPod creates a pod that only exists as an object.
func (p *plane) objectPod(t *testing.T, namespace, name, app, node string) {
	t.Helper()
	pod := enginePod(namespace, name)
	pod.Labels = map[string]string{"app": app, inject: "disabled"}
	pod.Spec.NodeName = node
	p.mustCreate(t, pod)
}

// setReady gives a pod an address and says whether it is ready.
func (p *plane) setReady(t *testing.T, path, ip string, ready bool) {
	t.Helper()
	value := map[bool]string{true: "True", false: "False"}[ready]
	p.patchObject(t, path+"/status", fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":%q},{"type":"ContainersReady","status":%q}]}}`, ip, ip, value, value))
}

// sliceChanges measures the same for a plain Service: EndpointSlices written by the test, then by the controller.
func (p *plane) sliceChanges(t *testing.T) {
	g := p.gateway(t, release, release)
	service := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "tiny-svc", Namespace: "models"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 8000}}},
	}
	if err := p.create("/api/v1/namespaces/models/services", service, nil); err != nil {
		t.Fatal(err)
	}
	path := "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "by-hand", Labels: map[string]string{discoveryv1.LabelServiceName: "tiny-svc", discoveryv1.LabelManagedBy: "test"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8000)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
	if err := p.create(path, slice, nil); err != nil {
		t.Fatal(err)
	}
	var in, out []time.Duration
	for i := range changes {
		ip := fmt.Sprintf("10.67.0.%d", i+1)
		p.patchObject(t, path+"/by-hand", fmt.Sprintf(`{"endpoints":[{"addresses":[%q],"conditions":{"ready":true,"serving":true,"terminating":false}}]}`, ip))
		in = append(in, g.until(t, 10*time.Second, "an endpoint of a slice", func(e map[string]endpoint) bool { _, ok := e[ip+":8000"]; return ok }))
		p.patchObject(t, path+"/by-hand", fmt.Sprintf(`{"endpoints":[{"addresses":[%q],"conditions":{"ready":false,"serving":true,"terminating":true}}]}`, ip))
		out = append(out, g.until(t, 10*time.Second, "a terminating endpoint of a slice", func(e map[string]endpoint) bool { _, ok := e[ip+":8000"]; return !ok }))
	}
	if err := p.remove(path + "/by-hand"); err != nil {
		t.Fatal(err)
	}
	p.report(t, map[string][]time.Duration{"endpoint in a slice": in, "endpoint terminating": out})

	// By Kubernetes' own controller, which takes its time.
	p.patchObject(t, "/api/v1/namespaces/models/services/tiny-svc", `{"spec":{"selector":{"app":"served"}}}`)
	var whole []time.Duration
	for i := range changes {
		name, ip := fmt.Sprintf("served-%d", i), fmt.Sprintf("10.67.1.%d", i+1)
		p.objectPod(t, "models", name, "served", manual)
		p.setReady(t, "/api/v1/namespaces/models/pods/"+name, ip, true)
		whole = append(whole, g.until(t, 10*time.Second, "a pod of a Service", func(e map[string]endpoint) bool { _, ok := e[ip+":8000"]; return ok }))
		if err := p.remove("/api/v1/namespaces/models/pods/" + name); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%-24s known to the gateway after %s, the endpointslice controller's time included", "pod of a Service ready", spread(whole))
}

// fleet starts n engines with agents in namespace models, as a Deployment that people would write, and waits until the
// gateway hears all agents.
func (p *plane) fleet(t *testing.T, n int, more string) *gateway {
	t.Helper()
	p.makePool(t, "models", "tiny", "tiny")
	p.kubectl(t, fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: tiny, namespace: models}
spec:
  replicas: %d
  selector: {matchLabels: {app: tiny}}
  template:
    metadata: {labels: {app: tiny}, annotations: {test/engine-args: %q, grapevine-llm.github.io/hybrid: "false"}}
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.11.2
          args: [--model, lab/tiny, --served-model-name, tiny, --port, "8000"]
          ports: [{name: http, containerPort: 8000}]
          lifecycle: {preStop: {sleep: {seconds: 2}}} # engines break off what runs when they are told to go
          readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1}
`, n, more), "apply", "--server-side", "-f", "-")
	g := p.gateway(t, release, release)
	took := g.until(t, time.Minute, "all agents to report", func(e map[string]endpoint) bool {
		reporting := 0
		for _, one := range e {
			if one.Rung == "digest" {
				reporting++
			}
		}
		return reporting == n && len(e) == n
	})
	t.Logf("%d injected engines from `kubectl apply` to the gateway's view in %v", n, took.Round(time.Millisecond))
	return g
}

// endToEnd sends prompts through the chart's gateway to injected engines: the same prompt goes to the pod that holds it.
func (p *plane) endToEnd(t *testing.T) {
	g := p.fleet(t, 3, "")
	home := map[int]string{}
	hits, exact := 0, 0
	for round := range 3 {
		for i := range 6 {
			a, err := g.ask(words(fmt.Sprintf("chat%d", i), 150+40*round), 4)
			if err != nil || a.status != http.StatusOK {
				t.Fatalf("request: %v, %+v", err, a)
			}
			if round == 0 {
				home[i] = a.endpoint
				continue
			}
			if a.endpoint == home[i] && a.cached > 0 {
				hits++
			}
			if a.predicted == a.cached {
				exact++
			}
		}
		time.Sleep(300 * time.Millisecond)
	}
	t.Logf("12 prompts that came back: %d went to the pod that held them, %d with exactly the predicted cached tokens", hits, exact)
	if hits != 12 {
		t.Errorf("%d of 12 prompts found their cache", hits)
	}
}

// doctor runs the example of a pod that examines the release from inside, beside what endToEnd has started.
func (p *plane) doctor(t *testing.T) {
	text, err := os.ReadFile("../../deploy/examples/doctor/pod.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest := strings.NewReplacer("REGISTRY", "grapevine.test", "TAG", "v1").Replace(string(text))
	p.kubectl(t, manifest, "apply", "-f", "-")
	var state corev1.PodStatus
	eventually(t, time.Minute, "the doctor to end", func() error {
		var pod corev1.Pod
		if err := p.get("/api/v1/namespaces/models/pods/grapevine-doctor", &pod); err != nil {
			return err
		}
		if state = pod.Status; len(state.ContainerStatuses) == 0 || state.ContainerStatuses[0].State.Terminated == nil {
			return fmt.Errorf("%s: %w", state.Message, errNotYet)
		}
		return nil
	})
	said, err := os.ReadFile(p.kubelet.find("models", "grapevine-doctor").containers[0].log)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", said)
	// One of the two pools has no pods: that is a fault, and the only one.
	if code := state.ContainerStatuses[0].State.Terminated.ExitCode; code != 1 || strings.Count(string(said), "FAILED") != 1 {
		t.Errorf("the doctor ended with %d, want one fault", code)
	}
	for _, want := range []string{"a state exchange went through", "the node uses the first key of the file", "a packet came back"} {
		if n := strings.Count(string(said), want); n != 2 {
			t.Errorf("the doctor says %q of %d gateways, want 2", want, n)
		}
	}
	if err := p.remove("/api/v1/namespaces/models/pods/grapevine-doctor"); err != nil {
		t.Fatal(err)
	}
}

// apiServerDies takes the API server away while requests run: none fails. Back again, changes are seen.
func (p *plane) apiServerDies(t *testing.T) {
	g := p.gateway(t, release, release)
	stop := make(chan struct{})
	var sent, failed atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			a, err := g.ask(words(fmt.Sprintf("outage%d", i), 40), 2)
			sent.Add(1)
			if err != nil || a.status != http.StatusOK {
				failed.Add(1)
				t.Logf("during the outage: %v, %+v", err, a)
			}
		}
	})
	time.Sleep(time.Second)
	p.apiserver.Kill()
	time.Sleep(8 * time.Second)
	during := sent.Load()
	if err := p.apiserver.Start(); err != nil {
		t.Fatal(err)
	}
	p.waitReady(t)
	name := "/api/v1/namespaces/models/pods/late"
	p.objectPod(t, "models", "late", "tiny", manual)
	p.setReady(t, name, "10.66.2.1", true)
	back := g.until(t, time.Minute, "a pod made after the outage", func(e map[string]endpoint) bool { _, ok := e["10.66.2.1:8000"]; return ok })
	if err := p.remove(name); err != nil {
		t.Fatal(err)
	}
	g.until(t, time.Minute, "that pod to be gone", func(e map[string]endpoint) bool { _, ok := e["10.66.2.1:8000"]; return !ok })
	close(stop)
	wg.Wait()
	t.Logf("API server down for 8 s: %d requests by then, %d of %d failed; the first change after it was known after %v", during, failed.Load(), sent.Load(), back.Round(time.Millisecond))
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed", failed.Load(), sent.Load())
	}
}

// scaleSignal saturates the engines: the gateway wants more endpoints within five seconds, while no engine has a queue.
func (p *plane) scaleSignal(t *testing.T) {
	g := p.gateway(t, release, release)
	engines, err := g.status()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	defer wg.Wait()
	defer close(stop)
	began := time.Now()
	for c := range 48 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				// Long prompts that nobody has: a prefill of a second each.
				_, _ = g.ask(words(fmt.Sprintf("load%d-%d-", c, i), 2500), 2)
			}
		})
	}
	worst := 0.0
	var wanted float64
	took := eventually(t, 20*time.Second, "the gateway to want more endpoints", func() error {
		for id := range engines {
			if waiting, err := g.metric("http://"+id+"/metrics", "vllm:num_requests_waiting"); err == nil {
				worst = max(worst, waiting)
			}
		}
		if wanted, err = g.metric(g.admin("/metrics"), "grapevine_wanted_endpoints"); err != nil {
			return err
		}
		if wanted <= float64(len(engines)) {
			return fmt.Errorf("wanted %v of %d endpoints", wanted, len(engines))
		}
		return nil
	})
	held, err := g.metric(g.admin("/metrics"), "grapevine_held_requests")
	t.Logf("%d endpoints, 48 clients: %v wanted after %v, %v requests held (%v), longest queue seen in an engine: %v", len(engines), wanted, took.Round(time.Millisecond), held, err, worst)
	if took > 5*time.Second {
		t.Errorf("wanted endpoints rose after %v, more than 5 s", time.Since(began))
	}
	if worst > 0 {
		t.Errorf("an engine had %v requests waiting", worst)
	}
}

// drainPod deletes a pod that serves: no request fails, and none goes there once it is marked.
func (p *plane) drainPod(t *testing.T) {
	g := p.gateway(t, release, release)
	var list corev1.PodList
	if err := p.get("/api/v1/namespaces/models/pods?labelSelector=app%3Dtiny", &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) == 0 {
		t.Fatal("no engines")
	}
	victim := list.Items[0]
	address := victim.Status.PodIP + ":8000"
	stop := make(chan struct{})
	var marked atomic.Bool
	var sent, failed, late atomic.Int64
	var wg sync.WaitGroup
	for c := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				after := marked.Load()
				a, err := g.ask(words(fmt.Sprintf("drain%d-%d", c, i), 60), 8)
				sent.Add(1)
				if err != nil || a.status != http.StatusOK {
					failed.Add(1)
					t.Logf("while a pod went: %v, %+v", err, a)
				}
				if after && a.endpoint == address {
					late.Add(1)
				}
			}
		})
	}
	time.Sleep(time.Second)
	if err := p.do(http.MethodDelete, "/api/v1/namespaces/models/pods/"+victim.Name, nil, nil); err != nil {
		t.Fatal(err)
	}
	took := g.until(t, 5*time.Second, "the pod to leave", func(e map[string]endpoint) bool { _, ok := e[address]; return !ok })
	marked.Store(true)
	time.Sleep(4 * time.Second)
	close(stop)
	wg.Wait()
	t.Logf("a serving pod was deleted: out after %v; %d of %d requests failed, %d went there afterwards", took.Round(time.Millisecond), failed.Load(), sent.Load(), late.Load())
	if failed.Load() > 0 || late.Load() > 0 {
		t.Errorf("%d requests failed, %d went to a pod that was going", failed.Load(), late.Load())
	}
}

// agentDies kills the agents' processes: pods stay ready and requests go on.
func (p *plane) agentDies(t *testing.T) {
	g := p.gateway(t, release, release)
	var list corev1.PodList
	if err := p.get("/api/v1/namespaces/models/pods?labelSelector=app%3Dtiny", &list); err != nil {
		t.Fatal(err)
	}
	for _, object := range list.Items {
		running := p.kubelet.find("models", object.Name)
		if running == nil {
			continue
		}
		for _, c := range running.containers {
			if strings.HasPrefix(c.spec.Name, "grapevine") {
				c.signal(syscall.SIGKILL)
			}
		}
	}
	for i := range 20 {
		if a, err := g.ask(words(fmt.Sprintf("dead%d", i), 60), 2); err != nil || a.status != http.StatusOK {
			t.Errorf("without agents: %v, %+v", err, a)
		}
	}
	took := g.until(t, time.Minute, "agents to be back", func(e map[string]endpoint) bool {
		for _, one := range e {
			if one.Rung != "digest" {
				return false
			}
		}
		return len(e) > 0
	})
	t.Logf("all agents killed: 20 requests answered, all digests back after %v", took.Round(time.Millisecond))
}

func ptr[T any](v T) *T { return &v }
