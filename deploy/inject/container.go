package inject

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// stateLimit is far above what the agent's snapshots can take: a pod over it would
// be evicted.
var stateLimit = resource.MustParse("1Gi")

// agent is the sidecar. It stands last among the init containers: started before
// the engine, and after what prepares the pod, which it does not delay.
func (o Options) agent(pod *corev1.Pod, e *engine, ev events, g gpus) corev1.Container {
	args := []string{"--engine=" + e.url()}
	if port := e.proxied(pod); port > 0 {
		args = append(args, "--address=http://:"+strconv.Itoa(port))
	}
	if s := pod.Annotations[KeyAddress]; parsePort(s) > 0 {
		args = append(args[:1], "--address=http://:"+s)
	}
	pool := pod.Annotations[KeyPool]
	if pool == "" {
		pool = "default"
	}
	args = append(args,
		"--pool="+strings.ReplaceAll(pool, "$", "$$"),
		"--pod=$(POD_NAMESPACE)/$(POD_NAME)",
		"--node-name=$(POD_UID)",
		"--gossip-advertise="+podIP,
	)
	if len(o.Join) > 0 {
		join := make([]string, len(o.Join))
		for i, j := range o.Join {
			join[i] = joinable(j)
		}
		args = append(args, "--gossip-join="+strings.Join(join, ","))
	}
	if o.Label != "" {
		args = append(args, "--gossip-label="+o.Label)
	}
	mounts := []corev1.VolumeMount{
		{Name: stateVolume, MountPath: stateDir},
		// The API server mounts the pod's token where nothing is; the agent needs none.
		{Name: stateVolume, MountPath: tokenDir, ReadOnly: true},
	}
	if o.KeysSecret != "" {
		args = append(args, "--gossip-key-file="+keysDir+"/"+KeyFile, "--seed-file="+keysDir+"/"+SeedFile)
		mounts = append(mounts, corev1.VolumeMount{Name: keysVolume, MountPath: keysDir, ReadOnly: true})
	}
	// A sidecar that ends makes its pod not ready: the container has to stay.
	args = append(args, "--supervise", "--state-dir="+stateDir, "--gpus="+g.watch)
	if ev.endpoint != "" {
		args = append(args, "--kv-events-endpoint="+ev.endpoint)
	}
	if ev.replay != "" {
		args = append(args, "--kv-events-replay="+ev.replay)
	}
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	env := []corev1.EnvVar{
		field("POD_IP", "status.podIP"), field("POD_UID", "metadata.uid"), field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"),
		{Name: "NVIDIA_VISIBLE_DEVICES", Value: g.visible},
	}
	if g != noGPUs {
		env = append(env, corev1.EnvVar{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "utility"})
	}
	if key, ok := e.apiKey(); ok {
		env = append(env, key)
	}
	always, yes, no := corev1.ContainerRestartPolicyAlways, true, false
	c := corev1.Container{
		Name:            AgentContainer,
		Image:           o.Image,
		ImagePullPolicy: corev1.PullPolicy(o.PullPolicy),
		RestartPolicy:   &always,
		Env:             env,
		VolumeMounts:    mounts,
		SecurityContext: &corev1.SecurityContext{
			RunAsNonRoot: &yes, ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no, Privileged: &no,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if o.UID > 0 {
		uid := o.UID
		c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = &uid, &uid
	}
	if pod.Spec.Resources == nil { // else the pod's own bound the agent too
		memory, cpu := resource.MustParse(o.Memory), resource.MustParse(o.CPU)
		list := corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}
		c.Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
		c.Env = append(c.Env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: strconv.FormatInt(memory.Value()/4*3, 10)})
	}
	if pod.Spec.HostNetwork {
		// The node's ports: any free one, and none that a probe would have to know.
		c.Args = append(args, "--gossip-bind=:0", "--metrics-listen=", "--probe-listen=")
		return c
	}
	c.Args = append(args, "--metrics-listen=127.0.0.1:"+strconv.Itoa(adminPort), "--probe-listen=:"+strconv.Itoa(metricsPort))
	c.Ports = []corev1.ContainerPort{
		{Name: MetricsPort, ContainerPort: metricsPort, Protocol: corev1.ProtocolTCP},
		{Name: "gv-gossip", ContainerPort: gossipPort, Protocol: corev1.ProtocolTCP},
		{Name: "gv-gossip-udp", ContainerPort: gossipPort, Protocol: corev1.ProtocolUDP},
	}
	// No startup and no readiness probe: the pod waits for neither. This one proves
	// that the agent's own loops turn, whatever the engine does.
	c.LivenessProbe = &corev1.Probe{
		ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/livez", Port: intstr.FromString(MetricsPort)}},
		PeriodSeconds:  10,
		TimeoutSeconds: 5, FailureThreshold: 6,
	}
	return c
}

// apiKey gives the agent the engine's key, with which it may list the models. A
// Secret is referred to, not copied, and need not be there.
func (e *engine) apiKey() (corev1.EnvVar, bool) {
	const name = "GRAPEVINE_ENGINE_KEY"
	plain := func(text string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, Value: strings.ReplaceAll(text, "$", "$$")}
	}
	for _, v := range e.container.Env {
		if v.Name != "VLLM_API_KEY" && v.Name != "SGLANG_API_KEY" {
			continue
		}
		if value := e.env[v.Name]; v.ValueFrom == nil {
			return plain(value.text), value.text != "" && value.known
		}
		v = *v.DeepCopy()
		v.Name = name
		return v, optional(v.ValueFrom)
	}
	given := e.flags.values["api-key"]
	if given.known && given.text != "" {
		return plain(given.text), true
	}
	// --api-key $(NAME): the variable's own source.
	for _, v := range e.container.Env {
		if v.ValueFrom != nil && (given.text == "$("+v.Name+")" || given.text == "${"+v.Name+"}") {
			v = *v.DeepCopy()
			v.Name = name
			return v, optional(v.ValueFrom)
		}
	}
	return corev1.EnvVar{}, false
}

// optional makes a reference one that may dangle; false if it is of another kind.
func optional(from *corev1.EnvVarSource) bool {
	yes := true
	switch {
	case from.SecretKeyRef != nil:
		from.SecretKeyRef.Optional = &yes
	case from.ConfigMapKeyRef != nil:
		from.ConfigMapKeyRef.Optional = &yes
	default:
		return false
	}
	return true
}

func (o Options) volumes(p *patch) {
	there := func(name string) bool { // somebody's own
		return slices.ContainsFunc(p.pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	}
	limit := stateLimit
	if !there(stateVolume) {
		p.volume(corev1.Volume{Name: stateVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}})
	}
	if o.KeysSecret != "" && !there(keysVolume) {
		mode, yes := int32(0o444), true
		p.volume(corev1.Volume{Name: keysVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: o.KeysSecret, DefaultMode: &mode, Optional: &yes}}})
	}
}
