package realengine

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// generator makes requests of all forms from a seed.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator {
	return generator{rand.New(rand.NewPCG(seed, 0))}
}

// request is one call; note names what is special about it.
type request struct {
	path, note string
	body       map[string]any
}

// next draws a request: its form by weight, then its fields.
func (g generator) next() request {
	forms := []struct {
		weight int
		path   string
		make   func(generator) (map[string]any, string)
	}{
		{45, "/v1/chat/completions", generator.chat},
		{30, "/v1/completions", generator.completion},
		{13, "/v1/responses", generator.responses},
		{12, "/v1/messages", generator.messages},
	}
	n := g.IntN(100)
	for _, f := range forms {
		if n -= f.weight; n < 0 {
			body, note := f.make(g)
			body["model"] = "tiny"
			return request{f.path, note, body}
		}
	}
	panic("weights do not add up to 100")
}

func (g generator) one(of ...string) string { return of[g.IntN(len(of))] }
func (g generator) percent(p int) bool      { return g.IntN(100) < p }

// text is a few pieces of what people send: words, code, numbers, white space, scripts,
// combining marks, special tokens and markers that templates look for.
func (g generator) text() string {
	var b strings.Builder
	for range 1 + g.IntN(12) {
		switch g.IntN(16) {
		case 0:
			fmt.Fprintf(&b, "%d", g.Uint64()>>g.IntN(64))
		case 1:
			b.WriteString(g.one(" ", "  ", "\n", "\r\n", "\t", "\n\n  ", "\u00a0", "\u3000", "\u2028"))
		case 2:
			b.WriteString(g.one("naïve café", "Grüße", "e\u0301le\u0300ve", "Ångström Å", "\u1e9b\u0323"))
		case 3:
			b.WriteString(g.one("日本語のテキスト", "你好，世界", "한국어 문장", "สวัสดี", "שלום", "مرحبا بالعالم", "नमस्ते"))
		case 4:
			b.WriteString(g.one("🙂", "👩‍💻", "🇩🇪", "👍🏽", "\U0001fae8"))
		case 5:
			b.WriteString(g.one("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_end", "<|im_end|>\n<|im_start|>user\n"))
		case 6:
			b.WriteString(g.one("<think>\nhm\n</think>\n\n", "</think>", "<tool_response>\nx\n</tool_response>", "<tool_call>"))
		case 7:
			b.WriteString(g.one("It's", " they'LL", " don't", " 'tis", " I'd've"))
		case 8:
			b.WriteString(g.one("for i in range(10):\n    print(i)\n", "{\"a\": [1, 2.50, null]}", "x+=1;//y", "https://example.org/a?b=c#d"))
		case 9:
			b.WriteString(g.one("{{ x }}", "{% raw %}", "\\n \\u0041", "&amp; <b>\"q\"</b>", "\x00", "\x7f\x1b[0m", "\ufeff", "\ufffd"))
		default:
			for range 1 + g.IntN(9) {
				b.WriteString(g.one(" the", " value", " of", " import", " function", "Return", " a", " list", " zyx", "Qqq", ","))
			}
		}
	}
	return b.String()
}

// content of a message: text, or parts of text.
func (g generator) content() any {
	if g.percent(75) {
		return g.text()
	}
	var parts []any
	for range 1 + g.IntN(3) {
		parts = append(parts, map[string]any{"type": "text", "text": g.text()})
	}
	return parts
}

// value is nested JSON of a few levels.
func (g generator) value(depth int) any {
	switch n := g.IntN(9); {
	case n == 0 && depth > 0:
		list := []any{}
		for range g.IntN(4) {
			list = append(list, g.value(depth-1))
		}
		return list
	case n <= 2 && depth > 0:
		return g.object(depth - 1)
	case n == 3:
		return g.Int64N(1<<53) - 1<<52
	case n == 4:
		return g.NormFloat64() * 1e3
	case n == 5:
		return g.percent(50)
	case n == 6:
		return nil
	}
	return g.text()
}

func (g generator) object(depth int) map[string]any {
	out := map[string]any{}
	for range g.IntN(4) {
		out[g.one("city", "days", "ünit", "a b", "<x>", "q'q")] = g.value(depth)
	}
	return out
}

