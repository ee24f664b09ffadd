// Package pool tells which endpoints Kubernetes holds eligible: the ready pods of InferencePools
// (inference.networking.k8s.io/v1) and the ready endpoints of Services.
//
// Kubernetes decides eligibility, gossip decides preference. A pod is eligible when it has an
// address and the condition Ready, has not ended and is not being deleted; it is out the moment it
// is marked for deletion. What was known last stays while the API server can't be reached, and a
// pool that has not been read yet is unknown, not empty.
//
//	w, err := pool.New(pool.Config{InferencePools: []string{"models/llama"}}, log, reg)
//	...
//	err = w.Run(ctx, func(endpoints []string) { _ = p.SetEndpoints(endpoints) })
//
// A Watcher lists and watches pods, endpointslices, inferencepools and, if asked to,
// inferenceobjectives in the namespaces it is given; it needs no other right. Of each object only
// what is decided on is kept.
package pool
