package enginemetrics

import (
	"math"
	"time"
)

// PrefillCost is the time of one prefill of n new tokens after c cached ones:
//
//	T = Overhead + PerToken·n + Quadratic·n·(2c+n)
//
// The last term is attention: each new token looks at all tokens before it.
type PrefillCost struct {
	Overhead  time.Duration
	PerToken  float64 // seconds per token
	Quadratic float64 // seconds per token²
	Fitted    bool    // false: the default, nothing was learned yet
	Points    int     // observations at hand
	Error     float64 // median share by which they miss
}

// Predict is the time of one prefill alone on the engine.
func (c PrefillCost) Predict(newTokens, cachedTokens int) time.Duration {
	x := prefillTerms(float64(newTokens), float64(cachedTokens))
	return c.Overhead + seconds(c.PerToken*x[1]+c.Quadratic*x[2])
}

// DecodeCost is the time of one decode step while running requests hold so many
// tokens in the KV cache:
//
//	T = Step + PerToken·resident
type DecodeCost struct {
	Step     time.Duration
	PerToken float64 // seconds per resident token
	Fitted   bool
	Points   int
	Error    float64
}

// Before any data: about an H200 with a 70B model in FP8, 3.7 s for 32,000
// tokens. Scaled to the first observations, only its shape matters.
const (
	defaultOverhead  = 0.010
	defaultPerToken  = 1e-4
	defaultQuadratic = 5e-10

	defaultStep           = 0.020
	defaultDecodePerToken = 2e-8
)

// maxBatch is how many requests an observation may sum up: of more, too little
// is known about each.
const maxBatch = 8

// PrefillFit learns a PrefillCost. Not safe for concurrent use.
type PrefillFit struct{ fit fit }

// NewPrefillFit returns a fit that answers the default.
func NewPrefillFit() *PrefillFit {
	return &PrefillFit{fit{
		terms:   3,
		prior:   [maxTerms]float64{defaultOverhead, defaultPerToken, defaultQuadratic},
		anchors: [][maxTerms]float64{prefillTerms(64, 0), prefillTerms(2048, 0), prefillTerms(32768, 0)},
	}}
}

// Observe takes the prefill times of so many requests that together computed
// newTokens after cachedTokens cached ones. One request at a time teaches most.
// What can't be (nothing computed, no time, more than a day) is ignored.
func (f *PrefillFit) Observe(now time.Time, requests, newTokens, cachedTokens int, took time.Duration) {
	if requests < 1 || requests > maxBatch || newTokens < requests || cachedTokens < 0 || took <= 0 || took > 24*time.Hour {
		return
	}
	k := float64(requests)
	x := prefillTerms(float64(newTokens)/k, float64(cachedTokens)/k)
	f.fit.add(now, float64(newTokens)/k, x, took.Seconds()/k, 1/k)
}

// Cost is what was learned so far.
func (f *PrefillFit) Cost() PrefillCost {
	f.fit.solve()
	coef, fitted := f.fit.prior, f.fit.points >= fitMinPoints
	if fitted {
		coef = f.fit.coef
	}
	return PrefillCost{
		Overhead: seconds(coef[0]), PerToken: coef[1], Quadratic: coef[2],
		Fitted: fitted, Points: f.fit.points, Error: f.fit.miss,
	}
}

func prefillTerms(n, c float64) [maxTerms]float64 {
	return [maxTerms]float64{1, n, n * (2*c + n)}
}

// DecodeFit learns a DecodeCost. Not safe for concurrent use.
type DecodeFit struct{ fit fit }

// NewDecodeFit returns a fit that answers the default.
func NewDecodeFit() *DecodeFit {
	return &DecodeFit{fit{
		terms:   2,
		prior:   [maxTerms]float64{defaultStep, defaultDecodePerToken},
		anchors: [][maxTerms]float64{{1, 1000}, {1, 200_000}},
	}}
}

// Observe takes the mean time of a decode step while so many tokens were
// resident. What can't be is ignored.
func (f *DecodeFit) Observe(now time.Time, residentTokens float64, step time.Duration) {
	if !(residentTokens >= 0) || residentTokens > 1e12 || step <= 0 || step > time.Hour {
		return
	}
	f.fit.add(now, residentTokens, [maxTerms]float64{1, residentTokens}, step.Seconds(), 1)
}

// Cost is what was learned so far.
func (f *DecodeFit) Cost() DecodeCost {
	f.fit.solve()
	coef, fitted := f.fit.prior, f.fit.points >= fitMinPoints
	if fitted {
		coef = f.fit.coef
	}
	return DecodeCost{Step: seconds(coef[0]), PerToken: coef[1], Fitted: fitted, Points: f.fit.points, Error: f.fit.miss}
}

// seconds is s as a duration, bounded to what one holds.
func seconds(s float64) time.Duration {
	const limit = float64(math.MaxInt64) / 2
	return time.Duration(min(s*float64(time.Second), limit))
}
