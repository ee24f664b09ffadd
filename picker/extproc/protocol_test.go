package extproc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/hold"
)

// TestPick: what comes in, by the way in which Envoy treats the body, and what goes out for it.
func TestPick(t *testing.T) {
	body := chatBody(100, `,"stream":true`)
	tests := []struct {
		name string
		in   []*extprocv3.ProcessingRequest
		read func(e *envoy) (list string, body []byte)
		body []byte
		// what the picker is asked
		tokens bool // by its prompt's length
		hold   bool
		first  bool // its first token will be told
	}{
		{
			name: "full duplex, two chunks and an empty one", in: []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body[:50], false), chunk(body[50:], false), chunk(nil, true)},
			read: func(e *envoy) (string, []byte) { return e.picked(false) }, body: body, tokens: true, hold: true, first: true,
		},
		{
			name: "full duplex, one chunk", in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, true)},
			read: func(e *envoy) (string, []byte) { return e.picked(false) }, body: body, tokens: true, hold: true,
		},
		{
			name: "full duplex, trailers", in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, false), trailers()},
			read: func(e *envoy) (string, []byte) { return e.picked(true) }, body: body, tokens: true, hold: true,
		},
		{
			name: "full duplex, trailers and no body", in: []*extprocv3.ProcessingRequest{pathed(post(fullDuplex, none), "/v1/files"), trailers()},
			read: func(e *envoy) (string, []byte) { return e.picked(true) }, hold: true,
		},
		{
			name: "full duplex, another path, not JSON", in: []*extprocv3.ProcessingRequest{pathed(post(fullDuplex, none), "/v1/audio/transcriptions"), chunk([]byte("\xff\x00RIFF"), true)},
			read: func(e *envoy) (string, []byte) { return e.picked(false) }, body: []byte("\xff\x00RIFF"), hold: true,
		},
		{
			name: "full duplex, compressed", in: []*extprocv3.ProcessingRequest{post(fullDuplex, none, "content-encoding", "gzip"), chunk([]byte("\x1f\x8b\x08"), true)},
			read: func(e *envoy) (string, []byte) { return e.picked(false) }, body: []byte("\x1f\x8b\x08"), hold: true,
		},
		{
			name: "full duplex, empty body of another path", in: []*extprocv3.ProcessingRequest{pathed(post(fullDuplex, none), "/start_profile"), chunk(nil, true)},
			read: func(e *envoy) (string, []byte) { return e.picked(false) }, hold: true,
		},
		{
			name: "no body", in: []*extprocv3.ProcessingRequest{get("/v1/models", none)},
			read: func(e *envoy) (string, []byte) {
				m := e.recv()
				return e.pick(m, m.GetRequestHeaders().GetResponse()), nil
			},
		},
		{
			name: "buffered", in: []*extprocv3.ProcessingRequest{post(buffered, streamed), chunk(body, true)},
			read: buffering(false), tokens: true, first: true,
		},
		{
			name: "buffered, trailers", in: []*extprocv3.ProcessingRequest{post(buffered, none), chunk(body, false), trailers()},
			read: buffering(true), tokens: true,
		},
		{
			name: "buffered, trailers and no body", in: []*extprocv3.ProcessingRequest{post(buffered, none), trailers()},
			read: func(e *envoy) (string, []byte) {
				if m := e.recv(); m.GetRequestHeaders() == nil || m.DynamicMetadata != nil {
					t.Errorf("headers were answered with %v", m)
				}
				m := e.recv()
				if m.GetRequestTrailers() == nil {
					t.Errorf("trailers were answered with %v", m)
				}
				return m.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[destination].GetStringValue(), nil
			},
		},
		{
			name: "buffered by an Envoy that does not say so", in: []*extprocv3.ProcessingRequest{silent(post(none, none)), chunk(body, true)},
			read: buffering(false), tokens: true,
		},
		{
			name: "buffered in part", in: []*extprocv3.ProcessingRequest{post(partial, none), chunk(body[:40], false)},
			read: buffering(false),
		},
		{
			name: "streamed", in: []*extprocv3.ProcessingRequest{post(streamed, none), chunk(body[:40], false), chunk(body[40:], true)},
			read: func(e *envoy) (string, []byte) {
				m := e.recv()
				list := e.pick(m, m.GetRequestHeaders().GetResponse())
				for range 2 {
					if m := e.recv(); m.GetRequestBody() == nil || m.GetRequestBody().GetResponse().GetBodyMutation() != nil {
						t.Errorf("chunk was answered with %v", m)
					}
				}
				return list, nil
			},
		},
		{
			name: "body not sent", in: []*extprocv3.ProcessingRequest{post(none, none)},
			read: func(e *envoy) (string, []byte) {
				m := e.recv()
				return e.pick(m, m.GetRequestHeaders().GetResponse()), nil
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, setup{})
			e := r.open()
			e.send(tt.in...)
			list, body := tt.read(e)
			if names := strings.Split(list, ","); len(names) != 3 || !cmp.Equal(slices.Sorted(slices.Values(names)), []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}) {
				t.Errorf("picked %q, want all three endpoints, the best one first", list)
			}
			if !bytes.Equal(body, tt.body) {
				t.Errorf("body came back as %q, want %q", body, tt.body)
			}
			q := r.events.asked()
			if got := q.PromptTokens > 1; got != tt.tokens || q.ID != "r1" || q.Fallbacks != 2 || q.Only != nil {
				t.Errorf("picker was asked for %+v", q)
			}
			if got := q.MaxHold > 3*time.Minute; got != tt.hold {
				t.Errorf("held for %v at most, want held: %v", q.MaxHold, tt.hold)
			}
			if !q.NoFirstToken != tt.first {
				t.Errorf("its first token will be told: %v, want %v", !q.NoFirstToken, tt.first)
			}
			r.count("grapevine_extproc_picks_total", 1, "picked")
		})
	}
}

