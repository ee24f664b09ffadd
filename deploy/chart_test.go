package deploy

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const registry = "image: {registry: registry.example.com/grapevine, tag: v1}\n"

// installs are the ways to install that are checked.
func installs() map[string]string {
	return map[string]string{
		"least":         registry,
		"named images":  "gateway: {image: 'r/g@sha256:0123'}\ninjector: {image: r/i:1, agentImage: r/a:1}\n",
		"no injector":   registry + "injector: {enabled: false}\n",
		"no keys":       registry + "keys: {create: false}\n",
		"existing keys": registry + "keys: {existingSecret: mine}\nmodelNamespaces: [models]\n",
		"pools": registry + `
modelNamespaces: [models, grapevine]
pools: {inferencePools: [models/llama, mistral], services: ["models/qwen:8000", other/x], objectives: true}
`,
		"extproc": registry + `
gateway: {mode: extproc}
extProc: {tlsSecret: picker-tls}
inferencePools:
- {name: llama, selector: {app: llama}, targetPorts: [8000, 8001], parentRefs: [{name: gw}], hostnames: [llama.example.com]}
- {name: qwen, selector: {app: qwen}, targetPorts: [8000], port: 9012, failureMode: FailClose}
`,
		"all": registry + `
imagePullSecrets: [pull]
modelNamespaces: [models, more]
pools: {services: ["models/qwen:8000"]}
gateway:
  mode: both
  config: {max-bodies-bytes: 2147483648, hold: {max-age: 1m}, policy: {prefix: 5, least-load: 95}, gossip: {label: blue}}
  models: {org/llama: /models/llama}
  extraVolumes: [{name: models, persistentVolumeClaim: {claimName: models}}]
  extraVolumeMounts: [{name: models, mountPath: /models, readOnly: true}]
  env: [{name: GRAPEVINE_LOG_LEVEL, value: debug}]
  autoscaling: {enabled: true, requestsInFlight: 200}
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: DoesNotExist}]}]}}}
  nodeSelector: {kubernetes.io/arch: amd64}
  tolerations: [{key: x, operator: Exists}]
  priorityClassName: high
  podAnnotations: {a: b}
  podLabels: {c: d}
injector: {agentPullSecrets: [pull], podAnnotations: {a: b}, nodeSelector: {kubernetes.io/arch: amd64}}
networkPolicy: {enabled: true, metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}
podMonitor: {enabled: true, labels: {release: prometheus}}
httpRoutes: [{name: llama, namespace: models, parentRefs: [{name: gw, namespace: infra}], hostnames: [llama.example.com], grapevinePercent: 5, baseline: {name: llama, port: 8000}}]
scaledObjects: [{name: llama, namespace: models, target: llama, pool: default, minReplicas: 1, maxReplicas: 10, prometheus: "http://prometheus:9090"}]
`,
	}
}

func TestChartLint(t *testing.T) {
	for name, values := range installs() {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, stderr, err := helm(t, "lint", "--strict", "--values", file, "chart"); err != nil {
			t.Errorf("%s: %v\n%s%s", name, err, out, stderr)
		}
	}
}

// TestChartObjects holds what must be true of every installation.
func TestChartObjects(t *testing.T) {
	for name, values := range installs() {
		t.Run(name, func(t *testing.T) {
			o := render(t, values)
			checkNames(t, o)
			checkPods(t, o)
			checkSelectors(t, o)
			checkKeys(t, o)
			checkWebhook(t, o)
			checkGateway(t, o)
		})
	}
}

// clusterWide are kinds without a namespace.
func clusterWide(kind string) bool {
	return slices.Contains([]string{"ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration"}, kind)
}

func checkNames(t *testing.T, o *objects) {
	seen := map[string]bool{}
	for _, x := range o.all {
		if seen[x.String()] {
			t.Errorf("%s is there twice", x)
		}
		seen[x.String()] = true
		if (x.meta.Namespace == "") != clusterWide(x.kind) {
			t.Errorf("%s: wrong namespace", x)
		}
		if x.meta.Labels["app.kubernetes.io/instance"] != "grapevine" {
			t.Errorf("%s does not say whose it is", x)
		}
		foreign := []string{"InferencePool", "HTTPRoute", "ScaledObject"}
		if !strings.HasPrefix(x.meta.Name, "grapevine-") && !slices.Contains(foreign, x.kind) {
			t.Errorf("%s: name without the release's", x)
		}
	}
}

