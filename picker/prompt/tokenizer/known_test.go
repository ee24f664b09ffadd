package tokenizer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	regex "github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/pattern"
)

// knownPatterns are those written by hand.
var knownPatterns = map[string]string{
	"gpt4OneDigit": gpt4OneDigit, "gpt4Triples": gpt4Triples, "o200k": o200k, "tekken": tekken,
	"deepseekDigits": deepseekDigits, "deepseekCJK": deepseekCJK, "deepseekWords": deepseekWords,
}

func matches(f finder, text string) (out [][2]int) {
	m := newMachine(len(text))
	for at := 0; ; {
		from, to := f.Find(m, text, at)
		if from < 0 {
			return out
		}
		out = append(out, [2]int{from, to})
		at = to
	}
}

// twins are a pattern's two finders.
type twins struct{ byHand, engine finder }

func knownTwins(tb testing.TB) map[string]twins {
	out := map[string]twins{}
	for name, p := range knownPatterns {
		byHand, err := compile(p)
		if err != nil {
			tb.Fatal(err)
		}
		engine, err := regex.Compile(p)
		if err != nil {
			tb.Fatal(err)
		}
		out[name] = twins{byHand, engine}
	}
	return out
}

// checkKnown holds the hand-written splitters against the pattern engine.
func checkKnown(tb testing.TB, known map[string]twins, text string) {
	for name, k := range known {
		if got, want := matches(k.byHand, text), matches(k.engine, text); !slices.Equal(got, want) {
			tb.Fatalf("%s on %q:\n got %v\nwant %v", name, text, got, want)
		}
	}
}

func TestKnownPatterns(t *testing.T) {
	known := knownTwins(t)
	rng := rand.New(rand.NewPCG(1, 2))
	pool := []rune("aBcǅʰ中aB \n\r\t'sSlLrReE/!?.,1²Ⅷ\u0301\u0903\u0085\u00a0\u2003\x00\u200b🙂ſＡª_$")
	for range 4000 {
		var b strings.Builder
		for range 1 + rng.IntN(14) {
			b.WriteRune(pool[rng.IntN(len(pool))])
		}
		checkKnown(t, known, b.String())
	}
	for _, v := range vectors(t) {
		if v.Text != nil && len(*v.Text) < 2000 {
			checkKnown(t, known, *v.Text)
		}
	}
}

// TestCutWords holds cutting where no merge can reach over against merging whole
// pre-tokens.
func TestCutWords(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	pool := []rune("▁▁▁etaonrishdlu ,.\n1é中文привет🙂\x00<0x>")
	var m merger
	for name, tok := range loadVariants(t) {
		if tok.byteLevel {
			continue
		}
		if !tok.model.cuts {
			t.Errorf("%s: words are never cut", name)
		}
		m.cache = wordCache{} // it is of one tokenizer
		for range 1000 {
			var b strings.Builder
			for range 1 + rng.IntN(60) {
				b.WriteRune(pool[rng.IntN(len(pool))])
			}
			word := b.String()
			if got, want := tok.model.encode(&m, nil, word), m.long(&tok.model, nil, word); tok.model.whole == nil && !slices.Equal(got, want) {
				t.Fatalf("%s: %q\n got %v\nwant %v", name, word, got, want)
			}
		}
	}
}

func TestIndependent(t *testing.T) {
	tests := []struct {
		name string
		list []addedToken
		want bool
	}{
		{"plain", []addedToken{{content: "<a>"}, {content: "b"}}, true},
		{"strips", []addedToken{{content: "<a>", lstrip: true, rstrip: true}, {content: "<b>"}}, true},
		{"single word among marks", []addedToken{{content: "<a>", singleWord: true}, {content: "<b>"}}, true},
		{"single word beside words", []addedToken{{content: "<a>", singleWord: true}, {content: "b"}}, false},
		{"space taken and wanted", []addedToken{{content: "<a>", rstrip: true}, {content: "\n"}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, err := newAddedTokens(tt.list)
			if err != nil {
				t.Fatal(err)
			}
			if got := a.independent(); got != tt.want {
				t.Errorf("independent = %v", got)
			}
		})
	}
	if _, err := newAddedTokens([]addedToken{{content: "x"}, {content: "x"}}); err == nil {
		t.Error("a token twice was accepted")
	}
}

// TestStepBudget: a pattern that explodes must end, and lose nothing.
func TestStepBudget(t *testing.T) {
	re, err := regex.Compile(`(?:a|aa)+b`)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Steps: 1 << 16}
	if from, _ := re.Find(m, strings.Repeat("a", 5000), 0); from >= 0 {
		t.Errorf("matched at %d", from)
	}
	if m.Steps > 0 {
		t.Errorf("%d steps left", m.Steps)
	}
}

func FuzzVariants(f *testing.F) {
	toks, known := loadVariants(f), knownTwins(f)
	for _, v := range eachLine[variantVector](f, "variant_vectors.jsonl.gz")[:300] {
		f.Add(v.Text)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1<<12 {
			return
		}
		for name, tok := range toks {
			ids := tok.Encode(nil, s)
			if got := byCut(tok, s); !slices.Equal(got, ids) {
				t.Fatalf("%s: %q: %v at once, %v by Cut", name, s, ids, got)
			}
			if got := byCutAlways(tok, s); !slices.Equal(got, ids) {
				t.Fatalf("%s: %q: %v at once, %v by CutAlways", name, s, ids, got)
			}
			tok.Decode(ids, false)
		}
		checkKnown(t, known, strings.ToValidUTF8(s, "\uFFFD"))
	})
}

// FuzzParse changes a file: no panic, and what loads can encode.
func FuzzParse(f *testing.F) {
	for _, data := range variants(f) {
		f.Add(string(data[:min(len(data), 1<<10)]), string(data[max(0, len(data)-1<<10):]))
	}
	f.Add(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]},"added_tokens":[{"id":3,"content":"<"}]`, `}`)
	f.Fuzz(func(t *testing.T, head, tail string) {
		tok, err := Parse([]byte(head + tail))
		if err != nil {
			return
		}
		tok.Decode(tok.Encode(nil, "a <b> ab\n"), false)
	})
}
