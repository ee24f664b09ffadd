package match

import (
	"sync"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/bloom"
	"github.com/grapevine-llm/grapevine/picker/score"
	"github.com/grapevine-llm/grapevine/test/indexworkload"
)

// loaded is workload W in a matrix, with and without holes.
type loaded struct {
	*indexworkload.Workload
	matrix, holed *bloom.Matrix
	holes         map[indexworkload.Residency]int
	queries       []indexworkload.Query
	chains        [][]blockhash.Hash
}

// load makes the standard workload for 64 or 1,000 pods, once each, with 8 filter bits a block.
var load = map[int]func() *loaded{
	64:   sync.OnceValue(func() *loaded { return loadWorkload(64) }),
	1000: sync.OnceValue(func() *loaded { return loadWorkload(1000) }),
}

func loadWorkload(pods int) *loaded {
	w := indexworkload.New(indexworkload.Standard(pods))
	l := &loaded{Workload: w, queries: w.Queries(1000)}
	for _, q := range l.queries {
		l.chains = append(l.chains, hashes(q.Chain))
	}
	_, l.holes = w.Holes()
	g := bloom.GeometryFor(w.Capacity, 8)
	l.matrix, l.holed = bloom.NewMatrix(g, pods), bloom.NewMatrix(g, pods)
	filter := bloom.NewCounting(g)
	for pod := range pods {
		filter.Reset()
		for _, e := range w.PodEvents(pod) {
			for _, b := range e.Blocks {
				filter.Add(blockhash.Hash(b.Seq))
			}
		}
		setColumn(l.matrix, pod, filter)
		// An agent leaves out what lies behind a hole.
		for d := range w.Documents {
			if at, ok := l.holes[indexworkload.Residency{Document: d, Pod: pod}]; ok {
				for _, b := range w.Document(d, w.Depth[d][pod])[at:] {
					filter.Remove(blockhash.Hash(b.Seq))
				}
			}
		}
		setColumn(l.holed, pod, filter)
	}
	return l
}

func setColumn(m *bloom.Matrix, col int, f *bloom.Counting) {
	for bucket, word := range f.Words() {
		m.SetBits(col, uint32(bucket), word)
	}
}

func hashes(blocks []indexworkload.Block) []blockhash.Hash {
	out := make([]blockhash.Hash, len(blocks))
	for i, b := range blocks {
		out[i] = blockhash.Hash(b.Seq)
	}
	return out
}

// TestWorkload reports how often answers and picks are wrong, and bounds it.
func TestWorkload(t *testing.T) {
	for _, pods := range []int{64, 1000} {
		if pods > 64 && (testing.Short() || raceEnabled) { // a minute under the race detector, and nothing runs at once
			continue
		}
		l := load[pods]()
		for _, c := range []struct {
			name   string
			matrix *bloom.Matrix
			truth  func(q indexworkload.Query, pod int) int
		}{
			{"whole", l.matrix, l.Match},
			{"holes", l.holed, func(q indexworkload.Query, pod int) int { return l.MatchWithHoles(q, pod, l.holes) }},
		} {
			var x Matcher
			out := make([]int32, c.matrix.Columns())
			over, under, far, picks, lost := 0, 0, 0, 0, 0
			for i, q := range l.queries {
				x.Match(c.matrix, l.chains[i], nil, nil, out)
				best, chosen := 0, 0
				for pod := range pods {
					truth := c.truth(q, pod)
					best = max(best, truth)
					switch got := int(out[pod]); {
					case got < truth:
						under++
					case got > truth:
						over++
						if got > truth+3 {
							far++
						}
					}
					if out[pod] > out[chosen] {
						chosen = pod
					}
				}
				if truth := c.truth(q, chosen); truth != best {
					picks++
					lost += best - truth
				}
			}
			answers := len(l.queries) * pods
			t.Logf("%d pods, %s: of %d answers %d over (%.2f %%), %d of them by more than 3 blocks, %d under; %d of %d picks wrong, costing %d blocks",
				pods, c.name, answers, over, 100*float64(over)/float64(answers), far, under, picks, len(l.queries), lost)
			if under != 0 {
				t.Errorf("%d answers are too low", under)
			}
			if float64(over) > 0.05*float64(answers) {
				t.Errorf("%d of %d answers are too high", over, answers)
			}
			if float64(picks) > 0.003*float64(len(l.queries)) {
				t.Errorf("%d of %d picks are wrong", picks, len(l.queries))
			}
			held := float64(pods * l.Capacity)
			if n := float64(c.matrix.Geometry().Bytes()*c.matrix.Columns()) / held; n > 2 {
				t.Errorf("%.2f bytes a block and endpoint, want at most 2", n)
			}
		}
	}
}

// walkAll is the linear walk over all columns, for comparison.
func walkAll(m *bloom.Matrix, chain []blockhash.Hash, out []int32) {
	for word := range m.WordsPerRow() {
		left := ^uint64(0)
		for i, h := range chain {
			held := left & m.Test(h, word)
			scatter(out[64*word:][:64], left&^held, int32(i))
			if left = held; left == 0 {
				break
			}
		}
		scatter(out[64*word:][:64], left, int32(len(chain)))
	}
}

func BenchmarkMatch2000x64(b *testing.B)   { benchmark(b, 64) }
func BenchmarkMatch2000x1000(b *testing.B) { benchmark(b, 1000) }

