package view

import (
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Problems that leave a stream on the load rung: Stream.Problem.
const (
	problemInfo      = "no info yet"
	ProblemEpoch     = "info of another epoch" // for a moment, as an agent or its engine starts
	problemBlockSize = "block size unknown"
	problemSeed      = "seed fingerprint differs"
	problemPool      = "other pool"
	problemMemory    = "matrix memory limit reached"
	problemDigest    = "no digest"
)

// shape is what streams must have in common to share a matrix.
type shape struct {
	geometry  bloom.Geometry
	blockSize uint32
}

func (s shape) bytes(columns int) int { return s.geometry.Bits() * columns / 8 }

// table is a matrix and which of its columns are free.
type table struct {
	matrix *bloom.Matrix
	free   []int // taken from the end
	used   int
}

// column is a stream's place in a table, with what is known of each segment.
type column struct {
	table   *table // nil: none
	shape   shape
	index   int
	floors  []uint64 // by segment: tick that it was last true at as a whole
	wanted  []bool   // by segment: to be fetched
	missing int      // how many are wanted
}

func (c *column) want(i int) {
	if !c.wanted[i] {
		c.wanted[i] = true
		c.missing++
	}
}

func (c *column) got(i int, tick uint64) {
	c.floors[i] = tick
	if c.wanted[i] {
		c.wanted[i] = false
		c.missing--
	}
}

func (c *column) empty() {
	if c.table == nil {
		return
	}
	c.table.matrix.ClearColumn(c.index)
	clear(c.floors)
	clear(c.wanted)
	c.missing = 0
}

// fit gives a stream the columns that its INFO asks for, and names what forbids it.
func (v *View) fit(s *stream) {
	shapes, problem := v.shapes(s)
	for i := range s.columns {
		c := &s.columns[i]
		switch want := shapes[i]; {
		case c.shape == want:
			continue
		case want.geometry.Buckets == 0:
			v.release(c)
		case c.table != nil && c.shape.geometry == want.geometry: // another block size
			words := c.table.matrix.Column(c.index, nil)
			floors, wanted, missing := c.floors, c.wanted, c.missing
			v.release(c)
			if !v.take(c, want) {
				problem = problemMemory
				continue
			}
			for b, w := range words {
				c.table.matrix.SetWord(c.index, uint32(b), w)
			}
			c.floors, c.wanted, c.missing = floors, wanted, missing
		default:
			had := c.table != nil
			v.release(c)
			if !v.take(c, want) {
				problem = problemMemory
				continue
			}
			if had { // within an epoch: what was known is of the old geometry
				s.lost = true
			}
			for _, k := range s.kept {
				v.assign(s, k, &segmentRange{tier: wire.Tier(i), last: len(c.floors)})
			}
			if s.keptBase > 0 {
				s.lost = true
			}
		}
		v.dirty = true
	}
	if problem == problemMemory {
		for i := range s.columns {
			v.release(&s.columns[i])
		}
	}
	if problem != s.problem {
		s.problem = problem
		v.dirty = true
		if problem != "" && !s.blind() {
			v.count(func(st *Stats) { st.Problems[problem]++ })
		}
	}
	if problem != "" && !s.blind() {
		s.lost = true
	}
}

// shapes returns the shapes that a stream's columns should have.
func (v *View) shapes(s *stream) (shapes [wire.Tiers]shape, problem string) {
	e := v.endpoints[s.key.Endpoint]
	if e == nil {
		return shapes, problemInfo
	}
	switch in := e.info; {
	case v.cfg.Pool != "" && in.Pool != v.cfg.Pool:
		return shapes, problemPool
	case in.SeedFingerprint != v.cfg.SeedFingerprint:
		return shapes, problemSeed
	}
	for _, r := range e.info.Ranks {
		switch {
		case r.Rank != s.key.Rank:
			continue
		case r.Epoch != s.epoch:
			return shapes, ProblemEpoch
		case r.GPU.Buckets == 0:
			return shapes, problemDigest
		case e.info.BlockSize == 0:
			return shapes, problemBlockSize
		}
		shapes[wire.TierGPU] = shape{r.GPU, e.info.BlockSize}
		if r.All.Buckets > 0 {
			shapes[wire.TierAll] = shape{r.All, e.info.BlockSize}
		}
		return shapes, ""
	}
	return shapes, ProblemEpoch
}

// take gives c an empty column of a table of the given shape, which it makes or
// doubles if need be; false if memory forbids.
func (v *View) take(c *column, sh shape) bool {
	t := v.tables[sh]
	if t == nil || len(t.free) == 0 {
		columns := 64
		if t != nil {
			columns = 2 * t.matrix.Columns()
		}
		total := sh.bytes(columns)
		for other, o := range v.tables {
			if other != sh {
				total += other.bytes(o.matrix.Columns())
			}
		}
		if total > v.cfg.MaxMatrixBytes {
			return false
		}
		m, known := bloom.NewMatrix(sh.geometry, columns), 0
		if t == nil {
			t = &table{}
			v.tables[sh] = t
		} else {
			known = t.matrix.Columns()
			m.CopyColumns(t.matrix)
		}
		t.matrix = m
		for i := columns - 1; i >= known; i-- {
			t.free = append(t.free, i)
		}
		v.dirty, v.urgent = true, v.urgent || known > 0
	}
	*c = column{table: t, shape: sh, index: t.free[len(t.free)-1]}
	t.free = t.free[:len(t.free)-1]
	t.used++
	n := wire.Segments(sh.geometry)
	c.floors, c.wanted = make([]uint64, n), make([]bool, n)
	return true
}

// release empties and frees c's column.
func (v *View) release(c *column) {
	t := c.table
	if t == nil {
		return
	}
	v.dirty = true
	if t.used--; t.used == 0 {
		delete(v.tables, c.shape)
	} else {
		t.matrix.ClearColumn(c.index)
		t.free = append(t.free, c.index)
	}
	*c = column{}
}
