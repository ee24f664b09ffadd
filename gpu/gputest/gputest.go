// Package gputest is a scripted gpu.Reader for tests and demonstrations.
package gputest

import (
	"time"

	"github.com/grapevine-llm/grapevine/gpu"
)

// Step is what one Read answers.
type Step struct {
	Stats []gpu.Stats
	Err   error
}

// Reader answers its steps one by one, then the last one for ever, without its
// Xids. Not safe for concurrent use.
type Reader struct {
	Steps []Step
	next  int
}

var _ gpu.Reader = (*Reader)(nil)

// Read answers the next step.
func (r *Reader) Read(time.Time) ([]gpu.Stats, error) {
	if len(r.Steps) == 0 {
		return nil, nil
	}
	again := r.next == len(r.Steps)
	step := r.Steps[min(r.next, len(r.Steps)-1)]
	stats := append([]gpu.Stats(nil), step.Stats...)
	if again {
		for i := range stats {
			stats[i].Xids = nil
		}
	} else {
		r.next++
	}
	return stats, step.Err
}

// Healthy is a reading of n idle GPUs with 80 GiB each, 90 % of it in use.
func Healthy(n int) []gpu.Stats {
	const total = 80 << 30
	out := make([]gpu.Stats, n)
	for i := range out {
		out[i] = gpu.Stats{
			Index: i, UUID: "GPU-" + string(rune('a'+i%26)), Name: "Scripted GPU",
			MemTotalBytes: total, MemUsedBytes: total / 10 * 9, MemFreeBytes: total - total/10*9,
			ClockMHz: 1980, MaxClockMHz: 1980,
		}
	}
	return out
}
