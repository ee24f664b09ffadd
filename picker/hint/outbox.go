package hint

import (
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// maxPending bounds what an Outbox keeps, of each kind. Where nothing takes it away the oldest is dropped.
const maxPending = 4096

// Outbox collects what the other gateways are to be told.
type Outbox struct {
	node        uint64 // of this gateway
	number      uint64 // of the last packet
	id          uint64 // last one given
	since       time.Time
	held, said  int // requests held, now and as said last
	saidAt      time.Time
	due         bool // to be said again
	bound       []bound
	over, ended []uint64
	places      []int
	dropped     uint64
}

type bound struct {
	wire.HintBound
	at time.Time
}

// NewOutbox returns an empty outbox of the node with the given [wire.NodeHash].
func NewOutbox(node uint64) *Outbox { return &Outbox{node: node} }

// Bound adds a request that was just bound and returns the id by which Over and Ended know it. The outbox fills in ID, Age
// and Points; chain is the prompt's on that endpoint, and is only read before Bound returns.
func (o *Outbox) Bound(now time.Time, b wire.HintBound, chain []blockhash.Hash) (id uint64) {
	o.begin(now)
	o.id++
	b.ID = o.id
	o.places = AppendPlaces(o.places[:0], int(b.First), int(b.Count))
	b.Points = make([]uint32, len(o.places))
	for i, at := range o.places {
		b.Points[i] = uint32(chain[at])
	}
	o.bound = append(kept(o, o.bound), bound{b, now})
	return b.ID
}

// Over adds that the prefill of a request is over.
func (o *Outbox) Over(now time.Time, id uint64) {
	o.begin(now)
	o.over = append(kept(o, o.over), id)
}

// Ended adds that a request has ended.
func (o *Outbox) Ended(now time.Time, id uint64) {
	o.begin(now)
	o.ended = append(kept(o, o.ended), id)
}

// sayAgain is how often a gateway says that it holds requests; others believe it for heldFor.
const (
	sayAgain = 400 * time.Millisecond
	heldFor  = time.Second
)

// Held says how many requests wait at this gateway. Others are told whether some do, soon; the number comes along.
func (o *Outbox) Held(now time.Time, n int) {
	o.held = n
	if !o.due && ((n > 0) != (o.said > 0) || n > 0 && now.Sub(o.saidAt) >= sayAgain) {
		o.begin(now)
		o.due = true
	}
}

// kept makes room for one more.
func kept[T any](o *Outbox, list []T) []T {
	if len(list) < maxPending {
		return list
	}
	o.dropped++
	return append(list[:0], list[1:]...)
}

func (o *Outbox) begin(now time.Time) {
	if o.Empty() {
		o.since = now
	}
}

// Empty reports whether there is nothing to tell.
func (o *Outbox) Empty() bool { return len(o.bound)+len(o.over)+len(o.ended) == 0 && !o.due }

// Since returns when what is to be told began to gather; it means nothing if Empty.
func (o *Outbox) Since() time.Time { return o.since }

// Dropped returns how many entries were dropped because nobody took them away.
func (o *Outbox) Dropped() uint64 { return o.dropped }

// Take empties the outbox into packets, each to be sent to every other gateway.
func (o *Outbox) Take(now time.Time) [][]byte {
	var packets [][]byte
	for !o.Empty() {
		var h wire.Hint
		o.number++
		h.Number, h.Held = o.number, uint32(o.held)
		o.said, o.saidAt, o.due = o.held, now, false
		room := wire.MaxPacketBytes - wire.HintBytes
		for len(o.bound) > 0 {
			b := o.bound[0]
			if room -= wire.HintBoundBytes(len(b.Points)); room < 0 {
				break
			}
			b.Age = now.Sub(b.at)
			h.Bound = append(h.Bound, b.HintBound)
			o.bound = o.bound[1:]
		}
		h.Over = taken(&o.over, &room)
		h.Ended = taken(&o.ended, &room)
		packets = append(packets, h.Append(nil, o.node))
	}
	o.bound, o.over, o.ended = nil, nil, nil
	return packets
}

// taken takes as many ids off the list as there is room for.
func taken(list *[]uint64, room *int) []uint64 {
	n := min(len(*list), max(0, *room/wire.HintIDBytes))
	ids := (*list)[:n]
	*list = (*list)[n:]
	*room -= n * wire.HintIDBytes
	return ids
}
