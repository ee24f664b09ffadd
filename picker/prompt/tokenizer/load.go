package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"
)

// MaxFileBytes is the largest tokenizer file that is read; the largest known,
// Gemma 3's, has 33 MB.
const MaxFileBytes = 128 << 20

// maxID bounds token ids in a file; vocabularies hold less than a million.
const maxID = 1 << 24

// file is tokenizer.json, as far as it is read. Truncation and padding are not:
// engines set their own with every call.
type file struct {
	AddedTokens   []addedFile `json:"added_tokens"`
	Normalizer    *component  `json:"normalizer"`
	PreTokenizer  *component  `json:"pre_tokenizer"`
	PostProcessor *component  `json:"post_processor"`
	Decoder       *component  `json:"decoder"`
	Model         *modelFile  `json:"model"`
}

type addedFile struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type modelFile struct {
	Type         string          `json:"type"`
	Dropout      *float64        `json:"dropout"`
	Unk          *string         `json:"unk_token"`
	Prefix       string          `json:"continuing_subword_prefix"`
	Suffix       string          `json:"end_of_word_suffix"`
	FuseUnk      bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
	Vocab        json.RawMessage `json:"vocab"`
	Merges       json.RawMessage `json:"merges"`
}

// component is a normalizer, pre-tokenizer, post-processor or decoder.
type component struct {
	Type           string      `json:"type"`
	Normalizers    []component `json:"normalizers"`
	PreTokenizers  []component `json:"pretokenizers"`
	Processors     []component `json:"processors"`
	Decoders       []component `json:"decoders"`
	Pattern        pattern     `json:"pattern"`
	Content        string      `json:"content"`
	Prepend        string      `json:"prepend"`
	StripLeft      bool        `json:"strip_left"`
	StripRight     bool        `json:"strip_right"`
	Start          int         `json:"start"`
	Stop           int         `json:"stop"`
	Behavior       string      `json:"behavior"`
	Invert         bool        `json:"invert"`
	AddPrefixSpace *bool       `json:"add_prefix_space"`
	UseRegex       *bool       `json:"use_regex"`
	Replacement    string      `json:"replacement"`
	PrependScheme  string      `json:"prepend_scheme"`
	Split          *bool       `json:"split"`
	Individual     bool        `json:"individual_digits"`
	Single         []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		} `json:"SpecialToken"`
		Sequence *struct {
			ID string `json:"id"`
		} `json:"Sequence"`
	} `json:"single"`
	SpecialTokens map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
	Sep *clsToken `json:"sep"`
	Cls *clsToken `json:"cls"`
}

type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// clsToken is written as a token and its id.
type clsToken struct{ ID uint32 }

func (c *clsToken) UnmarshalJSON(b []byte) error {
	var token string
	return json.Unmarshal(b, &[]any{&token, &c.ID})
}

// parts visits a component and, if it is a Sequence, those in it, with their
// places in the file.
func parts(place string, c *component, sub func(*component) []component, f func(place string, c *component) error) error {
	if c == nil {
		return nil
	}
	if c.Type != "Sequence" {
		return f(place, c)
	}
	list := sub(c)
	for i := range list {
		if err := parts(fmt.Sprintf("%s[%d]", place, i), &list[i], sub, f); err != nil {
			return err
		}
	}
	return nil
}

func unsupported(place, what string) error {
	return fmt.Errorf("%s: %s is not supported", place, what)
}