// templates are the pod templates by the name of their Deployment.
func templates(o *objects) map[string]core.PodTemplateSpec {
	out := map[string]core.PodTemplateSpec{}
	for _, d := range each[apps.Deployment](o) {
		out[d.Name] = d.Spec.Template
	}
	return out
}

// checkPods: `restricted` Pod Security, probes of ports that are there, nothing from service links.
func checkPods(t *testing.T, o *objects) {
	for name, pod := range templates(o) {
		checkRestricted(t, name, pod.Spec)
		if pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks {
			t.Errorf("%s: service links would look like settings", name)
		}
		if pod.Labels["grapevine-llm.github.io/inject"] != "disabled" {
			t.Errorf("%s could be injected itself", name)
		}
		for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			if c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s/%s: no bound on memory", name, c.Name)
			}
			ports := map[string]bool{}
			for _, p := range c.Ports {
				ports[p.Name] = true
			}
			for _, probe := range []*core.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				if probe != nil && !ports[probe.HTTPGet.Port.StrVal] {
					t.Errorf("%s/%s: probe of port %q, which is not there", name, c.Name, probe.HTTPGet.Port.StrVal)
				}
			}
		}
		for _, v := range pod.Spec.Volumes {
			if v.Secret != nil && *v.Secret.DefaultMode != 0o440 {
				t.Errorf("%s: volume %s has mode %o", name, v.Name, *v.Secret.DefaultMode)
			}
		}
	}
}

// checkRestricted is the profile `restricted` (https://kubernetes.io/docs/concepts/security/pod-security-standards/).
func checkRestricted(t *testing.T, name string, pod core.PodSpec) {
	t.Helper()
	s := pod.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: the pod is not restricted: %+v", name, s)
	}
	if pod.HostNetwork || pod.HostPID || pod.HostIPC {
		t.Errorf("%s: shares the host's namespaces", name)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			t.Errorf("%s: volume %s is the host's", name, v.Name)
		}
	}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		s := c.SecurityContext
		if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.Capabilities == nil ||
			!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s/%s: the container is not restricted: %+v", name, c.Name, s)
		}
		if s != nil && (s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem) {
			t.Errorf("%s/%s: can write to its image", name, c.Name)
		}
	}
}

// checkSelectors: each selector finds the pods of one Deployment, and named ports are there.
func checkSelectors(t *testing.T, o *objects) {
	pods := templates(o)
	find := func(what string, selector labels.Selector) (found core.PodTemplateSpec) {
		t.Helper()
		var names []string
		for name, pod := range pods {
			if selector.Matches(labels.Set(pod.Labels)) {
				names, found = append(names, name), pod
			}
		}
		if len(names) != 1 {
			t.Errorf("%s selects %v, want one", what, names)
		}
		return found
	}
	of := func(s *metav1.LabelSelector) labels.Selector {
		t.Helper()
		out, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, d := range each[apps.Deployment](o) {
		find("Deployment "+d.Name, of(d.Spec.Selector))
		for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
			find("spread of "+d.Name, of(c.LabelSelector))
		}
	}
	for _, p := range each[policy.PodDisruptionBudget](o) {
		find("PodDisruptionBudget "+p.Name, of(p.Spec.Selector))
	}
	for _, p := range each[network.NetworkPolicy](o) {
		if p.Namespace == "grapevine" {
			find("NetworkPolicy "+p.Name, of(&p.Spec.PodSelector))
		}
	}
	for _, m := range each[PodMonitor](o) {
		if len(m.Spec.NamespaceSelector.MatchNames) == 0 {
			find("PodMonitor "+m.Metadata.Name, of(&m.Spec.Selector))
		}
	}
	for _, s := range each[core.Service](o) {
		pod := find("Service "+s.Name, labels.SelectorFromSet(s.Spec.Selector))
		for _, port := range s.Spec.Ports {
			there := slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p core.ContainerPort) bool {
				return p.Name == port.TargetPort.StrVal && protocol(p.Protocol) == protocol(port.Protocol)
			})
			if !there {
				t.Errorf("Service %s: the pod has no %s port %s", s.Name, protocol(port.Protocol), port.TargetPort.StrVal)
			}
		}
	}
	for _, b := range each[rbac.RoleBinding](o) {
		get[rbac.Role](t, o, b.Namespace, b.RoleRef.Name)
		get[core.ServiceAccount](t, o, b.Subjects[0].Namespace, b.Subjects[0].Name)
	}
	for name, pod := range pods {
		get[core.ServiceAccount](t, o, "grapevine", pod.Spec.ServiceAccountName)
		if pod.Spec.ServiceAccountName != name {
			t.Errorf("%s runs as %s", name, pod.Spec.ServiceAccountName)
		}
	}
}

