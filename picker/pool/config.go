package pool

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
)

// Config says what to watch. The zero value watches nothing.
type Config struct {
	// InferencePools are "namespace/name" or "name"; each pod and target port is an endpoint.
	InferencePools []string `json:"inference-pools" help:"InferencePools whose ready pods are endpoints, namespace/name"`
	// Services are "namespace/name:port"; the port is a port's name or the pods' own port number, and may be left out if
	// there is only one.
	Services []string `json:"services" help:"Services whose ready endpoints are endpoints, namespace/name:port (a port's name or the pods' port number)"`
	// Namespace holds what is given without one.
	Namespace string `json:"namespace" help:"namespace of what is given without one; empty: the gateway's own"`
	// Kubeconfig is a file. Empty: the service account of the pod that this runs in.
	Kubeconfig string `json:"kubeconfig" help:"kubeconfig file; empty: the service account of this pod"`
	// Objectives also reads the priorities of InferenceObjectives (llm-d.ai/v1alpha2) in the namespaces of InferencePools.
	Objectives bool `json:"objectives" help:"read the priorities of InferenceObjectives (llm-d.ai/v1alpha2) of the InferencePools"`
}

// Enabled reports whether there is anything to watch.
func (c Config) Enabled() bool { return len(c.InferencePools)+len(c.Services) > 0 }

// fault is one thing wrong with a configuration.
type fault struct{ field, value, problem, remedy string }

func (f *fault) Error() string {
	return fmt.Sprintf("%s = %q %s; %s", f.field, f.value, f.problem, f.remedy)
}
func (f *fault) Field() string   { return f.field }
func (f *fault) Value() string   { return f.value }
func (f *fault) Problem() string { return f.problem }
func (f *fault) Remedy() string  { return f.remedy }

// Validate joins all faults of c. Each has the methods Field, Value, Problem and Remedy; fields start with "kubernetes.".
func (c Config) Validate() error {
	var errs []error
	seen := map[string]bool{}
	check := func(field, value string, r ref, err error, remedy string) {
		if err != nil {
			errs = append(errs, &fault{field, value, "is " + err.Error(), remedy})
			return
		}
		if seen[r.String()] {
			errs = append(errs, &fault{field, value, "is given twice", "leave one out; a Service with the name of an InferencePool needs its port"})
		}
		seen[r.String()] = true
	}
	for _, s := range c.InferencePools {
		r, err := parsePool(s, c.Namespace)
		check("kubernetes.inference-pools", s, r, err, "give namespace/name")
	}
	for _, s := range c.Services {
		r, err := parseService(s, c.Namespace)
		check("kubernetes.services", s, r, err, "give namespace/name:port")
	}
	if c.Namespace != "" && !label.MatchString(c.Namespace) {
		errs = append(errs, &fault{"kubernetes.namespace", c.Namespace, "is no namespace", "give the name of one"})
	}
	if c.Objectives && len(c.InferencePools) == 0 {
		errs = append(errs, &fault{"kubernetes.objectives", "true", "has no InferencePool whose objectives could be read", "give --kubernetes-inference-pools"})
	}
	return errors.Join(errs...)
}

// ref names an InferencePool or a Service with one of its ports.
type ref struct{ namespace, name, port string }

// String is the name of the pool: "namespace/name", or "namespace/name:port".
func (r ref) String() string {
	if r.port == "" {
		return r.namespace + "/" + r.name
	}
	return r.namespace + "/" + r.name + ":" + r.port
}

// Names of Kubernetes objects (RFC 1123).
var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)
)

// parsePool reads "namespace/name" or "name".
func parsePool(s, namespace string) (ref, error) {
	r := ref{namespace: namespace, name: s}
	if ns, name, ok := strings.Cut(s, "/"); ok {
		r = ref{namespace: ns, name: name}
		if ns == "" {
			return ref{}, errors.New("without a namespace before the slash")
		}
	}
	if r.namespace != "" && !label.MatchString(r.namespace) || !subdomain.MatchString(r.name) {
		return ref{}, errors.New("no name of an object")
	}
	return r, nil
}

// parseService reads "namespace/name:port", where namespace and port may be missing.
func parseService(s, namespace string) (ref, error) {
	rest, port, hasPort := strings.Cut(s, ":")
	r, err := parsePool(rest, namespace)
	if err != nil {
		return ref{}, err
	}
	if n, err := strconv.Atoi(port); err == nil && (n < 1 || n > 65535) || hasPort && !label.MatchString(port) {
		return ref{}, errors.New("without a port from 1 to 65535, or a port's name, after the colon")
	}
	r.port = port
	return r, nil
}

// hostPort writes an address as endpoints are named: IPv6 in brackets.
func hostPort(ip string, port int32) string { return net.JoinHostPort(ip, strconv.Itoa(int(port))) }
