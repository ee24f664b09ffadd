package inspect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Chain asks how much of a prompt was cached at a point of the stream.
type Chain struct {
	ID        json.RawMessage `json:"id"` // anything, echoed
	TokenIDs  []uint32        `json:"token_ids"`
	CacheSalt string          `json:"cache_salt"`
	LoRAName  string          `json:"lora_name"`
	// AtSeq and AtLine name the point: after the first batch of that number, or after
	// that line of the capture, from 0; -1: before everything. Neither: at the end.
	AtSeq  *int64 `json:"at_seq"`
	AtLine *int64 `json:"at_line"`
}

// Answer tells it.
type Answer struct {
	ID            json.RawMessage `json:"id"`
	MatchedBlocks int             `json:"matched_blocks"`
	CachedTokens  int             `json:"cached_tokens"`
	Error         string          `json:"error,omitempty"`
}

// ReadChains reads chains, one JSON object a line, plain or gzip.
func ReadChains(r io.Reader) ([]Chain, error) {
	lines, err := scanLines(r)
	if err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	var out []Chain
	for n := 0; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var c Chain
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, chainError(n, err.Error())
		}
		if len(c.TokenIDs) == 0 {
			return nil, chainError(n, "no token_ids")
		}
		if c.AtSeq != nil && c.AtLine != nil {
			return nil, chainError(n, "at_seq and at_line together")
		}
		out = append(out, c)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	return out, nil
}

func chainError(line int, what string) error {
	return fmt.Errorf(`read chains, line %d: %s: each line must be {"id": ..., "token_ids": [1, 2, ...]} with cache_salt, lora_name and one of at_seq, at_line as needed`, line, what)
}

// Match answers a chain for the state as it stands: the leading full blocks that are
// held in any tier. The last token is always computed, so an n-token prompt hits at
// most (n-1)/block size blocks.
func (x *Inspector) Match(c Chain) Answer {
	a := Answer{ID: c.ID}
	size := x.set.BlockSize()
	if size == 0 || len(c.TokenIDs) == 0 {
		return a
	}
	var extras []blockhash.Extra
	if c.LoRAName != "" {
		extras = append(extras, blockhash.Extra{Kind: blockhash.LoRA, Value: c.LoRAName})
	}
	if c.CacheSalt != "" {
		extras = append(extras, blockhash.Extra{Kind: blockhash.CacheSalt, Value: c.CacheSalt})
	}
	chain := x.hasher.AppendChain(nil, x.hasher.Root(extras...), c.TokenIDs[:len(c.TokenIDs)-1], size)
	a.MatchedBlocks = x.set.Match(blockset.All, chain)
	a.CachedTokens = a.MatchedBlocks * size
	return a
}

// Chains answers chains while a stream goes by: ask it at the start, after each line,
// and at the end.
type Chains struct {
	list    []Chain
	answers []Answer
	done    []bool
	bySeq   map[int64][]int
	byLine  map[int64][]int
}

// NewChains returns the chains to answer; those at -1 are answered already.
func NewChains(list []Chain) *Chains {
	c := &Chains{list: list, answers: make([]Answer, len(list)), done: make([]bool, len(list)), bySeq: map[int64][]int{}, byLine: map[int64][]int{}}
	for i, q := range list {
		switch {
		case q.AtSeq != nil && *q.AtSeq < 0, q.AtLine != nil && *q.AtLine < 0:
			c.answers[i], c.done[i] = Answer{ID: q.ID}, true
		case q.AtSeq != nil:
			c.bySeq[*q.AtSeq] = append(c.bySeq[*q.AtSeq], i)
		case q.AtLine != nil:
			c.byLine[*q.AtLine] = append(c.byLine[*q.AtLine], i)
		}
	}
	return c
}

// After answers the chains of a line, and of a number if the line held a batch.
func (c *Chains) After(x *Inspector, line int, seq uint64, applied bool) {
	c.answer(x, c.byLine, int64(line))
	if applied {
		c.answer(x, c.bySeq, int64(seq))
	}
}

func (c *Chains) answer(x *Inspector, at map[int64][]int, key int64) {
	for _, i := range at[key] {
		c.answers[i], c.done[i] = x.Match(c.list[i]), true
	}
	delete(at, key)
}

// End answers the rest, in the order asked. Chains at a point that never came get an
// error.
func (c *Chains) End(x *Inspector) []Answer {
	for i, q := range c.list {
		switch {
		case c.done[i]:
		case q.AtSeq != nil:
			c.answers[i] = Answer{ID: q.ID, Error: fmt.Sprintf("no batch %d in the stream: ask for one that was seen", *q.AtSeq)}
		case q.AtLine != nil:
			c.answers[i] = Answer{ID: q.ID, Error: fmt.Sprintf("no line %d in the capture: lines count from 0", *q.AtLine)}
		default:
			c.answers[i] = x.Match(q)
		}
	}
	return c.answers
}
