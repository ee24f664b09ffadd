package extproc

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/recording"
	"github.com/grapevine-llm/grapevine/test/trace"
)

const completionsPath = "/v1/completions"

// newAdviserRig is a rig of a gateway that watches, and knows prompts that come as token ids.
func newAdviserRig(t *testing.T, s setup) *rig {
	t.Helper()
	resolver, err := prompt.New(prompt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	config, options := s.config, s.options
	s.config = func(c *Config) {
		c.Advise = true
		if config != nil {
			config(c)
		}
	}
	s.options = func(o *Options) {
		o.Resolver = resolver
		o.Recorder = recording.New(recording.Config{BlockSizes: o.Picker.BlockSizes, Hasher: o.Picker.Hasher(), WriteTimeout: time.Minute})
		if options != nil {
			options(o)
		}
	}
	return newRig(t, s)
}

// traced reads a recording of the gateway.
type traced struct {
	t      *testing.T
	lines  *bufio.Scanner
	text   bytes.Buffer
	status recording.Status
}

type tracedLine struct {
	InputLength     int      `json:"input_length"`
	OutputLength    int      `json:"output_length"`
	HashIDs         []uint64 `json:"hash_ids"`
	Served          string   `json:"served"`
	CachedTokens    *int     `json:"cached_tokens"`
	InputEstimated  bool     `json:"input_estimated"`
	OutputEstimated bool     `json:"output_estimated"`
}

func (r *rig) record(t *testing.T) *traced {
	t.Helper()
	s := httptest.NewServer(r.server.adviser.recorder)
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, s.URL+"/trace", nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close(); s.Close() })
	return &traced{t: t, lines: bufio.NewScanner(resp.Body)}
}

// until reads on until n requests have ended.
func (r *traced) until(n int) (lines []tracedLine) {
	r.t.Helper()
	for r.status.Requests+r.status.Unserved < n {
		if !r.lines.Scan() {
			r.t.Fatalf("the recording ended: %v", r.lines.Err())
		}
		var said struct{ Recording *recording.Status }
		if err := json.Unmarshal(r.lines.Bytes(), &said); err != nil {
			r.t.Fatal(err)
		}
		if said.Recording != nil {
			r.status = *said.Recording
			continue
		}
		fmt.Fprintf(&r.text, "%s\n", r.lines.Bytes())
	}
	for line := range strings.Lines(r.text.String()) {
		var l tracedLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			r.t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// idsBody asks for an answer to n token ids.
func idsBody(n int) []byte {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = 1000 + i
	}
	text, _ := json.Marshal(map[string]any{"model": "m", "prompt": ids, "max_tokens": 9}) // numbers
	return text
}

// sent is a request as an observing stream shows it, chosen for an endpoint.
func sent(path, chosen string, body ...[]byte) []*extprocv3.ProcessingRequest {
	m := headersOf(":method", "POST", ":path", path, "x-request-id", "r1")
	if chosen != "" {
		m.MetadataContext = metadata("envoy.lb", destination, structpb.NewStringValue(chosen))
	}
	out := []*extprocv3.ProcessingRequest{m}
	for i, b := range body {
		out = append(out, chunk(b, i == len(body)-1))
	}
	return observed(out...)
}

// answered is the response to it.
func answered(status, contentType, served string, body ...string) []*extprocv3.ProcessingRequest {
	out := []*extprocv3.ProcessingRequest{respond(status, contentType, served)}
	for i, b := range body {
		out = append(out, responseChunk(b, i == len(body)-1))
	}
	return observed(out...)
}

// watch shows a request and its response to the gateway, which must say nothing.
func (r *rig) watch(request, response []*extprocv3.ProcessingRequest, judged bool) {
	r.t.Helper()
	seen, before := r.server.Advice().Requests, r.judged()
	e := r.open()
	e.send(request...)
	r.await("the request to be seen", func() bool { return r.server.Advice().Requests > seen })
	if judged {
		r.await("it to be judged", func() bool { return r.judged() == before+1 })
	}
	e.send(response...)
	if err := e.stream.CloseSend(); err != nil {
		r.t.Fatal(err)
	}
	e.ends()
	r.await("the request to end", func() bool { return r.server.Advice().InProgress == 0 })
}

// judged returns how many requests have been judged.
func (r *rig) judged() uint64 {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "grapevine_advise_judge_seconds" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	return 0
}

func (r *rig) await(what string, ok func() bool) {
	r.t.Helper()
	for until := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			r.t.Fatalf("wait for %s: it does not come", what)
		}
	}
}

