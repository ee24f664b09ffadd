// Package inject decides what becomes of a model pod: it finds the engine among
// the pod's containers, reads its arguments, and returns the JSON patch that adds
// the agent, with warnings that say what the pod's owner should know or do.
//
// It is a core: a pod in, a patch out; no cluster, no clock. Package
// deploy/inject/webhook is the shell around it, `grapevine inject` another.
//
//	res := opts.Inject(pod, inject.Namespace{Labelled: true, Label: "agent"})
//	for _, w := range res.Warnings { ... }
//	json.Marshal(res.Patch) // RFC 6902
//
// Rules that every change must keep (the tests hold them):
//
//   - A pod with the agent in it is left alone, so a second pass changes nothing.
//   - At level agent the patch only adds: an init container, volumes, annotations.
//   - At level configure it also appends arguments to the engine's container,
//     and to no other.
//   - The agent never keeps a pod from starting: no startup or readiness probe,
//     no host path, no Secret that must exist, no port that another container
//     declares. What cannot be done safely ends in a warning.
package inject
