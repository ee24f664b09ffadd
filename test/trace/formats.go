package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
)

const (
	mooncakeBlock = 512             // tokens
	mooncakeTick  = 3 * time.Second // of the timestamps in the traces that were recorded, give or take a millisecond
	ccBlock       = 64
)

// record is a line of Mooncake's form and of ours, which adds what is optional: block_tokens (else 512, one size in a file),
// session and think_ms. Our times are exact.
type record struct {
	Timestamp    float64  `json:"timestamp"`     // ms
	InputLength  int      `json:"input_length"`  // tokens
	OutputLength int      `json:"output_length"` // tokens
	HashIDs      []uint64 `json:"hash_ids"`      // one a block; of the last, partial block too
	BlockTokens  int      `json:"block_tokens,omitempty"`
	Session      string   `json:"session,omitempty"`
	ThinkMs      float64  `json:"think_ms,omitempty"` // since the end of the session's call before
}

// jsonLines reads records. Mooncake's files: equal ids only where whole prefixes are equal.
type jsonLines struct {
	strict   bool // Mooncake's: blocks of 512, times perhaps in ticks
	last     float64
	distinct int // timestamps that differ from the one before
	lines    int
}

func (p *jsonLines) ticks() time.Duration {
	if p.strict && p.distinct > 1 && 2*p.distinct < p.lines { // one time says nothing of ticks
		return mooncakeTick
	}
	return 0
}

func (p *jsonLines) line(b []byte, t *Trace) error {
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return err
	}
	if rec.BlockTokens == 0 || p.strict {
		rec.BlockTokens = mooncakeBlock
	}
	switch {
	case rec.InputLength < 1 || rec.OutputLength < 0 || !(rec.Timestamp >= 0) || !(rec.ThinkMs >= 0) || rec.BlockTokens < 1 || rec.BlockTokens > MaxBlockTokens || rec.Timestamp > 1e15 || rec.ThinkMs > 1e15:
		return fmt.Errorf("timestamp %g, input_length %d, output_length %d, block_tokens %d, think_ms %g: want 0 or more, input_length and block_tokens 1 or more; or is the file of another form",
			rec.Timestamp, rec.InputLength, rec.OutputLength, rec.BlockTokens, rec.ThinkMs)
	case t.BlockTokens == 0:
		t.BlockTokens = rec.BlockTokens
	case t.BlockTokens != rec.BlockTokens:
		return fmt.Errorf("block_tokens %d after %d: want one size in a file", rec.BlockTokens, t.BlockTokens)
	}
	if p.lines++; p.lines == 1 || rec.Timestamp != p.last {
		p.distinct++
	}
	p.last = rec.Timestamp
	t.Requests = append(t.Requests, Request{
		At: millis(rec.Timestamp), Session: rec.Session, Think: millis(rec.ThinkMs), Prompt: rec.InputLength, Output: max(1, rec.OutputLength),
		Blocks: rec.HashIDs[:min(len(rec.HashIDs), rec.InputLength/rec.BlockTokens)],
	})
	return nil
}

func millis(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }

func seconds(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }

// call is a request of a cc-trace; of type subagent it holds others.
type call struct {
	T        float64  `json:"t"` // seconds since the session's or the subagent's start
	Type     string   `json:"type"`
	In       int      `json:"in"`
	Out      int      `json:"out"`
	HashIDs  []uint64 `json:"hash_ids"`
	Think    float64  `json:"think_time"`
	Requests []call   `json:"requests"`
}

// sessions reads cc-traces. Ids are local to a session, but tool definitions, which come first, are the same in all
// sessions with equally many tokens of them. Sessions start one after the other at random: the traces don't say when.
type sessions struct {
	o     *Options
	rng   *rand.Rand
	start time.Duration
}

func newSessions(o *Options) *sessions { return &sessions{o: o, rng: rand.New(rand.NewPCG(o.Seed, 7))} }

func (p *sessions) ticks() time.Duration { return 0 }

func (p *sessions) line(b []byte, t *Trace) error {
	var s struct {
		ID         string `json:"id"`
		BlockSize  int    `json:"block_size"`
		ToolTokens int    `json:"tool_tokens"`
		Requests   []call `json:"requests"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s.BlockSize != ccBlock {
		return fmt.Errorf("block_size %d: want %d; or is the file of another form", s.BlockSize, ccBlock)
	}
	t.BlockTokens = ccBlock
	calls := flat(nil, s.Requests, 0)
	if len(calls) == 0 || p.o.MaxPrompt > 0 && calls[0].In > p.o.MaxPrompt {
		return nil
	}
	p.start += seconds(p.rng.ExpFloat64() * p.o.SessionGap.Seconds())
	at, last := p.start, calls[0].T
	tools, first := s.ToolTokens/ccBlock, calls[0].HashIDs
	for _, c := range calls {
		if p.o.MaxPrompt > 0 && c.In > p.o.MaxPrompt {
			break // what follows only grows
		}
		if c.In < 1 || c.Out < 0 {
			return fmt.Errorf("session %s: in %d, out %d", s.ID, c.In, c.Out)
		}
		at += min(seconds(max(0, c.T-last)), p.o.MaxThink)
		last = c.T
		blocks := make([]uint64, 0, len(c.HashIDs))
		for i, id := range c.HashIDs[:min(len(c.HashIDs), c.In/ccBlock)] {
			name := s.ID + "/" + strconv.FormatUint(id, 10)
			if i < tools && i < len(first) && id == first[i] {
				name = "tools " + strconv.Itoa(s.ToolTokens) + "/" + strconv.Itoa(i)
			}
			blocks = append(blocks, xxh3.HashString(name))
		}
		t.Requests = append(t.Requests, Request{
			At: at, Session: s.ID, Think: min(seconds(max(0, c.Think)), p.o.MaxThink), Prompt: c.In, Output: max(1, c.Out), Blocks: chained(blocks),
		})
	}
	return nil
}

// flat appends the calls in the order of their times, those of subagents among them.
func flat(dst, calls []call, from float64) []call {
	for _, c := range calls {
		if c.Type == "subagent" {
			dst = flat(dst, c.Requests, from+c.T)
			continue
		}
		if c.HashIDs == nil {
			continue
		}
		c.T += from
		at := len(dst)
		for at > 0 && dst[at-1].T > c.T {
			at--
		}
		dst = append(dst, call{})
		copy(dst[at+1:], dst[at:])
		dst[at] = c
	}
	return dst
}

// azure reads lengths and arrivals; nothing is known of the prompts.
type azure struct {
	header bool
	start  time.Time
}

func (p *azure) ticks() time.Duration { return 0 }

func (p *azure) line(b []byte, t *Trace) error {
	f := strings.Split(strings.TrimSpace(string(b)), ",")
	if len(f) != 3 {
		return errors.New("want TIMESTAMP,ContextTokens,GeneratedTokens")
	}
	if !p.header {
		p.header = true
		if f[0] == "TIMESTAMP" {
			return nil
		}
	}
	at, err := time.Parse("2006-01-02 15:04:05.999999999", f[0])
	if err != nil {
		return err
	}
	in, err1 := strconv.Atoi(f[1])
	out, err2 := strconv.Atoi(f[2])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if in < 1 || out < 0 {
		return fmt.Errorf("ContextTokens %d, GeneratedTokens %d: want 1 or more, 0 or more", in, out)
	}
	if p.start.IsZero() {
		p.start = at
	}
	t.BlockTokens = mooncakeBlock
	t.Requests = append(t.Requests, Request{At: at.Sub(p.start), Prompt: in, Output: max(1, out)})
	return nil
}