func protocol(p core.Protocol) core.Protocol {
	if p == "" {
		return core.ProtocolTCP
	}
	return p
}

// checkKeys: what is made can be read, and is the same everywhere.
func checkKeys(t *testing.T, o *objects) {
	var first *core.Secret
	for _, s := range each[core.Secret](o) {
		if s.Name != "grapevine-keys" {
			if len(s.Data) > 0 || len(s.StringData) > 0 {
				t.Errorf("Secret %s has data: an upgrade would put it back", s.Name)
			}
			continue
		}
		if first == nil {
			first = s
		}
		if !cmp.Equal(s.Data, first.Data) {
			t.Errorf("keys of namespace %s are others than those of %s", s.Namespace, first.Namespace)
		}
		if key, err := base64.StdEncoding.DecodeString(string(s.Data["gossip.key"])); err != nil || len(key) != 32 {
			t.Errorf("gossip key of %d bytes (%v), want 32", len(key), err)
		}
		if seed, err := strconv.ParseUint(string(s.Data["seed"]), 0, 64); err != nil || seed == 0 {
			t.Errorf("seed: %v", err)
		}
	}
}

// checkWebhook: whatever happens to the injector, pods are created; and an upgrade leaves its certificate alone.
func checkWebhook(t *testing.T, o *objects) {
	for _, c := range each[admission.MutatingWebhookConfiguration](o) {
		for _, w := range c.Webhooks {
			if *w.FailurePolicy != admission.Ignore || *w.SideEffects != admission.SideEffectClassNone || *w.ReinvocationPolicy != admission.IfNeededReinvocationPolicy {
				t.Errorf("%s: failure policy %s, side effects %s, reinvocation %s", w.Name, *w.FailurePolicy, *w.SideEffects, *w.ReinvocationPolicy)
			}
			if *w.TimeoutSeconds < 1 || *w.TimeoutSeconds > 5 {
				t.Errorf("%s: pods would wait %d s", w.Name, *w.TimeoutSeconds)
			}
			if w.ClientConfig.CABundle != nil {
				t.Errorf("%s: an upgrade would put its caBundle back", w.Name)
			}
			s := get[core.Service](t, o, w.ClientConfig.Service.Namespace, w.ClientConfig.Service.Name)
			if *w.ClientConfig.Service.Port != s.Spec.Ports[0].Port {
				t.Errorf("%s calls port %d, the Service has %d", w.Name, *w.ClientConfig.Service.Port, s.Spec.Ports[0].Port)
			}
			want := []admission.RuleWithOperations{{
				Operations: []admission.OperationType{admission.Create},
				Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: w.Rules[0].Scope},
			}}
			if d := cmp.Diff(want, w.Rules); d != "" || *w.Rules[0].Scope != admission.NamespacedScope {
				t.Errorf("%s: rules (-want +got):\n%s", w.Name, d)
			}
		}
	}
}

