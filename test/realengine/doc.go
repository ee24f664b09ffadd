// Package realengine runs agents and a gateway against two real vLLM engines on the CPU
// (`make test-engine`). Every request's predicted cached tokens are compared with the
// cached_tokens that vLLM itself reports. Without an installed engine all tests skip.
package realengine
