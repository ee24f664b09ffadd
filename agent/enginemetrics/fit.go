package enginemetrics

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

const (
	maxTerms     = 3
	perClass     = 16               // observations kept of each size class
	sizeClasses  = 24               // by powers of two
	fitHalfLife  = 10 * time.Minute // of an observation's weight, against the newest one
	fitMinPoints = 3
	rounds       = 8    // of reweighting
	slowLimit    = 0.15 // an observation slower than the fit by a greater share loses weight: others were in its way
	fastLimit    = 0.3
	priorWeight  = 0.3 // of each of the observations that the default model stands for
)

// fit learns y = coef·x with coef ≥ 0 from noisy observations. It keeps a
// bounded number of them by size, so that a flood of small ones does not drive
// out the few large ones, and lets old ones fade. Waiting for others only ever
// adds time, so it trusts fast observations more than slow ones. The default
// model, scaled to what was seen, stands in for sizes that were not.
type fit struct {
	terms   int
	prior   [maxTerms]float64   // coefficients before any data
	anchors [][maxTerms]float64 // x of the observations that the prior makes

	classes [sizeClasses]class
	coef    [maxTerms]float64
	points  int
	miss    float64 // weighted median of |y-fit|/fit
	stale   bool    // observations came since the last solve
}

type class struct {
	points [perClass]point
	next   int
}

type point struct {
	at     time.Time
	x      [maxTerms]float64
	y      float64 // seconds; 0: no observation
	weight float64
}

// add takes an observation of that size (tokens) and weight in (0,1].
func (f *fit) add(now time.Time, size float64, x [maxTerms]float64, y, weight float64) {
	c := &f.classes[min(bits.Len64(uint64(size)), sizeClasses-1)]
	c.points[c.next] = point{now, x, y, weight}
	c.next = (c.next + 1) % perClass
	f.stale = true
}

// solve brings coef up to date. It costs some 100 µs and is done at most once
// for each change.
func (f *fit) solve() {
	if !f.stale {
		return
	}
	f.stale = false
	points := f.gather()
	f.points = len(points)
	if f.points < fitMinPoints {
		return
	}
	scale := weightedMedian(points, func(p *point) float64 { return p.y / dot(f.prior, p.x) })
	var start [maxTerms]float64
	for i := range f.terms {
		start[i] = f.prior[i] * scale
	}
	for _, x := range f.anchors {
		points = append(points, point{x: x, y: dot(start, x), weight: priorWeight})
	}
	coef := start
	for range rounds {
		var n normal
		for i := range points {
			p := &points[i]
			estimate := max(dot(coef, p.x), 1e-9)
			off := (p.y - estimate) / estimate
			weight := p.weight / (estimate * estimate)
			if off > slowLimit {
				weight *= slowLimit / off
			} else if off < -fastLimit {
				weight *= fastLimit / -off
			}
			n.add(f.terms, p.x, p.y, weight)
		}
		next, ok := n.solve(f.terms)
		if !ok {
			break
		}
		coef = next
	}
	f.coef = coef
	f.miss = weightedMedian(points[:f.points], func(p *point) float64 {
		estimate := max(dot(coef, p.x), 1e-9)
		return math.Abs(p.y-estimate) / estimate
	})
}

// gather lists the observations with their faded weights.
func (f *fit) gather() []point {
	var newest time.Time
	var out []point
	for i := range f.classes {
		for _, p := range f.classes[i].points {
			if p.y > 0 {
				out = append(out, p)
				if p.at.After(newest) {
					newest = p.at
				}
			}
		}
	}
	for i := range out {
		out[i].weight *= math.Exp2(-float64(newest.Sub(out[i].at)) / float64(fitHalfLife))
	}
	return out
}

func dot(a, b [maxTerms]float64) float64 {
	return a[0]*b[0] + a[1]*b[1] + a[2]*b[2]
}

// weightedMedian sorts points by key.
func weightedMedian(points []point, key func(*point) float64) float64 {
	type item struct{ key, weight float64 }
	items := make([]item, len(points))
	total := 0.0
	for i := range points {
		items[i] = item{key(&points[i]), points[i].weight}
		total += points[i].weight
	}
	slices.SortFunc(items, func(a, b item) int {
		switch {
		case a.key < b.key:
			return -1
		case a.key > b.key:
			return 1
		}
		return 0
	})
	sum := 0.0
	for _, it := range items {
		if sum += it.weight; sum >= total/2 {
			return it.key
		}
	}
	return 0
}

// normal holds the normal equations of a weighted least squares problem.
type normal struct {
	a [maxTerms][maxTerms]float64
	b [maxTerms]float64
}

func (n *normal) add(terms int, x [maxTerms]float64, y, weight float64) {
	for i := range terms {
		for j := range terms {
			n.a[i][j] += weight * x[i] * x[j]
		}
		n.b[i] += weight * x[i] * y
	}
}

// solve finds the best coefficients that are not negative: with so few terms by
// trying each set of terms that may be above zero.
func (n *normal) solve(terms int) (best [maxTerms]float64, ok bool) {
	bestGain := 0.0
	for set := 1; set < 1<<terms; set++ {
		coef, solved := n.solveSet(terms, set)
		if !solved {
			continue
		}
		// What the residual loses against coef = 0 is b·coef at a solution.
		gain := dot(n.b, coef)
		if gain > bestGain {
			best, bestGain, ok = coef, gain, true
		}
	}
	return best, ok
}

// solveSet solves for the terms in set by Gaussian elimination on equations
// scaled to a unit diagonal. It fails if they are (nearly) singular or a
// coefficient is negative.
func (n *normal) solveSet(terms, set int) (coef [maxTerms]float64, ok bool) {
	var idx [maxTerms]int
	k := 0
	for i := range terms {
		if set&(1<<i) != 0 {
			if n.a[i][i] <= 0 {
				return coef, false
			}
			idx[k] = i
			k++
		}
	}
	var m [maxTerms][maxTerms + 1]float64
	for r := range k {
		scale := math.Sqrt(n.a[idx[r]][idx[r]])
		for c := range k {
			m[r][c] = n.a[idx[r]][idx[c]] / scale / math.Sqrt(n.a[idx[c]][idx[c]])
		}
		m[r][k] = n.b[idx[r]] / scale
	}
	for r := range k {
		if m[r][r] < 1e-9 { // positive definite: the diagonal is a good pivot
			return coef, false
		}
		for below := r + 1; below < k; below++ {
			factor := m[below][r] / m[r][r]
			for c := r; c <= k; c++ {
				m[below][c] -= factor * m[r][c]
			}
		}
	}
	for r := k - 1; r >= 0; r-- {
		v := m[r][k]
		for c := r + 1; c < k; c++ {
			v -= m[r][c] * coef[idx[c]]
		}
		v /= m[r][r]
		if v < 0 || math.IsNaN(v) {
			return coef, false
		}
		coef[idx[r]] = v
	}
	for r := range k { // back from unit diagonal
		coef[idx[r]] /= math.Sqrt(n.a[idx[r]][idx[r]])
	}
	return coef, true
}
