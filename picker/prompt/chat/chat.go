// Package chat renders the messages of a chat request to the text of its
// prompt, exactly as vLLM does with the same model directory: the request is
// brought into the form that vLLM gives to templates (renderers/chat_utils.py,
// renderers/hf.py of vLLM 0.32), then the model's Jinja template runs as
// transformers 5.19 runs it.
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
	"strings"
	"sync"
	"time"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat/jinja"
)

// Request is what a template sees of a chat request: raw JSON as the client
// sent it and checked before, nil if absent.
type Request struct {
	Messages             json.RawMessage // a list
	Tools                json.RawMessage // a list
	ToolChoice           json.RawMessage // matters with Options.DropToolsOnNone
	Documents            json.RawMessage // a list
	Kwargs               json.RawMessage // an object
	ReasoningEffort      string
	AddGenerationPrompt  bool
	ContinueFinalMessage bool
}

// Template is a model's chat template with its special tokens. It is safe for
// concurrent use.
type Template struct {
	opts     Options
	defaults []jinja.Var // of Options.Kwargs
	special  []jinja.Var
	// plain is for requests without tools, tools for those with. Either may be
	// nil.
	plain, tools *source
	scratch      sync.Pool // of *scratch
}

// source is one compiled template.
type source struct {
	tmpl      *jinja.Template
	parts     bool // content stays a list of parts
	developer bool // knows the developer role
	content   bool // looks at content at all
}

// scratch is the memory of one rendering.
type scratch struct {
	json jinja.Decoder
	vars []jinja.Var
}

// maxScratch is how much decoded text a rendering may leave behind for the
// next one, in bytes.
const maxScratch = 4 << 20

// Parse compiles a template. special maps names such as bos_token to text.
func Parse(template string, special map[string]string) (*Template, error) {
	t := &Template{}
	s, err := t.compile(template)
	if err != nil {
		return nil, err
	}
	t.plain, t.tools = s, s
	t.setSpecial(special)
	return t, nil
}

func (t *Template) compile(template string) (*source, error) {
	tmpl, err := jinja.Parse(template)
	if err != nil {
		return nil, fmt.Errorf("parse chat template: %w", err)
	}
	s := &source{
		tmpl:      tmpl,
		parts:     tmpl.LoopsOverContent(),
		developer: strings.Contains(template, `"developer"`) || strings.Contains(template, "'developer'"),
		content:   strings.Contains(template, "content"),
	}
	if f := t.opts.ContentFormat; f != "" && f != "auto" {
		s.parts = f == "openai"
	}
	return s, nil
}

func (t *Template) setSpecial(special map[string]string) {
	for name, s := range special {
		t.special = append(t.special, jinja.Var{Name: name, Value: s})
	}
}

// Render returns the prompt's text. now is what the template sees as the time.
func (t *Template) Render(now time.Time, r Request) (string, error) {
	out, err := t.AppendRender(nil, now, r)
	return string(out), err
}

// AppendRender is Render that appends the text to dst, which comes back as it
// was after an error. Apart from growing dst it allocates little that depends
// on the length of the texts in r. ErrMultimodal: AppendPrefix knows more.
func (t *Template) AppendRender(dst []byte, now time.Time, r Request) ([]byte, error) {
	s := t.take()
	defer t.put(s)
	return t.render(dst, s, now, r, nil)
}

// AppendPrefix appends the text in front of the first image, sound or video of
// a request that AppendRender refuses with ErrMultimodal. What the engine puts
// there is not known here, nor is how it changes the tokens next to it: a
// caller counts on what lies before the last special token of the text.
func (t *Template) AppendPrefix(dst []byte, now time.Time, r Request) ([]byte, error) {
	if r.ContinueFinalMessage {
		return dst, ErrMultimodal
	}
	var variants [2][]byte // the same but for the first thing that is no text
	for i := range variants {
		s := t.take()
		out, err := t.render(nil, s, now, r, &media{variant: i})
		t.put(s)
		if err != nil {
			return dst, err
		}
		variants[i] = out
	}
	a, b := variants[0], variants[1]
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	for n > 0 && n < len(a) && a[n]&0xC0 == 0x80 { // inside a character
		n--
	}
	return append(dst, a[:n]...), nil
}

func (t *Template) take() *scratch {
	if s, ok := t.scratch.Get().(*scratch); ok {
		return s
	}
	return &scratch{}
}

func (t *Template) put(s *scratch) {
	if s.json.Size() > maxScratch {
		return
	}
	s.json.Reset()
	clear(s.vars)
	s.vars = s.vars[:0]
	t.scratch.Put(s)
}

