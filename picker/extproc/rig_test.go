package extproc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

const (
	none       = filterv3.ProcessingMode_NONE
	streamed   = filterv3.ProcessingMode_STREAMED
	buffered   = filterv3.ProcessingMode_BUFFERED
	partial    = filterv3.ProcessingMode_BUFFERED_PARTIAL
	fullDuplex = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// noPrompts knows no prompt.
type noPrompts struct{}

func (noPrompts) Resolve(_ context.Context, req *openai.Request, _ string) (prompt.Result, error) {
	return prompt.Result{Rung: prompt.RungNone, EstimatedTokens: req.EstimatedTokens()}, nil
}

// rig is a server with Envoy's side of it.
type rig struct {
	t      testing.TB
	server *Server
	picker *picker.Picker
	reg    *prometheus.Registry
	conn   *grpc.ClientConn // to the first listener
	conns  []*grpc.ClientConn
	events *events
	stop   func()
}

// events are what a picker is told of decisions, and what it is asked.
type events struct {
	decider
	mu   sync.Mutex
	list []string
	asks []picker.Request
}

func (e *events) add(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, fmt.Sprintf(format, args...))
}

func (e *events) FirstToken(d picker.Decision) {
	e.add("first token from %s", d.Endpoint.ID)
	e.decider.FirstToken(d)
}

func (e *events) Served(d picker.Decision, address string) picker.Decision {
	e.add("%s served for %s", address, d.Endpoint.ID)
	return e.decider.Served(d, address)
}

func (e *events) Done(d picker.Decision, o picker.Outcome) {
	what := "done"
	if o.Cancelled {
		what = "cancelled"
	} else if o.Err != nil {
		what = "failed"
	}
	if o.PromptTokens > 0 {
		what += fmt.Sprintf(" with %d of %d tokens cached", o.CachedTokens, o.PromptTokens)
	}
	e.add("%s %d on %s", what, o.Status, d.Endpoint.ID)
	e.decider.Done(d, o)
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string{}, e.list...)
}

// asked returns the last request that the picker was asked for.
func (e *events) asked() picker.Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.asks) == 0 {
		return picker.Request{}
	}
	return e.asks[len(e.asks)-1]
}

// want waits for what the picker should be told.
func (r *rig) want(what ...string) {
	r.t.Helper()
	var got []string
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if got = r.events.all(); strings.Join(got, "; ") == strings.Join(what, "; ") {
			return
		}
	}
	r.t.Errorf("picker was told %q, want %q", got, what)
}

// count waits for a counter, with its labels' values in order, to have a value.
func (r *rig) count(name string, want float64, labels ...string) {
	r.t.Helper()
	var got float64
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if got = r.value(name, labels...); got == want {
			return
		}
	}
	r.t.Errorf("%s%v is %v, want %v", name, labels, got, want)
}

func (r *rig) value(name string, labels ...string) float64 {
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	metric:
		for _, m := range f.GetMetric() {
			for i, l := range m.GetLabel() {
				if i < len(labels) && l.GetValue() != labels[i] {
					continue metric
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return 0
}

// setup is what a test changes of a rig.
type setup struct {
	endpoints []string
	config    func(*Config)
	options   func(*Options)
	pick      func(context.Context, picker.Request) (picker.Decision, error) // nil: the picker's
}

func newRig(t testing.TB, s setup) *rig {
	t.Helper()
	if s.endpoints == nil {
		s.endpoints = []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}
	}
	r := &rig{t: t, reg: prometheus.NewRegistry()}
	pc := picker.Default()
	pc.Endpoints = s.endpoints
	pc.Probe = func(context.Context, picker.Endpoint) error { return errors.New("down") }
	var err error
	if r.picker, err = picker.New(pc); err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.Listen = []string{"127.0.0.1:0"}
	opt := Options{
		Picker: r.picker, Resolver: noPrompts{}, Headers: inbound.DefaultHeaders(),
		MaxBodyBytes: 32 << 20, MaxBodiesBytes: 1 << 30, MaxStreams: 100, ClientTimeout: time.Minute, Registerer: r.reg,
	}
	if s.config != nil {
		s.config(&cfg)
	}
	if s.options != nil {
		s.options(&opt)
	}
	if r.server, err = New(cfg, opt); err != nil {
		t.Fatal(err)
	}
	r.events = &events{decider: r.picker}
	r.server.open.decider = r.events
	choose := s.pick
	if choose == nil {
		choose = r.picker.Pick
	}
	r.server.pick = func(ctx context.Context, req picker.Request) (picker.Decision, error) {
		r.events.mu.Lock()
		r.events.asks = append(r.events.asks, req)
		r.events.mu.Unlock()
		return choose(ctx, req)
	}
	if err := r.server.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.server.Run(ctx) }()
	r.conn = r.dial(0)
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		for _, c := range r.conns {
			c.Close()
		}
	})
	t.Cleanup(r.stop)
	return r
}

// dial connects to a listener.
func (r *rig) dial(listener int) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient(r.server.Addrs()[listener].String(), insecureClient())
	if err != nil {
		r.t.Fatal(err)
	}
	r.conns = append(r.conns, conn)
	return conn
}

func insecureClient() grpc.DialOption {
	return grpc.WithTransportCredentials(insecure.NewCredentials())
}

// envoy is one stream, as Envoy has it.
type envoy struct {
	t      testing.TB
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
}

