// Package envoy tests the configurations in deploy/envoy with a real Envoy (`make test-envoy`): our gateway as
// its endpoint picker in front of emulated engines, through everything that can go wrong between the
// three, and what that adds to a request. Command constant is the picker that ours is measured against.
//
// A test uses a shipped file as it is, but for addresses. Without Envoy all tests skip.
package envoy
