package kube

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	inj "github.com/grapevine-llm/grapevine/deploy/inject"
)

// injectorOptions are those that the release's injector was started with.
func (p *plane) injectorOptions(t *testing.T) inj.Options {
	t.Helper()
	var d appsv1.Deployment
	if err := p.get("/apis/apps/v1/namespaces/"+release+"/deployments/"+release+"-injector", &d); err != nil {
		t.Fatal(err)
	}
	o := inj.Default()
	fields := map[string]reflect.Value{}
	v := reflect.ValueOf(&o).Elem()
	for i := range v.NumField() {
		fields[v.Type().Field(i).Tag.Get("json")] = v.Field(i)
	}
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		f, ours := fields[name]
		if !ours {
			continue
		}
		switch f.Kind() {
		case reflect.String:
			f.SetString(value)
		case reflect.Slice:
			f.Set(reflect.ValueOf(strings.Split(value, ",")))
		default:
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", arg, err)
			}
			f.SetInt(n)
		}
	}
	return o
}

// goldenPods creates every golden pod of deploy/inject twice: as it is, so that the API server calls the webhook, and with
// the patch applied beforehand, where no webhook is called. What the API server makes of both is equal.
func (p *plane) goldenPods(t *testing.T) {
	p.namespace(t, "golden-agent", map[string]string{inject: "agent"})
	p.namespace(t, "golden-configure", map[string]string{inject: "configure"})
	p.namespace(t, "golden-plain", map[string]string{inject: "disabled"})
	p.kubectl(t, "{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: nvidia}", "apply", "-f", "-")
	options := p.injectorOptions(t)
	files, err := filepath.Glob("../../deploy/inject/testdata/*/pod.yaml")
	if err != nil || len(files) < 14 {
		t.Fatalf("%d golden pods: %v", len(files), err)
	}
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			head, _, _ := strings.Cut(string(text), "\n")
			level := strings.TrimPrefix(head, "# namespace: ")
			object := map[string]any{}
			if err := yaml.Unmarshal(text, &object); err != nil {
				t.Fatal(err)
			}
			metadata := object["metadata"].(map[string]any)
			delete(metadata, "generateName")
			metadata["name"] = name
			create := func(namespace string, object map[string]any) *corev1.Pod {
				object["metadata"].(map[string]any)["namespace"] = namespace
				var made corev1.Pod
				if err := p.create("/api/v1/namespaces/"+namespace+"/pods?dryRun=All", object, &made); err != nil {
					t.Fatal(err)
				}
				return &made
			}
			made := create("golden-"+level, object)

			if words := strings.Fields(made.Annotations["grapevine-llm.github.io/injected"]); len(words) == 2 {
				options.Version = words[0]
			}
			pod := new(corev1.Pod)
			raw, err := json.Marshal(object)
			if err == nil {
				err = json.Unmarshal(raw, pod)
			}
			if err != nil {
				t.Fatal(err)
			}
			res := options.Inject(pod, inj.Namespace{Labelled: true, Label: level})
			if len(res.Patch) > 0 {
				ops, err := json.Marshal(res.Patch)
				if err != nil {
					t.Fatal(err)
				}
				patch, err := jsonpatch.DecodePatch(ops)
				if err == nil {
					raw, err = patch.Apply(raw)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			patched := map[string]any{}
			if err := json.Unmarshal(raw, &patched); err != nil {
				t.Fatal(err)
			}
			want := create("golden-plain", patched)
			if diff := cmp.Diff(asMade(t, want), asMade(t, made)); diff != "" {
				t.Errorf("%s (-golden +by the webhook):\n%s", res.Outcome, diff)
			}
			if has := agentOf(made) != nil; has != (res.Outcome == inj.InjectedAgent || res.Outcome == inj.InjectedConfigure) {
				t.Errorf("%s, agent: %v", res.Outcome, has)
			}
			t.Logf("%s, %d warnings", res.Outcome, len(res.Warnings))
		})
	}
}

// asMade is a pod without what the API server makes anew for each.
func asMade(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	pod = pod.DeepCopy()
	pod.Namespace, pod.UID, pod.ManagedFields, pod.ResourceVersion, pod.Status = "", "", nil, "", corev1.PodStatus{QOSClass: pod.Status.QOSClass}
	pod.CreationTimestamp.Reset()
	// The token's volume comes before ours or after.
	slices.SortFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
	text, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, "kube-api-access-") {
			text = []byte(strings.ReplaceAll(string(text), v.Name, "kube-api-access"))
		}
	}
	return string(text)
}
