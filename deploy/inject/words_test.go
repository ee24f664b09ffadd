package inject

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var testEnv = map[string]word{"A": {"a b", true}, "ONE": {"1", true}, "NONE": {"", true}, "SECRET": {}}

// budget is what a container's words may take.
func budget() *int { n := maxWords; return &n }

func TestSplit(t *testing.T) {
	for _, tt := range []struct{ script, want string }{
		{"vllm serve m", "vllm|serve|m"},
		{"a  'b c' \"d e\" f\\ g", "a|b c|d e|f g"},
		{"a \\\n  b", "a|b"},
		{"x=1 && vllm serve m; sleep 1 | tee f", "x=1|&|&|vllm|serve|m|;|sleep|1|||tee|f"},
		{"a # b\nc", "a|\n|c"},
		{"--x $ONE ${ONE} \"$A\" $A $NONE end", "--x|1|1|a b|a|b|end"},
		{"--p ${PORT:-8123} --q ${ONE:-2}", "--p|8123|--q|1"},
		{"--k $SECRET ${OTHER} $(cat f)", "--k|?${SECRET}|?${OTHER}|?$|(|cat|f|)"},
		{`'{"a": 1}' "{\"b\": \"$ONE\"}"`, `{"a": 1}|{"b": "1"}`},
		{"'open", "?open"},
		{"`date`", "?date"},
	} {
		var got []string
		for _, w := range split(tt.script, testEnv, budget()) {
			if !w.known {
				w.text = "?" + w.text
			}
			got = append(got, w.text)
		}
		if s := strings.Join(got, "|"); s != tt.want {
			t.Errorf("%q:\n got %s\nwant %s", tt.script, s, tt.want)
		}
	}
}

func TestExpand(t *testing.T) {
	for in, want := range map[string]word{
		"plain": {"plain", true}, "$(ONE)x$(ONE)": {"1x1", true}, "$$(ONE)": {"$(ONE)", true}, "$(SECRET)": {"$(SECRET)", false}, "$(OTHER)": {"$(OTHER)", false},
		"$(open": {"$(open", true}, "$": {"$", true}, "a$b": {"a$b", true},
	} {
		if got := expand(in, testEnv, budget()); got != want {
			t.Errorf("%q: %+v, want %+v", in, got, want)
		}
	}
}

// Thirty variables that double would be a gigabyte.
func TestVariablesThatDouble(t *testing.T) {
	c := corev1.Container{Command: []string{"sh", "-c", "vllm serve m --x " + strings.Repeat("$V20", 1000)}, Args: []string{"$(V30)"}}
	c.Env = append(c.Env, corev1.EnvVar{Name: "V0", Value: "x"})
	for i := range 30 {
		name := "$(V" + strconv.Itoa(i) + ")"
		c.Env = append(c.Env, corev1.EnvVar{Name: "V" + strconv.Itoa(i+1), Value: name + name})
	}
	e := recognize(&c)
	if e == nil || e.flags.has("port") || len(e.flags.values["x"].text) > maxWords {
		t.Errorf("%+v", e)
	}
}

