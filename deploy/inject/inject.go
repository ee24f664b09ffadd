package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Outcome is what became of a pod, in a bounded set of words for metrics.
type Outcome string

// Outcomes.
const (
	InjectedAgent     Outcome = "agent"
	InjectedConfigure Outcome = "configure"
	Undone            Outcome = "undone"        // the sidecar had been made a plain init container
	LeftOff           Outcome = "off"           // nobody asked, or disabled
	LeftAlready       Outcome = "already"       // has an agent
	LeftNoEngine      Outcome = "no engine"     // nothing that looks like one
	LeftWorker        Outcome = "worker"        // of a LeaderWorkerSet: the leader serves
	LeftUnsafe        Outcome = "not supported" // a warning says why
)

// Result is what Inject found.
type Result struct {
	Patch    []Op
	Warnings []string // for the API's answer, one line each
	Outcome  Outcome
}

// labelWorker numbers the pods of a LeaderWorkerSet's group, the leader is 0.
const labelWorker = "leaderworkerset.sigs.k8s.io/worker-index"

// Inject returns what to do with a pod. It is deterministic, changes nothing, and
// may be called concurrently.
func (o Options) Inject(pod *corev1.Pod, ns Namespace) Result {
	if there, res := o.present(pod); there {
		return res
	}
	level, fault := o.level(pod, ns)
	switch {
	case fault != "":
		return left(LeftUnsafe, fault)
	case level == None:
		return left(LeftOff)
	}
	if why := unsupported(pod); why != "" {
		return left(LeftUnsafe, why)
	}
	e, why := find(pod)
	switch {
	case why != "":
		return left(LeftUnsafe, why+"; no agent is added")
	case e == nil:
		return left(LeftNoEngine)
	}
	if index, ok := pod.Labels[labelWorker]; ok && index != "0" {
		if e.flags.has("data-parallel-hybrid-lb") || e.flags.has("data-parallel-external-lb") || e.flags.has("data-parallel-rank") {
			return left(LeftWorker, "workers of a LeaderWorkerSet get no agent; this one takes requests of its own, which are routed by what the gateway itself sent")
		}
		return left(LeftWorker)
	}
	if why := o.unsafe(pod, e); why != "" {
		return left(LeftUnsafe, why+"; no agent is added")
	}
	return o.inject(pod, e, level)
}

func left(o Outcome, warnings ...string) Result {
	for i, w := range warnings {
		warnings[i] = "grapevine: " + w
	}
	return Result{Outcome: o, Warnings: warnings}
}

// unsafe says why an agent could not work in the pod, or would harm it.
func (o Options) unsafe(pod *corev1.Pod, e *engine) string {
	if o.Image == "" {
		return "the injector was given no image of the agent (--agent-image)"
	}
	if os := pod.Spec.OS; os != nil && os.Name == corev1.Windows {
		return "the pod is for Windows"
	}
	if e.flags.has("uds") {
		return "the engine serves at a Unix socket (--uds), where the agent cannot ask it"
	}
	if !pod.Spec.HostNetwork {
		if who := e.taken(pod, gossipPort, metricsPort, adminPort); who != "" {
			return who + ", which the agent needs"
		}
	}
	n := 0
	for key, value := range pod.Annotations {
		n += len(key) + len(value)
	}
	if n > maxAnnotations-roomForOurs {
		return fmt.Sprintf("the pod's annotations have %d bytes, of %d that the API server takes", n, maxAnnotations)
	}
	return ""
}

// The API server refuses pods with more annotations (apimachinery,
// TotalAnnotationSizeLimitB); ours are far below their share.
const (
	maxAnnotations = 256 << 10
	roomForOurs    = 32 << 10
	maxWarning     = 1 << 10
)

