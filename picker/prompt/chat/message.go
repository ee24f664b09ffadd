package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat/jinja"
)

// ErrMultimodal is returned for messages with images, audio, video or
// embeddings: their tokens are known to the engine only.
var ErrMultimodal = errors.New("messages hold more than text")

// media stands for what is no text while AppendPrefix renders: two variants
// differ from the first such thing on.
type media struct {
	variant int
	seen    bool
}

// text is what stands in place of the first thing that is no text.
func (m *media) text() string { return [...]string{"\x01image", "\x02video"}[m.variant] }

// conversation is the list that templates see as messages. m is nil unless
// images and the like are allowed.
func (t *source) conversation(d *jinja.Decoder, raw json.RawMessage, m *media) (*jinja.List, error) {
	list, ok := d.Decode(raw).(*jinja.List)
	if !ok {
		return nil, errors.New("messages are no list")
	}
	out := &jinja.List{Items: make([]any, 0, len(list.Items))}
	developer := false
	for i, v := range list.Items {
		in, ok := v.(*jinja.Dict)
		if !ok {
			return nil, fmt.Errorf("message %d is no object", i)
		}
		msg, err := t.message(d, in, m)
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
func (t *source) message(d *jinja.Decoder, in *jinja.Dict, m *media) (*jinja.Dict, error) {
	rawRole, _ := in.Get("role")
	role, ok := rawRole.(string)
	if !ok {
		return nil, errors.New("role is missing")
	}
	content, err := t.contentOf(in, role, m)
	if err != nil {
		return nil, err
	}
	out := &jinja.Dict{}
	out.Set("role", rawRole)
	out.Set("content", content)
	switch role {
	case "assistant":
		if calls, _ := in.Get("tool_calls"); calls != nil {
			list, err := toolCalls(d, calls)
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
		if parts, ok := content.(*jinja.List); ok && onlyText(parts) {
			out.Set("content", joinParts(parts))
		}
	case "developer":
		tools, _ := in.Get("tools")
		if tools, err = developerTools(tools); err != nil {
			return nil, err
		}
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
// is what templates expect; what is no object becomes an empty one. The
// members are in the order of vLLM's request class.
func toolCalls(d *jinja.Decoder, v any) (*jinja.List, error) {
	calls, ok := v.(*jinja.List)
	if !ok {
		return nil, errors.New("tool_calls are no list")
	}
	out := &jinja.List{Items: make([]any, len(calls.Items))}
	for i, c := range calls.Items {
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
			if raw := []byte(s); pythonJSON(raw) {
				args = d.Decode(raw)
			}
		}
		if _, ok := args.(*jinja.Dict); !ok {
			args = &jinja.Dict{}
		}
		function = ordered(function, "arguments", "name")
		function.Set("arguments", args)
		call = ordered(call, "id", "function", "type")
		call.Set("function", function)
		out.Items[i] = call
	}
	return out, nil
}

// ordered copies d with the members of that names first, as far as it has them.
func ordered(d *jinja.Dict, names ...string) *jinja.Dict {
	out := &jinja.Dict{}
	for _, name := range names {
		if v, ok := d.Get(name); ok {
			out.Set(name, v)
		}
	}
	for name, v := range d.All() {
		out.Set(name, v)
	}
	return out
}

// developerTools are the tools of a developer message, in the order of vLLM's
// request class.
func developerTools(v any) (any, error) {
	if v == nil {
		return nil, nil
	}
	list, ok := v.(*jinja.List)
	if !ok {
		return nil, errors.New("tools are no list")
	}
	out := &jinja.List{}
	for _, x := range list.Items {
		tool, ok := x.(*jinja.Dict)
		if !ok {
			return nil, errors.New("tool is no object")
		}
		f, _ := tool.Get("function")
		function, ok := f.(*jinja.Dict)
		if !ok {
			return nil, errors.New("tool is no function")
		}
		tool = ordered(tool, "function", "type")
		tool.Set("function", ordered(function, "name", "description", "parameters", "strict"))
		out.Items = append(out.Items, tool)
	}
	return out, nil
}

// pythonJSON tells whether Python's json module reads raw. It knows NaN and
// Infinity besides.
func pythonJSON(raw []byte) bool {
	if json.Valid(raw) {
		return true
	}
	if !bytes.Contains(raw, []byte("NaN")) && !bytes.Contains(raw, []byte("Infinity")) {
		return false
	}
	return json.Valid(constants.ReplaceAll(raw, []byte("$1${2}0")))
}

// constants finds what Python's JSON has besides, outside of strings (or in
// them, where it does no harm).
var constants = regexp.MustCompile(`([\[,:\s]|^)(-?)(?:NaN|Infinity)`)

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
func toolList(v any) (*jinja.List, error) {
	list, ok := v.(*jinja.List)
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
