package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxID bounds token ids in a file; vocabularies hold less than a million.
const maxID = 1 << 24

// file is tokenizer.json, as far as it is read.
type file struct {
	AddedTokens []struct {
		ID         uint32 `json:"id"`
		Content    string `json:"content"`
		SingleWord bool   `json:"single_word"`
		LStrip     bool   `json:"lstrip"`
		RStrip     bool   `json:"rstrip"`
		Normalized bool   `json:"normalized"`
		Special    bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer    *component `json:"normalizer"`
	PreTokenizer  *component `json:"pre_tokenizer"`
	PostProcessor *component `json:"post_processor"`
	Decoder       *component `json:"decoder"`
	Model         struct {
		Type         string            `json:"type"`
		Dropout      *float64          `json:"dropout"`
		Prefix       string            `json:"continuing_subword_prefix"`
		Suffix       string            `json:"end_of_word_suffix"`
		ByteFallback bool              `json:"byte_fallback"`
		IgnoreMerges bool              `json:"ignore_merges"`
		Vocab        map[string]uint32 `json:"vocab"`
		Merges       []merge           `json:"merges"`
	} `json:"model"`
}

// component is a normalizer, pre-tokenizer, post-processor or decoder.
type component struct {
	Type           string      `json:"type"`
	Normalizers    []component `json:"normalizers"`
	PreTokenizers  []component `json:"pretokenizers"`
	Processors     []component `json:"processors"`
	Pattern        pattern     `json:"pattern"`
	Behavior       string      `json:"behavior"`
	Invert         bool        `json:"invert"`
	AddPrefixSpace bool        `json:"add_prefix_space"`
	UseRegex       *bool       `json:"use_regex"`
	Single         []struct {
		SpecialToken *struct {
			ID string `json:"id"`
		} `json:"SpecialToken"`
		Sequence *struct{} `json:"Sequence"`
	} `json:"single"`
	SpecialTokens map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
}

type pattern struct {
	Regex string `json:"Regex"`
}

// merge is written as two strings or, in older files, as one with a space.
type merge [2]string

func (m *merge) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[2]string)(m))
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	var ok bool
	if m[0], m[1], ok = strings.Cut(s, " "); !ok {
		return fmt.Errorf("merge %q: want two parts", s)
	}
	return nil
}

// Parse reads a tokenizer.json. The error names the first component that is
// damaged or not supported.
func Parse(data []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("read tokenizer file: %w", err)
	}
	t := &Tokenizer{}
	for _, step := range []struct {
		name string
		load func(*file) error
	}{
		{"model", t.loadModel}, {"added tokens", t.loadAdded}, {"normalizer", t.loadNormalizer},
		{"pre-tokenizer", t.loadPreTokenizer}, {"post-processor", t.loadPostProcessor}, {"decoder", t.loadDecoder},
	} {
		if err := step.load(&f); err != nil {
			return nil, fmt.Errorf("load tokenizer's %s: %w", step.name, err)
		}
	}
	return t, nil
}

func unsupported(what string) error { return fmt.Errorf("%s is not supported", what) }

func (t *Tokenizer) loadModel(f *file) error {
	m := &f.Model
	switch {
	case m.Type != "BPE":
		return unsupported(fmt.Sprintf("type %q", m.Type))
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("dropout")
	case m.Prefix != "" || m.Suffix != "":
		return unsupported("a subword prefix or suffix")
	case m.ByteFallback:
		return unsupported("byte fallback")
	}
	toByte := alphabet()
	t.ids = make(map[string]uint32, len(m.Vocab)+len(f.AddedTokens))
	size := 0
	for token, id := range m.Vocab {
		if id >= maxID {
			return fmt.Errorf("token %q: id %d is too large", token, id)
		}
		t.ids[token] = id
		size = max(size, int(id)+1)
	}
	t.bytes = make([][]byte, size)
	if m.IgnoreMerges {
		t.whole = make(map[string]uint32, len(m.Vocab))
	}
	var known [256]bool
	for token, id := range m.Vocab {
		b, ok := rawBytes(token, toByte)
		t.bytes[id] = b
		if !ok {
			continue // text never becomes this token by merging
		}
		if t.whole != nil {
			t.whole[string(b)] = id
		}
		if len(b) == 1 {
			t.byteID[b[0]], known[b[0]] = id, true
		}
	}
	for b, ok := range known {
		if !ok {
			return fmt.Errorf("byte %#02x has no token: not a byte-level vocabulary", b)
		}
	}
	t.merges = newPairTable(len(m.Merges))
	for rank, p := range m.Merges {
		left, ok1 := m.Vocab[p[0]]
		right, ok2 := m.Vocab[p[1]]
		into, ok3 := m.Vocab[p[0]+p[1]]
		if !ok1 || !ok2 || !ok3 {
			return fmt.Errorf("merge %d, %q with %q: not in the vocabulary", rank, p[0], p[1])
		}
		t.merges.add(left, right, uint32(rank), into)
	}
	return nil
}

