package sched

import (
	"math"
	"time"
)

// Clock is the time that a GPU takes. It is a model, linear and quadratic terms
// fitted to published figures, not a measurement.
type Clock struct {
	Overhead  time.Duration // of each prefill
	PerToken  float64       // seconds for each new token
	Quadratic float64       // seconds for each new token and token attended to, times two
	Step      time.Duration // of one decoded token, whatever the batch
	PerKV     float64       // seconds a step takes longer for each token of KV read
}

// H200 is Llama-3.1-70B in FP8 on one H200: a cold 32,000-token prompt takes
// 3.70 s, 200 tokens after 32,768 cached ones 49 ms, and a token 18 ms.
func H200() Clock {
	return Clock{
		Overhead:  20 * time.Millisecond,
		PerToken:  8.855e-5,
		Quadratic: 8.266e-10,
		Step:      18 * time.Millisecond,
		PerKV:     85e-9,
	}
}

// Prefill is the time for n new tokens after c cached ones. The first k of n
// tokens are done after Prefill(k, c).
func (t Clock) Prefill(n, c int) time.Duration {
	x, y := float64(n), float64(c)
	return t.Overhead + seconds(t.PerToken*x+t.Quadratic*x*(2*y+x))
}

// Decode is the time for one token of every running request while their tables
// hold the given number of tokens together.
func (t Clock) Decode(resident int) time.Duration {
	return t.Step + seconds(t.PerKV*float64(resident))
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
