package gatewaycmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
)

// validateChat checks what is said of the chat templates of models.
func (c *Config) validateChat() []error {
	var errs []error
	fault := func(field, name, value, problem, remedy string) {
		errs = append(errs, config.Fault{Field: field, Value: name + "=" + value, Problem: problem, Remedy: remedy})
	}
	for _, setting := range []struct {
		field  string
		values map[string]string
	}{
		{"chat-template", c.ChatTemplate}, {"chat-template-content-format", c.ChatTemplateContentFormat}, {"chat-template-kwargs", c.ChatTemplateKwargs},
	} {
		for _, name := range slices.Sorted(maps.Keys(setting.values)) {
			value := setting.values[name]
			if _, known := c.Model[name]; !known {
				fault(setting.field, name, value, "is for a model without a folder", "name the model's folder with --model, or leave it out")
			}
			switch setting.field {
			case "chat-template-content-format":
				if !slices.Contains([]string{"auto", "string", "openai"}, value) {
					fault(setting.field, name, value, "is no format", "give auto, string or openai")
				}
			case "chat-template-kwargs":
				var object map[string]json.RawMessage
				if json.Unmarshal([]byte(value), &object) != nil || object == nil {
					fault(setting.field, name, value, "is no JSON object", `give an object such as {"enable_thinking": false}`)
				}
			}
		}
	}
	return errs
}

// chats reads the template files and returns the options of each model.
func (c *Config) chats() (map[string]chat.Options, error) {
	out := map[string]chat.Options{}
	for name := range c.Model {
		opts := chat.Options{ContentFormat: c.ChatTemplateContentFormat[name], DropToolsOnNone: c.ExcludeTools}
		if kwargs := c.ChatTemplateKwargs[name]; kwargs != "" {
			opts.Kwargs = json.RawMessage(kwargs)
		}
		if opts.Template = c.ChatTemplate[name]; opts.Template != "" {
			text, err := os.ReadFile(opts.Template)
			switch {
			case err == nil:
				opts.Template = string(text)
			case !errors.Is(err, fs.ErrNotExist) || strings.ContainsAny(opts.Template, "./"):
				return nil, fmt.Errorf("read chat template of model %s: %w", name, err)
			}
		}
		out[name] = opts
	}
	return out, nil
}
