package inject

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// injected is a pod after its patch.
func injected(t *testing.T, pod *corev1.Pod, level string) (*corev1.Pod, Result) {
	t.Helper()
	o := Default()
	o.Image = "a:1"
	res := o.Inject(pod, Namespace{Labelled: true, Label: level})
	return applied(t, pod, res), res
}

func applied(t *testing.T, pod *corev1.Pod, res Result) *corev1.Pod {
	t.Helper()
	doc, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	ops, err := json.Marshal(res.Patch)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Patch) > 0 {
		p, err := jsonpatch.DecodePatch(ops)
		if err != nil {
			t.Fatal(err)
		}
		if doc, err = p.Apply(doc); err != nil {
			t.Fatal(err)
		}
	}
	out := new(corev1.Pod)
	if err := json.Unmarshal(doc, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func vllmPod(args ...string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "vllm/vllm-openai:v0.32.0", Args: args}}}}
}

// dangling names what is mounted and not there: the API server refuses such a pod.
func dangling(pod *corev1.Pod) (out []string) {
	there := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		there[v.Name] = true
	}
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		for _, m := range c.VolumeMounts {
			if !there[m.Name] {
				out = append(out, c.Name+": "+m.Name)
			}
		}
	}
	return out
}

// TestVolumesOfTheSameName: a pod may have one of the agent's volumes for itself. It keeps it, also when the agent is taken out
// again, and the other one is added.
func TestVolumesOfTheSameName(t *testing.T) {
	for _, name := range []string{stateVolume, keysVolume} {
		pod := vllmPod("--model", "m")
		pod.Spec.Volumes = []corev1.Volume{{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: name, MountPath: "/x"}}
		got, _ := injected(t, pod, "configure")
		if d := dangling(got); len(d) > 0 || len(got.Spec.Volumes) != 2 {
			t.Errorf("%s is there: mounted and missing: %v; %d volumes", name, d, len(got.Spec.Volumes))
		}
		got.Spec.InitContainers[0].RestartPolicy = nil
		got.Spec.Containers[0].Args = append(got.Spec.Containers[0].Args, "--added-by-another")
		back, res := injected(t, got, "configure")
		if d := dangling(back); res.Outcome != Undone || len(d) > 0 || len(back.Spec.Volumes) != 1 {
			t.Errorf("%s is there, %s: mounted and missing: %v; %d volumes", name, res.Outcome, d, len(back.Spec.Volumes))
		}
		if args := strings.Join(back.Spec.Containers[0].Args, " "); args != "--model m --added-by-another" {
			t.Errorf("arguments after the agent was taken out: %s", args)
		}
	}
}

// TestEngineAtTheAgentsPorts: the agent starts first and would take the port away from an engine that does not declare it.
func TestEngineAtTheAgentsPorts(t *testing.T) {
	for port, want := range map[int]Outcome{
		gossipPort: LeftUnsafe, metricsPort: LeftUnsafe, adminPort: LeftUnsafe, eventsPort: InjectedAgent, replayPort: InjectedAgent, 8000: InjectedConfigure,
	} {
		_, res := injected(t, vllmPod("--model", "m", "--port", fmt.Sprint(port)), "configure")
		if res.Outcome != want || want != InjectedConfigure && !strings.Contains(strings.Join(res.Warnings, "\n"), fmt.Sprint(port)) {
			t.Errorf("engine at port %d: %s %q, want %s and the port named", port, res.Outcome, res.Warnings, want)
		}
	}
}

// maxAnnotationBytes is the API server's (apimachinery, TotalAnnotationSizeLimitB): it refuses pods with more.
const maxAnnotationBytes = 256 << 10