// Load reads a tokenizer.json from a folder, by itself; see Parse and LoadDir.
func Load(dir fs.FS, name string) (*Tokenizer, error) {
	data, err := readFile(dir, name)
	if err != nil {
		return nil, err
	}
	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

func readFile(dir fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(dir, name)
	if err != nil {
		return nil, fmt.Errorf("read tokenizer file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read tokenizer file: %s is not a regular file", name)
	}
	if info.Size() > MaxFileBytes {
		return nil, fmt.Errorf("%s: %w", name, tooLarge(info.Size()))
	}
	data, err := fs.ReadFile(dir, name)
	if err != nil {
		return nil, fmt.Errorf("read tokenizer file: %w", err)
	}
	return data, nil
}

func tooLarge(n int64) error {
	return fmt.Errorf("read tokenizer file: it has %d MB, at most %d MB are read", n>>20, MaxFileBytes>>20)
}

// Parse reads the content of a tokenizer.json of at most MaxFileBytes, as the
// tokenizers library does by itself. The error names the place of the first
// component that is damaged or not supported.
func Parse(data []byte) (*Tokenizer, error) {
	f, err := parseFile(data)
	if err != nil {
		return nil, err
	}
	return build(f)
}

func parseFile(data []byte) (*file, error) {
	if len(data) > MaxFileBytes {
		return nil, tooLarge(int64(len(data)))
	}
	f := &file{}
	if err := json.Unmarshal(data, f); err != nil {
		return nil, fmt.Errorf("read tokenizer file: %w", describe(err, len(data)))
	}
	return f, nil
}

func build(f *file) (*Tokenizer, error) {
	t := &Tokenizer{}
	for _, step := range []struct {
		name string
		load func(*file) error
	}{
		{"normalizer", t.loadNormalizer}, {"pre-tokenizer", t.loadPreTokenizer}, {"model", t.loadModel},
		{"added tokens", t.loadAdded}, {"post-processor", t.loadPostProcessor}, {"decoder", t.loadDecoder},
	} {
		if err := step.load(f); err != nil {
			return nil, fmt.Errorf("load tokenizer's %s: %w", step.name, err)
		}
	}
	return t, nil
}

// describe adds the place to errors of encoding/json.
func describe(err error, size int) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("at byte %d of %d: %w", syntax.Offset, size, err)
	case errors.As(err, &kind):
		return fmt.Errorf("at byte %d of %d, %s: %w", kind.Offset, size, kind.Field, err)
	}
	return err
}

func (t *Tokenizer) loadModel(f *file) error {
	m := f.Model
	if m == nil {
		return errors.New("the file has none")
	}
	switch {
	case m.Type == "" && len(m.Merges) > 0: // files of old
	case m.Type != "BPE":
		return unsupported("model", fmt.Sprintf("type %q", m.Type))
	}
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("model", "dropout")
	case m.Prefix != "" || m.Suffix != "":
		return unsupported("model", "a subword prefix or suffix")
	}
	vocab, err := scanVocab(m.Vocab)
	if err != nil {
		return fmt.Errorf("model.vocab: %w", err)
	}
	size := 0
	for _, id := range vocab {
		size = max(size, int(id)+1)
	}
	if size > 4*len(vocab)+1<<16 {
		return fmt.Errorf("model.vocab: id %d among %d tokens is out of range", size-1, len(vocab))
	}
	t.ids, t.vocab = vocab, len(vocab)
	t.tokens = make([]string, size)
	t.known = make([]bool, size)
	for token, id := range vocab {
		if t.known[id] {
			return fmt.Errorf("model.vocab: %q and %q have the same id %d", t.tokens[id], token, id)
		}
		t.tokens[id], t.known[id] = token, true
	}
	if err := t.model.load(m, vocab, t.byteLevel); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	return nil
}

