package extproc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/status"

	"google.golang.org/grpc/codes"
)

func code(err error) codes.Code { return status.Code(err) }

const (
	firstEvent = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"
	lastEvents = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\ndata: [DONE]\n\n"
	wholeJSON  = `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":64}}}`
)

// TestResponse: what the picker is told of a response, by the stream of the pick itself or by an observing one, however it is
// cut.
func TestResponse(t *testing.T) {
	const home, other = "10.0.0.1:8000", "10.0.0.2:8000"
	tests := []struct {
		name     string
		response []*extprocv3.ProcessingRequest
		told     []string
	}{
		{"a stream", []*extprocv3.ProcessingRequest{respond("200", "text/event-stream; charset=utf-8", home), responseChunk(firstEvent, false), responseChunk(lastEvents, true)}, []string{"first token from " + home, "done with 64 of 100 tokens cached 200 on " + home}},
		{"a stream with trailers", []*extprocv3.ProcessingRequest{respond("200", "text/event-stream", home), responseChunk(firstEvent+lastEvents, false), lastTrailers()}, []string{"first token from " + home, "done with 64 of 100 tokens cached 200 on " + home}},
		{"a whole answer", []*extprocv3.ProcessingRequest{respond("200", "application/json", home), responseChunk(wholeJSON[:30], false), responseChunk(wholeJSON[30:], true)}, []string{"done with 64 of 100 tokens cached 200 on " + home}},
		{"a whole answer with trailers", []*extprocv3.ProcessingRequest{respond("200", "application/json", home), responseChunk(wholeJSON, false), lastTrailers()}, []string{"done with 64 of 100 tokens cached 200 on " + home}},
		{"who served is not told", []*extprocv3.ProcessingRequest{respond("200", "application/json", ""), responseChunk(wholeJSON, true)}, []string{"done with 64 of 100 tokens cached 200 on " + home}},
		{"another served", []*extprocv3.ProcessingRequest{respond("200", "text/event-stream", other), responseChunk(firstEvent+lastEvents, true)}, []string{other + " served for " + home, "first token from " + other, "done with 64 of 100 tokens cached 200 on " + other}},
		{"compressed", []*extprocv3.ProcessingRequest{encoded(respond("200", "text/event-stream", home)), responseChunk(firstEvent+lastEvents, true)}, []string{"done 200 on " + home}},
		{"neither stream nor JSON", []*extprocv3.ProcessingRequest{respond("200", "audio/wav", home), responseChunk("RIFF", true)}, []string{"done 200 on " + home}},
		{"too long to look at", []*extprocv3.ProcessingRequest{respond("200", "application/json", home), responseChunk(strings.Repeat(" ", maxWhole), false), responseChunk(wholeJSON, true)}, []string{"done 200 on " + home}},
		{"an event too long to look at", []*extprocv3.ProcessingRequest{respond("200", "text/event-stream", home), responseChunk(strings.Repeat("x", maxEvent+1), false), responseChunk("\n\n"+lastEvents, true)}, []string{"done 200 on " + home}},
		{"the engine is busy", []*extprocv3.ProcessingRequest{respond("503", "application/json", home), responseChunk("{}", true)}, []string{"done 503 on " + home}},
		{"nobody could be reached", []*extprocv3.ProcessingRequest{local(respond("503", "text/plain", home)), responseChunk("upstream connect error", true)}, []string{"failed 503 on " + home}},
	}
	for _, tt := range tests {
		for _, by := range []string{"itself", "an observer"} {
			t.Run(tt.name+" by "+by, func(t *testing.T) {
				r := newRig(t, setup{endpoints: []string{home, other, "10.0.0.3:8000"}})
				e := r.open()
				shows := streamed
				if by != "itself" {
					shows = none
				}
				m := hinted(post(fullDuplex, shows), list(home))
				e.send(m, chunk(chatBody(10, `,"stream":true`), true))
				e.picked(false)
				if by == "itself" {
					for _, m := range clone(tt.response) {
						e.send(m)
						e.recv()
					}
				} else {
					e.cancel() // as Envoy does when it has the pick
					r.count("grapevine_extproc_streams", 0, "picker")
					o := r.open()
					o.send(observed(post(none, streamed))...)
					r.count("grapevine_extproc_observations_total", 1, "joined")
					o.send(observed(clone(tt.response)...)...)
				}
				r.want(tt.told...)
				r.count("grapevine_extproc_open_picks", 0)
			})
		}
	}
}

func clone(in []*extprocv3.ProcessingRequest) (out []*extprocv3.ProcessingRequest) {
	for _, m := range in {
		out = append(out, &extprocv3.ProcessingRequest{Request: m.Request, MetadataContext: m.MetadataContext})
	}
	return out
}

func encoded(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	h := m.GetResponseHeaders().Headers
	h.Headers = append(h.Headers, headerMap("content-encoding", "gzip").Headers...)
	return m
}

// local takes away what shows that a response is an endpoint's.
func local(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	h := m.GetResponseHeaders().Headers
	h.Headers = h.Headers[:2]
	return m
}

