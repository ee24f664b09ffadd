package kvevent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDecodeValid: every payload of every engine version decodes to what its
// manifest says.
func TestDecodeValid(t *testing.T) {
	f := openFixtures(t)
	cases := lines[validCase](t, f, "manifest.jsonl")
	if len(cases) != 232 {
		t.Fatalf("got %d fixtures, want 232", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			b, err := Decode(f.read(t, c.File))
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Skipped) > 0 || len(b.Anomalies) > 0 {
				t.Errorf("got skipped %v, anomalies %v, want none", b.Skipped, b.Anomalies)
			}
			if b.TS != c.Expect.TS {
				t.Errorf("got ts %v, want %v", b.TS, c.Expect.TS)
			}
			rank := -1
			if c.Expect.DPRank != nil {
				rank = *c.Expect.DPRank
			}
			if b.Rank != rank {
				t.Errorf("got rank %d, want %d", b.Rank, rank)
			}
			if c.Expect.Events == nil {
				compareSummary(t, c, b)
				return
			}
			if len(b.Events) != len(c.Expect.Events) {
				t.Fatalf("got %d events, want %d", len(b.Events), len(c.Expect.Events))
			}
			for i, want := range c.Expect.Events {
				got := asExpectation(t, b.Events[i], want)
				delete(want, "block_hashes") // the form on the wire; *_u64 is what counts
				delete(want, "parent_block_hash")
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("event %d (-want +got):\n%s", i, d)
				}
			}
		})
	}
}

// asExpectation writes an event the way the manifest does, with the keys that want
// has. A key that want lacks must be at its zero value.
func asExpectation(t *testing.T, e Event, want map[string]any) map[string]any {
	t.Helper()
	all := map[string]any{}
	str := func(k, s string) {
		all[k] = nil
		if s != "" {
			all[k] = s
		}
	}
	num := func(k string, n int64, none int64) {
		all[k] = nil
		if n != none {
			all[k] = json.Number(fmt.Sprint(n))
		}
	}
	switch e := e.(type) {
	case *Stored:
		all["type"], all["block_hashes_u64"] = tagStored, u64s(e.Hashes)
		all["parent_u64"] = nil
		if e.HasParent {
			all["parent_u64"] = fmt.Sprintf("%016x", e.Parent)
		}
		all["token_ids"] = tokens(e, want["token_ids"])
		all["block_size"] = json.Number(fmt.Sprint(e.BlockSize))
		num("lora_id", e.LoRAID, 0)
		str("medium", e.Medium)
		str("lora_name", e.LoRAName)
		all["extra_keys"] = extras(e.ExtraKeys)
		num("group_idx", int64(e.Group), -1)
		str("kv_cache_spec_kind", e.SpecKind)
		num("kv_cache_spec_sliding_window", e.SlidingWindow, 0)
		str("locality", e.Locality)
		str("ownership", e.Ownership)
		str("session_id", e.SessionID)
		str("cache_salt", e.CacheSalt)
		if _, ok := want["metadata"]; ok {
			all["metadata"] = map[string]any{"cache_salt": all["cache_salt"], "session_id": all["session_id"]}
			delete(all, "cache_salt")
			delete(all, "session_id")
		}
	case *Removed:
		all["type"], all["block_hashes_u64"] = tagRemoved, u64s(e.Hashes)
		str("medium", e.Medium)
		num("group_idx", int64(e.Group), -1)
		str("locality", e.Locality)
		str("ownership", e.Ownership)
	case *Cleared:
		all["type"] = tagCleared
	}
	for k, v := range all {
		if _, ok := want[k]; !ok {
			if v != nil {
				t.Errorf("got %s %v, want none", k, v)
			}
			delete(all, k)
		}
	}
	return all
}

func u64s(hs []uint64) any {
	out := []any{}
	for _, h := range hs {
		out = append(out, fmt.Sprintf("%016x", h))
	}
	return out
}

func tokens(e *Stored, want any) any {
	if e.Tokens == nil {
		return nil
	}
	out := []any{}
	for i, tok := range e.Tokens {
		n := json.Number(fmt.Sprint(tok))
		if !e.Bigram {
			out = append(out, n)
			continue
		}
		pair := want.([]any)[i].([]any)
		out = append(out, []any{n, pair[1]})
	}
	return out
}

