package picker

import (
	"math"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/picker/score"
)

// part returns a part of what price would return, nil if all must be priced: the endpoints that may be ready, one that is not,
// which q preferred last time, and the one that has most of the prompt. With more to choose from q would not be less choosy.
func (p *Picker) part(now time.Time, q *query) []score.Candidate {
	p.advance(now, q.table)
	lanes, open := q.table.lanes, q.table.open
	if q.rival < 0 || p.trouble || len(open) > len(lanes)/2 || now.Sub(q.start) >= p.cfg.Hold.DoubtAfter {
		return nil
	}
	if q.matched.Equal(now) {
		q.findHome()
	}
	r := p.scored(q)
	c := slices.Grow(p.candidates[:0], len(open)+2)
	add := func(i int) {
		c = c[:len(c)+1]
		q.prepare(i, &lanes[i])
		p.params.Price(&c[len(c)-1], &r, &lanes[i].facts, i)
	}
	if add(q.rival); c[0].Ready || c[0].Full || c[0].Stale {
		return nil
	}
	for _, i := range open {
		if q.may(i) {
			add(i)
		}
	}
	add(q.home)
	p.candidates = c
	return c
}

// remember keeps of q's prices what part needs: what it would wait for, and who has most of it.
func (q *query) remember(c []score.Candidate) {
	q.rival, q.home = -1, -1
	least, most := math.Inf(1), math.Inf(1)
	for i := range c {
		x := &c[i]
		if !x.Ready && !x.Full && !x.Stale && x.Wait+x.Cost < least {
			q.rival, least = x.Index, x.Wait+x.Cost
		}
		if x.Terms.Prefill < most {
			q.home, most = x.Index, x.Terms.Prefill
		}
	}
}

// findHome looks after a new match whether an endpoint has more of the prompt than the one that had most.
func (q *query) findHome() {
	most := q.cachedBlocks(q.home)
	for i := range q.table.lanes {
		if n := q.cachedBlocks(i); n > most && q.may(i) {
			q.home, most = i, n
		}
	}
}

// cachedBlocks returns how many leading blocks endpoint i has, by all that counts.
func (q *query) cachedBlocks(i int) int32 {
	switch {
	case q.req.NoCacheRead:
		return 0
	case q.table.lanes[i].digest:
		return max(q.both[i], q.all[i])
	}
	return q.loose[i]
}
