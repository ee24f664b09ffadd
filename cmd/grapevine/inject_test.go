package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/grapevine-llm/grapevine/agent"
	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/deploy/inject"
)

// runInject is the command with input on standard input.
func runInject(t *testing.T, input string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := newRoot()
	cmd.SetIn(strings.NewReader(input))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(append([]string{"inject"}, args...))
	err = cmd.Execute()
	return out.String(), errs.String(), err
}

const manifests = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  replicas: 3
  selector: {matchLabels: {app: llama}}
  template:
    metadata: {labels: {app: llama}}
    spec:
      containers:
      - {name: vllm, image: "vllm/vllm-openai:v0.32.0", args: [--model, Qwen/Qwen3-8B], ports: [{containerPort: 8000}]}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: llama}, spec: {ports: [{port: 80}]}}
- apiVersion: leaderworkerset.x-k8s.io/v1
  kind: LeaderWorkerSet
  metadata: {name: big}
  spec:
    leaderWorkerTemplate:
      size: 2
      leaderTemplate:
        spec: {containers: [{name: l, image: "vllm/vllm-openai:v0.32.0", command: [vllm, serve, Qwen/Qwen3-8B]}]}
      workerTemplate:
        spec: {containers: [{name: w, image: "vllm/vllm-openai:v0.32.0", command: [vllm, serve, Qwen/Qwen3-8B]}]}