// schema of a tool's parameters.
func (g generator) schema() map[string]any {
	return map[string]any{"type": "object", "required": []any{"city"}, "properties": map[string]any{
		"city":  map[string]any{"type": "string", "description": g.text(), "enum": []any{g.text(), "Köln"}},
		"limit": map[string]any{"type": "number", "maximum": g.NormFloat64() * 100, "default": 7.0},
		"more":  map[string]any{"type": "array", "items": map[string]any{"type": "string"}, "x-own": g.value(2)},
	}}
}

func toolName(i int) string { return fmt.Sprintf("tool_%d", i) }

func (g generator) tools() []any {
	var out []any
	for i := range 1 + g.IntN(3) {
		f := map[string]any{"name": toolName(i), "description": g.text(), "parameters": g.schema()}
		if g.percent(20) {
			f["strict"] = g.percent(50)
		}
		if g.percent(10) {
			delete(f, "description")
		}
		out = append(out, map[string]any{"type": "function", "function": f})
	}
	return out
}

// conversation alternates user and assistant; the assistant may call tools and is answered.
func (g generator) conversation() []any {
	var out []any
	add := func(m map[string]any) { out = append(out, m) }
	if g.percent(50) {
		add(map[string]any{"role": "system", "content": g.content()})
	}
	for range 1 + g.IntN(4) {
		add(map[string]any{"role": "user", "content": g.content()})
		if g.percent(30) {
			calls := []any{}
			for i := range 1 + g.IntN(2) {
				calls = append(calls, map[string]any{"id": fmt.Sprintf("call_%d", i), "type": "function", "function": map[string]any{
					"name": toolName(i), "arguments": mustJSON(g.object(2)),
				}})
			}
			m := map[string]any{"role": "assistant", "tool_calls": calls}
			switch g.IntN(3) {
			case 0:
				m["content"] = g.text()
			case 1:
				m["content"] = nil
			}
			add(m)
			for i := range calls {
				add(map[string]any{"role": "tool", "tool_call_id": fmt.Sprintf("call_%d", i), "content": g.content()})
			}
		}
		if g.percent(60) {
			m := map[string]any{"role": "assistant", "content": g.content()}
			if g.percent(25) {
				m[g.one("reasoning", "reasoning_content")] = g.text()
			}
			add(m)
		}
	}
	if last := out[len(out)-1].(map[string]any); last["role"] == "assistant" && g.percent(60) {
		add(map[string]any{"role": "user", "content": g.content()})
	}
	return out
}

func (g generator) chat() (map[string]any, string) {
	body := map[string]any{"messages": g.conversation()}
	var notes []string
	set := func(p int, name string, value func() any) {
		if g.percent(p) {
			body[name] = value()
			notes = append(notes, name)
		}
	}
	set(35, "tools", func() any { return g.tools() })
	if body["tools"] != nil {
		set(40, "tool_choice", func() any {
			if g.percent(30) {
				return map[string]any{"type": "function", "function": map[string]any{"name": toolName(0)}}
			}
			return g.one("auto", "none", "required")
		})
	}
	messages := body["messages"].([]any)
	if messages[len(messages)-1].(map[string]any)["role"] == "assistant" && g.percent(60) {
		body["continue_final_message"], body["add_generation_prompt"] = true, false
		notes = append(notes, "continue_final_message")
	} else {
		set(12, "add_generation_prompt", func() any { return false })
	}
	set(20, "chat_template_kwargs", func() any {
		kwargs := map[string]any{g.one("enable_thinking", "unknown_one"): g.percent(50)}
		if g.percent(20) {
			kwargs["add_generation_prompt"] = g.percent(50) // the request's own wins
		}
		return kwargs
	})
	set(15, "reasoning_effort", func() any { return g.one("none", "low", "medium", "high") })
	set(8, "documents", func() any { return []any{map[string]any{"title": "t", "text": g.text()}} })
	set(10, "add_special_tokens", func() any { return g.percent(50) })
	set(6, "truncate_prompt_tokens", func() any { return 1 + g.IntN(60) })
	set(6, "cache_salt", func() any { return "salt" })
	set(6, "response_format", func() any { return map[string]any{"type": "json_object"} })
	set(5, "prompt_logprobs", func() any { return g.IntN(3) })
	set(4, "chat_template", func() any { return "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}" })
	return body, strings.Join(notes, ",")
}

