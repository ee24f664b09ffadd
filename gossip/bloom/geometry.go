// Package bloom keeps sets of block hashes as blocked Bloom filters.
//
// A filter is an array of buckets of 64 bits. A block hash picks one bucket and K bits in it (see [Geometry.Locate]), so
// a block costs one bucket and a change of one block is a mask on one word.
//
// [Counting] is the agent's side: one filter with counters, so that blocks can leave. [Matrix] is the gateway's side: the
// filters of many endpoints transposed, so that one block is looked up in 64 of them at a time. The package knows neither
// the wire format nor which endpoint has which column.
//
//	c := bloom.NewCounting(bloom.GeometryFor(20_000, 8))
//	bucket, set := c.Add(h)                  // in the agent: bits to publish
//	m := bloom.NewMatrix(c.Geometry(), 64)
//	m.SetBits(column, bucket, set)           // in the gateway
//	holders := m.Test(h, 0)                  // bit i: column i may hold h
package bloom

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Limits of a [Geometry].
const (
	MaxBuckets = 1 << 20 // 8 MiB a filter: 8 million blocks at 8 bits each
	MaxK       = 7       // K positions of 6 bits, apart from the hash bits that choose the bucket
)

// bucketBits is the size of a bucket: a word.
const bucketBits = 64

// defaultK is the number of bits a block sets. With 8 bits a block, 4 is the best in buckets of 64.
const defaultK = 4

// Geometry is the shape of a filter. Filters of one shape can share a [Matrix].
type Geometry struct {
	Buckets uint32 // words of 64 bits, 1..MaxBuckets
	K       uint8  // bits that a block sets in its bucket, 1..MaxK; some may coincide
}

// GeometryFor returns the shape for a number of blocks at the given filter bits a block, held within the limits. Never
// fewer bits are used than asked for, but up to an eighth more: the number of buckets is rounded up to the next of the
// eight steps that an octave has (16, 18, 20 ... 32, 36, 40 ... buckets; below 16 all). Engines of one fleet differ a
// little in their block counts, and filters must have one shape to share a [Matrix].
func GeometryFor(blocks int, bitsPerBlock float64) Geometry {
	words := math.Ceil(float64(blocks) * bitsPerBlock / bucketBits)
	if !(words >= 1) { // also NaN
		words = 1
	}
	n := uint32(min(words, MaxBuckets))
	step := uint32(1) << max(0, bits.Len32(n)-4)
	return Geometry{Buckets: (n + step - 1) / step * step, K: defaultK}
}

// Validate says what is wrong with a shape that came from outside.
func (g Geometry) Validate() error {
	if g.Buckets < 1 || g.Buckets > MaxBuckets {
		return fmt.Errorf("filter of %d buckets: want 1 to %d", g.Buckets, MaxBuckets)
	}
	if g.K < 1 || g.K > MaxK {
		return fmt.Errorf("filter with %d bits a block: want 1 to %d", g.K, MaxK)
	}
	return nil
}

// Bits returns the size of one filter in bits.
func (g Geometry) Bits() int { return int(g.Buckets) * bucketBits }

// Bytes returns the size of one filter in bytes.
func (g Geometry) Bytes() int { return int(g.Buckets) * bucketBits / 8 }

// Locate returns the bucket of h and the bits in it: the bucket from the high bits of the hash (the high word of
// h*Buckets), the K positions from its low bits, 6 each.
func (g Geometry) Locate(h blockhash.Hash) (bucket uint32, mask uint64) {
	for x, i := uint64(h), uint8(0); i < g.K; i++ {
		mask |= 1 << (x % bucketBits)
		x /= bucketBits
	}
	return g.bucket(h), mask
}

func (g Geometry) bucket(h blockhash.Hash) uint32 {
	hi, _ := bits.Mul64(uint64(h), uint64(g.Buckets))
	return uint32(hi)
}

// FPRate returns the chance, in [0,1], that a filter of this shape claims a block that is not among the given number of
// blocks it holds. Buckets fill unevenly, so it is the mean over a Poisson distribution of blocks in a bucket
// (Putze, Sanders, Singler: Cache-, Hash- and Space-Efficient Bloom Filters, 2007, section 3).
func FPRate(g Geometry, blocks int) float64 {
	if blocks <= 0 || g.Buckets == 0 {
		return 0
	}
	mean := float64(blocks) / float64(g.Buckets)
	k, spread := float64(g.K), 10*math.Sqrt(mean)+10
	sum := 0.0
	for j := math.Max(0, math.Floor(mean-spread)); j <= mean+spread; j++ {
		logGamma, _ := math.Lgamma(j + 1)
		weight := math.Exp(j*math.Log(mean) - mean - logGamma)
		set := 1 - math.Pow(1-1.0/bucketBits, k*j)
		sum += weight * math.Pow(set, k)
	}
	return sum
}
