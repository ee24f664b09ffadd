package proxy

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// retryBudget bounds retries to a share of the requests in progress, so that a sick pool is not
// hit twice by everybody. Safe for concurrent use.
type retryBudget struct {
	share             float64
	inFlight, retries atomic.Int64
}

// minRetries are allowed whatever the share, so that a quiet gateway can retry at all.
const minRetries = 1

func (b *retryBudget) begin() { b.inFlight.Add(1) }
func (b *retryBudget) end()   { b.inFlight.Add(-1) }

// take asks for one retry; done must be called when that retry has ended, if ok.
func (b *retryBudget) take() (ok bool) {
	limit := max(minRetries, int64(b.share*float64(b.inFlight.Load())))
	if b.share == 0 || b.retries.Add(1) > limit {
		if b.share != 0 {
			b.retries.Add(-1)
		}
		return false
	}
	return true
}

func (b *retryBudget) done() { b.retries.Add(-1) }

const (
	deathsToRefuse = 2
	refuseFor      = 10 * time.Minute
	maxDeathList   = 1024
)

// deathList remembers the bodies that were being computed when an engine died: one that
// preceded two deaths is probably what kills engines, and is refused for a while. Safe for concurrent use.
type deathList struct {
	hash maphash.Seed
	mu   sync.Mutex       // guards seen
	seen map[uint64]death // by hash of the body
}

func newDeathList() *deathList {
	return &deathList{hash: maphash.MakeSeed(), seen: map[uint64]death{}}
}

type death struct {
	count int
	last  time.Time
}

// add notes that an engine died while it computed this body.
func (d *deathList) add(now time.Time, body []byte) {
	key := maphash.Bytes(d.hash, body)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.seen) >= maxDeathList {
		for h, s := range d.seen {
			if now.Sub(s.last) > refuseFor {
				delete(d.seen, h)
			}
		}
	}
	if s, known := d.seen[key]; known || len(d.seen) < maxDeathList {
		d.seen[key] = death{s.count + 1, now}
	}
}

// refuses says whether this body is refused now, and for how much longer.
func (d *deathList) refuses(now time.Time, body []byte) (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.seen) == 0 { // nearly always: no body is hashed
		return 0, false
	}
	key := maphash.Bytes(d.hash, body)
	s, known := d.seen[key]
	if !known || s.count < deathsToRefuse {
		return 0, false
	}
	left := refuseFor - now.Sub(s.last)
	if left <= 0 {
		delete(d.seen, key)
		return 0, false
	}
	return left, true
}
