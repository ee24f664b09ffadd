package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat/jinja"
)

// Options say how the engines were started, as far as prompts depend on it. The
// zero value is vLLM's default.
type Options struct {
	// Template wins over the model's own: the text of a template, or the name
	// of one of the model's (--chat-template).
	Template string
	// ContentFormat is "string", "openai" or "auto", the same as ""
	// (--chat-template-content-format).
	ContentFormat string
	// Kwargs is a JSON object of variables for all requests
	// (--default-chat-template-kwargs).
	Kwargs json.RawMessage
	// DropToolsOnNone hides tools from the template if tool_choice is none
	// (--exclude-tools-when-tool-choice-none).
	DropToolsOnNone bool
}

// defaultTokens are the special tokens of tokenizer classes, for those that
// tokenizer_config.json does not name (transformers 5.19).
func defaultTokens(class string) map[string]string {
	switch strings.TrimSuffix(class, "Fast") {
	case "LlamaTokenizer", "CodeLlamaTokenizer":
		return map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
	case "Qwen2Tokenizer":
		return map[string]string{"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
	case "GemmaTokenizer":
		return map[string]string{"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
	case "GPT2Tokenizer":
		return map[string]string{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
	}
	return map[string]string{}
}

// Load reads the template of a model directory with the default Options.
func Load(dir fs.FS) (*Template, error) { return Options{}.Load(dir) }

// Load reads the template of a model directory where transformers looks for it:
// chat_template.jinja and additional_chat_templates/*.jinja, else chat_template
// of tokenizer_config.json (one, or a list with names, of which tool_use is for
// requests with tools); chat_template.json of a multimodal model. A model whose
// prompts vLLM does not make from a template is an error.
func (o Options) Load(dir fs.FS) (*Template, error) {
	if err := templated(dir); err != nil {
		return nil, err
	}
	data, err := readFile(dir, "tokenizer_config.json")
	if err != nil {
		return nil, fmt.Errorf("read chat template: %w", err)
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("read tokenizer_config.json: %w", err)
	}
	special, err := readSpecial(dir, config)
	if err != nil {
		return nil, err
	}
	t := &Template{opts: o}
	t.setSpecial(special)
	if err := t.setDefaults(o.Kwargs); err != nil {
		return nil, err
	}
	named, err := readTemplates(dir, config["chat_template"])
	if err != nil {
		return nil, err
	}
	if err := t.choose(dir, named); err != nil {
		return nil, err
	}
	return t, nil
}

// choose compiles the templates for requests without and with tools.
func (t *Template) choose(dir fs.FS, named map[string]string) error {
	plain, ok := named["default"]
	tools, forTools := named["tool_use"]
	if !forTools {
		tools = plain
	}
	if p, err := processorTemplate(dir); err != nil {
		return err
	} else if p != "" {
		plain, ok = p, true
	}
	if o := t.opts.Template; o != "" {
		if n, ok := named[o]; ok {
			o = n
		} else if !strings.Contains(o, "{{") && !strings.Contains(o, "{%") {
			return fmt.Errorf("read chat template: %q is neither a template nor the name of one of the model's (%s)", o, strings.Join(slices.Sorted(maps.Keys(named)), ", "))
		}
		plain, tools, ok = o, o, true
	}
	if !ok && !forTools {
		return errors.New("read chat template: the model directory has none that is the default")
	}
	var err error
	if ok {
		if t.plain, err = t.compile(plain); err != nil {
			return err
		}
	}
	if t.tools = t.plain; tools != plain {
		if t.tools = nil; tools != "" {
			t.tools, err = t.compile(tools)
		}
	}
	return err
}

func (t *Template) setDefaults(raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		return fmt.Errorf("read default chat template kwargs: %w", err)
	}
	kwargs, _ := jinja.Decode(raw).(*jinja.Dict)
	for name, v := range kwargs.All() {
		use, err := kwarg(name)
		if err != nil {
			return fmt.Errorf("default: %w", err)
		}
		if use {
			t.defaults = append(t.defaults, jinja.Var{Name: name, Value: v})
		}
	}
	return nil
}

// templated tells whether vLLM 0.32 makes a model's prompts from a template
// (config/model.py, tokenizers/registry.py).
func templated(dir fs.FS) error {
	var config struct {
		Architectures []string `json:"architectures"`
		ModelType     string   `json:"model_type"`
	}
	if data, err := readFile(dir, "config.json"); err == nil {
		if err := json.Unmarshal(data, &config); err != nil {
			return fmt.Errorf("read config.json: %w", err)
		}
	}
	if config.ModelType == "gpt_oss" {
		return errors.New("prompts of gpt_oss are made without a template (harmony)")
	}
	for _, a := range config.Architectures {
		switch a {
		case "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM",
			"KimiK3ForConditionalGeneration", "InklingForCausalLM", "InklingForConditionalGeneration":
			return fmt.Errorf("prompts of %s are made without a template", a)
		}
	}
	if _, err := fs.Stat(dir, "tekken.json"); err == nil {
		return errors.New("prompts of a model with tekken.json are made by Mistral's own tokenizer")
	}
	return nil
}

// readSpecial reads special tokens: all members whose names end in _token.
// Without added_tokens_decoder, special_tokens_map.json wins, as in
// transformers.
func readSpecial(dir fs.FS, config map[string]json.RawMessage) (map[string]string, error) {
	var class string
	_ = json.Unmarshal(config["tokenizer_class"], &class) // "" if it is something else
	special := defaultTokens(class)
	sources := []map[string]json.RawMessage{config}
	if data, err := readFile(dir, "special_tokens_map.json"); err == nil && config["added_tokens_decoder"] == nil {
		var legacy map[string]json.RawMessage
		if err := json.Unmarshal(data, &legacy); err != nil {
			return nil, fmt.Errorf("read special_tokens_map.json: %w", err)
		}
		sources = append(sources, legacy)
	}
	for _, from := range sources {
		var extra map[string]json.RawMessage
		if json.Unmarshal(from["extra_special_tokens"], &extra) != nil {
			extra = nil // usually a list of tokens without names
		}
		for _, tokens := range []map[string]json.RawMessage{from, extra} {
			for name, raw := range tokens {
				if !strings.HasSuffix(name, "_token") {
					continue
				}
				if s, ok := tokenText(raw); ok {
					special[name] = s
				} else if string(raw) == "null" {
					delete(special, name)
				}
			}
		}
	}
	return special, nil
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

// readTemplates returns the tokenizer's templates by name.
func readTemplates(dir fs.FS, inConfig json.RawMessage) (map[string]string, error) {
	named := map[string]string{}
	files, err := fs.Glob(dir, "additional_chat_templates/*.jinja")
	if err != nil {
		return nil, fmt.Errorf("read chat template: %w", err)
	}
	for _, f := range append(files, "chat_template.jinja") {
		b, err := readFile(dir, f)
		switch {
		case err == nil && f == "chat_template.jinja":
			named["default"] = string(b)
		case err == nil:
			named[strings.TrimSuffix(path.Base(f), ".jinja")] = string(b)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("read chat template: %w", err)
		}
	}
	if len(named) > 0 || inConfig == nil || string(inConfig) == "null" {
		return named, nil
	}
	var one string
	var list []struct{ Name, Template string }
	switch {
	case json.Unmarshal(inConfig, &one) == nil:
		named["default"] = one
	case json.Unmarshal(inConfig, &named) == nil:
	case json.Unmarshal(inConfig, &list) == nil:
		for _, l := range list {
			named[l.Name] = l.Template
		}
	default:
		return nil, errors.New("read tokenizer_config.json: chat_template is neither text nor a list of templates")
	}
	return named, nil
}

// processorTemplate is the template of a multimodal model's processor, which
// vLLM takes for requests without tools; "" if there is none of its own.
func processorTemplate(dir fs.FS) (string, error) {
	var config struct {
		ChatTemplate string `json:"chat_template"`
	}
	if _, err := fs.Stat(dir, "preprocessor_config.json"); err != nil {
		if _, err := fs.Stat(dir, "processor_config.json"); err != nil {
			return "", nil
		}
	}
	for _, f := range [...]string{"processor_config.json", "chat_template.json"} {
		data, err := readFile(dir, f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("read chat template: %w", err)
		}
		if err := json.Unmarshal(data, &config); err != nil {
			return "", fmt.Errorf("read %s: %w", f, err)
		}
		if config.ChatTemplate != "" {
			return config.ChatTemplate, nil
		}
	}
	return "", nil
}

// maxFile bounds each file that belongs to a template, in bytes.
const maxFile = 16 << 20

// readFile reads a file whole. What is no regular file could keep the reader for
// ever.
func readFile(dir fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(dir, name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", name)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s has %d MB, at most %d MB are read", name, info.Size()>>20, maxFile>>20)
	}
	return fs.ReadFile(dir, name)
}
