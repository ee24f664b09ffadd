package kube

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	chart   = "../../deploy/chart"
	release = "grapevine"
	inject  = "grapevine-llm.github.io/inject"
)

// values of the release that the scenarios work with.
var values = []string{
	"--set", "image.registry=grapevine.test", "--set", "image.tag=v1", "--set", "modelNamespaces={models}",
	"--set", "pools.inferencePools={models/tiny}", "--set", "pools.services={models/tiny-svc:8000}", "--set", "pools.objectives=true",
	"-f", "../../deploy/examples/rollout/route.yaml", "--set", "gateway.mode=both", "--set", "gateway.config.response-headers=true", "--set", "gateway.config.log-level=DEBUG", "--set", "gateway.preStopSeconds=1",
}

// definitions installs the custom resources of the Gateway API and its Inference Extension.
func (p *plane) definitions(t *testing.T) {
	t.Helper()
	began := time.Now()
	p.kubectl(t, "", "apply", "--server-side", "-f", filepath.Join(p.parts, "gateway-api.yaml"))
	out := p.kubectl(t, "", "apply", "--server-side", "-f", "testdata/crds")
	p.kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/inferencepools.inference.networking.k8s.io", "crd/inferenceobjectives.llm-d.ai", "crd/httproutes.gateway.networking.k8s.io")
	t.Logf("definitions of the Gateway API and its Inference Extension installed in %v\n%s", time.Since(began).Round(time.Millisecond), out)
}

// namespaces makes those of the release: the strictest Pod Security, so that all that the chart makes must keep to it.
func (p *plane) namespaces(t *testing.T) {
	t.Helper()
	restricted := map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
	p.namespace(t, release, restricted)
	p.namespace(t, "models", map[string]string{inject: "configure"})
}

