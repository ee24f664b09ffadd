package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/agent/blockset/blocksettest"
	"github.com/grapevine-llm/grapevine/agent/zmqsub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Unix(1_764_430_000, 0)

// lines is an Emit that keeps what it is given.
type lines struct {
	events  []Event
	notices []Notice
}

func (l *lines) emit(v any) error {
	switch v := v.(type) {
	case Event:
		l.events = append(l.events, v)
	case Notice:
		l.notices = append(l.notices, v)
	}
	return nil
}

func (l *lines) named() []string {
	var out []string
	for _, n := range l.notices {
		out = append(out, n.Notice)
	}
	return out
}

func plain(t testing.TB, c blocksettest.Capture) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	for _, m := range c.Messages {
		p, err := json.Marshal(m.Payload)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, `{"t_ms": %v, "topic": %q, "seq_hex": %q, "payload_b64": %s}`+"\n", m.Millis, m.Topic, m.SeqHex, p)
	}
	return &b
}

// run reads a capture with chains and returns their answers.
func run(t testing.TB, text *bytes.Buffer, list []Chain) (*Inspector, *lines, []Answer) {
	t.Helper()
	l := &lines{}
	x := New(false, l.emit)
	chains := NewChains(list)
	err := ReadCapture(text, start, x, CaptureOptions{After: func(line int, seq uint64, applied bool) error {
		chains.After(x, line, seq, applied)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return x, l, chains.End(x)
}

// TestChainsOfCaptures: what real servers cached, asked through a capture file.
func TestChainsOfCaptures(t *testing.T) {
	captures, err := blocksettest.Captures()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range captures {
		t.Run(c.Name, func(t *testing.T) {
			var list []Chain
			var want []int
			for _, r := range c.Requests {
				if r.Predicted == nil {
					continue
				}
				q := Chain{ID: json.RawMessage(fmt.Sprint(len(list))), TokenIDs: r.Tokens, CacheSalt: r.Body.CacheSalt, AtSeq: &r.SeqBefore}
				if len(r.LoRA) > 0 {
					q.LoRAName = r.LoRA[0]
				}
				list, want = append(list, q), append(want, *r.Predicted)
			}
			x, l, answers := run(t, plain(t, c), list)
			for i, a := range answers {
				if a.CachedTokens != want[i] || a.Error != "" || a.MatchedBlocks*c.BlockSize != a.CachedTokens || string(a.ID) != fmt.Sprint(i) {
					t.Errorf("chain %d: got %+v, want %d cached tokens", i, a, want[i])
				}
			}
			copies := 0
			for _, n := range c.Final {
				copies += n
			}
			if s := x.Summary(); s.Copies != copies || s.Messages != len(c.Messages) || s.State != "complete" || s.BlockSize != c.BlockSize {
				t.Errorf("got summary %+v, want a complete one of %d messages and %d copies", s, len(c.Messages), copies)
			}
			wantNotices := []string(nil)
			if c.Name == "restart" {
				wantNotices = []string{"restart"}
			}
			if d := cmp.Diff(wantNotices, l.named()); d != "" {
				t.Errorf("notices (-want +got):\n%s", d)
			}
		})
	}
}

// TestChainsByLine: the form of the recorded block pools, asked by line.
func TestChainsByLine(t *testing.T) {
	streams, err := blocksettest.Streams()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(streams, func(s blocksettest.Stream) bool { return s.Name == "churn-16-v0.22.0pre" })
	st := streams[i]
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"stream": %q, "block_size": %d, "gpu_blocks": %d}`+"\n", st.Name, st.BlockSize, st.Blocks)
	var list []Chain
	var want []int
	for n, step := range st.Steps {
		if step.Op == "admit" {
			line := int64(n) // the step before stands on line n
			list = append(list, Chain{ID: json.RawMessage("0"), TokenIDs: step.Tokens, AtLine: &line})
			want = append(want, step.HitTokens)
		}
		out := map[string]any{"step": n, "op": step.Op}
		if step.Payload != nil {
			out["seq"], out["payload_b64"] = *step.Seq, step.Payload
		}
		if err := json.NewEncoder(&b).Encode(out); err != nil {
			t.Fatal(err)
		}
	}
	x, _, answers := run(t, &b, list)
	for i, a := range answers {
		if a.CachedTokens != want[i] {
			t.Errorf("chain %d: got %+v, want %d cached tokens", i, a, want[i])
		}
	}
	if s := x.Summary(); s.State != "complete" {
		t.Errorf("got state %s, want complete: the pool's block count was given", s.State)
	}
}

func one(t testing.TB, name string) blocksettest.Capture {
	t.Helper()
	captures, err := blocksettest.Captures()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(captures, func(c blocksettest.Capture) bool { return c.Name == name })
	return captures[i]
}

func TestPoints(t *testing.T) {
	c := one(t, "seed-unset")
	tokens := c.Requests[0].Tokens
	at := func(n int64) *int64 { return &n }
	_, _, got := run(t, plain(t, c), []Chain{
		{TokenIDs: tokens, AtSeq: at(-1)},
		{TokenIDs: tokens, AtLine: at(-1)},
		{TokenIDs: tokens, AtLine: at(0)},
		{TokenIDs: tokens},
		{TokenIDs: tokens, AtSeq: at(99)},
		{TokenIDs: tokens, AtLine: at(99)},
		{TokenIDs: tokens[:128]}, // the last token is always computed
		{TokenIDs: tokens[:10]},
	})
	want := []int{0, 0, 128, 128, 0, 0, 96, 0}
	for i, a := range got {
		if a.CachedTokens != want[i] || (a.Error != "") != (i == 4 || i == 5) {
			t.Errorf("chain %d: got %+v, want %d", i, a, want[i])
		}
	}
}

func TestTroubleIsNamed(t *testing.T) {
	c := one(t, "eviction-churn")
	damaged := c.Messages[20]
	damaged.Payload = []byte{0xc1}
	for _, tc := range []struct {
		name     string
		messages []blocksettest.Message
		notices  []string
		state    string
	}{
		{"whole", c.Messages[:30], nil, "complete"},
		{"late start", c.Messages[5:30], []string{"late start"}, "partial"},
		{"gap", append(slices.Clone(c.Messages[:10]), c.Messages[12:30]...), []string{"gap"}, "suspect"},
		{"duplicate", append(slices.Clone(c.Messages[:10]), c.Messages[9:30]...), []string{"duplicate"}, "complete"},
		{"damaged batch", append(append(slices.Clone(c.Messages[:20]), damaged), c.Messages[21:30]...), []string{"batch dropped"}, "suspect"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.Messages = tc.messages
			x, l, _ := run(t, plain(t, c), nil)
			if d := cmp.Diff(tc.notices, l.named()); d != "" {
				t.Errorf("notices (-want +got):\n%s", d)
			}
			for _, n := range l.notices {
				if n.Remedy == "" && n.Notice != "duplicate" {
					t.Errorf("%s without a remedy", n.Notice)
				}
			}
			s := x.Summary()
			if s.State != tc.state {
				t.Errorf("got state %s, want %s", s.State, tc.state)
			}
			if !strings.Contains(s.String(), tc.state) {
				t.Errorf("the text does not say %s:\n%s", tc.state, s)
			}
		})
	}
}

func TestEventLine(t *testing.T) {
	_, l, _ := run(t, plain(t, one(t, "lora")), nil)
	got, err := json.Marshal(l.events[1])
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(got, &m); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"line", "seq", "topic", "ts", "data_parallel_rank", "type", "block_hashes", "token_ids", "block_size", "lora_id", "lora_name", "medium", "extra_keys", "group_idx", "kv_cache_spec_kind"} {
		if _, ok := m[k]; !ok {
			t.Errorf("no %s in %v", k, slices.Sorted(maps.Keys(m)))
		}
	}
}

func TestReadCaptureErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no JSON", "hello\n", "line 0"},
		{"no payload", "\n{\"topic\": \"x\"}\n", "line 1: no payload_b64"},
		{"no number", `{"topic": "x", "payload_b64": "kw=="}`, "16 hex digits"},
		{"base64", `{"seq_hex": "0000000000000000", "payload_b64": "%"}`, "--record"},
		{"gzip that is cut off", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", "after 0 lines"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := ReadCapture(strings.NewReader(c.text), start, New(false, nil), CaptureOptions{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestReadChainsErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no JSON", "x", "line 0"},
		{"no tokens", "{}", "no token_ids"},
		{"two points", `{"token_ids": [1], "at_seq": 1, "at_line": 2}`, "together"},
		{"negative token", `{"token_ids": [-1]}`, "line 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadChains(strings.NewReader(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestOneTopic(t *testing.T) {
	c := one(t, "eviction-churn")
	x := New(false, nil)
	if err := ReadCapture(plain(t, c), start, x, CaptureOptions{Topic: "another"}); err != nil {
		t.Fatal(err)
	}
	if n := x.Summary().Messages; n != 0 {
		t.Errorf("%d messages of another topic", n)
	}
	c.Messages[3].Topic = "another"
	_, l, _ := run(t, plain(t, c), nil)
	if d := cmp.Diff([]string{"second topic"}, l.named()); d != "" {
		t.Errorf("notices (-want +got):\n%s", d)
	}
}

// TestFollow: a late subscriber asks for a replay, records what it gets, and the
// recording reads back to the same state.
func TestFollow(t *testing.T) {
	c := one(t, "eviction-churn")
	for _, name := range []string{"rec.jsonl", "rec.jsonl.gz"} {
		t.Run(name, func(t *testing.T) {
			events := make(chan zmqsub.Event, 1000)
			send := func(k zmqsub.Kind, m blocksettest.Message) {
				events <- zmqsub.Event{Kind: k, Message: zmqsub.Message{Topic: m.Topic, Seq: m.Seq, Payload: m.Payload, At: start.Add(time.Duration(m.Seq) * time.Millisecond)}}
			}
			var asked []uint64
			ask := func(from uint64) {
				asked = append(asked, from)
				for _, m := range c.Messages[from:40] {
					send(zmqsub.Replayed, m)
				}
				events <- zmqsub.Event{Kind: zmqsub.ReplayDone, Replay: zmqsub.Replay{Answered: true, Complete: true}}
				for _, m := range c.Messages[40:] {
					send(zmqsub.Live, m)
				}
				close(events)
			}
			var rec bytes.Buffer
			r := NewRecorder(&rec, name)
			x := New(true, nil)
			events <- zmqsub.Event{Kind: zmqsub.Connected}
			if err := follow(events, ask, x, WatchOptions{Record: r}); err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff([]uint64{0}, asked); d != "" {
				t.Errorf("replays asked for (-want +got):\n%s", d)
			}
			again, _, _ := run(t, &rec, nil)
			if d := cmp.Diff(x.Summary(), again.Summary()); d != "" {
				t.Errorf("summary (-live +recording):\n%s", d)
			}
			if s := x.Summary(); s.Messages != len(c.Messages) || s.State != "complete" {
				t.Errorf("got %+v, want all %d messages", s, len(c.Messages))
			}
		})
	}
}

// TestWatchEnds: without an engine the run ends with its context.
func TestWatchEnds(t *testing.T) {
	sub, err := zmqsub.New(zmqsub.Config{Endpoint: "tcp://127.0.0.1:9"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := Watch(ctx, sub, New(false, nil), WatchOptions{}); err != nil {
		t.Error(err)
	}
}