// outstanding is what the picker has in its books of an endpoint.
func (r *rig) outstanding(id string) int {
	for _, e := range r.picker.Status().Endpoints {
		if e.ID == id {
			return e.Outstanding
		}
	}
	return -1
}

// TestAdvise: what is seen, recorded and compared of one request. No endpoint has an agent here.
func TestAdvise(t *testing.T) {
	const home, other = "10.0.0.1:8000", "10.0.0.2:8000"
	ids := idsBody(100)
	cached := 64
	whole := tracedLine{InputLength: 100, OutputLength: 5, Served: home, CachedTokens: &cached}
	tests := []struct {
		name     string
		request  []*extprocv3.ProcessingRequest
		response []*extprocv3.ProcessingRequest
		result   string
		line     *tracedLine // nil: not recorded
		blocks   int
		options  func(*Options)
	}{
		{"whole", sent(completionsPath, home, ids), answered("200", "application/json", home, wholeJSON), resultDigest, &whole, 6, nil},
		{"in pieces, with an empty end", sent(completionsPath, home, ids[:100], ids[100:], nil), answered("200", "application/json", home, wholeJSON[:30], wholeJSON[30:]), resultDigest, &whole, 6, nil},
		{"with trailers", append(sent(completionsPath, home, ids)[:2], observed(trailers())...), answered("200", "application/json", home, wholeJSON), resultDigest, &whole, 6, nil},
		{"a stream", sent(completionsPath, home, ids), answered("200", "text/event-stream", home, firstEvent, lastEvents), resultDigest, &whole, 6, nil},
		{"a stream without usage", sent(completionsPath, home, ids), answered("200", "text/event-stream", home, firstEvent, "data: [DONE]\n\n"), resultDigest, &tracedLine{InputLength: 100, OutputLength: 1, Served: home, OutputEstimated: true}, 6, nil},
		{"no choice shows", sent(completionsPath, "", ids), answered("200", "application/json", home, wholeJSON), resultDigest, &whole, 6, nil},
		{"nor who served", sent(completionsPath, "", ids), answered("200", "application/json", "", wholeJSON), resultEndpoint, &tracedLine{InputLength: 100, OutputLength: 5}, 6, nil},
		{"another served than chosen", sent(completionsPath, other+","+home, ids), answered("200", "application/json", home, wholeJSON), resultDigest, &whole, 6, nil},
		{"one served that is not in the pool", sent(completionsPath, "", ids), answered("200", "application/json", "10.9.9.9:1", wholeJSON), resultEndpoint, &tracedLine{InputLength: 100, OutputLength: 5, Served: "10.9.9.9:1", CachedTokens: &cached}, 6, nil},
		{"only the header tells", headeredOnly(home, ids), answered("200", "application/json", "", wholeJSON), resultDigest, &whole, 6, nil},
		{"the attribute tells", sent(completionsPath, "", ids), attributed(answered("200", "application/json", "", wholeJSON), home), resultDigest, &whole, 6, nil},
		{"text that nobody turns into ids", sent(chatPath, home, chatBody(50, "")), answered("200", "application/json", home, wholeJSON), resultPrompt, &whole, 0, nil},
		{"refused", sent(completionsPath, home, ids), answered("429", "application/json", home, "{}"), resultUnserved, nil, 0, nil},
		{"no JSON", sent(completionsPath, home, []byte("{")), answered("400", "application/json", home, "{}"), resultUnserved, nil, 0, nil},
		{"no JSON, and served", sent(completionsPath, home, []byte("{")), answered("200", "application/json", home, wholeJSON), resultFailed, &whole, 0, nil},
		{"left before an answer", sent(completionsPath, home, ids), nil, resultUnserved, nil, 0, nil},
		{"answered before it was all there", sent(completionsPath, home, ids, ids)[:2], answered("200", "application/json", home, wholeJSON), resultIncomplete, &whole, 0, nil},
		{"embeddings", sent("/v1/embeddings", home, []byte(`{"model":"m","input":"x"}`)), answered("200", "application/json", home, "{}"), resultOther, nil, 0, nil},
		{"no request at all", answered("200", "application/json", home, wholeJSON)[:1], nil, resultOther, nil, 0, nil},
		{"too large", sent(completionsPath, home, ids), answered("200", "application/json", home, wholeJSON), resultBody, &whole, 0, func(o *Options) { o.MaxBodyBytes = 100 }},
		{"too much at once", sent(completionsPath, home, ids), answered("200", "application/json", home, wholeJSON), resultBody, &whole, 0, func(o *Options) { o.MaxBodiesBytes = 100 }},
		{"too many at once", sent(completionsPath, home, ids), nil, resultMissed, nil, 0, func(o *Options) { o.MaxStreams = 0 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newAdviserRig(t, setup{endpoints: []string{home, other, "10.0.0.3:8000"}, options: tt.options})
			rec := r.record(t)
			r.watch(tt.request, tt.response, !slices.Contains([]string{resultBody, resultIncomplete, resultMissed}, tt.result) && tt.request[0].GetRequestHeaders() != nil)
			a := r.server.Advice()
			if a.Requests != 1 || a.Compared != 0 || len(a.NotCompared) != 1 || a.NotCompared[tt.result] != 1 {
				t.Errorf("%+v, want one %s", a, tt.result)
			}
			r.count("grapevine_advise_requests_total", 1, tt.result)
			if tt.line != nil {
				lines := rec.until(1)
				if len(lines) != 1 {
					t.Fatalf("recorded %v", lines)
				}
				got := lines[0]
				if len(got.HashIDs) != tt.blocks {
					t.Errorf("%d blocks, want %d", len(got.HashIDs), tt.blocks)
				}
				got.HashIDs = nil
				if d := cmp.Diff(*tt.line, got); d != "" {
					t.Errorf("recorded (-want +got)\n%s", d)
				}
				if tr, err := trace.Parse(&rec.text, trace.Grapevine, trace.Options{}); err != nil || len(tr.Requests) != 1 {
					t.Errorf("read back: %v, %v", tr, err)
				}
			}
			if n := r.server.bodies.Load(); n != 0 {
				t.Errorf("%d bytes of bodies are still counted", n)
			}
			for _, id := range []string{home, other} {
				if n := r.outstanding(id); n != 0 {
					t.Errorf("%d requests are still booked on %s", n, id)
				}
			}
		})
	}
}

