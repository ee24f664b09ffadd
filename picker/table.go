package picker

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/gossip/view"
	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/picker/match"
)

// table is everything about the pool that changes only when endpoints, models or digests come and go. But for lanes, advanced,
// open and dirty it is immutable once published; readers need no lock.
type table struct {
	endpoints []*endpoint
	slots     []slot          // one per endpoint
	lanes     []lane          // one per endpoint; guarded by Picker.mu
	advanced  time.Time       // to which the lanes are brought up; guarded by Picker.mu
	open      []int           // endpoints without a queue then; guarded by Picker.mu
	dirty     []atomic.Uint64 // one bit per endpoint: a tick has come; set by the view's writer
	groups    []group
	tiers     []tier
	bare      []bareGroup
	bareMarks *match.Speculation // columns: endpoint.bare
	blank     *bloom.Matrix      // no bits: matched together with bareMarks it gives the marks alone
	byKey     map[wire.Key]int   // index of the endpoint
	byAddress map[string]int     // index of a host's first endpoint; the others follow
	sizes     []int              // distinct block sizes; queries have one chain for each

	models     map[string][]bool   // by model: which endpoints serve it, or may
	pools      map[string][]string // by name: models that endpoints there are known to serve, adapters aside
	unknown    []bool              // models not known
	anyUnknown bool
	known      []string // models, sorted

	reporting int            // endpoints that have an agent
	snapshot  *view.Snapshot // that it was built from; nil: none
}

// slot is one endpoint's place in the table.
type slot struct {
	key       wire.Key
	live      *liveView  // nil: no agent
	info      *wire.Info // nil: no agent
	blockSize int
	size      int    // index in sizes
	group     int    // index in groups, -1: no digest
	column    int    // in the group's matrix
	problem   string // why an agent's digest is not used
}

// member maps a column to an endpoint.
type member struct{ column, endpoint int }

// group is the digests of one matrix, and the marks of requests just bound to its endpoints.
type group struct {
	matrix  *bloom.Matrix
	marks   *match.Speculation
	size    int // index in sizes
	members []member
	want    []uint64
}

// tier is the digests over all tiers of one matrix.
type tier struct {
	matrix  *bloom.Matrix
	size    int
	members []member
	want    []uint64
}

// bareGroup is the endpoints of one block size, for those of them that have no usable digest: marks only.
type bareGroup struct {
	size    int
	members []member
	want    []uint64
}

func setBit(words []uint64, i int) []uint64 {
	for len(words) <= i/64 {
		words = append(words, 0)
	}
	words[i/64] |= 1 << (i % 64)
	return words
}

// padded returns words filled up to n.
func padded(words []uint64, n int) []uint64 {
	for len(words) < n {
		words = append(words, 0)
	}
	return words
}

// stream pairs an endpoint with what the view has of it.
type stream struct {
	endpoint *endpoint
	view     *view.Stream // nil: no agent
}

// rebuild publishes a new table from the pool and the view. Caller holds p.mu.
func (p *Picker) rebuild(now time.Time, snap *view.Snapshot) {
	t := &table{models: map[string][]bool{}, pools: map[string][]string{}, byKey: map[wire.Key]int{}, byAddress: map[string]int{}, snapshot: snap}
	for _, s := range p.streams(snap) {
		p.addSlot(t, s)
	}
	t.bareMarks = p.marks.bare(&p.cfg.Speculation)
	t.blank = bloom.NewMatrix(bloom.GeometryFor(1, 8), t.bareMarks.Columns())
	for i := range t.groups {
		g := &t.groups[i]
		g.want = padded(g.want, g.matrix.WordsPerRow())
		g.marks = p.marks.of(g.matrix, t.sizes[g.size], &p.cfg.Speculation)
	}
	for i := range t.tiers {
		t.tiers[i].want = padded(t.tiers[i].want, t.tiers[i].matrix.WordsPerRow())
	}
	p.marks.keep(t)
	t.finish()
	t.lanes, t.dirty = make([]lane, len(t.endpoints)), make([]atomic.Uint64, (len(t.endpoints)+63)/64)
	for i, e := range t.endpoints {
		e.lane, e.index = &t.lanes[i], i
	}
	p.table.Store(t)
	p.refreshAll(now)
}

