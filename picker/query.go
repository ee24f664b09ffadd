package picker

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/match"
)

// query is one request on its way through the picker, with the scratch it needs. Queries are pooled.
type query struct {
	req    Request
	policy string
	key    uint64 // hash of the session, for rendezvous
	tokens int    // of the prompt, estimated if need be
	start  time.Time

	table   *table
	chains  [][]blockhash.Hash // by table.sizes
	both    []int32            // by endpoint: leading blocks in the digest or marked
	digest  []int32            // by endpoint: in the digest alone
	all     []int32            // by endpoint: over all tiers
	loose   []int32            // by endpoint: marked, where there is no digest
	matched time.Time
	rival   int    // busy endpoint that it preferred when it was held and priced last; -1: none
	home    int    // if there is a rival: endpoint that has most of the prompt
	heard   uint64 // last of the marks of other gateways that the matches count

	serves []bool // by endpoint; nil: all
	avoid  []bool // by endpoint, those that the request must not have; nil: none
	barred []bool // memory for avoid

	// A held request waits for done, which gets one value.
	item     hold.Item[*query]
	done     chan struct{}
	decision Decision
	err      error

	// A bound query is kept in recent.
	holders  atomic.Int32 // who knows it: the caller of Pick, recent
	endpoint int          // that it was bound to
	marking  marking
	marked   atomic.Int64 // when all its marks were made, Unix time in ns; 0: not yet

	matcher  match.Matcher
	columns  []int32
	columns2 []int32
	careful  []uint64
}

// reset makes q the query of a request. It keeps the scratch.
func (q *query) reset(req Request, now time.Time, d *draws) {
	q.req, q.start = req, now
	q.tokens = max(len(req.TokenIDs), req.PromptTokens)
	if s := req.session(); s != "" {
		q.key = xxh3.HashString(s)
	} else {
		q.key = d.next()
	}
	q.done, q.err, q.decision, q.table = nil, nil, Decision{}, nil
	q.item = hold.Item[*query]{}
	q.holders.Store(1)
	q.marking = marking{}
	q.marked.Store(0)
}

func (r *Request) session() string {
	if r.Session != "" {
		return r.Session
	}
	return r.ID
}

// bind ties q to a table: who serves its model, and the chains for the block sizes there. The error is ErrUnknownModel.
func (q *query) bind(t *table, h blockhash.Hasher) (err error) {
	if q.serves, err = t.serving(q.req.Model); err != nil {
		return err
	}
	q.bar(t)
	if q.table == nil || !slices.Equal(q.table.sizes, t.sizes) {
		q.hash(t.sizes, h)
	}
	q.table, q.rival = t, -1
	n := len(t.endpoints)
	for _, s := range []*[]int32{&q.both, &q.digest, &q.all, &q.loose} {
		*s = slices.Grow((*s)[:0], n)[:n]
		clear(*s)
	}
	return nil
}

// bar notes which endpoints the request must not have.
func (q *query) bar(t *table) {
	q.avoid = nil
	if q.req.Only == nil && len(q.req.Avoid) == 0 {
		return
	}
	n := len(t.endpoints)
	q.barred = slices.Grow(q.barred[:0], n)[:n]
	q.avoid = q.barred
	for i := range q.avoid {
		q.avoid[i] = q.req.Only != nil
	}
	at := 0
	for _, address := range q.req.Only {
		if at == n || t.endpoints[at].host.address != address { // as it does not in a list that is sorted as the table
			first, known := t.byAddress[address]
			if !known {
				continue
			}
			at = first
		}
		for ; at < n && t.endpoints[at].host.address == address; at++ {
			q.avoid[at] = false
		}
	}
	for _, id := range q.req.Avoid {
		if i := slices.IndexFunc(t.endpoints, func(e *endpoint) bool { return e.public.ID == id }); i >= 0 {
			q.avoid[i] = true
		}
	}
}

