package bloom

import (
	"math/bits"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Counters have 4 bits, 16 in a word. One that reaches its maximum stays there, since it no longer knows its count.
const (
	counterBits     = 4
	counterMax      = 1<<counterBits - 1
	countersPerWord = 64 / counterBits
	countersWords   = bucketBits / countersPerWord // words of counters of one bucket
)

// Counting is a filter that blocks can leave again. It is for one goroutine.
type Counting struct {
	geometry Geometry
	words    []uint64 // the filter: a bit is set where its counter is not zero
	counters []uint64
	stuck    int
}

// NewCounting returns an empty filter; it panics if g is not valid.
func NewCounting(g Geometry) *Counting {
	mustBeValid(g)
	return &Counting{
		geometry: g,
		words:    make([]uint64, g.Buckets),
		counters: make([]uint64, int(g.Buckets)*countersWords),
	}
}

// Geometry returns the filter's shape.
func (c *Counting) Geometry() Geometry { return c.geometry }

// Words returns the filter's bits, one word per bucket: a view that follows later changes and must not be written.
func (c *Counting) Words() []uint64 { return c.words }

// Stuck returns how many counters are saturated. Their bits stay set for ever, so a filter with many wants a rebuild.
func (c *Counting) Stuck() int { return c.stuck }

// Reset empties the filter.
func (c *Counting) Reset() {
	clear(c.words)
	clear(c.counters)
	c.stuck = 0
}

// Add counts h in and returns its bucket and the bits that became set.
func (c *Counting) Add(h blockhash.Hash) (bucket uint32, set uint64) {
	bucket, mask := c.geometry.Locate(h)
	for m := mask; m != 0; m &= m - 1 {
		word, shift := c.counter(bucket, bits.TrailingZeros64(m))
		switch *word >> shift & counterMax {
		case counterMax:
			continue
		case counterMax - 1:
			c.stuck++
		}
		*word += 1 << shift
	}
	set = mask &^ c.words[bucket]
	c.words[bucket] |= set
	return bucket, set
}

// Remove undoes one Add of h and returns its bucket and the bits that became clear. What was never added leaves other
// blocks' counters too low; that is for the caller to avoid.
func (c *Counting) Remove(h blockhash.Hash) (bucket uint32, cleared uint64) {
	bucket, mask := c.geometry.Locate(h)
	for m := mask; m != 0; m &= m - 1 {
		bit := bits.TrailingZeros64(m)
		word, shift := c.counter(bucket, bit)
		switch *word >> shift & counterMax {
		case 0, counterMax:
			continue
		case 1:
			cleared |= 1 << bit
		}
		*word -= 1 << shift
	}
	c.words[bucket] &^= cleared
	return bucket, cleared
}

// counter returns the word that holds the counter of a bit, and its place in it.
func (c *Counting) counter(bucket uint32, bit int) (word *uint64, shift int) {
	return &c.counters[int(bucket)*countersWords+bit/countersPerWord], bit % countersPerWord * counterBits
}

func mustBeValid(g Geometry) {
	if err := g.Validate(); err != nil {
		panic("bloom: " + err.Error())
	}
}
