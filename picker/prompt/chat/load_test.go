package chat

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

// TestContentFormats compares with vLLM's own rule.
func TestContentFormats(t *testing.T) {
	var rows []struct {
		Template string
		OpenAI   bool
	}
	b, err := os.ReadFile("testdata/formats.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &rows); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		tmpl, err := Parse(r.Template, nil)
		if err != nil {
			t.Errorf("%s: %v", r.Template, err)
		} else if tmpl.plain.parts != r.OpenAI {
			t.Errorf("%s: parts %t, want %t", r.Template, tmpl.plain.parts, r.OpenAI)
		}
	}
}

func TestLoadFiles(t *testing.T) {
	const config = `{"bos_token":"<s>","added_tokens_decoder":{},"chat_template":"config"}`
	const named = `{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools"},{"name":"rag","template":"rag"}]}`
	tests := []struct {
		name        string
		opts        Options
		files       map[string]string
		plain, tool string // "!" begins an error's part
	}{
		{"single", Options{}, map[string]string{"tokenizer_config.json": config}, "config", "config"},
		{"named", Options{}, map[string]string{"tokenizer_config.json": named}, "plain", "tools"},
		{"named as an object", Options{}, map[string]string{"tokenizer_config.json": `{"chat_template":{"default":"plain","tool_use":"tools"}}`}, "plain", "tools"},
		{"named without a default", Options{}, map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"tool_use","template":"tools"}]}`}, "!no template for such a request", "tools"},
		{"an option names one", Options{Template: "rag"}, map[string]string{"tokenizer_config.json": named}, "rag", "rag"},
		{"an option brings its own", Options{Template: "own {{ bos_token }}"}, map[string]string{"tokenizer_config.json": config}, "own <s>", "own <s>"},
		{"chat_template.jinja wins", Options{}, map[string]string{"tokenizer_config.json": named, "chat_template.jinja": "file"}, "file", "file"},
		{"additional templates", Options{}, map[string]string{"tokenizer_config.json": config, "chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "more"}, "file", "more"},
		{"chat_template.json without a processor", Options{}, map[string]string{"tokenizer_config.json": config, "chat_template.json": `{"chat_template":"legacy"}`}, "config", "config"},
		{"chat_template.json of a processor", Options{}, map[string]string{"tokenizer_config.json": config, "chat_template.json": `{"chat_template":"legacy"}`, "preprocessor_config.json": "{}"}, "legacy", "config"},
		{"processor_config.json", Options{}, map[string]string{"tokenizer_config.json": config, "processor_config.json": `{"chat_template":"inside"}`}, "inside", "config"},
		{"special tokens of old", Options{Template: "{{ bos_token }}"}, map[string]string{"tokenizer_config.json": `{"bos_token":"<a>"}`, "special_tokens_map.json": `{"bos_token":{"content":"<b>"}}`}, "<b>", "<b>"},
		{"tokens of the model alone", Options{Template: "{{ image_token }}{{ boi_token }}{{ add_bos_token is defined }}"}, map[string]string{"tokenizer_config.json": `{"image_token":"<i>","add_bos_token":true,"extra_special_tokens":{"boi_token":"<b>"}}`}, "<i><b>False", "<i><b>False"},
		{"tokens of the class", Options{Template: "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}"}, map[string]string{"tokenizer_config.json": `{"tokenizer_class":"LlamaTokenizerFast","bos_token":"<b>","unk_token":null}`}, "<b></s>False", "<b></s>False"},
		{"default kwargs", Options{Template: "{{ a }}{{ b }}", Kwargs: json.RawMessage(`{"a":1,"b":[2.0]}`)}, map[string]string{"tokenizer_config.json": config}, "1[2.0]", "1[2.0]"},
		{"syntax error", Options{}, map[string]string{"tokenizer_config.json": config, "chat_template.jinja": "a\n{% if %}"}, "!template line 2: unexpected", ""},
		{"gpt-oss", Options{}, map[string]string{"tokenizer_config.json": config, "config.json": `{"model_type":"gpt_oss"}`}, "!harmony", ""},
		{"DeepSeek-V3.2", Options{}, map[string]string{"tokenizer_config.json": config, "config.json": `{"architectures":["DeepseekV32ForCausalLM"]}`}, "!without a template", ""},
		{"Mistral's own tokenizer", Options{}, map[string]string{"tokenizer_config.json": config, "tekken.json": `{}`}, "!Mistral", ""},
		{"truncated", Options{}, map[string]string{"tokenizer_config.json": `{"chat_template":"x`}, "!read tokenizer_config.json", ""},
		{"bad kwargs", Options{Kwargs: json.RawMessage(`[]`)}, map[string]string{"tokenizer_config.json": config}, "!default chat template kwargs", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := fstest.MapFS{}
			for name, text := range tt.files {
				dir[name] = &fstest.MapFile{Data: []byte(text)}
			}
			tmpl, err := tt.opts.Load(dir)
			check := func(got string, err error, want string) {
				t.Helper()
				if part, isErr := strings.CutPrefix(want, "!"); isErr {
					if err == nil || !strings.Contains(err.Error(), part) {
						t.Errorf("error %v, want one with %q", err, part)
					}
				} else if err != nil || got != want {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
			}
			if err != nil {
				check("", err, tt.plain)
				return
			}
			req := Request{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`)}
			got, err := tmpl.Render(day, req)
			check(got, err, tt.plain)
			req.Tools = json.RawMessage(`[{"type":"function","function":{"name":"f"}}]`)
			got, err = tmpl.Render(day, req)
			check(got, err, tt.tool)
		})
	}
}

func TestKwargs(t *testing.T) {
	const tools = `[{"type":"function","function":{"name":"f"}}]`
	tests := []struct {
		name, template string
		opts           Options
		req            Request
		want           string
	}{
		{"null and auto are absent", "{{ a is defined }}{{ b is defined }}{{ c }}", Options{}, Request{Kwargs: json.RawMessage(`{"a":null,"b":"auto","c":false}`)}, "FalseFalseFalse"},
		{"the request wins over the server", "{{ a }}{{ b }}", Options{Kwargs: json.RawMessage(`{"a":1,"b":2}`)}, Request{Kwargs: json.RawMessage(`{"a":3,"b":null}`)}, "32"},
		{"special tokens can be replaced", "{{ eos_token }}", Options{}, Request{Kwargs: json.RawMessage(`{"eos_token":"E"}`)}, "E"},
		{"add_generation_prompt cannot", "{{ add_generation_prompt }}{{ range(1)|list }}", Options{}, Request{AddGenerationPrompt: true, Kwargs: json.RawMessage(`{"add_generation_prompt":false,"range":1}`)}, "True[0]"},
		{"reasoning_effort turns thinking on", "{{ reasoning_effort }}{{ enable_thinking }}", Options{}, Request{ReasoningEffort: "low"}, "lowTrue"},
		{"unless the client says otherwise", "{{ enable_thinking }}", Options{}, Request{ReasoningEffort: "low", Kwargs: json.RawMessage(`{"enable_thinking":false}`)}, "False"},
		{"an effort of none turns it off", "{{ enable_thinking }}", Options{}, Request{ReasoningEffort: "none"}, "False"},
		{"tool_choice none keeps tools", "{{ tools|length }}", Options{}, Request{Tools: json.RawMessage(tools), ToolChoice: json.RawMessage(`"none"`)}, "1"},
		{"unless the server drops them", "{{ tools }}", Options{DropToolsOnNone: true}, Request{Tools: json.RawMessage(tools), ToolChoice: json.RawMessage(`"none"`)}, "None"},
		{"format openai", "{{ messages[0].content }}", Options{ContentFormat: "openai"}, Request{}, "[{'type': 'text', 'text': 'x'}]"},
		{"format string", "{% for p in messages[0].content %}{{ p }}{% endfor %}", Options{ContentFormat: "string"}, Request{}, "x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.opts.Template = tt.template
			tmpl, err := tt.opts.Load(fstest.MapFS{"tokenizer_config.json": &fstest.MapFile{Data: []byte(`{"eos_token":"e"}`)}})
			if err != nil {
				t.Fatal(err)
			}
			tt.req.Messages = json.RawMessage(`[{"role":"user","content":"x"}]`)
			got, err := tmpl.Render(day, tt.req)
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestAppendPrefix(t *testing.T) {
	const asText = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</>{% endfor %}"
	const asParts = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == 'image' %}<img>{% elif p.type == 'audio' %}<snd>{% else %}{{ p.text }}{% endif %}{% endfor %}</>{% endfor %}"
	const image = `{"type":"image_url","image_url":{"url":"x"}}`
	tests := []struct{ name, template, messages, want string }{
		{"text: the engine puts it in front", asText, `[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"what?"},` + image + `]}]`, "<system>s</><user>"},
		{"parts: it stays in its place", asParts, `[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"what?"},` + image + `,{"type":"text","text":"and"}]},{"role":"user","content":[` + image + `]}]`, "<system>s</><user>what?"},
		{"sound", asParts, `[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]`, "<user>"},
		{"the template looks for images first", "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}I{% endif %}{% endfor %}{% endfor %}x", `[{"role":"user","content":[` + image + `]}]`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tmpl, err := Parse(tt.template, nil)
			if err != nil {
				t.Fatal(err)
			}
			req := Request{Messages: json.RawMessage(tt.messages)}
			if _, err := tmpl.Render(day, req); err == nil || !strings.Contains(err.Error(), ErrMultimodal.Error()) {
				t.Errorf("Render error %v, want %v", err, ErrMultimodal)
			}
			got, err := tmpl.AppendPrefix([]byte("p"), day, req)
			if err != nil || string(got) != "p"+tt.want {
				t.Errorf("AppendPrefix = %q, %v, want %q", got, err, "p"+tt.want)
			}
		})
	}
}

// TestAppendRender holds the buffer's old content, reuse of memory and errors
// apart.
func TestAppendRender(t *testing.T) {
	tmpl := tiny(t)
	first := Request{Messages: json.RawMessage(`[{"role":"user","content":"one\ntwo \u00e9 \"three\""}]`), AddGenerationPrompt: true}
	want, err := tmpl.Render(day, first)
	if err != nil || !strings.Contains(want, "one\ntwo é \"three\"") {
		t.Fatalf("Render = %q, %v", want, err)
	}
	buf := []byte("old")
	for range 3 {
		got, err := tmpl.AppendRender(buf, day, first)
		if err != nil || string(got) != "old"+want {
			t.Fatalf("AppendRender = %q, %v, want %q behind old", got, err, want)
		}
		bad, err := tmpl.AppendRender(got, day, Request{Messages: json.RawMessage(`[{"role":"user","content":"a\nb"},{"content":"x"}]`)})
		if err == nil || string(bad) != "old"+want {
			t.Fatalf("AppendRender of a bad request = %q, %v", bad, err)
		}
	}
}

func TestLoadRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(`{"chat_template":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "chat_template.jinja"), 0o600); err != nil {
		t.Skip(err)
	}
	if _, err := Load(os.DirFS(dir)); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v, want one that says what the template is", err)
	}
}

func TestTooManyKwargs(t *testing.T) {
	tmpl, err := Load(tinymodel.FS())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&b, `,"k%d":0`, i)
	}
	_, err = tmpl.Render(time.Now(), Request{Messages: []byte(`[{"role":"user","content":"x"}]`), Kwargs: []byte("{" + b.String()[1:] + "}")})
	if err == nil || !strings.Contains(err.Error(), "60000 members") {
		t.Errorf("error %v, want one that says how many there are", err)
	}
}