// TestAnnotationsFit: whatever an owner has written, what is added to it does not make the pod one that is refused.
func TestAnnotationsFit(t *testing.T) {
	huge := strings.Repeat("é", 200<<10)
	full := vllmPod("--model", "m")
	full.Annotations = map[string]string{"x": strings.Repeat("y", maxAnnotationBytes-10)}
	for name, pod := range map[string]*corev1.Pod{
		"endpoint": vllmPod("--model", "m", "--kv-events-config", `{"enable_kv_cache_events":true,"endpoint":"ipc://`+huge+`"}`),
		"ranks":    vllmPod("--model", "m", "--data-parallel-size", huge, "--data-parallel-size-local", huge[:8]),
		"full":     full,
	} {
		got, res := injected(t, pod, "configure")
		n := 0
		for k, v := range got.Annotations {
			n += len(k) + len(v)
		}
		if n > maxAnnotationBytes || len(res.Warnings) == 0 {
			t.Errorf("%s: %d bytes of annotations, warnings %.200q", name, n, res.Warnings)
		}
		for _, w := range res.Warnings {
			if strings.ToValidUTF8(w, "") != w {
				t.Errorf("%s: warning is cut within a letter", name)
			}
		}
	}
}

// TestSlipsInAnnotations: a value that is none is said, not passed over.
func TestSlipsInAnnotations(t *testing.T) {
	for key, value := range map[string]string{KeyPort: "http", KeyAddress: "99999", KeyEngine: "VLLM", KeyHybrid: "no", KeyVersion: "latest", domain + "prot": ""} {
		pod := vllmPod("--model", "m")
		pod.Annotations = map[string]string{key: value}
		_, res := injected(t, pod, "configure")
		if all := strings.Join(res.Warnings, "\n"); !strings.Contains(all, key) || !strings.Contains(all, value) {
			t.Errorf("%s: %s is not said: %s %q", key, value, res.Outcome, all)
		}
	}
}

// TestKeyWithDollars: the kubelet puts variables into the agent's environment too.
func TestKeyWithDollars(t *testing.T) {
	for _, pod := range []*corev1.Pod{vllmPod("--model", "m", "--api-key", "a$$$$(POD_UID)"), vllmPod("--model", "m")} {
		if len(pod.Spec.Containers[0].Args) == 2 {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "VLLM_API_KEY", Value: "a$$$$(POD_UID)"}}
		}
		got, _ := injected(t, pod, "agent")
		c := &got.Spec.InitContainers[0]
		if key := environment(c)["GRAPEVINE_ENGINE_KEY"]; key.text != "a$$(POD_UID)" {
			t.Errorf("the agent's key is %q, the engine's a$$(POD_UID)", key.text)
		}
	}
}

// TestHugePods: what a pod of a few MiB can hold takes neither long nor much memory.
func TestHugePods(t *testing.T) {
	big, many := strings.Repeat("x", 60<<10), 20_000
	env := []corev1.EnvVar{{Name: "A", Value: big}, {Name: "B", Value: "y"}}
	refs := make([]corev1.EnvVar, many)
	for i := range refs {
		refs[i] = corev1.EnvVar{Name: fmt.Sprint("V", i), Value: "$(A)"}
	}
	words := make([]string, many)
	for i := range words {
		words[i] = "$(A)"
	}
	shell := func(script string) corev1.Container {
		return corev1.Container{Name: "c", Image: "vllm/vllm-openai:v0.32.0", Command: []string{"sh", "-c", script}, Env: env}
	}
	for name, c := range map[string]corev1.Container{
		"variables of one that is long": {Name: "c", Image: "vllm/vllm-openai:v0.32.0", Env: append(env, refs...)},
		"arguments of one that is long": {Name: "c", Image: "vllm/vllm-openai:v0.32.0", Env: env, Args: words},
		"brackets that do not close":    {Name: "c", Image: "vllm/vllm-openai:v0.32.0", Args: []string{strings.Repeat("$(", 1<<20)}},
		"one word of many variables":    shell("vllm serve x" + strings.Repeat("$B", 1<<20)),
		"one eval of many scripts":      shell("vllm serve m; eval " + strings.Repeat("'$A ' ", many)),
		"many names":                    {Name: "c", Image: "vllm/vllm-openai:v0.32.0", Env: append(env, refs[:10_000]...), Args: []string{"--model", "m"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			o := Default()
			o.Image = "a:1"
			res := o.Inject(pod, Namespace{Labelled: true, Label: "configure"})
			runtime.ReadMemStats(&after)
			if took, bytes := time.Since(began), after.TotalAlloc-before.TotalAlloc; took > 2*time.Second || bytes > 128<<20 {
				t.Errorf("%s: %v and %d MiB", res.Outcome, took, bytes>>20)
			}
		})
	}
}
