// Package indexworkload makes workload W, on which prefix indexes are compared: which pod holds which blocks, the events
// that lead there, queries, and the right answers.
//
// Everything is a function of the seed, by arithmetic that another language can repeat; testdata has vectors. Every pod
// holds a system prefix that all contents share, the whole hot document, parts of some other documents, and private
// chains up to its capacity. A query is the first part of a document and then new blocks.
//
//	w := indexworkload.New(indexworkload.Standard(64))
//	for _, e := range w.PodEvents(0) { … }       // what pod 0 stores
//	for _, q := range w.Queries(1000) { … w.Match(q, pod) … }
//
// Block hashes stand for those that an index uses; nothing is hashed or encoded here.
package indexworkload

// Params are the sizes of a workload, in blocks unless they say otherwise.
type Params struct {
	Seed      uint64
	Pods      int // number of pods
	Documents int // number of documents; document 0 is the hot one
	Length    int // of a document and of a query
	System    int // of the system prefix
	Capacity  int // that each pod holds
	Private   int // own blocks of a private chain
	Batch     int // in one event, at most
}

// Standard returns the sizes that published figures use.
func Standard(pods int) Params {
	return Params{
		Seed: 1, Pods: pods, Documents: min(200, 3*pods),
		Length: 2000, System: 32, Capacity: 20000, Private: 400, Batch: 32,
	}
}

// Block is one block: Local stands for the hash of its own tokens, Seq for that of the whole prefix up to it.
type Block struct{ Local, Seq uint64 }

// Event says that a pod stored blocks after Parent, or removed blocks.
type Event struct {
	Pod       int
	Remove    bool
	HasParent bool   // false: the first block has no parent (or the event is a removal)
	Parent    uint64 // Seq of the block before the first
	Blocks    []Block
}

// Query asks for a chain: the first Cut blocks of a document, then blocks that nobody holds.
type Query struct {
	Document, Cut int
	Chain         []Block
}

// Workload is the residency of all pods. It is immutable and safe for concurrent use.
type Workload struct {
	Params
	Depth []map[int]int // by document: pod → number of leading blocks it holds
	Own   [][]int       // by pod: own blocks of each of its private chains
}

// Tags of the random streams.
const (
	streamResidency = 1 + iota
	streamQueries
	streamHoles
)

// New distributes the documents over the pods and fills the pods up.
func New(p Params) *Workload {
	w := &Workload{Params: p, Depth: make([]map[int]int, p.Documents), Own: make([][]int, p.Pods)}
	free := make([]int, p.Pods)
	w.Depth[0] = map[int]int{}
	for pod := range free {
		free[pod] = p.Capacity - p.Length
		w.Depth[0][pod] = p.Length
	}
	r := newStream(p.Seed, streamResidency)
	for d := 1; d < p.Documents; d++ {
		w.Depth[d] = map[int]int{}
		drawn := map[int]bool{}
		for n := min(1+r.below(8), p.Pods); len(drawn) < n; {
			pod := r.below(p.Pods)
			if drawn[pod] {
				continue
			}
			drawn[pod] = true
			if own := min(1+r.below(p.Length-p.System), free[pod]); own > 0 {
				free[pod] -= own
				w.Depth[d][pod] = p.System + own
			}
		}
	}
	for pod, n := range free {
		for ; n > 0; n -= p.Private {
			w.Own[pod] = append(w.Own[pod], min(p.Private, n))
		}
	}
	return w
}

// PodEvents returns what a pod sends to reach its residency: the hot document, the others in order, private chains.
func (w *Workload) PodEvents(pod int) []Event {
	out := w.appendStored(nil, pod, w.chain(documentID(0), w.Length), 0)
	for d := 1; d < w.Documents; d++ {
		if n := w.Depth[d][pod]; n > 0 {
			out = w.appendStored(out, pod, w.chain(documentID(d), n), w.System)
		}
	}
	for i, own := range w.Own[pod] {
		out = w.appendStored(out, pod, w.chain(privateID(pod, i), w.System+own), w.System)
	}
	return out
}

