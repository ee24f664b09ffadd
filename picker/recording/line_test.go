package recording

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

// ended is a request as it is when its answer has gone out.
func ended(pick picker.Request, o picker.Outcome) *Call {
	return &Call{Request: &openai.Request{Kind: openai.Chat}, Pick: pick, Outcome: o, Status: http.StatusOK, Arrived: time.Now()}
}

func TestRecordedHashes(t *testing.T) {
	h := blockhash.NewHasher(blockhash.DefaultSeed)
	ids := make([]uint32, 100)
	for i := range ids {
		ids[i] = uint32(i)
	}
	chain := func(size int) blockhash.Chain {
		return blockhash.Chain{BlockSize: size, Seed: h.Fingerprint(), Hashes: h.AppendChain(nil, 0, ids, size)}
	}
	lora := blockhash.Extra{Kind: blockhash.LoRA, Value: "adapter"}
	rec := newRecording(time.Now(), []int{32, 16}, maxBytes)
	same := rec.hashIDs(ended(picker.Request{TokenIDs: ids}, picker.Outcome{}), h)
	for _, tt := range []struct {
		name string
		pick picker.Request
		n    int
		same bool
	}{
		{"ids", picker.Request{TokenIDs: ids}, 6, true},
		{"chains of both sizes", picker.Request{Chains: []blockhash.Chain{chain(32), chain(16)}}, 6, true},
		{"a chain of another size, and ids", picker.Request{Chains: []blockhash.Chain{chain(32)}, TokenIDs: ids}, 6, true},
		{"a chain of another size", picker.Request{Chains: []blockhash.Chain{chain(32)}}, 0, false},
		{"an adapter", picker.Request{TokenIDs: ids, Extras: []blockhash.Extra{lora}}, 6, false},
		{"nothing", picker.Request{PromptTokens: 100}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := rec.hashIDs(ended(tt.pick, picker.Outcome{}), h)
			if len(got) != tt.n || slices.Equal(got, same) != tt.same {
				t.Errorf("%v, want %d; equal to those of the ids: %v", got, tt.n, tt.same)
			}
		})
	}
}

// TestSlowReader: lines beyond what may wait are lost and counted, and nothing more is kept.
func TestSlowReader(t *testing.T) {
	rec := newRecording(time.Now(), nil, 400)
	kept := 0
	for range 10 {
		if rec.add(ended(picker.Request{PromptTokens: 100}, picker.Outcome{PromptTokens: 100, OutputTokens: 1}), time.Now(), blockhash.NewHasher(1)) {
			kept++
		}
	}
	lines, s, _ := rec.take(nil, time.Now())
	if kept < 1 || s.Lost != 10-kept || s.Requests != 10 || bytes.Count(lines, []byte("\n")) != kept || len(lines) > 400 {
		t.Errorf("%d kept, status %+v, %d bytes", kept, s, len(lines))
	}
	if !rec.add(ended(picker.Request{PromptTokens: 100}, picker.Outcome{PromptTokens: 100}), time.Now(), blockhash.NewHasher(1)) {
		t.Error("a line is lost though all others have been taken")
	}
}

// TestEnginesThatLie: whatever an engine says of lengths, its requests are lines that can be read, or are estimated.
func TestEnginesThatLie(t *testing.T) {
	h := blockhash.NewHasher(1)
	for _, o := range []picker.Outcome{
		{PromptTokens: -100, OutputTokens: -5}, {PromptTokens: math.MinInt, OutputTokens: math.MaxInt}, {PromptTokens: math.MaxInt, OutputTokens: math.MaxInt}, {PromptTokens: 1, OutputTokens: -1},
	} {
		rec := newRecording(time.Now(), []int{16}, maxBytes)
		for range 3 { // sums too
			rec.add(ended(picker.Request{TokenIDs: make([]uint32, 100)}, o), time.Now(), h)
		}
		rec.add(ended(picker.Request{PromptTokens: 100}, picker.Outcome{}), time.Now(), h) // by the mean of those before
		lines, _, _ := rec.take(nil, time.Now())
		for text := range bytes.Lines(lines) {
			var l line
			if err := json.Unmarshal(text, &l); err != nil || l.InputLength < 1 || l.InputLength > maxTokens || l.OutputLength < 0 || l.OutputLength > maxTokens {
				t.Errorf("%+v: %v %.200s", o, err, text)
			}
		}
	}
}