`

func TestInjectManifests(t *testing.T) {
	stdout, stderr, err := runInject(t, manifests, "-f", "-", "--namespace-label", "configure", "--agent-image", "a:1", "--gossip-join", "gw")
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	docs := strings.Split(stdout, "---\n")
	if len(docs) != 3 {
		t.Fatalf("%d documents, want 3:\n%s", len(docs), stdout)
	}
	for i, want := range []int{1, 0, 1} { // the Service and the worker are left alone
		if n := strings.Count(docs[i], "name: grapevine-agent\n"); n != want {
			t.Errorf("document %d: %d agents, want %d\n%s", i, n, want, docs[i])
		}
	}
	if !strings.Contains(docs[0], "replicas: 3\n") {
		t.Errorf("numbers changed:\n%s", docs[0])
	}
	for _, want := range []string{"deployment/llama: configure", "service/llama: left as it is", "leaderworkerset/big: configure", "leaderworkerset/big: worker"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is missing in:\n%s", want, stderr)
		}
	}
	again, _, err := runInject(t, stdout, "-f", "-", "--namespace-label", "configure", "--agent-image", "a:1", "--gossip-join", "gw")
	if err != nil || again != stdout {
		t.Errorf("a second pass changes something: %v", err)
	}

	stdout, _, err = runInject(t, manifests, "-f", "-", "--patch")
	var ops []inject.Op
	if err := json.NewDecoder(strings.NewReader(stdout)).Decode(&ops); err != nil || len(ops) == 0 || !strings.HasPrefix(ops[0].Path, "/spec/template/") {
		t.Errorf("patch: %v\n%s", err, stdout)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestInjectAsGiven: what was not given is told, and --level counts.
func TestInjectAsGiven(t *testing.T) {
	given := []string{"--agent-image", "a:1", "--gossip-join", "gw"}
	for _, tt := range []struct {
		name           string
		args           []string
		stderr, stdout string
		not            string // on standard error
	}{
		{"nothing", nil, "--agent-image was not given, REGISTRY/agent:" + version, "image: REGISTRY/agent:" + version, ""},
		{"no gateways", given[:2], "--gossip-join was not given", "image: a:1", "--agent-image"},
		{"all", given, "deployment/llama: agent", "--gossip-join=gw:7946", "not given"},
		{"level", append([]string{"--level", "configure"}, given...), "deployment/llama: configure", "--kv-events-config", ""},
		{"label before level", append([]string{"--level", "configure", "--namespace-label", "agent"}, given...), "deployment/llama: agent", "", ""},
		{"not labelled", []string{"--namespace-label", "none"}, "deployment/llama: off", "", "not given"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdout, stderr, err := runInject(t, manifests, append([]string{"-f", "-"}, tt.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(stderr, tt.stderr) || tt.not != "" && strings.Contains(stderr, tt.not) {
				t.Errorf("said %s\nwant %q, not %q", stderr, tt.stderr, tt.not)
			}
			if !strings.Contains(stdout, tt.stdout) {
				t.Errorf("%q is missing in\n%s", tt.stdout, stdout)
			}
		})
	}
}

func TestInjectFaults(t *testing.T) {
	for _, tt := range []struct {
		name, input string
		args        []string
		want        string
	}{
		{"no file", "", nil, "file: none given"},
		{"not there", "", []string{"-f", "no-such-file.yaml"}, "no-such-file.yaml"},
		{"empty", "\n---\n", []string{"-f", "-"}, "nothing to read"},
		{"no object", "[1]", []string{"-f", "-"}, "decode object"},
		{"no pod", "{kind: Pod, spec: {containers: 5}}", []string{"-f", "-"}, "decode pod"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, stderr, err := runInject(t, tt.input, tt.args...)
			if err == nil || !strings.Contains(err.Error()+stderr, tt.want) {
				t.Errorf("got %v %s, want %q", err, stderr, tt.want)
			}
		})
	}
}

// TestAgentsTakeTheirArguments: an agent that ends on a flag keeps its pod from
// starting. Every golden pod's agent is given its arguments, with the addresses of
// either family in the place of variables, beside the variables of Services.
func TestAgentsTakeTheirArguments(t *testing.T) {
	files, err := filepath.Glob("../../deploy/inject/testdata/*/patched.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden pods: %v", err)
	}
	for name, value := range map[string]string{
		"GRAPEVINE_GATEWAY_SERVICE_HOST": "10.0.0.1", "GRAPEVINE_GATEWAY_SERVICE_PORT": "8080", "GRAPEVINE_GATEWAY_PORT": "tcp://10.0.0.1:8080",
		"GRAPEVINE_GATEWAY_PORT_8080_TCP": "tcp://10.0.0.1:8080", "GRAPEVINE_GATEWAY_PORT_8080_TCP_PROTO": "tcp", "GRAPEVINE_GATEWAY_PORT_8080_TCP_ADDR": "10.0.0.1",
		"GRAPEVINE_GATEWAY_SERVICE_PORT_HTTP": "8080", "GRAPEVINE_INJECTOR_SERVICE_PORT": "443", "GRAPEVINE_PORT": "tcp://10.0.0.2:80", "GRAPEVINE_SERVICE_HOST": "10.0.0.2",
	} {
		t.Setenv(name, value)
	}
	agents := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		pod := new(corev1.Pod)
		if err := yaml.Unmarshal(text, pod); err != nil {
			t.Fatal(err)
		}
		for _, c := range pod.Spec.InitContainers {
			if c.Name != inject.AgentContainer {
				continue
			}
			for _, ip := range []string{"10.0.0.5", "fd00::5"} {
				agents++
				var args []string
				for _, a := range c.Args {
					if a == "--supervise" { // is taken by the agent's parent, see cmd/agent
						continue
					}
					args = append(args, strings.NewReplacer("$(POD_IP)", ip, "$(POD_UID)", "5d1c", "$(POD_NAME)", "p", "$(POD_NAMESPACE)", "n", "$$", "$").Replace(a))
				}
				for _, e := range c.Env {
					if strings.HasPrefix(e.Name, "GRAPEVINE_") {
						t.Setenv(e.Name, "key")
					}
				}
				cfg := agent.Default()
				var stderr bytes.Buffer
				fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
				if ok, code := config.Start(fs, "", args, &cfg, "v", os.Stdout, &stderr); !ok {
					t.Errorf("%s: agent %s ends with %d: %s", f, strings.Join(args, " "), code, &stderr)
				}
			}
		}
	}
	t.Logf("%d agents", agents)
}
