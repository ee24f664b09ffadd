package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/grapevine-llm/grapevine/deploy/inject"
)

// TestExampleManifests decodes every manifest of the examples strictly.
func TestExampleManifests(t *testing.T) {
	files := 0
	for _, pattern := range []string{"examples/vllm/*/*.yaml", "examples/vllm/*/*/*.yaml", "examples/keda/*.yaml", "examples/doctor/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if filepath.Base(name) == "kustomization.yaml" {
				continue
			}
			files++
			o, err := decodeAll(read(t, name))
			if err != nil || len(o.all) == 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if files < 6 {
		t.Errorf("%d manifests", files)
	}
}

func TestExampleScaledObject(t *testing.T) {
	for _, s := range each[ScaledObject](decode(t, read(t, "examples/keda/scaledobject.yaml"))) {
		for _, trigger := range s.Spec.Triggers {
			metrics(t).check(t, s.Metadata.Name, trigger.Metadata["query"])
		}
	}
}

// TestExampleDoctor: the pod may run anywhere, and asks by the names that the chart gives.
func TestExampleDoctor(t *testing.T) {
	pod := get[core.Pod](t, decode(t, read(t, "examples/doctor/pod.yaml")), "models", "grapevine-doctor")
	checkRestricted(t, pod.Name, pod.Spec)
	o := render(t, registry+"modelNamespaces: [models]\n")
	keys := get[core.Secret](t, o, pod.Namespace, pod.Spec.Volumes[0].Secret.SecretName)
	gossip := get[core.Service](t, o, "grapevine", "grapevine-gossip")
	host := gossip.Name + "." + gossip.Namespace + ".svc"
	c := pod.Spec.Containers[0]
	mounted := c.VolumeMounts[0].MountPath
	want := []string{"doctor", "--gateway=http://" + host + gatewayConfig(t, o)["admin-listen"].(string), "--join=" + host,
		"--gossip-key-file=" + mounted + "/gossip.key", "--seed-file=" + mounted + "/seed"}
	for _, file := range []string{"gossip.key", "seed"} {
		if len(keys.Data[file]) == 0 {
			t.Errorf("Secret %s has no %s", keys.Name, file)
		}
	}
	if !slices.Equal(c.Args, want) {
		t.Errorf("arguments %q, want %q", c.Args, want)
	}
}

// TestExampleKustomize builds base and overlays and lets the injector decide on their pods, as it would in the cluster: with the
// agent beside it, each engine's events are heard, and there is nothing to warn of.
func TestExampleKustomize(t *testing.T) {
	tests := []struct {
		dir     string
		outcome inject.Outcome
		args    int // that the injector adds to the engine
	}{
		{"base", inject.InjectedAgent, 0},
		{"overlays/configure", inject.InjectedConfigure, 2},
		{"overlays/watched", inject.InjectedAgent, 0},
	}
	kubectl := tool(t, "kubectl", "scripts/kube-parts.sh kubectl installs it")
	for _, tt := range tests {
		t.Run(tt.dir, func(t *testing.T) {
			out, err := exec.Command(kubectl, "kustomize", "examples/vllm/"+tt.dir).Output()
			if err != nil {
				t.Fatalf("kubectl kustomize: %v", err)
			}
			o := decode(t, string(out))
			level := get[core.Namespace](t, o, "", "models").Labels[inject.KeyInject]
			d := get[apps.Deployment](t, o, "models", "llama")
			if *d.Spec.Replicas != 3 {
				t.Errorf("%d replicas", *d.Spec.Replicas)
			}
			opts := inject.Default()
			opts.Image, opts.Join = "agent:v1", []string{"grapevine-gossip.grapevine.svc"}
			pod := &core.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
			res := opts.Inject(pod, inject.Namespace{Labelled: true, Label: level})
			if res.Outcome != tt.outcome || len(res.Warnings) > 0 {
				t.Errorf("outcome %q, warnings %q; want %q and none", res.Outcome, res.Warnings, tt.outcome)
			}
			for _, p := range each[InferencePool](o) {
				for key, value := range p.Spec.Selector.MatchLabels {
					if pod.Labels[key] != value {
						t.Errorf("the pool selects %s=%s, the pods have %v", key, value, pod.Labels)
					}
				}
			}
		})
	}
}