// streams lists the endpoints of the pool, each with its stream, in a stable order. Hosts that left are dropped.
func (p *Picker) streams(snap *view.Snapshot) []stream {
	byHost := map[string][]*view.Stream{}
	if snap != nil {
		for i := range snap.Streams {
			s := &snap.Streams[i]
			if s.Info == nil || s.Info.Pool != p.cfg.Pool || !hasRank(s.Info, s.Key.Rank) {
				continue
			}
			address, link, err := parseEndpoint(s.Info.Address)
			if err != nil {
				continue // the view counts bad INFOs
			}
			byHost[address] = append(byHost[address], s)
			if p.cfg.Discover && p.hosts[address] == nil {
				p.hosts[address] = &host{address: address, url: link}
			}
		}
	}
	var out []stream
	for address, h := range p.hosts {
		ss := byHost[address]
		if !p.static[address] && (!p.cfg.Discover || len(ss) == 0) {
			p.removeHost(address)
			continue
		}
		slices.SortFunc(ss, func(a, b *view.Stream) int { return int(a.Key.Rank) - int(b.Key.Rank) })
		out = append(out, p.ranks(h, ss)...)
	}
	slices.SortFunc(out, func(a, b stream) int {
		if c := strings.Compare(a.endpoint.host.address, b.endpoint.host.address); c != 0 {
			return c
		}
		return a.endpoint.public.Rank - b.endpoint.public.Rank
	})
	return out
}

// hasRank reports whether an engine has a rank. The stream of one that it had before a restart is kept for a while: requests
// to it would fail.
func hasRank(info *wire.Info, rank uint16) bool {
	return len(info.Ranks) == 0 || slices.ContainsFunc(info.Ranks, func(r wire.RankInfo) bool { return r.Rank == rank })
}

// ranks makes or finds the endpoints of a host: one per stream, or one if there is none.
func (p *Picker) ranks(h *host, ss []*view.Stream) []stream {
	total := max(1, len(ss))
	if len(ss) > 0 {
		total = max(total, len(ss[0].Info.Ranks))
	}
	var out []stream
	for i := range max(1, len(ss)) {
		var s *view.Stream
		rank := 0
		if len(ss) > 0 {
			s = ss[i]
			rank = int(s.Key.Rank)
		}
		id := h.address
		if total > 1 {
			id = fmt.Sprintf("%s#%d", h.address, rank)
		}
		public := Endpoint{ID: id, URL: h.url, Rank: rank, Ranks: total}
		j := slices.IndexFunc(h.ranks, func(e *endpoint) bool { return e.public == public })
		if j < 0 {
			h.ranks = append(h.ranks, p.newEndpoint(h, public))
			j = len(h.ranks) - 1
		}
		out = append(out, stream{h.ranks[j], s})
	}
	h.ranks = slices.DeleteFunc(h.ranks, func(e *endpoint) bool {
		left := !slices.ContainsFunc(out, func(s stream) bool { return s.endpoint == e })
		if left {
			p.dropEndpoint(e)
		}
		return left
	})
	return out
}

// removeHost takes a host out of the pool.
func (p *Picker) removeHost(address string) {
	if h := p.hosts[address]; h != nil {
		for _, e := range h.ranks {
			p.dropEndpoint(e)
		}
		delete(p.hosts, address)
	}
}

func (p *Picker) dropEndpoint(e *endpoint) {
	p.marks.release(e.bare)
	p.log.Info("endpoint left the pool", keyEndpoint, e.public.ID)
}

func (p *Picker) addSlot(t *table, st stream) {
	index := len(t.endpoints)
	e := st.endpoint
	s := slot{blockSize: p.cfg.BlockSize, group: -1}
	s.key = wire.Key{Endpoint: wire.EndpointKey(p.cfg.Pool, e.host.address), Rank: uint16(e.public.Rank)}
	models := e.host.models
	base := models // without adapters
	if v := st.view; v != nil {
		t.reporting++
		s.info = v.Info
		s.live = v.Live
		s.key = v.Key
		if v.Info.BlockSize > 0 {
			s.blockSize = int(v.Info.BlockSize)
		}
		for _, m := range v.Info.Models {
			models = append(models[:len(models):len(models)], m.Name)
			if m.Parent == "" {
				base = append(base[:len(base):len(base)], m.Name)
			}
		}
		s.problem = v.Problem
	}
	s.size = slices.Index(t.sizes, s.blockSize)
	if s.size < 0 {
		s.size = len(t.sizes)
		t.sizes = append(t.sizes, s.blockSize)
	}
	if st.view != nil && st.view.GPU.Matrix != nil && !deaf(s.info) {
		s.group, s.column = t.addDigest(st.view.GPU, s.size, index), st.view.GPU.Index
		if all := st.view.All; all.Matrix != nil {
			t.addTier(all, s.size, index)
		}
	}
	t.addBare(s.size, e.bare, index)
	for _, m := range models {
		t.serves(m, index)
	}
	for _, name := range e.host.pools {
		t.pools[name] = merged(t.pools[name], base)
	}
	t.unknown = append(t.unknown, len(models) == 0)
	if s.problem != e.problem {
		e.problem = s.problem
		switch s.problem {
		case "":
			p.log.Info("digest can be used", keyEndpoint, e.public.ID)
		case view.ProblemEpoch:
			p.log.Debug("digest can't be used yet", keyEndpoint, e.public.ID, keyProblem, s.problem)
		default:
			p.log.Warn("digest can't be used", keyEndpoint, e.public.ID, keyProblem, s.problem)
		}
	}
	t.byKey[s.key] = index
	if _, known := t.byAddress[e.host.address]; !known {
		t.byAddress[e.host.address] = index
	}
	t.endpoints = append(t.endpoints, e)
	t.slots = append(t.slots, s)
}

