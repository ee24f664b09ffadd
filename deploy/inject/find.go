package inject

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// kind is what an engine is.
type kind string

const (
	vllm   kind = "vllm"
	sglang kind = "sglang"
)

// engine is what can be read of a container that serves a model.
type engine struct {
	kind      kind
	index     int // of the container
	container *corev1.Container
	env       map[string]word
	flags     flags
	model     string
	shell     bool   // its arguments stand in a shell script
	several   bool   // so do those of others
	wrapper   string // the program that starts it, "" for none
	opaque    bool   // its arguments are not to be seen
	port      int
	portFrom  string // "" if it is certain
	version   version
	known     bool // the version is known
}

// find returns the pod's engine; without one the second result says why, "" if
// there is nothing in the pod that looks like one.
func find(pod *corev1.Pod) (*engine, string) {
	chosen := pod.Annotations[KeyContainer]
	if s := pod.Annotations[KeyEngine]; s != "" && kind(s) != vllm && kind(s) != sglang {
		return nil, fmt.Sprintf("%s is %q: give vllm or sglang", KeyEngine, s)
	}
	var found []*engine
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if chosen != "" && c.Name != chosen {
			continue
		}
		e := recognize(c)
		if forced := kind(pod.Annotations[KeyEngine]); forced != "" {
			if e == nil && (chosen != "" || len(pod.Spec.Containers) == 1) {
				e = &engine{container: c, env: environment(c), opaque: true}
			}
			if e != nil {
				e.kind = forced
			}
		}
		if e != nil {
			e.index = i
			found = append(found, e)
		}
	}
	switch {
	case len(found) == 1:
	case chosen != "" && !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == chosen }):
		return nil, fmt.Sprintf("%s names container %q, which the pod does not have", KeyContainer, chosen)
	case chosen != "":
		return nil, fmt.Sprintf("container %q does not look like vLLM or SGLang; say which with annotation %s", chosen, KeyEngine)
	case len(found) > 1:
		names := make([]string, len(found))
		for i, e := range found {
			names[i] = e.container.Name
		}
		return nil, fmt.Sprintf("containers %s all look like engines; name one with annotation %s", strings.Join(names, ", "), KeyContainer)
	default:
		return nil, ""
	}
	e := found[0]
	if s := pod.Annotations[KeyVersion]; s != "" {
		e.version, e.known = parseVersion(s)
	} else {
		e.version, e.known = imageVersion(e.container.Image, e.kind)
	}
	e.findPort(pod)
	return e, ""
}

// recognize looks at one container, nil if it is no engine.
func recognize(c *corev1.Container) *engine {
	e := &engine{container: c, env: environment(c)}
	words := commandLine(c, e.env)
	if inner, ok := script(words, e.env); ok {
		e.shell = true
		words = inner
	}
	var starts []int
	for i := range words {
		k, n := startsEngine(words[i:])
		if n == 0 {
			continue
		}
		if starts = append(starts, i+n); len(starts) == 1 {
			e.kind = k
			if i > 0 && !e.shell {
				e.wrapper = words[0].text
			}
		}
	}
	repository, _ := splitImage(c.Image)
	image := kindOfImage(repository)
	switch {
	case len(starts) > 0:
		e.several = len(starts) > 1
		words = words[starts[0]:]
		if e.shell {
			if end := slices.IndexFunc(words, func(w word) bool { return len(w.text) == 1 && strings.Contains(breaks, w.text) }); end >= 0 {
				words = words[:end]
			}
		}
		e.read(words)
		if e.flags.has("headless") { // ranks of an engine that serves elsewhere
			return nil
		}
		return e
	case !e.shell && len(c.Command) == 0 && vllmImage.MatchString(repository):
		e.kind = vllm // its entry point takes the arguments
		e.read(words)
		e.opaque = len(c.Args) == 0
		return e
	case (image != "" || hasVLLMVariable(c)) && len(c.Ports) > 0 && wantsAccelerator(c) && !runsRay(words):
		if image == "" {
			image = vllm
		}
		e.kind, e.opaque = image, true // a start script of its own
		return e
	}
	return nil
}

// read takes the engine's arguments.
func (e *engine) read(words []word) {
	if e.kind == vllm && len(words) > 0 && !strings.HasPrefix(words[0].text, "-") && words[0].known {
		e.model = words[0].text
		words = words[1:]
	}
	e.flags = readFlags(words)
	for _, name := range []string{"model", "model-path"} {
		if m := e.flags.get(name); m != "" {
			e.model = m
		}
	}
}