// TestServedIsAnAddress: a client can put anything into the header of another router's choice; no text is recorded.
func TestServedIsAnAddress(t *testing.T) {
	for served, want := range map[string]string{"10.0.0.1:8000": "10.0.0.1:8000", "[fd00::1]:8000": "[fd00::1]:8000", "my secret": "", "a.b:80": "", "": ""} {
		rec := newRecording(time.Now(), nil, maxBytes)
		c := ended(picker.Request{PromptTokens: 100}, picker.Outcome{CachedTokens: 16})
		c.Served = served
		rec.add(c, time.Now(), blockhash.NewHasher(1))
		text, _, _ := rec.take(nil, time.Now())
		var l line
		if err := json.Unmarshal(text, &l); err != nil || l.Served != want || (l.CachedTokens != nil) != (served != "") {
			t.Errorf("%q: %v %s", served, err, text)
		}
	}
}

// TestRecordingOfAWhile: requests that come in its time are in it, however late they end, and no others.
func TestRecordingOfAWhile(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	h := blockhash.NewHasher(1)
	list := New(Config{BlockSizes: func() []int { return nil }})
	rec := list.start(start, time.Minute)
	call := func(came float64, kind openai.Kind) *Call {
		c := ended(picker.Request{PromptTokens: 100}, picker.Outcome{PromptTokens: 100})
		c.Arrived, c.Request.Kind = at(came), kind
		list.Begin(c.Arrived)
		return c
	}
	early, other, last, late := call(1, openai.Chat), call(2, openai.Embedding), call(59, openai.Chat), call(61, openai.Chat)
	check := func(now float64, requests, inProgress int, complete bool) {
		t.Helper()
		if _, s, c := rec.take(nil, at(now)); s.Requests != requests || s.InProgress != inProgress || c != complete {
			t.Errorf("after %g s: %+v, complete %v; want %d requests, %d in progress, %v", now, s, c, requests, inProgress, complete)
		}
	}
	check(10, 0, 3, false)
	rec.add(early, at(11), h)
	rec.add(other, at(12), h)
	check(13, 1, 1, false)
	check(62, 1, 1, false)
	rec.add(late, at(70), h)
	check(71, 1, 1, false)
	rec.add(last, at(80), h)
	check(81, 2, 0, true)
}

func TestLanesOfASession(t *testing.T) {
	s := newSessions()
	seconds := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	for i, tt := range []struct {
		arrived, ended float64 // s
		name           string
		think          float64
	}{
		{10, 20, "a", 0},
		{25, 30, "a", 5},
		{26, 31, "a.1", 0}, // beside the one before
		{40, 50, "a.1", 9}, // after the lane that ended last
		{41, 60, "a", 11},
		{49.99, 70, "a.1", 0}, // its client had the answer already
	} {
		name, think := s.place("a", seconds(tt.arrived), seconds(tt.ended))
		if name != tt.name || think != seconds(tt.think) {
			t.Errorf("call %d: %s after %v, want %s after %v", i, name, think, tt.name, seconds(tt.think))
		}
	}
	for i := range maxLanes + 10 {
		if name, _ := s.place("b", 0, time.Second); (name == "") != (i >= maxLanes) {
			t.Fatalf("call %d of many at once has session %q", i, name)
		}
	}
	for i := range 2 * maxSessions {
		s.place(fmt.Sprint(i), 0, 1)
	}
	if s.lru.Len() != maxSessions {
		t.Errorf("%d sessions kept, want %d", s.lru.Len(), maxSessions)
	}
}

// BenchmarkRecord is what a recording adds to a request of 32K tokens.
func BenchmarkRecord(b *testing.B) {
	h := blockhash.NewHasher(blockhash.DefaultSeed)
	chain := blockhash.Chain{BlockSize: 16, Hashes: h.AppendChain(nil, 0, make([]uint32, 32<<10), 16)}
	rec := newRecording(time.Now(), []int{16}, maxBytes)
	c := ended(picker.Request{Session: "s", Chains: []blockhash.Chain{chain}}, picker.Outcome{PromptTokens: 32 << 10, OutputTokens: 5})
	var lines []byte
	b.ReportAllocs()
	for b.Loop() {
		rec.add(c, time.Now(), h)
		lines, _, _ = rec.take(lines[:0], time.Now())
	}
}
