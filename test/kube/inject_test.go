package kube

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// agentOf returns the injected agent, nil where there is none.
func agentOf(pod *corev1.Pod) *corev1.Container {
	for i, c := range pod.Spec.InitContainers {
		if c.Name == "grapevine-agent" {
			return &pod.Spec.InitContainers[i]
		}
	}
	return nil
}

// injectedPods creates pods in namespaces of all kinds, and has them run.
func (p *plane) injectedPods(t *testing.T) {
	restricted := &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr(false), RunAsNonRoot: ptr(true), RunAsUser: ptr(int64(1000)),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	for _, c := range []struct {
		name      string
		labels    map[string]string // of the namespace
		prepare   string            // manifests for it
		change    func(*corev1.Pod)
		untouched bool
	}{
		{name: "by-agent", labels: map[string]string{inject: "agent"}},
		{name: "by-configure", labels: map[string]string{inject: "configure"}},
		{name: "by-pod-label", change: func(pod *corev1.Pod) { pod.Labels[inject] = "agent" }},
		{name: "no-label", untouched: true},
		{name: "namespace-disabled", labels: map[string]string{inject: "disabled"}, change: func(pod *corev1.Pod) { pod.Labels[inject] = "agent" }, untouched: true},
		{name: "pod-disabled", labels: map[string]string{inject: "agent"}, change: func(pod *corev1.Pod) { pod.Labels[inject] = "disabled" }, untouched: true},
		{name: "no-engine", labels: map[string]string{inject: "agent"}, change: func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Name, pod.Spec.Containers[0].Image = "web", "grapevine.test/gateway:v1"
			pod.Spec.Containers[0].Args, pod.Spec.Containers[0].ReadinessProbe = []string{"--endpoints", "10.64.0.1:1"}, nil
		}, untouched: true},
		{name: "strict", labels: map[string]string{inject: "agent", "pod-security.kubernetes.io/enforce": "restricted"}, change: func(pod *corev1.Pod) {
			pod.Spec.Containers[0].SecurityContext = restricted
		}},
		{name: "strict-configure", labels: map[string]string{inject: "configure", "pod-security.kubernetes.io/enforce": "restricted"}, change: func(pod *corev1.Pod) {
			pod.Spec.Containers[0].SecurityContext = restricted
		}},
		{name: "quota", labels: map[string]string{inject: "agent"}, prepare: `
{apiVersion: v1, kind: ResourceQuota, metadata: {name: q, namespace: quota}, spec: {hard: {requests.cpu: "20", requests.memory: 100Gi, limits.cpu: "20", limits.memory: 100Gi, pods: "5"}}}
---
{apiVersion: v1, kind: LimitRange, metadata: {name: l, namespace: quota}, spec: {limits: [{type: Container, max: {cpu: "16", memory: 64Gi}, min: {cpu: 10m, memory: 16Mi}}]}}
`, change: func(pod *corev1.Pod) {
			amount := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi")}
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amount, Limits: amount}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.namespace(t, c.name, c.labels)
			if c.prepare != "" {
				p.kubectl(t, c.prepare, "apply", "--server-side", "-f", "-")
				eventually(t, 20*time.Second, "the quota to be counted", func() error {
					var q corev1.ResourceQuota
					if err := p.get("/api/v1/namespaces/"+c.name+"/resourcequotas/q", &q); err != nil || len(q.Status.Hard) == 0 {
						return fmt.Errorf("%v: %w", err, errNotYet)
					}
					return nil
				})
			}
			pod := enginePod(c.name, "engine")
			if c.change != nil {
				c.change(pod)
			}
			made := p.mustCreate(t, pod)
			agent := agentOf(made)
			switch {
			case c.untouched && agent != nil:
				t.Errorf("the pod got an agent")
			case c.untouched:
				return
			case agent == nil:
				t.Fatalf("the pod got no agent; annotations %v", made.Annotations)
			}
			if agent.RestartPolicy == nil || *agent.RestartPolicy != corev1.ContainerRestartPolicyAlways {
				t.Errorf("the agent is no native sidecar: restartPolicy %v", agent.RestartPolicy)
			}
			for _, m := range agent.VolumeMounts {
				if strings.HasPrefix(m.Name, "kube-api-access") {
					t.Errorf("the agent gets a ServiceAccount token at %s", m.MountPath)
				}
			}
			if q := made.Status.QOSClass; c.name == "quota" && q != corev1.PodQOSGuaranteed {
				t.Errorf("a Guaranteed pod became %s", q)
			}
			ready := p.waitPod(t, c.name, "engine")
			t.Logf("ready after %v; warnings: %s", ready.Round(time.Millisecond), made.Annotations["grapevine-llm.github.io/warnings"])
			if err := p.remove("/api/v1/namespaces/" + c.name + "/pods/engine"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// tries creates pods, without keeping them, until stop is closed, and counts those with and without an agent.
type tries struct {
	injected, missed, failed int
	slowest                  time.Duration
}

func (p *plane) try(t *testing.T, namespace string, stop <-chan struct{}) *tries {
	out := &tries{}
	for {
		select {
		case <-stop:
			return out
		default:
		}
		began := time.Now()
		var made corev1.Pod
		err := p.create("/api/v1/namespaces/"+namespace+"/pods?dryRun=All", enginePod(namespace, "try"), &made)
		out.slowest = max(out.slowest, time.Since(began))
		switch {
		case err != nil:
			out.failed++
			t.Logf("create: %v", err)
		case agentOf(&made) == nil:
			out.missed++
		default:
			out.injected++
		}
	}
}

// during runs do while pods are created, and returns how these fared.
func (p *plane) during(t *testing.T, namespace string, do func()) *tries {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var out *tries
	wg.Go(func() { out = p.try(t, namespace, stop) })
	time.Sleep(200 * time.Millisecond)
	do()
	time.Sleep(500 * time.Millisecond)
	close(stop)
	wg.Wait()
	return out
}

// admissionTime compares creates with and without the webhook.
func (p *plane) admissionTime(t *testing.T) {
	p.namespace(t, "timed", map[string]string{inject: "agent"})
	p.namespace(t, "untimed", map[string]string{inject: "disabled"})
	for _, namespace := range []string{"untimed", "timed"} {
		var times []time.Duration
		for range 200 {
			began := time.Now()
			if err := p.create("/api/v1/namespaces/"+namespace+"/pods?dryRun=All", enginePod(namespace, "try"), nil); err != nil {
				t.Fatal(err)
			}
			times = append(times, time.Since(began))
		}
		t.Logf("create of a pod, webhook %s: %s", map[string]string{"timed": "called", "untimed": "not called"}[namespace], spread(times))
	}
}

// certificateRotates has certificates that live for half a minute, and then none at all, while pods are created: no pod
// misses its agent.
func (p *plane) certificateRotates(t *testing.T) {
	p.namespace(t, "rotation", map[string]string{inject: "agent"})
	upgrade := append([]string{"upgrade", release, chart, "-n", release}, values...)
	short := `injector.env=[{"name":"GRAPEVINE_CERT_LIFE","value":"30s"},{"name":"GRAPEVINE_CA_LIFE","value":"45s"},{"name":"GRAPEVINE_CHECK_EVERY","value":"1s"}]`
	if _, err := p.run("", "helm", append(upgrade, "--set-json", short)...); err != nil {
		t.Fatal(err)
	}
	p.kubectl(t, "", "-n", release, "rollout", "status", "--timeout=60s", "deployment/"+release+"-injector")
	p.waitInjector(t)
	cert := "/api/v1/namespaces/" + release + "/secrets/" + release + "-injector-cert"
	bundles, certs := map[string]bool{}, map[string]bool{}
	look := func() {
		var s corev1.Secret
		if err := p.get(cert, &s); err != nil {
			t.Fatal(err)
		}
		bundles[string(p.webhooks(t)[0].ClientConfig.CABundle)] = true
		if crt := string(s.Data["tls.crt"]); crt != "" {
			certs[crt] = true
		}
	}
	seen := p.during(t, "rotation", func() {
		for began := time.Now(); time.Since(began) < 65*time.Second; time.Sleep(time.Second) {
			look()
		}
	})
	t.Logf("%d certificates and %d caBundles in 65 s; creates meanwhile: %d injected, %d missed, %d failed, slowest %v",
		len(certs), len(bundles), seen.injected, seen.missed, seen.failed, seen.slowest.Round(time.Millisecond))
	if seen.missed+seen.failed > 0 || seen.injected == 0 {
		t.Errorf("%d pods got no agent and %d were refused while certificates changed", seen.missed, seen.failed)
	}
	if len(certs) < 3 || len(bundles) < 2 {
		t.Error("the certificates did not change")
	}
	old := len(certs)
	seen = p.during(t, "rotation", func() {
		p.patchObject(t, cert, `{"data":null}`)
		took := eventually(t, time.Minute, "a new certificate", func() error {
			if look(); len(certs) == old {
				return errNotYet
			}
			return nil
		})
		t.Logf("certificate Secret emptied: filled again after %v", took.Round(time.Millisecond))
		time.Sleep(5 * time.Second)
	})
	t.Logf("creates meanwhile: %d injected, %d missed, %d failed, slowest %v", seen.injected, seen.missed, seen.failed, seen.slowest.Round(time.Millisecond))
	if seen.missed+seen.failed > 0 || seen.injected == 0 {
		t.Errorf("%d pods got no agent and %d were refused after the Secret was emptied", seen.missed, seen.failed)
	}
	if _, err := p.run("", "helm", upgrade...); err != nil {
		t.Fatal(err)
	}
	p.kubectl(t, "", "-n", release, "rollout", "status", "--timeout=60s", "deployment/"+release+"-injector")
	p.waitInjector(t)
}

// injectorRolls replaces both injectors one after the other, as an upgrade does.
func (p *plane) injectorRolls(t *testing.T) {
	p.namespace(t, "rolling", map[string]string{inject: "agent"})
	seen := p.during(t, "rolling", func() {
		p.kubectl(t, "", "-n", release, "rollout", "restart", "deployment/"+release+"-injector")
		p.kubectl(t, "", "-n", release, "rollout", "status", "--timeout=60s", "deployment/"+release+"-injector")
	})
	t.Logf("creates while the injectors were replaced: %d injected, %d missed, %d failed, slowest %v", seen.injected, seen.missed, seen.failed, seen.slowest.Round(time.Millisecond))
	if seen.failed > 0 {
		t.Errorf("%d pods were refused", seen.failed)
	}
	if seen.missed > 0 {
		t.Errorf("%d pods got no agent", seen.missed)
	}
}

// webhookDown creates pods while no injector answers: dead, then hanging. They come as they were written.
func (p *plane) webhookDown(t *testing.T) {
	p.namespace(t, "down", map[string]string{inject: "agent"})
	var list corev1.PodList
	if err := p.get("/api/v1/namespaces/"+release+"/pods?labelSelector=app.kubernetes.io/component%3Dinjector", &list); err != nil {
		t.Fatal(err)
	}
	var processes []*container
	for _, object := range list.Items {
		if running := p.kubelet.find(release, object.Name); running != nil {
			processes = append(processes, running.containers[len(running.containers)-1])
		}
	}
	create := func(what string) {
		began := time.Now()
		var made corev1.Pod
		if err := p.create("/api/v1/namespaces/down/pods?dryRun=All", enginePod("down", "try"), &made); err != nil {
			t.Fatal(err)
		}
		t.Logf("injectors %s: created after %v", what, time.Since(began).Round(time.Millisecond))
		if agentOf(&made) != nil {
			t.Errorf("injectors %s: the pod has an agent", what)
		}
	}
	for _, c := range processes {
		c.signal(syscall.SIGSTOP)
	}
	create("hang")
	for _, c := range processes {
		c.signal(syscall.SIGCONT)
	}
	p.kubectl(t, "", "-n", release, "scale", "--replicas=0", "deployment/"+release+"-injector")
	eventually(t, time.Minute, "the injectors to be gone", func() error {
		if err := p.get("/api/v1/namespaces/"+release+"/pods?labelSelector=app.kubernetes.io/component%3Dinjector", &list); err != nil || len(list.Items) > 0 {
			return fmt.Errorf("%d left, %v: %w", len(list.Items), err, errNotYet)
		}
		return nil
	})
	create("gone")
	p.kubectl(t, "", "-n", release, "scale", "--replicas=2", "deployment/"+release+"-injector")
	p.waitInjector(t)
	var made corev1.Pod
	took := eventually(t, 30*time.Second, "the webhook to be called again", func() error {
		if err := p.create("/api/v1/namespaces/down/pods?dryRun=All", enginePod("down", "try"), &made); err != nil || agentOf(&made) == nil {
			return fmt.Errorf("%v: %w", err, errNotYet)
		}
		return nil
	})
	t.Logf("injectors back: called again after %v", took.Round(time.Millisecond))
}

// imageMissing has an agent image that cannot be pulled: the injector's own pod stops the roll-out, and model pods start.
func (p *plane) imageMissing(t *testing.T) {
	const bad = "grapevine.test/agent:bad"
	p.namespace(t, "image", map[string]string{inject: "agent"})
	p.kubelet.broken.Store(bad, true)
	upgrade := append([]string{"upgrade", release, chart, "-n", release}, values...)
	if _, err := p.run("", "helm", append(upgrade, "--set", "injector.agentImage="+bad)...); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	made := p.mustCreate(t, enginePod("image", "engine"))
	agent := agentOf(made)
	if agent == nil || agent.Image == bad {
		t.Errorf("a pod got %+v while the agent's image could not be pulled", agent)
	} else {
		t.Logf("the roll-out waits; pods get %s", agent.Image)
	}
	p.waitPod(t, "image", "engine")
	if _, err := p.run("", "helm", upgrade...); err != nil {
		t.Fatal(err)
	}
	p.kubectl(t, "", "-n", release, "rollout", "status", "--timeout=60s", "deployment/"+release+"-injector")
	if err := p.do(http.MethodDelete, "/api/v1/namespaces/image/pods/engine?gracePeriodSeconds=0", nil, nil); err != nil {
		t.Fatal(err)
	}
}

// switchedOff turns the injector off by its one value.
func (p *plane) switchedOff(t *testing.T) {
	p.namespace(t, "off", map[string]string{inject: "agent"})
	upgrade := append([]string{"upgrade", release, chart, "-n", release}, values...)
	began := time.Now()
	if _, err := p.run("", "helm", append(upgrade, "--set", "injector.enabled=false")...); err != nil {
		t.Fatal(err)
	}
	if made := p.mustCreate(t, enginePod("off", "engine")); agentOf(made) != nil {
		t.Error("a pod is injected though the injector is switched off")
	}
	t.Logf("injector.enabled=false worked after %v", time.Since(began).Round(time.Millisecond))
	if _, err := p.run("", "helm", upgrade...); err != nil {
		t.Fatal(err)
	}
	p.waitInjector(t)
}