func TestReadFlags(t *testing.T) {
	words := func(s ...string) (out []word) {
		for _, w := range s {
			out = append(out, word{strings.TrimPrefix(w, "?"), !strings.HasPrefix(w, "?")})
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		in     []word
		want   map[string]string
		opaque bool
	}{
		{"value apart and joined", words("--port", "1", "--block-size=16"), map[string]string{"port": "1", "block-size": "16"}, false},
		{"underscores", words("--gpu_memory_utilization", "0.9"), map[string]string{"gpu-memory-utilization": "0.9"}, false},
		{"switches", words("--enable-lora", "--port", "1", "--x"), map[string]string{"enable-lora": "", "port": "1", "x": ""}, false},
		{"short", words("--enable-lora", "-dp", "8"), map[string]string{"enable-lora": "", "data-parallel-size": "8"}, false},
		{"negative number", words("--seed", "-1"), map[string]string{"seed": "-1"}, false},
		{"the last one counts", words("--port=1", "--port", "2"), map[string]string{"port": "2"}, false},
		{"value not to be seen", words("--port", "?$(P)"), map[string]string{"port": "$(P)"}, false},
		{"argument not to be seen", words("--port", "1", "?$(EXTRA)"), map[string]string{"port": "1"}, true},
	} {
		f := readFlags(tt.in)
		got := map[string]string{}
		for k, v := range f.values {
			got[k] = v.text
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || f.opaque != tt.opaque {
			t.Errorf("%s: opaque %v (-want +got):\n%s", tt.name, f.opaque, diff)
		}
	}
}

func TestVersions(t *testing.T) {
	for image, want := range map[string]string{
		"vllm/vllm-openai:v0.11.2": "0.11.2", "docker.io/vllm/vllm-openai:v0.22.0-cu129": "0.22.0", "registry:5000/vllm/vllm-openai:v0.30.1@sha256:aa": "0.30.1",
		"vllm/vllm-openai-rocm:v0.20": "0.20.0", "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.19.0": "0.19.0",
		"vllm/vllm-openai:latest": "", "vllm/vllm-openai:nightly-abc": "", "vllm/vllm-openai": "", "registry:5000/vllm/vllm-openai": "", "vllm/vllm-openai@sha256:aa": "",
		"lmcache/vllm-openai:v0.3.9": "", "ghcr.io/llm-d/llm-d-cuda:v0.4.0": "", "vllm/vllm-openai:20250101": "", "vllm/vllm-openai:v0.11.2.1": "",
	} {
		v, ok := imageVersion(image, vllm)
		if got := v.String(); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %s %v, want %q", image, got, ok, want)
		}
	}
}

func TestPlainModels(t *testing.T) {
	for model, want := range map[string]bool{
		"meta-llama/Llama-3.1-8B-Instruct": true, "meta-llama/Meta-Llama-3-8B": true, "Qwen/Qwen2.5-7B-Instruct": true, "Qwen/Qwen3-30B-A3B": true, "deepseek-ai/DeepSeek-V3": true,
		"mistralai/Mixtral-8x7B-Instruct-v0.1": true, "meta-llama/Llama-3.2-3B-Instruct": true,
		"meta-llama/Llama-4-Scout-17B-16E": false, "Qwen/Qwen3-Next-80B-A3B-Instruct": false, "google/gemma-3-27b-it": false, "openai/gpt-oss-120b": false,
		"mistralai/Mistral-7B-v0.1": false, "/models/Llama-3.1-8B": false, "": false, "deepseek-ai/DeepSeek-V3.2": false, "meta-llama/Llama-3.2-90B-Vision": false,
	} {
		if got := plainModel.MatchString(model); got != want {
			t.Errorf("%q: %v, want %v", model, got, want)
		}
	}
}

// TestWhyNot: each reason that keeps configure from the engine's arguments.
func TestWhyNot(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string // in the warnings; "" is configured
	}{
		{"plain", func(*corev1.Pod) {}, ""},
		{"newer than known", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "vllm/vllm-openai:v0.34.0" }, "newer than this injector knows"},
		{"patch of the newest", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "vllm/vllm-openai:v0.33.7" }, ""},
		{"first release", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image, p.Spec.Containers[0].Args = "vllm/vllm-openai:v0.11.1", []string{"Qwen/Qwen3-8B"}
		}, ""},
		{"before it", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "vllm/vllm-openai:v0.11.0" }, "too old"},
		{"before it, and nothing cached", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = "vllm/vllm-openai:v0.8.5"
			p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, "--no-enable-prefix-caching")
		}, "grapevine: vLLM 0.8.5 is too old for KV events: routed"},
		{"config file", func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"--config", "/c.yaml"} }, "names a file"},
		{"hidden argument", func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"--model=m", "$(MORE)"} }, "not to be seen"},
		{"wrapper", func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/run.sh", "vllm", "serve"} }, "/run.sh"},
		{"no arguments at all", func(p *corev1.Pod) { p.Spec.Containers[0].Args = nil }, "not to be seen"},
		{"event port declared", func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 5557}} }, "declares port 5557"},
		{"replay port of rank 3 declared", func(p *corev1.Pod) {
			p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, "--data-parallel-size=4")
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 6560}}
		}, "declares port 6560"},
		{"too many ranks", func(p *corev1.Pod) {
			p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, "--data-parallel-rank", "1000")
		}, "ranks from 1000 on"},
		{"hybrid, old", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image, p.Annotations = "vllm/vllm-openai:v0.19.0", map[string]string{KeyHybrid: "true"}
		}, "would switch off"},
		{"plain by annotation, old", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image, p.Annotations = "vllm/vllm-openai:v0.19.0", map[string]string{KeyHybrid: "false"}
		}, ""},
		{"hybrid cache off already", func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = "vllm/vllm-openai:v0.19.0"
			p.Spec.Containers[0].Args = []string{"--model", "x/y", "--disable-hybrid-kv-cache-manager"}
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "vllm/vllm-openai:v0.32.0", Args: []string{"--model", "google/gemma-3-27b-it"}}}}}
			tt.change(pod)
			o := Default()
			o.Image = "a:1"
			res := o.Inject(pod, Namespace{Labelled: true, Label: "configure"})
			warnings := strings.Join(res.Warnings, "\n")
			want := InjectedAgent
			if tt.want == "" {
				want = InjectedConfigure
			}
			if res.Outcome != want || !strings.Contains(warnings, tt.want) {
				t.Errorf("%s, want %s with %q:\n%s", res.Outcome, want, tt.want, warnings)
			}
		})
	}
}