// headeredOnly is a request whose router tells its choice by a header.
func headeredOnly(chosen string, body []byte) []*extprocv3.ProcessingRequest {
	m := headersOf(":method", "POST", ":path", completionsPath, "x-request-id", "r1", destination, chosen)
	return observed(m, chunk(body, true))
}

// attributed makes Envoy tell who served by an attribute.
func attributed(in []*extprocv3.ProcessingRequest, served string) []*extprocv3.ProcessingRequest {
	in[0].Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{attributeUpstream: structpb.NewStringValue(served)}}}
	return in
}

// TestAdviseBooks: a request is in the picker's books from its arrival to its end where the other router sent it, and nothing
// else is.
func TestAdviseBooks(t *testing.T) {
	const home, other = "10.0.0.1:8000", "10.0.0.2:8000"
	r := newAdviserRig(t, setup{endpoints: []string{home, other}})
	e := r.open()
	e.send(sent(completionsPath, home, idsBody(100))...)
	r.await("the request to be booked", func() bool { return r.outstanding(home) == 1 })
	e.send(observed(respond("200", "text/event-stream", home), responseChunk(firstEvent, false))...)
	time.Sleep(10 * time.Millisecond)
	if h, o := r.outstanding(home), r.outstanding(other); h != 1 || o != 0 {
		t.Errorf("%d and %d requests booked, want 1 and 0", h, o)
	}
	e.cancel()
	r.await("its end", func() bool { return r.outstanding(home) == 0 })

	e = r.open()
	e.send(sent(completionsPath, home, idsBody(100))...)
	r.await("the request to be booked", func() bool { return r.outstanding(home) == 1 })
	e.send(observed(respond("200", "text/event-stream", other), responseChunk(firstEvent, false))...)
	r.await("it to be taken off the books, for another served it", func() bool { return r.outstanding(home) == 0 })
	e.cancel()
	r.await("no stream", func() bool { return r.server.watchers.Load() == 0 })
	for _, e := range r.picker.Status().Endpoints {
		if e.Out {
			t.Errorf("%s counts as failed", e.ID)
		}
	}
	if n := r.value("grapevine_extproc_picks_total"); n != 0 {
		t.Errorf("%v picks for Envoy", n)
	}
}

