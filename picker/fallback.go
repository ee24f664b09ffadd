package picker

import (
	"errors"
	"slices"

	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

// fallbacks returns the best of p.candidates on other hosts than that of endpoint i, as many as q wants.
func (p *Picker) fallbacks(q *query, i int) []Endpoint {
	n := q.req.Fallbacks
	if n <= 0 {
		return nil
	}
	host := func(at int) *host { return q.table.endpoints[p.candidates[at].Index].host }
	chosen := q.table.endpoints[i].host
	best := make([]int, 0, n+1) // positions in candidates
	for at := range p.candidates {
		if host(at) == chosen || len(best) == n && !before(&p.candidates[at], &p.candidates[best[n-1]]) {
			continue
		}
		if rank := slices.IndexFunc(best, func(b int) bool { return host(b) == host(at) }); rank >= 0 {
			if !before(&p.candidates[at], &p.candidates[best[rank]]) {
				continue
			}
			best = slices.Delete(best, rank, rank+1)
		}
		place := len(best)
		for place > 0 && before(&p.candidates[at], &p.candidates[best[place-1]]) {
			place--
		}
		best = slices.Insert(best, place, at)
		best = best[:min(len(best), n)]
	}
	out := make([]Endpoint, len(best))
	for k, at := range best {
		out[k] = q.table.endpoints[p.candidates[at].Index].public
	}
	return out
}

// before reports whether a is to be tried before b: one that is full or stale only after all others.
func before(a, b *score.Candidate) bool {
	switch {
	case a.Full != b.Full:
		return b.Full
	case a.Stale != b.Stale:
		return b.Stale
	}
	return a.Wait+a.Cost < b.Wait+b.Cost
}

// errServedElsewhere is why an endpoint counts as failed whose request another one serves.
var errServedElsewhere = errors.New("another endpoint served the request")

// Served says that the endpoint at an address, host:port, serves a decision's request, as a proxy tells that walks
// Decision.Fallbacks. If that is another one than the one picked, the latter counts as failed and the request as bound to
// the other one from now on; what that has in its cache is not predicted. Served returns the decision to go on with, in
// place of d.
func (p *Picker) Served(d Decision, address string) Decision {
	f := d.flight
	if f == nil {
		return d
	}
	now := p.clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.ended || f.endpoint.host.address == address {
		return d
	}
	p.leave(now, f)
	p.failed(now, f.endpoint, errServedElsewhere)
	d.MatchedBlocks, d.DigestBlocks, d.PredictedCachedTokens = 0, 0, 0
	d.Endpoint, d.flight = Endpoint{ID: address}, nil
	t := p.table.Load()
	if i, known := t.byAddress[address]; known {
		e := t.endpoints[i]
		d.Endpoint = e.public
		d.flight = &flight{
			Flight:   hold.Flight{Work: f.Work, Blocks: f.Blocks, Told: f.Told},
			endpoint: e, bound: f.bound, moved: true,
		}
		e.ledger.Bind(now, &d.flight.Flight)
		e.bound = now
		p.book(now, e)
	}
	p.pump(now)
	return d
}
