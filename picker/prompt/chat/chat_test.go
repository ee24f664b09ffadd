package chat

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt/chat/jinja"
	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

var day = time.Date(2026, 3, 9, 4, 5, 6, 0, time.UTC)

func tiny(t testing.TB) *Template {
	t.Helper()
	tmpl, err := Load(tinymodel.FS())
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

func request(r *openai.Request) Request {
	return Request{Messages: r.Messages, Tools: r.Tools, Documents: r.Documents, Kwargs: r.ChatTemplateKwargs,
		ReasoningEffort: r.ReasoningEffort, AddGenerationPrompt: r.AddGenerationPrompt, ContinueFinalMessage: r.ContinueFinalMessage}
}

type render struct {
	Name, Request, Rendered, Refused string
}

func renders(t testing.TB) []render { return readRenders[render](t, "testdata/renders.jsonl.gz") }

func readRenders[T any](t testing.TB, file string) []T {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []T
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var r T
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	return out
}

// TestRenders compares with vLLM 0.32.0 on the tiny model's template.
func TestRenders(t *testing.T) {
	tmpl := tiny(t)
	exact := 0
	for _, r := range renders(t) {
		req, err := openai.Parse("/v1/chat/completions", []byte(r.Request))
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		got, err := tmpl.Render(day, request(req))
		switch {
		case r.Refused != "":
			continue // the engine answers 400, whatever the text would be
		case err != nil:
			t.Errorf("%s: %v", r.Name, err)
		case got != r.Rendered:
			t.Errorf("%s:\n got %q\nwant %q", r.Name, got, r.Rendered)
		default:
			exact++
		}
	}
	if exact < 60 {
		t.Errorf("%d exact renders, want at least 60", exact)
	}
	t.Logf("%d exact renders", exact)
}

// TestFamilies compares with transformers on the templates of four model
// families. Qwen's is the tiny model's own; the others are not ours to keep:
// GRAPEVINE_CHAT_TEMPLATES names a folder with llama3.jinja, llama3_1.jinja and
// deepseek_v3.jinja.
func TestFamilies(t *testing.T) {
	var conversations []json.RawMessage
	var want map[string][]string
	for name, to := range map[string]any{"conversations.json": &conversations, "rendered.json": &want} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, to); err != nil {
			t.Fatal(err)
		}
	}
	special := map[string]map[string]string{
		"llama3":      {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
		"llama3_1":    {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
		"deepseek_v3": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
	}
	for family, texts := range want {
		t.Run(family, func(t *testing.T) {
			tmpl := tiny(t)
			if family != "qwen3" {
				source, err := os.ReadFile(filepath.Join(os.Getenv("GRAPEVINE_CHAT_TEMPLATES"), family+".jinja"))
				if err != nil {
					t.Skip("no template of that family: ", err)
				}
				if tmpl, err = Parse(string(source), special[family]); err != nil {
					t.Fatal(err)
				}
			}
			for i, c := range conversations {
				got, err := renderRaw(tmpl, c)
				if err != nil || got != texts[i] {
					t.Errorf("conversation %d: %v\n got %q\nwant %q", i, err, got, texts[i])
				}
			}
		})
	}
}

// renderRaw gives a conversation to the template as it is, without what vLLM
// does to requests.
func renderRaw(tmpl *Template, conversation []byte) (string, error) {
	vars := append([]jinja.Var(nil), tmpl.special...)
	for name, v := range jinja.Decode(conversation).(*jinja.Dict).All() {
		vars = append(vars, jinja.Var{Name: name, Value: v})
	}
	return tmpl.plain.tmpl.Render(day, append(vars, jinja.Var{Name: "tools"}))
}

const partsTemplate = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}[{{ p.text }}{{ p.cache_control or '' }}]{% endfor %}{% endfor %}"