// benchmark times one query against all pods, with another query each time. The linear walk over the same matrix, in the
// same run, is the yardstick on a machine that others use too: "of-walk" is the share of its time.
func benchmark(b *testing.B, pods int) {
	l := load[pods]()
	var walk time.Duration
	out := make([]int32, l.matrix.Columns())
	for range 3 { // the first one warms up
		from := time.Now()
		for _, chain := range l.chains {
			walkAll(l.matrix, chain, out)
		}
		walk = time.Since(from) / time.Duration(len(l.chains))
	}
	for _, c := range l.ways() {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				c.match(l.chains[i])
				if i++; i == len(l.chains) {
					i = 0
				}
			}
			perQuery := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			b.ReportMetric(perQuery/float64(walk.Nanoseconds()), "of-walk")
			b.ReportMetric(float64(l.matrix.Geometry().Bytes()*l.matrix.Columns())/float64(pods*l.Capacity), "B/block-endpoint")
		})
	}
}

// way is one thing that is done with a query.
type way struct {
	name  string
	match func(chain []blockhash.Hash)
}

// ways are all that is measured: with and without holes, marks, and the prices of all endpoints with the best of them.
func (l *loaded) ways() []way {
	s := speculate(l)
	x := new(Matcher)
	out, digest := make([]int32, l.matrix.Columns()), make([]int32, l.matrix.Columns())
	price := l.pricing(out)
	return []way{
		{"whole", func(chain []blockhash.Hash) { x.Match(l.matrix, chain, nil, nil, out) }},
		{"holes", func(chain []blockhash.Hash) { x.Match(l.holed, chain, nil, nil, out) }},
		{"speculation", func(chain []blockhash.Hash) { x.MatchBoth(l.matrix, s, chain, nil, nil, out, digest) }},
		{"speculation and holes", func(chain []blockhash.Hash) { x.MatchBoth(l.holed, s, chain, nil, nil, out, digest) }},
		{"score", func([]blockhash.Hash) { price() }},
		{"speculation and score", func(chain []blockhash.Hash) {
			x.MatchBoth(l.matrix, s, chain, nil, nil, out, digest)
			price()
		}},
		{"speculation, holes and score", func(chain []blockhash.Hash) {
			x.MatchBoth(l.holed, s, chain, nil, nil, out, digest)
			price()
		}},
	}
}

// pricing returns a function that prices all pods, some of them busy, by their matches, and chooses.
func (l *loaded) pricing(matched []int32) func() (best int) {
	params := score.Default()
	pods, candidates := make([]score.Endpoint, l.Pods), make([]score.Candidate, l.Pods)
	for i := range pods {
		pods[i] = score.Endpoint{
			Key: uint64(i), BlockSize: 16, Trust: 1, Blocks: 24_000, Free: 2000, Cached: 20_000, Running: i % 7, Outstanding: i % 3,
			Queue: float64(i % 5 * 20), VictimIdle: 20_000, DecodeStep: 18, DecodePerToken: 85e-6, MeanPrefill: 200, MeanOutput: 200,
			Prefill: score.Model{Overhead: 20, PerToken: 0.0886, Quadratic: 0.83e-6},
		}
		params.Prepare(&pods[i])
	}
	return func() int {
		r := score.Request{PromptTokens: 16 * l.Length, OutputTokens: 200}
		for i := range pods {
			pods[i].Matched = int(matched[i])
			params.Price(&candidates[i], &r, &pods[i], i)
		}
		return params.Best(candidates, 1, score.Any)
	}
}

// TestWaysAllocateNothing holds for all that the benchmarks do.
func TestWaysAllocateNothing(t *testing.T) {
	l := load[64]()
	for _, c := range l.ways() {
		pass := func() {
			for _, chain := range l.chains {
				c.match(chain)
			}
		}
		pass() // grows the scratch
		if n := testing.AllocsPerRun(2, pass); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", c.name, n)
		}
	}
}

// speculate marks two whole queries on each pod: as many blocks as the marks are sized for.
func speculate(l *loaded) *Speculation {
	now := time.Unix(1000, 0)
	s := NewSpeculation(2*l.Length, l.Pods, 10*time.Second)
	for pod := range l.Pods {
		s.Mark(now, pod, l.chains[2*pod%len(l.chains)], 0, now.Add(5*time.Second))
		s.Mark(now, pod, l.chains[(2*pod+1)%len(l.chains)], 0, now.Add(15*time.Second))
	}
	return s
}

// TestWorkloadWithSpeculation checks answers with marks against those without: the deeper of digest and marks.
func TestWorkloadWithSpeculation(t *testing.T) {
	l := load[64]()
	s := speculate(l)
	var x Matcher
	out, digest, alone := make([]int32, 64), make([]int32, 64), make([]int32, 64)
	over := 0
	for i, chain := range l.chains {
		x.MatchBoth(l.holed, s, chain, nil, nil, out, digest)
		x.Match(l.holed, chain, nil, nil, alone)
		for pod := range l.Pods {
			if digest[pod] != alone[pod] {
				t.Fatalf("query %d, pod %d: %d in the digest, %d without speculation", i, pod, digest[pod], alone[pod])
			}
			want := digest[pod]
			for _, q := range []int{2 * pod, 2*pod + 1} {
				want = max(want, common(chain, l.chains[q]))
			}
			if out[pod] < want {
				t.Fatalf("query %d, pod %d: got %d, want %d", i, pod, out[pod], want)
			}
			if out[pod] > want {
				over++
			}
		}
	}
	t.Logf("%d of %d answers too high by false marks", over, 64*len(l.chains))
	if over > 64*len(l.chains)/50 {
		t.Errorf("%d answers are too high by false marks", over)
	}
}

// common returns the number of leading blocks that two chains share.
func common(a, b []blockhash.Hash) (n int32) {
	for int(n) < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