// TestObserver: streams that want no answer get none, whatever they bring.
func TestObserver(t *testing.T) {
	tests := []struct {
		name   string
		in     []*extprocv3.ProcessingRequest
		result string
	}{
		{"of a pick that was never made", observed(post(none, streamed), respond("200", "", ""), responseChunk("a", true)), "unknown"},
		{"without an id", observed(headersOf(":method", "GET"), respond("200", "", "")), "unknown"},
		{"without a request", observed(respond("200", "text/event-stream", ""), responseChunk(firstEvent, true)), ""},
		{"in the wrong order", observed(responseChunk(firstEvent, true), respond("200", "", ""), chunk([]byte("{"), false), lastTrailers(), responseChunk("x", true), post(none, streamed)), "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, setup{})
			o := r.open()
			o.send(tt.in...)
			if tt.result != "" {
				r.count("grapevine_extproc_observations_total", 1, tt.result)
			}
			_ = o.stream.CloseSend()
			o.ends()
			r.want()
		})
	}
}

// TestObserverTellsOfFirstTokens: once there is one, the picker waits for first tokens; and one that leaves early ends its pick.
func TestObserverTellsOfFirstTokens(t *testing.T) {
	r := newRig(t, setup{endpoints: []string{"10.0.0.1:8000"}})
	ask := func(id string) {
		t.Helper()
		e := r.open()
		e.send(headered(post(fullDuplex, none), "x-request-id", id), chunk(chatBody(10, `,"stream":true`), true))
		e.picked(false)
		e.cancel()
	}
	ask("a")
	if !r.events.asked().NoFirstToken {
		t.Error("a first token is waited for that nobody will tell")
	}
	o := r.open()
	o.send(observed(headered(post(none, streamed), "x-request-id", "a"))...)
	r.count("grapevine_extproc_observations_total", 1, "joined")
	ask("b")
	if r.events.asked().NoFirstToken {
		t.Error("no first token is waited for, though there is an observer")
	}
	o.cancel()
	r.want("cancelled 0 on 10.0.0.1:8000")
	r.count("grapevine_extproc_open_picks", 1) // b, which nobody observes
}

// TestObserverOfNamesakes: where requests at the same time have one id, which Envoy can be told to keep, an observer's answer is
// booked for none of them. An id that is used again later is no matter.
func TestObserverOfNamesakes(t *testing.T) {
	const home, other = "10.0.0.1:8000", "10.0.0.2:8000"
	r := newRig(t, setup{endpoints: []string{home, other}})
	ask := func(endpoint string) {
		t.Helper()
		e := r.open()
		e.send(hinted(post(fullDuplex, none), list(endpoint)), chunk(chatBody(10, `,"stream":true`), true))
		e.picked(false)
		e.cancel()
		r.count("grapevine_extproc_streams", 0, "picker")
	}
	observe := func(result string, n float64) *envoy {
		t.Helper()
		o := r.open()
		o.send(observed(post(none, streamed))...)
		r.count("grapevine_extproc_observations_total", n, result)
		return o
	}
	ask(home)
	first := observe("joined", 1)
	ask(other) // the first one is observed already
	second := observe("joined", 2)
	second.send(observed(respond("200", "text/event-stream", other), responseChunk(firstEvent+lastEvents, true))...)
	r.want("first token from "+other, "done with 64 of 100 tokens cached 200 on "+other)
	first.send(observed(respond("200", "text/event-stream", home), responseChunk(lastEvents, true))...)
	r.want("first token from "+other, "done with 64 of 100 tokens cached 200 on "+other, "done with 64 of 100 tokens cached 200 on "+home)
	r.count("grapevine_extproc_open_picks", 0)

	told := r.events.all()
	ask(home)
	ask(other)
	for i := range 2 {
		o := observe("ambiguous", float64(i+1))
		o.send(observed(respond("200", "text/event-stream", home), responseChunk(firstEvent+lastEvents, true))...)
		_ = o.stream.CloseSend()
		o.ends()
	}
	r.want(told...)
	r.count("grapevine_extproc_open_picks", 2) // until they end by themselves
}

func headered(m *extprocv3.ProcessingRequest, name, value string) *extprocv3.ProcessingRequest {
	for _, h := range m.GetRequestHeaders().Headers.Headers {
		if h.Key == name {
			h.RawValue = []byte(value)
		}
	}
	return m
}

// TestUnobserved: a pick of which nobody tells ends by itself.
func TestUnobserved(t *testing.T) {
	r := newRig(t, setup{endpoints: []string{"10.0.0.1:8000"}, config: func(c *Config) { c.Unobserved = 50 * time.Millisecond }})
	for i := range 3 {
		e := r.open()
		e.send(headered(post(fullDuplex, none), "x-request-id", fmt.Sprint(i%2)), chunk(chatBody(10, ""), true)) // two have one id
		e.picked(false)
		e.cancel()
	}
	r.want("done 0 on 10.0.0.1:8000", "done 0 on 10.0.0.1:8000", "done 0 on 10.0.0.1:8000")
	r.count("grapevine_extproc_open_picks", 0)
}
