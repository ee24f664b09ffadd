package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// network gives the pod a namespace with an address on the bridge.
func (p *pod) network() error {
	link := "v" + p.ns
	batch := fmt.Sprintf("netns add %[1]s\nlink add %[2]s type veth peer name eth0 netns %[1]s\nlink set %[2]s master gv0 up\n", p.ns, link)
	inside := fmt.Sprintf("link set lo up\naddr add %s/16 dev eth0\nlink set eth0 up\nroute add default via %s\n", p.ip, bridgeIP)
	for _, step := range []struct {
		args  []string
		lines string
	}{{[]string{"-batch", "-"}, batch}, {[]string{"-n", p.ns, "-batch", "-"}, inside}} {
		cmd := exec.Command("ip", step.args...)
		cmd.Stdin = strings.NewReader(step.lines)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("network of pod %s: %w: %s", p.object.Name, err, out)
		}
	}
	return nil
}

func (p *pod) unplug() { _ = exec.Command("ip", "netns", "delete", p.ns).Run() }

// makeVolumes fills a folder for each of the pod's volumes.
func (p *pod) makeVolumes() (map[string]string, error) {
	out := map[string]string{}
	fsGroup := int64(-1)
	if s := p.object.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		fsGroup = *s.FSGroup
	}
	for _, v := range p.object.Spec.Volumes {
		dir := filepath.Join(p.dir, "volumes", v.Name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		out[v.Name] = dir
		w := writer{p: p, dir: dir, fsGroup: fsGroup}
		var err error
		switch {
		case v.EmptyDir != nil:
			err = os.Chmod(dir, 0o777)
		case v.Secret != nil:
			err = w.secret(v.Secret.SecretName, v.Secret.Items, or(v.Secret.DefaultMode, 0o644), or(v.Secret.Optional, false))
		case v.ConfigMap != nil:
			err = w.configMap(v.ConfigMap.Name, v.ConfigMap.Items, or(v.ConfigMap.DefaultMode, 0o644), or(v.ConfigMap.Optional, false))
		case v.DownwardAPI != nil:
			err = w.downward(v.DownwardAPI.Items)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				mode := or(v.Projected.DefaultMode, 0o644)
				switch {
				case s.Secret != nil:
					err = w.secret(s.Secret.Name, s.Secret.Items, mode, or(s.Secret.Optional, false))
				case s.ConfigMap != nil:
					err = w.configMap(s.ConfigMap.Name, s.ConfigMap.Items, mode, or(s.ConfigMap.Optional, false))
				case s.DownwardAPI != nil:
					err = w.downward(s.DownwardAPI.Items)
				case s.ServiceAccountToken != nil:
					err = w.token(s.ServiceAccountToken)
				}
				if err != nil {
					break
				}
			}
		default:
			err = fmt.Errorf("volume %s: a kind that this kubelet does not know", v.Name)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// writer fills one volume's folder.
type writer struct {
	p       *pod
	dir     string
	fsGroup int64
}

func (w writer) put(name string, data []byte, mode int32) error {
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	perm := os.FileMode(mode)
	if w.fsGroup >= 0 {
		perm |= 0o040 // as the kubelet does: the group can read
	}
	if err := os.WriteFile(path, data, perm); err != nil {
		return err
	}
	if w.fsGroup >= 0 {
		if err := os.Chown(path, 0, int(w.fsGroup)); err != nil {
			return err
		}
	}
	return os.Chmod(path, perm)
}

func items[V any](data map[string]V, wanted []corev1.KeyToPath, mode int32, put func(name string, value V, mode int32) error) error {
	if len(wanted) == 0 {
		for key, value := range data {
			if err := put(key, value, mode); err != nil {
				return err
			}
		}
	}
	for _, item := range wanted {
		if value, ok := data[item.Key]; ok {
			if err := put(item.Path, value, or(item.Mode, mode)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w writer) secret(name string, wanted []corev1.KeyToPath, mode int32, optional bool) error {
	var s corev1.Secret
	if err := w.p.k.p.get("/api/v1/namespaces/"+w.p.object.Namespace+"/secrets/"+name, &s); err != nil {
		if optional && code(err) == 404 {
			return nil
		}
		return err
	}
	return items(s.Data, wanted, mode, w.put)
}

func (w writer) configMap(name string, wanted []corev1.KeyToPath, mode int32, optional bool) error {
	var m corev1.ConfigMap
	if err := w.p.k.p.get("/api/v1/namespaces/"+w.p.object.Namespace+"/configmaps/"+name, &m); err != nil {
		if optional && code(err) == 404 {
			return nil
		}
		return err
	}
	return items(m.Data, wanted, mode, func(name, value string, mode int32) error { return w.put(name, []byte(value), mode) })
}

func (w writer) downward(wanted []corev1.DownwardAPIVolumeFile) error {
	for _, item := range wanted {
		if item.FieldRef == nil {
			continue
		}
		if err := w.put(item.Path, []byte(w.p.field(item.FieldRef.FieldPath)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (w writer) token(source *corev1.ServiceAccountTokenProjection) error {
	req := authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: source.ExpirationSeconds}}
	if source.Audience != "" {
		req.Spec.Audiences = []string{source.Audience}
	}
	object := w.p.object
	if err := w.p.k.p.create("/api/v1/namespaces/"+object.Namespace+"/serviceaccounts/"+object.Spec.ServiceAccountName+"/token", req, &req); err != nil {
		return err
	}
	return w.put(source.Path, []byte(req.Status.Token), 0o644)
}

// field is a value of the downward API.
func (p *pod) field(path string) string {
	keyed := func(m map[string]string, path string) string {
		_, key, _ := strings.Cut(path, "['")
		return m[strings.TrimSuffix(key, "']")]
	}
	switch {
	case path == "metadata.name":
		return p.object.Name
	case path == "metadata.namespace":
		return p.object.Namespace
	case path == "metadata.uid":
		return string(p.object.UID)
	case path == "spec.nodeName":
		return p.object.Spec.NodeName
	case path == "spec.serviceAccountName":
		return p.object.Spec.ServiceAccountName
	case path == "status.podIP", path == "status.podIPs":
		return p.ip
	case path == "status.hostIP", path == "status.hostIPs":
		return bridgeIP
	case strings.HasPrefix(path, "metadata.labels"):
		return keyed(p.object.Labels, path)
	case strings.HasPrefix(path, "metadata.annotations"):
		return keyed(p.object.Annotations, path)
	}
	return ""
}

// environment of the container: the Services that every pod sees, and what its spec says.
func (c *container) environment() (map[string]string, error) {
	vars := map[string]string{"KUBERNETES_SERVICE_HOST": bridgeIP, "KUBERNETES_SERVICE_PORT": apiPort, "HOSTNAME": c.pod.object.Name}
	api, namespace := c.pod.k.p, c.pod.object.Namespace
	for _, e := range c.spec.Env {
		from := e.ValueFrom
		switch {
		case from == nil:
			vars[e.Name] = expand(e.Value, vars)
		case from.FieldRef != nil:
			vars[e.Name] = c.pod.field(from.FieldRef.FieldPath)
		case from.ResourceFieldRef != nil:
			vars[e.Name] = c.limit(from.ResourceFieldRef)
		case from.SecretKeyRef != nil:
			var s corev1.Secret
			err := api.get("/api/v1/namespaces/"+namespace+"/secrets/"+from.SecretKeyRef.Name, &s)
			value, ok := s.Data[from.SecretKeyRef.Key]
			if ok {
				vars[e.Name] = string(value)
			} else if !or(from.SecretKeyRef.Optional, false) {
				return nil, fmt.Errorf("CreateContainerConfigError: secret %s, key %s: %v", from.SecretKeyRef.Name, from.SecretKeyRef.Key, err)
			}
		default:
			return nil, fmt.Errorf("environment variable %s: a source that this kubelet does not know", e.Name)
		}
	}
	return vars, nil
}

func (c *container) limit(ref *corev1.ResourceFieldSelector) string {
	kind, name, _ := strings.Cut(ref.Resource, ".")
	list := c.spec.Resources.Limits
	if kind == "requests" {
		list = c.spec.Resources.Requests
	}
	amount, ok := list[corev1.ResourceName(name)]
	if !ok {
		return "0"
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	per := divisor.MilliValue()
	return strconv.FormatInt((amount.MilliValue()+per-1)/per, 10)
}

// expand replaces $(NAME) by the variable's value.
func expand(s string, vars map[string]string) string {
	for name, value := range vars {
		s = strings.ReplaceAll(s, "$("+name+")", value)
	}
	return s
}

// engineArgs turns the arguments of a vLLM container into those of an emulated engine.
func engineArgs(args []string, more string) []string {
	out := []string{"engine"}
	port, events, replay := "8000", "", ""
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(args[i], "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		switch name {
		case "--port":
			port = value
		case "--served-model-name":
			out = append(out, "--model", value)
		case "--block-size":
			out = append(out, "--block-size", value)
		case "--kv-events-config":
			var config struct {
				Endpoint       string `json:"endpoint"`
				ReplayEndpoint string `json:"replay_endpoint"`
			}
			if json.Unmarshal([]byte(value), &config) == nil {
				events, replay = config.Endpoint, config.ReplayEndpoint
			}
		}
	}
	out = append(out, "--listen", ":"+port)
	if events == "" {
		out = append(out, "--no-events")
	} else {
		out = append(out, "--events", events, "--replay", replay)
	}
	return slices.Concat(out, strings.Fields(more))
}
