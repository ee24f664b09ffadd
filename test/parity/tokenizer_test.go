package parity

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// tokenizerTexts is how many random texts every model gets.
const tokenizerTexts = 5000

type tokenizerQuestion struct {
	Model string   `json:"model"`
	Text  *string  `json:"text,omitempty"`
	IDs   []uint32 `json:"ids,omitempty"`
}

type tokenizerAnswer struct {
	IDs, Around      []uint32
	Decoded, Skipped string
}

// realModels returns what `make parity` sets up: a folder with the files of each
// model, and a Python with the libraries.
func realModels(t *testing.T) (dir, python string, names []string) {
	dir, python = os.Getenv("GRAPEVINE_PARITY_DIR"), os.Getenv("GRAPEVINE_PARITY_PYTHON")
	if dir == "" || python == "" {
		t.Skip("GRAPEVINE_PARITY_DIR and GRAPEVINE_PARITY_PYTHON are not set: run `make parity`")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "tokenizer.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no models in %s (%v): run `make parity`", dir, err)
	}
	for _, f := range files {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	return dir, python, names
}

// TestTokenizer compares ids and decoded texts with the tokenizers library for
// the tokenizer.json of every model in GRAPEVINE_PARITY_DIR.
func TestTokenizer(t *testing.T) {
	dir, python, names := realModels(t)
	ask := startTokenizer(t, python, dir)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			tok, err := tokenizer.Load(os.DirFS(filepath.Join(dir, name)), "tokenizer.json")
			if err != nil {
				t.Fatal(err)
			}
			compareTokenizer(t, tok, name, tokenizerTexts, ask)
		})
	}
}

// TestAutoTokenizer does so for folders as transformers reads them.
func TestAutoTokenizer(t *testing.T) {
	from, python, names := realModels(t)
	dir := t.TempDir()
	types := map[string]string{
		"llama3_1": "llama", "llama3": "llama", "llama2": "llama", "qwen3": "qwen3", "qwen2_5": "qwen2", "deepseek_v3": "deepseek_v3",
		"gptoss": "gpt_oss", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "mistral_nemo": "mistral",
	}
	var made []string
	for _, name := range names {
		made = append(made, modelFolder(t, dir, name, filepath.Join(from, name), types[name], nil))
		if name != "llama2" {
			continue
		}
		for as, set := range map[string]map[string]any{
			"llama2 of today":  {"legacy": false},
			"llama2, no space": {"add_prefix_space": false},
			"llama2, eos":      {"add_bos_token": false, "add_eos_token": true},
		} {
			made = append(made, modelFolder(t, dir, as, filepath.Join(from, name), "llama", set))
		}
		made = append(made, modelFolder(t, dir, "llama2 as mistral", filepath.Join(from, name), "mistral", nil))
	}
	ask := startTokenizer(t, python, dir, "--auto")
	for _, name := range made {
		t.Run(name, func(t *testing.T) {
			tok, err := tokenizer.LoadDir(os.DirFS(filepath.Join(dir, name)))
			if err != nil {
				t.Fatal(err)
			}
			compareTokenizer(t, tok, name, tokenizerTexts/10, ask)
		})
	}
}

