package extproc

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

const (
	maxEvent = 1 << 20 // of one event that is looked at
	maxWhole = 1 << 20 // of a JSON answer that is searched for usage
)

// answer reads what routing wants to know of a response, from as much of it as is shown. It changes nothing.
type answer struct {
	begun   bool
	ended   bool
	status  int
	served  string // address of who served it, "" if that is not told
	reached bool   // it is an endpoint's own
	output  bool   // output of the model was seen
	usage   openai.Usage
	counted bool // usage is known

	seen int // events

	form   form
	json   []byte // all of it so far
	stream openai.Events
}

// form is how a body is read.
type form uint8

const (
	formOther form = iota // not at all
	formEvents
	formJSON
)

// begin takes in a response's headers. end says that there is no body.
func (a *answer) begin(h headers, md *corev3.Metadata, end bool) {
	a.begun, a.ended = true, end
	a.status, _ = strconv.Atoi(h.Get(":status"))
	a.served = servedBy(md)
	a.reached = a.status != 503 || h.Get(headerServiceTime) != ""
	if e := h.Get("content-encoding"); e != "" && e != "identity" {
		return
	}
	switch t := h.Get("content-type"); {
	case strings.HasPrefix(t, "text/event-stream"):
		a.form = formEvents
	case strings.HasPrefix(t, "application/json"):
		a.form = formJSON
	}
}

// body takes in a part of the body, which may be changed after it has returned.
func (a *answer) body(b []byte, end bool) {
	a.ended = a.ended || end
	switch a.form {
	case formEvents:
		a.events(b)
	case formJSON:
		if len(a.json)+len(b) > maxWhole {
			a.form = formOther
			a.drop()
			return
		}
		a.json = append(a.json, b...)
		if end {
			a.whole()
		}
	}
	if end {
		a.drop()
	}
}

// trailers take the place of the body's end.
func (a *answer) trailers() {
	if a.form == formJSON {
		a.whole()
	}
	a.ended = true
	a.drop()
}

// drop lets go of what was kept of the body.
func (a *answer) drop() { a.json, a.stream = nil, openai.Events{} }

func (a *answer) whole() { a.usage, a.counted = openai.ReadUsage(a.json) }

func (a *answer) events(b []byte) {
	a.stream.Add(b)
	for event, ok := a.stream.Next(); ok; event, ok = a.stream.Next() {
		a.seen++
		data := openai.Data(event)
		a.output = a.output || openai.HasOutput(data)
		if bytes.Contains(data, []byte(`"usage"`)) {
			if u, ok := openai.ReadUsage(data); ok {
				a.usage, a.counted = u, true
			}
		}
	}
	if len(a.stream.Pending()) > maxEvent {
		a.form = formOther
		a.drop()
	}
}

var (
	errUnreached = errors.New("not reached by Envoy")
	errCutShort  = errors.New("the answer ended early")
)

// outcome is what became of the request when nothing more comes.
func (a *answer) outcome() picker.Outcome {
	o := picker.Outcome{Status: a.status, CachedTokens: -1, Connected: a.begun && a.reached}
	if a.counted {
		o.PromptTokens, o.OutputTokens, o.CachedTokens = a.usage.PromptTokens, a.usage.CompletionTokens, a.usage.CachedTokens
	}
	switch {
	case a.begun && !a.reached:
		o.Err = errUnreached
	case !a.ended: // by the client or the engine, which looks the same from here
		o.Err, o.Cancelled = errCutShort, true
	}
	return o
}
