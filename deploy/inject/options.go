package inject

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Labels and annotations. KeyInject is a label of namespaces and pods and an
// annotation of pods; the others are annotations of pods.
const (
	domain = "grapevine-llm.github.io/"

	KeyInject    = domain + "inject"         // a Level
	KeyContainer = domain + "container"      // name of the engine's container
	KeyEngine    = domain + "engine"         // vllm or sglang
	KeyVersion   = domain + "engine-version" // as 0.32.0
	KeyHybrid    = domain + "hybrid"         // "true" or "false": the model has other layers than full attention
	KeyPort      = domain + "port"           // of the engine's HTTP server
	KeyAddress   = domain + "address-port"   // where gateways send requests, if a proxy stands before the engine
	KeyPool      = domain + "pool"           // gossip pool
	KeyGPUs      = domain + "gpus"           // none, uuid or node
	KeyInjected  = domain + "injected"       // set: version and level
	KeyWarnings  = domain + "warnings"       // set: one warning a line
)

// Names in the pod.
const (
	AgentContainer = "grapevine-agent"
	stateVolume    = "grapevine-state"
	keysVolume     = "grapevine-keys"
	stateDir       = "/var/lib/grapevine"
	keysDir        = "/etc/grapevine/keys"
	tokenDir       = "/var/run/secrets/kubernetes.io/serviceaccount"
	KeyFile        = "gossip.key" // in the keys' Secret
	SeedFile       = "seed"
	MetricsPort    = "gv-metrics" // name of the agent's metrics port
)

// Ports in the pod.
const (
	gossipPort  = 7946
	metricsPort = 9464
	adminPort   = 9465 // loopback
	eventsPort  = 5557 // loopback, plus the rank
	replayPort  = 6557 // loopback, plus the rank: far from the events' ports
)

// Level is how far an injection goes.
type Level string

// Levels.
const (
	None      Level = ""
	Agent     Level = "agent"     // adds the agent, changes nothing of the engine
	Configure Level = "configure" // also adds the engine's arguments for KV events
	Disabled  Level = "disabled"  // never, whatever else says
)

// Options say what is injected. Start from Default.
type Options struct {
	Image       string   `json:"agent-image" help:"image of the agent; empty: nothing is injected"`
	PullPolicy  string   `json:"agent-pull-policy" help:"Always, IfNotPresent or Never; empty: Kubernetes' default"`
	PullSecrets []string `json:"agent-pull-secrets" help:"pull secrets added to the pods; each must exist in the pods' namespaces"`
	CPU         string   `json:"agent-cpu" help:"CPU of the agent, request and limit"`
	Memory      string   `json:"agent-memory" help:"memory of the agent, request and limit"`
	UID         int64    `json:"agent-uid" help:"user id of the agent; 0: the namespace's choice (OpenShift)"`
	Join        []string `json:"gossip-join" help:"gateways that agents join, host or host:port; the gateways' headless Service"`
	Label       string   `json:"gossip-label" help:"the fleet's label"`
	KeysSecret  string   `json:"keys-secret" help:"Secret in the pods' namespace with gossip.key and seed; empty: gossip is plain, with the common seed"`
	Level       Level    `json:"level" help:"agent or configure, where the label has no value of its own"`
	NodeGPUs    int      `json:"node-gpus" help:"GPUs of a node: a pod that requests as many owns its node, and its agent may see them; 0: never"`

	// Version of the injector, for the mark in the pod.
	Version string `json:"-"`
}

// Default lacks only the image.
func Default() Options {
	return Options{CPU: "200m", Memory: "128Mi", UID: 65532, KeysSecret: "grapevine-keys", Level: Agent, NodeGPUs: 8}
}

// Validate joins all faults, each with field, value and remedy.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, q := range []struct{ name, value string }{{"agent-cpu", o.CPU}, {"agent-memory", o.Memory}} {
		if v, err := resource.ParseQuantity(q.value); err != nil || v.Sign() <= 0 {
			fault("%s %q: give a quantity as 200m or 128Mi", q.name, q.value)
		}
	}
	switch corev1.PullPolicy(o.PullPolicy) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		fault("agent-pull-policy %q: give Always, IfNotPresent or Never", o.PullPolicy)
	}
	if o.UID < 0 {
		fault("agent-uid %d: give 0 or a user id", o.UID)
	}
	if o.Level != Agent && o.Level != Configure {
		fault("level %q: give agent or configure", o.Level)
	}
	if o.NodeGPUs < 0 {
		fault("node-gpus %d: give 0 or more", o.NodeGPUs)
	}
	for _, j := range o.Join {
		if strings.ContainsAny(j, " ,$()") || j == "" {
			fault("gossip-join %q: give host or host:port", j)
		}
	}
	return errors.Join(faults...)
}

// Namespace is what the pod's namespace says.
type Namespace struct {
	Labelled bool
	Label    string // value of KeyInject
}

// level is what namespace and pod ask for: disabled anywhere wins, then the pod's
// annotation, its label, the namespace's label. A fault names a value that is none.
func (o Options) level(pod *corev1.Pod, ns Namespace) (level Level, fault string) {
	type word struct {
		value string
		set   bool
	}
	said := func(m map[string]string) word { v, ok := m[KeyInject]; return word{v, ok} }
	words := []word{said(pod.Annotations), said(pod.Labels), {ns.Label, ns.Labelled}}
	for _, w := range words {
		if w.set && Level(w.value) == Disabled {
			return None, ""
		}
	}
	for _, w := range words {
		if !w.set {
			continue
		}
		switch w.value {
		case string(Agent), string(Configure):
			return Level(w.value), ""
		case "", "true", "enabled":
			return o.Level, ""
		}
		return None, fmt.Sprintf("%s is %q: nothing is injected; give agent, configure or disabled", KeyInject, w.value)
	}
	return None, ""
}

// passedOver names the annotations of ours that say nothing that is understood.
func passedOver(annotations map[string]string) (warnings []string) {
	known := []string{KeyInject, KeyContainer, KeyEngine, KeyVersion, KeyHybrid, KeyPort, KeyAddress, KeyPool, KeyGPUs, KeyInjected, KeyWarnings}
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		value := annotations[key]
		_, isVersion := parseVersion(value)
		switch {
		case !strings.HasPrefix(key, domain):
		case !slices.Contains(known, key):
			unknown = append(unknown, strconv.Quote(key))
		case (key == KeyPort || key == KeyAddress) && value != "" && parsePort(value) == 0:
			warnings = append(warnings, fmt.Sprintf("%s is %q, which is no port, and passed over: give a number", key, value))
		case key == KeyVersion && value != "" && !isVersion:
			warnings = append(warnings, fmt.Sprintf("%s is %q, which is no release, and passed over: give it as 0.32.0", key, value))
		case key == KeyHybrid && value != "" && value != "true" && value != "false":
			warnings = append(warnings, fmt.Sprintf("%s is %q, and passed over: give true or false", key, value))
		}
	}
	if len(unknown) > 0 {
		warnings = append(warnings, fmt.Sprintf("annotations %s are not known, and passed over: misspelt?", strings.Join(unknown, ", ")))
	}
	return warnings
}