// modelFolder makes a folder with a model's two files and a config.json.
func modelFolder(t *testing.T, dir, name, from, modelType string, set map[string]any) string {
	to := filepath.Join(dir, name)
	config := map[string]any{}
	raw, err := os.ReadFile(filepath.Join(from, "tokenizer_config.json"))
	if err == nil {
		err = json.Unmarshal(raw, &config)
	}
	for k, v := range set {
		config[k] = v
	}
	from, err2 := filepath.Abs(from)
	err = errors.Join(err, err2, os.Mkdir(to, 0o755), os.Symlink(filepath.Join(from, "tokenizer.json"), filepath.Join(to, "tokenizer.json")))
	for file, v := range map[string]any{"tokenizer_config.json": config, "config.json": map[string]string{"model_type": modelType}} {
		b, err3 := json.Marshal(v)
		err = errors.Join(err, err3, os.WriteFile(filepath.Join(to, file), b, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func compareTokenizer(t *testing.T, tok *tokenizer.Tokenizer, name string, texts int, ask func([]tokenizerQuestion) []tokenizerAnswer) {
	rng := rand.New(rand.NewPCG(20, 26))
	var questions []tokenizerQuestion
	for range texts {
		s := randomText(rng, tok)
		questions = append(questions, tokenizerQuestion{Model: name, Text: &s})
	}
	for _, unit := range []string{"etaonrishdlucmfwyp", " ", "\n", "1234567", "中文字", "=", "aA", "é"} { // long runs without a cut
		s := strings.Repeat(unit, 20_000/len(unit))
		questions = append(questions, tokenizerQuestion{Model: name, Text: &s})
	}
	for range texts / 10 {
		ids := make([]uint32, 1+rng.IntN(30))
		for i := range ids {
			ids[i] = rng.Uint32N(uint32(tok.Size()))
		}
		questions = append(questions, tokenizerQuestion{Model: name, IDs: ids})
	}
	const show = 3
	differences := 0
	report := func(format string, args ...any) {
		if differences++; differences <= show {
			t.Errorf(format, args...)
		}
	}
	for i, want := range ask(questions) {
		q := questions[i]
		if q.Text != nil {
			if got := tok.Encode(nil, *q.Text); !slices.Equal(got, want.IDs) {
				report("%q\n got %v\nwant %v", *q.Text, got, want.IDs)
				continue
			}
			around := slices.Concat(tok.Prefix(), want.IDs, tok.Suffix())
			if !slices.Equal(around, want.Around) {
				report("%q with special tokens\n got %v\nwant %v", *q.Text, around, want.Around)
			}
			if got := inParts(tok, *q.Text); !slices.Equal(got, want.IDs) {
				report("%q in parts\n got %v\nwant %v", *q.Text, got, want.IDs)
			}
		}
		if got := tok.Decode(want.IDs, false); got != want.Decoded {
			report("decode %v\n got %q\nwant %q", want.IDs, got, want.Decoded)
		}
		if got := tok.Decode(want.IDs, true); got != want.Skipped {
			report("decode %v without special tokens\n got %q\nwant %q", want.IDs, got, want.Skipped)
		}
	}
	if differences > 0 {
		t.Errorf("%d differences", differences)
	}
	t.Logf("%-18s %d texts, %d lists of ids, %d differences", name, texts, texts/10, differences)
}

// inParts encodes a text as the segment cache does.
func inParts(tok *tokenizer.Tokenizer, text string) (ids []uint32) {
	for start := true; ; start = false {
		before, id, rest, found := tok.CutAlways(text)
		ids = tok.EncodePieceAt(ids, before, start)
		if !found {
			return ids
		}
		ids = append(ids, id)
		text = rest
	}
}

// startTokenizer starts tokenizer.py; the function asks it many questions at
// once.
func startTokenizer(t *testing.T, python string, args ...string) func([]tokenizerQuestion) []tokenizerAnswer {
	cmd := exec.Command(python, append([]string{"tokenizer.py"}, args...)...)
	cmd.Env = append(os.Environ(), "TOKENIZERS_PARALLELISM=false", "HF_HUB_OFFLINE=1", "LD_LIBRARY_PATH="+filepath.Join(filepath.Dir(python), "..", "stubs"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("tokenizer.py: %v\n%s", err, stderr.Bytes())
		}
	})
	lines := bufio.NewReaderSize(out, 1<<20)
	return func(questions []tokenizerQuestion) []tokenizerAnswer {
		sent := make(chan error, 1)
		go func() { sent <- send(in, questions) }()
		answers := make([]tokenizerAnswer, len(questions))
		for i := range answers {
			line, err := lines.ReadBytes('\n')
			if err == nil {
				err = json.Unmarshal(line, &answers[i])
			}
			if err != nil {
				t.Fatalf("tokenizer.py: answer %d: %v", i, err)
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		return answers
	}
}

func send(w io.Writer, questions []tokenizerQuestion) error {
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	for _, q := range questions {
		if err := enc.Encode(q); err != nil {
			return err
		}
	}
	return b.Flush()
}

var (
	tokenizerPools = []string{
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "   \t\n\r\x0b\x0c", ".,;:!?'\"()[]{}<>|/\\@#$%^&*-_=+`~",
		"éèüößçñåøÆłžđΑΩαωЖяДאعمहि中文日本語かなカナ한글กขค", "\u0300\u0301\u0308\u0323\u0327\u031b\u0345\u05b0\u0651\u094d\u3099",
		"🙂🚀👩💻🏽❤\ufe0f\u200d🇩🇪", "\u00a0\u2003\u3000\u200b\u2028\u0085\u1680\u205f", "²³½Ⅷ٣५１", "ſﬁÅΩKŉǰΐ\u1e9bẞİıǅʰªº", "𝕳𐍈𠀀\U0001e900", "▁ _",
		"\u1112\u1161\u11ab\u1100\uac00\u11a8", "\U00010d4a\U000113c2\U00016121\U0001611e\u1c89\ua7cb", "\x00\x01\x1b\x7f\u0080\ufffd\ufffe\ue000\U0010ffff",
	}
	tokenizerBits = []string{
		"'s", "'S", "'ll", "'RE", "'ve", "'ſ", "n't", " the", "The", "\r\n", "\n\n", "  \n", "    ", "\t\t", "/\n", "//", "!\n", "://", "<0x0A>", "<unk>", "<s>", "</s>",
		"<|im_start|>", "<|im_", "<bos>", "[INST]", "<｜User｜>", "<|eot_id|>", "<table>", "<think>", "1234567", "3.14", "camelCaseWord", "HTTPServer", "snake_case", "x = y + 1;\n",
		"def f(x):\n    return x\n", "{\"a\": [1, 2]}", "e\u0301", "日本語の文章、", "中文句子。", "Привет, мир!", "مرحبا بالعالم", "नमस्ते", "สวัสดีชาวโลก", "👨‍👩‍👧‍👦", "a▁b", "\ufeff",
	}
	tokenizerWords = strings.Fields("the quick brown fox jumps over lazy dog function return import class statement object value list string number error file line Antidisestablishmentarianism naïve Straße ")
)

func randomText(rng *rand.Rand, tok *tokenizer.Tokenizer) string {
	var b strings.Builder
	for range 1 + rng.IntN(40) {
		switch r := rng.IntN(100); {
		case r < 4: // any token, special ones among them
			b.Write(tok.Bytes(rng.Uint32N(uint32(tok.Size()))))
		case r < 16:
			b.WriteString(tokenizerBits[rng.IntN(len(tokenizerBits))])
		case r < 40:
			b.WriteString([]string{"", " ", "  "}[rng.IntN(3)] + tokenizerWords[rng.IntN(len(tokenizerWords))])
		case r < 45:
			b.WriteString(strings.Repeat(string(" \n\t=-aé中"[rng.IntN(5)]), 1+rng.IntN(70)))
		case r < 52:
			for range 1 + rng.IntN(5) {
				b.WriteRune(randomRune(rng))
			}
		default:
			pool := []rune(tokenizerPools[rng.IntN(len(tokenizerPools))])
			for range 1 + rng.IntN(5) {
				b.WriteRune(pool[rng.IntN(len(pool))])
			}
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// randomRune is any code point, three times in four one that Go knows.
func randomRune(rng *rand.Rand) rune {
	for {
		r := rng.Int32N(0x32400)
		if 0xD800 <= r && r < 0xE000 {
			continue
		}
		if rng.IntN(4) == 0 || unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S) {
			return r
		}
	}
}
