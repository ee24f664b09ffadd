package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	network "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestChartOddNames: names that Kubernetes and Helm take, and that YAML takes for numbers or worse.
func TestChartOddNames(t *testing.T) {
	long := strings.Repeat("a", 39) + ".b.c"
	for _, tt := range []struct{ release, namespace, values string }{
		{"a.b", "grapevine", ""},
		{"1st", "grapevine", ""},
		{"123", "456", "modelNamespaces: ['789', '456', '1e3']"},
		{"true", "null", "modelNamespaces: ['true']"},
		{long, "grapevine", ""},
		{strings.Repeat("1", 53), "grapevine", ""},
		{"g", "grapevine", "keys: {existingSecret: '123'}\nextProc: {tlsSecret: '456'}\ngateway: {mode: both, image: '789', priorityClassName: '1000'}\nimagePullSecrets: ['1', a.b]\ninjector: {agentPullSecrets: [c.d]}"},
		{"g", "grapevine", "scaledObjects: [{name: '1', namespace: '2', target: a.b, pool: \"a: b #c \\\"d\\\\\\n\", minReplicas: 1, maxReplicas: 2, prometheus: 'http://x:1/#y'}]"},
		{"g", "grapevine", "gateway: {mode: both}\ninferencePools: [{name: '1', selector: {a: '2'}, targetPorts: [1], parentRefs: [{name: x}]}]\nhttpRoutes: [{name: '2', parentRefs: [{name: '3'}], grapevinePercent: 5, baseline: {name: s, port: 80}}]"},
		{"g", "grapevine", "gateway: {podAnnotations: {a: \"x\\ny: 'z' \\\"q\\\" \\\\ {{ .Values }}\", b: '1'}, nodeSelector: {a: 'true'}, env: [{name: A, value: \"q'\\\"\\\\\\n{{x}}\"}]}"},
	} {
		t.Run(tt.release+" "+tt.namespace, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(registry+tt.values+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			out, stderr, err := helm(t, "template", tt.release, "chart", "--namespace", tt.namespace, "--values", file,
				"--set", "networkPolicy.enabled=true,podMonitor.enabled=true,networkPolicy.modelPodSelector.matchLabels.a=b")
			if err != nil {
				t.Fatal(stderr)
			}
			o := decode(t, out)
			for _, x := range o.all {
				faults := validation.IsDNS1123Subdomain(x.meta.Name)
				if x.kind == "Service" {
					faults = validation.IsDNS1035Label(x.meta.Name)
				}
				for _, v := range x.meta.Labels {
					faults = append(faults, validation.IsValidLabelValue(v)...)
				}
				if len(faults) > 0 {
					t.Errorf("%s: %v", x, faults)
				}
			}
			if tt.namespace == "grapevine" {
				checkSelectors(t, o)
			}
		})
	}
}

// TestChartNulls: a value that is left empty is none where there may be none, and else named.
func TestChartNulls(t *testing.T) {
	all := "networkPolicy: {enabled: true, engineFrom: null, clientsFrom: null, metricsFrom: null, apiServerFrom: null, gossipFrom: null, modelPodSelector: null}\n" +
		"podMonitor: {enabled: true, labels: null}\nimagePullSecrets: null\ninferencePools: null\nhttpRoutes: null\nscaledObjects: null\n" +
		"pools: {inferencePools: null, services: null}\ngateway: {image: null, config: null, models: null, extraVolumes: null, extraVolumeMounts: null, env: null, resources: null,\n" +
		"  topologySpreadConstraints: null, affinity: null, nodeSelector: null, tolerations: null, priorityClassName: null, podAnnotations: null, podLabels: null, service: {annotations: null}}\n" +
		"injector: {image: null, agentImage: null, agentPullSecrets: null, excludeNamespaces: null, env: null, resources: null, affinity: null, nodeSelector: null, tolerations: null, priorityClassName: null, podAnnotations: null}\n" +
		"keys: {existingSecret: null}\nextProc: {tlsSecret: null}\n"
	render(t, registry+all+"modelNamespaces: null\n")
	o := render(t, registry+all+"modelNamespaces: [models]\n")
	if p := get[network.NetworkPolicy](t, o, "models", "grapevine-models"); len(p.Spec.Ingress) != 2 || len(p.Spec.Ingress[1].Ports) != 1 {
		t.Errorf("ingress to the models: %+v", p.Spec.Ingress)
	}
}