// TestAdviseNeverAnswers: Envoy that waits for answers is told what is wrong, and never gets one.
func TestAdviseNeverAnswers(t *testing.T) {
	r := newAdviserRig(t, setup{})
	e := r.open()
	e.send(post(fullDuplex, none), chunk(idsBody(10), true))
	e.fails(codes.FailedPrecondition)
	r.count("grapevine_extproc_protocol_errors_total", 1, "not observing")
}

// TestAdviseQueueFull: what nobody has time to judge is recorded without its prompt.
func TestAdviseQueueFull(t *testing.T) {
	r := newAdviserRig(t, setup{})
	rec := r.record(t)
	full := make(chan *judgement)
	w := &watch{service: &service{Server: r.server}, arrived: time.Now(), x: sighting{limit: 1 << 20}}
	jobs := r.server.adviser.jobs
	r.stop() // no worker looks at it
	r.server.adviser.jobs = full
	defer func() { r.server.adviser.jobs = jobs }()
	w.in = r.server.adviser.recorder.Begin(w.arrived)
	r.server.adviser.report.begin()
	for _, m := range append(sent(completionsPath, "10.0.0.1:8000", idsBody(100)), answered("200", "application/json", "10.0.0.1:8000", wholeJSON)...) {
		w.message(m)
	}
	w.end()
	if a := r.server.Advice(); a.NotCompared[resultBusy] != 1 {
		t.Errorf("%+v, want one that nobody had time for", a)
	}
	if lines := rec.until(1); len(lines) != 1 || lines[0].InputLength != 100 || len(lines[0].HashIDs) != 0 {
		t.Errorf("recorded %+v", lines)
	}
}

// TestAdviseWithoutEndpoints: health checks pass all the same, so that Envoy shows what there is to record.
func TestAdviseWithoutEndpoints(t *testing.T) {
	r := newAdviserRig(t, setup{endpoints: []string{}})
	r.server.SetReady(true)
	h, err := healthv1.NewHealthClient(r.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: extprocv3.ExternalProcessor_ServiceDesc.ServiceName})
	if err != nil || h.Status != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", h, err)
	}
	rec := r.record(t)
	r.watch(sent(completionsPath, "10.0.0.1:8000", idsBody(100)), answered("200", "application/json", "10.0.0.1:8000", wholeJSON), true)
	if lines := rec.until(1); len(lines) != 1 || lines[0].InputLength != 100 || lines[0].Served != "10.0.0.1:8000" {
		t.Errorf("recorded %+v", lines)
	}
}