// pathed changes a request's path.
func pathed(m *extprocv3.ProcessingRequest, path string) *extprocv3.ProcessingRequest {
	for _, h := range m.GetRequestHeaders().Headers.Headers {
		if h.Key == ":path" {
			h.RawValue = []byte(path)
		}
	}
	return m
}

// silent is a message of an Envoy before 1.33.
func silent(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	m.ProtocolConfig = nil
	return m
}

// buffering reads the two answers to a buffered body: the first lets it come, and takes the client's own header away already.
func buffering(trailers bool) func(e *envoy) (string, []byte) {
	return func(e *envoy) (string, []byte) {
		e.t.Helper()
		m := e.recv()
		if c := m.GetRequestHeaders().GetResponse(); c == nil || m.DynamicMetadata != nil || !cmp.Equal(c.GetHeaderMutation().GetRemoveHeaders(), []string{destination}) {
			e.t.Errorf("headers were answered with %v", m)
		}
		m = e.recv()
		c := m.GetRequestBody().GetResponse()
		if c == nil || c.BodyMutation != nil {
			e.t.Errorf("body was answered with %v", m)
		}
		if trailers && e.recv().GetRequestTrailers() == nil {
			e.t.Error("trailers were not answered")
		}
		return e.pick(m, c), nil
	}
}