// TestExampleRollout gives the chart the values of each step.
func TestExampleRollout(t *testing.T) {
	values := registry + read(t, "examples/rollout/route.yaml")
	for _, percent := range []int32{0, 5, 100} {
		o := render(t, values, "--set", fmt.Sprintf("httpRoutes[0].grapevinePercent=%d", percent))
		backends := onlyRoute(t, o).Spec.Rules[0].BackendRefs
		if backends[0].Name != "grapevine-gateway" || *backends[0].Weight != percent || *backends[1].Weight != 100-percent {
			t.Errorf("%d %%: %+v", percent, backends)
		}
	}
	// The route is where the Service of the example is.
	route := onlyRoute(t, render(t, values))
	before := decode(t, read(t, "examples/vllm/base/namespace.yaml")+"---\n"+read(t, "examples/vllm/base/service.yaml"))
	service := each[core.Service](before)[0]
	if b := route.Spec.Rules[0].BackendRefs[1]; route.Metadata.Namespace != each[core.Namespace](before)[0].Name || b.Name != service.Name || b.Port != service.Spec.Ports[0].Port {
		t.Errorf("route of namespace %s to %s:%d", route.Metadata.Namespace, b.Name, b.Port)
	}
	for name, want := range map[string]float64{"policy-5-percent": 5, "policy-100-percent": 100} {
		o := render(t, registry+read(t, "examples/rollout/"+name+".yaml"))
		config := gatewayConfig(t, o)
		local(t, o, config)
		text, err := yaml.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "gateway.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		policy := settings(t, "gateway", "--config", file)["policy"].(map[string]any)
		if policy["prefix"] != want || policy["least-load"] != 100-want {
			t.Errorf("%s: policy %v", name, policy)
		}
	}
}

// onlyRoute is the only HTTPRoute.
func onlyRoute(t *testing.T, o *objects) *HTTPRoute {
	t.Helper()
	all := each[HTTPRoute](o)
	if len(all) != 1 {
		t.Fatalf("%d routes", len(all))
	}
	return all[0]
}

// TestExampleUnits: the units are right, closed, and start the binaries with settings that these have.
func TestExampleUnits(t *testing.T) {
	analyze := tool(t, "systemd-analyze", "it is part of systemd")
	for _, unit := range []string{"grapevine-agent.service", "grapevine-gateway.service"} {
		t.Run(unit, func(t *testing.T) {
			text := read(t, "examples/systemd/"+unit)
			start := regexp.MustCompile(`(?m)^ExecStart=(\S+)`).FindStringSubmatch(text)[1]
			text = strings.ReplaceAll(text, "ExecStart="+start, "ExecStart=/bin/true") // the binary is not installed here
			text = strings.ReplaceAll(text, "User=grapevine", "User=root")
			path := filepath.Join(t.TempDir(), unit)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput(); err != nil || strings.Contains(string(out), unit) {
				t.Errorf("systemd-analyze verify: %v\n%s", err, out)
			}
			out, err := exec.Command(analyze, "security", "--offline=yes", "--no-pager", "--threshold=30", path).CombinedOutput()
			if err != nil {
				t.Errorf("systemd-analyze security: %v\n%s", err, out)
			}
		})
	}
}

// TestExampleSettings gives the binaries the files of the units.
func TestExampleSettings(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"gossip.key": strings.Repeat("0", 64), "seed": "0x1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	here := strings.NewReplacer("/etc/grapevine/", dir+"/", "/var/lib/grapevine", dir).Replace
	file := filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(file, []byte(here(read(t, "examples/systemd/gateway.yaml"))), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"agent": nil, "gateway": {"--config", file}} {
		t.Run(name, func(t *testing.T) {
			if name == "agent" {
				tool(t, "pkg-config", "the agent needs libzmq to be built")
			}
			var env []string
			for line := range strings.Lines(here(read(t, "examples/systemd/"+name+".env"))) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					env = append(env, line)
				}
			}
			cmd := exec.Command(binary(t, name), append(slices.Clone(args), "--print-config")...)
			cmd.Env = env
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out)
			}
			var got map[string]any
			if err := yaml.Unmarshal(out, &got); err != nil {
				t.Fatal(err)
			}
			for _, line := range env {
				variable, _, _ := strings.Cut(line, "=")
				checkEnv(t, variable, got)
			}
		})
	}
}
