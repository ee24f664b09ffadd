package bloom

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestMatrixAgainstFilters keeps one filter a column beside the matrix and compares every way to read.
func TestMatrixAgainstFilters(t *testing.T) {
	for _, columns := range []int{1, 64, 65, 200} {
		r := newRand(uint64(columns))
		g := Geometry{Buckets: 40, K: uint8(1 + r.IntN(MaxK))}
		m := NewMatrix(g, columns)
		filters := make([]*Counting, m.Columns())
		for col := range filters {
			filters[col] = NewCounting(g)
		}
		blocks := hashes(r, 300)
		for range 4000 {
			col, h := r.IntN(len(filters)), blocks[r.IntN(len(blocks))]
			if r.IntN(3) == 0 {
				b, cleared := filters[col].Remove(h)
				m.ClearBits(col, b, cleared)
			} else {
				b, set := filters[col].Add(h)
				m.SetBits(col, b, set)
			}
		}
		compare(t, m, filters)

		for _, h := range blocks {
			b, mask := g.Locate(h)
			for col, f := range filters {
				want := f.Words()[b]&mask == mask
				if m.Has(col, h) != want || m.Test(h, col/64)>>(col%64)&1 == 1 != want {
					t.Fatalf("column %d, block %x: want %v", col, h, want)
				}
			}
		}

		// Whole words, columns and blocks of columns.
		for b := range g.Buckets {
			w := r.Uint64()
			m.SetWord(3, b, w)
			filters[3].words[b] = w
		}
		m.ClearColumn(5)
		filters[5].Reset()
		compare(t, m, filters)

		wider := NewMatrix(g, columns+64)
		wider.CopyColumns(m)
		for range 64 {
			filters = append(filters, NewCounting(g))
		}
		compare(t, wider, filters)
		wider.ClearColumns(0)
		for col := range 64 {
			filters[col].Reset()
		}
		compare(t, wider, filters)
	}
}

func compare(t *testing.T, m *Matrix, filters []*Counting) {
	t.Helper()
	var got []uint64
	for col, f := range filters {
		got = m.Column(col, got[:0])
		if d := cmp.Diff(f.Words(), got); d != "" {
			t.Fatalf("column %d of %d (-want +got):\n%s", col, m.Columns(), d)
		}
		from, to := len(got)/3, len(got)/2
		if d := cmp.Diff(f.Words()[from:to], m.Words(col, from, to, nil), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("column %d, words %d to %d (-want +got):\n%s", col, from, to, d)
		}
	}
}

func TestMatrixColumnsAreApart(t *testing.T) {
	m := NewMatrix(Geometry{Buckets: 3, K: 4}, 100)
	if m.Columns() != 128 || m.WordsPerRow() != 2 {
		t.Fatalf("%d columns, %d words", m.Columns(), m.WordsPerRow())
	}
	for _, col := range []int{-1, 128} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("column %d of 128 is accepted", col)
				}
			}()
			m.Or(col, 1)
		}()
	}
	if slices.Max(m.rows) != 0 {
		t.Error("a wrong column left bits")
	}
}

// TestMatrixUnderConcurrency has one writer, speculating writers and readers at work at once: what stays held is found all
// the time, and afterwards the bits are as if the work had been done in turn.
func TestMatrixUnderConcurrency(t *testing.T) {
	g := GeometryFor(1000, 8)
	m, want := NewMatrix(g, 64), NewCounting(g)
	r := newRand(1)
	kept, passing, speculated := hashes(r, 300), hashes(r, 300), hashes(r, 200)
	for _, h := range kept {
		b, set := want.Add(h)
		m.SetBits(7, b, set)
	}
	var writers, readers sync.WaitGroup
	writers.Go(func() {
		c := NewCounting(g) // column 7 without speculation
		for _, h := range kept {
			c.Add(h)
		}
		for range 20 {
			for _, h := range passing {
				b, set := c.Add(h)
				m.SetBits(7, b, set)
			}
			for _, h := range passing {
				b, cleared := c.Remove(h)
				m.ClearBits(7, b, cleared)
			}
		}
	})
	for i := range 2 {
		writers.Go(func() {
			for _, h := range speculated {
				m.Or(8+i, h)
			}
		})
	}
	stop := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if h := kept[i%len(kept)]; !m.Has(7, h) {
					t.Errorf("block %x is held and not found", h)
					return
				}
				m.Test(passing[i%len(passing)], 0)
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if d := cmp.Diff(want.Words(), m.Column(7, nil)); d != "" {
		t.Errorf("column after all writes (-want +got):\n%s", d)
	}
	for i := range 2 {
		for _, h := range speculated {
			if !m.Has(8+i, h) {
				t.Errorf("speculated block %x is lost", h)
			}
		}
	}
}

func BenchmarkCounting(b *testing.B) {
	c, hs := NewCounting(GeometryFor(20000, 8)), hashes(newRand(1), 20000)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h := hs[i%len(hs)]
		c.Add(h)
		c.Remove(h)
	}
}

func BenchmarkMatrixTest(b *testing.B) {
	m, hs := NewMatrix(GeometryFor(20000, 8), 64), hashes(newRand(1), 20000)
	var sum uint64
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		sum += m.Test(hs[i%len(hs)], 0)
	}
	_ = sum
}

func BenchmarkMatrixSetWord(b *testing.B) {
	m := NewMatrix(GeometryFor(20000, 8), 1000)
	word := uint64(0x123456789abcdef)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.SetWord(7, uint32(i%2500), word)
		word = word<<1 | word>>63
	}
}