// TestChartWebhookReach: which webhook sees a pod, by the label of its namespace and its own. Never two.
func TestChartWebhookReach(t *testing.T) {
	const key = "grapevine-llm.github.io/inject"
	const none = "-"
	tests := []struct{ name, namespace, label, pod, want string }{
		{"nothing is labelled", "models", none, none, ""},
		{"namespace for agents", "models", "agent", none, "/inject/agent"},
		{"namespace for configured engines", "models", "configure", none, "/inject/configure"},
		{"namespace without a level", "models", "", none, "/inject/default"},
		{"namespace enabled", "models", "enabled", none, "/inject/default"},
		{"namespace off", "models", "disabled", "agent", ""},
		{"pod off", "models", "configure", "disabled", ""},
		{"pod of its own level", "models", "agent", "configure", "/inject/agent"},
		{"pod alone", "models", none, "configure", "/inject"},
		{"pod alone, without a level", "models", none, "true", "/inject"},
		{"the cluster's own", "kube-system", "agent", "agent", ""},
		{"a slip of the pen", "models", "agnet", none, ""},
	}
	o := render(t, registry)
	hooks := get[admission.MutatingWebhookConfiguration](t, o, "", "grapevine-injector").Webhooks
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			with := func(m labels.Set, value string) labels.Set {
				if value != none {
					m[key] = value
				}
				return m
			}
			namespace := with(labels.Set{"kubernetes.io/metadata.name": tt.namespace}, tt.label)
			pod := with(labels.Set{"app": "vllm"}, tt.pod)
			var got []string
			for _, w := range hooks {
				ns, err := metav1.LabelSelectorAsSelector(w.NamespaceSelector)
				if err != nil {
					t.Fatal(err)
				}
				object, err := metav1.LabelSelectorAsSelector(w.ObjectSelector)
				if err != nil {
					t.Fatal(err)
				}
				if ns.Matches(namespace) && object.Matches(pod) {
					got = append(got, *w.ClientConfig.Service.Path)
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("goes to %q, want %q", got, tt.want)
			}
		})
	}
}

// checkGateway: the pod outlives its drain, mounts what its settings name, and listens where its ports say.
func checkGateway(t *testing.T, o *objects) {
	d := get[apps.Deployment](t, o, "grapevine", "grapevine-gateway")
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	config := gatewayConfig(t, o)
	drain := config["drain-wait"].(string)
	seconds, err := strconv.Atoi(strings.TrimSuffix(drain, "s"))
	if err != nil {
		t.Fatal(err)
	}
	stop := int64(0)
	if c.Lifecycle != nil {
		stop = c.Lifecycle.PreStop.Sleep.Seconds
	}
	if *pod.TerminationGracePeriodSeconds <= int64(seconds)+stop {
		t.Errorf("killed after %d s, stops for %d s and drains for %s", *pod.TerminationGracePeriodSeconds, stop, drain)
	}
	mounted := map[string]bool{}
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v core.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("mount of volume %s, which is not there", m.Name)
		}
		mounted[m.MountPath] = true
	}
	for _, file := range paths(config) {
		if !mounted[filepath.Dir(file)] && !mounted[filepath.Dir(filepath.Dir(file))] && !mounted[filepath.Dir(filepath.Dir(file)+"/x")] {
			t.Errorf("%s is not mounted", file)
		}
	}
	ports := map[string]bool{}
	for _, p := range c.Ports {
		ports[fmt.Sprint(":", p.ContainerPort)] = true
	}
	var listens []string
	collect(config, func(key string, value any) {
		if list, many := value.([]any); many && strings.HasSuffix(key, "listen") {
			for _, v := range list {
				addr := v.(string)
				listens = append(listens, addr[strings.LastIndexByte(addr, ':'):])
			}
		} else if strings.HasSuffix(key, "listen") && value != "" {
			listens = append(listens, value.(string))
		}
	})
	for _, l := range listens {
		if !ports[l] {
			t.Errorf("the gateway listens at %s, its pod has %v", l, slices.Sorted(maps.Keys(ports)))
		}
	}
	if want := len(listens) + 2; len(c.Ports) != want { // and gossip, TCP and UDP
		t.Errorf("%d ports, %d listeners", len(c.Ports), want)
	}
	_, watches := config["kubernetes"]
	if *pod.AutomountServiceAccountToken != watches {
		t.Errorf("service account token mounted: %v, watches Kubernetes: %v", *pod.AutomountServiceAccountToken, watches)
	}
}