// TestChartAnnotations: an owner's annotation takes the place of ours.
func TestChartAnnotations(t *testing.T) {
	o := render(t, registry+"gateway: {podAnnotations: {traffic.sidecar.istio.io/excludeInboundPorts: '7946,15', checksum/config: x}}\npodMonitor: {enabled: true, labels: {app.kubernetes.io/version: mine}}\n")
	a := get[apps.Deployment](t, o, "grapevine", "grapevine-gateway").Spec.Template.Annotations
	if a["traffic.sidecar.istio.io/excludeInboundPorts"] != "7946,15" || a["traffic.sidecar.istio.io/excludeOutboundPorts"] != "7946" || len(a["checksum/config"]) != 64 {
		t.Errorf("annotations %v", a)
	}
	if l := get[PodMonitor](t, o, "grapevine", "grapevine-gateway").Metadata.Labels; l["app.kubernetes.io/version"] != "mine" || l["app.kubernetes.io/name"] != "grapevine" {
		t.Errorf("labels %v", l)
	}
}

// TestChartRefusesNonsense names the value that is at fault, before anything is installed.
func TestChartRefusesNonsense(t *testing.T) {
	const both = "gateway: {mode: both}\n"
	for name, tt := range map[string]struct{ values, says string }{
		"no replicas":           {"gateway: {replicas: null}", "'replicas'"},
		"no section":            {"keys: null", "'keys'"},
		"no port of the engine": {"networkPolicy: {enabled: true, enginePorts: null}", "'enginePorts'"},
		"image":                 {"gateway: {image: 'x:'}", "/gateway/image"},
		"CPU":                   {"injector: {agentCPU: lots}", "/injector/agentCPU"},
		"memory":                {"injector: {agentMemory: '128Mi # x'}", "/injector/agentMemory"},
		"Secret":                {"keys: {existingSecret: 'a: b'}", "/keys/existingSecret"},
		"priority class":        {"gateway: {priorityClassName: 'a: b'}", "/gateway/priorityClassName"},
		"label of a selector":   {"gateway: {podLabels: {app.kubernetes.io/name: x}}", "gateway.podLabels: app"},
		"label":                 {"gateway: {podLabels: {a: 'b c'}}", "/gateway/podLabels/a"},
		"variable":              {"gateway: {env: [{name: A, value: 5}]}", "/gateway/env/0/value"},
		"interval":              {"podMonitor: {enabled: true, interval: 30}", "/podMonitor/interval"},
		"port of the chart":     {"gateway: {config: {listen: ':8000'}}", "gateway.service.port"},
		"port of health":        {both + "inferencePools: [{name: a, selector: {a: b}, targetPorts: [1], port: 9003}]", "9003"},
		"port of a Service":     {"gateway: {mode: both, service: {port: 9002}}", "9002"},
		"pools of one name":     {both + "inferencePools: [{name: a, selector: {a: b}, targetPorts: [1]}, {name: a, selector: {a: b}, targetPorts: [1], port: 9010}]", "two are named a"},
		"routes of one name":    {both + "inferencePools: [{name: a, selector: {a: b}, targetPorts: [1], parentRefs: [{name: x}]}]\nhttpRoutes: [{name: a, parentRefs: [{name: gw}], grapevinePercent: 5, baseline: {name: l, port: 80}}]", "two are named a"},
		"routes of one place":   {"httpRoutes: [{name: a, parentRefs: [{name: gw}], grapevinePercent: 5, baseline: {name: l, port: 80}}, {name: a, namespace: grapevine, parentRefs: [{name: gw}], grapevinePercent: 5, baseline: {name: l, port: 80}}]", "two are named a"},
		"replicas":              {"gateway: {autoscaling: {enabled: true, minReplicas: 5, maxReplicas: 2}}", "minReplicas"},
		"Prometheus":            {"scaledObjects: [{name: a, target: a, pool: p, minReplicas: 1, maxReplicas: 2, prometheus: 'http://x: y'}]", "/scaledObjects/0/prometheus"},
		"engines":               {"scaledObjects: [{name: a, target: a, pool: p, minReplicas: 3, maxReplicas: 2, prometheus: 'http://x'}]", "minReplicas"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "values.yaml")
			if err := os.WriteFile(file, []byte(registry+tt.values+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			_, stderr, err := helm(t, "template", "grapevine", "chart", "--namespace", "grapevine", "--values", file)
			if err == nil || !strings.Contains(stderr, tt.says) || strings.Contains(stderr, "YAML parse error") || strings.Contains(stderr, "nil pointer") {
				t.Errorf("err %v, %s\ndoes not say %q", err, stderr, tt.says)
			}
		})
	}
	for _, interval := range []string{"1m30s", "1h", "500ms"} {
		render(t, registry+"podMonitor: {enabled: true, interval: "+interval+"}\n")
	}
}