func TestContentFormat(t *testing.T) {
	tests := []struct{ name, template, messages, want string }{
		{"a template that takes parts gets parts", partsTemplate, `[{"role":"user","content":"x"},{"role":"user","content":[{"type":"text","text":"a","cache_control":1},{"type":"text","text":""}]}]`, "user:[x]user:[a1][]"},
		{"a tool's parts become text even then", "{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}", `[{"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`, "a\nb"},
		{"others get text", "{% for m in messages %}{{ m.content }}{% endfor %}", `[{"role":"user","content":[{"type":"text","text":"a"},"b"]}]`, "a\nb"},
		{"a template that knows developers", "{% for m in messages %}{{ m.role }}{% if m.role == 'developer' %}!{% endif %}{% endfor %}", `[{"role":"developer","content":"x"}]`, "developer!"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tmpl, err := Parse(tt.template, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Render(day, Request{Messages: json.RawMessage(tt.messages)})
			if err != nil || got != tt.want {
				t.Errorf("Render = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestRenderErrors(t *testing.T) {
	tmpl := tiny(t)
	tests := []struct {
		name string
		req  Request
		want string
	}{
		{"image", Request{Messages: json.RawMessage(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]`)}, ErrMultimodal.Error()},
		{"embedded text with an identifier", Request{Messages: json.RawMessage(`[{"role":"user","content":[{"type":"text","text":"x","uuid":"1"}]}]`)}, "content part"},
		{"no role", Request{Messages: json.RawMessage(`[{"content":"x"}]`)}, "role is missing"},
		{"no object", Request{Messages: json.RawMessage(`["x"]`)}, "no object"},
		{"content", Request{Messages: json.RawMessage(`[{"role":"user","content":5}]`)}, "neither text"},
		{"no messages", Request{Messages: json.RawMessage(`[]`)}, "no messages"},
		{"tool", Request{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`), Tools: json.RawMessage(`[{"type":"web"}]`)}, "no function"},
		{"kwargs", Request{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`), Kwargs: json.RawMessage(`{"messages":[]}`)}, "sets messages"},
		{"both ends", Request{Messages: json.RawMessage(`[{"role":"user","content":"x"}]`), AddGenerationPrompt: true, ContinueFinalMessage: true}, "exclude"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tmpl.Render(day, tt.req)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Render error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	tests := []struct {
		name string
		dir  fstest.MapFS
		want string // of an empty render; "!" begins an error's part
	}{
		{"in the configuration", fstest.MapFS{"tokenizer_config.json": file(`{"bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":null,"chat_template":"{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"}`)}, "<s></s>False"},
		{"its own file wins", fstest.MapFS{"tokenizer_config.json": file(`{"bos_token":"<s>","chat_template":"x"}`), "chat_template.jinja": file("{{ bos_token }}!")}, "<s>!"},
		{"none", fstest.MapFS{"tokenizer_config.json": file(`{}`)}, "!has none that is the default"},
		{"several", fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":[{"name":"a"}]}`)}, "!has none that is the default"},
		{"empty folder", fstest.MapFS{}, "!read chat template"},
		{"unsupported", fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":"{% include 'x' %}"}`)}, "!tag include is not supported"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tmpl, err := Load(tt.dir)
			if part, isErr := strings.CutPrefix(tt.want, "!"); isErr {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("Load error %v, want one with %q", err, part)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Render(day, Request{Messages: json.RawMessage(`[{"role":"user"}]`)})
			if err != nil || got != tt.want {
				t.Errorf("Render = %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func FuzzRender(f *testing.F) {
	tmpl := tiny(f)
	for _, r := range renders(f) {
		if len(r.Request) < 2000 {
			f.Add([]byte(r.Request))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := openai.Parse("/v1/chat/completions", body)
		if err != nil {
			return
		}
		_, _ = tmpl.Render(day, request(req))
	})
}

// TestOwnTemplates compares with vLLM 0.32.0 on templates that use most of
// Jinja; test/parity/chat.py wrote the renders.
func TestOwnTemplates(t *testing.T) {
	templates := map[string]*Template{}
	equal, refused := 0, 0
	for _, r := range readRenders[ownRender](t, "testdata/own.jsonl.gz") {
		tmpl := templates[r.Model]
		if tmpl == nil {
			text, err := os.ReadFile("testdata/templates/" + filepath.Base(r.Model))
			if err != nil {
				t.Fatal(err)
			}
			if tmpl, err = (Options{Template: string(text)}).Load(tinymodel.FS()); err != nil {
				t.Fatal(r.Model, err)
			}
			templates[r.Model] = tmpl
		}
		req, err := openai.Parse("/v1/chat/completions", []byte(r.Request))
		if err != nil {
			t.Fatal(err)
		}
		got, err := tmpl.Render(day, request(req))
		switch {
		case (err != nil) != (r.Refused != ""):
			t.Errorf("%s: error %v, the engine's %q\nrequest %s", r.Model, err, r.Refused, r.Request)
		case err != nil:
			refused++
		case got != r.Rendered:
			t.Errorf("%s:\n got %q\nwant %q\nrequest %s", r.Model, got, r.Rendered, r.Request)
		default:
			equal++
		}
	}
	if equal < 200 {
		t.Errorf("%d equal renders, want at least 200", equal)
	}
	t.Logf("%d templates, %d equal renders, %d refused by both", len(templates), equal, refused)
}

type ownRender struct{ Model, Request, Rendered, Refused string }
