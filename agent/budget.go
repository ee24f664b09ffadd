package agent

import (
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// burstPackets is how many packets may go to each gateway at once after a pause.
const burstPackets = 8

// budget bounds the bytes of ticks that an engine's node sends to all gateways
// together: a token bucket that may be overdrawn by one round. A core. gossip/digest
// bounds each stream as well, but does not know how many gateways there are.
type budget struct {
	perSec   float64
	gateways int
	tokens   float64
	at       time.Time
}

// readyAt is when the next round may go out; not after now if at once.
func (b *budget) readyAt(now time.Time) time.Time {
	b.refill(now)
	if b.tokens > 0 {
		return now
	}
	return now.Add(time.Duration(-b.tokens/b.perSec*float64(time.Second)) + time.Millisecond)
}

// spend takes a round of so many bytes for each of the gateways.
func (b *budget) spend(now time.Time, bytes, gateways int) {
	b.gateways = gateways
	b.refill(now)
	b.tokens -= float64(bytes * gateways)
}

func (b *budget) refill(now time.Time) {
	size := float64(burstPackets * wire.MaxPacketBytes * max(b.gateways, 1))
	if b.at.IsZero() {
		b.tokens = size
	} else if now.After(b.at) {
		b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*b.perSec, size)
	}
	b.at = now
}
