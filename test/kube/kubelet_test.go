package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// kubelet schedules pods and runs those of its node. It does what the tests need of the real one: network, volumes,
// environment, users, init containers and native sidecars in order, restarts, probes, status, and graceful ends.
// Resource limits are not enforced, and images are not pulled: see image.
type kubelet struct {
	p      *plane
	node   string
	broken sync.Map // image name → true: cannot be pulled

	mu     sync.Mutex // guards the rest
	pods   map[types.UID]*pod
	nextIP int
}

func startKubelet(t *testing.T, p *plane, node string) *kubelet {
	k := &kubelet{p: p, node: node, pods: map[types.UID]*pod{}}
	p.addNode(t, node, podCIDR, nil)
	if err := os.WriteFile(p.file("hosts"), []byte("127.0.0.1 localhost\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { k.loop(ctx, 50*time.Millisecond, k.sync) })
	wg.Go(func() { k.loop(ctx, 100*time.Millisecond, k.schedule) })
	wg.Go(func() { k.loop(ctx, 200*time.Millisecond, k.names) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		k.mu.Lock()
		left := k.pods
		k.mu.Unlock()
		for _, pod := range left {
			pod.kill()
		}
		if t.Failed() {
			for _, pod := range left {
				t.Log(pod.report())
			}
		}
	})
	return k
}

// addNode makes a Ready node.
func (p *plane) addNode(t *testing.T, name, cidr string, annotations map[string]string) {
	t.Helper()
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, Labels: map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
		Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
	}
	if err := p.create("/api/v1/nodes", node, nil); err != nil {
		t.Fatal(err)
	}
	p.patchObject(t, "/api/v1/nodes/"+name+"/status", `{"status":{"conditions":[{"type":"Ready","status":"True"}],"allocatable":{"cpu":"64","memory":"512Gi","pods":"2000"},"capacity":{"cpu":"64","memory":"512Gi","pods":"2000"}}}`)
}

// loop calls step until ctx ends. An API server that is down for a while is nothing special.
func (k *kubelet) loop(ctx context.Context, every time.Duration, step func(context.Context) error) {
	for ctx.Err() == nil {
		_ = step(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// schedule binds pods that have no node: to the node that their selector names, else to this one.
func (k *kubelet) schedule(context.Context) error {
	var list corev1.PodList
	if err := k.p.get("/api/v1/pods?fieldSelector=spec.nodeName%3D", &list); err != nil {
		return err
	}
	for _, pod := range list.Items {
		node := k.node
		if named := pod.Spec.NodeSelector["kubernetes.io/hostname"]; named != "" {
			node = named
		}
		binding := corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		if err := k.p.create("/api/v1/namespaces/"+pod.Namespace+"/pods/"+pod.Name+"/binding", binding, nil); err != nil && code(err) == 0 {
			return err
		}
	}
	return nil
}

// names writes the hosts file of all pods: each Service's name stands for its pods. The file stays the same one, since it is mounted.
func (k *kubelet) names(context.Context) error {
	var list discoveryv1.EndpointSliceList
	if err := k.p.get("/apis/discovery.k8s.io/v1/endpointslices", &list); err != nil {
		return err
	}
	lines := []string{"127.0.0.1 localhost", "::1 localhost"}
	for _, slice := range list.Items {
		name := slice.Labels[discoveryv1.LabelServiceName] + "." + slice.Namespace
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				lines = append(lines, fmt.Sprintf("%s %s %s.svc %s.svc.cluster.local", e.Addresses[0], name, name, name))
			}
		}
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n") + "\n"
	if old, err := os.ReadFile(k.p.file("hosts")); err == nil && string(old) == text {
		return nil
	}
	return os.WriteFile(k.p.file("hosts"), []byte(text), 0o644)
}

// sync starts pods that are new, ends those that are to go and forgets those that are gone.
func (k *kubelet) sync(ctx context.Context) error {
	var list corev1.PodList
	if err := k.p.get("/api/v1/pods?fieldSelector=spec.nodeName%3D"+k.node, &list); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	present := map[types.UID]bool{}
	for _, object := range list.Items {
		present[object.UID] = true
		running := k.pods[object.UID]
		if running == nil && object.DeletionTimestamp != nil {
			go func() { _ = k.p.remove("/api/v1/namespaces/" + object.Namespace + "/pods/" + object.Name) }()
			continue
		}
		if running == nil {
			k.nextIP++
			running = &pod{k: k, object: object, ip: fmt.Sprintf("10.64.%d.%d", 1+k.nextIP/250, 1+k.nextIP%250), ns: fmt.Sprintf("gv%d", k.nextIP), stop: make(chan time.Duration, 1)}
			running.dir = filepath.Join(k.p.dir, "pods", object.Namespace+"_"+object.Name+"_"+string(object.UID[:4]))
			k.pods[object.UID] = running
			go running.run(ctx)
		}
		if object.DeletionTimestamp != nil {
			grace := 30 * time.Second
			if s := object.DeletionGracePeriodSeconds; s != nil {
				grace = time.Duration(*s) * time.Second
			}
			select {
			case running.stop <- grace:
			default:
			}
		}
	}
	for uid, running := range k.pods {
		if !present[uid] {
			delete(k.pods, uid)
			go running.kill()
		}
	}
	return nil
}

// find returns the running pod of a name.
func (k *kubelet) find(namespace, name string) *pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, pod := range k.pods {
		if pod.object.Namespace == namespace && pod.object.Name == name {
			return pod
		}
	}
	return nil
}

// pod is one that really runs.
type pod struct {
	k       *kubelet
	object  corev1.Pod // as it was when it was first seen
	ip, ns  string
	dir     string             // logs, volumes and root folders
	stop    chan time.Duration // gets the grace period when the pod is to end
	volumes map[string]string

	mu         sync.Mutex // guards the rest
	containers []*container
	problem    string // why it does not start
	begun      bool   // all init containers are through
	ended      bool
	told       string // last status sent
}

func (p *pod) path() string {
	return "/api/v1/namespaces/" + p.object.Namespace + "/pods/" + p.object.Name
}

// run starts the pod's containers in order and keeps its status until it is to end.
func (p *pod) run(ctx context.Context) {
	for _, dir := range []string{"logs", "volumes", "roots"} {
		if err := os.MkdirAll(filepath.Join(p.dir, dir), 0o755); err != nil {
			p.fail(err)
			return
		}
	}
	if err := p.network(); err != nil {
		p.fail(err)
		return
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	started := 0 // containers, init containers first
	inits := len(p.object.Spec.InitContainers)
	all := slices.Concat(p.object.Spec.InitContainers, p.object.Spec.Containers)
	for {
		select {
		case <-ctx.Done():
			return
		case grace := <-p.stop:
			p.end(grace)
			return
		case <-tick.C:
		}
		if p.volumes == nil {
			if volumes, err := p.makeVolumes(); err != nil {
				p.fail(err)
			} else {
				p.volumes = volumes
			}
		}
		for p.volumes != nil && started < len(all) && (started == 0 || started > inits || p.passed(started-1)) {
			c, err := p.startContainer(all[started], started < inits)
			p.fail(err)
			if err != nil {
				break
			}
			p.mu.Lock()
			p.containers = append(p.containers, c)
			started++
			p.begun = started > inits || len(p.object.Spec.Containers) == 0
			p.mu.Unlock()
		}
		p.tell()
	}
}

// passed says whether the next container may start after init container i.
func (p *pod) passed(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.containers[i]
	if c.sidecar {
		return c.alive()
	}
	return c.exited() && c.status() == 0
}

// fail notes why the pod does not start; nil: nothing holds it up.
func (p *pod) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem = ""
	if err != nil {
		p.problem = err.Error()
	}
}

// tell sends the pod's status if it has changed.
func (p *pod) tell() {
	status := p.status()
	text, err := json.Marshal(map[string]any{"status": status})
	p.mu.Lock()
	same := p.told == string(text)
	p.mu.Unlock()
	if err != nil || same {
		return
	}
	if err := p.k.p.do("PATCH", p.path()+"/status", patch(text), nil); err == nil {
		p.mu.Lock()
		p.told = string(text)
		p.mu.Unlock()
	}
}

func (p *pod) status() corev1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := corev1.PodStatus{Phase: corev1.PodPending, PodIP: p.ip, PodIPs: []corev1.PodIP{{IP: p.ip}}, HostIP: bridgeIP, Message: p.problem}
	ready := p.begun && len(p.containers) == len(p.object.Spec.InitContainers)+len(p.object.Spec.Containers)
	if ready {
		s.Phase = corev1.PodRunning
	}
	for _, c := range p.containers {
		cs := corev1.ContainerStatus{Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, ContainerID: "test://" + p.ns + "/" + c.spec.Name, RestartCount: int32(c.restarts.Load()), Ready: c.ready.Load(), Started: new(bool)}
		*cs.Started = c.alive()
		switch {
		case c.alive():
			cs.State.Running = &corev1.ContainerStateRunning{}
		case c.exited():
			cs.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: int32(c.status())}
			cs.Ready = c.init && !c.sidecar && c.status() == 0
		default:
			cs.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		}
		if c.init {
			s.InitContainerStatuses = append(s.InitContainerStatuses, cs)
		} else {
			s.ContainerStatuses = append(s.ContainerStatuses, cs)
		}
		ready = ready && cs.Ready
	}
	condition := func(kind corev1.PodConditionType, is bool) {
		value := corev1.ConditionFalse
		if is {
			value = corev1.ConditionTrue
		}
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: kind, Status: value})
	}
	condition(corev1.PodScheduled, true)
	condition(corev1.PodInitialized, p.begun)
	condition(corev1.ContainersReady, ready)
	condition(corev1.PodReady, ready)
	return s
}

