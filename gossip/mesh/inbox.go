package mesh

import (
	"sync"
	"sync/atomic"
)

// inbox takes messages and membership changes from memberlist's goroutines
// without ever blocking them. Messages are bounded: when full the oldest goes,
// since a newer tick is worth more. Membership changes are kept per node name,
// the last one only, so that they are bounded by the number of nodes.
type inbox struct {
	wake    chan struct{} // capacity 1: something is there
	dropped atomic.Uint64

	mu      sync.Mutex // guards what follows
	ring    [][]byte
	head    int
	n       int
	changes map[string]change
	order   []string // names in changes, oldest first
	closed  bool
}

// change is a node that came (or changed) or went.
type change struct {
	member Member
	up     bool
}

func newInbox(depth int) *inbox {
	return &inbox{wake: make(chan struct{}, 1), ring: make([][]byte, depth), changes: make(map[string]change)}
}

// putMessage enqueues b, which the inbox owns from then on.
func (q *inbox) putMessage(b []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if q.n == len(q.ring) {
		q.head = (q.head + 1) % len(q.ring)
		q.n--
		q.dropped.Add(1)
	}
	q.ring[(q.head+q.n)%len(q.ring)] = b
	q.n++
	q.signal()
}

func (q *inbox) putChange(c change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if _, ok := q.changes[c.member.Name]; !ok {
		q.order = append(q.order, c.member.Name)
	}
	q.changes[c.member.Name] = c
	q.signal()
}

func (q *inbox) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// next takes one entry: changes first, so that a node is known before its
// messages. ok is false when the inbox is empty.
func (q *inbox) next() (c change, msg []byte, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.order) > 0 {
		name := q.order[0]
		q.order = q.order[1:]
		c = q.changes[name]
		delete(q.changes, name)
		return c, nil, true
	}
	if q.n == 0 {
		return change{}, nil, false
	}
	msg = q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	return change{}, msg, true
}

// close makes the inbox refuse everything that still comes.
func (q *inbox) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}