// deaf reports whether an agent hears nothing of its engine's cache: its empty digest is no knowledge.
func deaf(info *wire.Info) bool { return info.KVEvents == "absent" || info.KVEvents == "silent" }

// clock returns the time to judge the age of digests by.
func (t *table) clock(now time.Time) time.Time {
	if t.snapshot == nil {
		return now
	}
	return t.snapshot.Clock(now)
}

func (t *table) addDigest(c view.Column, size, endpoint int) int {
	i := slices.IndexFunc(t.groups, func(g group) bool { return g.matrix == c.Matrix && g.size == size })
	if i < 0 {
		i = len(t.groups)
		t.groups = append(t.groups, group{matrix: c.Matrix, size: size})
	}
	g := &t.groups[i]
	g.members = append(g.members, member{c.Index, endpoint})
	g.want = setBit(g.want, c.Index)
	return i
}

func (t *table) addTier(c view.Column, size, endpoint int) {
	i := slices.IndexFunc(t.tiers, func(g tier) bool { return g.matrix == c.Matrix && g.size == size })
	if i < 0 {
		i = len(t.tiers)
		t.tiers = append(t.tiers, tier{matrix: c.Matrix, size: size})
	}
	g := &t.tiers[i]
	g.members = append(g.members, member{c.Index, endpoint})
	g.want = setBit(g.want, c.Index)
}

func (t *table) addBare(size, column, endpoint int) {
	i := slices.IndexFunc(t.bare, func(g bareGroup) bool { return g.size == size })
	if i < 0 {
		i = len(t.bare)
		t.bare = append(t.bare, bareGroup{size: size})
	}
	g := &t.bare[i]
	g.members = append(g.members, member{column, endpoint})
	g.want = setBit(g.want, column)
}

// finish completes what depends on all endpoints.
func (t *table) finish() {
	n := len(t.endpoints)
	for i, e := range t.endpoints {
		if !t.unknown[i] {
			continue
		}
		for _, name := range e.host.pools {
			for _, m := range t.pools[name] {
				t.serves(m, i)
				t.unknown[i] = false
			}
		}
	}
	t.anyUnknown = slices.Contains(t.unknown, true)
	for name, serves := range t.models {
		serves = padBools(serves, n)
		for i, unknown := range t.unknown {
			serves[i] = serves[i] || unknown && len(t.endpoints[i].host.pools) == 0
		}
		t.models[name] = serves
		t.known = append(t.known, name)
	}
	slices.Sort(t.known)
	for i := range t.bare {
		t.bare[i].want = padded(t.bare[i].want, t.bareMarks.Columns()/64)
	}
}

// serves notes that an endpoint serves a model.
func (t *table) serves(model string, endpoint int) {
	s := padBools(t.models[model], endpoint+1)
	s[endpoint] = true
	t.models[model] = s
}

// merged is a with what only b has.
func merged(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

func padBools(b []bool, n int) []bool {
	for len(b) < n {
		b = append(b, false)
	}
	return b
}

// serving returns which endpoints serve a model, nil meaning all.
func (t *table) serving(model string) ([]bool, error) {
	if model == "" {
		return nil, nil
	}
	if serves, ok := t.models[model]; ok {
		return serves, nil
	}
	if t.anyUnknown || len(t.endpoints) == 0 { // an empty pool is another error
		return t.unknown, nil
	}
	return nil, ErrUnknownModel{Model: model, Known: t.known}
}
