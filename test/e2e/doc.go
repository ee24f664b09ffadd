// Package e2e brings up whole fleets as processes (emulated engines, agents, a gateway) and
// breaks parts of them. What happened is judged by the engines' own account of cached blocks, not
// by the absence of errors.
package e2e
