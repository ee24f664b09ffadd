package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat/jinja"
)

// ErrMultimodal is returned for messages with images, audio, video or
// embeddings: their tokens are known to the engine only.
var ErrMultimodal = errors.New("messages hold more than text")

// conversation is the list that templates see as messages.
func (t *Template) conversation(raw json.RawMessage) (*jinja.List, error) {
	list, ok := jinja.Decode(raw).(*jinja.List)
	if !ok {
		return nil, errors.New("messages are no list")
	}
	out := &jinja.List{Items: make([]any, 0, len(list.Items))}
	developer := false
	for i, m := range list.Items {
		in, ok := m.(*jinja.Dict)
		if !ok {
			return nil, fmt.Errorf("message %d is no object", i)
		}
		msg, err := t.message(in)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		role, _ := msg.Get("role")
		developer = developer || role == "developer"
		out.Items = append(out.Items, msg)
	}
	if developer && !t.developer {
		return mergeSystem(out), nil
	}
	return out, nil
}

// message brings one message into the form that templates see.
func (t *Template) message(in *jinja.Dict) (*jinja.Dict, error) {
	role, ok := textOf(in, "role")
	if !ok {
		return nil, errors.New("role is missing")
	}
	content, err := t.contentOf(in, role)
	if err != nil {
		return nil, err
	}
	out := &jinja.Dict{}
	out.Set("role", role)
	out.Set("content", content)
	switch role {
	case "assistant":
		if calls, _ := in.Get("tool_calls"); calls != nil {
			list, err := toolCalls(calls)
			if err != nil {
				return nil, err
			}
			if len(list.Items) > 0 {
				out.Set("tool_calls", list)
			}
		}
		reasoning, _ := in.Get("reasoning")
		if reasoning == nil {
			reasoning, _ = in.Get("reasoning_content")
		}
		if reasoning != nil {
			out.Set("reasoning", reasoning)
			out.Set("reasoning_content", reasoning)
		}
	case "tool":
		if id, ok := in.Get("tool_call_id"); ok {
			out.Set("tool_call_id", id)
		}
		if parts, ok := content.(*jinja.List); ok {
			out.Set("content", joinParts(parts))
		}
	case "developer":
		tools, _ := in.Get("tools")
		out.Set("tools", tools)
	}
	for _, name := range [...]string{"name", "task"} {
		if s, ok := textOf(in, name); ok {
			out.Set(name, s)
		}
	}
	return out, nil
}

func textOf(d *jinja.Dict, key string) (string, bool) {
	v, _ := d.Get(key)
	s, ok := v.(string)
	return s, ok
}

// contentOf returns a message's content: text, its parts joined by line breaks,
// or the list of parts if the template wants that.
func (t *Template) contentOf(in *jinja.Dict, role string) (any, error) {
	var parts []any
	switch c, _ := in.Get("content"); c := c.(type) {
	case nil:
	case string:
		parts = []any{c}
	case *jinja.List:
		parts = c.Items
	default:
		return nil, errors.New("content is neither text nor a list of parts")
	}
	list := &jinja.List{}
	var texts []string
	for _, p := range parts {
		text, keep, extra, err := partText(p)
		if err != nil {
			return nil, err
		}
		if keep && role == "system" {
			text, keep = withoutBillingHeader(text)
		}
		switch {
		case !keep:
		case t.parts:
			part := &jinja.Dict{}
			part.Set("type", "text")
			part.Set("text", text)
			for k, v := range extra.All() {
				part.Set(k, v)
			}
			list.Items = append(list.Items, part)
		case text != "":
			texts = append(texts, text)
		}
	}
	if t.parts {
		return list, nil
	}
	return strings.Join(texts, "\n"), nil
}

// partText reads a part of a message. extra holds the members that vLLM passes
// on; keep is false for a part without content.
func partText(p any) (text string, keep bool, extra *jinja.Dict, err error) {
	extra = &jinja.Dict{}
	if s, ok := p.(string); ok {
		return s, true, extra, nil
	}
	part, ok := p.(*jinja.Dict)
	if !ok {
		return "", false, nil, errors.New("content part is neither text nor an object")
	}
	kind, _ := textOf(part, "type")
	field := "text"
	switch kind {
	case "text", "input_text", "output_text":
	case "refusal", "thinking":
		field = kind
	default:
		return "", false, nil, ErrMultimodal
	}
	if uuid, _ := part.Get("uuid"); uuid != nil {
		return "", false, nil, ErrMultimodal
	}
	for k, v := range part.All() {
		switch k {
		case "type", "uuid", "text", "refusal", "thinking", "closed", "data", "file", "name", "prompt_cache_breakpoint",
			"audio_embeds", "audio_url", "image_embeds", "image_pil", "image_url", "input_audio", "video_embeds", "video_url":
		default:
			extra.Set(k, v)
		}
	}
	v, _ := part.Get(field)
	if v == nil && (kind == "text" || kind == "refusal") {
		return "", false, extra, nil
	}
	text, ok = v.(string)
	if !ok {
		return "", false, nil, fmt.Errorf("content part of type %s has no text", kind)
	}
	return text, true, extra, nil
}

