package tokenizer

import (
	"fmt"
	"strings"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/ucd"
)

func (t *Tokenizer) loadNormalizer(f *file) error {
	sub := func(c *component) []component { return c.Normalizers }
	return parts("normalizer", f.Normalizer, sub, t.normalizer)
}

func (t *Tokenizer) normalizer(place string, c *component) error {
	var apply func(string) string
	switch c.Type {
	case "NFC":
		apply = func(s string) string { return ucd.Load().NFC(s) }
	case "NFD":
		apply = func(s string) string { return ucd.Load().NFD(s) }
	case "NFKC":
		apply = func(s string) string { return ucd.Load().NFKC(s) }
	case "NFKD":
		apply = func(s string) string { return ucd.Load().NFKD(s) }
	case "Lowercase":
		apply = func(s string) string { return ucd.Load().Lower(s) }
	case "Strip":
		apply = func(s string) string {
			if c.StripLeft {
				s = trimLeft(s)
			}
			if c.StripRight {
				s = trimRight(s)
			}
			return s
		}
		t.movesStart = true
	case "Prepend":
		apply = func(s string) string {
			if s == "" {
				return s
			}
			return c.Prepend + s
		}
		t.movesStart = true
	case "Replace":
		find, err := finderFor(place, c.Pattern)
		if err != nil {
			return err
		}
		apply = replacer(find, c.Content)
		t.movesStart = t.movesStart || c.Content == ""
	default:
		return unsupported(place, fmt.Sprintf("type %q", c.Type))
	}
	t.normalizers = append(t.normalizers, apply)
	return nil
}

func (t *Tokenizer) normalize(s string) string {
	for _, f := range t.normalizers {
		s = f(s)
	}
	return s
}

// replacer puts content in the place of every match.
func replacer(find finder, content string) func(string) string {
	if l, ok := find.(literal); ok {
		return func(s string) string { return strings.ReplaceAll(s, string(l), content) }
	}
	return func(s string) string {
		m := newMachine(len(s))
		var b strings.Builder
		done := 0
		for {
			from, to := find.Find(m, s, done)
			if from < 0 {
				break
			}
			b.WriteString(s[done:from])
			b.WriteString(content)
			done = to
		}
		if done == 0 {
			return s
		}
		b.WriteString(s[done:])
		return b.String()
	}
}