// TestNoPick: what the client gets in place of an endpoint's answer.
func TestNoPick(t *testing.T) {
	tests := []struct {
		name    string
		setup   setup
		in      []*extprocv3.ProcessingRequest
		status  int
		typ     string
		message string
		dropped string
		retry   bool
		result  string
	}{
		{
			name: "no endpoint", setup: setup{endpoints: []string{}}, in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(chatBody(10, ""), true)},
			status: 503, typ: "unavailable", message: "no endpoint", dropped: "rejected-no-endpoints", result: "no_endpoints",
		},
		{
			name: "no endpoint for a GET", setup: setup{endpoints: []string{}}, in: []*extprocv3.ProcessingRequest{get("/v1/models", none)},
			status: 503, typ: "unavailable", message: "no endpoint", dropped: "rejected-no-endpoints", result: "no_endpoints",
		},
		{
			name: "overloaded", setup: setup{pick: func(context.Context, picker.Request) (picker.Decision, error) {
				return picker.Decision{}, picker.ErrOverloaded{RetryAfter: 3 * time.Second, Reason: hold.Shed}
			}}, in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(chatBody(10, ""), true)},
			status: 429, typ: "overloaded_error", message: "overloaded", dropped: "rejected-saturated", retry: true, result: "overloaded",
		},
		{
			name: "overloaded, after a buffered body", setup: setup{pick: func(context.Context, picker.Request) (picker.Decision, error) {
				return picker.Decision{}, picker.ErrOverloaded{RetryAfter: 3 * time.Second, Reason: hold.Full}
			}}, in: []*extprocv3.ProcessingRequest{post(buffered, none), chunk(chatBody(10, ""), true)},
			status: 429, typ: "overloaded_error", message: "overloaded", dropped: "rejected-saturated", retry: true, result: "overloaded",
		},
		{
			name: "unknown model", setup: setup{pick: func(_ context.Context, q picker.Request) (picker.Decision, error) {
				return picker.Decision{}, picker.ErrUnknownModel{Model: q.Model, Known: []string{"n"}}
			}}, in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(chatBody(10, ""), true)},
			status: 404, typ: "invalid_request_error", message: `no endpoint serves model "m"`, result: "unknown_model",
		},
		{
			name: "not JSON", in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk([]byte("hello"), true)},
			status: 400, typ: "invalid_request_error", message: "request body", result: "bad_request",
		},
		{
			name: "empty body", in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(nil, true)},
			status: 400, typ: "invalid_request_error", message: "request body", result: "bad_request",
		},
		{
			name: "too large", setup: setup{options: func(o *Options) { o.MaxBodyBytes = 2048 }}, in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(chatBody(2000, ""), false), chunk(chatBody(2000, ""), false)},
			status: 413, typ: "invalid_request_error", message: "--max-body-bytes", result: "too_large",
		},
		{
			name: "too large by its own word", setup: setup{options: func(o *Options) { o.MaxBodyBytes = 2048 }}, in: []*extprocv3.ProcessingRequest{post(fullDuplex, none, "content-length", "4000")},
			status: 413, typ: "invalid_request_error", message: "--max-body-bytes", result: "too_large",
		},
		{
			name: "too large, buffered", setup: setup{options: func(o *Options) { o.MaxBodyBytes = 2048 }}, in: []*extprocv3.ProcessingRequest{post(buffered, none), chunk(chatBody(4000, ""), true)},
			status: 413, typ: "invalid_request_error", message: "--max-body-bytes", result: "too_large",
		},
		{
			name: "body does not come", setup: setup{options: func(o *Options) { o.ClientTimeout = 20 * time.Millisecond }}, in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(chatBody(2000, ""), false)},
			status: 408, typ: "invalid_request_error", message: "--client-timeout", result: "client_timeout",
		},
		{
			name: "buffered body does not come", setup: setup{options: func(o *Options) { o.ClientTimeout = 20 * time.Millisecond }}, in: []*extprocv3.ProcessingRequest{post(buffered, none)},
			status: 408, typ: "invalid_request_error", message: "--client-timeout", result: "client_timeout",
		},
		{
			name: "too much of all bodies", setup: setup{options: func(o *Options) { o.MaxBodiesBytes = 2048 }}, in: []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(chatBody(4000, ""), false)},
			status: 429, typ: "overloaded_error", message: "--max-bodies-bytes", dropped: "rejected-saturated", retry: true, result: "overloaded",
		},
		{
			name: "too many streams", setup: setup{options: func(o *Options) { o.MaxStreams = 0 }}, in: []*extprocv3.ProcessingRequest{post(fullDuplex, none)},
			status: 429, typ: "overloaded_error", message: "--max-concurrent", dropped: "rejected-saturated", retry: true, result: "overloaded",
		},
		{
			name: "too late", setup: setup{config: func(c *Config) { c.Deadline = 20 * time.Millisecond }, pick: never},
			in:     []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(chatBody(10, ""), true)},
			status: 503, typ: "unavailable", message: "--ext-proc-deadline", dropped: "rejected-ttl-expired", result: "deadline",
		},
		{
			name: "subset of strangers", in: []*extprocv3.ProcessingRequest{hinted(post(fullDuplex, none), list("10.9.9.9:1")), chunk(chatBody(10, ""), true)},
			status: 503, typ: "unavailable", message: "no endpoint", dropped: "rejected-no-endpoints", result: "no_endpoints",
		},
		{
			name: "empty subset", in: []*extprocv3.ProcessingRequest{hinted(post(fullDuplex, none), list()), chunk(chatBody(10, ""), true)},
			status: 503, typ: "unavailable", message: "no endpoint", dropped: "rejected-no-endpoints", result: "no_endpoints",
		},
		{
			name: "subset that is none", in: []*extprocv3.ProcessingRequest{hinted(post(fullDuplex, none), structpb.NewNumberValue(3)), chunk(chatBody(10, ""), true)},
			status: 503, typ: "unavailable", message: "no endpoint", dropped: "rejected-no-endpoints", result: "no_endpoints",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.setup)
			e := r.open()
			e.send(tt.in...)
			m := e.recv()
			if m.GetRequestHeaders() != nil && m.DynamicMetadata == nil {
				m = e.recv() // a buffered body may come
			}
			i := m.GetImmediateResponse()
			if i == nil {
				t.Fatalf("got %v, want an immediate response", m)
			}
			var got struct {
				Error struct {
					Message, Type string
					Code          int
				}
			}
			if err := json.Unmarshal(i.Body, &got); err != nil {
				t.Fatalf("body %q: %v", i.Body, err)
			}
			if int(i.Status.Code) != tt.status || got.Error.Code != tt.status || got.Error.Type != tt.typ || !strings.Contains(got.Error.Message, tt.message) {
				t.Errorf("status %d, body %s; want %d, type %s, message with %q", i.Status.Code, i.Body, tt.status, tt.typ, tt.message)
			}
			h := i.Headers.SetHeaders
			if header(h, "content-type") != "application/json" || header(h, "x-request-id") != "r1" || header(h, headerDropped) != tt.dropped || (header(h, "retry-after") != "") != tt.retry {
				t.Errorf("headers %v", h)
			}
			e.ends()
			r.count("grapevine_extproc_picks_total", 1, tt.result)
			r.count("grapevine_extproc_streams", 0, "picker")
			if n := r.server.bodies.Load(); n != 0 {
				t.Errorf("%d bytes of bodies are counted still", n)
			}
			r.want()
		})
	}
}