// withoutBillingHeader drops a line that changes with every request of one
// client, as vLLM does.
func withoutBillingHeader(text string) (rest string, keep bool) {
	if !strings.HasPrefix(text, "x-anthropic-billing-header") {
		return text, true
	}
	_, rest, _ = strings.Cut(text, "\n")
	return rest, rest != ""
}

// joinParts makes text of a tool's answer given in parts.
func joinParts(parts *jinja.List) string {
	var texts []string
	for _, p := range parts.Items {
		if d, ok := p.(*jinja.Dict); ok {
			s, _ := textOf(d, "text")
			texts = append(texts, s)
		}
	}
	return strings.Join(texts, "\n")
}

// toolCalls copies an assistant's calls with their arguments as objects, which
// is what templates expect; what is no object becomes an empty one.
func toolCalls(v any) (*jinja.List, error) {
	calls, ok := v.(*jinja.List)
	if !ok {
		return nil, errors.New("tool_calls are no list")
	}
	for _, c := range calls.Items {
		call, ok := c.(*jinja.Dict)
		if !ok {
			return nil, errors.New("tool call is no object")
		}
		kind, given := call.Get("type")
		f, _ := call.Get("function")
		function, ok := f.(*jinja.Dict)
		if !ok || given && kind != "function" {
			return nil, errors.New("tool call is of another type than function")
		}
		args, _ := function.Get("arguments")
		if s, ok := args.(string); ok {
			args = nil
			if json.Valid([]byte(s)) {
				args = jinja.Decode([]byte(s))
			}
		}
		if _, ok := args.(*jinja.Dict); !ok {
			args = &jinja.Dict{}
		}
		function.Set("arguments", args)
	}
	return calls, nil
}

// mergeSystem turns developer messages into system messages and moves all of
// them to the front as one, for templates that do not know the developer role.
func mergeSystem(list *jinja.List) *jinja.List {
	var texts []string
	var rest []any
	moved := false
	for i, m := range list.Items {
		msg, ok := m.(*jinja.Dict)
		if !ok {
			continue
		}
		role, _ := textOf(msg, "role")
		if role != "developer" && role != "system" {
			rest = append(rest, m)
			continue
		}
		moved = moved || i > 0
		text, _ := textOf(msg, "content")
		if c, _ := msg.Get("content"); text == "" {
			if parts, ok := c.(*jinja.List); ok {
				text = joinParts(parts)
			}
		}
		msg.Set("role", "system")
		msg.Delete("tools")
		if text != "" {
			texts = append(texts, text)
		}
	}
	if !moved {
		return list
	}
	merged := &jinja.Dict{}
	merged.Set("role", "system")
	merged.Set("content", strings.Join(texts, "\n\n"))
	return &jinja.List{Items: append([]any{merged}, rest...)}
}

// toolList brings tools into the form that vLLM's request class writes them
// in: known members only, in its order, null where absent.
func toolList(raw json.RawMessage) (any, error) {
	if raw == nil {
		return nil, nil
	}
	list, ok := jinja.Decode(raw).(*jinja.List)
	if !ok {
		return nil, errors.New("tools are no list")
	}
	out := &jinja.List{}
	for i, v := range list.Items {
		tool, ok := v.(*jinja.Dict)
		if !ok {
			return nil, fmt.Errorf("tool %d is no object", i)
		}
		f, _ := tool.Get("function")
		function, ok := f.(*jinja.Dict)
		if kind, given := tool.Get("type"); !ok || given && kind != "function" {
			return nil, fmt.Errorf("tool %d is no function", i)
		}
		fn := &jinja.Dict{}
		for _, name := range [...]string{"name", "description", "parameters"} {
			v, _ := function.Get(name)
			fn.Set(name, v)
		}
		copyIfSet(fn, function, "strict")
		copyIfSet(fn, tool, "defer_loading")
		copyIfSet(fn, function, "defer_loading")
		t := &jinja.Dict{}
		t.Set("type", "function")
		t.Set("function", fn)
		copyIfSet(t, tool, "defer_loading")
		out.Items = append(out.Items, t)
	}
	return out, nil
}

func copyIfSet(to, from *jinja.Dict, key string) {
	if v, _ := from.Get(key); v != nil {
		to.Set(key, v)
	}
}
