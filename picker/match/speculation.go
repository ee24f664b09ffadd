package match

import (
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

// Speculative blocks are few, so they get more bits each: a false one makes Matcher look closer for nothing. Two of the
// bits are set: each is an atomic write while a request waits for its endpoint.
const (
	speculationBits = 16
	speculationK    = 2
)

// Marks live in generations, which expire as a whole: of three, two hold marks and one is empty for the next.
const generations = 3

// Speculation holds the blocks that endpoints will soon have, since a request with them was just bound there: one column
// an endpoint, with the column numbers of the digests' matrix. Blocks vanish by themselves some time later, when the
// digest has either confirmed them or never will.
//
// Mark, Has and matching may happen in any number of goroutines at once. Rotate and Forget are for one goroutine.
type Speculation struct {
	matrix *bloom.Matrix // generation g of word i is word generations*i+g of a row: side by side, mostly in one cache line
	words  int
	life   time.Duration
	origin atomic.Pointer[time.Time] // of the first Mark or Rotate; later times are counted from it
	period atomic.Int64              // the periods of length life since origin; marks expire with this one or the next
}

// NewSpeculation returns an empty Speculation. blocks is the number of blocks that are marked on one endpoint during
// life; more of them only mean more false positives. life bounds how long a mark is asked to live and must be positive.
func NewSpeculation(blocks, columns int, life time.Duration) *Speculation {
	if life <= 0 {
		panic("match: speculation without life")
	}
	words := max(1, (columns+63)/64)
	g := bloom.GeometryFor(blocks, speculationBits)
	g.K = speculationK
	return &Speculation{matrix: bloom.NewMatrix(g, generations*64*words), words: words, life: life}
}

// Columns returns the number of columns, a multiple of 64.
func (s *Speculation) Columns() int { return 64 * s.words }

// Mark says that column col will hold chain, all of it from the first block on. The marks stand until at least until or
// now + life, whichever is first, and at most two lives from now.
//
// known says how many leading blocks of the chain are marked already, as far as the caller can tell: 0 if it does not know.
// They are not marked again where that would change nothing. Who gives it must mark chains of that column from the prompt's
// first block on, always.
func (s *Speculation) Mark(now time.Time, col int, chain []blockhash.Hash, known int, until time.Time) {
	if uint(col) >= uint(s.Columns()) {
		panic("match: mark outside the columns")
	}
	base := s.period.Load()
	period := min(max(s.periodOf(until), base), base+1)
	if s.periodOf(now) > base {
		period = base + 1 // Rotate is late, and will drop what expires with base
	}
	generation := int(period % generations)
	// A block that was marked in this generation has those before it beside it.
	if known = min(known, len(chain)); known > 0 && s.marked(generation, col, chain[known-1]) {
		chain = chain[known:]
	}
	s.matrix.Or(column(generation, col), chain...)
}

// Forget drops all marks of a column, as when its engine has restarted. A Mark of the column at the same time may survive.
func (s *Speculation) Forget(col int) {
	for g := range generations {
		s.matrix.ClearColumn(column(g, col))
	}
}

// Rotate drops the marks whose time has passed. Call it several times during a life.
func (s *Speculation) Rotate(now time.Time) {
	period := s.periodOf(now)
	base := s.period.Load()
	if period <= base {
		return
	}
	// The generation of period+1 was that of an expired period. So was that of period, if a call was missed.
	if period > base+1 {
		s.clear(period)
	}
	s.clear(period + 1)
	s.period.Store(period)
}

func (s *Speculation) clear(period int64) {
	for word := range s.words {
		s.matrix.ClearColumns(wordOf(period, word))
	}
}

// wordOf returns the matrix's word for a word of columns in the generation of a period.
func wordOf(period int64, word int) int { return generations*word + int(period%generations) }

// column returns the matrix's column for a column in a generation.
func column(generation, col int) int { return 64*(generations*(col/64)+generation) + col%64 }

// periodOf returns the number of whole lives from the origin to t.
func (s *Speculation) periodOf(t time.Time) int64 {
	origin := s.origin.Load()
	if origin == nil {
		first := t
		s.origin.CompareAndSwap(nil, &first)
		origin = s.origin.Load()
	}
	return int64(max(0, t.Sub(*origin)) / s.life)
}

// Has reports whether h may be marked on a column.
func (s *Speculation) Has(col int, h blockhash.Hash) bool { return s.test(h, col/64)>>(col%64)&1 != 0 }

// marked reports whether h may be marked on a column in a generation.
func (s *Speculation) marked(generation, col int, h blockhash.Hash) bool {
	return s.matrix.Has(column(generation, col), h)
}

// test returns which of the columns of a word may have h marked.
func (s *Speculation) test(h blockhash.Hash, word int) uint64 {
	period := s.period.Load()
	return s.matrix.TestEither(h, wordOf(period, word), wordOf(period+1, word))
}

// allOf is [bloom.Matrix.AllOf] for marks.
func (s *Speculation) allOf(blocks []blockhash.Hash, word int, cols uint64) uint64 {
	period := s.period.Load()
	one, other := wordOf(period, word), wordOf(period+1, word)
	for i := len(blocks) - 1; i >= 0 && cols != 0; i-- {
		cols &= s.matrix.TestEither(blocks[i], one, other)
	}
	return cols
}