func TestCompare(t *testing.T) {
	const a, b = "10.0.0.1:8000", "10.0.0.2:8000"
	candidate := func(endpoint string, tokens int, rung picker.Rung) picker.Candidate {
		return picker.Candidate{Endpoint: endpoint, CachedTokens: tokens, Rung: rung}
	}
	both := []picker.Candidate{candidate(a, 64, picker.RungDigest), candidate(b, 32, picker.RungSuspect)}
	ranks := []picker.Candidate{candidate(a+"#0", 64, picker.RungDigest), candidate(a+"#1", 96, picker.RungDigest), candidate(b+"#0", 0, picker.RungDigest)}
	tests := []struct {
		name   string
		picked string
		list   []picker.Candidate
		served string
		rank   int
		want   verdict
	}{
		{"the same", a, both, a, -1, verdict{result: resultCompared, prompt: 100, ours: 64, theirs: 64, same: true}},
		{"another", a, both, b, -1, verdict{result: resultCompared, prompt: 100, ours: 64, theirs: 32}},
		{"another that has more", b, both, a, -1, verdict{result: resultCompared, prompt: 100, ours: 32, theirs: 64}},
		{"would wait", "", both, b, -1, verdict{result: resultCompared, prompt: 100, ours: 64, theirs: 32, held: true}},
		{"a rank that is told", b + "#0", ranks, a, 0, verdict{result: resultCompared, prompt: 100, ours: 0, theirs: 64}},
		{"ranks that are not told", a + "#0", ranks, a, -1, verdict{result: resultCompared, prompt: 100, ours: 64, theirs: 96, same: true}},
		{"not in the pool", a, both, "10.0.0.3:8000", -1, verdict{result: resultEndpoint}},
		{"not told", a, both, "", -1, verdict{result: resultEndpoint}},
		{"theirs has no agent", a, []picker.Candidate{both[0], candidate(b, 32, picker.RungSpeculation)}, b, -1, verdict{result: resultDigest}},
		{"ours has no agent", b, []picker.Candidate{both[0], candidate(b, 32, picker.RungLoad)}, a, -1, verdict{result: resultDigest}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got verdict
			w := wouldOf(&picker.Receipt{Endpoint: tt.picked, Candidates: tt.list, PromptTokens: 100})
			got.compare(&w, tt.served, tt.rank)
			if got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// FuzzSighting: whatever comes in whatever order, a request is there once at most, and no more of it is kept than may be.
func FuzzSighting(f *testing.F) {
	kinds := []*extprocv3.ProcessingRequest{
		post(none, streamed), get("/v1/models", none), sent(completionsPath, "10.0.0.1:8000,x", nil)[0], headeredOnly("[::1]:80", nil)[0],
		chunk(idsBody(5), false), chunk(nil, true), trailers(), respond("200", "text/event-stream", "a:1"), respond("503", "application/json", ""),
		attributed(answered("200", "application/json", ""), "a:1")[0], responseChunk(firstEvent, false), responseChunk(wholeJSON, true), lastTrailers(), {},
	}
	f.Add([]byte{0, 4, 5, 7, 10, 11})
	f.Add([]byte{2, 4, 6, 9, 10, 12})
	f.Add([]byte{8, 4, 4, 4, 5, 5, 3})
	f.Fuzz(func(t *testing.T, sequence []byte) {
		x := sighting{limit: 128}
		ready := 0
		for _, b := range sequence[:min(len(sequence), 64)] {
			if x.take(kinds[int(b)%len(kinds)]) {
				ready++
			}
			kept := 0
			for _, c := range x.chunks {
				kept += len(c)
			}
			if ready > 1 || kept != x.size || kept > x.limit || x.skipped && kept > 0 {
				t.Fatalf("ready %d times, %d bytes kept, %d counted, skipped %v", ready, kept, x.size, x.skipped)
			}
		}
		x.answer.outcome()
	})
}

func TestLate(t *testing.T) {
	compared := verdict{result: resultCompared, prompt: 100, ours: 96, theirs: 96, engine: 32, engineOf: 100}
	tests := []struct {
		name         string
		same         bool
		engine       int
		ours, theirs int
		result       string
	}{
		{"elsewhere", false, 32, 96, 32, resultCompared},
		{"at the same", true, 32, 32, 32, resultCompared},
		{"the engine found more", true, 99, 96, 96, resultCompared},
		{"the engine does not tell", false, -1, 0, 0, resultLate},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := compared
			v.same, v.engine = tt.same, tt.engine
			if v.correct(); v.ours != tt.ours || v.theirs != tt.theirs || v.result != tt.result {
				t.Errorf("%+v, want %+v", v, tt)
			}
		})
	}
}

func TestReport(t *testing.T) {
	now := time.Now()
	r := newReport(now, nil)
	for _, v := range []verdict{
		{result: resultCompared, prompt: 100, ours: 64, theirs: 32, engine: 30, engineOf: 101},
		{result: resultCompared, prompt: 100, ours: 48, theirs: 48, same: true, held: true, engine: -1},
		{result: resultCompared, prompt: 19, ours: 16, theirs: 10, engine: 10, engineOf: 20, late: true},
		{result: resultUnserved, engine: -1},
	} {
		r.begin()
		r.end(v)
	}
	r.begin()
	r.missed()
	want := &Advice{
		Since: now, Requests: 6, InProgress: 1, Compared: 3, NotCompared: map[string]int{resultUnserved: 1, resultMissed: 1},
		SameEndpoint: 1, WouldWait: 1, Late: 1, PromptTokens: 219, OursTokens: 128, TheirsTokens: 90,
		Checked: Checked{Requests: 1, PromptTokens: 101, OursTokens: 64, TheirsTokens: 32, CachedTokens: 30},
		Engines: EngineTold{Requests: 2, PromptTokens: 121, CachedTokens: 40},
	}
	if d := cmp.Diff(want, r.advice()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
