package score

import "math"

// marginTokens of prompt to compute count as equal: a false positive or two.
const marginTokens = 64

// Set says which candidates a choice is among, and what it minimises.
type Set uint8

// The two choices that the binder makes.
const (
	Ready Set = iota // those that can start now, by wait + cost
	Any              // all that are not full, by wait + cost
)

// Best returns the position of the best candidate in c, or -1 if the set is empty. Stale candidates count only where
// no other can be used.
//
// Prices are made from learned speeds and are no better than these. So among those that are within ReuseMs or ReuseShare
// of the cheapest the least prompt to compute decides; then the price; then, for those as good as the best within the margin,
// the rendezvous hash of request and endpoint: gateways that see the same prices at the same time don't all run to the
// same endpoint.
func (p *Params) Best(c []Candidate, request uint64, set Set) int {
	least, stale := cheapest(c, set)
	near := least + max(p.ReuseMs, p.ReuseShare*least)
	uncached := math.MaxInt
	first, last, n := 0, -1, 0 // of those near the cheapest
	for i := range c {
		if c[i].Wait+c[i].Cost <= near && c[i].in(set, stale) {
			uncached = min(uncached, c[i].Uncached)
			if last = i; n == 0 {
				first = i
			}
			n++
		}
	}
	if n <= 1 {
		return last
	}
	reuses := func(x *Candidate) bool {
		return x.Wait+x.Cost <= near && x.in(set, stale) && x.Uncached-uncached <= marginTokens
	}
	least = math.Inf(1)
	for i := first; i <= last; i++ {
		if total := c[i].Wait + c[i].Cost; total < least && reuses(&c[i]) { // the built-in min would take twice as long: NaNs
			least = total
		}
	}
	limit := least + max(p.MarginMs, p.MarginShare*least)
	best, top := -1, uint64(0)
	for i := first; i <= last; i++ {
		if !reuses(&c[i]) || c[i].Wait+c[i].Cost > limit {
			continue
		}
		if h := Mix(request ^ c[i].Key); best < 0 || h > top {
			best, top = i, h
		}
	}
	return best
}

// cheapest returns the least wait + cost of a set, +Inf if it is empty, and whether stale candidates are in it.
func cheapest(c []Candidate, set Set) (least float64, stale bool) {
	least, stale = math.Inf(1), true
	ofStale := least
	for i := range c {
		switch x := &c[i]; {
		case x.Full:
		case !x.Stale:
			stale = false
			if total := x.Wait + x.Cost; total < least && (x.Ready || set == Any) {
				least = total
			}
		case x.Ready || set == Any:
			if total := x.Wait + x.Cost; total < ofStale {
				ofStale = total
			}
		}
	}
	if stale {
		least = ofStale
	}
	return least, stale
}

// Alternative returns the least wait + cost of the candidates that are not ready, +Inf if there is none.
func Alternative(c []Candidate) float64 {
	stale := !anyFresh(c)
	least := math.Inf(1)
	for i := range c {
		if total := c[i].Wait + c[i].Cost; total < least && !c[i].Ready && c[i].in(Any, stale) {
			least = total
		}
	}
	return least
}

func (c *Candidate) in(set Set, stale bool) bool {
	return !c.Full && (c.Ready || set == Any) && (stale || !c.Stale)
}

// anyFresh reports whether an endpoint that is not stale can be used.
func anyFresh(c []Candidate) bool {
	for i := range c {
		if !c[i].Stale && !c[i].Full {
			return true
		}
	}
	return false
}

// Mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
