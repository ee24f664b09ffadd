package inject

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Op is one operation of a JSON patch (RFC 6902).
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patch collects operations on a pod. Lists and maps that the pod lacks are made
// by the first addition to them.
type patch struct {
	pod *corev1.Pod
	ops []Op

	hasAnnotations, hasInit, hasVolumes, hasPullSecrets bool
}

func newPatch(pod *corev1.Pod) *patch {
	return &patch{
		pod: pod, hasAnnotations: len(pod.Annotations) > 0, hasInit: len(pod.Spec.InitContainers) > 0,
		hasVolumes: len(pod.Spec.Volumes) > 0, hasPullSecrets: len(pod.Spec.ImagePullSecrets) > 0,
	}
}

func (p *patch) add(path string, v any) { p.ops = append(p.ops, Op{Op: "add", Path: path, Value: v}) }
func (p *patch) remove(path string)     { p.ops = append(p.ops, Op{Op: "remove", Path: path}) }

// item appends to a list, which it makes if has is false.
func (p *patch) item(path string, has *bool, v any) {
	if *has {
		p.add(path+"/-", v)
		return
	}
	p.add(path, []any{v})
	*has = true
}

// annotate sets an annotation; adding replaces.
func (p *patch) annotate(key, value string) {
	if !p.hasAnnotations {
		p.add("/metadata/annotations", map[string]string{key: value})
		p.hasAnnotations = true
		return
	}
	p.add("/metadata/annotations/"+escape(key), value)
}

func (p *patch) initContainer(c corev1.Container) { p.item("/spec/initContainers", &p.hasInit, c) }
func (p *patch) volume(v corev1.Volume)           { p.item("/spec/volumes", &p.hasVolumes, v) }

func (p *patch) pullSecret(name string) {
	for _, s := range p.pod.Spec.ImagePullSecrets {
		if s.Name == name {
			return
		}
	}
	p.item("/spec/imagePullSecrets", &p.hasPullSecrets, corev1.LocalObjectReference{Name: name})
}

// arguments appends to the arguments of container i.
func (p *patch) arguments(i int, args []string) {
	path := "/spec/containers/" + strconv.Itoa(i) + "/args"
	has := len(p.pod.Spec.Containers[i].Args) > 0
	if !has {
		p.add(path, args)
		return
	}
	for _, a := range args {
		p.add(path+"/-", a)
	}
}

// escape makes a key a part of a JSON pointer (RFC 6901).
func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }
