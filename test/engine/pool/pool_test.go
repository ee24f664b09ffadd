package pool

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// step is one line of a recorded history of vLLM's own block pool (0.22).
type step struct {
	// First line: parameters.
	BlockSize int    `json:"block_size"`
	GPUBlocks int    `json:"gpu_blocks"`
	Seed      string `json:"seed"`

	Op     string
	ID     string
	Tokens []uint32
	LoRA   []any // name, number
	Salt   string
	OK     bool
	Hit    int            `json:"engine_hit_tokens"`
	Copies map[string]int `json:"resident_u64_copies"`
	Seq    *int
}

// replay runs a history; it returns the number of admits.
func replay(t *testing.T, name string) (admits int) {
	var p *Pool
	var h Hasher
	size := 0
	tables := map[string]*Table{}
	lines(t, name, func(line []byte) {
		var s step
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatal(err)
		}
		where := fmt.Sprintf("%s %s", s.Op, s.ID)
		switch s.Op {
		case "":
			p, h, size = New(Config{Blocks: s.GPUBlocks + 1, BlockSize: s.BlockSize, UncachedLast: true}), NewHasher(s.Seed, true), s.BlockSize
			return
		case "admit":
			x := Extras{Salt: s.Salt}
			if len(s.LoRA) == 2 {
				x.Adapter = &Adapter{Name: s.LoRA[0].(string), ID: int(s.LoRA[1].(float64))}
			}
			table := NewTable(h, s.Tokens, size, x)
			got, ok := p.Admit(table, 0, false)
			if !ok || !p.Fill(table, table.Len()) {
				t.Fatalf("%s: does not fit", where)
			}
			if got != s.Hit {
				t.Errorf("%s: %d tokens cached, engine had %d", where, got, s.Hit)
			}
			tables[s.ID] = table
			admits++
		case "grow":
			tables[s.ID].Append(s.Tokens...)
			if !p.Fill(tables[s.ID], tables[s.ID].Len()) {
				t.Fatalf("%s: does not fit", where)
			}
		case "finish":
			p.Release(tables[s.ID])
			delete(tables, s.ID)
		case "reset":
			if ok := p.Reset(); ok != s.OK {
				t.Errorf("%s: reset = %v, engine said %v", where, ok, s.OK)
			}
		default:
			t.Fatalf("unknown operation %q", s.Op)
		}
		if events := p.TakeEvents(); (len(events) > 0) != (s.Seq != nil) {
			t.Errorf("%s: %d events, engine published: %v", where, len(events), s.Seq != nil)
		}
		if s.Copies != nil {
			got := map[string]int{}
			for k, v := range p.Copies() {
				got[fmt.Sprintf("%016x", k)] = v
			}
			if d := cmp.Diff(s.Copies, got); d != "" {
				t.Errorf("%s: resident copies (-engine +pool):\n%s", where, d)
			}
		}
	})
	return admits
}

// TestEngineHistories replays the histories of vLLM's own pool: every hit and
// every resident copy must be equal.
func TestEngineHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/*-v0.*.jsonl.gz")
	if err != nil || len(files) != 8 {
		t.Fatalf("%d histories, %v", len(files), err)
	}
	total := 0
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".jsonl.gz"), func(t *testing.T) {
			total += replay(t, filepath.Base(f))
		})
	}
	if total != 1145 {
		t.Errorf("%d admits replayed, want 1145", total)
	}
}

// TestRules shows each rule of the package comment on its own.
func TestRules(t *testing.T) {
	h := NewHasher("", false)
	seq := func(first, n int) []uint32 {
		out := make([]uint32, n)
		for i := range out {
			out[i] = uint32(first + i)
		}
		return out
	}
	run := func(t *testing.T, p *Pool, tokens []uint32) int {
		t.Helper()
		x := NewTable(h, tokens, 4, Extras{})
		hit, ok := p.Admit(x, 0, false)
		if !ok || !p.Fill(x, x.Len()) {
			t.Fatal("does not fit")
		}
		p.Release(x)
		return hit
	}
	t.Run("last token is always computed", func(t *testing.T) {
		p := New(Config{Blocks: 20, BlockSize: 4})
		for n, want := range map[int]int{7: 4, 8: 4, 9: 8} {
			run(t, p, seq(0, 12))
			if got := run(t, p, seq(0, n)); got != want {
				t.Errorf("%d tokens hit %d, want %d", n, got, want)
			}
		}
	})
	t.Run("an exact multiple leaves a second copy", func(t *testing.T) {
		p := New(Config{Blocks: 20, BlockSize: 4})
		run(t, p, seq(0, 8))
		run(t, p, seq(0, 8))
		if p.Hashed() != 3 || len(p.Copies()) != 2 {
			t.Errorf("%d blocks of %d hashes, want 3 of 2", p.Hashed(), len(p.Copies()))
		}
	})
	t.Run("tail of the oldest goes first, removals precede stores", func(t *testing.T) {
		p := New(Config{Blocks: 5, BlockSize: 4})
		run(t, p, seq(0, 16))
		p.TakeEvents()
		run(t, p, seq(100, 4))
		ev := p.TakeEvents()
		if len(ev) != 2 || ev[0].Kind != Removed || ev[1].Kind != Stored {
			t.Fatalf("events %+v", ev)
		}
		if want := h.AppendChain(nil, seq(0, 16), 4, Extras{})[3]; ev[0].Hashes[0] != want {
			t.Error("not the last block was evicted")
		}
		if got := run(t, p, seq(0, 16)); got != 12 {
			t.Errorf("hit %d, want 12", got)
		}
	})
	t.Run("admission counts what others were promised", func(t *testing.T) {
		p := New(Config{Blocks: 11, BlockSize: 4})
		a := NewTable(h, seq(0, 8), 4, Extras{})
		if _, ok := p.Admit(a, 24, false); !ok { // 6 of 10 blocks
			t.Fatal("the first does not fit")
		}
		b := NewTable(h, seq(100, 17), 4, Extras{})
		if _, ok := p.Admit(b, 0, false); ok {
			t.Fatal("5 blocks were admitted although 4 are left")
		}
		p.Release(a)
		if _, ok := p.Admit(b, 0, false); !ok {
			t.Fatal("does not fit into an empty pool")
		}
	})
	t.Run("growth beyond the promise needs a free block", func(t *testing.T) {
		p := New(Config{Blocks: 4, BlockSize: 4})
		a, b := NewTable(h, seq(0, 4), 4, Extras{}), NewTable(h, seq(50, 8), 4, Extras{})
		p.Admit(a, 0, false)
		p.Admit(b, 0, false)
		if !p.Fill(a, 4) || !p.Fill(b, 4) {
			t.Fatal("prompts do not fit")
		}
		if a.Append(9); p.Fill(a, 5) {
			t.Error("took a block that was promised to another")
		}
		if !p.Fill(b, 8) {
			t.Error("a promise was broken")
		}
	})
	t.Run("a clear waits for the next batch", func(t *testing.T) {
		p := New(Config{Blocks: 9, BlockSize: 4})
		run(t, p, seq(0, 8))
		p.TakeEvents()
		if !p.Reset() {
			t.Fatal("refused")
		}
		run(t, p, seq(0, 8))
		ev := p.TakeEvents()
		if len(ev) != 2 || ev[0].Kind != Cleared || ev[1].Kind != Stored {
			t.Errorf("events %+v, want a clear and a store", ev)
		}
	})
	t.Run("prompt_logprobs reads nothing and stores again", func(t *testing.T) {
		p := New(Config{Blocks: 9, BlockSize: 4})
		run(t, p, seq(0, 8))
		x := NewTable(h, seq(0, 8), 4, Extras{})
		if hit, _ := p.Admit(x, 0, true); hit != 0 {
			t.Errorf("hit %d", hit)
		}
		p.Fill(x, 8)
		if p.Hashed() != 4 {
			t.Errorf("%d blocks, want 4", p.Hashed())
		}
	})
}

// TestEventsTellTheTruth: counting copies over the events gives the pool's own
// copies, whatever happens.
func TestEventsTellTheTruth(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	h := NewHasher("", false)
	p := New(Config{Blocks: 60, BlockSize: 4})
	var live []*Table
	count := map[uint64]int{}
	for range 5000 {
		switch op := rng.IntN(10); {
		case op < 4:
			tokens := make([]uint32, 1+rng.IntN(40))
			for i := range tokens {
				tokens[i] = uint32(rng.IntN(2))
			}
			x := NewTable(h, tokens, 4, Extras{})
			if _, ok := p.Admit(x, len(tokens)+rng.IntN(9), rng.IntN(9) == 0); ok {
				live = append(live, x)
			}
		case op < 8 && len(live) > 0:
			x := live[rng.IntN(len(live))]
			if x.Filled() == x.Len() {
				x.Append(uint32(rng.IntN(2)))
			}
			p.Fill(x, x.Filled()+1+rng.IntN(9))
		case op < 9 && len(live) > 0:
			i := rng.IntN(len(live))
			p.Release(live[i])
			live[i] = live[len(live)-1]
			live = live[:len(live)-1]
		case rng.IntN(20) == 0:
			p.Reset()
		}
		for _, ev := range p.TakeEvents() {
			switch ev.Kind {
			case Stored:
				if len(ev.Tokens) != len(ev.Hashes)*4 || len(ev.ExtraKeys) != len(ev.Hashes) {
					t.Fatalf("ragged event %+v", ev)
				}
				for _, d := range ev.Hashes {
					count[d.Low64()]++
				}
			case Removed:
				d := ev.Hashes[0].Low64()
				if count[d]--; count[d] == 0 {
					delete(count, d)
				}
			case Cleared:
				clear(count)
			}
		}
		if d := cmp.Diff(count, p.Copies()); d != "" {
			t.Fatalf("copies (-events +pool):\n%s", d)
		}
		if p.promised < 0 || p.promised > p.free.len {
			t.Fatalf("%d blocks promised, %d free", p.promised, p.free.len)
		}
	}
	for _, x := range live {
		p.Release(x)
	}
	if p.Used() != 0 || p.promised != 0 {
		t.Errorf("%d blocks leaked, %d promised", p.Used(), p.promised)
	}
}