// hash computes, or takes over, the chain of the prompt for each block size.
func (q *query) hash(sizes []int, h blockhash.Hasher) {
	for len(q.chains) < len(sizes) {
		q.chains = append(q.chains, nil)
	}
	q.chains = q.chains[:len(sizes)]
	limit := math.MaxInt // tokens before the first item that is not one
	for _, e := range q.req.Extras {
		if e.Kind == blockhash.Multimodal || e.Kind == blockhash.PromptEmbeds {
			limit = min(limit, max(0, int(e.Offset)))
		}
	}
	tokens := q.req.TokenIDs[:min(len(q.req.TokenIDs), limit)]
	root := h.Root(q.req.Extras...)
	for i, size := range sizes {
		ready := slices.IndexFunc(q.req.Chains, func(c blockhash.Chain) bool { return c.Fits(h, root, size) })
		if ready < 0 {
			q.chains[i] = h.AppendChain(q.chains[i][:0], root, tokens, size)
			continue
		}
		// A copy: queries outlive their Pick in recent, and it costs a hundredth of hashing.
		hashes := q.req.Chains[ready].Hashes
		q.chains[i] = append(q.chains[i][:0], hashes[:min(len(hashes), limit/size)]...)
	}
}

// lookup says what a match must look at besides digests.
type lookup struct {
	speculation bool // marks of requests just bound
	bare        bool // and those of endpoints without a usable digest
	gaps        bool // some digests may have holes
}

// match looks up what each endpoint has of the prompt. It takes no lock and allocates nothing once q is warm.
func (q *query) match(now time.Time, l lookup) {
	t := q.table
	q.matched, q.heard = now, 0
	for i := range t.groups {
		g := &t.groups[i]
		n := g.matrix.Columns()
		q.columns, q.columns2 = grown(q.columns, n), grown(q.columns2, n)
		var careful []uint64
		if l.gaps {
			careful = q.carefulOf(t, g)
		}
		if l.speculation {
			q.matcher.MatchBoth(g.matrix, g.marks, q.chains[g.size], g.want, careful, q.columns, q.columns2)
		} else {
			q.matcher.Match(g.matrix, q.chains[g.size], g.want, careful, q.columns2)
			copy(q.columns, q.columns2[:n])
		}
		for _, m := range g.members {
			q.both[m.endpoint], q.digest[m.endpoint] = q.columns[m.column], q.columns2[m.column]
		}
	}
	for i := range t.tiers {
		g := &t.tiers[i]
		q.columns = grown(q.columns, g.matrix.Columns())
		q.matcher.Match(g.matrix, q.chains[g.size], g.want, nil, q.columns)
		for _, m := range g.members {
			q.all[m.endpoint] = q.columns[m.column]
		}
	}
	if !l.speculation || !l.bare {
		return
	}
	for i := range t.bare {
		g := &t.bare[i]
		n := t.bareMarks.Columns()
		q.columns, q.columns2 = grown(q.columns, n), grown(q.columns2, n)
		q.matcher.MatchBoth(t.blank, t.bareMarks, q.chains[g.size], g.want, nil, q.columns, q.columns2)
		for _, m := range g.members {
			q.loose[m.endpoint] = q.columns[m.column]
		}
	}
}

// carefulOf returns the columns of a group whose digest may have holes just now.
func (q *query) carefulOf(t *table, g *group) []uint64 {
	q.careful = slices.Grow(q.careful[:0], len(g.want))[:len(g.want)]
	clear(q.careful)
	for _, m := range g.members {
		if gapOpen(t.slots[m.endpoint].live) {
			q.careful[m.column/64] |= 1 << (m.column % 64)
		}
	}
	return q.careful
}

func grown(s []int32, n int) []int32 { return slices.Grow(s[:0], n)[:n] }

// bound tells a waiting query that other's blocks are now marked on an endpoint: it matches there at least what the two
// prompts share. Chains of one prefix are equal up to where they part.
func (q *query) bound(other *query, endpoint int) {
	if q.table != other.table {
		return // q is matched anew before it is priced
	}
	s := &q.table.slots[endpoint]
	a, b := q.chains[s.size], other.chains[s.size]
	n := min(len(a), len(b))
	if n == 0 || a[0] != b[0] {
		return
	}
	low, high := 1, n // a[:low] == b[:low]
	for low < high {
		if mid := (low + high + 1) / 2; a[mid-1] == b[mid-1] {
			low = mid
		} else {
			high = mid - 1
		}
	}
	shared := int32(low)
	q.both[endpoint] = max(q.both[endpoint], shared)
	q.loose[endpoint] = max(q.loose[endpoint], shared)
	if q.rival >= 0 && q.cachedBlocks(endpoint) > q.cachedBlocks(q.home) && q.may(endpoint) {
		q.home = endpoint
	}
}