func extras(keys [][]ExtraKey) any {
	if keys == nil {
		return nil
	}
	out := []any{}
	for _, entry := range keys {
		if entry == nil {
			out = append(out, nil)
			continue
		}
		ks := []any{}
		for _, k := range entry {
			switch k.Kind {
			case ExtraText:
				ks = append(ks, k.Text)
			case ExtraItem:
				ks = append(ks, []any{k.Text, json.Number(fmt.Sprint(k.Num))})
			case ExtraBytes:
				ks = append(ks, map[string]any{"hex": hex.EncodeToString([]byte(k.Text))})
			case ExtraInt:
				ks = append(ks, json.Number(fmt.Sprint(k.Num)))
			}
		}
		out = append(out, ks)
	}
	return out
}

func compareSummary(t *testing.T, c validCase, b Batch) {
	t.Helper()
	types := map[string]int{}
	var hs []string
	toks := 0
	for _, e := range b.Events {
		var h []uint64
		switch e := e.(type) {
		case *Stored:
			types[tagStored]++
			h, toks = e.Hashes, toks+len(e.Tokens)
		case *Removed:
			types[tagRemoved]++
			h = e.Hashes
		case *Cleared:
			types[tagCleared]++
		}
		for _, x := range h {
			hs = append(hs, fmt.Sprintf("%016x", x))
		}
	}
	sum := sha256.Sum256([]byte(strings.Join(hs, "\n")))
	got := []any{len(b.Events), len(hs), toks, hex.EncodeToString(sum[:]), hs[0], hs[len(hs)-1]}
	want := []any{c.Expect.EventCount, c.Expect.HashCount, c.Expect.TokenCount, c.Expect.U64SHA256, c.Expect.FirstU64, c.Expect.LastU64}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("summary (-want +got):\n%s", d)
	}
	if d := cmp.Diff(c.Expect.Types, types); d != "" {
		t.Errorf("types (-want +got):\n%s", d)
	}
}

// action is what a reader does with a payload.
func action(b Batch, err error) string {
	switch r := ReasonOf(err); {
	case r == ReasonDepth || r == ReasonClaim:
		return "drop-batch-fast"
	case err != nil:
		return "drop-batch"
	case len(b.Skipped) > 0:
		return "skip-event"
	}
	for _, e := range b.Events {
		if s, ok := e.(*Stored); ok && s.Sparse() {
			return "skip-event" // decoded, but its tokens are of no use
		}
	}
	return "accept"
}

func TestDecodeMalformed(t *testing.T) {
	f := openFixtures(t)
	cases := lines[malformedCase](t, f, "malformed.jsonl")
	if len(cases) != 114 {
		t.Fatalf("got %d fixtures, want 114", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			payload := f.read(t, c.File)
			start := time.Now()
			b, err := Decode(payload)
			if d := time.Since(start); d > 50*time.Millisecond && !raceEnabled {
				t.Errorf("took %v, want at most 50ms", d)
			}
			if got := action(b, err); got != c.Action {
				t.Errorf("got %s (%v, skipped %v), want %s: %s", got, err, b.Skipped, c.Action, c.Why)
			}
			if err != nil && ReasonOf(err) == "" {
				t.Errorf("error without a reason: %v", err)
			}
			if n := testing.AllocsPerRun(1, func() { _, _ = Decode(payload) }); err != nil && n > 20 {
				t.Errorf("a dropped batch cost %v allocations", n)
			}
		})
	}
}

func TestDecodeKeepsNeighbours(t *testing.T) {
	f := openFixtures(t)
	for _, c := range lines[malformedCase](t, f, "malformed.jsonl") {
		if c.Action != "skip-event" || c.Name == "many-empty-events" {
			continue
		}
		b, _ := Decode(f.read(t, c.File))
		if len(b.Events) == 0 && len(b.Skipped) > 0 && c.Name != "map-duplicate-key" { // that one is alone
			t.Errorf("%s: no event is left, want the good neighbour", c.Name)
		}
	}
}

func TestDecodeManyBadEvents(t *testing.T) {
	b, err := Decode(openFixtures(t).read(t, "malformed/many-empty-events.bin"))
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Skipped) != 1 || b.Skipped[0].Count < 500_000 {
		t.Errorf("got %v, want one counter for half a million events", b.Skipped)
	}
}

func TestUnknownTagIsCut(t *testing.T) {
	b, err := Decode(openFixtures(t).read(t, "malformed/tag-huge.bin"))
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Skipped) != 1 || b.Skipped[0].Reason != ReasonUnknownTag || len(b.Skipped[0].Tag) != maxTagBytes {
		t.Errorf("got %v, want one unknown tag of %d bytes", b.Skipped, maxTagBytes)
	}
}

