// Package tokenizer turns text into token ids and back, exactly as Hugging
// Face's tokenizers library (0.23) does with the same tokenizer.json, in pure
// Go.
//
// It reads BPE models: byte-level ones (Llama 3, Qwen, DeepSeek, gpt-oss,
// Mistral) and those of characters with byte fallback (Llama 2, Gemma, older
// Mistral), with the normalizers, pre-tokenizers, post-processors, decoders and
// kinds of added tokens that their files use. A file that names anything else
// is refused at load with the component and its place, so that the caller falls
// back to asking the engine instead of being wrong.
//
//	tok, err := tokenizer.Parse(file)
//	ids := tok.Encode(nil, "Hello <|im_end|>")
//	text := tok.Decode(ids, false)
//
// Added tokens cut a text before anything else happens to it, so the pieces
// between them tokenize independently: Cut exposes that to caches.
package tokenizer

import (
	"strings"
	"sync"
)

// Tokenizer is immutable after Parse and safe for concurrent use.
type Tokenizer struct {
	added           addedTokens // searched in the text as it comes
	addedNormalized addedTokens // searched in pieces that are normalized
	normalizers     []func(string) string
	movesStart      bool // a normalizer may put or take something at the start
	steps           []step
	byteLevel       bool // the last step was ByteLevel
	model           model
	vocab           int // tokens in the model's vocabulary
	ids             map[string]uint32
	tokens          []string // by id, as the decoder sees them
	known           []bool   // by id
	bytes           [][]byte // by id: what the token stands for; nil: no such id
	special         map[uint32]bool
	decoders        []func([]string) []string // nil: byte-level
	prefix          []uint32                  // what the post-processor puts before a text
	suffix          []uint32                  // and after it
	independent     bool                      // cutting at added tokens is exact
	startDiffers    bool

	scratch sync.Pool // *encoder
}

// TokenID returns the id of a token as the file spells it ("<|im_end|>",
// "Ġthe").
func (t *Tokenizer) TokenID(token string) (uint32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// Size is one more than the highest id.
func (t *Tokenizer) Size() int { return len(t.bytes) }

// Prefix and Suffix are the ids that the post-processor puts around a text when
// special tokens are asked for (Llama's BOS); empty for Qwen. The caller must
// not change them.
func (t *Tokenizer) Prefix() []uint32 { return t.prefix }

// Suffix: see Prefix.
func (t *Tokenizer) Suffix() []uint32 { return t.suffix }

// Encode appends the ids of text to dst. Tokens such as <|im_end|> inside text
// become their ids. Nothing is put around the text (see Prefix).
func (t *Tokenizer) Encode(dst []uint32, text string) []uint32 {
	return t.EncodePieceAt(dst, text, true)
}

// Cut finds the first added token in text that is worth cutting at (not one of
// white space alone): what stands before it, its id, and what follows.
// Concatenating EncodePiece of the parts and the ids is Encode. Where that
// would not be so, Cut finds nothing and EncodePiece takes the whole text:
//
//   - the library looks for added tokens before it normalizes and pre-tokenizes
//     each part alone, so a part's ids depend on its text only. Tokens that are
//     normalized first are looked for inside a part: they never cut.
//   - single_word looks at the neighbours of a token, and rstrip takes white
//     space in which another token may begin: tokenizers where that can reach
//     over a cut are never cut (see addedTokens.independent).
//   - Metaspace with prepend_scheme "first" treats the part at the very start
//     differently (StartDiffers): use CutAlways and EncodePieceAt.
func (t *Tokenizer) Cut(text string) (before string, id uint32, rest string, found bool) {
	if t.startDiffers {
		return text, 0, "", false
	}
	return t.CutAlways(text)
}

// CutAlways is Cut for callers that encode the parts by EncodePieceAt.
func (t *Tokenizer) CutAlways(text string) (before string, id uint32, rest string, found bool) {
	if !t.independent {
		return text, 0, "", false
	}
	for done, search := 0, 0; ; {
		p, ok := t.added.next(text, done, search)
		if !ok {
			return text, 0, "", false
		}
		if !blank(p.token.content) {
			return text[:p.start], p.token.id, text[p.stop:], true
		}
		done, search = p.stop, p.search
	}
}

// blank tells whether a token is white space alone, as many of Gemma's are.
func blank(token string) bool {
	return strings.TrimLeft(token, " \t\r\n▁") == ""
}

// StartDiffers tells whether the part that begins a text may get other ids than
// the same part further on.
func (t *Tokenizer) StartDiffers() bool { return t.startDiffers }

// EncodePiece appends the ids of a part as Cut returns it.
func (t *Tokenizer) EncodePiece(dst []uint32, text string) []uint32 {
	return t.EncodePieceAt(dst, text, true)
}

// EncodePieceAt appends the ids of a part; start: it begins the whole text.
func (t *Tokenizer) EncodePieceAt(dst []uint32, text string, start bool) []uint32 {
	if text == "" {
		return dst
	}
	e, _ := t.scratch.Get().(*encoder)
	if e == nil {
		e = &encoder{}
	}
	e.t, e.dst = t, dst
	e.machine.Steps = baseSteps + stepsPerByte*len(text)
	e.text(text, start)
	dst, e.dst, e.t = e.dst, nil, nil
	if !e.merger.huge() {
		t.scratch.Put(e)
	}
	return dst
}

// encoder is the scratch of encoding one text.
type encoder struct {
	t       *Tokenizer
	dst     []uint32
	machine machine
	merger  merger
}

func (e *encoder) text(text string, start bool) {
	for done, search := 0, 0; ; {
		p, ok := e.t.added.next(text, done, search)
		if !ok {
			e.part(text[done:], start && done == 0)
			return
		}
		if p.start > done {
			e.part(text[done:p.start], start && done == 0)
		}
		e.dst = append(e.dst, p.token.id)
		done, search = p.stop, p.search
	}
}

// part encodes what stands between added tokens.
func (e *encoder) part(text string, start bool) {
	if text == "" {
		return
	}
	text = e.t.normalize(text)
	for done, search := 0, 0; ; {
		p, ok := e.t.addedNormalized.next(text, done, search)
		if !ok {
			e.pieces(0, text[done:], start && done == 0)
			return
		}
		if p.start > done {
			e.pieces(0, text[done:p.start], start && done == 0)
		}
		e.dst = append(e.dst, p.token.id)
		done, search = p.stop, p.search
	}
}
