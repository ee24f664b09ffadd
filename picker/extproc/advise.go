package extproc

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/recording"
)

const (
	// adviseWorkers read prompts and ask the picker, away from the streams, which only take in what Envoy sends.
	adviseWorkers = 32
	// adviseQueue bounds the requests that wait for them.
	adviseQueue = 1024
	// adviseWait bounds the work on one: an engine that is asked for a prompt's tokens may hang.
	adviseWait = 2 * time.Second
	// adviseFresh is how soon after its end a request must have been judged: later, its own blocks may be in the caches.
	adviseFresh = 500 * time.Millisecond
)

// adviser compares another router's choices with those that this gateway would have made. It is told of each request by an
// observing stream, which gets no answer. Safe for concurrent use.
//
// The picker is asked by Explain, which binds nothing: no would-be pick is in its books. Where the other router tells its choice
// with the request, as an endpoint picker does, the request is booked where it went, from then on to its end: the same load and
// the same blocks just sent are known as if it had been picked here. Where it does not, load is what the agents say of their
// engines, up to a tick old; nothing is booked then, since who served shows when the engine has it long since.
type adviser struct {
	opt      Options
	reader   *inbound.Reader
	recorder *recording.Recorder
	buffers  inbound.Buffers
	jobs     chan *judgement
	report   *report
}

func newAdviser(r *inbound.Reader, opt Options, now time.Time) *adviser {
	a := &adviser{opt: opt, reader: r, recorder: opt.Recorder, jobs: make(chan *judgement, adviseQueue), report: newReport(now, opt.Registerer)}
	if a.recorder == nil {
		a.recorder = recording.New(recording.Config{BlockSizes: opt.Picker.BlockSizes, Hasher: opt.Picker.Hasher()})
	}
	return a
}

// judgement is what this gateway would have done with a request. Its maker reads it when done is closed.
type judgement struct {
	demand   demand
	only     []string
	chosen   string      // address that the other router chose; "": it does not show
	ended    time.Time   // the request
	answered atomic.Bool // a response has begun

	kind   openai.Kind
	pick   picker.Request // as far as it is known
	prompt prompt.Result
	would  would
	err    error            // of what could not be judged
	late   bool             // the request's own blocks may have been in the caches
	booked *picker.Decision // where the other router sent it; nil: it is not booked
	done   chan struct{}
}

// work judges requests until ctx ends. contain is deferred for each, so that a panic is the end of that one alone.
func (a *adviser) work(ctx context.Context, contain func(*error)) {
	for {
		select {
		case <-ctx.Done():
			return
		case j := <-a.jobs:
			a.judge(ctx, j, contain)
			a.report.judging.Observe(time.Since(j.ended).Seconds())
			close(j.done)
		}
	}
}

func (a *adviser) judge(ctx context.Context, j *judgement, contain func(*error)) {
	defer contain(&j.err)
	ctx, cancel := context.WithTimeout(ctx, adviseWait)
	defer cancel()
	body, done := j.demand.body(&a.buffers)
	defer done()
	req, err := j.demand.parse(body)
	j.demand.chunks = nil
	if err != nil {
		j.err = err
		return
	}
	if j.kind = req.Kind; !j.kind.Generates() {
		return
	}
	id := inbound.RequestID(j.demand.headers)
	if j.pick, j.prompt, j.err = a.reader.Request(ctx, j.demand.headers, req, id, true); j.err != nil {
		return
	}
	pick := j.pick
	pick.Only = j.only
	receipt, err := a.opt.Picker.Explain(ctx, pick)
	if err != nil {
		j.err = err
		return
	}
	j.would = wouldOf(&receipt)
	j.late = j.answered.Load() || time.Since(j.ended) > adviseFresh
	if j.late || j.chosen == "" {
		return
	}
	pick.Only, pick.MaxHold = []string{j.chosen}, -1
	if d, err := a.opt.Picker.Pick(ctx, pick); err == nil {
		j.booked = &d
	}
}

