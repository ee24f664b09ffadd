package kube

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestKube runs the scenarios in order on one control plane.
func TestKube(t *testing.T) {
	p := newPlane(t)
	t.Run("PodRuns", p.podRuns)
	p.definitions(t)
	p.namespaces(t)
	t.Run("ServerSideApply", p.serverSideApply)
	t.Run("Install", p.helmInstall) // the scenarios below work with this release
	t.Run("KeyRotation", p.keyRotation)
	t.Run("ScaledByHand", p.scaledByHand)
	t.Run("Manifests", p.manifests)
	t.Run("Rights", p.leastRights)
	t.Run("Injection", p.injectedPods)
	t.Run("GoldenPods", p.goldenPods)
	t.Run("AdmissionTime", p.admissionTime)
	t.Run("CertificateRotates", p.certificateRotates)
	t.Run("InjectorRolls", p.injectorRolls)
	t.Run("WebhookDown", p.webhookDown)
	t.Run("ImageMissing", p.imageMissing)
	t.Run("SwitchedOff", p.switchedOff)
	t.Run("PoolChanges", p.poolChanges)
	t.Run("SliceChanges", p.sliceChanges)
	t.Run("EndToEnd", p.endToEnd)
	t.Run("Doctor", p.doctor)
	t.Run("AgentDies", p.agentDies)
	t.Run("PodDrains", p.drainPod)
	t.Run("ScaleSignal", p.scaleSignal)
	t.Run("APIServerDies", p.apiServerDies)
	t.Run("ThousandPods", p.thousandPods)
	t.Run("Uninstall", p.uninstall)
}

// podRuns checks the kubelet of these tests itself.
func (p *plane) podRuns(t *testing.T) {
	p.namespace(t, "selftest", nil)
	pod := enginePod("selftest", "engine")
	p.mustCreate(t, pod)
	ready := p.waitPod(t, "selftest", "engine")
	t.Logf("a pod with an emulated engine was ready after %v at %s", ready, p.podIP(t, "selftest", "engine"))
}

// namespace makes a namespace and waits for its ServiceAccount.
func (p *plane) namespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	ns := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if err := p.create("/api/v1/namespaces", ns, nil); err != nil {
		t.Fatal(err)
	}
	// The controller manager makes it: some seconds after an API server's outage.
	eventually(t, time.Minute, "the namespace's ServiceAccount", func() error {
		return p.get("/api/v1/namespaces/"+name+"/serviceaccounts/default", nil)
	})
	eventually(t, 10*time.Second, "the namespace's root certificate", func() error {
		return p.get("/api/v1/namespaces/"+name+"/configmaps/kube-root-ca.crt", nil)
	})
}

// enginePod is a vLLM pod as people write it.
func enginePod(namespace, name string, args ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": "vllm"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "vllm", Image: "vllm/vllm-openai:v0.11.2", Args: append([]string{"--model", "lab/tiny", "--served-model-name", "tiny"}, args...),
			Ports:          []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromString("http")}}},
		}}},
	}
}

// mustCreate creates a pod and returns it as the API server made it.
func (p *plane) mustCreate(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	var made corev1.Pod
	if err := p.create("/api/v1/namespaces/"+pod.Namespace+"/pods", pod, &made); err != nil {
		t.Fatal(err)
	}
	return &made
}

// waitPod waits until a pod is Ready.
func (p *plane) waitPod(t *testing.T, namespace, name string) time.Duration {
	t.Helper()
	return eventually(t, time.Minute, "pod "+name+" to be ready", func() error {
		var pod corev1.Pod
		if err := p.get("/api/v1/namespaces/"+namespace+"/pods/"+name, &pod); err != nil {
			return err
		}
		if !isReady(&pod) {
			return fmt.Errorf("phase %s %s: %w", pod.Status.Phase, pod.Status.Message, errNotYet)
		}
		return nil
	})
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (p *plane) podIP(t *testing.T, namespace, name string) string {
	t.Helper()
	var pod corev1.Pod
	if err := p.get("/api/v1/namespaces/"+namespace+"/pods/"+name, &pod); err != nil {
		t.Fatal(err)
	}
	return pod.Status.PodIP
}