// Churn returns step s of an endless churn: pod s mod Pods drops its oldest private chain, last blocks first, and stores a
// new one of the same length. A pod without private chains does nothing.
func (w *Workload) Churn(s int) (out []Event) {
	pod, round := s%w.Pods, s/w.Pods
	kept := len(w.Own[pod])
	if kept == 0 {
		return nil
	}
	n := w.System + w.Own[pod][round%kept]
	old := w.chain(privateID(pod, round), n)
	for end := n; end > w.System; end -= w.Batch {
		out = append(out, Event{Pod: pod, Remove: true, Blocks: old[max(w.System, end-w.Batch):end]})
	}
	return w.appendStored(out, pod, w.chain(privateID(pod, round+kept), n), w.System)
}

// Queries returns the first n queries; about one in four is of the hot document.
func (w *Workload) Queries(n int) []Query {
	r, out := newStream(w.Seed, streamQueries), make([]Query, n)
	for i := range out {
		cold := min(1, r.below(4))
		d := cold * (1 + r.below(w.Documents-1))
		cut := r.below(w.Length + 1)
		head := w.chain(documentID(d), cut)
		out[i] = Query{Document: d, Cut: cut, Chain: w.extend(head, tailID(i), w.Length)}
	}
	return out
}

// Match is the right answer: how many leading blocks of the query a pod holds.
func (w *Workload) Match(q Query, pod int) int {
	return min(q.Cut, max(w.System, w.Depth[q.Document][pod]))
}

// Residency names what a pod holds of a document.
type Residency struct{ Document, Pod int }

// Holes is the variant with evictions out of the middle: about a quarter of all residencies lose one block behind the
// system prefix, what comes after it stays. It returns the events, one block each, and the position of each hole.
func (w *Workload) Holes() (events []Event, at map[Residency]int) {
	r, at := newStream(w.Seed, streamHoles), map[Residency]int{}
	for pod := range w.Pods {
		for d := range w.Documents {
			n := w.Depth[d][pod]
			if n == 0 || r.below(4) != 0 {
				continue
			}
			hole := w.System + r.below(n-w.System)
			at[Residency{d, pod}] = hole
			events = append(events, Event{Pod: pod, Remove: true, Blocks: w.chain(documentID(d), n)[hole : hole+1]})
		}
	}
	return events, at
}

// MatchWithHoles is the right answer once the events of [Workload.Holes] have happened.
func (w *Workload) MatchWithHoles(q Query, pod int, at map[Residency]int) int {
	n := w.Match(q, pod)
	if hole, ok := at[Residency{q.Document, pod}]; ok {
		n = min(n, hole)
	}
	return n
}

// Document returns the first n blocks of a document.
func (w *Workload) Document(d, n int) []Block { return w.chain(documentID(d), n) }

// Identities of contents; the upper half tells the kinds apart. Zero is the system prefix.
func documentID(d int) uint64     { return 1<<32 | uint64(d) }
func privateID(pod, n int) uint64 { return 2<<32 | uint64(pod<<16|n) }
func tailID(query int) uint64     { return 3<<32 | uint64(query) }
func isTail(id uint64) bool       { return id>>32 == 3 }

func (p *Params) chain(id uint64, n int) []Block { return p.extend(make([]Block, 0, n), id, n) }

// extend appends blocks of a content to c until it has n. Those in the system prefix are common to all but query tails.
func (p *Params) extend(c []Block, id uint64, n int) []Block {
	for i := len(c); i < n; i++ {
		of := id
		if i < p.System && !isTail(id) {
			of = 0
		}
		b := Block{Local: mix(mix(p.Seed^of) + uint64(i))}
		b.Seq = b.Local
		if i > 0 {
			b.Seq = mix(c[i-1].Seq ^ (b.Local<<17 | b.Local>>47))
		}
		c = append(c, b)
	}
	return c
}

// appendStored appends events that store c from block number from on.
func (p *Params) appendStored(out []Event, pod int, c []Block, from int) []Event {
	for ; from < len(c); from += p.Batch {
		e := Event{Pod: pod, Blocks: c[from:min(from+p.Batch, len(c))]}
		if from > 0 {
			e.HasParent, e.Parent = true, c[from-1].Seq
		}
		out = append(out, e)
	}
	return out
}

// mix is one step of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// stream is a source of random numbers, independent of those with other tags.
type stream struct{ state uint64 }

func newStream(seed, tag uint64) *stream { return &stream{mix(seed ^ mix(tag))} }

func (s *stream) below(n int) int {
	x := mix(s.state)
	s.state += 0x9E3779B97F4A7C15
	return int(x % uint64(n))
}
