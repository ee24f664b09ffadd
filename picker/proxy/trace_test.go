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
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/recording"
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

// recordedLine is one request of a recording.
type recordedLine struct {
	Timestamp       float64  `json:"timestamp"`
	InputLength     int      `json:"input_length"`
	OutputLength    int      `json:"output_length"`
	HashIDs         []uint64 `json:"hash_ids"`
	BlockTokens     int      `json:"block_tokens"`
	Session         string   `json:"session"`
	ThinkMs         float64  `json:"think_ms"`
	InputEstimated  bool     `json:"input_estimated"`
	OutputEstimated bool     `json:"output_estimated"`
}

// recorder reads a recording.
type recorder struct {
	t      *testing.T
	lines  *bufio.Reader
	stop   func()
	text   bytes.Buffer // the lines of requests
	status recording.Status
}

func record(t *testing.T, g *gateway, admin string) *recorder {
	t.Helper()
	before := g.proxy.recorder.Running()
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
	if n := g.proxy.recorder.Running(); n != before+1 {
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
		var said struct{ Recording *recording.Status }
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
	want := recording.Status{Requests: 3, Unserved: 1, BlockTokens: 16, Seconds: r.status.Seconds}
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
	for deadline := time.Now().Add(10 * time.Second); g.proxy.recorder.Running() > 0; time.Sleep(time.Millisecond) {
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

func TestTooManyRecordings(t *testing.T) {
	g, admin := newTraced(t, answer)
	for range 8 {
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
