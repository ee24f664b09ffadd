package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// newTraced is a gateway that knows the prompts that come as token ids, with its admin listener.
func newTraced(t *testing.T, h http.HandlerFunc) (g *gateway, admin string) {
	t.Helper()
	g = newGateway(t, Default(), engine(t, h).URL)
	resolver, err := prompt.New(prompt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g.proxy.reader.Resolver = resolver
	s := httptest.NewServer(g.proxy.Admin(prometheus.NewRegistry()))
	t.Cleanup(s.Close)
	return g, s.URL
}

// recorder reads a recording.
type recorder struct {
	t      *testing.T
	lines  *bufio.Reader
	stop   func()
	text   bytes.Buffer // the lines of requests
	status RecordingStatus
}

func record(t *testing.T, g *gateway, admin string) *recorder {
	t.Helper()
	before := len(g.proxy.traces.running())
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/trace", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d", resp.StatusCode)
	}
	r := &recorder{t: t, lines: bufio.NewReader(resp.Body)}
	r.stop = func() {
		cancel()
		resp.Body.Close()
	}
	t.Cleanup(r.stop)
	if n := len(g.proxy.traces.running()); n != before+1 {
		t.Fatalf("%d recordings run, want %d", n, before+1)
	}
	return r
}

// until reads on until the gateway has told of n requests in all.
func (r *recorder) until(n int) []recordedLine {
	r.t.Helper()
	for {
		line, err := r.lines.ReadBytes('\n')
		if err != nil {
			r.t.Fatal(err)
		}
		var said struct{ Recording *RecordingStatus }
		if err := json.Unmarshal(line, &said); err != nil {
			r.t.Fatal(err)
		}
		if said.Recording == nil {
			r.text.Write(line)
			continue
		}
		if r.status = *said.Recording; r.status.Requests+r.status.Unserved >= n {
			break
		}
	}
	var lines []recordedLine
	for line := range strings.Lines(r.text.String()) {
		var l recordedLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			r.t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// idsBody asks for an answer to n token ids from first on.
func idsBody(user string, first, n int) string {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = first + i
	}
	text, _ := json.Marshal(ids)
	return fmt.Sprintf(`{"model":"m","user":%q,"max_tokens":9,"prompt":%s}`, user, text)
}

const completions = "/v1/completions"

// answer reports as many tokens as the prompt's list of ids has.
func answer(w http.ResponseWriter, r *http.Request) {
	var body struct{ Prompt json.RawMessage }
	_ = json.NewDecoder(r.Body).Decode(&body)
	var ids []int
	_ = json.Unmarshal(body.Prompt, &ids)
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":%d,"completion_tokens":5}}`, max(1, len(ids)))
}

func TestRecording(t *testing.T) {
	g, admin := newTraced(t, answer)
	post(t, g.URL+completions, idsBody("before", 1, 40)) // not in it
	r := record(t, g, admin)
	post(t, g.URL+completions, idsBody("alice", 1000, 40))
	post(t, g.URL+completions, idsBody("alice", 1000, 50))
	post(t, g.URL+completions, idsBody("bob", 2000, 40))
	post(t, g.URL+"/v1/embeddings", `{"model":"m","input":"x"}`) // nothing that an engine keeps
	post(t, g.URL+completions, "no JSON")
	lines := r.until(4)
	if len(lines) != 3 {
		t.Fatalf("%d lines, want 3: %s", len(lines), r.text.String())
	}
	a, b, c := lines[0], lines[1], lines[2]
	want := RecordingStatus{Requests: 3, Unserved: 1, BlockTokens: 16, Seconds: r.status.Seconds}
	if d := cmp.Diff(want, r.status); d != "" {
		t.Errorf("status (-want +got)\n%s", d)
	}
	if a.InputLength != 40 || a.OutputLength != 5 || a.BlockTokens != 16 || a.InputEstimated || a.OutputEstimated {
		t.Errorf("first line: %+v", a)
	}
	if len(a.HashIDs) != 2 || len(b.HashIDs) != 3 || !slices.Equal(a.HashIDs, b.HashIDs[:2]) {
		t.Errorf("blocks %v and %v: want 2 of the first in the second's 3", a.HashIDs, b.HashIDs)
	}
	for _, id := range c.HashIDs {
		if slices.Contains(b.HashIDs, id) || id >= 1<<53 {
			t.Errorf("blocks %v and %v: want none in common, below 2^53", b.HashIDs, c.HashIDs)
		}
	}
	if a.Session == "" || a.Session != b.Session || a.Session == c.Session {
		t.Errorf("sessions %q, %q, %q: want the first two equal", a.Session, b.Session, c.Session)
	}
	if a.ThinkMs != 0 || b.ThinkMs <= 0 || b.ThinkMs > b.Timestamp-a.Timestamp || c.ThinkMs != 0 {
		t.Errorf("think times %g, %g, %g at %g, %g: want only the second's", a.ThinkMs, b.ThinkMs, c.ThinkMs, a.Timestamp, b.Timestamp)
	}

	// The simulator reads it, and puts blocks together.
	tr, err := trace.Parse(&r.text, trace.Grapevine, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if tr.BlockTokens != 16 || len(tr.Requests) != 3 || tr.Requests[1].Previous != 0 || tr.Requests[1].Think <= 0 || tr.Requests[2].Previous != -1 ||
		!slices.Equal(tr.Requests[1].Blocks, b.HashIDs) {
		t.Errorf("read back: %+v", tr)
	}
	if got := tr.Regroup(2); got.BlockTokens != 32 || !slices.Equal(got.Requests[1].Blocks, b.HashIDs[1:2]) {
		t.Errorf("in blocks of 32: %+v", got)
	}

	r.stop()
	for deadline := time.Now().Add(10 * time.Second); g.proxy.traces.running() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the recording goes on though its reader has left")
		}
	}
}