func TestLevels(t *testing.T) {
	type m = map[string]string
	for _, tt := range []struct {
		name              string
		annotation, label m
		ns                Namespace
		want              Level
		fault             bool
	}{
		{"nothing", nil, nil, Namespace{}, None, false},
		{"namespace", nil, nil, Namespace{true, "configure"}, Configure, false},
		{"namespace without value", nil, nil, Namespace{true, ""}, Agent, false},
		{"pod label wins", nil, m{KeyInject: "agent"}, Namespace{true, "configure"}, Agent, false},
		{"annotation wins over label", m{KeyInject: "configure"}, m{KeyInject: "agent"}, Namespace{}, Configure, false},
		{"disabled in the namespace", m{KeyInject: "configure"}, nil, Namespace{true, "disabled"}, None, false},
		{"disabled by label", m{KeyInject: "configure"}, m{KeyInject: "disabled"}, Namespace{true, "agent"}, None, false},
		{"slip of the pen", m{KeyInject: "agnet"}, nil, Namespace{true, "agent"}, None, true},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: tt.annotation, Labels: tt.label}}
		if got, fault := Default().level(pod, tt.ns); got != tt.want || (fault != "") != tt.fault {
			t.Errorf("%s: %q %q, want %q", tt.name, got, fault, tt.want)
		}
	}
}

// Containers that name themselves, and pods whose own resources bound all.
func TestAnnotationsAndPodResources(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{KeyContainer: "b", KeyEngine: "vllm", KeyPort: "9001", KeyAddress: "80", KeyPool: "p"}},
		Spec: corev1.PodSpec{
			Resources:  &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("4")}},
			Containers: []corev1.Container{{Name: "a", Image: "x"}, {Name: "b", Image: "y", Command: []string{"/serve"}}},
		},
	}
	o := Default()
	o.Image, o.UID, o.PullSecrets = "a:1", 0, []string{"pull"}
	res := o.Inject(pod, Namespace{Labelled: true})
	var agent corev1.Container
	secret := false
	for _, op := range res.Patch {
		if op.Path == "/spec/initContainers" {
			agent = op.Value.([]any)[0].(corev1.Container)
		}
		secret = secret || op.Path == "/spec/imagePullSecrets"
	}
	if res.Outcome != InjectedAgent || !secret {
		t.Fatalf("%s %v", res.Outcome, res.Warnings)
	}
	args := strings.Join(agent.Args, " ")
	if !strings.HasPrefix(args, "--engine=http://127.0.0.1:9001 --address=http://:80 --pool=p ") {
		t.Errorf("arguments %s", args)
	}
	if len(agent.Resources.Limits) > 0 || agent.SecurityContext.RunAsUser != nil {
		t.Errorf("resources %v, user %v", agent.Resources, agent.SecurityContext.RunAsUser)
	}
	pod.Annotations = map[string]string{KeyContainer: "c"}
	if res := o.Inject(pod, Namespace{Labelled: true}); res.Outcome != LeftUnsafe || !strings.Contains(res.Warnings[0], `container "c"`) {
		t.Errorf("%s %v", res.Outcome, res.Warnings)
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"vllm serve m --port ${PORT:-1}", "a 'b", `"\`, "${", "$", "eval \"x $(y)\"", "\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := corev1.Container{Command: []string{"sh", "-c", s}}
		if e := recognize(&c); e != nil {
			e.ownersEvents()
			e.findPort(&corev1.Pod{})
		}
		for _, w := range split(s, testEnv, budget()) {
			if w.known && w.text != "" && len(w.text) > len(s)*4 {
				t.Errorf("%q out of %q", w.text, s)
			}
		}
	})
}
