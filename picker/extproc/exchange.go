package extproc

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

type mode = filterv3.ProcessingMode_BodySendMode

// phase is how far the request of an exchange has come.
type phase uint8

const (
	awaitHeaders phase = iota
	awaitBody          // all of the body is wanted before the pick
	picking            // the request is here as far as it will be seen
	released           // Envoy has it back
	abandoned          // the client has its answer from somebody else
	refused            // the client has its answer from here
)

// due is the message that the pick is an answer to.
type due uint8

const (
	dueHeaders due = iota
	dueBody
	dueTrailers
)

// exchange is one HTTP request and its response, as one picking stream sees them: messages of Envoy in, messages to Envoy out.
// It holds the body until the pick is known.
type exchange struct {
	limit int // bytes of a body

	phase    phase
	due      due
	request  mode // of its body
	response mode // of its body
	headers  headers
	subset   []string // not nil: Envoy restricts the choice

	chunks   [][]byte // of the body, as they came
	size     int      // their bytes
	whole    bool     // they are the request's body
	ended    bool     // nothing more comes of the request
	trailers bool     // trailers wait for their answer
	owed     int      // chunks of a STREAMED body wait for theirs

	answer answer
}

// step is what one message leads to.
type step struct {
	out     []*extprocv3.ProcessingResponse
	pick    bool     // the request is here: choose, then call picked or refuse
	abandon bool     // the client has an answer: the choice is wanted no more
	refusal *refusal // the client gets this answer: call refuse
}

// protocolError says that Envoy sent what can't come now.
type protocolError struct {
	reason  string // for the metrics
	message string
}

func (e *protocolError) Error() string { return e.message }

// take takes in one message. The error is a *protocolError; the exchange is over then.
func (x *exchange) take(m *extprocv3.ProcessingRequest) (step, error) {
	switch r := m.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return x.takeHeaders(m, r.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		return x.takeBody(r.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return x.takeTrailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		if x.answer.begun {
			return step{}, &protocolError{"second response headers", "second response headers in one stream"}
		}
		x.configure(m)
		s := x.responseComes()
		x.answer.begin(r.ResponseHeaders.GetHeaders().GetHeaders(), m.MetadataContext, r.ResponseHeaders.GetEndOfStream())
		s.out = append(s.out, responseHeaders())
		return s, nil
	case *extprocv3.ProcessingRequest_ResponseBody:
		if x.answer.ended {
			return step{}, &protocolError{"response after its end", "a chunk of the response after its end"}
		}
		x.configure(m)
		s := x.responseComes()
		b, end := r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream()
		x.answer.body(b, end)
		if x.response == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
			s.out = pieces(s.out, b, end, responseBody)
		} else {
			s.out = append(s.out, responseBody(nil))
		}
		return s, nil
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		x.configure(m)
		s := x.responseComes()
		x.answer.trailers()
		s.out = append(s.out, responseTrailers())
		return s, nil
	}
	return step{}, &protocolError{"unknown message", "a message that is none of those of ext_proc v3"}
}

// configure reads how Envoy treats bodies, which its first message tells. Before Envoy 1.33 it did not, and had no full duplex.
func (x *exchange) configure(m *extprocv3.ProcessingRequest) {
	if c := m.GetProtocolConfig(); c != nil {
		x.request, x.response = c.RequestBodyMode, c.ResponseBodyMode
	}
}

func (x *exchange) takeHeaders(m *extprocv3.ProcessingRequest, h *extprocv3.HttpHeaders) (step, error) {
	if x.phase != awaitHeaders {
		return step{}, &protocolError{"second request headers", "second request headers in one stream"}
	}
	x.request = filterv3.ProcessingMode_BUFFERED
	x.configure(m)
	x.headers = h.GetHeaders().GetHeaders()
	x.subset = subsetOf(m.MetadataContext)
	if h.GetEndOfStream() {
		x.ended = true
		return x.choose(dueHeaders), nil
	}
	switch x.request {
	case filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		x.phase = awaitBody
		if n, err := strconv.Atoi(x.headers.Get("content-length")); err == nil && n > x.limit {
			return x.tooLarge(), nil // not waited for
		}
		return step{}, nil
	case filterv3.ProcessingMode_BUFFERED, filterv3.ProcessingMode_BUFFERED_PARTIAL:
		x.phase = awaitBody // it comes when the headers are answered
		return step{out: []*extprocv3.ProcessingResponse{requestHeaders(&extprocv3.CommonResponse{HeaderMutation: clientsOwn()}, nil)}}, nil
	}
	return x.choose(dueHeaders), nil
}

func (x *exchange) takeBody(b *extprocv3.HttpBody) (step, error) {
	end := b.GetEndOfStream()
	switch {
	case x.phase == awaitHeaders:
		return step{}, &protocolError{"body before headers", "a chunk of the request's body before its headers: set request_header_mode to SEND"}
	case x.phase == abandoned || x.phase == refused:
		return step{}, nil // on its way when the answer was
	case x.ended || x.phase != awaitBody && x.request != filterv3.ProcessingMode_STREAMED:
		return step{}, &protocolError{"body after its end", "a chunk of the request's body after its end"}
	case x.request == filterv3.ProcessingMode_STREAMED:
		x.ended = end
		if x.phase == picking {
			x.owed++
			return step{}, nil
		}
		return step{out: []*extprocv3.ProcessingResponse{requestBody(nil, nil)}}, nil
	}
	if x.size += len(b.GetBody()); x.size > x.limit {
		return x.tooLarge(), nil
	}
	if len(b.GetBody()) > 0 {
		x.chunks = append(x.chunks, b.GetBody())
	}
	if x.request == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		if !end {
			return step{}, nil
		}
		x.ended, x.whole = true, true
		return x.choose(dueHeaders), nil
	}
	// What is buffered comes in one message. A part of it may be all that comes; trailers may follow the whole.
	x.ended, x.whole = end, end || x.request == filterv3.ProcessingMode_BUFFERED
	return x.choose(dueBody), nil
}

