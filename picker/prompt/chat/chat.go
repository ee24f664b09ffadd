// Package chat renders the messages of a chat request to the text of its
// prompt, exactly as vLLM does with the same model directory: the request is
// brought into the form that vLLM gives to templates (renderers/chat_utils.py,
// renderers/hf.py of vLLM 0.32), then the model's Jinja template runs.
//
//	tmpl, err := chat.Load(os.DirFS("models/qwen3"))
//	text, err := tmpl.Render(time.Now(), chat.Request{Messages: raw, AddGenerationPrompt: true})
//
// Any error means that the text is not known here and the engine has to be
// asked: images, a tag that package jinja does not know, a message that the
// template refuses.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat/jinja"
)

// Request is what a template sees of a chat request: raw JSON as the client
// sent it and checked before, nil if absent.
type Request struct {
	Messages             json.RawMessage // a list
	Tools                json.RawMessage // a list
	Documents            json.RawMessage // a list
	Kwargs               json.RawMessage // an object
	ReasoningEffort      string
	AddGenerationPrompt  bool
	ContinueFinalMessage bool
}

// Template is a model's chat template with its special tokens. It is immutable
// and safe for concurrent use.
type Template struct {
	tmpl      *jinja.Template
	special   []jinja.Var
	parts     bool // content stays a list of parts
	developer bool // knows the developer role
	content   bool // looks at content at all
}

// specialTokens are the names under which tokenizer_config.json gives special
// tokens and templates see them.
var specialTokens = [...]string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// Load reads the template of a model directory: chat_template.jinja if it
// exists, else chat_template of tokenizer_config.json, which gives the special
// tokens either way.
func Load(dir fs.FS) (*Template, error) {
	data, err := fs.ReadFile(dir, "tokenizer_config.json")
	if err != nil {
		return nil, fmt.Errorf("read chat template: %w", err)
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("read tokenizer_config.json: %w", err)
	}
	special := map[string]string{}
	for _, name := range specialTokens {
		if s, ok := tokenText(config[name]); ok {
			special[name] = s
		}
	}
	source, err := fs.ReadFile(dir, "chat_template.jinja")
	if err == nil {
		return Parse(string(source), special)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read chat template: %w", err)
	}
	var text string
	if err := json.Unmarshal(config["chat_template"], &text); err != nil {
		return nil, errors.New("read chat template: tokenizer_config.json has no single chat_template")
	}
	return Parse(text, special)
}

// tokenText reads a token: text, or an object with content.
func tokenText(raw json.RawMessage) (string, bool) {
	var token struct {
		Content *string `json:"content"`
	}
	var s *string
	if json.Unmarshal(raw, &s) != nil {
		if json.Unmarshal(raw, &token) != nil {
			return "", false
		}
		s = token.Content
	}
	if s == nil {
		return "", false
	}
	return *s, true
}

// loopsOverContent finds templates that take a message's content apart
// themselves; vLLM then leaves it a list of parts (it looks for such a loop in
// the template's tree).
var loopsOverContent = regexp.MustCompile(`\{%[-+]?\s*for\s+\w+\s+in\s+(\w+(\.content|\[\s*['"]content['"]\s*\])|content)\b`)

// Parse compiles a template. special maps names such as bos_token to text.
func Parse(source string, special map[string]string) (*Template, error) {
	tmpl, err := jinja.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("parse chat template: %w", err)
	}
	t := &Template{
		tmpl:      tmpl,
		parts:     loopsOverContent.MatchString(source),
		developer: strings.Contains(source, `"developer"`) || strings.Contains(source, "'developer'"),
		content:   strings.Contains(source, "content"),
	}
	for _, name := range specialTokens {
		if s, ok := special[name]; ok {
			t.special = append(t.special, jinja.Var{Name: name, Value: s})
		}
	}
	return t, nil
}

