package pool

// Keys of log attributes.
const (
	keyAfter     = "after"
	keyEndpoints = "endpoints"
	keyNamespace = "namespace"
	keyNote      = "note"
	keyPool      = "pool"
	keyProblem   = "problem"
	keyResource  = "resource"
	keySelector  = "selector"
)