// inject makes the patch.
func (o Options) inject(pod *corev1.Pod, e *engine, level Level) Result {
	var warnings []string
	warn := func(s string) {
		if len(s) > maxWarning {
			s = strings.ToValidUTF8(s[:maxWarning], "") + "…"
		}
		if s != "" {
			warnings = append(warnings, "grapevine: "+s)
		}
	}
	for _, s := range passedOver(pod.Annotations) {
		warn(s)
	}
	p := newPatch(pod)
	ev, said := e.ownersEvents()
	reason, hint := e.whyNot(pod)
	outcome := InjectedAgent
	switch {
	case ev.given:
	case level == Configure && reason == "":
		outcome = InjectedConfigure
		ev.endpoint, ev.replay = ownEvents, ownReplay
		p.arguments(e.index, []string{"--" + flagEvents, ownConfig(e.kind)})
	case e.tooOld():
		warn(fmt.Sprintf("vLLM %v is too old for KV events: routed by load only until the engine is vLLM %v or later", e.version, firstEvents))
	default:
		s := "routed by load only until the engine publishes KV events; add to its arguments: " + e.line()
		if hint != "" {
			s += " (" + hint + ")"
		}
		if level == Configure {
			s = reason + ": " + s
		}
		warn(s)
		if e.opaque || e.flags.has("config") || e.flags.opaque {
			// Once the owner has added the line the injector cannot see it.
			ev.endpoint, ev.replay = ownEvents, ownReplay
		}
	}
	for _, s := range append(said, e.remarks()...) {
		warn(s)
	}
	g, gpuWarning := o.gpus(pod, e)
	warn(gpuWarning)
	if hasContainer(pod, "istio-proxy") {
		warn("Istio's sidecar was injected before the agent: restart with annotation traffic.sidecar.istio.io/excludeInboundPorts and …OutboundPorts set to " + strconv.Itoa(gossipPort) + " in the pod's template, or gossip goes through it")
	}

	p.initContainer(o.agent(pod, e, ev, g))
	o.volumes(p)
	for _, name := range o.PullSecrets {
		p.pullSecret(name)
	}
	if !pod.Spec.HostNetwork {
		istio(p, "traffic.sidecar.istio.io/excludeInboundPorts", gossipPort, metricsPort)
		istio(p, "traffic.sidecar.istio.io/excludeOutboundPorts", gossipPort)
	}
	p.annotate(KeyInjected, strings.TrimSpace(o.Version+" "+string(outcome)))
	if len(warnings) > 0 {
		p.annotate(KeyWarnings, strings.Join(warnings, "\n"))
	}
	return Result{Patch: p.ops, Warnings: warnings, Outcome: outcome}
}

func hasContainer(pod *corev1.Pod, name string) bool {
	named := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(pod.Spec.Containers, named) || slices.ContainsFunc(pod.Spec.InitContainers, named)
}

// istio keeps ports out of Istio's sidecar, beside those that the owner lists.
func istio(p *patch, key string, ports ...int) {
	value := p.pod.Annotations[key]
	if strings.TrimSpace(value) == "*" {
		return
	}
	var list []string
	for s := range strings.SplitSeq(value, ",") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	for _, port := range ports {
		if s := strconv.Itoa(port); !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	if joined := strings.Join(list, ","); joined != value {
		p.annotate(key, joined)
	}
}

// present handles a pod that has an agent: it is left alone, unless something on
// the way has made the sidecar a plain init container, for which the pod would wait
// for ever. Then what was injected is taken out again.
func (o Options) present(pod *corev1.Pod) (bool, Result) {
	named := func(c corev1.Container) bool { return c.Name == AgentContainer }
	if slices.ContainsFunc(pod.Spec.Containers, named) {
		return true, left(LeftAlready)
	}
	i := slices.IndexFunc(pod.Spec.InitContainers, named)
	if i < 0 {
		return false, Result{}
	}
	c := &pod.Spec.InitContainers[i]
	if _, ours := pod.Annotations[KeyInjected]; !ours || c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return true, left(LeftAlready)
	}
	p := newPatch(pod)
	p.remove("/spec/initContainers/" + strconv.Itoa(i))
	for i, v := range slices.Backward(pod.Spec.Volumes) {
		if (v.Name == stateVolume || v.Name == keysVolume) && !mounted(pod, v.Name) {
			p.remove("/spec/volumes/" + strconv.Itoa(i))
		}
	}
	for i, c := range pod.Spec.Containers {
		n := slices.Index(c.Args, ownConfig(vllm))
		if n >= 1 && c.Args[n-1] == "--"+flagEvents && strings.HasSuffix(pod.Annotations[KeyInjected], string(InjectedConfigure)) {
			p.remove(fmt.Sprintf("/spec/containers/%d/args/%d", i, n))
			p.remove(fmt.Sprintf("/spec/containers/%d/args/%d", i, n-1))
		}
	}
	w := "grapevine: the agent was taken out again: another webhook, or an API server before 1.29, removes restartPolicy from init containers, and the pod would never start"
	p.remove("/metadata/annotations/" + escape(KeyInjected))
	p.annotate(KeyWarnings, w)
	return true, Result{Patch: p.ops, Warnings: []string{w}, Outcome: Undone}
}

// mounted says whether anybody but the agent mounts a volume.
func mounted(pod *corev1.Pod, volume string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			if c.Name != AgentContainer && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
				return true
			}
		}
	}
	return false
}
