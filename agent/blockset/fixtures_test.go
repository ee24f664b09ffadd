package blockset_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/agent/blockset/blocksettest"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

var hasher = blockhash.NewHasher(blockhash.DefaultSeed)

// mirror is a Sink that keeps what it is told and checks that every call is a change.
type mirror struct {
	t    testing.TB
	have [2]map[blockhash.Hash]bool
}

func newMirror(t testing.TB) *mirror {
	return &mirror{t, [2]map[blockhash.Hash]bool{{}, {}}}
}

func (m *mirror) Set(t blockset.Tier, h blockhash.Hash) {
	if m.have[t][h] {
		m.t.Errorf("tier %d: %x set twice", t, h)
	}
	m.have[t][h] = true
}

func (m *mirror) Clear(t blockset.Tier, h blockhash.Hash) {
	if !m.have[t][h] {
		m.t.Errorf("tier %d: %x cleared but not set", t, h)
	}
	delete(m.have[t], h)
}

// match is the number of leading blocks that the sink was told of.
func (m *mirror) match(t blockset.Tier, chain []blockhash.Hash) int {
	for i, h := range chain {
		if !m.have[t][h] {
			return i
		}
	}
	return len(chain)
}

func (m *mirror) reset() { m.have = [2]map[blockhash.Hash]bool{{}, {}} }

// engine is a Set behind a Feed with a mirror.
type engine struct {
	*blockset.Feed
	sink *mirror
	now  time.Time
}

func newEngine(t testing.TB, cfg blockset.Config, canReplay bool) *engine {
	sink := newMirror(t)
	cfg.Hasher = hasher
	e := &engine{sink: sink, now: time.Unix(1_764_430_000, 0)}
	e.Feed = &blockset.Feed{
		Set:       blockset.New(cfg, sink),
		Seq:       blockset.NewSequencer(blockset.SequencerConfig{CanReplay: canReplay}),
		Restarted: sink.reset,
		Lost:      func(seq uint64, err error) { t.Errorf("batch %d: %v", seq, err) },
	}
	return e
}

func (e *engine) live(seq uint64, payload []byte) blockset.Outcome {
	e.now = e.now.Add(10 * time.Millisecond)
	return e.Do(e.now, e.Seq.Live(seq, payload))
}

// hit predicts the cached tokens of a prompt and checks set and sink against each other.
func (e *engine) hit(t testing.TB, tokens []uint32, size int, extras []blockhash.Extra) int {
	t.Helper()
	chain := hasher.AppendChain(nil, hasher.Root(extras...), tokens, size)
	if most := (len(tokens) - 1) / size; len(chain) > most {
		chain = chain[:most]
	}
	got, sunk := e.Set.Match(blockset.GPU, chain), e.sink.match(blockset.GPU, chain)
	if got != sunk {
		t.Errorf("the set matches %d blocks, its sink %d", got, sunk)
	}
	return got * size
}

func copiesOf(s *blockset.Set) blocksettest.Copies { return maps.Collect(s.Copies(blockset.GPU)) }

