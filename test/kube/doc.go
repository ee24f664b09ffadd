// Package kube tests Grapevine on Kubernetes: a real API server, etcd and controllers, the chart as it is, and
// pods that really run. There is no container runtime: a small kubelet gives each pod a network namespace and
// each container a root folder of its own, and starts the binaries of this tree in them with the arguments,
// environment, volumes, users and probes of the pod's spec. kwok plays the nodes where a thousand pods are wanted.
//
// The tests need root in a network and mount namespace of their own; `make test-kube` sees to that and to the parts.
// Without them they skip with a reason.
package kube