// advise watches one request.
func (l *service) advise(stream extprocv3.ExternalProcessor_ProcessServer, m *extprocv3.ProcessingRequest) error {
	if !m.GetObservabilityMode() {
		l.metrics.protocol.WithLabelValues("not observing").Inc()
		return status.Error(codes.FailedPrecondition, "this gateway only watches (--ext-proc-advise) and answers nothing: set observability_mode in Envoy's filter")
	}
	a := l.adviser
	if l.watchers.Add(1) > int64(l.opt.MaxStreams) {
		l.watchers.Add(-1)
		a.report.missed()
		return nil // Envoy goes on without
	}
	defer l.watchers.Add(-1)
	kind := l.metrics.streams.WithLabelValues("adviser")
	kind.Inc()
	defer kind.Dec()

	w := &watch{service: l, arrived: time.Now(), x: sighting{limit: int(l.opt.MaxBodyBytes)}}
	w.in = a.recorder.Begin(w.arrived)
	a.report.begin()
	defer w.end()
	for {
		w.message(m)
		if w.x.answer.ended {
			return nil // Envoy itself would keep the stream for seconds (deferred_close_timeout)
		}
		var err error
		if m, err = stream.Recv(); err != nil {
			return gone(err)
		}
	}
}

// watch is one stream that watches a request.
type watch struct {
	*service
	arrived time.Time
	in      recording.Membership
	x       sighting
	taken   int64 // of MaxBodiesBytes
	j       *judgement
	busy    bool // nobody had time to judge
	first   bool // token told
	told    bool // who served
}

// message takes in one message. It waits for nothing.
func (w *watch) message(m *extprocv3.ProcessingRequest) {
	if n := len(m.GetRequestBody().GetBody()); n > 0 {
		w.metrics.bytes.WithLabelValues("request").Add(float64(n))
	}
	before := w.x.size
	ready := w.x.take(m)
	if n := int64(w.x.size - before); n > 0 {
		w.taken += n
		if w.bodies.Add(n) > w.opt.MaxBodiesBytes {
			w.x.skip()
		}
	}
	if w.x.skipped {
		w.free()
	}
	if n := len(m.GetResponseBody().GetBody()); n > 0 {
		w.metrics.bytes.WithLabelValues("response").Add(float64(n))
	}
	if ready && !w.x.answer.begun {
		w.submit()
	}
	if w.x.answer.begun {
		w.tell()
	}
}

func (w *watch) free() {
	w.bodies.Add(-w.taken)
	w.taken = 0
}

// submit hands the request to a worker.
func (w *watch) submit() {
	if w.x.skipped {
		return
	}
	j := &judgement{demand: w.x.demand(), only: w.only(w.x.subset), chosen: w.x.chosen, ended: time.Now(), done: make(chan struct{})}
	w.x.chunks = nil
	select {
	case w.adviser.jobs <- j:
		w.j = j
	default:
		w.busy = true
	}
}

// tell passes on to a booked request what its response shows.
func (w *watch) tell() {
	if w.j == nil {
		return
	}
	w.j.answered.Store(true)
	select {
	case <-w.j.done:
	default:
		return
	}
	d := w.j.booked
	if d == nil {
		return
	}
	if !w.told {
		w.told = true
		if w.x.served != "" && w.x.served != d.Endpoint.Address() { // whatever that says of the endpoint, it is not known here
			w.opt.Picker.Done(*d, withdrawn)
			w.j.booked = nil
			return
		}
	}
	if w.x.answer.output && !w.first {
		w.first = true
		w.opt.Picker.FirstToken(*d)
	}
}

// withdrawn ends what is booked without a word on its endpoint.
var withdrawn = picker.Outcome{CachedTokens: -1, Cancelled: true, Err: context.Canceled}

