package deploy

import (
	core "k8s.io/api/core/v1"
	network "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// What we use of kinds that are not part of Kubernetes. A field that is not here is a fault of a manifest, or a reason
// to look it up in the definition named.

// InferencePool is config/crd/bases/inference.networking.k8s.io_inferencepools.yaml of
// kubernetes-sigs/gateway-api-inference-extension, v1.6.0.
type InferencePool struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []struct {
			Number int32 `json:"number"`
		} `json:"targetPorts"`
		EndpointPickerRef struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
			Port struct {
				Number int32 `json:"number"`
			} `json:"port"`
			FailureMode string `json:"failureMode"`
		} `json:"endpointPickerRef"`
	} `json:"spec"`
}

// Gateway is config/crd/standard of sigs.k8s.io/gateway-api, v1.6.3.
type Gateway struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		GatewayClassName string `json:"gatewayClassName"`
		Listeners        []struct {
			Name     string `json:"name"`
			Port     int32  `json:"port"`
			Protocol string `json:"protocol"`
		} `json:"listeners"`
	} `json:"spec"`
}

// HTTPRoute is of the same place.
type HTTPRoute struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		ParentRefs []ParentRef `json:"parentRefs"`
		Hostnames  []string    `json:"hostnames"`
		Rules      []RouteRule `json:"rules"`
	} `json:"spec"`
}

// ParentRef names a Gateway.
type ParentRef struct {
	Name        string `json:"name"`
	Namespace   string `json:"namespace"`
	SectionName string `json:"sectionName"`
}

// RouteRule is one rule of an HTTPRoute.
type RouteRule struct {
	BackendRefs []BackendRef `json:"backendRefs"`
	Timeouts    struct {
		Request string `json:"request"`
	} `json:"timeouts"`
}

// BackendRef is where a rule sends requests, by weight.
type BackendRef struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Port      int32  `json:"port"`
	Weight    *int32 `json:"weight"`
}

// ReferenceGrant is of the same place.
type ReferenceGrant struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		From []GrantRef `json:"from"`
		To   []GrantRef `json:"to"`
	} `json:"spec"`
}

// GrantRef is who may refer, by namespace, or to what, by name.
type GrantRef struct {
	Group     string `json:"group"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// PodMonitor is of the Prometheus operator (monitoring.coreos.com/v1, api reference of v0.80).
type PodMonitor struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		Selector          metav1.LabelSelector `json:"selector"`
		NamespaceSelector struct {
			MatchNames []string `json:"matchNames"`
		} `json:"namespaceSelector"`
		PodMetricsEndpoints []struct {
			Port     string `json:"port"`
			Interval string `json:"interval"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// ScaledObject is KEDA's (keda.sh/v1alpha1, https://keda.sh/docs/2.17/reference/scaledobject-spec/).
type ScaledObject struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta `json:"metadata"`
	Spec            struct {
		ScaleTargetRef struct {
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicaCount int32 `json:"minReplicaCount"`
		MaxReplicaCount int32 `json:"maxReplicaCount"`
		PollingInterval int32 `json:"pollingInterval"`
		CooldownPeriod  int32 `json:"cooldownPeriod"`
		Advanced        struct {
			HPA struct {
				Behavior struct {
					ScaleDown struct {
						StabilizationWindowSeconds int32 `json:"stabilizationWindowSeconds"`
					} `json:"scaleDown"`
				} `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type       string            `json:"type"`
			MetricType string            `json:"metricType"`
			Metadata   map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// policyPort is how a NetworkPolicy names a port.
func policyPort(protocol core.Protocol, port int) network.NetworkPolicyPort {
	p := intstr.FromInt32(int32(port))
	return network.NetworkPolicyPort{Protocol: &protocol, Port: &p}
}
