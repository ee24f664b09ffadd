//go:build race

package kvevent

// raceEnabled lifts time limits that the race detector would break.
const raceEnabled = true
