package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

// execute runs a command line; the words of args are separated by blanks.
func execute(t *testing.T, stdin, args string) (stdout string, err error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(strings.Fields(args))
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(io.Discard)
	err = root.ExecuteContext(t.Context())
	return out.String(), err
}

func tinyModel(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tiny")
	if err := tinymodel.Extract(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTokenize(t *testing.T) {
	dir := tinyModel(t)
	tests := []struct{ name, args, in, want, err string }{
		{"texts", "", "{\"text\":\"Hi <|im_end|>\"}\n{\"text\":\"\"}\n", "{\"ids\":[39,72,220,4089]}\n{\"ids\":[]}\n", ""},
		{"no newline at the end, blank lines", "", "\n\r\n{\"text\":\"Hi\"}", "{\"ids\":[39,72]}\n", ""},
		{"bad lines go on", "", "x\n{\"text\":\"Hi\"}\n{\"ids\":[1]}\n", "{\"error\":\"line 1: want {\\\"text\\\": \\\"...\\\"}\"}\n{\"ids\":[39,72]}\n{\"error\":\"line 3: want {\\\"text\\\": \\\"...\\\"}\"}\n", "2 of 3 lines"},
		{"special tokens: this model has none", "--add-special-tokens", "{\"text\":\"Hi\"}\n", "{\"ids\":[39,72]}\n", ""},
		{"decode", "--decode", "{\"ids\":[39,72,220,4089]}\n{\"ids\":[]}\n", "{\"text\":\"Hi <|im_end|>\"}\n{\"text\":\"\"}\n", ""},
		{"decode an unknown id", "--decode", "{\"ids\":[39,99999]}\n", "{\"error\":\"line 1: the model has no token 99999\"}\n", "1 of 1 lines"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := execute(t, tt.in, "tokenize --model "+dir+" "+tt.args)
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if (err == nil) != (tt.err == "") || err != nil && (!strings.Contains(err.Error(), tt.err) || exitCode(err) != 1) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}

// A program that writes a line and waits for its answer gets it.
func TestTokenizeAnswersLineByLine(t *testing.T) {
	in, toIn := io.Pipe()
	fromOut, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- filterLines(in, out, func(line []byte) (any, error) { return string(line), nil })
		out.Close()
	}()
	for _, line := range []string{"one", "two"} {
		if _, err := io.WriteString(toIn, line+"\n"); err != nil {
			t.Fatal(err)
		}
		want := "\"" + line + "\"\n"
		got := make([]byte, len(want))
		if _, err := io.ReadFull(fromOut, got); err != nil || string(got) != want {
			t.Fatalf("answer %q, %v, want %q", got, err, want)
		}
	}
	toIn.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestGuessPath(t *testing.T) {
	for body, want := range map[string]string{
		`{"messages":[]}`:                "/v1/chat/completions",
		`{"messages":[],"system":"x"}`:   "/v1/messages",
		`{"prompt":"x"}`:                 "/v1/completions",
		`{"input":"x","instructions":1}`: "/v1/responses",
		`{"query":"x"}`:                  "",
		`[1]`:                            "",
	} {
		if got, err := guessPath([]byte(body)); got != want || (err != nil) != (want == "") {
			t.Errorf("%s is for %q, %v, want %q", body, got, err, want)
		}
	}
}

const chatBody = `{"model":"tiny","messages":[{"role":"user","content":"Hi"}]}`

// chatIDs of chatBody with the tiny model, as vLLM 0.32 renders it.
var chatIDs = []uint32{4088, 367, 81, 198, 39, 72, 4089, 198, 4088, 64, 493, 278, 1786, 198}

func TestChain(t *testing.T) {
	dir := tinyModel(t)
	out, err := execute(t, chatBody, "chain --block-size 4 --json --model "+dir)
	if err != nil {
		t.Fatal(err)
	}
	var got chainReport
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Path != "/v1/chat/completions" || got.Rung != "own" || firstDifference(got.IDs, chatIDs) >= 0 || got.Tokens != len(chatIDs) {
		t.Errorf("got %+v, want ids %v", got, chatIDs)
	}
	if want := "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"; got.Text != want {
		t.Errorf("text %q, want %q", got.Text, want)
	}
	if len(got.Blocks) != 3 || got.Root != "" {
		t.Errorf("blocks %v, root %q, want 3 and none", got.Blocks, got.Root)
	}
	var text strings.Builder
	for _, s := range got.Segments {
		text.WriteString(s.Text + s.Special)
	}
	if text.String() != got.Text {
		t.Errorf("segments spell %q, want %q", text.String(), got.Text)
	}

	// The same ids as a completion: the same blocks. An adapter or a salt: others.
	ids, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": chatIDs})
	salted, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": chatIDs, "cache_salt": "s"})
	for _, tt := range []struct {
		name, body, args string
		same             bool
	}{
		{"ids", string(ids), "", true},
		{"adapter", string(ids), "--adapter", false},
		{"salt", string(salted), "", false},
		{"block size", string(ids), "--block-size 2", false},
	} {
		out, err := execute(t, tt.body, "chain --block-size 4 --json --model "+dir+" "+tt.args)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		var other chainReport
		if err := json.Unmarshal([]byte(out), &other); err != nil {
			t.Fatal(err)
		}
		if same := other.Blocks[2] == got.Blocks[2]; same != tt.same || other.Rung != "ids" {
			t.Errorf("%s: block 2 the same: %v, want %v (rung %s)", tt.name, same, tt.same, other.Rung)
		}
	}

	out, err = execute(t, chatBody, "chain --block-size 4 --model "+dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"14 tokens (made from the model's files), 3 blocks of 4 tokens", "<|im_start|>user\nHi<|im_end|>", got.Blocks[2], "and 2 tokens in a block that is not full"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

func TestChainCompare(t *testing.T) {
	dir := tinyModel(t)
	other := append([]uint32{}, chatIDs...)
	other[4] = 40
	answer := func(v any) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { _ = json.NewEncoder(w).Encode(v) }
	}
	status := func(code int, text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { w.WriteHeader(code); _, _ = io.WriteString(w, text) }
	}
	type rendered struct {
		TokenIDs []uint32 `json:"token_ids"`
	}
	type tokens struct {
		Tokens []uint32 `json:"tokens"`
	}
	tests := []struct {
		name, body       string
		render, tokenize func(http.ResponseWriter)
		out              []string
		err              string
	}{
		{"equal", chatBody, answer(rendered{chatIDs}), answer(tokens{chatIDs}),
			[]string{"/render: all 14 ids equal", "/tokenize: all 14 ids equal"}, ""},
		{"differs", chatBody, answer(rendered{other}), answer(tokens{chatIDs}),
			[]string{"/render: differs at token 4: own 14 ids, the engine's 14", `"<|im_start|>user\nHi<|im_end|>`, `"<|im_start|>user\nIi<|im_end|>`, "/tokenize: all 14 ids equal"}, "is --model the folder"},
		{"shorter", chatBody, answer(rendered{chatIDs[:9]}), answer(tokens{chatIDs}), []string{"differs at token 9: own 14 ids, the engine's 9"}, "differ"},
		{"render closed", chatBody, status(403, `{"error":{"message":"Scale-out endpoints are disabled."}}`), answer(tokens{chatIDs}),
			[]string{"/render: not compared: closed: start vLLM with --enable-scale-out", "/tokenize: all 14"}, ""},
		{"render not served", chatBody, status(404, `{"detail":"Not Found"}`), answer(tokens{chatIDs}), []string{"/render: not compared: not served: vLLM has it from 0.18"}, ""},
		{"older form", chatBody, answer([]any{1, 2}), answer(tokens{chatIDs}), []string{"/render: not compared: it answers in the form"}, ""},
		{"nothing", chatBody, status(403, ""), status(404, ""), nil, "nothing could be compared"},
		{"unknown model", chatBody, status(404, `{"error":{"message":"The model tiny does not exist."}}`), nil, nil, "The model tiny does not exist"},
		{"refused", chatBody, status(400, `{"error":{"message":"no such role"}}`), nil, nil, "no such role"},
		{"key", chatBody, status(401, `{"error":"Unauthorized"}`), nil, nil, "API key"},
		{"not for /tokenize", `{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"truncate_prompt_tokens":500}`, answer(rendered{chatIDs}), nil,
			[]string{"/tokenize: not compared: it does not take truncate_prompt_tokens"}, ""},
		{"lost by /tokenize", `{"model":"tiny","messages":[{"role":"user","content":"Hi","reasoning_content":"x"}]}`, answer(rendered{chatIDs}), nil,
			[]string{"/tokenize: not compared: it drops reasoning_content"}, ""},
		{"effort", `{"model":"tiny","messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"low"}`, answer(rendered{chatIDs}), answer(tokens{chatIDs}),
			[]string{"/tokenize: all 14 ids equal"}, ""},
		{"up to an image", `{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"Hi"},{"type":"image_url","image_url":{"url":"x"}}]}]}`,
			answer(rendered{append(append([]uint32{}, chatIDs[:6]...), 7, 7, 7)}), answer(tokens{append(append([]uint32{}, chatIDs[:6]...), 7, 7, 7)}),
			[]string{"note: what follows the first image is not known", "/render: all "}, ""},
		{"several prompts", `{"prompt":["Hi","Hi Hi Hi"]}`, answer([]rendered{{[]uint32{39, 72}}, {[]uint32{39, 72, 1360, 72, 1360, 72}}}), nil,
			[]string{"note: the longest of 2 prompts", "/render: all", "/tokenize: not compared: it takes one prompt"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/render") {
					tt.render(w)
				} else {
					tt.tokenize(w)
				}
			}))
			defer engine.Close()
			out, err := execute(t, tt.body, "chain --model "+dir+" --compare "+engine.URL)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if err != nil && exitCode(err) != 1 {
				t.Errorf("exit code %d, want 1", exitCode(err))
			}
			for _, want := range tt.out {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in:\n%s", want, out)
				}
			}
		})
	}
}