// TestRecordingIsPrivate: no text, id, hash, name or key is in a recording, and two recordings have nothing in common.
func TestRecordingIsPrivate(t *testing.T) {
	g, admin := newTraced(t, answer)
	first, second := record(t, g, admin), record(t, g, admin)
	const secret, user, key = "the-secret-sentence", "alice@example.com", "Bearer sk-very-secret"
	post(t, g.URL+completions, idsBody(user, 987_654_000, 64))
	req, err := http.NewRequest(http.MethodPost, g.URL+chatPath, strings.NewReader(`{"model":"modelname","messages":[{"role":"user","content":"`+secret+`"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", key)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	a, b := first.until(2), second.until(2)
	if len(a) != 2 || len(b) != 2 || len(a[0].HashIDs) != 4 || a[1].Session == "" {
		t.Fatalf("lines %+v and %+v", a, b)
	}

	ids := make([]uint32, 64)
	for i := range ids {
		ids[i] = 987_654_000 + uint32(i)
	}
	banned := []string{secret, "secret", user, "alice", key, "modelname", "x-request", "98765"}
	for _, seed := range []uint64{0, blockhash.DefaultSeed} {
		for _, h := range blockhash.NewHasher(seed).AppendChain(nil, 0, ids, 16) {
			banned = append(banned, fmt.Sprint(uint64(h)), fmt.Sprintf("%x", uint64(h)), fmt.Sprint(uint64(h)>>11), fmt.Sprint(uint64(h)&(1<<53-1)))
		}
	}
	for name, text := range map[string]string{"first": first.text.String(), "second": second.text.String()} {
		for _, s := range banned {
			if strings.Contains(text, s) {
				t.Errorf("%s recording holds %q: %s", name, s, text)
			}
		}
	}
	for i := range a {
		if a[i].Session == b[i].Session {
			t.Errorf("both recordings call a session %q", a[i].Session)
		}
		for _, id := range a[i].HashIDs {
			if slices.Contains(b[0].HashIDs, id) || slices.Contains(b[1].HashIDs, id) {
				t.Errorf("both recordings have block %d", id)
			}
		}
	}
}

// TestRecordingEstimates: what no answer said is guessed and marked; what was not served is counted.
func TestRecordingEstimates(t *testing.T) {
	g, admin := newTraced(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Test") {
		case "stream":
			send(w, roleEvent, firstEvent, nextEvent, nextEvent, doneEvent)
		case "plain":
			fmt.Fprint(w, `{"choices":[{"text":"x"}]}`)
		case "refused":
			w.WriteHeader(http.StatusBadRequest)
		default:
			answer(w, r)
		}
	})
	r := record(t, g, admin)
	for i, kind := range []string{"", "stream", "plain", "refused"} {
		req, err := http.NewRequest(http.MethodPost, g.URL+completions, strings.NewReader(idsBody("u", 1000*i, 40)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Test", kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = bufio.NewReader(resp.Body).WriteTo(&bytes.Buffer{})
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	post(t, g.URL+completions, `{"model":"m","prompt":"`+strings.Repeat("no engine turns this text into ids ", 10)+`"}`)
	lines := r.until(5)
	if len(lines) != 4 {
		t.Fatalf("%d lines, want 4: %s", len(lines), r.text.String())
	}
	for i, want := range []recordedLine{
		{InputLength: 40, OutputLength: 5},
		{InputLength: 40, OutputLength: 3, OutputEstimated: true},
		{InputLength: 40, OutputLength: 5, OutputEstimated: true}, // as the others, below max_tokens
		{InputLength: 1, OutputLength: 5},
	} {
		got := lines[i]
		if got.InputLength != want.InputLength || got.OutputLength != want.OutputLength || got.InputEstimated != want.InputEstimated || got.OutputEstimated != want.OutputEstimated {
			t.Errorf("line %d is %+v, want %+v", i, got, want)
		}
	}
	if s := r.status; s.Unserved != 1 || s.Lost != 0 {
		t.Errorf("status %+v, want 1 unserved", s)
	}
}

// ended is a request as it is when its answer has gone out.
func ended(pick picker.Request, o picker.Outcome) *call {
	return &call{req: &openai.Request{Kind: openai.Chat}, pick: pick, outcome: o, status: http.StatusOK, arrived: time.Now()}
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
	rec := newRecording(time.Now(), []int{32, 16}, maxRecordedBytes)
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

// TestRecordingOfAWhile: requests that come in its time are in it, however late they end, and no others.
func TestRecordingOfAWhile(t *testing.T) {
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	h := blockhash.NewHasher(1)
	list := recordings{maxBytes: maxRecordedBytes}
	rec := list.start(start, time.Minute, nil)
	call := func(came float64, kind openai.Kind) *call {
		c := ended(picker.Request{PromptTokens: 100}, picker.Outcome{PromptTokens: 100})
		c.arrived, c.req.Kind = at(came), kind
		c.traces = list.begin(c.arrived)
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

func TestTooManyRecordings(t *testing.T) {
	g, admin := newTraced(t, answer)
	for range maxRecordings {
		record(t, g, admin)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(httptest.NewRequest(http.MethodGet, admin+"/trace", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("status %d of one too many, want 429", resp.StatusCode)
	}
}

func TestLanesOfASession(t *testing.T) {
	s := newRecordedSessions()
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
	for i := range 2 * maxRecordedSessions {
		s.place(fmt.Sprint(i), 0, 1)
	}
	if s.lru.Len() != maxRecordedSessions {
		t.Errorf("%d sessions kept, want %d", s.lru.Len(), maxRecordedSessions)
	}
}

// BenchmarkRecord is what a recording adds to a request of 32K tokens.
func BenchmarkRecord(b *testing.B) {
	h := blockhash.NewHasher(blockhash.DefaultSeed)
	chain := blockhash.Chain{BlockSize: 16, Hashes: h.AppendChain(nil, 0, make([]uint32, 32<<10), 16)}
	rec := newRecording(time.Now(), []int{16}, maxRecordedBytes)
	c := ended(picker.Request{Session: "s", Chains: []blockhash.Chain{chain}}, picker.Outcome{PromptTokens: 32 << 10, OutputTokens: 5})
	var lines []byte
	b.ReportAllocs()
	for b.Loop() {
		rec.add(c, time.Now(), h)
		lines, _, _ = rec.take(lines[:0], time.Now())
	}
}
