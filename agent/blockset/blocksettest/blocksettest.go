// Package blocksettest gives tests the recorded histories of real engines: event
// streams with, for each request, the prefix that the engine really reused.
//
// [Streams] come from vLLM's own block pool, step by step. [Captures] come from whole
// running vLLM servers. Both are the oracle for a block set and for everything behind
// it.
package blocksettest

import (
	"archive/zip"
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

//go:embed streams.zip
var streamsZip []byte

//go:embed real-vllm.zip
var capturesZip []byte

// Stream is one engine's history.
type Stream struct {
	Name      string `json:"stream"`
	BlockSize int    `json:"block_size"`
	Blocks    int    `json:"gpu_blocks"` // usable ones
	// NoneHash starts the engine's own chain (hexadecimal), which all streams compute
	// with SHA-256 over CBOR.
	NoneHash string `json:"none_hash"`
	Steps    []Step `json:"-"`
}

// LoRANames returns the adapters of a stream by number: old engines report no names.
func (s *Stream) LoRANames() map[int64]string {
	out := map[int64]string{}
	for _, st := range s.Steps {
		if st.LoRA != nil {
			out[st.LoRA.ID] = st.LoRA.Name
		}
	}
	return out
}

// Step is one call into the block pool: what it did and the batch it published.
type Step struct {
	Op string // "admit", "grow", "finish" or "reset"
	ID string // request
	// Tokens are the prompt of an admit, or what a grow adds.
	Tokens []uint32
	LoRA   *Adapter
	Salt   string
	// HitTokens, of an admit, is what the engine reused: the prediction wanted from the
	// batches before this step.
	HitTokens int `json:"engine_hit_tokens"`
	Seq       *uint64
	Payload   []byte `json:"payload_b64"` // nil: nothing published
	// Unlabelled is set where the hit is on blocks whose salt is in no event (engines
	// before v0.17 send no extra keys): canonical hashes cannot know it.
	Unlabelled bool `json:"-"`
	// Resident, now and then, is the number of copies of each engine hash after the step.
	Resident Copies `json:"resident_u64_copies"`
}

// Extras are what tells a step's chain from a plain one.
func (s *Step) Extras() []blockhash.Extra {
	var out []blockhash.Extra
	if s.LoRA != nil {
		out = append(out, blockhash.Extra{Kind: blockhash.LoRA, Value: s.LoRA.Name})
	}
	if s.Salt != "" {
		out = append(out, blockhash.Extra{Kind: blockhash.CacheSalt, Value: s.Salt})
	}
	return out
}

// Adapter is a LoRA adapter, [name, number] in the files.
type Adapter struct {
	Name string
	ID   int64
}

// UnmarshalJSON reads [name, number].
func (a *Adapter) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &[]any{&a.Name, &a.ID}) }

// Copies counts physical blocks by engine hash; in the files keys are 16 hex digits.
type Copies map[uint64]int

// UnmarshalJSON reads an object with hexadecimal keys.
func (c *Copies) UnmarshalJSON(b []byte) error {
	var m map[string]int
	if err := json.Unmarshal(b, &m); err != nil || m == nil {
		return err
	}
	*c = make(Copies, len(m))
	for k, n := range m {
		h, err := strconv.ParseUint(k, 16, 64)
		if err != nil {
			return fmt.Errorf("hash %q: %w", k, err)
		}
		(*c)[h] = n
	}
	return nil
}

// Streams returns the recorded block-pool histories.
func Streams() ([]Stream, error) {
	var out []Stream
	err := each(streamsZip, func(name string, data []byte) error {
		var s Stream
		first := true
		err := eachLine(data, func(line []byte) error {
			if first {
				first = false
				return json.Unmarshal(line, &s)
			}
			var st Step
			if err := json.Unmarshal(line, &st); err != nil {
				return err
			}
			st.Unlabelled = s.Name == "basic-v0.9.2" && st.Salt != "" && st.HitTokens > 0
			s.Steps = append(s.Steps, st)
			return nil
		})
		out = append(out, s)
		return err
	})
	return out, err
}

// Capture is what one running engine published and answered.
type Capture struct {
	Name      string    `json:"scenario"`
	BlockSize int       `json:"block_size"`
	Messages  []Message `json:"-"`
	Requests  []Request
	// Final is the number of copies of each engine hash after the last message.
	Final Copies `json:"final_resident_u64_copies"`
}

// Message is one live message, in order of arrival.
type Message struct {
	Millis  float64 `json:"t_ms"`
	Topic   string
	SeqHex  string `json:"seq_hex"`
	Payload []byte `json:"payload_b64"`
	Seq     uint64 `json:"-"`
}

// Request is one thing done to the engine.
type Request struct {
	Op     string // "request", or what else was done
	Label  string
	Tokens []uint32 `json:"prompt_token_ids"`
	// SeqBefore is the last number received before it, -1: none.
	SeqBefore int64 `json:"seq_before"`
	// Predicted is what an exact index predicts at SeqBefore, nil: no prediction.
	Predicted *int `json:"predicted_cached_tokens"`
	// Cached is what the engine reported; it differs from Predicted where Mismatch
	// says why.
	Cached   *int   `json:"cached_tokens"`
	Mismatch string `json:"expect_mismatch"`
	LoRA     []string
	Body     struct {
		CacheSalt string `json:"cache_salt"`
	}
}

// Extras are what tells a request's chain from a plain one.
func (r *Request) Extras() []blockhash.Extra {
	var out []blockhash.Extra
	if len(r.LoRA) > 0 {
		out = append(out, blockhash.Extra{Kind: blockhash.LoRA, Value: r.LoRA[0]})
	}
	if r.Body.CacheSalt != "" {
		out = append(out, blockhash.Extra{Kind: blockhash.CacheSalt, Value: r.Body.CacheSalt})
	}
	return out
}

// Captures returns the recorded runs of real engines.
func Captures() ([]Capture, error) {
	messages := map[string][]Message{}
	var out []Capture
	err := each(capturesZip, func(name string, data []byte) error {
		if scenario, ok := strings.CutSuffix(name, ".oracle.json"); ok {
			c := Capture{Name: scenario}
			err := json.Unmarshal(data, &c)
			out = append(out, c)
			return err
		}
		scenario := strings.TrimSuffix(name, ".jsonl")
		return eachLine(data, func(line []byte) error {
			var m Message
			err := json.Unmarshal(line, &m)
			if err == nil {
				m.Seq, err = strconv.ParseUint(m.SeqHex, 16, 64)
			}
			messages[scenario] = append(messages[scenario], m)
			return err
		})
	})
	for i := range out {
		out[i].Messages = messages[out[i].Name]
	}
	return out, err
}

func each(data []byte, f func(name string, data []byte) error) error {
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return fmt.Errorf("open fixtures: %w", err)
	}
	for _, file := range z.File {
		r, err := file.Open()
		if err != nil {
			return fmt.Errorf("open fixture %s: %w", file.Name, err)
		}
		b, err := io.ReadAll(r)
		r.Close()
		if err == nil {
			err = f(file.Name, b)
		}
		if err != nil {
			return fmt.Errorf("read fixture %s: %w", file.Name, err)
		}
	}
	return nil
}

func eachLine(data []byte, f func(line []byte) error) error {
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		if err := f(sc.Bytes()); err != nil {
			return err
		}
	}
	return sc.Err()
}
