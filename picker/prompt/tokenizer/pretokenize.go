package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"

	regex "github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/pattern"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/ucd"
)

type machine = regex.Machine

// Budget of a text's pattern matching, in steps: far more than real patterns
// need. Once it is spent, the rest of the text stays in one piece.
const (
	baseSteps    = 10_000_000
	stepsPerByte = 200
)

func newMachine(textBytes int) *machine {
	return &machine{Steps: baseSteps + stepsPerByte*textBytes}
}

// finder finds the first match that begins at from or later; start is -1 if
// there is none. Matches are not empty.
type finder interface {
	Find(m *machine, text string, from int) (start, end int)
}

// step is one pre-tokenizer.
type step struct {
	kind     stepKind
	find     finder
	behavior behavior
	invert   bool   // what does not match counts as the match
	rep      string // of Metaspace
	scheme   string
	inner    *step // how Metaspace splits; nil: not at all
}

type stepKind uint8

const (
	stepSplit stepKind = iota
	stepMetaspace
	stepPrefixSpace
)

type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

func behaviorOf(name string) (b behavior, ok bool) {
	switch name {
	case "Isolated":
		return isolated, true
	case "Removed":
		return removed, true
	case "MergedWithPrevious":
		return mergedWithPrevious, true
	case "MergedWithNext":
		return mergedWithNext, true
	case "Contiguous":
		return contiguous, true
	}
	return 0, false
}

