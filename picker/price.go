package picker

import (
	"math"
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

// A choice is made among the endpoints of the best class that has any: verdicts by gossip are dropped before a request
// is refused, and so are connection failures.
const (
	classGood     = iota
	classExcluded // by a verdict heard by gossip
	classOut      // could not be reached
	classNever    // doesn't serve the model, failed this very request, or is not one that it may have
)

func (p *Picker) class(now time.Time, q *query, i int) int {
	e := q.table.endpoints[i]
	switch {
	case !q.may(i):
		return classNever
	case !e.host.usable(now, p.cfg.Probe != nil):
		return classOut
	case e.excluded:
		return classExcluded
	}
	return classGood
}

// may reports whether the request may have endpoint i: it serves the model, and nothing bars it.
func (q *query) may(i int) bool {
	return (q.serves == nil || q.serves[i]) && (q.avoid == nil || !q.avoid[i])
}

// bestClass returns the class to choose from.
func (p *Picker) bestClass(now time.Time, q *query) int {
	best := classNever
	for i := range q.table.endpoints {
		if best = min(best, p.class(now, q, i)); best == classGood {
			break
		}
	}
	return best
}

// price returns what each endpoint costs q, nothing if no endpoint may be used. The list is p.candidates, until the next
// call. Caller holds p.mu.
func (p *Picker) price(now time.Time, q *query) []score.Candidate {
	lanes := q.table.lanes
	p.candidates = slices.Grow(p.candidates[:0], len(lanes))[:len(lanes)]
	class := classGood
	if p.trouble {
		class = p.bestClass(now, q)
	}
	p.advance(now, q.table)
	r := p.scored(q)
	used := 0
	for i := range lanes {
		if !q.may(i) || p.trouble && p.class(now, q, i) != class {
			continue
		}
		l := &lanes[i]
		q.prepare(i, l)
		p.params.Price(&p.candidates[used], &r, &l.facts, i)
		used++
	}
	p.candidates = p.candidates[:used]
	return p.candidates
}

// scored is what score has to know of q. The table must have been advanced.
func (p *Picker) scored(q *query) score.Request {
	others := p.fleet.prefill.Scaled(1 / p.crowd)
	return score.Request{PromptTokens: q.tokens, OutputTokens: p.expectedOutput(&q.req), Fleet: others, Reuse: p.reuse}
}

// prepare adds to an endpoint's facts what depends on the request.
func (q *query) prepare(i int, l *lane) {
	f := &l.facts
	switch {
	case q.req.NoCacheRead:
		f.Matched, f.MatchedAll, f.Trust = 0, 0, 1
	case l.digest:
		f.Matched, f.MatchedAll, f.Trust = int(q.both[i]), int(q.all[i]), l.trust
	default:
		f.Matched, f.MatchedAll, f.Trust = int(q.loose[i]), 0, 1
	}
}

// hasDigest reports whether an endpoint's digest can be used now.
func (p *Picker) hasDigest(t *table, i int) bool { return t.lanes[i].digest }

// rung says what endpoint i was priced by.
func (p *Picker) rung(q *query, i int) Rung {
	e := q.table.endpoints[i]
	switch {
	case p.hasDigest(q.table, i) && len(q.req.TokenIDs)+len(q.req.Chains) > 0:
		if e.trust() < 1 {
			return RungSuspect
		}
		return RungDigest
	case q.loose[i] > 0:
		return RungSpeculation
	case e.hasLoad:
		return RungLoad
	}
	return RungOwn
}

// matchedBlocks returns the match that endpoint i was priced with, and how much of it its digest alone has.
func (p *Picker) matchedBlocks(q *query, i int) (matched, digest int) {
	if p.hasDigest(q.table, i) {
		return int(max(q.both[i], q.all[i])), int(max(q.digest[i], q.all[i]))
	}
	return int(q.loose[i]), 0
}

// predicted returns the tokens that an engine finds in its cache if it has blocks of them.
func predicted(q *query, blocks, blockSize int) int {
	if q.req.NoCacheRead {
		return 0
	}
	return min(blocks, score.PromptBlocks(q.tokens, blockSize)) * blockSize
}

// expectedOutput guesses the length of the answer.
func (p *Picker) expectedOutput(r *Request) int {
	n := int(p.meanOutput)
	if r.MaxOutputTokens > 0 {
		n = min(n, r.MaxOutputTokens)
	}
	return n
}

// bypasses reports whether a request is never held: nothing that is held can come before it.
func (p *Picker) bypasses(q *query, policy *shares) bool {
	return q.policy != PolicyPrefix || !policy.Hold || !p.running || p.draining || p.blind(q.table)
}

// choose says which candidate is bound at once and why; -1 with reasonHeld if the request should wait, with another
// reason if no endpoint takes it.
func (p *Picker) choose(q *query, c []score.Candidate, policy *shares) (int, string) {
	switch {
	case q.policy == PolicyRoundRobin:
		return int(p.next % uint64(len(c))), reasonEarly
	case q.policy == PolicyLeastLoad:
		return p.leastLoaded(q, c), reasonEarly
	case p.blind(q.table):
		return p.bounded(q, c), reasonEarly
	case p.bypasses(q, policy):
		return p.params.Best(c, q.key, score.Any), reasonEarly
	}
	if i := p.queue.Accept(c, q.key, 0); i >= 0 {
		return i, hold.Ready.String()
	}
	return -1, reasonHeld
}

// leastLoaded returns the candidate with the fewest requests, as the engine says or as this gateway counts.
func (p *Picker) leastLoaded(q *query, c []score.Candidate) int {
	return p.lowest(q, c, func(i int) float64 {
		e := q.table.endpoints[c[i].Index]
		return float64(max(e.ledger.Outstanding(), e.lane.facts.Running+e.waiting))
	})
}

// boundedShare is how far above the mean an endpoint's requests may be for it to be chosen for its cache when nothing but this
// gateway's own doings is known: the 1 + epsilon of consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam
// 2018), at the value that most proxies ship.
const boundedShare = 1.25

// bounded chooses by this gateway's own doings alone: the candidate that was bound most of the prompt among those whose
// requests are within the bound, of several the one with the fewest.
func (p *Picker) bounded(q *query, c []score.Candidate) int {
	outstanding := func(i int) int { return q.table.endpoints[c[i].Index].ledger.Outstanding() }
	total, least := 1, math.MaxInt
	for i := range c {
		total += outstanding(i)
		least = min(least, outstanding(i))
	}
	// One more than the paper's: where there are fewer requests than endpoints it would never let two share one.
	bound := max(least, int(math.Ceil(boundedShare*float64(total)/float64(len(c)))))
	uncached := math.MaxInt
	for i := range c {
		if outstanding(i) <= bound {
			uncached = min(uncached, c[i].Uncached)
		}
	}
	return p.lowest(q, c, func(i int) float64 {
		if n := outstanding(i); n <= bound && c[i].Uncached == uncached {
			return float64(n)
		}
		return math.Inf(1)
	})
}

// lowest returns the candidate with the least value; among equals the rendezvous hash decides.
func (p *Picker) lowest(q *query, c []score.Candidate, value func(i int) float64) int {
	least := math.Inf(1)
	for i := range c {
		least = min(least, value(i))
	}
	p.equal = p.equal[:0]
	at := -1
	for i := range c {
		if value(i) == least {
			p.equal = append(p.equal, score.Candidate{Index: i, Key: c[i].Key})
		}
	}
	if k := p.params.Best(p.equal, q.key, score.Any); k >= 0 {
		at = p.equal[k].Index
	}
	return at
}

// heedVerdicts decides which verdicts exclude: at most a share of the pool, those that came first. It logs when there
// are more.
func (p *Picker) heedVerdicts(t *table) {
	limit := max(1, int(p.cfg.Failure.VerdictShare*float64(len(t.endpoints))))
	accused := p.accused[:0]
	for _, e := range t.endpoints {
		e.excluded = false
		if e.verdict != verdictNone {
			accused = append(accused, e)
		}
	}
	p.accused = accused
	slices.SortStableFunc(accused, func(a, b *endpoint) int { return a.since.Compare(b.since) })
	ignored := max(0, len(accused)-limit)
	p.trouble = len(accused) > ignored || slices.ContainsFunc(t.endpoints, func(e *endpoint) bool { return e.host.out })
	for _, e := range accused[:len(accused)-ignored] {
		e.excluded = true
	}
	if ignored > 0 && p.ignored == 0 {
		p.log.Error("more endpoints are said to be unusable than gossip may exclude: ignored",
			keyAccused, len(accused), keyIgnored, ignored, keyPool, p.cfg.Pool)
	}
	p.ignored = ignored
}