// TestStreams: the prediction equals what the engine really reused, at every admit: by
// engine hash at all 1,145, by canonical hash at all but the one whose salt is in no
// event.
func TestStreams(t *testing.T) {
	streams, err := blocksettest.Streams()
	if err != nil {
		t.Fatal(err)
	}
	admits, byCanon := 0, 0
	for _, st := range streams {
		t.Run(st.Name, func(t *testing.T) {
			e := newEngine(t, blockset.Config{Blocks: st.Blocks, LoRANames: st.LoRANames()}, false)
			for i, step := range st.Steps {
				if step.Op == "admit" {
					admits++
					if got := engineHit(t, e.Set, &st, &step); got != step.HitTokens {
						t.Errorf("step %d: by engine hash %d cached tokens, the engine reused %d", i, got, step.HitTokens)
					}
					switch got := e.hit(t, step.Tokens, st.BlockSize, step.Extras()); {
					case got == step.HitTokens:
						byCanon++
					case !step.Unlabelled:
						t.Errorf("step %d: predicted %d cached tokens, the engine reused %d", i, got, step.HitTokens)
					}
				}
				if step.Payload != nil {
					e.live(*step.Seq, step.Payload)
				}
				if step.Resident != nil {
					if d := cmp.Diff(step.Resident, copiesOf(e.Set)); d != "" {
						t.Errorf("step %d: copies (-engine +set):\n%s", i, d)
					}
				}
			}
			if e.Set.Partial() || e.Set.Suspect() || e.Set.Stats().Conflicts > 0 {
				t.Errorf("partial %v, suspect %v, stats %+v, want a clean set", e.Set.Partial(), e.Set.Suspect(), e.Set.Stats())
			}
		})
	}
	if len(streams) != 8 || admits != 1145 || byCanon != 1144 {
		t.Errorf("saw %d streams, %d admits, %d right by canonical hash, want 8, 1145, 1144", len(streams), admits, byCanon)
	}
}

// engineHit predicts by the engine's own hashes, which no agent can compute without the
// engine's seed: the copies alone must be exact.
func engineHit(t testing.TB, s *blockset.Set, st *blocksettest.Stream, step *blocksettest.Step) int {
	t.Helper()
	held := copiesOf(s)
	parent, err := hex.DecodeString(st.NoneHash)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := range (len(step.Tokens) - 1) / st.BlockSize {
		var extras any
		var keys []string
		if step.LoRA != nil {
			keys = append(keys, step.LoRA.Name)
		}
		if step.Salt != "" && i == 0 {
			keys = append(keys, step.Salt)
		}
		if keys != nil {
			extras = keys
		}
		b, err := cbor.Marshal([]any{parent, step.Tokens[i*st.BlockSize : (i+1)*st.BlockSize], extras})
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		parent = sum[:]
		if held[binary.BigEndian.Uint64(sum[24:])] == 0 {
			break
		}
		n += st.BlockSize
	}
	return n
}

// TestCaptures: every prediction for a real server, and its final copies.
func TestCaptures(t *testing.T) {
	captures, err := blocksettest.Captures()
	if err != nil {
		t.Fatal(err)
	}
	predictions := 0
	for _, c := range captures {
		t.Run(c.Name, func(t *testing.T) {
			e := newEngine(t, blockset.Config{}, false)
			rest, last := c.Messages, int64(-1)
			next := func() {
				e.live(rest[0].Seq, rest[0].Payload)
				last, rest = int64(rest[0].Seq), rest[1:]
			}
			for _, r := range c.Requests {
				for last != r.SeqBefore && len(rest) > 0 {
					next()
				}
				want := r.Predicted
				if c.Name == "restart" && want == nil && r.Cached != nil {
					want = r.Cached // no prediction in the file after the restart
				}
				if want == nil {
					continue
				}
				predictions++
				got := e.hit(t, r.Tokens, c.BlockSize, r.Extras())
				if c.Name == "restart" && r.Label == "cold again" {
					continue // a silent restart: nothing told the reader yet
				}
				if got != *want {
					t.Errorf("%s: predicted %d cached tokens, want %d", r.Label, got, *want)
				}
				if r.Mismatch == "" && r.Cached != nil && got != *r.Cached {
					t.Errorf("%s: predicted %d cached tokens, the engine reported %d", r.Label, got, *r.Cached)
				}
			}
			for len(rest) > 0 {
				next()
			}
			if d := cmp.Diff(c.Final, copiesOf(e.Set)); d != "" {
				t.Errorf("final copies (-want +got):\n%s", d)
			}
		})
	}
	if len(captures) != 13 {
		t.Errorf("saw %d captures, want 13", len(captures))
	}
	t.Logf("%d predictions", predictions)
}
