// Package realengine runs agents and a gateway against real vLLM engines on the CPU
// (`make test-engine`). Random and odd requests of all forms are resolved to the token ids that
// vLLM's own render endpoints give, and every request's predicted cached tokens are compared
// with the cached_tokens that vLLM itself reports. Without an installed engine all tests skip.
package realengine