// loadAdded follows AddedVocabulary::add_tokens in tokenizers 0.23: ids are the
// vocabulary's or, for tokens outside it, count on from its end whatever the
// file says; so a file that says something else is refused.
func (t *Tokenizer) loadAdded(f *file) error {
	t.special = map[uint32]bool{}
	next := uint32(t.vocab)
	byID := map[uint32]addedToken{}
	normalized := map[uint32]bool{}
	special := map[string]bool{}
	var order []uint32
	for i, a := range f.AddedTokens {
		place := fmt.Sprintf("added_tokens[%d] %q", i, a.Content)
		if a.Content == "" {
			continue
		}
		if !utf8.ValidString(a.Content) {
			return fmt.Errorf("%s is not UTF-8", place)
		}
		id, ok := t.ids[a.Content]
		if !ok {
			id = next
			next++
		}
		if a.ID >= maxID || id != a.ID {
			return fmt.Errorf("%s: id %d does not follow the vocabulary, whose next is %d", place, a.ID, id)
		}
		for int(id) >= len(t.tokens) {
			t.tokens, t.known = append(t.tokens, ""), append(t.known, false)
		}
		content := a.Content
		if a.Normalized {
			if content = t.normalize(content); content == "" {
				return fmt.Errorf("%s: nothing is left of it when normalized", place)
			}
		}
		t.ids[a.Content] = id
		t.tokens[id], t.known[id] = content, true
		if a.Special {
			special[a.Content] = true
		}
		if _, ok := byID[id]; !ok {
			order = append(order, id)
		}
		byID[id] = addedToken{content: content, id: id, singleWord: a.SingleWord, lstrip: a.LStrip, rstrip: a.RStrip}
		normalized[id] = a.Normalized
	}
	var lists [2][]addedToken
	for _, id := range order {
		// By its text, as the decoder sees it: normalized ones may not be found.
		t.special[id] = special[t.tokens[id]]
		k := 0
		if normalized[id] {
			k = 1
		}
		lists[k] = append(lists[k], byID[id])
	}
	var err error
	if t.added, err = newAddedTokens(lists[0]); err != nil {
		return err
	}
	if t.addedNormalized, err = newAddedTokens(lists[1]); err != nil {
		return err
	}
	t.independent = t.added.independent()
	return nil
}

func (t *Tokenizer) loadPostProcessor(f *file) error {
	sub := func(c *component) []component { return c.Processors }
	if err := parts("post_processor", f.PostProcessor, sub, t.postProcessor); err != nil {
		return err
	}
	for _, id := range append(t.prefix[:len(t.prefix):len(t.prefix)], t.suffix...) {
		if int64(id) >= int64(len(t.known)) || !t.known[id] {
			return fmt.Errorf("post_processor: id %d belongs to no token", id)
		}
	}
	return nil
}

func (t *Tokenizer) postProcessor(place string, c *component) error {
	switch c.Type {
	case "ByteLevel": // changes offsets only
	case "BertProcessing", "RobertaProcessing":
		if c.Cls == nil || c.Sep == nil {
			return fmt.Errorf("%s: sep or cls is missing", place)
		}
		t.prefix = append([]uint32{c.Cls.ID}, t.prefix...)
		t.suffix = append(t.suffix, c.Sep.ID)
	case "TemplateProcessing":
		return t.template(place, c)
	default:
		return unsupported(place, fmt.Sprintf("type %q", c.Type))
	}
	return nil
}

func (t *Tokenizer) template(place string, c *component) error {
	var before, after []uint32
	texts := 0
	for _, p := range c.Single {
		switch {
		case p.Sequence != nil:
			if texts++; p.Sequence.ID != "A" && p.Sequence.ID != "" {
				return unsupported(place, fmt.Sprintf("sequence %q in a single text's template", p.Sequence.ID))
			}
		case p.SpecialToken != nil:
			s, ok := c.SpecialTokens[p.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("%s: special token %q is not defined", place, p.SpecialToken.ID)
			}
			if texts == 0 {
				before = append(before, s.IDs...)
			} else {
				after = append(after, s.IDs...)
			}
		}
	}
	if texts != 1 {
		return unsupported(place, fmt.Sprintf("a template with %d texts", texts))
	}
	t.prefix = append(before, t.prefix...)
	t.suffix = append(t.suffix, after...)
	return nil
}

// finderFor compiles the pattern of a Split or Replace.
func finderFor(place string, p pattern) (finder, error) {
	switch {
	case p.String != nil && *p.String != "":
		return literal(*p.String), nil
	case p.Regex != nil:
		f, err := compile(*p.Regex)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", place, err)
		}
		return f, nil
	}
	return nil, unsupported(place, "a pattern that is neither a String nor a Regex")
}

// literal finds a string.
type literal string

func (l literal) Find(_ *machine, text string, from int) (start, end int) {
	i := strings.Index(text[from:], string(l))
	if i < 0 {
		return -1, -1
	}
	return from + i, from + i + len(l)
}
