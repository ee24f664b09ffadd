package parity

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

// chatRequests is how many requests each template renders.
const chatRequests = "500"

// chatNow is the time that chat.py gives to templates.
var chatNow = time.Date(2026, 3, 9, 4, 5, 6, 0, time.UTC)

// TestChat renders random requests with the templates of all models that have
// one, and with the project's own templates, and compares with vLLM.
func TestChat(t *testing.T) {
	dir, python := os.Getenv("GRAPEVINE_PARITY_DIR"), os.Getenv("GRAPEVINE_PARITY_PYTHON")
	if dir == "" || python == "" {
		t.Skip("GRAPEVINE_PARITY_DIR and GRAPEVINE_PARITY_PYTHON are not set: run `make parity`")
	}
	own := filepath.Join(t.TempDir(), "tinymodel")
	if err := tinymodel.Extract(own); err != nil {
		t.Fatal(err)
	}
	models := []string{own}
	configs, err := filepath.Glob(filepath.Join(dir, "*", "tokenizer_config.json"))
	if err != nil || len(configs) == 0 {
		t.Fatalf("no models in %s (%v): run `make parity`", dir, err)
	}
	for _, c := range configs {
		if b, err := os.ReadFile(c); err == nil && bytes.Contains(b, []byte(`"chat_template"`)) {
			models = append(models, filepath.Dir(c))
		}
	}
	compareChat(t, python, models, func(name string) (*chat.Template, error) { return chat.Load(os.DirFS(name)) })

	templates, err := filepath.Glob("../../picker/prompt/chat/testdata/templates/*.jinja")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{own}
	for _, f := range templates {
		args = append(args, "--template", f)
	}
	compareChat(t, python, args, func(name string) (*chat.Template, error) {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		return chat.Options{Template: string(text)}.Load(os.DirFS(own))
	})
}

type chatRow struct{ Model, Request, Rendered, Refused string }

type chatCount struct{ equal, refused, onlyHere, differ int }

// compareChat runs chat.py and renders what it prints.
func compareChat(t *testing.T, python string, args []string, load func(name string) (*chat.Template, error)) {
	cmd := exec.CommandContext(t.Context(), python, append([]string{"chat.py", "--count", chatRequests}, args...)...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(filepath.Dir(python), "..", "stubs"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chat.py: %v\n%s", err, stderr.Bytes())
	}
	counts := map[string]*chatCount{}
	templates := map[string]*chat.Template{}
	var names []string
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var row chatRow
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			t.Fatal(err)
		}
		if counts[row.Model] == nil {
			counts[row.Model] = &chatCount{}
			names = append(names, row.Model)
			if templates[row.Model], err = load(row.Model); err != nil {
				t.Errorf("%s: %v", row.Model, err)
			}
		}
		if tmpl := templates[row.Model]; tmpl != nil {
			counts[row.Model].compare(t, tmpl, row)
		}
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	for _, name := range names {
		c := counts[name]
		t.Logf("%-24s %4d equal, %3d refused by both, %3d refused by the engine only, %d differences", chatName(name), c.equal, c.refused, c.onlyHere, c.differ)
	}
}

// chatName is a short name of a model's directory or of a template's file.
func chatName(path string) string {
	path = strings.TrimSuffix(path, "/package/models")
	return strings.TrimSuffix(filepath.Base(path), ".jinja")
}

func (c *chatCount) compare(t *testing.T, tmpl *chat.Template, row chatRow) {
	const show = 3 // differences of one template that are printed
	req, err := openai.Parse("/v1/chat/completions", []byte(row.Request))
	if err != nil {
		t.Errorf("parse %s: %v", row.Request, err)
		return
	}
	got, err := tmpl.Render(chatNow, chat.Request{
		Messages: req.Messages, Tools: req.Tools, Documents: req.Documents, Kwargs: req.ChatTemplateKwargs,
		ReasoningEffort: req.ReasoningEffort, AddGenerationPrompt: req.AddGenerationPrompt, ContinueFinalMessage: req.ContinueFinalMessage,
	})
	switch {
	case err != nil && row.Refused != "":
		c.refused++
	case row.Refused != "":
		c.onlyHere++ // the engine answers 400, whatever the text is
	case err != nil:
		if c.differ++; c.differ <= show {
			t.Errorf("%s: %v\nrequest %s", chatName(row.Model), err, row.Request)
		}
	case got != row.Rendered:
		if c.differ++; c.differ <= show {
			at := 0
			for at < min(len(got), len(row.Rendered)) && got[at] == row.Rendered[at] {
				at++
			}
			from := max(0, at-60)
			t.Errorf("%s: differs at byte %d\n got %q\nwant %q\nrequest %s", chatName(row.Model), at, clip(got[from:]), clip(row.Rendered[from:]), row.Request)
		}
	default:
		c.equal++
	}
}

func clip(s string) string { return s[:min(len(s), 160)] }
