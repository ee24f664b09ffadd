package prompt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
)

// errOtherForm means that a request of another API holds what this package
// does not turn into chat messages: the engine is asked.
var errOtherForm = errors.New("this API renders more than plain text in its own way")

// converted turns a request of the Responses API or of Anthropic's into the
// chat request that vLLM makes of it (vLLM 0.32, openai/responses/utils.py and
// anthropic/serving.py). It takes plain text, and for Anthropic tools and their
// calls; any member beside those that are known to leave the prompt alone is
// errOtherForm.
func converted(req *openai.Request) (chat.Request, error) {
	if req.Kind == openai.Responses {
		return fromResponses(req.Body)
	}
	return fromAnthropic(req.Body)
}

// strict decodes JSON and refuses members that into does not have.
func strict(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(into) != nil {
		return errOtherForm
	}
	return nil
}

// ignored are members that do not touch the prompt.
type ignored = json.RawMessage

type responsesRequest struct {
	Input        json.RawMessage `json:"input"`
	Instructions json.RawMessage `json:"instructions"`

	Model             ignored `json:"model"`
	MaxOutputTokens   ignored `json:"max_output_tokens"`
	Metadata          ignored `json:"metadata"`
	Stream            ignored `json:"stream"`
	Store             ignored `json:"store"`
	User              ignored `json:"user"`
	Temperature       ignored `json:"temperature"`
	TopP              ignored `json:"top_p"`
	TopK              ignored `json:"top_k"`
	TopLogprobs       ignored `json:"top_logprobs"`
	ParallelToolCalls ignored `json:"parallel_tool_calls"`
	ServiceTier       ignored `json:"service_tier"`
	CacheSalt         ignored `json:"cache_salt"`
	PromptCacheKey    ignored `json:"prompt_cache_key"`
	RequestID         ignored `json:"request_id"`
	SessionID         ignored `json:"session_id"`
}

type responsesItem struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type textPart struct {
	Type string          `json:"type"`
	Text json.RawMessage `json:"text"`

	CacheControl ignored `json:"cache_control"`
}

func fromResponses(body []byte) (chat.Request, error) {
	var in responsesRequest
	if err := strict(body, &in); err != nil {
		return chat.Request{}, err
	}
	var out messageList
	switch {
	case isText(in.Instructions):
		if string(in.Instructions) != `""` {
			out.add("system", in.Instructions)
		}
	case !isNull(in.Instructions):
		return chat.Request{}, errOtherForm
	}
	if isText(in.Input) {
		out.add("user", in.Input)
		return out.request(nil), nil
	}
	var items []json.RawMessage
	if json.Unmarshal(in.Input, &items) != nil || len(items) == 0 {
		return chat.Request{}, errOtherForm
	}
	for _, raw := range items {
		var item responsesItem
		if err := strict(raw, &item); err != nil || item.Type != "" && item.Type != "message" {
			return chat.Request{}, errOtherForm
		}
		content := item.Content
		switch item.Role {
		case "user", "system", "developer":
			if !isText(content) && !allText(content, "input_text") {
				return chat.Request{}, errOtherForm
			}
		case "assistant":
			if !isText(content) { // vLLM takes the first part alone
				return chat.Request{}, errOtherForm
			}
		default:
			return chat.Request{}, errOtherForm
		}
		out.add(item.Role, content)
	}
	return out.request(nil), nil
}

type anthropicRequest struct {
	Messages []anthropicMessage `json:"messages"`
	System   json.RawMessage    `json:"system"`
	Tools    []anthropicTool    `json:"tools"`

	Model         ignored `json:"model"`
	MaxTokens     ignored `json:"max_tokens"`
	Metadata      ignored `json:"metadata"`
	StopSequences ignored `json:"stop_sequences"`
	Stream        ignored `json:"stream"`
	Temperature   ignored `json:"temperature"`
	TopK          ignored `json:"top_k"`
	TopP          ignored `json:"top_p"`
	CacheSalt     ignored `json:"cache_salt"`
}

type anthropicMessage struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

type anthropicBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`

	IsError      ignored `json:"is_error"`
	CacheControl ignored `json:"cache_control"`
}

type anthropicTool struct {
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Schema      json.RawMessage `json:"input_schema"`

	CacheControl ignored `json:"cache_control"`
}

// billingHeader begins text that changes with each request of one client and
// that vLLM leaves out.
const billingHeader = "x-anthropic-billing-header"

func fromAnthropic(body []byte) (chat.Request, error) {
	var in anthropicRequest
	if err := strict(body, &in); err != nil {
		return chat.Request{}, err
	}
	var out messageList
	system, err := systemText(in.System)
	if err != nil {
		return chat.Request{}, err
	}
	if system != "" {
		out.add("system", quoted(system))
	}
	for _, m := range in.Messages {
		if m.Role != "user" && m.Role != "assistant" { // others are moved, as the template wants it
			return chat.Request{}, errOtherForm
		}
		if isText(m.Content) {
			out.add(m.Role, m.Content)
			continue
		}
		if err := out.addBlocks(m); err != nil {
			return chat.Request{}, err
		}
	}
	tools, err := anthropicTools(in.Tools)
	return out.request(tools), err
}

// systemText joins the blocks of a system prompt without anything between.
func systemText(raw json.RawMessage) (string, error) {
	var text string
	switch {
	case isNull(raw):
		return "", nil
	case isText(raw):
		return text, json.Unmarshal(raw, &text)
	}
	var blocks []json.RawMessage
	if json.Unmarshal(raw, &blocks) != nil {
		return "", errOtherForm
	}
	for _, b := range blocks {
		var block anthropicBlock
		if err := strict(b, &block); err != nil || block.Type != "text" {
			return "", errOtherForm
		}
		if !strings.HasPrefix(block.Text, billingHeader) {
			text += block.Text
		}
	}
	return text, nil
}

// addBlocks adds a message that is a list of blocks. Results of tools become
// messages of their own before it.
func (l *messageList) addBlocks(m anthropicMessage) error {
	var blocks []json.RawMessage
	if json.Unmarshal(m.Content, &blocks) != nil {
		return errOtherForm
	}
	var texts, calls []json.RawMessage
	for _, raw := range blocks {
		var b anthropicBlock
		if err := strict(raw, &b); err != nil {
			return err
		}
		switch {
		case b.Type == "text":
			if b.Text != "" {
				texts = append(texts, quoted(b.Text))
			}
		case b.Type == "tool_use" && m.Role == "assistant" && b.ID != "":
			if len(b.Input) == 0 || b.Input[0] != '{' {
				b.Input = json.RawMessage("{}")
			}
			calls = append(calls, fmt.Appendf(nil, `{"id":%s,"type":"function","function":{"name":%s,"arguments":%s}}`, quoted(b.ID), quoted(b.Name), b.Input))
		case b.Type == "tool_result" && m.Role == "user":
			text, err := toolResult(b.Content)
			if err != nil {
				return err
			}
			l.list = append(l.list, fmt.Appendf(nil, `{"role":"tool","tool_call_id":%s,"content":%s}`, quoted(b.ToolUseID), text))
		default:
			return errOtherForm
		}
	}
	message := fmt.Appendf(nil, `{"role":%s`, quoted(m.Role))
	switch len(texts) {
	case 0:
		if m.Role == "user" {
			return nil
		}
	case 1:
		message = fmt.Appendf(message, `,"content":%s`, texts[0])
	default:
		parts := make([]json.RawMessage, len(texts))
		for i, t := range texts {
			parts[i] = fmt.Appendf(nil, `{"type":"text","text":%s}`, t)
		}
		message = fmt.Appendf(message, `,"content":%s`, joined(parts))
	}
	if calls != nil {
		message = fmt.Appendf(message, `,"tool_calls":%s`, joined(calls))
	}
	l.list = append(l.list, append(message, '}'))
	return nil
}

// toolResult is the content of a tool's answer: text, or texts joined by line
// breaks.
func toolResult(raw json.RawMessage) (json.RawMessage, error) {
	switch {
	case isNull(raw):
		return quoted(""), nil
	case isText(raw):
		return raw, nil
	case !allText(raw, "text"):
		return nil, errOtherForm
	}
	var parts []struct{ Text string }
	if json.Unmarshal(raw, &parts) != nil {
		return nil, errOtherForm
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.Text
	}
	return quoted(strings.Join(texts, "\n")), nil
}

func anthropicTools(list []anthropicTool) (json.RawMessage, error) {
	if list == nil {
		return nil, nil
	}
	tools := make([]json.RawMessage, len(list))
	for i, t := range list {
		var schema map[string]json.RawMessage
		if json.Unmarshal(t.Schema, &schema) != nil || schema["type"] == nil { // vLLM adds one, at the end
			return nil, errOtherForm
		}
		description := json.RawMessage("null")
		if t.Description != nil {
			description = quoted(*t.Description)
		}
		tools[i] = fmt.Appendf(nil, `{"type":"function","function":{"name":%s,"description":%s,"parameters":%s}}`, quoted(t.Name), description, t.Schema)
	}
	return joined(tools), nil
}

// messageList collects chat messages as JSON.
type messageList struct{ list []json.RawMessage }

func (l *messageList) add(role string, content json.RawMessage) {
	l.list = append(l.list, fmt.Appendf(nil, `{"role":%s,"content":%s}`, quoted(role), content))
}

func (l *messageList) request(tools json.RawMessage) chat.Request {
	return chat.Request{Messages: joined(l.list), Tools: tools, AddGenerationPrompt: true}
}

func joined(list []json.RawMessage) json.RawMessage {
	out := []byte{'['}
	for i, v := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, v...)
	}
	return append(out, ']')
}

func quoted(s string) json.RawMessage {
	out, err := json.Marshal(s)
	if err != nil {
		return json.RawMessage(`""`) // never: a string can be written
	}
	return out
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || raw[0] == 'n' }
func isText(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '"' }

// allText reports whether raw is a list of text parts of the given type.
func allText(raw json.RawMessage, kind string) bool {
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil || len(parts) == 0 {
		return false
	}
	for _, p := range parts {
		var part textPart
		if strict(p, &part) != nil || part.Type != kind || !isText(part.Text) {
			return false
		}
	}
	return true
}