// alphabet maps the characters that stand for bytes in byte-level vocabularies
// (GPT-2's table): printable Latin-1 stands for itself, the rest for U+0100 up.
func alphabet() map[rune]byte {
	m := make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range 256 {
		if '!' <= b && b <= '~' || 0xA1 <= b && b <= 0xAC || 0xAE <= b {
			m[rune(b)] = byte(b)
			continue
		}
		m[next] = byte(b)
		next++
	}
	return m
}

// rawBytes decodes a token as the ByteLevel decoder does: a character outside
// the alphabet makes the whole token stand for itself.
func rawBytes(token string, toByte map[rune]byte) (b []byte, ok bool) {
	b = make([]byte, 0, len(token))
	for _, r := range token {
		c, ok := toByte[r]
		if !ok {
			return []byte(token), false
		}
		b = append(b, c)
	}
	return b, true
}

func (t *Tokenizer) loadAdded(f *file) error {
	toByte := alphabet()
	var list []addedToken
	special := map[uint32]bool{}
	for _, a := range f.AddedTokens {
		switch {
		case a.Content == "":
			return errors.New("empty content")
		case !utf8.ValidString(a.Content):
			return fmt.Errorf("token %q is not UTF-8", a.Content)
		case a.ID >= maxID:
			return fmt.Errorf("token %q: id %d is too large", a.Content, a.ID)
		case a.SingleWord || a.LStrip || a.RStrip:
			return unsupported(fmt.Sprintf("token %q: single_word, lstrip or rstrip", a.Content))
		case a.Normalized && f.Normalizer != nil:
			return unsupported(fmt.Sprintf("token %q: normalized", a.Content))
		}
		list = append(list, addedToken{a.Content, a.ID})
		t.ids[a.Content] = a.ID
		for int(a.ID) >= len(t.bytes) {
			t.bytes = append(t.bytes, nil)
		}
		t.bytes[a.ID], _ = rawBytes(a.Content, toByte)
		special[a.ID] = a.Special
	}
	t.added = newAddedTokens(list)
	t.added.special = special
	return nil
}

func (t *Tokenizer) loadNormalizer(f *file) error {
	return t.normalizer(f.Normalizer)
}

func (t *Tokenizer) normalizer(c *component) error {
	switch {
	case c == nil:
	case c.Type == "NFC":
		t.nfc = true
	case c.Type == "Sequence":
		for i := range c.Normalizers {
			if err := t.normalizer(&c.Normalizers[i]); err != nil {
				return err
			}
		}
	default:
		return unsupported(fmt.Sprintf("type %q", c.Type))
	}
	return nil
}

func (t *Tokenizer) loadPreTokenizer(f *file) error {
	c := f.PreTokenizer
	if c == nil || c.Type != "Sequence" || len(c.PreTokenizers) != 2 {
		return unsupported("anything but a Split followed by ByteLevel")
	}
	split, level := &c.PreTokenizers[0], &c.PreTokenizers[1]
	switch {
	case split.Type != "Split" || split.Behavior != "Isolated" || split.Invert:
		return unsupported(fmt.Sprintf("first type %q, behavior %q", split.Type, split.Behavior))
	case level.Type != "ByteLevel":
		return unsupported(fmt.Sprintf("second type %q", level.Type))
	case level.AddPrefixSpace || level.UseRegex == nil || *level.UseRegex:
		return unsupported("ByteLevel with prefix space or its own pattern")
	}
	var err error
	t.split, err = splitterFor(split.Pattern.Regex)
	return err
}

func (t *Tokenizer) loadPostProcessor(f *file) error {
	return t.postProcessor(f.PostProcessor)
}

func (t *Tokenizer) postProcessor(c *component) error {
	switch {
	case c == nil || c.Type == "ByteLevel": // changes offsets only
	case c.Type == "Sequence":
		for i := range c.Processors {
			if err := t.postProcessor(&c.Processors[i]); err != nil {
				return err
			}
		}
	case c.Type == "TemplateProcessing":
		to := &t.prefix
		for _, p := range c.Single {
			switch {
			case p.Sequence != nil:
				to = &t.suffix
			case p.SpecialToken != nil:
				s, ok := c.SpecialTokens[p.SpecialToken.ID]
				if !ok {
					return fmt.Errorf("special token %q is not defined", p.SpecialToken.ID)
				}
				*to = append(*to, s.IDs...)
			}
		}
	default:
		return unsupported(fmt.Sprintf("type %q", c.Type))
	}
	return nil
}

func (t *Tokenizer) loadDecoder(f *file) error {
	if f.Decoder == nil || f.Decoder.Type != "ByteLevel" {
		return unsupported("anything but ByteLevel")
	}
	return nil
}
