// Package trace reads request traces, and makes some up: when each call came, how long its prompt and answer were, and which
// prompts share a prefix. It knows Mooncake's, WEKA's cc-traces, Azure's and the project's own form, plain, gzip or zstd.
//
// A trace holds no text and no tokens. Prompts are lists of block ids: equal ids in two prompts mean that the prompts are
// equal up to the end of that block.
package trace

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"
)

// Request is one call.
type Request struct {
	At      time.Duration // arrival, from the start of the trace
	Session string        // conversation, agent run or user; empty: unknown
	// Previous is the index of the session's call before this one, -1 if there is none, and Think the time from its end
	// to this call's arrival as recorded: what a replay in which calls wait for answers goes by.
	Previous int
	Think    time.Duration
	Prompt   int // tokens, at least 1
	Output   int // tokens, at least 1
	// Blocks has an id for each full block of the prompt, perhaps not for all: what lies behind the last one is this
	// request's alone.
	Blocks []uint64
}

// Trace is a list of requests in the order of arrival.
type Trace struct {
	BlockTokens int // tokens of a block
	Requests    []Request
}

// Format names a trace's form.
type Format string

// The formats.
const (
	Grapevine Format = "grapevine" // Mooncake's fields, and block_tokens, session and think_ms
	Mooncake  Format = "mooncake"  // kvcache-ai/Mooncake, FAST25-release/traces
	CC        Format = "cc"        // callanjfox/kv-cache-tester, one session a line
	Azure     Format = "azure"     // Azure/AzurePublicDataset, LLM inference traces of 2023: lengths only
)

// Formats lists them.
func Formats() []Format { return []Format{Grapevine, Mooncake, CC, Azure} }

// Options say how to read. The zero value takes everything.
type Options struct {
	Limit     int // requests at most, the first ones; 0: all
	MaxPrompt int // tokens: a longer request is left out, and with it the rest of its session; 0: no limit
	// SessionGap is the mean time between two sessions' starts where the trace does not say, drawn by Seed; 0: 10 s.
	SessionGap time.Duration
	// MaxThink caps the pause between two calls of a session where the trace has whole work days; 0: a minute.
	MaxThink time.Duration
	Seed     uint64
}

// What a trace may say at most: tokens of a block and of a prompt or answer, and the span of time.
const (
	MaxBlockTokens = 1 << 20
	maxTokens      = 1 << 30
	maxSpan        = 10 * 365 * 24 * time.Hour
)

// maxLine bounds one line of a file in bytes; sessions of cc-traces take up to 4 MiB.
const maxLine = 32 << 20

// Read reads a file. The error names the line.
func Read(path string, format Format, o Options) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	defer f.Close()
	t, err := Parse(f, format, o)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", path, err)
	}
	return t, nil
}

// Parse reads a trace from r.
func Parse(r io.Reader, format Format, o Options) (*Trace, error) {
	if o.Limit < 0 || o.MaxPrompt < 0 {
		return nil, fmt.Errorf("at most %d requests, prompts of at most %d tokens: give 0 or more", o.Limit, o.MaxPrompt)
	}
	if o.SessionGap <= 0 {
		o.SessionGap = 10 * time.Second
	}
	if o.MaxThink <= 0 {
		o.MaxThink = time.Minute
	}
	plain, err := decompressed(r)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	var p parser
	switch format {
	case Grapevine, Mooncake:
		p = &jsonLines{strict: format == Mooncake}
	case CC:
		p = newSessions(&o)
	case Azure:
		p = &azure{}
	default:
		return nil, fmt.Errorf("format %q: give one of %v", format, Formats())
	}
	t := &Trace{}
	lines := bufio.NewScanner(plain)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	for n := 1; lines.Scan(); n++ {
		if err := p.line(lines.Bytes(), t); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		// Sessions overlap in time, and gateways record calls when they end: all are needed to know which came first.
		if format != CC && format != Grapevine && o.Limit > 0 && len(t.Requests) >= o.Limit {
			break
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for i := range t.Requests {
		if r := &t.Requests[i]; r.Prompt > maxTokens || r.Output > maxTokens || r.At < 0 || r.At > maxSpan || r.Think < 0 || r.Think > maxSpan {
			return nil, fmt.Errorf("request %d: at %v, %d tokens in, %d out, think time %v: out of all bounds", i+1, r.At, r.Prompt, r.Output, r.Think)
		}
	}
	t.settle(&o, p.ticks())
	if len(t.Requests) == 0 {
		return nil, errors.New("no request in it")
	}
	return t, nil
}

// parser adds the requests of one line to a trace.
type parser interface {
	line(b []byte, t *Trace) error
	ticks() time.Duration // of the arrival times, 0: exact
}

// decompressed looks at the first bytes.
func decompressed(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReader(r)
	magic, _ := in.Peek(4)
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		return gzip.NewReader(in)
	case len(magic) == 4 && binary.LittleEndian.Uint32(magic) == 0xFD2FB528:
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// settle brings the requests into the order of arrival, from zero on, and links those of a session.
func (t *Trace) settle(o *Options, ticks time.Duration) {
	if o.MaxPrompt > 0 {
		cut := map[string]bool{}
		t.Requests = slices.DeleteFunc(t.Requests, func(r Request) bool {
			if cut[r.Session] && r.Session != "" {
				return true
			}
			cut[r.Session] = r.Prompt > o.MaxPrompt
			return r.Prompt > o.MaxPrompt
		})
	}
	slices.SortStableFunc(t.Requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	if o.Limit > 0 && len(t.Requests) > o.Limit {
		t.Requests = t.Requests[:o.Limit]
	}
	if ticks > 0 {
		t.spread(ticks)
	}
	last := map[string]int{}
	for i := range t.Requests {
		r := &t.Requests[i]
		if i > 0 {
			r.At -= t.Requests[0].At
		}
		r.Previous = -1
		if r.Session == "" {
			continue
		}
		if before, ok := last[r.Session]; ok {
			r.Previous = before
		}
		last[r.Session] = i
	}
	if len(t.Requests) > 0 {
		t.Requests[0].At = 0
	}
}

// spread puts requests that came in the same tick evenly into it: all at once would be bursts that nobody sent.
func (t *Trace) spread(tick time.Duration) {
	for i := 0; i < len(t.Requests); {
		n := 1
		for i+n < len(t.Requests) && t.Requests[i+n].At == t.Requests[i].At {
			n++
		}
		for j := range n {
			t.Requests[i+j].At += tick * time.Duration(j) / time.Duration(n)
		}
		i += n
	}
}

// Regroup returns the trace with blocks of n of its own: fewer ids where an engine's block size does not matter. n must be
// positive.
func (t *Trace) Regroup(n int) *Trace {
	out := &Trace{BlockTokens: n * t.BlockTokens, Requests: slices.Clone(t.Requests)}
	for i := range out.Requests {
		r := &out.Requests[i]
		blocks := r.Blocks
		r.Blocks = make([]uint64, 0, len(blocks)/n)
		for ; len(blocks) >= n; blocks = blocks[n:] {
			r.Blocks = append(r.Blocks, blocks[n-1]) // it stands for all before it too
		}
	}
	return out
}

// chained turns ids that name a block's own content into ids that name the whole prefix.
func chained(ids []uint64) []uint64 {
	var parent uint64
	var b [16]byte
	for i, id := range ids {
		binary.LittleEndian.PutUint64(b[:8], parent)
		binary.LittleEndian.PutUint64(b[8:], id)
		parent = xxh3.Hash(b[:])
		ids[i] = parent
	}
	return ids
}