// end concludes what the stream has shown.
func (w *watch) end() {
	defer w.free()
	j, out := w.j, w.x.answer.outcome()
	if j != nil {
		select {
		case <-j.done:
		case <-w.closing.Done():
			j = nil // no worker may be left
		}
	}
	if j != nil {
		defer j.prompt.Release()
		w.tell()
		if d := j.booked; d != nil {
			if !out.Connected {
				out = withdrawn
			}
			w.opt.Picker.Done(*d, out)
		}
	}
	w.adviser.report.end(w.verdict(j))
	c := &recording.Call{
		Arrived: w.arrived, Request: &openai.Request{Kind: w.kind(j)}, Status: w.x.answer.status,
		Streaming: w.x.answer.form == formEvents, Events: w.x.answer.seen, Outcome: out, Served: w.x.served,
	}
	if j != nil {
		c.Pick, c.Partial = j.pick, j.prompt.Partial
	}
	w.adviser.recorder.End(w.in, c)
}

// kind says which API the request speaks, by its path if its body was not read.
func (w *watch) kind(j *judgement) openai.Kind {
	if j != nil && j.err == nil {
		return j.kind
	}
	path, _, _ := strings.Cut(w.x.headers.Get(":path"), "?")
	return openai.KindOf(path)
}

// verdict compares what the request got with what it would have got here.
func (w *watch) verdict(j *judgement) verdict {
	v := verdict{engine: -1}
	u := &w.x.answer
	switch {
	case !w.kind(j).Generates():
		v.result = resultOther
		return v
	case u.status/100 != 2:
		v.result = resultUnserved
		return v
	}
	if u.counted && u.usage.CachedTokens >= 0 {
		v.engine, v.engineOf = u.usage.CachedTokens, u.usage.PromptTokens
	}
	switch {
	case w.x.skipped:
		v.result = resultBody
	case w.busy:
		v.result = resultBusy
	case j == nil:
		v.result = resultIncomplete
	case j.err != nil:
		v.result = resultFailed
	case j.pick.TokenIDs == nil && j.pick.Chains == nil:
		v.result = resultPrompt
	default:
		v.compare(&j.would, w.x.served, w.x.rank)
		if v.result == resultCompared && j.late {
			v.correct()
		}
	}
	return v
}

// would is what a receipt says of caches. It is kept as long as the request runs, so it is small.
type would struct {
	prompt int // tokens
	ours   int // of has: who would be picked, or waited for as things are
	held   bool
	has    []has
}

// has is what an endpoint has of a prompt.
type has struct {
	endpoint string // its ID
	tokens   int32
	digest   bool // its agent says so
}

func wouldOf(r *picker.Receipt) would {
	w := would{prompt: r.PromptTokens, held: r.Endpoint == "", has: make([]has, len(r.Candidates))}
	for i := range r.Candidates {
		c := &r.Candidates[i]
		w.has[i] = has{c.Endpoint, int32(c.CachedTokens), c.Rung <= picker.RungSuspect}
		if c.Endpoint == r.Endpoint {
			w.ours = i
		}
	}
	return w
}

// compare fills in what the picker would have matched, and what whoever served has. Of ranks that are not told that is the best.
func (v *verdict) compare(w *would, served string, rank int) {
	var ours, theirs *has
	for i := range w.has {
		h := &w.has[i]
		if i == w.ours {
			ours = h
		}
		address, of, ranks := strings.Cut(h.endpoint, "#")
		if address == served && (!ranks || rank < 0 || of == strconv.Itoa(rank)) && (theirs == nil || h.tokens > theirs.tokens) {
			theirs = h
		}
	}
	switch {
	case theirs == nil:
		v.result = resultEndpoint
	case !ours.digest || !theirs.digest:
		v.result = resultDigest
	default:
		address, _, _ := strings.Cut(ours.endpoint, "#")
		v.result, v.same, v.held = resultCompared, address == served, w.held
		v.prompt, v.ours, v.theirs = w.prompt, int(ours.tokens), int(theirs.tokens)
	}
}

// correct makes good for a request that was judged when its answer had begun: its own blocks may count as found where it was
// served. What the engine told is true then. That some would have been picked for these very blocks remains; it is not to our
// favour.
func (v *verdict) correct() {
	if v.late = true; v.engine < 0 {
		*v = verdict{result: resultLate, engine: -1}
		return
	}
	v.theirs = min(v.theirs, v.engine)
	if v.same {
		v.ours = v.theirs
	}
}
