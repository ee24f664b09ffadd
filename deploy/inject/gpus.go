package inject

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// gpus says what the agent sees of the GPUs, without ever requesting one: the
// variables are read by NVIDIA's container runtime.
type gpus struct {
	visible string // NVIDIA_VISIBLE_DEVICES
	watch   string // the agent's --gpus
}

var (
	noGPUs   = gpus{visible: "void", watch: "none"}
	nodeGPUs = gpus{visible: "all", watch: "all"}
)

const gpuResource = "nvidia.com/gpu"

var gpuUUIDs = regexp.MustCompile(`^GPU-[0-9a-fA-F-]+(,GPU-[0-9a-fA-F-]+)*$`)

func (o Options) gpus(pod *corev1.Pod, e *engine) (g gpus, warning string) {
	asked := pod.Annotations[KeyGPUs]
	switch asked {
	case "", "none", "uuid", "node":
	default:
		return noGPUs, fmt.Sprintf("%s is %q: give none, uuid or node; the agent sees no GPU", KeyGPUs, asked)
	}
	for name := range e.container.Resources.Limits {
		if strings.HasPrefix(string(name), "nvidia.com/mig-") {
			return noGPUs, fmt.Sprintf("MIG (%s) is not supported yet: the agent sees no GPU", name)
		}
	}
	if len(e.container.Resources.Claims) > 0 {
		return noGPUs, "GPUs by resource claim (DRA) are not supported yet: the agent sees no GPU"
	}
	requested := e.container.Resources.Limits[gpuResource]
	owns := o.NodeGPUs > 0 && requested.CmpInt64(int64(o.NodeGPUs)) == 0
	switch {
	case asked == "none":
		return noGPUs, ""
	case asked == "uuid":
		for _, name := range []string{"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} {
			if v := e.env[name]; v.known && gpuUUIDs.MatchString(v.text) {
				return gpus{visible: v.text, watch: v.text}, ""
			}
		}
		return noGPUs, fmt.Sprintf("%s is uuid, but the engine's environment lists no whole GPUs by UUID in NVIDIA_VISIBLE_DEVICES: the agent sees no GPU", KeyGPUs)
	case owns:
		return nodeGPUs, ""
	case asked == "node":
		return noGPUs, fmt.Sprintf("%s is node, but the engine requests %s of the node's %d GPUs, the others are not its own: the agent sees no GPU", KeyGPUs, requested.String(), o.NodeGPUs)
	}
	return noGPUs, ""
}