// TestClientTimeoutIsForBodies: a request that is here in time has all the time to be picked for, and its answer too.
func TestClientTimeoutIsForBodies(t *testing.T) {
	const wait = 50 * time.Millisecond
	var r *rig
	r = newRig(t, setup{
		options: func(o *Options) { o.ClientTimeout = wait },
		pick: func(ctx context.Context, q picker.Request) (picker.Decision, error) {
			time.Sleep(2 * wait)
			return r.picker.Pick(ctx, q)
		},
	})
	e := r.open()
	e.send(post(fullDuplex, streamed), chunk(chatBody(10, ""), true))
	e.picked(false)
	time.Sleep(2 * wait)
	e.send(respond("200", "application/json", ""))
	e.recv()
	e.send(responseChunk(wholeJSON, true))
	e.recv()
	r.count("grapevine_extproc_picks_total", 1, "picked")
}

// never is a picker that holds a request until its context ends.
func never(ctx context.Context, _ picker.Request) (picker.Decision, error) {
	<-ctx.Done()
	return picker.Decision{}, ctx.Err()
}

func list(addresses ...string) *structpb.Value {
	l := &structpb.ListValue{}
	for _, a := range addresses {
		l.Values = append(l.Values, structpb.NewStringValue(a))
	}
	return structpb.NewListValue(l)
}

func hinted(m *extprocv3.ProcessingRequest, subset *structpb.Value) *extprocv3.ProcessingRequest {
	m.MetadataContext = metadata("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", subset)
	return m
}

// fixedPools is a pool watcher that knows what it is given.
type fixedPools map[string][]string

func (p fixedPools) Members(pool string) ([]string, bool) {
	m, ok := p[pool]
	return m, ok
}

func (fixedPools) Objective(pool, name string) (int, bool) {
	priority, ok := map[string]int{"gold": 10, "batch": -1}[name]
	return priority, ok
}

