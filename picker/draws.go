package picker

import (
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/picker/score"
)

// draws are random numbers by a seed: the nth is the same each time. Safe for concurrent use. (A generator of math/rand would
// need a lock, and the lock of a Picker is taken too late.)
type draws struct {
	seed uint64
	n    atomic.Uint64
}

func (d *draws) next() uint64 { return score.Mix(d.seed + d.n.Add(1)*0x9e3779b97f4a7c15) }

// upTo returns a duration from 0 up to and with limit.
func (d *draws) upTo(limit time.Duration) time.Duration {
	return time.Duration(d.next() % (uint64(max(0, limit)) + 1))
}