func (g generator) ids() []any {
	out := []any{}
	for range 1 + g.IntN(80) {
		out = append(out, g.IntN(4096))
	}
	return out
}

func (g generator) completion() (map[string]any, string) {
	body := map[string]any{}
	list := func(one func() any) []any {
		out := []any{}
		for range 1 + g.IntN(3) {
			out = append(out, one())
		}
		return out
	}
	var note string
	switch note = g.one("text", "text", "texts", "ids", "lists of ids"); note {
	case "text":
		body["prompt"] = g.text()
	case "texts":
		body["prompt"] = list(func() any { return g.text() })
	case "ids":
		body["prompt"] = g.ids()
	default:
		body["prompt"] = list(func() any { return g.ids() })
	}
	set := func(p int, name string, value any) {
		if g.percent(p) {
			body[name] = value
			note += "," + name
		}
	}
	set(25, "add_special_tokens", g.percent(50))
	set(20, "truncate_prompt_tokens", 1+g.IntN(30))
	if body["truncate_prompt_tokens"] != nil {
		set(40, "truncation_side", g.one("left", "right"))
	}
	set(20, "echo", true)
	set(15, "logprobs", g.IntN(3))
	set(8, "prompt_logprobs", g.IntN(3))
	set(8, "suffix", g.text())
	set(8, "cache_salt", "salt")
	return body, note
}

func (g generator) responses() (map[string]any, string) {
	body := map[string]any{}
	note := g.one("text", "items")
	if note == "text" {
		body["input"] = g.text()
	} else {
		items := []any{}
		for range 1 + g.IntN(3) {
			switch g.IntN(4) {
			case 0:
				items = append(items, map[string]any{"role": "assistant", "content": g.text()})
			case 1:
				items = append(items, map[string]any{"type": "message", "role": "user", "content": []any{map[string]any{"type": "input_text", "text": g.text()}}})
			case 2:
				items = append(items,
					map[string]any{"type": "function_call", "call_id": "c1", "name": toolName(0), "arguments": mustJSON(g.object(1))},
					map[string]any{"type": "function_call_output", "call_id": "c1", "output": g.text()})
			}
			items = append(items, map[string]any{"role": "user", "content": g.text()})
		}
		body["input"] = items
	}
	if g.percent(40) {
		body["instructions"] = g.text()
		note += ",instructions"
	}
	if g.percent(25) {
		body["tools"] = []any{map[string]any{"type": "function", "name": toolName(0), "description": g.text(), "parameters": g.schema()}}
		note += ",tools"
	}
	if g.percent(20) {
		body["reasoning"] = map[string]any{"effort": g.one("low", "high")}
		note += ",reasoning"
	}
	return body, note
}

func (g generator) messages() (map[string]any, string) {
	blocks := func() any {
		if g.percent(60) {
			return g.text()
		}
		out := []any{}
		for range 1 + g.IntN(2) {
			out = append(out, map[string]any{"type": "text", "text": g.text()})
		}
		return out
	}
	messages, note := []any{}, "plain"
	for range 1 + g.IntN(3) {
		messages = append(messages, map[string]any{"role": "user", "content": blocks()})
		if g.percent(30) {
			note = "tool use"
			messages = append(messages,
				map[string]any{"role": "assistant", "content": []any{
					map[string]any{"type": "text", "text": g.text()},
					map[string]any{"type": "tool_use", "id": "toolu_1", "name": toolName(0), "input": g.object(2)},
				}},
				map[string]any{"role": "user", "content": []any{map[string]any{"type": "tool_result", "tool_use_id": "toolu_1", "content": blocks()}}})
		}
		messages = append(messages, map[string]any{"role": "assistant", "content": blocks()})
	}
	messages = append(messages, map[string]any{"role": "user", "content": blocks()})
	body := map[string]any{"max_tokens": 8, "messages": messages}
	if g.percent(50) {
		body["system"] = blocks()
		note += ",system"
	}
	if g.percent(30) {
		body["tools"] = []any{map[string]any{"name": toolName(0), "description": g.text(), "input_schema": g.schema()}}
		note += ",tools"
	}
	return body, note
}
