package gatewaycmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
)

func TestChats(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "template.jinja")
	if err := os.WriteFile(file, []byte("{{ messages }}"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Default()
	c.Model = map[string]string{"a": dir, "b": dir, "c": dir}
	c.ChatTemplate = map[string]string{"a": file, "b": "tool_use"}
	c.ChatTemplateContentFormat = map[string]string{"a": "openai"}
	c.ChatTemplateKwargs = map[string]string{"b": `{"enable_thinking":false}`}
	c.ExcludeTools = true
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	got, err := c.chats()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]chat.Options{
		"a": {Template: "{{ messages }}", ContentFormat: "openai", DropToolsOnNone: true},
		"b": {Template: "tool_use", Kwargs: json.RawMessage(`{"enable_thinking":false}`), DropToolsOnNone: true},
		"c": {DropToolsOnNone: true},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("chats (-want +got):\n%s", d)
	}

	c.ChatTemplate = map[string]string{"a": filepath.Join(dir, "nowhere.jinja")}
	if _, err := c.chats(); err == nil || !strings.Contains(err.Error(), "read chat template of model a") {
		t.Errorf("a template that is not there: %v", err)
	}
	c.ChatTemplate = map[string]string{"other": file}
	c.ChatTemplateContentFormat = map[string]string{"a": "xml"}
	c.ChatTemplateKwargs = map[string]string{"b": "[]"}
	err = c.Validate()
	for _, wanted := range []string{"is for a model without a folder", "is no format", "is no JSON object"} {
		if err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%v\ndoes not say %q", err, wanted)
		}
	}
}