// TestRestricted: to a subset by Envoy, to a pool by the listener.
func TestRestricted(t *testing.T) {
	pools := fixedPools{"ns/a": {"10.0.0.1:8000", "10.0.0.2:8000"}, "ns/empty": {}}
	tests := []struct {
		name string
		pool string
		hint *structpb.Value
		only []string
	}{
		{name: "not at all"},
		{name: "a list", hint: list("10.0.0.2:8000", " 10.0.0.3:8000"), only: []string{"10.0.0.2:8000", "10.0.0.3:8000"}},
		{name: "a string", hint: structpb.NewStringValue("10.0.0.2:8000, 10.0.0.3:8000"), only: []string{"10.0.0.2:8000", "10.0.0.3:8000"}},
		{name: "IPv6 in another form", hint: list("[fd00:0:0:0::1]:8000", "10.0.0.3:8000"), only: []string{"[fd00::1]:8000", "10.0.0.3:8000"}},
		{name: "a pool", pool: "ns/a", only: []string{"10.0.0.1:8000", "10.0.0.2:8000"}},
		{name: "a pool and a subset", pool: "ns/a", hint: list("10.0.0.2:8000", "10.0.0.3:8000"), only: []string{"10.0.0.2:8000"}},
		{name: "a pool and another subset", pool: "ns/a", hint: list("10.0.0.3:8000"), only: []string{}},
		{name: "an empty pool", pool: "ns/empty", only: []string{}},
		{name: "an unknown pool", pool: "ns/x", only: []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, setup{
				config: func(c *Config) {
					if tt.pool != "" {
						c.Listen = []string{tt.pool + "=127.0.0.1:0"}
					}
				},
				options: func(o *Options) { o.Pools = pools },
			})
			e := r.open()
			m := post(fullDuplex, none)
			if tt.hint != nil {
				hinted(m, tt.hint)
			}
			e.send(m, chunk(chatBody(10, ""), true))
			if len(tt.only) == 0 && tt.only != nil {
				if i := e.recv().GetImmediateResponse(); i.GetStatus().GetCode() != 503 {
					t.Errorf("got %v, want a 503", i)
				}
			} else {
				list, _ := e.picked(false)
				for name := range strings.SplitSeq(list, ",") {
					if tt.only != nil && !slices.Contains(tt.only, name) {
						t.Errorf("picked %q", list)
					}
				}
			}
			if got := r.events.asked().Only; !cmp.Equal(got, tt.only) || (got == nil) != (tt.only == nil) {
				t.Errorf("picker was asked to choose among %v, want %v", got, tt.only)
			}
		})
	}
}

