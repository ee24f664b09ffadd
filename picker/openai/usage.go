package openai

import (
	"bytes"
	"slices"
)

// Usage is what an engine reports about one request.
type Usage struct {
	PromptTokens     int // cached ones included
	CompletionTokens int
	// CachedTokens is the part of the prompt that came from the cache; -1:
	// not reported. vLLM reports it with --enable-prompt-tokens-details only,
	// versions until mid 2026 leave it out when it is 0, and with more than
	// one sequence it may be that of a later one.
	CachedTokens int
}

// ReadUsage finds the usage in a JSON answer or in the data of one event. It
// reads chat and completions, the events of /v1/responses (inside "response")
// and those of /v1/messages (inside "message" first, at the end on its own;
// the end repeats what it knows). Anthropic's input_tokens leave out what was
// read from the cache or written to it (vLLM 0.32,
// vllm/entrypoints/anthropic/serving.py); here they are put together again. ok
// is false if there is none.
func ReadUsage(data []byte) (u Usage, ok bool) {
	if len(data) == 0 || data[0] != '{' {
		return Usage{}, false
	}
	var usage []byte
	err := members(data, func(k string, v []byte) error {
		switch k {
		case "usage":
			if !isNull(v) {
				usage = v
			}
		case "response", "message":
			if inner := member(v, "usage"); !isNull(inner) && usage == nil {
				usage = inner
			}
		}
		return nil
	})
	if err != nil || isNull(usage) || usage[0] != '{' {
		return Usage{}, false
	}
	u.CachedTokens = -1
	aside := 0 // tokens of the prompt that input_tokens do not count
	_ = members(usage, func(k string, v []byte) error {
		switch k {
		case "prompt_tokens", "input_tokens":
			u.PromptTokens = count(v)
		case "completion_tokens", "output_tokens":
			u.CompletionTokens = count(v)
		case "cache_read_input_tokens":
			if !isNull(v) {
				u.CachedTokens = count(v)
				aside += u.CachedTokens
			}
		case "cache_creation_input_tokens":
			aside += count(v)
		case "prompt_tokens_details", "input_tokens_details":
			if v[0] == '{' {
				u.CachedTokens = count(member(v, "cached_tokens"))
			}
		}
		return nil
	})
	u.PromptTokens += aside
	return u, true
}

// count reads a token count; anything odd is 0.
func count(v []byte) int {
	n, err := integer(v)
	if err != nil {
		return 0
	}
	return max(0, n)
}

// ForceUsage returns the request's body with usage asked for at the end of its
// stream, and whether that differs from what the client asked: then the
// client's answer goes through StripUsage. It is meant for chat and completions;
// the other APIs report usage unasked. The body of a request that does not
// stream or asks already comes back as it is. Otherwise one member is inserted
// or one value replaced in a copy, which lies in dst if that has room; no other
// byte changes place.
func (r *Request) ForceUsage(dst []byte) ([]byte, bool) {
	body, options := r.Body, r.StreamOptions
	if !r.Stream || r.IncludeUsage {
		return body, false
	}
	const ask = `"include_usage":true`
	switch {
	case options == nil:
		at := bytes.IndexByte(body, '{') + 1
		return splice(dst[:0], body, at, at, `"stream_options":{`+ask+`},`), true
	case options[0] == 'n':
		at := offset(body, options)
		return splice(dst[:0], body, at, at+len(options), `{`+ask+`}`), true
	}
	if include := member(options, "include_usage"); include != nil {
		at := offset(body, include)
		return splice(dst[:0], body, at, at+len(include), "true"), true
	}
	at := offset(body, options) + 1
	if filled(options) {
		return splice(dst[:0], body, at, at, ask+","), true
	}
	return splice(dst[:0], body, at, at, ask), true
}

// offset is where part, a slice of whole, begins in it.
func offset(whole, part []byte) int { return cap(whole) - cap(part) }

// splice appends b to dst, with another text between two places.
func splice(dst, b []byte, from, to int, with string) []byte {
	dst = slices.Grow(dst, len(b)-(to-from)+len(with))
	dst = append(dst, b[:from]...)
	dst = append(dst, with...)
	return append(dst, b[to:]...)
}

// StripUsage undoes in one event what ForceUsage asked for: it returns the
// event without its "usage" member, and keep is false if the event is the one
// that carries usage only (no choices) and must not reach the client. Read the
// usage first. Events without usage come back as they are.
func StripUsage(event []byte) (out []byte, keep bool) {
	data := Data(event)
	if len(data) == 0 || data[0] != '{' || !bytes.Contains(data, []byte(`"usage"`)) {
		return event, true
	}
	var usage, choices []byte
	var from, to int // the member with the comma before or after it
	s := scanner{b: data}
	prev := 1
	err := s.object(0, func(k, v []byte) error {
		end := offset(data, v) + len(v)
		switch string(k) {
		case `"usage"`:
			usage, from, to = v, prev, end
		case `"choices"`:
			choices = v
		}
		prev = end
		return nil
	})
	if err != nil || usage == nil {
		return event, true
	}
	if usage[0] == '{' && choices != nil && !filled(choices) {
		return nil, false
	}
	if from == 1 && to < len(data) { // first member: the comma follows it
		rest := scanner{b: data, i: to}
		if rest.peek() == ',' {
			to = rest.i + 1
		}
	}
	at := bytes.Index(event, data)
	if at < 0 { // data came on several lines
		return event, true
	}
	return splice(nil, event, at+from, at+to, ""), true
}
