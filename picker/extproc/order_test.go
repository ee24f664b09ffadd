package extproc

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"

	"github.com/grapevine-llm/grapevine/picker"
)

// TestWrongOrder: a message that can't come ends the stream with an error, so that Envoy never goes on with a part of a body.
func TestWrongOrder(t *testing.T) {
	body := chatBody(100, "")
	half := body[:50]
	tests := []struct {
		name    string
		in      []*extprocv3.ProcessingRequest
		answers int // before the end
		reason  string
	}{
		{"body before headers", []*extprocv3.ProcessingRequest{chunk(half, false)}, 0, "body before headers"},
		{"trailers before headers", []*extprocv3.ProcessingRequest{trailers()}, 0, "trailers before headers"},
		{"second headers", []*extprocv3.ProcessingRequest{post(fullDuplex, none), post(fullDuplex, none)}, 0, "second request headers"},
		{"second headers after the pick", []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, true), post(fullDuplex, none)}, 2, "second request headers"},
		{"body after its end", []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, true), chunk(half, false)}, 2, "body after its end"},
		{"body after trailers", []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, false), trailers(), chunk(half, false)}, 3, "body after its end"},
		{"body after headers that end", []*extprocv3.ProcessingRequest{get("/v1/models", none), chunk(half, false)}, 1, "body after its end"},
		{"second buffered body", []*extprocv3.ProcessingRequest{post(buffered, none), chunk(body, false), chunk(half, false)}, 2, "body after its end"},
		{"streamed body after its end", []*extprocv3.ProcessingRequest{post(streamed, none), chunk(half, true), chunk(half, false)}, 2, "body after its end"},
		{"body that is not to be sent", []*extprocv3.ProcessingRequest{post(none, none), chunk(half, false)}, 1, "body after its end"},
		{"trailers after the end", []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, true), trailers()}, 2, "trailers after the end"},
		{"second trailers", []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, false), trailers(), trailers()}, 3, "trailers after the end"},
		{"second response headers", []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, true), respond("200", "", ""), respond("200", "", "")}, 0, "second response headers"},
		{"response after its end", []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true), respond("200", "", ""), responseChunk("a", true), responseChunk("b", false)}, 0, "response after its end"},
		{"no message at all", []*extprocv3.ProcessingRequest{{}}, 0, "unknown message"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, setup{})
			e := r.open()
			e.play(tt.in[:len(tt.in)-1]...)
			for range tt.answers {
				e.recv()
			}
			e.send(tt.in[len(tt.in)-1])
			e.fails(codes.InvalidArgument)
			r.count("grapevine_extproc_protocol_errors_total", 1, tt.reason)
			r.count("grapevine_extproc_streams", 0, "picker")
		})
	}
}

// TestEndsBeforeItsRequest: Envoy must not take such a stream's end for an answer.
func TestEndsBeforeItsRequest(t *testing.T) {
	for name, in := range map[string][]*extprocv3.ProcessingRequest{
		"after the headers":          {post(fullDuplex, none)},
		"in the body":                {post(fullDuplex, none), chunk([]byte("{"), false)},
		"while the pick is awaited":  {post(fullDuplex, none), chunk(chatBody(10, ""), true)},
		"while a response streams":   {post(fullDuplex, fullDuplex), respond("200", "", ""), responseChunk("a", false)},
		"before a buffered body":     {post(buffered, none)},
		"in a streamed body's pick":  {post(streamed, none)},
		"before a buffered's answer": {post(buffered, none), chunk(chatBody(10, ""), true)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, setup{pick: never})
			e := r.open()
			e.send(in...)
			_ = e.stream.CloseSend()
			for {
				if _, err := e.stream.Recv(); err != nil {
					if got := code(err); got != codes.Aborted {
						t.Errorf("ended with %v", err)
					}
					break
				}
			}
		})
	}
}