// gatewayConfig is the gateways' file.
func gatewayConfig(t *testing.T, o *objects) map[string]any {
	t.Helper()
	var config map[string]any
	if err := yaml.UnmarshalStrict([]byte(get[core.ConfigMap](t, o, "grapevine", "grapevine-gateway").Data["gateway.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	return config
}

// collect calls f with each setting of a file.
func collect(m map[string]any, f func(key string, value any)) {
	for key, value := range m {
		if sub, ok := value.(map[string]any); ok {
			collect(sub, f)
			continue
		}
		f(key, value)
	}
}

// paths are the absolute paths that a file names.
func paths(config map[string]any) []string {
	var out []string
	collect(config, func(_ string, value any) {
		if s, ok := value.(string); ok && filepath.IsAbs(s) {
			out = append(out, s)
		}
	})
	return out
}

// TestChartSettings gives the gateway and the injector what the chart gives them.
func TestChartSettings(t *testing.T) {
	for name, values := range installs() {
		t.Run(name, func(t *testing.T) {
			o := render(t, values)
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
			got := settings(t, "gateway", "--config", file)
			if d := missing(config, got); d != "" {
				t.Errorf("settings that the gateway does not have: %s", d)
			}
			for _, e := range get[apps.Deployment](t, o, "grapevine", "grapevine-gateway").Spec.Template.Spec.Containers[0].Env {
				checkEnv(t, e.Name, got)
			}
		})
	}
}

// local replaces the files of a configuration by files that are there.
func local(t *testing.T, o *objects, config map[string]any) {
	t.Helper()
	dir := t.TempDir()
	data := map[string][]byte{"tls.crt": nil, "tls.key": nil, "gossip.key": []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), "seed": []byte("1")}
	for _, s := range each[core.Secret](o) {
		for name, b := range s.Data {
			data[name] = b
		}
	}
	for name, b := range data {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var walk func(m map[string]any)
	walk = func(m map[string]any) {
		for key, value := range m {
			switch v := value.(type) {
			case map[string]any:
				walk(v)
			case string:
				if _, ok := data[filepath.Base(v)]; ok {
					m[key] = filepath.Join(dir, filepath.Base(v))
				} else if filepath.IsAbs(v) {
					m[key] = dir
				}
			}
		}
	}
	walk(config)
}

// missing says which settings of want are not so in got.
func missing(want, got map[string]any) string {
	var out []string
	for key, value := range want {
		sub, isMap := value.(map[string]any)
		gotSub, gotMap := got[key].(map[string]any)
		switch {
		case isMap && gotMap:
			if s := missing(sub, gotSub); s != "" {
				out = append(out, key+"."+s)
			}
		default:
			a, errA := time.ParseDuration(fmt.Sprint(value))
			b, errB := time.ParseDuration(fmt.Sprint(got[key]))
			if same := errA == nil && errB == nil && a == b; !same && !cmp.Equal(value, got[key]) {
				out = append(out, fmt.Sprintf("%s is %v, want %v", key, got[key], value))
			}
		}
	}
	return strings.Join(out, ", ")
}

// checkEnv: GRAPEVINE_A_B is a setting a-b, or a.b.
func checkEnv(t *testing.T, name string, known map[string]any) {
	t.Helper()
	want, ok := strings.CutPrefix(name, "GRAPEVINE_")
	if !ok {
		return
	}
	found := false
	var walk func(prefix string, m map[string]any)
	walk = func(prefix string, m map[string]any) {
		for key, value := range m {
			env := prefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
			found = found || env == want
			if sub, ok := value.(map[string]any); ok {
				walk(env+"_", sub)
			}
		}
	}
	walk("", known)
	if !found {
		t.Errorf("%s is no setting", name)
	}
}

func TestChartInjectorArguments(t *testing.T) {
	for name, values := range installs() {
		t.Run(name, func(t *testing.T) {
			if name == "no injector" {
				t.Skip("these values make no injector")
			}
			pod := get[apps.Deployment](t, render(t, values), "grapevine", "grapevine-injector").Spec.Template.Spec
			settings(t, "injector", pod.Containers[0].Args...)
			proof := pod.InitContainers[0]
			if !slices.Contains(pod.Containers[0].Args, "--agent-image="+proof.Image) {
				t.Errorf("proves %s, injects another: %v", proof.Image, pod.Containers[0].Args)
			}
		})
	}
}

// TestChartRights is the whole list of rights.
func TestChartRights(t *testing.T) {
	read := []string{"get", "list", "watch"}
	pods := rbac.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read}
	pools := rbac.PolicyRule{APIGroups: []string{"inference.networking.k8s.io"}, Resources: []string{"inferencepools"}, Verbs: read}
	objectives := rbac.PolicyRule{APIGroups: []string{"llm-d.ai"}, Resources: []string{"inferenceobjectives"}, Verbs: read}
	slicesRule := rbac.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read}
	injector := map[string][]rbac.PolicyRule{
		"Role grapevine/grapevine-injector": {{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"grapevine-injector-cert"}, Verbs: []string{"get", "update"}}},
		"ClusterRole grapevine-injector": {{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"mutatingwebhookconfigurations"}, ResourceNames: []string{"grapevine-injector"},
			Verbs: []string{"get", "patch"}}},
	}
	tests := map[string]map[string][]rbac.PolicyRule{
		"least":       {},
		"no injector": {},
		"pools": {
			"Role models/grapevine-gateway":    {pods, pools, objectives, slicesRule},
			"Role grapevine/grapevine-gateway": {pods, pools, objectives},
			"Role other/grapevine-gateway":     {slicesRule},
		},
		"extproc": {"Role grapevine/grapevine-gateway": {pods, pools}},
		"all":     {"Role models/grapevine-gateway": {slicesRule}},
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			o := render(t, installs()[name])
			if name != "no injector" {
				maps.Copy(want, injector)
			}
			got := map[string][]rbac.PolicyRule{}
			for _, x := range o.all {
				switch r := x.any.(type) {
				case *rbac.Role:
					got[x.String()] = r.Rules
				case *rbac.ClusterRole:
					got[x.String()] = r.Rules
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("rights (-want +got):\n%s", d)
			}
		})
	}
}