func (x *exchange) takeTrailers() (step, error) {
	switch {
	case x.phase == awaitHeaders:
		return step{}, &protocolError{"trailers before headers", "the request's trailers before its headers"}
	case x.phase == abandoned || x.phase == refused:
		return step{}, nil
	case x.ended:
		return step{}, &protocolError{"trailers after the end", "the request's trailers after its end"}
	}
	x.ended = true
	switch {
	case x.phase == awaitBody && x.request == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		x.trailers, x.whole = true, true
		return x.choose(dueHeaders), nil
	case x.phase == awaitBody:
		return x.choose(dueTrailers), nil // there was no body
	case x.phase == picking:
		x.trailers = true
		return step{}, nil
	}
	return step{out: []*extprocv3.ProcessingResponse{requestTrailers(nil)}}, nil
}

// choose asks for the pick, which will answer a message.
func (x *exchange) choose(d due) step {
	x.phase, x.due = picking, d
	return step{pick: true}
}

// responseComes notes that the client gets a response. If the request has not gone out it is Envoy's own.
func (x *exchange) responseComes() step {
	if x.phase >= released {
		return step{}
	}
	x.phase = abandoned
	x.drop()
	return step{abandon: true}
}

func (x *exchange) tooLarge() step {
	return step{refusal: &refusal{
		Refusal: inbound.Refusal{Status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Message: fmt.Sprintf("body is over the limit of %d bytes (--max-body-bytes)", x.limit)},
		result:  "too_large",
	}}
}

// demand is what a choice is made by. It stays as it is whatever becomes of its exchange.
type demand struct {
	headers headers
	subset  []string // not nil: the choice is restricted to it
	chunks  [][]byte
	size    int
	whole   bool // chunks are the request's body
	hurried bool // Envoy's message_timeout runs: it does not with bodies in full duplex
	shows   bool // the response comes through this stream
}

func (x *exchange) demand() demand {
	return demand{
		headers: x.headers, subset: x.subset, chunks: x.chunks, size: x.size, whole: x.whole,
		hurried: !x.whole || x.due != dueHeaders, shows: x.response != filterv3.ProcessingMode_NONE,
	}
}

// body returns the request's body: the only chunk, or all of them in a buffer; done gives that back.
func (d *demand) body(buffers *inbound.Buffers) (body []byte, done func()) {
	if len(d.chunks) == 1 {
		return d.chunks[0], func() {}
	}
	body = buffers.Take(max(1, d.size))
	for _, c := range d.chunks {
		body = append(body, c...)
	}
	return body, func() { buffers.Give(body) }
}

// parse reads the request. One whose prompt is not known, or that has none, comes out as [openai.Other]: it goes by load.
func (d *demand) parse(body []byte) (*openai.Request, error) {
	path, _, _ := strings.Cut(d.headers.Get(":path"), "?")
	other := &openai.Request{Path: path, Kind: openai.Other, N: 1}
	if e := d.headers.Get("content-encoding"); !d.whole || d.headers.Get(":method") != http.MethodPost || e != "" && e != "identity" {
		return other, nil
	}
	req, err := openai.Parse(path, body)
	if err != nil && openai.KindOf(path) == openai.Other { // need not be JSON
		return other, nil
	}
	return req, err
}

// picked gives the request back with the pick; nothing if it is wanted no more.
func (x *exchange) picked(p pick) []*extprocv3.ProcessingResponse {
	if x.phase != picking {
		return nil
	}
	x.phase = released
	common := &extprocv3.CommonResponse{HeaderMutation: p.mutation(), ClearRouteCache: true}
	out := make([]*extprocv3.ProcessingResponse, 0, 2+len(x.chunks)+x.size/maxPiece)
	switch x.due {
	case dueBody:
		out = append(out, requestBody(common, p.metadata()))
	case dueTrailers:
		out = append(out, requestTrailers(p.metadata()))
	default:
		out = append(out, requestHeaders(common, p.metadata()))
		out = x.giveBack(out)
	}
	if x.trailers {
		out = append(out, requestTrailers(nil))
	}
	x.drop()
	return out
}

// giveBack appends every byte of the body that Envoy does not have.
func (x *exchange) giveBack(out []*extprocv3.ProcessingResponse) []*extprocv3.ProcessingResponse {
	for range x.owed {
		out = append(out, requestBody(nil, nil))
	}
	if !x.whole {
		return out
	}
	wrap := func(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse { return requestBody(c, nil) }
	for i, c := range x.chunks {
		out = pieces(out, c, !x.trailers && i == len(x.chunks)-1, wrap)
	}
	if len(x.chunks) == 0 && !x.trailers {
		out = pieces(out, nil, true, wrap)
	}
	return out
}

// refuse answers the client, if nobody has.
func (x *exchange) refuse(r *refusal, requestID string) []*extprocv3.ProcessingResponse {
	if x.phase >= released {
		return nil
	}
	x.phase = refused
	x.drop()
	return []*extprocv3.ProcessingResponse{r.immediate(requestID)}
}

// drop lets the body go.
func (x *exchange) drop() { x.chunks = nil }

// mayLeave reports whether the stream can end without an error and without harm: Envoy has all of the request, and of the
// response nothing passes through here any more.
func (x *exchange) mayLeave() bool {
	switch x.phase {
	case released, abandoned:
		held := x.response == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED || x.response == filterv3.ProcessingMode_GRPC
		return (x.ended || x.phase == abandoned) && (!held || x.answer.ended)
	}
	return x.phase == refused
}