// TestLocalReply: Envoy answers the client itself, before or while there is a pick; nothing more is wanted then.
func TestLocalReply(t *testing.T) {
	tests := []struct {
		name string
		in   []*extprocv3.ProcessingRequest
		skip int // answers before
	}{
		{"before the request", nil, 0},
		{"in the body", []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk([]byte("{"), false)}, 0},
		{"while held", []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(chatBody(10, ""), true)}, 0},
		{"while held, buffered", []*extprocv3.ProcessingRequest{post(buffered, none), chunk(chatBody(10, ""), true)}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, setup{pick: never})
			e := r.open()
			e.send(tt.in...)
			for range tt.skip {
				e.recv()
			}
			e.send(respond("504", "text/plain", ""), chunk([]byte("late"), false))
			if m := e.recv(); m.GetResponseHeaders() == nil {
				t.Errorf("got %v", m)
			}
			e.send(responseChunk("stream timeout", true))
			if m := e.recv(); m.GetResponseBody() == nil || m.GetResponseBody().GetResponse().GetBodyMutation() != nil {
				t.Errorf("got %v", m)
			}
			if strings.HasPrefix(tt.name, "while held") {
				r.count("grapevine_extproc_picks_total", 1, "cancelled")
			}
			r.want()
		})
	}
}

// TestResponseAlone: an answer that another filter gave before this one saw the request.
func TestResponseAlone(t *testing.T) {
	r := newRig(t, setup{})
	e := r.open()
	m := respond("401", "application/json", "")
	m.ProtocolConfig = post(fullDuplex, fullDuplex).ProtocolConfig
	e.send(m, responseChunk("{}", true))
	if m := e.recv(); m.GetResponseHeaders() == nil {
		t.Errorf("got %v", m)
	}
	if p := e.recv().GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse(); string(p.GetBody()) != "{}" || !p.GetEndOfStream() {
		t.Errorf("got %v", p)
	}
}

// TestCancelled: the client, or Envoy, leaves in each state. Nothing is kept, and a decision ends once.
func TestCancelled(t *testing.T) {
	body := chatBody(100, "")
	tests := []struct {
		name string
		pick func(context.Context, picker.Request) (picker.Decision, error)
		in   []*extprocv3.ProcessingRequest
		read int
		told []string
	}{
		{name: "at once"},
		{name: "after the headers", in: []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex)}},
		{name: "in the body", in: []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body[:50], false)}},
		{name: "while held", pick: never, in: []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true)}},
		{name: "while held, buffered", pick: never, in: []*extprocv3.ProcessingRequest{post(buffered, streamed), chunk(body, true)}, read: 1},
		{name: "after the pick", in: []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true)}, read: 2, told: []string{"cancelled 0 on 10.0.0.1:8000"}},
		{
			name: "after the response's headers", in: []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true), respond("200", "text/event-stream", "10.0.0.1:8000")},
			told: []string{"cancelled 200 on 10.0.0.1:8000"},
		},
		{
			name: "in the response", in: []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true), respond("200", "text/event-stream", ""), responseChunk(firstEvent, false)},
			told: []string{"first token from 10.0.0.1:8000", "cancelled 200 on 10.0.0.1:8000"},
		},
		{
			name: "after its end", in: []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true), respond("200", "text/event-stream", ""), responseChunk(firstEvent+lastEvents, true)},
			told: []string{"first token from 10.0.0.1:8000", "done with 64 of 100 tokens cached 200 on 10.0.0.1:8000"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, setup{pick: tt.pick, endpoints: []string{"10.0.0.1:8000"}})
			e := r.open()
			e.play(tt.in...)
			for range tt.read {
				e.recv()
			}
			if len(tt.in) > 0 {
				r.count("grapevine_extproc_streams", 1, "picker")
			}
			if tt.pick != nil {
				for until := time.Now().Add(5 * time.Second); r.events.asked().ID == "" && time.Now().Before(until); {
					time.Sleep(time.Millisecond)
				}
			}
			e.cancel()
			r.want(tt.told...)
			if tt.pick != nil {
				r.count("grapevine_extproc_picks_total", 1, "cancelled")
			}
			r.count("grapevine_extproc_streams", 0, "picker")
			r.count("grapevine_extproc_open_picks", 0)
			r.want(tt.told...)
			for until := time.Now().Add(5 * time.Second); r.server.bodies.Load() != 0; time.Sleep(time.Millisecond) {
				if time.Now().After(until) {
					t.Fatalf("%d bytes of bodies are counted still", r.server.bodies.Load())
				}
			}
		})
	}
}

