// Package gossiptest is networks in memory for tests: Net carries directed messages
// between pure state machines in virtual time and replays exactly from its seed;
// TransportNetwork carries memberlist.
package gossiptest

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// Conditions is how datagrams fare. Streams (reliable messages) take the delay
// twice, arrive once and in any order, and are lost only where there is no path.
type Conditions struct {
	Loss      float64       // share of datagrams lost, 0 to 1
	Duplicate float64       // share of datagrams that arrive twice
	Delay     time.Duration // one way
	Jitter    time.Duration // added to Delay, uniform in [0, Jitter): reorders
}

// Message is one that arrives.
type Message struct {
	From, To uint64
	Packet   []byte
}

// Net carries messages between nodes known by their hashes, in virtual time. Not
// safe for concurrent use.
type Net struct {
	Conditions Conditions // may be changed at any time
	now        time.Time
	rng        *rand.Rand
	queue      flights
	sent       uint64
	cut        map[[2]uint64]bool
}

// NewNet returns a network without messages, at the given time.
func NewNet(seed uint64, start time.Time, c Conditions) *Net {
	return &Net{Conditions: c, now: start, rng: rand.New(rand.NewPCG(seed, 0x6e6574)), cut: make(map[[2]uint64]bool)}
}

// Now returns the virtual time.
func (n *Net) Now() time.Time { return n.now }

// Cut breaks or mends the path from one node to another, this direction only.
func (n *Net) Cut(from, to uint64, broken bool) { n.cut[[2]uint64{from, to}] = broken }

// Send puts a packet on its way. The network keeps the slice.
func (n *Net) Send(from, to uint64, packet []byte, reliable bool) {
	if n.cut[[2]uint64{from, to}] {
		return
	}
	if reliable {
		n.launch(2*n.delay(), Message{from, to, packet})
		return
	}
	if n.rng.Float64() >= n.Conditions.Loss {
		n.launch(n.delay(), Message{from, to, packet})
	}
	if n.rng.Float64() < n.Conditions.Duplicate {
		n.launch(n.delay(), Message{from, to, packet})
	}
}

func (n *Net) delay() time.Duration {
	d := n.Conditions.Delay
	if n.Conditions.Jitter > 0 {
		d += time.Duration(n.rng.Int64N(int64(n.Conditions.Jitter)))
	}
	return d
}

func (n *Net) launch(after time.Duration, m Message) {
	n.sent++
	heap.Push(&n.queue, flight{at: n.now.Add(after), order: n.sent, message: m})
}

// Advance lets time pass and delivers what arrives, in order of arrival. deliver
// may send.
func (n *Net) Advance(d time.Duration, deliver func(Message)) {
	end := n.now.Add(d)
	for len(n.queue) > 0 && !n.queue[0].at.After(end) {
		f := heap.Pop(&n.queue).(flight)
		n.now = f.at
		if m := f.message; !n.cut[[2]uint64{m.From, m.To}] {
			deliver(m)
		}
	}
	n.now = end
}

type flight struct {
	at      time.Time
	order   uint64
	message Message
}

// flights is a heap by time of arrival.
type flights []flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	if !f[i].at.Equal(f[j].at) {
		return f[i].at.Before(f[j].at)
	}
	return f[i].order < f[j].order
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}
