package openai

import (
	"bytes"
	"encoding/json"
)

// done is the data of the last event of a stream.
var done = []byte("[DONE]")

// nextEvent splits the first complete server-sent event off buf: event with
// the blank line that ends it, and what follows. ok is false while the event is
// incomplete; the caller reads more and bounds its buffer. Both results are
// slices of buf.
func nextEvent(buf []byte) (event, rest []byte, ok bool) {
	for i := 0; i < len(buf); {
		n := bytes.IndexAny(buf[i:], "\r\n")
		if n < 0 {
			return nil, buf, false
		}
		end := i + n + 1
		if buf[end-1] == '\r' {
			if end == len(buf) {
				return nil, buf, false // a \n may follow
			}
			if buf[end] == '\n' {
				end++
			}
		}
		if n == 0 {
			return buf[:end], buf[end:], true
		}
		i = end
	}
	return nil, buf, false
}

// lineEnds are the bytes that end a line of an event stream.
const lineEnds = "\r\n"

// Events splits a stream that comes in pieces. Each byte is looked at a few times
// at most, however long an event is and in however many pieces it comes. The zero
// value is ready.
type Events struct {
	data    []byte // what came last, after the start of an event if there is one
	pending []byte // its memory between two pieces
	line    int    // where the last line of data begins: before it no event ends
	search  bool   // an event may end in data
}

// Add takes in the next piece. All events of the one before must have been taken
// with Next, until it said that there is none.
func (e *Events) Add(piece []byte) {
	e.search = bytes.ContainsAny(piece, lineEnds) || bytes.HasSuffix(e.pending, []byte{'\r'})
	if e.data = piece; len(e.pending) > 0 {
		e.pending = append(e.pending, piece...)
		e.data = e.pending
	}
}

// Next returns the next complete event with the blank line that ends it. It holds
// until ok is false, and the piece must until then.
func (e *Events) Next() (event []byte, ok bool) {
	if e.search {
		last, rest, ok := nextEvent(e.data[e.line:])
		if ok {
			event = e.data[:e.line+len(last)]
			e.data, e.line = rest, 0
			return event, true
		}
		e.line += bytes.LastIndexAny(bytes.TrimSuffix(rest, []byte{'\r'}), lineEnds) + 1
		e.search = false
	}
	if len(e.data) == 0 || len(e.pending) == 0 || &e.data[0] != &e.pending[0] {
		e.pending = append(e.pending[:0], e.data...)
	}
	e.data = e.pending
	return nil, false
}

// Pending is the start of an event that is not complete, after Next has returned
// false. The caller bounds it.
func (e *Events) Pending() []byte { return e.pending }

// Data returns the data of one event, nil if it has none (a comment, a
// keep-alive). Several data lines are joined by newlines, as the standard says;
// one line, the usual case, is a slice of event.
func Data(event []byte) []byte {
	var out []byte
	lines := 0
	for len(event) > 0 {
		line := event
		if n := bytes.IndexAny(event, "\r\n"); n >= 0 {
			line, event = event[:n], event[n+1:]
		} else {
			event = nil
		}
		v, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		v = bytes.TrimPrefix(v, []byte(" "))
		switch lines++; lines {
		case 1:
			out = v
		default:
			out = append(append(out[:len(out):len(out)], '\n'), v...)
		}
	}
	return out
}

// IsDone tells whether data is the "[DONE]" that ends an OpenAI stream.
func IsDone(data []byte) bool { return bytes.Equal(bytes.TrimSpace(data), done) }

// HasOutput tells whether an event's data carries the model's output (text,
// reasoning, a tool call), so that the first such event marks the first token.
// The chunk that only names the role does not count; a chunk that ends a choice
// does, even if its text is empty. It knows the streams of chat, completions,
// responses and Anthropic messages.
func HasOutput(data []byte) bool {
	if len(data) == 0 || data[0] != '{' {
		return false
	}
	var choices, typ []byte
	err := members(data, func(k string, v []byte) error {
		switch k {
		case "choices":
			choices = v
		case "type":
			typ = v
		}
		return nil
	})
	if err != nil {
		return false
	}
	if typ != nil {
		// response.output_text.delta, ...; content_block_delta
		return bytes.HasPrefix(typ, []byte(`"response.`)) && bytes.HasSuffix(typ, []byte(`.delta"`)) ||
			string(typ) == `"content_block_delta"`
	}
	found := false
	_ = elements(choices, func(c []byte) error {
		found = found || choiceHasOutput(c)
		return nil
	})
	return found
}

func choiceHasOutput(choice []byte) bool {
	found := false
	_ = eachMember(choice, func(k string, v []byte) error {
		switch k {
		case "finish_reason":
			found = found || !isNull(v)
		case "text", "token_ids":
			found = found || filled(v)
		case "delta":
			_ = eachMember(v, func(k string, v []byte) error {
				found = found || k != "role" && filled(v)
				return nil
			})
		}
		return nil
	})
	return found
}

func eachMember(b []byte, each func(key string, value []byte) error) error {
	if len(b) == 0 || b[0] != '{' {
		return nil
	}
	return members(b, each)
}

// filled tells whether a value is more than null, "", [] or {}.
func filled(v []byte) bool {
	if isNull(v) {
		return false
	}
	switch v[0] {
	case '"':
		return len(v) > 2
	case '[', '{':
		return len(bytes.TrimSpace(v[1:len(v)-1])) > 0
	}
	return true
}

// ErrorBody is an error answer in OpenAI's shape, code being the HTTP status.
func ErrorBody(status int, typ, msg string) []byte {
	type detail struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	// Encoding strings and numbers to memory cannot fail.
	_ = enc.Encode(struct {
		Error detail `json:"error"`
	}{detail{Message: msg, Type: typ, Code: status}})
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// ErrorEvent is ErrorBody for a stream that has begun: an event with the error,
// then the event that ends the stream.
func ErrorEvent(status int, typ, msg string) []byte {
	out := append([]byte("data: "), ErrorBody(status, typ, msg)...)
	return append(out, "\n\ndata: [DONE]\n\n"...)
}
