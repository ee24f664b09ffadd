package pool

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Objects of the API server, as far as they matter here: other fields are skipped when an answer is read. What is made
// of them is in core.go. No object is changed once it was read, so that their copies are shallow.

// podObject is a Pod (v1).
type podObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ReadinessGates []struct {
			ConditionType string `json:"conditionType"`
		} `json:"readinessGates"`
	} `json:"spec"`
	Status struct {
		Phase          string            `json:"phase"`
		PodIP          string            `json:"podIP"`
		Conditions     []condition       `json:"conditions"`
		Containers     []containerStatus `json:"containerStatuses"`
		InitContainers []containerStatus `json:"initContainerStatuses"`
	} `json:"status"`
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

type containerStatus struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}

// agentContainer is what the injector calls the agent.
const agentContainer = "grapevine-agent"

func (o *podObject) DeepCopyObject() runtime.Object { c := *o; return &c }

func (o *podObject) fact() pod {
	p := pod{ip: o.Status.PodIP}
	switch {
	case o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed":
		p.state = ended
	case o.DeletionTimestamp != nil:
		p.state = terminating
	case o.is("Ready", "True") || o.lacksAgentOnly():
		p.state = ready
	}
	return p
}

// is reports whether a condition is told and has a status.
func (o *podObject) is(condition, status string) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == condition {
			return c.Status == status
		}
	}
	return false
}

// lacksAgentOnly reports whether a pod is not ready because of its agent and of nothing else: the kubelet counts native
// sidecars (GenerateContainersReadyCondition, kubernetes pkg/kubelet/status/generate.go), so that one which died makes its pod
// not ready until it runs again. The engine serves all the same.
func (o *podObject) lacksAgentOnly() bool {
	if !o.is("ContainersReady", "False") || len(o.Status.Containers) == 0 {
		return false // it's the node, or the pod has not begun
	}
	for _, g := range o.Spec.ReadinessGates {
		if !o.is(g.ConditionType, "True") {
			return false
		}
	}
	for _, c := range o.Status.Containers {
		if !c.Ready {
			return false
		}
	}
	lacks := false
	for _, c := range o.Status.InitContainers {
		switch {
		case c.Ready:
		case c.Name != agentContainer:
			return false
		default:
			lacks = true
		}
	}
	return lacks
}

// sliceObject is an EndpointSlice (discovery.k8s.io/v1).
type sliceObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	AddressType       string `json:"addressType"`
	Endpoints         []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready       *bool `json:"ready"`
			Serving     *bool `json:"serving"`
			Terminating *bool `json:"terminating"`
		} `json:"conditions"`
		TargetRef *struct {
			Name string `json:"name"`
		} `json:"targetRef"`
	} `json:"endpoints"`
	Ports []struct {
		Name     string `json:"name"`
		Port     *int32 `json:"port"`
		Protocol string `json:"protocol"`
	} `json:"ports"`
}

func (o *sliceObject) DeepCopyObject() runtime.Object { c := *o; return &c }

// fact reads conditions as k8s.io/api/discovery/v1 says: ready and serving that are not told count as true, terminating
// as false. A Service with publishNotReadyAddresses calls everything ready: there serving is what the pod says.
func (o *sliceObject) fact() slice {
	s := slice{family: o.AddressType}
	for _, p := range o.Ports {
		if p.Protocol != "" && p.Protocol != "TCP" {
			continue
		}
		port := slicePort{name: p.Name}
		if p.Port != nil {
			port.number = *p.Port
		}
		s.ports = append(s.ports, port)
	}
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		m := sliceMember{address: e.Addresses[0], state: notReady} // further addresses are the same endpoint
		if e.TargetRef != nil {
			m.target = e.TargetRef.Name
		}
		c := &e.Conditions
		switch {
		case c.Terminating != nil && *c.Terminating:
			m.state = terminating
		case (c.Ready == nil || *c.Ready) && (c.Serving == nil || *c.Serving):
			m.state = ready
		}
		s.members = append(s.members, m)
	}
	return s
}

// poolObject is an InferencePool (inference.networking.k8s.io/v1).
type poolObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []struct {
			Number int32 `json:"number"`
		} `json:"targetPorts"`
		AppProtocol string `json:"appProtocol"`
	} `json:"spec"`
}

func (o *poolObject) DeepCopyObject() runtime.Object { c := *o; return &c }

func (o *poolObject) fact() poolSpec {
	s := poolSpec{selector: labels.SelectorFromSet(o.Spec.Selector.MatchLabels).String(), protocol: o.Spec.AppProtocol}
	for _, p := range o.Spec.TargetPorts {
		s.ports = append(s.ports, p.Number)
	}
	return s
}

// objectiveObject is an InferenceObjective (llm-d.ai/v1alpha2).
type objectiveObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Priority int32 `json:"priority"`
		PoolRef  struct {
			Name string `json:"name"`
		} `json:"poolRef"`
	} `json:"spec"`
}

func (o *objectiveObject) DeepCopyObject() runtime.Object { c := *o; return &c }

// objective is what matters of an InferenceObjective.
type objective struct {
	pool     string // in the same namespace
	priority int
}

func (o *objectiveObject) fact() objective {
	return objective{pool: o.Spec.PoolRef.Name, priority: int(o.Spec.Priority)}
}

// objects is the list of any of them.
type objects[T any] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []T `json:"items"`
}

func (l *objects[T]) DeepCopyObject() runtime.Object { c := *l; return &c }
