package picker

import (
	"time"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/picker/match"
)

// marks owns the speculation of all endpoints over the life of several tables. Guarded by Picker.mu.
type marks struct {
	sets map[markSet]*match.Speculation // columns of a digest matrix

	loose   *match.Speculation // of endpoints without a digest
	columns int                // of loose, given out so far
	free    []int              // columns given back
	rotated time.Time
}

// markSet identifies the marks that belong to a matrix. A matrix that grew is a new one with the same columns, so it is
// its shape that counts.
type markSet struct {
	geometry  bloom.Geometry
	blockSize int
}

// of returns the marks for a matrix. Where it outgrew its marks they start anew: they only bridge seconds.
func (m *marks) of(matrix *bloom.Matrix, blockSize int, cfg *SpeculationConfig) *match.Speculation {
	if m.sets == nil {
		m.sets = map[markSet]*match.Speculation{}
	}
	key := markSet{matrix.Geometry(), blockSize}
	if s := m.sets[key]; s != nil && s.Columns() >= matrix.Columns() {
		return s
	}
	s := match.NewSpeculation(cfg.Blocks, matrix.Columns(), cfg.Life)
	m.sets[key] = s
	return s
}

// bare returns the marks for endpoints without a digest.
func (m *marks) bare(cfg *SpeculationConfig) *match.Speculation {
	if m.loose == nil || m.loose.Columns() < m.columns {
		m.loose = match.NewSpeculation(cfg.MemoryBlocks, m.columns, cfg.Memory)
	}
	return m.loose
}

// column gives out a column of the marks for endpoints without a digest.
func (m *marks) column() int {
	if n := len(m.free); n > 0 {
		c := m.free[n-1]
		m.free = m.free[:n-1]
		return c
	}
	m.columns++
	return m.columns - 1
}

func (m *marks) release(column int) {
	if m.loose != nil && column < m.loose.Columns() {
		m.loose.Forget(column)
	}
	m.free = append(m.free, column)
}

// keep drops the marks of matrices that no longer exist.
func (m *marks) keep(t *table) {
	for key, s := range m.sets {
		used := false
		for i := range t.groups {
			used = used || t.groups[i].marks == s
		}
		if !used {
			delete(m.sets, key)
		}
	}
}

// forget drops the marks of one endpoint.
func (m *marks) forget(t *table, index int) {
	if s := &t.slots[index]; s.group >= 0 {
		t.groups[s.group].marks.Forget(s.column)
	}
	t.bareMarks.Forget(t.endpoints[index].bare)
}

// forgetMarks drops all marks of one endpoint. Caller holds p.mu.
func (p *Picker) forgetMarks(t *table, index int) {
	p.marks.forget(t, index)
	p.hints.forget(t.endpoints[index])
}

// forgetHost drops the marks that nobody confirms of an engine that may have ended.
func (m *marks) forgetHost(h *host) {
	for _, e := range h.ranks {
		if m.loose != nil && e.bare < m.loose.Columns() {
			m.loose.Forget(e.bare)
		}
	}
}

// rotate expires marks; call it several times during a life.
func (m *marks) rotate(now time.Time, cfg *SpeculationConfig) {
	if now.Sub(m.rotated) < min(cfg.Life, cfg.Memory)/8 {
		return
	}
	m.rotated = now
	for _, s := range m.sets {
		s.Rotate(now)
	}
	if m.loose != nil {
		m.loose.Rotate(now)
	}
}