func TestChainFaults(t *testing.T) {
	dir := tinyModel(t)
	empty := t.TempDir()
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "tokenizer.json"), []byte(`{"model":`), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, in, args string
		code           int
		want           []string
	}{
		{"no model", chatBody, "chain", 2, []string{"--model"}},
		{"no tokenizer", chatBody, "chain --model " + empty, 2, []string{"tokenizer.json", "engine was started with"}},
		{"broken tokenizer", chatBody, "chain --model " + broken, 1, []string{broken, "tokenizer.json"}},
		{"tokenize: no model", "", "tokenize", 2, []string{"--model"}},
		{"tokenize: both ways", "", "tokenize --decode --add-special-tokens --model " + dir, 2, []string{"--decode"}},
		{"no body", "\n", "chain --model " + dir, 2, []string{"--file", "standard input"}},
		{"no object", "[", "chain --model " + dir, 1, []string{"JSON object"}},
		{"unknown API", `{"query":1}`, "chain --model " + dir, 2, []string{"--path"}},
		{"bad request", `{"messages":5}`, "chain --model " + dir, 1, []string{`"messages"`, "list"}},
		{"no file", "", "chain --file nowhere.json --model " + dir, 1, []string{"nowhere.json"}},
		{"block size", chatBody, "chain --block-size 0 --model " + dir, 2, []string{"--block-size 0"}},
		{"seed", chatBody, "chain --seed-file " + filepath.Join(broken, "tokenizer.json") + " --model " + dir, 2, []string{"64 bits"}},
		{"compare", chatBody, "chain --compare 10.0.0.5:8000 --model " + dir, 2, []string{"http://"}},
		{"nobody there", chatBody, "chain --compare http://127.0.0.1:1 --model " + dir, 1, []string{"is it running"}},
		{"embeddings", `{"prompt_embeds":"AAAA"}`, "chain --path /v1/completions --model " + dir, 1, []string{"--enable-scale-out"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := execute(t, tt.in, tt.args)
			if err == nil || exitCode(err) != tt.code {
				t.Fatalf("error %v, want one with exit code %d", err, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
		})
	}
}