// TestChartPolicyNeedsNoRestart: what gateways take over while they run does not roll them; everything else does.
func TestChartPolicyNeedsNoRestart(t *testing.T) {
	sum := func(config string) string {
		o := render(t, registry+"keys: {create: false}\ngateway: {config: "+config+"}\n")
		return get[apps.Deployment](t, o, "grapevine", "grapevine-gateway").Spec.Template.Annotations["checksum/config"]
	}
	before := sum("{}")
	for _, c := range []string{"{policy: {prefix: 5, least-load: 95}}", "{holding: false}", "{speculating: false}"} {
		if sum(c) != before {
			t.Errorf("%s restarts all gateways", c)
		}
	}
	if sum("{max-concurrent: 5}") == before {
		t.Error("a new limit restarts no gateway")
	}
}

func TestChartRefuses(t *testing.T) {
	tests := []struct{ name, values, says string }{
		{"no image", "{}", "no image for the"},
		{"no image of the agent", "gateway: {image: a}\ninjector: {image: b}\n", "injector.agentImage"},
		{"a slip of the pen", registry + "gateway: {replica: 3}\n", "replica"},
		{"an unknown mode", registry + "gateway: {mode: x}\n", "mode"},
		{"a slow webhook", registry + "injector: {timeoutSeconds: 30}\n", "timeoutSeconds"},
		{"a pool without a picker", registry + "inferencePools: [{name: a, selector: {a: b}, targetPorts: [1]}]\n", "gateway.mode"},
		{"a route without a port", registry + "gateway: {mode: extproc}\nhttpRoutes: [{name: a, parentRefs: [{name: g}], grapevinePercent: 5, baseline: {name: b, port: 1}}]\n", "gateway.mode"},
		{"nothing to scale by", registry + "gateway: {autoscaling: {enabled: true, cpuPercent: 0}}\n", "requestsInFlight"},
		{"gateways among the models", registry + "modelNamespaces: [grapevine]\nnetworkPolicy: {enabled: true}\n", "modelPodSelector"},
		{"two pools of one port", registry + "gateway: {mode: both}\ninferencePools: [{name: a, selector: {a: b}, targetPorts: [1]}, {name: b, selector: {a: c}, targetPorts: [1]}]\n", "port of its own"},
		{"nine ports", registry + "gateway: {mode: both}\ninferencePools: [{name: a, selector: {a: b}, targetPorts: [1,2,3,4,5,6,7,8,9]}]\n", "targetPorts"},
		{"a share above all", registry + "httpRoutes: [{name: a, parentRefs: [{name: g}], grapevinePercent: 101, baseline: {name: b, port: 1}}]\n", "grapevinePercent"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(tt.values), 0o600); err != nil {
				t.Fatal(err)
			}
			out, stderr, err := helm(t, "template", "grapevine", "chart", "--namespace", "grapevine", "--values", file)
			if err == nil || !strings.Contains(stderr, tt.says) {
				t.Errorf("err %v, %s%s\ndoes not say %q", err, out, stderr, tt.says)
			}
		})
	}
}