// serverSideApply is `helm template | kubectl apply --server-side`, as GitOps tools do it.
func (p *plane) serverSideApply(t *testing.T) {
	manifest, err := p.run("", "helm", slices.Concat([]string{"template", release, chart, "-n", release}, values)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + p.kubectl(t, manifest, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"))
	p.kubectl(t, manifest, "apply", "--server-side", "-f", "-")
	t.Cleanup(func() {
		p.kubectl(t, manifest, "delete", "--wait", "--timeout=60s", "-f", "-")
		eventually(t, time.Minute, "the pods to be gone", func() error {
			var pods corev1.PodList
			if err := p.get("/api/v1/namespaces/"+release+"/pods", &pods); err != nil || len(pods.Items) > 0 {
				return fmt.Errorf("%d left, %v: %w", len(pods.Items), err, errNotYet)
			}
			return nil
		})
	})
	p.waitInjector(t)

	// Applied again, nothing changes: neither what the chart says nor what the injector has put in.
	before := p.generations(t, manifest)
	p.kubectl(t, manifest, "apply", "--server-side", "-f", "-")
	after := p.generations(t, manifest)
	for name, version := range after {
		if before[name] != version {
			t.Errorf("%s changed when the same manifest was applied again", name)
		}
	}
	if out, err := p.run(manifest, "kubectl", "diff", "--server-side", "-f", "-"); err != nil || out != "" {
		t.Errorf("kubectl diff after apply: %v\n%s", err, out)
	}
	t.Logf("%d objects, applied twice", len(after))
}

// generations returns something for each object of a manifest that changes when its content does.
func (p *plane) generations(t *testing.T, manifest string) map[string]string {
	t.Helper()
	var list struct{ Items []map[string]any }
	if err := json.Unmarshal([]byte(p.kubectl(t, manifest, "get", "-o", "json", "-f", "-")), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, object := range list.Items {
		meta := object["metadata"].(map[string]any)
		name := fmt.Sprintf("%v %v/%v", object["kind"], meta["namespace"], meta["name"])
		for _, noise := range []string{"resourceVersion", "managedFields"} {
			delete(meta, noise)
		}
		delete(object, "status")
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(text)
	}
	return out
}

// waitInjector waits until both injectors are ready and the API server can trust them.
func (p *plane) waitInjector(t *testing.T) {
	t.Helper()
	took := eventually(t, time.Minute, "the injector to be available", func() error {
		var d appsv1.Deployment
		if err := p.get("/apis/apps/v1/namespaces/"+release+"/deployments/"+release+"-injector", &d); err != nil {
			return err
		}
		if d.Status.AvailableReplicas < 2 || d.Status.UpdatedReplicas < 2 || d.Status.Replicas != 2 {
			return fmt.Errorf("%d of 2 replicas are available; pods:\n%s", d.Status.AvailableReplicas, p.describe(release))
		}
		for i, w := range p.webhooks(t) {
			if len(w.ClientConfig.CABundle) == 0 {
				return fmt.Errorf("webhook %d has no caBundle", i)
			}
		}
		return nil
	})
	t.Logf("the injector was available after %v", took.Round(time.Millisecond))
}

func (p *plane) webhooks(t *testing.T) []admissionv1.MutatingWebhook {
	t.Helper()
	var c admissionv1.MutatingWebhookConfiguration
	if err := p.get("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"+release+"-injector", &c); err != nil {
		t.Fatal(err)
	}
	return c.Webhooks
}

// describe tells how the pods of a namespace fare.
func (p *plane) describe(namespace string) string {
	var list corev1.PodList
	if err := p.get("/api/v1/namespaces/"+namespace+"/pods", &list); err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, object := range list.Items {
		if running := p.kubelet.find(namespace, object.Name); running != nil {
			b.WriteString(running.report())
		} else {
			fmt.Fprintf(&b, "%s: phase %s on node %q\n", object.Name, object.Status.Phase, object.Spec.NodeName)
		}
	}
	return b.String()
}

// helmInstall installs the release that the later scenarios work with, and upgrades it to itself.
func (p *plane) helmInstall(t *testing.T) {
	out, err := p.run("", "helm", slices.Concat([]string{"install", release, chart, "-n", release}, values)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(out)
	p.waitInjector(t)
	p.helmUpgradeKeeps(t)
}

// helmUpgradeKeeps upgrades the release to itself: keys, certificate and caBundle stay, and no pod is replaced.
func (p *plane) helmUpgradeKeeps(t *testing.T) {
	look := func() map[string]string {
		state := map[string]string{}
		for _, name := range []string{release + "/secrets/" + release + "-keys", "models/secrets/" + release + "-keys", release + "/secrets/" + release + "-injector-cert"} {
			var s corev1.Secret
			if err := p.get("/api/v1/namespaces/"+name, &s); err != nil {
				t.Fatal(err)
			}
			for key, value := range s.Data {
				state[name+" "+key] = string(value)
			}
		}
		for _, w := range p.webhooks(t) {
			state["caBundle of "+w.Name] = string(w.ClientConfig.CABundle)
		}
		var pods corev1.PodList
		if err := p.get("/api/v1/namespaces/"+release+"/pods", &pods); err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp == nil { // those of the release before may still be ending
				state["pod "+pod.Name] = string(pod.UID)
			}
		}
		return state
	}
	before := look()
	if _, err := p.run("", "helm", slices.Concat([]string{"upgrade", release, chart, "-n", release}, values)...); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // a roll-out would have begun
	after := look()
	for name, value := range before {
		if after[name] != value {
			t.Errorf("%s changed in an upgrade to the same values", name)
		}
	}
	if before["models/secrets/"+release+"-keys seed"] == "" || before["models/secrets/"+release+"-keys seed"] != before[release+"/secrets/"+release+"-keys seed"] {
		t.Error("model namespace and release differ in their seed")
	}
}

// keyRotation changes the gossip key by the steps that are documented. A rollback across it stops half-way, as documented too,
// and an upgrade mends that.
func (p *plane) keyRotation(t *testing.T) {
	key := func(namespace string) string {
		return p.kubectl(t, "", "get", "secret", release+"-keys", "-n", namespace, "-o", `go-template={{index .data "gossip.key" | base64decode}}`)
	}
	upgrade := func(flags ...string) error {
		_, err := p.run("", "helm", slices.Concat([]string{"upgrade", release, chart, "-n", release, "--reset-then-reuse-values"}, flags)...)
		return err
	}
	follows := func(keys string) {
		t.Helper()
		if err := upgrade(); err != nil {
			t.Fatal(err)
		}
		for _, namespace := range []string{release, "models"} {
			if got := key(namespace); got != keys {
				t.Fatalf("namespace %s has %q, want %q", namespace, got, keys)
			}
		}
	}
	put := func(keys string) {
		text := base64.StdEncoding.EncodeToString([]byte(keys))
		p.kubectl(t, "", "patch", "secret", release+"-keys", "-n", release, "-p", fmt.Sprintf(`{"data":{"gossip.key":%q}}`, text))
		follows(keys)
	}
	old, fresh := key(release), base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	put(old + "\n" + fresh + "\n")
	put(fresh + "\n" + old + "\n")
	put(fresh + "\n")

	if _, err := p.run("", "helm", "rollback", release, "1", "-n", release); err == nil || !strings.Contains(err.Error(), "conflict") {
		t.Errorf("helm rollback: %v, want a conflict", err)
	}
	if key("models") == key(release) {
		t.Error("a rollback that stops half-way leaves the same key everywhere")
	}
	follows(fresh + "\n")
	put(old)
}

// scaledByHand: what was changed with kubectl is in Helm's way, until it is told to take it back.
func (p *plane) scaledByHand(t *testing.T) {
	p.kubectl(t, "", "scale", "--replicas=1", "-n", release, "deployment/"+release+"-injector")
	upgrade := []string{"upgrade", release, chart, "-n", release, "--reset-then-reuse-values"}
	if _, err := p.run("", "helm", upgrade...); err == nil || !strings.Contains(err.Error(), "conflict") {
		t.Errorf("helm upgrade after kubectl scale: %v, want a conflict", err)
	}
	if _, err := p.run("", "helm", append(upgrade, "--force-conflicts")...); err != nil {
		t.Fatal(err)
	}
	p.waitInjector(t)
}

// manifests checks the examples against the API server's own schemas.
func (p *plane) manifests(t *testing.T) {
	for _, pattern := range []string{"../../deploy/examples/*", "../../deploy/gateways/*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			t.Run(filepath.Base(filepath.Dir(pattern)), func(t *testing.T) { t.Skip("this tree has no such manifests") })
		}
		for _, path := range found {
			p.manifest(t, path)
		}
	}
}

// manifest checks one YAML file, a kustomize base, or all files of a folder.
func (p *plane) manifest(t *testing.T, path string) {
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	_, noBase := os.Stat(filepath.Join(path, "kustomization.yaml"))
	args := []string{"-f", path}
	switch {
	case info.IsDir() && noBase == nil:
		args = []string{"-k", path}
	case info.IsDir():
		inside, err := filepath.Glob(path + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range inside {
			p.manifest(t, file)
		}
		return
	case filepath.Ext(path) != ".yaml":
		return
	}
	if !info.IsDir() {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^apiVersion: `).Match(text) {
			return // no object: values of the chart, settings of a program
		}
	}
	t.Run(strings.TrimPrefix(path, "../../deploy/"), func(t *testing.T) {
		_, err := p.run("", "kubectl", append([]string{"apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"}, args...)...)
		if err == nil {
			return
		}
		// Objects of a namespace that is made by the same files cannot be tried before it exists; those of others' operators not at all.
		lines := strings.Split(strings.TrimSpace(err.Error()), "\n")[1:]
		var missing, wrong []string
		for _, line := range lines {
			switch {
			case strings.Contains(line, "no matches for kind"):
				missing = append(missing, line)
			case line == "" || strings.Contains(line, "ensure CRDs are installed first"):
			default:
				wrong = append(wrong, line)
			}
		}
		if len(wrong) > 0 {
			t.Errorf("%s", strings.Join(wrong, "\n"))
		} else if len(missing) > 0 {
			t.Skipf("definitions of others are missing:\n%s", strings.Join(missing, "\n"))
		}
	})
}

// uninstall takes the release away: nothing of it is left, and pods with an agent go on.
func (p *plane) uninstall(t *testing.T) {
	if _, err := p.run("", "helm", "uninstall", release, "-n", release, "--wait", "--timeout", "90s"); err != nil {
		t.Fatal(err)
	}
	left := p.kubectl(t, "", "get", "-A", "--ignore-not-found", "-o", "name", "-l", "app.kubernetes.io/instance="+release,
		"deployments,services,serviceaccounts,configmaps,secrets,roles,rolebindings,poddisruptionbudgets,networkpolicies,httproutes,referencegrants,mutatingwebhookconfigurations,clusterroles,clusterrolebindings")
	if left = strings.TrimSpace(left); left != "" {
		t.Logf("left by helm uninstall:\n%s", left)
		for _, name := range strings.Split(left, "\n") {
			if !strings.HasPrefix(name, "secret/") { // keys may be kept on purpose
				t.Errorf("%s is left", name)
			}
		}
	}
	p.namespace(t, "after", map[string]string{inject: "agent"})
	if made := p.mustCreate(t, enginePod("after", "engine")); len(made.Spec.InitContainers) > 0 {
		t.Error("a pod is injected after the release was uninstalled")
	}
}
