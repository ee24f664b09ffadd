// Package pipeline runs the recorded histories of real engines through everything between an
// event and a pick: decoder, block set, digest, wire, view and match.
package pipeline
