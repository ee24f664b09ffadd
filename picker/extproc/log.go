package extproc

// Keys of log attributes.
const (
	keyRequestID = "request_id"
	keyError     = "error"
	keyReason    = "reason"
	keyResult    = "result"
	keyStack     = "stack"
)
