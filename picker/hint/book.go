package hint

import (
	"slices"
	"time"
)

// What a Book keeps at most: gateways, and requests of each. Those beyond are not taken in, and counted.
const (
	MaxGateways = 256
	MaxRequests = 4096 // of each
)

// silence is after what time a gateway of which no request is known is forgotten.
const silence = time.Minute

// Book keeps the requests of other gateways, each with a value of the caller's. Requests are known by the gateway's
// [wire.NodeHash] and its own id.
type Book[V any] struct {
	gateways map[uint64]*gateway[V]
	stats    Stats
}

type gateway[V any] struct {
	number   uint64 // highest of its packets
	heard    time.Time
	held     int
	requests map[uint64]entry[V]
}

type entry[V any] struct {
	value   V
	expires time.Time
	gone    bool // has ended: kept so that a packet that comes twice, or late, doesn't revive it
}

// Stats counts what a Book has seen.
type Stats struct {
	Lost    uint64 `json:"lost"`    // packets whose number never came
	Expired uint64 `json:"expired"` // requests of which no end was heard in time
	Refused uint64 `json:"refused"` // requests not taken in, since there were too many
}

// Stats returns the counts so far.
func (b *Book[V]) Stats() Stats { return b.stats }

// Gateways returns how many gateways have told something.
func (b *Book[V]) Gateways() int { return len(b.gateways) }

// Before counts the gateways heard of lately whose turn, drawn by turn from their node hash, comes before own, and those of them
// that hold requests.
func (b *Book[V]) Before(now time.Time, own uint64, turn func(node uint64) uint64) (all, holding int) {
	mine := turn(own)
	for node, g := range b.gateways {
		if now.Sub(g.heard) < heldFor && turn(node) < mine {
			all++
			if g.held > 0 {
				holding++
			}
		}
	}
	return all, holding
}

// Held returns how many requests the gateways heard of lately hold.
func (b *Book[V]) Held(now time.Time) int {
	held := 0
	for _, g := range b.gateways {
		if now.Sub(g.heard) < heldFor {
			held += g.held
		}
	}
	return held
}

// Hear notes that a packet of a gateway has come at now, with its number and how many requests it holds. It reports false for a
// gateway that is one too many: its packet is not to be used.
func (b *Book[V]) Hear(now time.Time, node, number uint64, held int) bool {
	g := b.gateways[node]
	if g == nil {
		if len(b.gateways) >= MaxGateways {
			b.stats.Refused++
			return false
		}
		if b.gateways == nil {
			b.gateways = map[uint64]*gateway[V]{}
		}
		g = &gateway[V]{number: number, requests: map[uint64]entry[V]{}}
		b.gateways[node] = g
	}
	g.heard, g.held = now, held
	switch {
	case number > g.number:
		b.stats.Lost += number - g.number - 1
		g.number = number
	case number < g.number && b.stats.Lost > 0:
		b.stats.Lost-- // late, not lost
	}
	return true
}

// Add takes in a request of a gateway that was heard. It reports false if the request is known already, or one too many.
func (b *Book[V]) Add(node, id uint64, value V, expires time.Time) bool {
	g := b.gateways[node]
	if g == nil {
		return false
	}
	if _, known := g.requests[id]; known {
		return false
	}
	if len(g.requests) >= MaxRequests {
		b.stats.Refused++
		return false
	}
	g.requests[id] = entry[V]{value: value, expires: expires}
	return true
}

// Knows reports whether Add would refuse a request because it is known.
func (b *Book[V]) Knows(node, id uint64) bool {
	g := b.gateways[node]
	if g == nil {
		return false
	}
	_, known := g.requests[id]
	return known
}

// Get returns the value of a request that has not ended.
func (b *Book[V]) Get(node, id uint64) (value V, ok bool) {
	g := b.gateways[node]
	if g == nil {
		return value, false
	}
	e, ok := g.requests[id]
	return e.value, ok && !e.gone
}

// End takes a request as ended and returns its value, if it had not ended. The book remembers until expires that there was
// such a request.
func (b *Book[V]) End(node, id uint64, expires time.Time) (value V, ok bool) {
	g := b.gateways[node]
	if g == nil {
		return value, false
	}
	e, known := g.requests[id]
	if known && e.gone || !known && len(g.requests) >= MaxRequests {
		return value, false
	}
	var zero V
	g.requests[id] = entry[V]{value: zero, expires: expires, gone: true}
	return e.value, known
}

// Expire takes out the requests whose time is over, but for those that over says no of, and appends the values of those that
// had not ended, in the order of gateway and id. It forgets gateways that have long been silent.
func (b *Book[V]) Expire(dst []V, now time.Time, over func(V) bool) []V {
	for _, node := range sortedKeys(b.gateways) {
		g := b.gateways[node]
		var due []uint64
		for id, e := range g.requests {
			if !now.Before(e.expires) {
				due = append(due, id)
			}
		}
		slices.Sort(due)
		for _, id := range due {
			if e := g.requests[id]; !e.gone {
				if !over(e.value) {
					continue
				}
				dst = append(dst, e.value)
				b.stats.Expired++
			}
			delete(g.requests, id)
		}
		if len(g.requests) == 0 && now.Sub(g.heard) >= silence {
			delete(b.gateways, node)
		}
	}
	return dst
}

// Leave forgets a gateway and appends the values of its requests that had not ended, in the order of their ids.
func (b *Book[V]) Leave(dst []V, node uint64) []V {
	g := b.gateways[node]
	if g == nil {
		return dst
	}
	for _, id := range sortedKeys(g.requests) {
		if e := g.requests[id]; !e.gone {
			dst = append(dst, e.value)
		}
	}
	delete(b.gateways, node)
	return dst
}

func sortedKeys[V any](m map[uint64]V) []uint64 {
	keys := make([]uint64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