// TestTrust: the headers of llm-d count where the operator says so.
func TestTrust(t *testing.T) {
	tests := []struct {
		name    string
		trust   bool
		headers []string
		want    picker.Request
	}{
		{"not trusted", false, []string{headerObjective, "gold", headerFairness, "tenant"}, picker.Request{}},
		{"objective and tenant", true, []string{headerObjective, "gold", headerFairness, "tenant"}, picker.Request{Priority: 10, Flow: "tenant"}},
		{"the old name", true, []string{headerOldObjective, "gold"}, picker.Request{Priority: 10}},
		{"the new name first", true, []string{headerOldObjective, "batch", headerObjective, "gold"}, picker.Request{Priority: 10}},
		{"below zero is sheddable", true, []string{headerObjective, "batch"}, picker.Request{Priority: -1, Sheddable: true}},
		{"unknown", true, []string{headerObjective, "lead"}, picker.Request{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, setup{config: func(c *Config) { c.TrustHeaders = tt.trust }, options: func(o *Options) { o.Objectives = fixedPools{} }})
			e := r.open()
			e.send(post(fullDuplex, none, tt.headers...), chunk(chatBody(10, ""), true))
			e.picked(false)
			q := r.events.asked()
			if got := (picker.Request{Priority: q.Priority, Flow: q.Flow, Sheddable: q.Sheddable}); !cmp.Equal(got, tt.want) {
				t.Errorf("picker was asked with %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestRequestHeaders: what of the client's headers does not get through, and what is added.
func TestRequestHeaders(t *testing.T) {
	r := newRig(t, setup{pick: func(_ context.Context, q picker.Request) (picker.Decision, error) {
		return picker.Decision{
			Endpoint:  picker.Endpoint{ID: "10.0.0.1:8000#2", Rank: 2, Ranks: 4},
			Fallbacks: []picker.Endpoint{{ID: "10.0.0.2:8000", Ranks: 1}, {ID: "10.0.0.3:8000#0", Ranks: 4}},
		}, nil
	}})
	e := r.open()
	e.send(headersOf(":method", "POST", ":path", chatPath, "x-gateway-destination-endpoint", "127.0.0.1:9901", "x-data-parallel-rank", "9"), chunk(chatBody(10, ""), true))
	if c := e.recv().GetRequestHeaders(); c == nil { // buffered
		t.Error("headers were not answered")
	}
	m := e.recv()
	c := m.GetRequestBody().GetResponse()
	if got := e.pick(m, c); got != "10.0.0.1:8000,10.0.0.3:8000" {
		t.Errorf("picked %q, want the endpoint and the one that has its rank too", got)
	}
	if got := m.DynamicMetadata.Fields["envoy.lb"].GetStructValue().Fields["x-grapevine-gateway"].GetStringValue(); got != r.server.Addrs()[0].String() {
		t.Errorf("picked by %q, want the listener's address", got)
	}
	if got := header(c.HeaderMutation.SetHeaders, headerRank); got != "2" {
		t.Errorf("rank %q, want 2", got)
	}
	if id := header(c.HeaderMutation.SetHeaders, headerRequestID); id == "" || id != r.events.asked().ID {
		t.Errorf("request id %q, picker was asked for %q: want one made here", id, r.events.asked().ID)
	}
}

// TestBytesComeBack: every byte, however Envoy cuts a body, of requests and responses.
func TestBytesComeBack(t *testing.T) {
	r := newRig(t, setup{})
	rng := rand.New(rand.NewPCG(1, 2))
	for i, size := range []int{1, 61_999, 62_000, 62_001, 124_000, 130_000, 1 << 20, 16 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			e := r.open()
			body := chatBody(size, fmt.Sprintf(`,"user":"%x"`, rng.Uint64()))
			withTrailers := i%2 == 1
			go func() {
				e.send(post(fullDuplex, fullDuplex))
				e.send(cut(rng, body, !withTrailers)...)
				if withTrailers {
					e.send(trailers())
				}
			}()
			if _, back := e.picked(withTrailers); !bytes.Equal(back, body) {
				t.Errorf("%d bytes came back of %d, or others", len(back), len(body))
			}
			go func() {
				e.send(respond("200", "application/octet-stream", ""))
				for _, m := range cut(rng, body, true) {
					e.send(responseChunk(string(m.GetRequestBody().Body), m.GetRequestBody().EndOfStream))
				}
			}()
			if m := e.recv(); m.GetResponseHeaders() == nil {
				t.Fatalf("response headers were answered with %v", m)
			}
			var back []byte
			for end := false; !end; {
				p := e.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse()
				if p == nil || len(p.Body) > maxPiece {
					t.Fatal("want a piece of the response")
				}
				back, end = append(back, p.Body...), p.EndOfStream
			}
			if !bytes.Equal(back, body) {
				t.Errorf("response: %d bytes came back of %d, or others", len(back), len(body))
			}
			e.cancel()
		})
	}
}

// cut makes chunks of a body as Envoy might.
func cut(rng *rand.Rand, body []byte, end bool) (out []*extprocv3.ProcessingRequest) {
	for len(body) > 0 {
		n := 1 + rng.IntN(1<<(10+rng.IntN(12)))
		n = min(n, len(body))
		out = append(out, chunk(body[:n], false))
		body = body[n:]
	}
	if end && rng.IntN(2) == 0 && len(out) > 0 {
		out[len(out)-1].GetRequestBody().EndOfStream = true
	} else if end {
		out = append(out, chunk(nil, true))
	}
	return out
}

func TestHealth(t *testing.T) {
	r := newRig(t, setup{config: func(c *Config) { c.HealthListen = "127.0.0.1:0" }})
	conns := []healthv1.HealthClient{healthv1.NewHealthClient(r.conn), healthv1.NewHealthClient(r.dial(1))}
	all := []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"}
	want := func(when string, status healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for i, c := range conns {
			for _, name := range all {
				got, err := c.Check(t.Context(), &healthv1.HealthCheckRequest{Service: name})
				if err != nil || got.Status != status {
					t.Errorf("%s, listener %d, service %q: %v, %v; want %v", when, i, name, got.GetStatus(), err, status)
				}
			}
			if got, err := c.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "liveness"}); err != nil || got.Status != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("%s, listener %d: liveness %v, %v", when, i, got.GetStatus(), err)
			}
			if _, err := c.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "x"}); err == nil {
				t.Errorf("%s: another service is known", when)
			}
		}
	}
	want("at first", healthv1.HealthCheckResponse_NOT_SERVING)
	r.server.SetReady(true)
	want("when ready", healthv1.HealthCheckResponse_SERVING)
	if err := r.picker.SetEndpoints(nil); err != nil {
		t.Fatal(err)
	}
	r.server.judge()
	want("without endpoints", healthv1.HealthCheckResponse_NOT_SERVING)
	if err := r.picker.SetEndpoints([]string{"10.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	r.server.judge()
	want("with one again", healthv1.HealthCheckResponse_SERVING)
	r.server.Drain()
	want("draining", healthv1.HealthCheckResponse_NOT_SERVING)
}
