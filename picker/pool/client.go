package pool

import (
	"errors"
	"fmt"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kind is one kind of object that is watched.
type kind struct {
	schema.GroupVersionResource
	name      string // of the kind
	object    runtime.Object
	list      runtime.Object
	installed string // how an API server comes to know it; empty: every one does
}

// qualified is the resource as RBAC and kubectl name it.
func (k kind) qualified() string { return k.GroupResource().String() }

func podKind() kind {
	return kind{schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "Pod", &podObject{}, &objects[podObject]{}, ""}
}

func sliceKind() kind {
	return kind{schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, "EndpointSlice", &sliceObject{}, &objects[sliceObject]{}, ""}
}

func poolKind() kind {
	return kind{schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}, "InferencePool", &poolObject{}, &objects[poolObject]{},
		"install the CRDs of the Gateway API Inference Extension"}
}

func objectiveKind() kind {
	return kind{schema.GroupVersionResource{Group: "llm-d.ai", Version: "v1alpha2", Resource: "inferenceobjectives"}, "InferenceObjective", &objectiveObject{}, &objects[objectiveObject]{},
		"install llm-d's CRDs, or leave --kubernetes-objectives out"}
}

// serviceAccount is where a pod finds who it is.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// connect finds the API server and the namespace that this is to look in by default; it does not call it.
func connect(cfg Config) (*rest.Config, string, error) {
	if cfg.Kubeconfig == "" {
		conn, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, "", errors.New("find the API server: this is no pod of a cluster: give --kubernetes-kubeconfig")
		}
		if err != nil {
			return nil, "", fmt.Errorf("find the API server: %w: does the pod have a service account (automountServiceAccountToken)?", err)
		}
		namespace := cfg.Namespace
		if namespace == "" {
			text, err := os.ReadFile(serviceAccount + "/namespace")
			if err != nil {
				return nil, "", fmt.Errorf("read this pod's namespace: %w: give --kubernetes-namespace", err)
			}
			namespace = strings.TrimSpace(string(text))
		}
		return conn, namespace, nil
	}
	file := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.Kubeconfig}, nil)
	conn, err := file.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig %s: %w", cfg.Kubeconfig, err)
	}
	namespace := cfg.Namespace
	if namespace == "" {
		if namespace, _, err = file.Namespace(); err != nil {
			return nil, "", fmt.Errorf("read kubeconfig %s: %w", cfg.Kubeconfig, err)
		}
	}
	return conn, namespace, nil
}

// clients talk to the API server, one for each group and version, over shared connections.
type clients map[schema.GroupVersion]rest.Interface

func newClients(conn *rest.Config) (clients, error) {
	conn = rest.CopyConfig(conn)
	conn.UserAgent = "grapevine-gateway"
	conn.QPS, conn.Burst = 50, 100 // a few dozen pools at once, at start
	conn.WarningHandlerWithContext = rest.NoWarnings{}
	conn.ContentType, conn.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	shared, err := rest.HTTPClientFor(conn)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	kinds := []kind{podKind(), sliceKind(), poolKind(), objectiveKind()}
	for _, k := range kinds {
		gv := k.GroupVersion()
		scheme.AddKnownTypeWithName(gv.WithKind(k.name), k.object)
		scheme.AddKnownTypeWithName(gv.WithKind(k.name+"List"), k.list)
		metav1.AddToGroupVersion(scheme, gv)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	out := clients{}
	for _, k := range kinds {
		gv := k.GroupVersion()
		c := rest.CopyConfig(conn)
		c.GroupVersion, c.NegotiatedSerializer = &gv, codecs
		c.APIPath = "/apis"
		if gv.Group == "" {
			c.APIPath = "/api"
		}
		if out[gv], err = rest.RESTClientForConfigAndClient(c, shared); err != nil {
			return nil, err
		}
	}
	return out, nil
}