// startsEngine says whether words begin with the command of an engine, and how
// many of them are the command.
func startsEngine(words []word) (kind, int) {
	at := func(i int) string {
		if i < len(words) {
			return words[i].text
		}
		return ""
	}
	switch base := path.Base(at(0)); {
	case base == "vllm" && at(1) == "serve":
		return vllm, 2
	case base == "sglang" && at(1) == "serve":
		return sglang, 2
	case strings.HasPrefix(base, "python"):
		for i := 1; i < len(words) && strings.HasPrefix(at(i), "-"); i++ {
			if at(i) != "-m" {
				continue
			}
			switch at(i + 1) {
			case "vllm.entrypoints.openai.api_server":
				return vllm, i + 2
			case "vllm.entrypoints.cli.main":
				if at(i+2) == "serve" {
					return vllm, i + 3
				}
			case "sglang.launch_server":
				return sglang, i + 2
			}
		}
	}
	return "", 0
}

func kindOfImage(repository string) kind {
	for name := range strings.SplitSeq(strings.ToLower(repository), "/") {
		switch {
		case strings.Contains(name, "router"), strings.Contains(name, "gateway"), strings.Contains(name, "proxy"), strings.Contains(name, "sim"):
		case strings.Contains(name, "vllm"):
			return vllm
		case strings.Contains(name, "sglang"):
			return sglang
		}
	}
	return ""
}

func hasVLLMVariable(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return strings.HasPrefix(e.Name, "VLLM_") })
}

func wantsAccelerator(c *corev1.Container) bool {
	for name := range c.Resources.Limits {
		if vendor, _, ok := strings.Cut(string(name), "/"); ok && strings.Contains(vendor, ".") {
			return true
		}
	}
	return len(c.Resources.Claims) > 0
}

func runsRay(words []word) bool {
	return slices.ContainsFunc(words, func(w word) bool { return path.Base(w.text) == "ray" || strings.Contains(w.text, "multi-node-serving") })
}

// usualPort is where an engine listens if nothing else is said.
func (k kind) usualPort() int {
	if k == sglang {
		return 30000
	}
	return 8000
}

// findPort settles the engine's HTTP port: annotation, argument, the container's
// only port, the usual one. VLLM_PORT is not it: vLLM uses that within.
func (e *engine) findPort(pod *corev1.Pod) {
	if s := pod.Annotations[KeyPort]; s != "" {
		if e.port = parsePort(s); e.port > 0 {
			return
		}
	}
	v, given := e.flags.values["port"]
	if e.port = parsePort(v.text); v.known && e.port > 0 {
		return
	}
	if !given && !e.opaque {
		e.port = e.kind.usualPort()
		return
	}
	if len(e.container.Ports) == 1 {
		e.port, e.portFrom = int(e.container.Ports[0].ContainerPort), "the container's port"
		return
	}
	e.port, e.portFrom = e.kind.usualPort(), "the usual port"
}

func parsePort(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 {
		return 0
	}
	return n
}

// url is the engine's base URL as seen from its own pod.
func (e *engine) url() string {
	host := "127.0.0.1"
	switch h := e.flags.get("host"); h {
	case "", "0.0.0.0", "::", "*", "localhost", host:
		if e.flags.has("host") && !e.flags.values["host"].known {
			host = podIP
		}
	case "::1":
		host = "[::1]"
	default:
		host = podIP
	}
	scheme := "http://"
	if e.tls() {
		scheme = "https://"
	}
	return scheme + host + ":" + strconv.Itoa(e.port)
}

func (e *engine) tls() bool { return e.flags.has("ssl-certfile") || e.flags.has("ssl-keyfile") }

// proxied is the port of a proxy in the pod that passes requests on to the engine,
// as llm-d's routing sidecar does; 0 if there is none.
func (e *engine) proxied(pod *corev1.Pod) int {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			f := readFlags(commandLine(c, environment(c)))
			for _, name := range []string{"vllm-port", "decoder-port"} {
				if f.get(name) == strconv.Itoa(e.port) {
					return parsePort(f.get("port"))
				}
			}
		}
	}
	return 0
}

var kserveServer = regexp.MustCompile(`(^|/)huggingfaceserver$`)

// unsupported names engines that no agent can follow.
func unsupported(pod *corev1.Pod) string {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if repository, _ := splitImage(c.Image); kserveServer.MatchString(repository) {
			return fmt.Sprintf("container %q is KServe's HuggingFace server, which serves OpenAI's paths under /openai: not supported; use a runtime with a vLLM image, or LLMInferenceService", c.Name)
		}
	}
	return ""
}