// continueTag marks the end of the message to be continued (transformers uses
// the same text).
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// Render returns the prompt's text. now is what the template sees as the time.
func (t *Template) Render(now time.Time, r Request) (string, error) {
	if r.ContinueFinalMessage && r.AddGenerationPrompt {
		return "", errors.New("add_generation_prompt and continue_final_message exclude each other")
	}
	messages, err := t.conversation(r.Messages)
	if err != nil {
		return "", err
	}
	vars, err := t.vars(r)
	if err != nil {
		return "", err
	}
	final := ""
	if r.ContinueFinalMessage {
		if final, err = t.markFinal(messages); err != nil {
			return "", err
		}
	}
	vars = append(vars, jinja.Var{Name: "messages", Value: messages})
	text, err := t.tmpl.Render(now, vars, len(r.Messages)+len(r.Tools)+1024)
	if err != nil {
		return "", fmt.Errorf("render chat template: %w", err)
	}
	if r.ContinueFinalMessage {
		return cutFinal(text, final)
	}
	return text, nil
}

// vars are the template's variables but for messages. What the request says of
// its own wins over its chat_template_kwargs.
func (t *Template) vars(r Request) ([]jinja.Var, error) {
	tools, err := toolList(r.Tools)
	if err != nil {
		return nil, err
	}
	vars := append(make([]jinja.Var, 0, len(t.special)+8), t.special...)
	vars = append(vars, jinja.Var{Name: "tools", Value: tools}, jinja.Var{Name: "documents", Value: nil})
	effort := r.ReasoningEffort
	thinking := effort != ""
	if r.Kwargs != nil {
		kwargs, ok := jinja.Decode(r.Kwargs).(*jinja.Dict)
		if !ok {
			return nil, errors.New("chat_template_kwargs is no object")
		}
		for name, v := range kwargs.All() {
			switch name {
			case "messages", "conversation", "tools", "chat_template", "tokenize", "return_dict", "padding", "truncation",
				"max_length", "return_tensors", "tokenizer_kwargs", "return_assistant_tokens_mask", "continue_final_message":
				return nil, fmt.Errorf("chat_template_kwargs sets %s", name)
			case "enable_thinking":
				thinking = false
			}
			vars = append(vars, jinja.Var{Name: name, Value: v})
		}
	}
	if r.Documents != nil {
		vars = append(vars, jinja.Var{Name: "documents", Value: jinja.Decode(r.Documents)})
	}
	if effort != "" {
		vars = append(vars, jinja.Var{Name: "reasoning_effort", Value: effort})
	}
	if thinking {
		vars = append(vars, jinja.Var{Name: "enable_thinking", Value: effort != "none"})
	}
	return append(vars, jinja.Var{Name: "add_generation_prompt", Value: r.AddGenerationPrompt}), nil
}

// markFinal puts continueTag behind the last message and returns its text.
func (t *Template) markFinal(messages *jinja.List) (string, error) {
	none := errors.New("continue_final_message: the final message has no text to continue")
	if len(messages.Items) == 0 || !t.content {
		return "", none
	}
	last, ok := messages.Items[len(messages.Items)-1].(*jinja.Dict)
	if !ok {
		return "", none
	}
	content, _ := last.Get("content")
	switch content := content.(type) {
	case string:
		last.Set("content", content+continueTag)
		return content, nil
	case *jinja.List:
		for i := len(content.Items) - 1; i >= 0; i-- {
			part, ok := content.Items[i].(*jinja.Dict)
			if !ok {
				continue
			}
			if v, ok := part.Get("text"); ok {
				text, _ := v.(string)
				part.Set("text", text+continueTag)
				return text, nil
			}
		}
	}
	return "", none
}

// cutFinal cuts the rendered text where the final message ends.
func cutFinal(text, final string) (string, error) {
	tag := strings.TrimSpace(continueTag)
	at := strings.LastIndex(text, tag)
	if at < 0 || !strings.Contains(text, jinja.TrimSpace(final)) {
		return "", errors.New("continue_final_message: the template does not show the final message")
	}
	if strings.HasPrefix(text[at:], continueTag) {
		return text[:at], nil
	}
	return jinja.TrimRightSpace(text[:at]), nil
}