func (t *Template) render(dst []byte, s *scratch, now time.Time, r Request, m *media) ([]byte, error) {
	if r.ContinueFinalMessage && r.AddGenerationPrompt {
		return dst, errors.New("add_generation_prompt and continue_final_message exclude each other")
	}
	tools, err := t.setVars(s, r)
	if err != nil {
		return dst, err
	}
	src := t.plain
	if tools {
		src = t.tools
	}
	if src == nil {
		return dst, errors.New("the model has no template for such a request")
	}
	messages, err := src.conversation(&s.json, r.Messages, m)
	if err != nil {
		return dst, err
	}
	if len(messages.Items) == 0 {
		return dst, errors.New("no messages")
	}
	final := ""
	if r.ContinueFinalMessage {
		if final, err = src.markFinal(messages); err != nil {
			return dst, err
		}
	}
	s.vars = append(s.vars, jinja.Var{Name: "messages", Value: messages})
	out, err := src.tmpl.AppendRender(dst, now, s.vars)
	if err != nil {
		return dst, fmt.Errorf("render chat template: %w", err)
	}
	if r.ContinueFinalMessage {
		return cutFinal(out, len(dst), final)
	}
	return out, nil
}

// maxKwargs bounds what a client can make setVars search through. Templates know
// a few names.
const maxKwargs = 256

// setVars sets the template's variables but for messages and tells whether
// there are tools. Later ones win over earlier ones of the same name: special
// tokens, the server's defaults, chat_template_kwargs, the request's own
// fields (build_chat_params and merge_kwargs of vLLM).
func (t *Template) setVars(s *scratch, r Request) (tools bool, err error) {
	set := func(name string, v any) {
		for i := range s.vars {
			if s.vars[i].Name == name {
				s.vars[i].Value = v
				return
			}
		}
		s.vars = append(s.vars, jinja.Var{Name: name, Value: v})
	}
	s.vars = append(s.vars, t.special...)
	set("tools", nil)
	set("documents", nil)
	for _, v := range t.defaults {
		set(v.Name, v.Value)
	}
	if r.Tools != nil && !(t.opts.DropToolsOnNone && string(r.ToolChoice) == `"none"`) {
		list, err := toolList(s.json.Decode(r.Tools))
		if err != nil {
			return false, err
		}
		set("tools", list)
	}
	thinking := r.ReasoningEffort != ""
	if r.Kwargs != nil {
		kwargs, ok := s.json.Decode(r.Kwargs).(*jinja.Dict)
		if !ok {
			return false, errors.New("chat_template_kwargs is no object")
		}
		if kwargs.Len() > maxKwargs {
			return false, fmt.Errorf("chat_template_kwargs has %d members, at most %d are read", kwargs.Len(), maxKwargs)
		}
		for name, v := range kwargs.All() {
			thinking = thinking && name != "enable_thinking"
			if v == nil || v == "auto" {
				continue // as good as absent
			}
			use, err := kwarg(name)
			if err != nil {
				return false, err
			}
			if use {
				set(name, v)
			}
		}
	}
	if r.Documents != nil {
		set("documents", s.json.Decode(r.Documents))
	}
	if r.ReasoningEffort != "" {
		set("reasoning_effort", r.ReasoningEffort)
	}
	if thinking {
		set("enable_thinking", r.ReasoningEffort != "none")
	}
	set("add_generation_prompt", r.AddGenerationPrompt)
	for _, v := range s.vars {
		if v.Name == "tools" || v.Name == "documents" {
			if err := listOfDicts(v); err != nil {
				return false, err
			}
			tools = tools || v.Name == "tools" && v.Value != nil
		}
	}
	return tools, nil
}

// kwarg tells whether a template sees a member of chat_template_kwargs. The
// error is for those that change how transformers is called.
func kwarg(name string) (bool, error) {
	switch name {
	case "add_generation_prompt", "continue_final_message", // the request's own win
		"range", "dict", "lipsum", "cycler", "joiner", "namespace": // Jinja's own win
		return false, nil
	case "self", "messages", "conversation", "conversations", "chat_template", "tokenize", "return_dict", "padding", "truncation",
		"max_length", "return_tensors", "tokenizer_kwargs", "return_assistant_tokens_mask":
		return false, fmt.Errorf("chat_template_kwargs sets %s", name)
	}
	return true, nil
}

func listOfDicts(v jinja.Var) error {
	if v.Value == nil {
		return nil
	}
	list, ok := v.Value.(*jinja.List)
	if !ok {
		return fmt.Errorf("%s are no list", v.Name)
	}
	for _, x := range list.Items {
		if _, ok := x.(*jinja.Dict); !ok {
			return fmt.Errorf("%s hold something else than objects", v.Name)
		}
	}
	return nil
}
