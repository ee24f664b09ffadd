package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// tool finds a program on the path or among the parts that scripts/kube-parts.sh builds, else it skips the test.
func tool(t *testing.T, name, how string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	cache := os.Getenv("GRAPEVINE_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("no %s: %s", name, how)
		}
		cache = filepath.Join(user, "grapevine")
	}
	path := filepath.Join(cache, "kube", "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("no %s on the path or at %s: %s", name, path, how)
	}
	return path
}

const howHelm = "scripts/kube-parts.sh helm builds it"

// helm runs helm with folders of its own and returns what it says.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(tool(t, "helm", howHelm), args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// render is the chart with values, as objects.
func render(t *testing.T, values string, flags ...string) *objects {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"template", "grapevine", "chart", "--namespace", "grapevine", "--values", file}, flags...)
	out, stderr, err := helm(t, args...)
	if err != nil {
		t.Fatalf("helm template: %v\n%s", err, stderr)
	}
	return decode(t, out)
}

// object is one manifest.
type object struct {
	kind string
	meta metav1.ObjectMeta
	any  any // pointer to the type of its kind
}

func (o object) String() string {
	if o.meta.Namespace == "" {
		return o.kind + " " + o.meta.Name
	}
	return o.kind + " " + o.meta.Namespace + "/" + o.meta.Name
}

// objects are the manifests of a rendering, in order.
type objects struct{ all []object }

// get is the object of type T with that name, which must be there once.
func get[T any](t *testing.T, o *objects, namespace, name string) *T {
	t.Helper()
	var found *T
	for _, x := range o.all {
		if v, ok := x.any.(*T); ok && x.meta.Namespace == namespace && x.meta.Name == name {
			if found != nil {
				t.Fatalf("%s is there twice", x)
			}
			found = v
		}
	}
	if found == nil {
		t.Fatalf("no %T %s/%s", found, namespace, name)
	}
	return found
}

// each is all objects of type T.
func each[T any](o *objects) []*T {
	var out []*T
	for _, x := range o.all {
		if v, ok := x.any.(*T); ok {
			out = append(out, v)
		}
	}
	return out
}

// types are the kinds that are deployed. Those that are not part of Kubernetes are below, as far as we use them.
func types() map[string]any {
	return map[string]any{
		"v1/ServiceAccount": core.ServiceAccount{}, "v1/ConfigMap": core.ConfigMap{}, "v1/Secret": core.Secret{}, "v1/Service": core.Service{},
		"v1/Pod": core.Pod{}, "v1/Namespace": core.Namespace{}, "apps/v1/Deployment": apps.Deployment{},
		"autoscaling/v2/HorizontalPodAutoscaler": autoscaling.HorizontalPodAutoscaler{}, "policy/v1/PodDisruptionBudget": policy.PodDisruptionBudget{},
		"networking.k8s.io/v1/NetworkPolicy": network.NetworkPolicy{}, "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration": admission.MutatingWebhookConfiguration{},
		"rbac.authorization.k8s.io/v1/Role": rbac.Role{}, "rbac.authorization.k8s.io/v1/RoleBinding": rbac.RoleBinding{},
		"rbac.authorization.k8s.io/v1/ClusterRole": rbac.ClusterRole{}, "rbac.authorization.k8s.io/v1/ClusterRoleBinding": rbac.ClusterRoleBinding{},
		"inference.networking.k8s.io/v1/InferencePool": InferencePool{}, "gateway.networking.k8s.io/v1/HTTPRoute": HTTPRoute{},
		"gateway.networking.k8s.io/v1/Gateway": Gateway{}, "gateway.networking.k8s.io/v1beta1/ReferenceGrant": ReferenceGrant{},
		"monitoring.coreos.com/v1/PodMonitor": PodMonitor{}, "keda.sh/v1alpha1/ScaledObject": ScaledObject{},
	}
}

// decode reads manifests strictly: unknown kinds, fields and fields given twice are faults.
func decode(t *testing.T, text string) *objects {
	t.Helper()
	out, err := decodeAll(text)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func decodeAll(text string) (*objects, error) {
	known, out := types(), &objects{}
	docs := utilyaml.NewYAMLReader(bufioReader(text))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		var head struct {
			metav1.TypeMeta `json:",inline"`
			Metadata        metav1.ObjectMeta `json:"metadata"`
		}
		if err := yaml.Unmarshal(doc, &head); err != nil {
			return nil, fmt.Errorf("read manifest: %w\n%s", err, doc)
		}
		if head.Kind == "" {
			continue // comments only
		}
		sample, ok := known[head.APIVersion+"/"+head.Kind]
		if !ok {
			return nil, fmt.Errorf("manifest of unknown kind %s %s", head.APIVersion, head.Kind)
		}
		v := reflect.New(reflect.TypeOf(sample)).Interface()
		text, err := yaml.YAMLToJSONStrict(doc) // as the API server: a number is no string
		if err == nil {
			fields := json.NewDecoder(bytes.NewReader(text))
			fields.DisallowUnknownFields()
			err = fields.Decode(v)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s %s: %w\n%s", head.Kind, head.Metadata.Name, err, doc)
		}
		out.all = append(out.all, object{head.Kind, head.Metadata, v})
	}
}

// builds are the binaries of this tree, built once for all tests.
var builds sync.Map // command → func() (string, error)

// binary builds a command of this tree, without cgo.
func binary(t *testing.T, name string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join("..", "cmd", name, "main.go")); err != nil {
		t.Skipf("no command %s in this tree", name)
	}
	once, _ := builds.LoadOrStore(name, sync.OnceValues(func() (string, error) {
		path := filepath.Join(buildDir, name)
		cmd := exec.Command("go", "build", "-o", path, "./cmd/"+name)
		cmd.Dir = ".."
		if name != "agent" { // ZMQ is C
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
		return path, nil
	}))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// buildDir is where binaries go; TestMain makes and removes it.
var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "grapevine-deploy-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(code)
}

// settings is what a binary makes of flags and a file: its --print-config, read back.
func settings(t *testing.T, name string, args ...string) map[string]any {
	t.Helper()
	cmd := exec.Command(binary(t, name), append(args, "--print-config")...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	var got map[string]any
	if err := yaml.Unmarshal(out, &got); err != nil {
		t.Fatalf("read settings of %s: %v\n%s", name, err, out)
	}
	return got
}
