package picker

// Keys of log attributes.
const (
	keyAccused     = "accused"
	keyEndpoint    = "endpoint"
	keyError       = "error"
	keyFailures    = "failures"
	keyHold        = "hold"
	keyIgnored     = "ignored"
	keyNode        = "node"
	keyPool        = "pool"
	keyProblem     = "problem"
	keyShares      = "shares"
	keySpeculation = "speculation"
)