// TestLookahead: vLLM v0.33 wraps a block's keys with the tokens it looks ahead to.
func TestLookahead(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []byte
		want []ExtraKey
	}{
		{"keys and tokens", []byte("\x92\x92\xa1s\x92\xa1i\x04\x07"), []ExtraKey{{ExtraText, "s", 0}, {ExtraItem, "i", 4}, {ExtraInt, "", 7}}},
		{"no keys", []byte("\x92\xc0\x07"), []ExtraKey{{ExtraInt, "", 7}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := append([]byte("\x92\x00\x91\x85\xa4type\xabBlockStored\xacblock_hashes\x91\x01\xa9token_ids\x91\x05\xaablock_size\x01\xaaextra_keys\x91"), c.in...)
			b, err := Decode(p)
			if err != nil || len(b.Events) != 1 {
				t.Fatalf("got %d events, skipped %v, error %v", len(b.Events), b.Skipped, err)
			}
			if d := cmp.Diff([][]ExtraKey{c.want}, b.Events[0].(*Stored).ExtraKeys); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestReasonOf(t *testing.T) {
	_, err := Decode(nil)
	if !errors.Is(err, ReasonEmpty) || ReasonOf(err) != ReasonEmpty {
		t.Errorf("got %v, want %v inside", err, ReasonEmpty)
	}
	if r := ReasonOf(errors.New("other")); r != "" {
		t.Errorf("got %q, want none", r)
	}
}

func TestParseFrames(t *testing.T) {
	cases := lines[frameCase](t, openFixtures(t), "frames.jsonl")
	if len(cases) != 16 {
		t.Fatalf("got %d fixtures, want 16", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			var frames [][]byte
			for _, h := range c.FramesHex {
				b, err := hex.DecodeString(h)
				if err != nil {
					t.Fatal(err)
				}
				frames = append(frames, b)
			}
			parse := ParseLive
			if c.Kind == "dealer" {
				parse = ParseReplay
			}
			m, err := parse(frames)
			got := "accept"
			switch {
			case err != nil:
				got = "drop"
			case m.End:
				got = "end"
			case c.Name == "live-topic-prefix" && m.Topic != "kv-events":
				got = "drop" // the caller's comparison
			}
			if got != c.Action {
				t.Fatalf("got %s (%v), want %s: %s", got, err, c.Action, c.Why)
			}
			if err != nil && ReasonOf(err) == "" {
				t.Errorf("error without a reason: %v", err)
			}
			if c.Action == "accept" && !bytes.Equal(m.Payload, frames[len(frames)-1]) {
				t.Error("payload is not the last frame")
			}
		})
	}
}

// FuzzDecode: never a panic, deterministic, memory in proportion to the input.
func FuzzDecode(f *testing.F) {
	fx := openFixtures(f)
	for _, file := range fx.zip.File {
		if strings.HasSuffix(file.Name, ".bin") && file.UncompressedSize64 < 4096 {
			f.Add(fx.read(f, file.Name))
		}
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		b, err := Decode(payload)
		if err != nil && (ReasonOf(err) == "" || len(b.Events) > 0) {
			t.Errorf("error %v with %d events", err, len(b.Events))
		}
		n := 0
		for _, e := range b.Events {
			if s, ok := e.(*Stored); ok {
				n += len(s.Hashes) + len(s.Tokens)
				if s.ExtraKeys != nil && len(s.ExtraKeys) != len(s.Hashes) {
					t.Errorf("%d extra keys for %d hashes", len(s.ExtraKeys), len(s.Hashes))
				}
			}
		}
		if n > len(payload) {
			t.Errorf("%d values from %d bytes", n, len(payload))
		}
		again, _ := Decode(payload)
		if d := cmp.Diff(b, again); d != "" && b.TS == b.TS {
			t.Errorf("decoded twice:\n%s", d)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	f := openFixtures(b)
	for _, name := range []string{"vllm-v0.29.0map-stored-root", "vllm-v0.22.0pre-stored-root", "vllm-2000-blocks-one-event-map", "vllm-2000-events-map", "vllm-2000-removals-array"} {
		payload := f.read(b, "valid/"+name+".bin")
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			events := 0
			for b.Loop() {
				batch, err := Decode(payload)
				if err != nil {
					b.Fatal(err)
				}
				events += len(batch.Events)
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