// end stops the containers, sidecars last, and removes the object.
func (p *pod) end(grace time.Duration) {
	p.mu.Lock()
	all := slices.Clone(p.containers)
	p.mu.Unlock()
	deadline := time.Now().Add(grace)
	for _, sidecars := range []bool{false, true} {
		var wg sync.WaitGroup
		for _, c := range all {
			if c.sidecar != sidecars {
				continue
			}
			wg.Go(func() {
				if h := c.spec.Lifecycle; h != nil && h.PreStop != nil && h.PreStop.Sleep != nil {
					time.Sleep(min(time.Until(deadline), time.Duration(h.PreStop.Sleep.Seconds)*time.Second))
				}
				c.finish(syscall.SIGTERM, max(0, time.Until(deadline)))
			})
		}
		wg.Wait()
	}
	p.kill()
	_ = p.k.p.remove(p.path())
}

// kill ends everything at once.
func (p *pod) kill() {
	p.mu.Lock()
	all := slices.Clone(p.containers)
	first := !p.ended
	p.ended = true
	p.mu.Unlock()
	for _, c := range all {
		c.finish(syscall.SIGKILL, 0)
	}
	if first {
		p.unplug()
	}
}

// report tells how the pod fared, with the last lines of each log.
func (p *pod) report() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "pod %s/%s at %s: %s\n", p.object.Namespace, p.object.Name, p.ip, p.problem)
	for _, c := range p.containers {
		fmt.Fprintf(&b, "  container %s, %d restarts, ready %v:\n%s\n", c.spec.Name, c.restarts.Load(), c.ready.Load(), tail(c.log, 12))
	}
	return b.String()
}
