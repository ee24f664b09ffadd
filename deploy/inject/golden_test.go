package inject_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/grapevine-llm/grapevine/deploy/inject"
)

var update = flag.Bool("update", false, "write the golden files anew")

func options() inject.Options {
	o := inject.Default()
	o.Image, o.Join, o.Version = "registry.example/grapevine-agent:v1", []string{"grapevine-gossip.grapevine.svc"}, "v1"
	return o
}

// shape is a pod from testdata; its first line names the namespace's label.
type shape struct {
	name string
	json []byte
	pod  *corev1.Pod
	ns   inject.Namespace
}

func shapes(t *testing.T) (out []shape) {
	t.Helper()
	files, err := filepath.Glob("testdata/*/pod.yaml")
	if err != nil || len(files) < 14 {
		t.Fatalf("%d shapes: %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		s := shape{name: filepath.Base(filepath.Dir(f)), pod: new(corev1.Pod)}
		head, _, _ := strings.Cut(string(text), "\n")
		s.ns.Label, s.ns.Labelled = strings.CutPrefix(head, "# namespace: ")
		if s.json, err = yaml.YAMLToJSON(text); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if err := yaml.UnmarshalStrict(text, s.pod); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, s)
	}
	return out
}

// apply uses a JSON-patch implementation that is not ours, on the pod as it was
// sent.
func apply(t *testing.T, doc []byte, ops []inject.Op) ([]byte, *corev1.Pod) {
	t.Helper()
	pod := new(corev1.Pod)
	if len(ops) > 0 {
		b, err := json.Marshal(ops)
		if err != nil {
			t.Fatal(err)
		}
		p, err := jsonpatch.DecodePatch(b)
		if err != nil {
			t.Fatal(err)
		}
		if doc, err = p.Apply(doc); err != nil {
			t.Fatalf("apply: %v\n%s", err, b)
		}
	}
	if err := yaml.UnmarshalStrict(doc, pod); err != nil {
		t.Fatal(err)
	}
	return doc, pod
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestShapes(t *testing.T) {
	for _, s := range shapes(t) {
		t.Run(s.name, func(t *testing.T) {
			res := options().Inject(s.pod, s.ns)
			ops := res.Patch
			if ops == nil {
				ops = []inject.Op{}
			}
			patch, err := json.MarshalIndent(ops, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			doc, _ := apply(t, s.json, res.Patch)
			patched, err := yaml.JSONToYAML(doc)
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join("testdata", s.name)
			golden(t, filepath.Join(dir, "patch.json"), append(patch, '\n'))
			golden(t, filepath.Join(dir, "patched.yaml"), patched)
			golden(t, filepath.Join(dir, "warnings.txt"), []byte(string(res.Outcome)+"\n"+strings.Join(append(res.Warnings, ""), "\n")))
		})
	}
}

// TestRules holds what the package comment promises, for every shape at every
// level.
func TestRules(t *testing.T) {
	for _, s := range shapes(t) {
		for _, level := range []inject.Level{inject.Agent, inject.Configure} {
			t.Run(s.name+" "+string(level), func(t *testing.T) {
				o := options()
				ns := inject.Namespace{Labelled: true, Label: string(level)}
				before, err := json.Marshal(s.pod)
				if err != nil {
					t.Fatal(err)
				}
				res := o.Inject(s.pod, ns)
				if after, _ := json.Marshal(s.pod); !bytes.Equal(before, after) {
					t.Error("the pod itself was changed")
				}
				if n := len(strings.Join(res.Warnings, "")); n > 4000 {
					t.Errorf("warnings of %d bytes: the API server cuts them", n)
				}
				doc, got := apply(t, s.json, res.Patch)
				injected := res.Outcome == inject.InjectedAgent || res.Outcome == inject.InjectedConfigure
				if !injected {
					if len(res.Patch) > 0 {
						t.Errorf("%s, with a patch", res.Outcome)
					}
					return
				}
				for _, op := range res.Patch {
					if op.Op != "add" {
						t.Errorf("%s %s: only additions are allowed", op.Op, op.Path)
					}
				}
				if again := o.Inject(got, ns); len(again.Patch) > 0 || again.Outcome != inject.LeftAlready {
					t.Errorf("second pass: %s, %v", again.Outcome, again.Patch)
				}
				onlyAdded(t, s.pod, got, res.Outcome)
				sidecar(t, got)
				// A webhook that strips restartPolicy: all is taken out again.
				agent := slices.IndexFunc(got.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == inject.AgentContainer })
				strip, err := jsonpatch.DecodePatch([]byte(`[{"op":"remove","path":"/spec/initContainers/` + strconv.Itoa(agent) + `/restartPolicy"}]`))
				if err != nil {
					t.Fatal(err)
				}
				if doc, err = strip.Apply(doc); err != nil {
					t.Fatal(err)
				}
				stripped := new(corev1.Pod)
				if err := json.Unmarshal(doc, stripped); err != nil {
					t.Fatal(err)
				}
				undo := o.Inject(stripped, ns)
				_, back := apply(t, doc, undo.Patch)
				if undo.Outcome != inject.Undone || len(undo.Warnings) != 1 {
					t.Errorf("stripped: %s %v", undo.Outcome, undo.Warnings)
				}
				want := s.pod.DeepCopy()
				want.Annotations, back.Annotations = nil, nil
				if diff := cmp.Diff(normal(t, want), normal(t, back)); diff != "" {
					t.Errorf("not as it was (-before +after):\n%s", diff)
				}
				if third := o.Inject(back, inject.Namespace{Labelled: true, Label: "disabled"}); len(third.Patch) > 0 {
					t.Errorf("disabled: %v", third.Patch)
				}
			})
		}
	}
}

// normal is a pod without empty lists.
func normal(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	p = p.DeepCopy()
	for i := range p.Spec.Containers {
		if len(p.Spec.Containers[i].Args) == 0 {
			p.Spec.Containers[i].Args = nil
		}
	}
	if len(p.Spec.InitContainers) == 0 {
		p.Spec.InitContainers = nil
	}
	if len(p.Spec.Volumes) == 0 {
		p.Spec.Volumes = nil
	}
	b, err := yaml.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// onlyAdded checks that everything of the pod is still there, in its order, and
// that no container but the engine's has changed, the engine's only at level
// configure and only by arguments at the end.
func onlyAdded(t *testing.T, before, after *corev1.Pod, outcome inject.Outcome) {
	t.Helper()
	changed := 0
	for i := range before.Spec.Containers {
		b, a := before.Spec.Containers[i], *after.Spec.Containers[i].DeepCopy()
		if len(a.Args) == len(b.Args)+2 {
			added := a.Args[len(b.Args):]
			if a.Args = a.Args[:len(b.Args)]; len(b.Args) == 0 {
				a.Args = nil
			}
			changed++
			if added[0] != "--kv-events-config" || strings.Contains(added[1], "*") || !json.Valid([]byte(added[1])) {
				t.Errorf("container %s: added %q", b.Name, added)
			}
		}
		if diff := cmp.Diff(b, a); diff != "" {
			t.Errorf("container %s changed:\n%s", b.Name, diff)
		}
	}
	if want := map[inject.Outcome]int{inject.InjectedConfigure: 1}[outcome]; changed != want || len(after.Spec.Containers) != len(before.Spec.Containers) {
		t.Errorf("%s: arguments of %d containers changed, want %d", outcome, changed, want)
	}
	if n := len(before.Spec.InitContainers); cmp.Diff(before.Spec.InitContainers, after.Spec.InitContainers[:n:n]) != "" && n > 0 {
		t.Error("init containers changed")
	}
	if n := len(before.Spec.Volumes); n > 0 && cmp.Diff(before.Spec.Volumes, after.Spec.Volumes[:n]) != "" {
		t.Error("volumes changed")
	}
	for k, v := range before.Annotations {
		if !strings.HasPrefix(k, "traffic.sidecar.istio.io/") && after.Annotations[k] != v {
			t.Errorf("annotation %s changed", k)
		}
	}
	a, b := *after.DeepCopy(), *before.DeepCopy()
	for _, p := range []*corev1.Pod{&a, &b} {
		p.Spec.Containers, p.Spec.InitContainers, p.Spec.Volumes, p.Annotations = nil, nil, nil, nil
	}
	if diff := cmp.Diff(b, a); diff != "" {
		t.Errorf("the rest of the pod changed:\n%s", diff)
	}
}

// sidecar checks the agent's container: nothing in it can keep the pod from
// starting or from its namespace, and it passes Pod Security "restricted".
func sidecar(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	c := pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
	if c.Name != inject.AgentContainer || c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Fatalf("last init container is %s with restart policy %v", c.Name, c.RestartPolicy)
	}
	if c.StartupProbe != nil || c.ReadinessProbe != nil || c.Lifecycle != nil {
		t.Error("the pod would wait for the agent")
	}
	if cmp.Diff(c.Resources.Requests, c.Resources.Limits) != "" || len(c.Resources.Limits) != 2 {
		t.Errorf("resources %v are not Guaranteed", c.Resources)
	}
	sc := c.SecurityContext
	if sc == nil || !*sc.RunAsNonRoot || *sc.RunAsUser == 0 || !*sc.ReadOnlyRootFilesystem || *sc.AllowPrivilegeEscalation ||
		!slices.Equal(sc.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(sc.Capabilities.Add) > 0 || sc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("not restricted: %+v", sc)
	}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Errorf("no volume %s", m.Name)
			continue
		}
		if v := pod.Spec.Volumes[i]; v.EmptyDir == nil && (v.Secret == nil || !*v.Secret.Optional) {
			t.Errorf("volume %s could be missing", m.Name)
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !*e.ValueFrom.SecretKeyRef.Optional {
			t.Errorf("variable %s needs a Secret", e.Name)
		}
	}
	if pod.Spec.HostNetwork && (len(c.Ports) > 0 || c.LivenessProbe != nil) {
		t.Error("ports of the node are claimed")
	}
	if strings.Contains(strings.Join(c.Args, " "), "prompt-tokens-details") {
		t.Error("the engine's hits would be shown to tenants")
	}
}