// TestPickLost: the client is answered by others in the moment in which the picker decides.
func TestPickLost(t *testing.T) {
	var r *rig
	chosen, go_ := make(chan bool), make(chan bool)
	r = newRig(t, setup{endpoints: []string{"10.0.0.1:8000"}, pick: func(_ context.Context, q picker.Request) (picker.Decision, error) {
		d, err := r.picker.Pick(context.Background(), q)
		close(chosen)
		<-go_
		return d, err
	}})
	e := r.open()
	e.send(post(fullDuplex, none), chunk(chatBody(10, ""), true))
	<-chosen
	e.send(respond("504", "text/plain", ""))
	e.recv()
	close(go_)
	r.want("cancelled 0 on 10.0.0.1:8000")
}

// TestShutdown: what becomes of a stream when the picker goes down in each state.
func TestShutdown(t *testing.T) {
	body := chatBody(100, "")
	tests := []struct {
		name string
		pick func(context.Context, picker.Request) (picker.Decision, error)
		in   []*extprocv3.ProcessingRequest
		read int
		end  func(e *envoy)
	}{
		{"in the body, which ends in time", nil, []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body[:50], false)}, 0, func(e *envoy) {
			e.send(chunk(body[50:], true))
			if _, back := e.picked(false); !bytes.Equal(back, body) {
				e.t.Error("another body came back")
			}
			e.ends()
		}},
		{"in the body", nil, []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body[:50], false)}, 0, rejected},
		{"while held", never, []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, true)}, 0, rejected},
		{"while held, buffered", never, []*extprocv3.ProcessingRequest{post(buffered, none), chunk(body, true)}, 1, rejected},
		{"after the pick", nil, []*extprocv3.ProcessingRequest{post(fullDuplex, none), chunk(body, true)}, 2, (*envoy).ends},
		{"after the pick, response shown but not held", nil, []*extprocv3.ProcessingRequest{post(fullDuplex, streamed), chunk(body, true)}, 2, (*envoy).ends},
		{"after the pick, response passes through", nil, []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true)}, 2, func(e *envoy) { e.fails(codes.Unavailable) }},
		{"in a response that passes through", nil, []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true), respond("200", "", ""), responseChunk("a", false)}, 0, func(e *envoy) { e.fails(codes.Unavailable) }},
		{"in a response that passes through and ends in time", nil, []*extprocv3.ProcessingRequest{post(fullDuplex, fullDuplex), chunk(body, true), respond("200", "", ""), responseChunk("a", false)}, 0, func(e *envoy) {
			e.send(responseChunk("b", true))
			if m := e.recv(); string(m.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()) != "b" {
				e.t.Errorf("got %v", m)
			}
			_ = e.stream.CloseSend() // as Envoy does
			e.ends()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, setup{pick: tt.pick})
			e := r.open()
			e.play(tt.in...)
			for range tt.read {
				e.recv()
			}
			r.count("grapevine_extproc_streams", 1, "picker")
			down := make(chan bool)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
				defer cancel()
				r.server.Shutdown(ctx)
				close(down)
			}()
			<-r.server.draining.Done()
			tt.end(e)
			<-down
		})
	}
}

// rejected is how a request ends whose pick the picker can't make any more.
func rejected(e *envoy) {
	e.t.Helper()
	i := e.recv().GetImmediateResponse()
	if i.GetStatus().GetCode() != 503 || header(i.GetHeaders().GetSetHeaders(), headerDropped) != droppedShutdown {
		e.t.Errorf("got %v, want a 503", i)
	}
	e.ends()
}