func (r *rig) open() *envoy {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	r.t.Cleanup(cancel)
	stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return &envoy{r.t, stream, cancel}
}

func (e *envoy) send(messages ...*extprocv3.ProcessingRequest) {
	e.t.Helper()
	for _, m := range messages {
		if err := e.stream.Send(m); err != nil && !errors.Is(err, io.EOF) { // EOF: the next Recv has the reason
			e.t.Fatal(err)
		}
	}
}

// play sends messages as Envoy does: none of the response before the request has come back, and each of it when the one before
// was answered.
func (e *envoy) play(messages ...*extprocv3.ProcessingRequest) {
	e.t.Helper()
	responds := false
	for _, m := range messages {
		response := m.GetResponseHeaders() != nil || m.GetResponseBody() != nil
		if response && !responds {
			responds = true
			e.picked(false)
		}
		e.send(m)
		if response {
			e.recv()
		}
	}
}

func (e *envoy) recv() *extprocv3.ProcessingResponse {
	e.t.Helper()
	m, err := e.stream.Recv()
	if err != nil {
		e.t.Fatalf("no answer: %v", err)
	}
	return m
}

// fails wants the stream to end with a code.
func (e *envoy) fails(code codes.Code) {
	e.t.Helper()
	m, err := e.stream.Recv()
	if err == nil {
		e.t.Errorf("got %v, want the stream to fail", m)
		return
	}
	if status.Code(err) != code {
		e.t.Errorf("stream ended with %v, want %v", err, code)
	}
}

// ends wants the stream to end without an error and without another message.
func (e *envoy) ends() {
	e.t.Helper()
	if m, err := e.stream.Recv(); !errors.Is(err, io.EOF) {
		e.t.Errorf("got %v, %v; want the stream to end", m, err)
	}
}

// picked reads the answer in full duplex: where the request goes and the body that came back.
func (e *envoy) picked(trailers bool) (list string, body []byte) {
	e.t.Helper()
	m := e.recv()
	list = e.pick(m, m.GetRequestHeaders().GetResponse())
	for {
		m := e.recv()
		if m.GetRequestTrailers() != nil {
			if !trailers {
				e.t.Error("trailers came back that were not sent")
			}
			return list, body
		}
		piece := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil || len(piece.Body) > maxPiece {
			e.t.Fatalf("want a piece of the body of at most %d bytes, got %v", maxPiece, m)
		}
		body = append(body, piece.Body...)
		if piece.EndOfStream {
			if trailers {
				e.t.Error("the body's end came back before the trailers")
			}
			return list, body
		}
	}
}

// pick reads a pick, which the header and the metadata must have alike.
func (e *envoy) pick(m *extprocv3.ProcessingResponse, c *extprocv3.CommonResponse) string {
	e.t.Helper()
	inMetadata := m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue()
	inHeader := header(c.GetHeaderMutation().GetSetHeaders(), "x-gateway-destination-endpoint")
	if inHeader != inMetadata || inHeader == "" {
		e.t.Fatalf("picked %q in the header, %q in the metadata: %v", inHeader, inMetadata, m)
	}
	if !c.ClearRouteCache {
		e.t.Error("route cache is not cleared")
	}
	return inHeader
}

func header(list []*corev3.HeaderValueOption, name string) string {
	for _, h := range list {
		if h.Header.Key == name {
			if h.AppendAction != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD {
				return "not overwritten"
			}
			return string(h.Header.RawValue)
		}
	}
	return ""
}

// Messages as Envoy 1.40 sends them.

func headerMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

const chatPath = "/v1/chat/completions"

// post is a request's headers with the modes of both bodies.
func post(request, response mode, more ...string) *extprocv3.ProcessingRequest {
	m := headersOf(append([]string{":method", "POST", ":path", chatPath, ":authority", "model", "x-request-id", "r1"}, more...)...)
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
	return m
}

// get is a request without a body.
func get(path string, response mode) *extprocv3.ProcessingRequest {
	m := headersOf(":method", "GET", ":path", path, ":authority", "model", "x-request-id", "r1")
	m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: fullDuplex, ResponseBodyMode: response}
	m.GetRequestHeaders().EndOfStream = true
	return m
}

func headersOf(pairs ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(pairs...)}}}
}

func chunk(b []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: b, EndOfStream: end}}}
}

func trailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap("x-t", "1")}}}
}

// respond is a response's headers, served by an endpoint.
func respond(status, contentType, served string) *extprocv3.ProcessingRequest {
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
		Headers: headerMap(":status", status, "content-type", contentType, "x-envoy-upstream-service-time", "3"),
	}}}
	if served != "" {
		m.MetadataContext = metadata("envoy.lb", "x-gateway-destination-endpoint-served", structpb.NewStringValue(served))
	}
	return m
}

func metadata(namespace, key string, v *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: v}}}}
}

func responseChunk(b string, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end}}}
}

func lastTrailers() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}}
}

// observed marks messages as those of an observing filter.
func observed(messages ...*extprocv3.ProcessingRequest) []*extprocv3.ProcessingRequest {
	for _, m := range messages {
		m.ObservabilityMode = true
	}
	return messages
}

// chatBody is a chat request of about n bytes.
func chatBody(n int, more string) []byte {
	return fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":%q}]%s}`, bytes.Repeat([]byte("word "), n/5), more)
}
