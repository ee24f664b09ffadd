package envoy

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// The pod is ready when both of its processes are.
func TestSidecarReadiness(t *testing.T) {
	s := newSetup(t, "sidecar.yaml", 1, 0)
	status := func() int {
		resp, err := client.Get(s.urls[1] + "/ready")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	if got := status(); got != http.StatusOK {
		t.Errorf("status %d with a gateway", got)
	}
	s.picker.Kill()
	s.healthy(t, "grapevine", 0)
	if got := status(); got != http.StatusServiceUnavailable {
		t.Errorf("status %d without a gateway", got)
	}
}

// The Deployment and the configuration that it mounts speak of the same socket and ports.
func TestSidecarDeployment(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(shipped, "sidecar-deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		var into any = &corev1.Service{}
		if kind.Kind == "Deployment" {
			into = &d
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Errorf("%s: %v", kind.Kind, err)
		}
	}
	b := readBootstrap(t, "sidecar.yaml")
	socket := at(b.cluster("grapevine"), "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint", "address", "pipe", "path").(string)
	gateway, envoy := d.Spec.Template.Spec.InitContainers[0], d.Spec.Template.Spec.Containers[0]
	if want := "--ext-proc-listen=unix://" + socket; !slices.Contains(gateway.Args, want) {
		t.Errorf("the gateway's arguments are %v, want %s", gateway.Args, want)
	}
	for i, l := range b.listeners() {
		if want := at(l, "address", "socket_address", "port_value"); i >= len(envoy.Ports) || float64(envoy.Ports[i].ContainerPort) != want {
			t.Errorf("port %d of Envoy's container: %v, want %v", i, envoy.Ports, want)
		}
	}
	for _, c := range []corev1.Container{gateway, envoy} {
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(socket) }) {
			t.Errorf("%s does not see %s", c.Name, socket)
		}
	}
}