// gpt2 is the pattern inside ByteLevel.
const gpt2 = `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func (t *Tokenizer) loadPreTokenizer(f *file) error {
	sub := func(c *component) []component { return c.PreTokenizers }
	return parts("pre_tokenizer", f.PreTokenizer, sub, t.preTokenizer)
}

func (t *Tokenizer) preTokenizer(place string, c *component) error {
	if t.byteLevel {
		return unsupported(place, fmt.Sprintf("type %q after ByteLevel", c.Type))
	}
	s := step{}
	switch c.Type {
	case "Split", "Punctuation":
		b, ok := behaviorOf(c.Behavior)
		if !ok && !(c.Type == "Punctuation" && c.Behavior == "") {
			return unsupported(place, fmt.Sprintf("behavior %q", c.Behavior))
		}
		s.behavior, s.invert = b, c.Invert
		if c.Type == "Punctuation" {
			s.find = charClass(func(r rune) bool { return ucd.Load().Punctuation(r) })
			break
		}
		var err error
		if s.find, err = finderFor(place, c.Pattern); err != nil {
			return err
		}
	case "Digits":
		s.find = charClass(func(r rune) bool { return ucd.Load().Numeric(r) })
		if !c.Individual {
			s.behavior = contiguous
		}
	case "WhitespaceSplit":
		s.find, s.behavior = charClass(ucd.Space), removed
	case "Whitespace":
		s.find, s.behavior, s.invert = words{}, removed, true
	case "ByteLevel":
		return t.byteLevelSteps(c)
	case "Metaspace":
		if err := t.metaspace(place, c, &s); err != nil {
			return err
		}
	default:
		return unsupported(place, fmt.Sprintf("type %q", c.Type))
	}
	t.steps = append(t.steps, s)
	return nil
}

func (t *Tokenizer) byteLevelSteps(c *component) error {
	if c.AddPrefixSpace == nil || *c.AddPrefixSpace {
		t.steps = append(t.steps, step{kind: stepPrefixSpace})
	}
	if c.UseRegex == nil || *c.UseRegex {
		f, err := compile(gpt2)
		if err != nil {
			return err
		}
		t.steps = append(t.steps, step{find: f})
	}
	t.byteLevel = true
	return nil
}

func (t *Tokenizer) metaspace(place string, c *component, s *step) error {
	s.kind, s.rep, s.scheme = stepMetaspace, c.Replacement, c.PrependScheme
	if s.scheme == "" {
		s.scheme = "always"
	}
	if utf8.RuneCountInString(s.rep) != 1 {
		return fmt.Errorf("%s: replacement %q is not one character", place, s.rep)
	}
	if c.AddPrefixSpace != nil && !*c.AddPrefixSpace && s.scheme != "never" {
		return fmt.Errorf("%s: add_prefix_space false does not go with prepend_scheme %q", place, s.scheme)
	}
	switch s.scheme {
	case "always", "never":
	case "first":
		if t.movesStart {
			return unsupported(place, "prepend_scheme first after a normalizer that moves the start of the text")
		}
		t.startDiffers = true
	default:
		return unsupported(place, fmt.Sprintf("prepend_scheme %q", s.scheme))
	}
	if c.Split == nil || *c.Split {
		s.inner = &step{find: literal(s.rep), behavior: mergedWithNext}
	}
	return nil
}

// charClass finds single characters.
type charClass func(r rune) bool

func (c charClass) Find(_ *machine, text string, from int) (start, end int) {
	for i, r := range text[from:] {
		if c(r) {
			return from + i, from + i + utf8.RuneLen(r)
		}
	}
	return -1, -1
}

// words finds \w+|[^\w\s]+ as the regex crate does.
type words struct{}

func (words) Find(_ *machine, text string, from int) (start, end int) {
	kind := func(r rune) int {
		switch {
		case ucd.Load().Props(r)&ucd.Word != 0:
			return 1
		case ucd.Space(r):
			return 0
		}
		return 2
	}
	start = -1
	of := 0
	for i, r := range text[from:] {
		k := kind(r)
		if start >= 0 && k != of {
			return start, from + i
		}
		if start < 0 && k != 0 {
			start, of = from+i, k
		}
	}
	if start < 0 {
		return -1, -1
	}
	return start, len(text)
}

// pieces applies the steps from number k on to a piece of text and encodes what
// comes out. start: the piece begins the whole text.
func (e *encoder) pieces(k int, text string, start bool) {
	if text == "" {
		return
	}
	if k == len(e.t.steps) {
		e.dst = e.t.model.encode(&e.merger, e.dst, text)
		return
	}
	s := &e.t.steps[k]
	switch s.kind {
	case stepSplit:
		e.split(s, k+1, text, start)
	case stepPrefixSpace:
		if text[0] != ' ' {
			text = " " + text
		}
		e.pieces(k+1, text, start)
	case stepMetaspace:
		text = strings.ReplaceAll(text, " ", s.rep)
		if (s.scheme == "always" || s.scheme == "first" && start) && !strings.HasPrefix(text, s.rep) {
			text = s.rep + text
		}
		if s.inner == nil {
			e.pieces(k+1, text, start)
		} else {
			e.split(s.inner, k+1, text, start)
		}
	}
}

// split cuts text at the matches of a step; NormalizedString::split in
// tokenizers 0.23.
func (e *encoder) split(s *step, k int, text string, start bool) {
	if s.behavior == isolated {
		last := k == len(e.t.steps)
		for done := 0; ; {
			from, to := s.find.Find(&e.machine, text, done)
			if from < 0 {
				e.pieces(k, text[done:], start && done == 0)
				return
			}
			if from > done {
				e.pieces(k, text[done:from], start && done == 0)
			}
			if last {
				e.dst = e.t.model.encode(&e.merger, e.dst, text[from:to])
			} else {
				e.pieces(k, text[from:to], start && from == 0)
			}
			done = to
		}
	}
	p := spans{text: text, find: s.find, m: &e.machine}
	from, to, was := 0, 0, false // what is not given away yet
	for {
		a, b, match, ok := p.next()
		if !ok {
			break
		}
		match = match != s.invert
		join := false
		switch s.behavior {
		case removed:
			if !match {
				e.pieces(k, text[a:b], start && a == 0)
			}
			from, to = b, b
			continue
		case contiguous:
			join = match == was
		case mergedWithPrevious:
			join = match && !was
		case mergedWithNext:
			join = was && !match
		}
		if !join && to > from {
			e.pieces(k, text[from:to], start && from == 0)
			from = a
		}
		to, was = b, match
	}
	e.pieces(k, text[from:to], start && from == 0)
}

// spans walks over the matches in a text and what stands between them.
type spans struct {
	text       string
	find       finder
	m          *machine
	at         int
	start, end int
	ahead      bool // start and end hold a match that was not returned yet
}

func (p *spans) next() (from, to int, match, ok bool) {
	if p.at == len(p.text) {
		return 0, 0, false, false
	}
	if !p.ahead {
		if p.start, p.end = p.find.Find(p.m, p.text, p.at); p.start < 0 {
			p.start, p.end = len(p.text), len(p.text)
		}
		p.ahead = true
	}
	from = p.at
	if p.at < p.start {
		p.at = p.start
		return from, p.start, false, true
	}
	p.at, p.ahead = p.end, false
	return from, p.end, true, true
}