// TestChartOldCluster: a preStop sleep is no field of a pod before 1.30; without it the handler would be empty and the pod refused.
func TestChartOldCluster(t *testing.T) {
	o := render(t, registry, "--kube-version", "1.29.4")
	checkGateway(t, o)
	if c := get[apps.Deployment](t, o, "grapevine", "grapevine-gateway").Spec.Template.Spec.Containers[0]; c.Lifecycle != nil {
		t.Errorf("preStop on 1.29: %+v", c.Lifecycle)
	}
}

func TestChartKillSwitch(t *testing.T) {
	for _, x := range render(t, installs()["no injector"]).all {
		if strings.Contains(x.String(), "injector") {
			t.Errorf("%s is still there", x)
		}
	}
}

func TestChartNetworkPolicies(t *testing.T) {
	o := render(t, installs()["all"])
	gossip := []network.NetworkPolicyPort{policyPort("TCP", 7946), policyPort("UDP", 7946)}
	for _, name := range []string{"grapevine/grapevine-gateway", "models/grapevine-models", "more/grapevine-models"} {
		ns, n, _ := strings.Cut(name, "/")
		p := get[network.NetworkPolicy](t, o, ns, n)
		found := false
		for _, rule := range p.Spec.Ingress {
			if !cmp.Equal(rule.Ports, gossip) {
				continue
			}
			found = true
			var from []string
			for _, peer := range rule.From {
				from = append(from, peer.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"])
			}
			if d := cmp.Diff([]string{"grapevine", "models", "more"}, from); d != "" {
				t.Errorf("%s: gossip peers (-want +got):\n%s", name, d)
			}
		}
		if !found {
			t.Errorf("%s: no rule for gossip by TCP and UDP", name)
		}
		if !slices.Equal(p.Spec.PolicyTypes, []network.PolicyType{network.PolicyTypeIngress}) {
			t.Errorf("%s: types %v: models could not fetch their weights", name, p.Spec.PolicyTypes)
		}
	}
}

// TestChartScaledObject: the queries ask for metrics that exist, with labels that they have.
func TestChartScaledObject(t *testing.T) {
	known := metrics(t)
	for _, s := range each[ScaledObject](render(t, installs()["all"])) {
		for _, trigger := range s.Spec.Triggers {
			known.check(t, s.Metadata.Name, trigger.Metadata["query"])
		}
	}
}

// TestChartValuesExplained needs no Helm: each value has a comment over it, and values and schema name the same ones.
func TestChartValuesExplained(t *testing.T) {
	text, err := os.ReadFile("chart/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	key := regexp.MustCompile(`^( *)([A-Za-z]+):(.*)$`)
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		m := key.FindStringSubmatch(line)
		if m == nil || m[3] == "" { // a group is explained by its values
			continue
		}
		// enabled, labels, affinity and the like say themselves what they are.
		plain := []string{"enabled", "pullPolicy", "replicas", "minReplicas", "maxReplicas", "maxUnavailable", "type", "annotations", "labels", "interval", "affinity", "nodeSelector",
			"tolerations", "priorityClassName", "podAnnotations", "podLabels", "requests", "limits", "extraVolumes", "extraVolumeMounts", "resources"}
		if !strings.HasPrefix(strings.TrimSpace(lines[i-1]), "#") && !slices.Contains(plain, m[2]) {
			t.Errorf("values.yaml:%d: %s is not explained", i+1, m[2])
		}
	}

	var values map[string]any
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile("chart/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := yaml.UnmarshalStrict(raw, &schema); err != nil {
		t.Fatal(err)
	}
	var walk func(at string, values, schema map[string]any)
	walk = func(at string, values, schema map[string]any) {
		properties, ok := schema["properties"].(map[string]any)
		if !ok {
			return // free form
		}
		if schema["additionalProperties"] != false {
			t.Errorf("schema of %q takes unknown values", at)
		}
		for name, p := range properties {
			v, there := values[name]
			if !there && at+name != "global" {
				t.Errorf("values.yaml does not have %s.%s, which the schema knows", at, name)
			}
			if sub, ok := v.(map[string]any); ok {
				walk(at+"."+name, sub, p.(map[string]any))
			}
		}
		for name := range values {
			if _, known := properties[name]; !known {
				t.Errorf("the schema does not know %s.%s", at, name)
			}
		}
	}
	walk("", values, schema)
}
