// Package tokenizer turns text into token ids and back, exactly as Hugging
// Face's tokenizers library does with the same tokenizer.json, in pure Go.
//
// It reads the byte-level BPE family: added and special tokens, NFC, the split
// pattern that GPT-4 brought and Qwen and Llama 3 use, the byte-level alphabet,
// rank merges. A file that names anything else is refused at load with the
// component's name, so that the caller falls back to asking the engine instead
// of being wrong.
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
	added  addedTokens
	nfc    bool
	split  splitter
	byteID [256]uint32
	merges pairTable
	whole  map[string]uint32 // raw bytes of a token -> id; nil unless whole pre-tokens win before merging
	ids    map[string]uint32 // token as written in the file -> id
	bytes  [][]byte          // by id: the token's bytes; nil: no such id
	prefix []uint32          // what the post-processor puts before a text
	suffix []uint32          // and after it

	scratch sync.Pool // *merger
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
	for len(text) > 0 {
		before, id, rest, found := t.Cut(text)
		dst = t.EncodePiece(dst, before)
		if found {
			dst = append(dst, id)
		}
		text = rest
	}
	return dst
}

// Cut finds the first added token in text: what stands before it, its id, and
// what follows. Concatenating EncodePiece of the parts and the ids is Encode,
// by construction: the reference library splits at added tokens before it
// normalizes and pre-tokenizes each part alone.
func (t *Tokenizer) Cut(text string) (before string, id uint32, rest string, found bool) {
	at, n, id := t.added.find(text)
	if n == 0 {
		return text, 0, "", false
	}
	return text[:at], id, text[at+n:], true
}

// EncodePiece appends the ids of a text that holds no added token, as Cut
// returns it.
func (t *Tokenizer) EncodePiece(dst []uint32, text string) []uint32 {
	if text == "" {
		return dst
	}
	if t.nfc {
		text = nfc(text)
	}
	m, _ := t.scratch.Get().(*merger)
	if m == nil {
		m = &merger{}
	}
	for len(text) > 0 {
		n := t.split(text)
		dst = t.encodeWord(m, dst, text[:n])
		text = text[n:]
	}
	if !m.huge() {
		t.scratch.Put(m)
	}
	return dst
}

func (t *Tokenizer) encodeWord(m *merger, dst []uint32, word string) []uint32 {
	if len(word) == 1 {
		return append(dst, t.byteID[word[0]])
	}
	if t.whole != nil {
		if id, ok := t.whole[word]; ok {
			return append(dst, id)
		}
	}
	return m.encode(t, dst, word)
}

// Bytes returns the bytes of a token, nil for an unknown id. They need not be
// whole UTF-8 characters. The caller must not change them.
func (t *Tokenizer) Bytes(id uint32) []byte {
	if int64(id) >= int64(len(t.bytes)) {
		return nil
	}
	return t.bytes[id]
}

// Decode returns the text of ids. Bytes that do not form UTF-8 become U+FFFD,
// unknown ids nothing. skipSpecial leaves out tokens that the file marks
// special.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) string {
	var b []byte
	for _, id := range ids {
		if skipSpecial && t.added.special[id] {
			continue
		}
		b = append(b, t.Bytes(id)...)
	}
	return lossy(b)
}

// lossy replaces each maximal part of an invalid sequence by one U+FFFD, as the
// Unicode standard recommends and Rust does (chapter 3.9; Go replaces byte by
// byte).
func lossy(b []byte) string {
	var out strings.Builder
	out.Grow(len(b))
	for len(b) > 0 {
		n, ok := sequence(b)
		if ok {
			out.Write(b[:n])
		} else {
			out.WriteRune('\uFFFD')
		}
		b = b[n:]
	}
	return out.String()
}

// sequence is the length of the first character of b, or, if that is broken, of
// its maximal valid beginning (at least one byte).
func sequence(b []byte) (n int, ok bool) {
	c := b[0]
	lo, hi, need := byte(0x80), byte(0xBF), 0
	switch {
	case c < 0x80:
		return 1, true
	case 0xC2 <= c && c <= 0xDF:
		need = 1
	case 0xE0 <= c && c <= 0xEF:
		need = 2
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case 0xF0 <= c && c <= 0xF4:
		need = 3
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1, false
	}
	for n = 1; n <= need; n++ {
		if n >= len(b) || b[n] < lo || b[n] > hi {
			return n, false
		}
		lo, hi = 0x80, 0xBF
	}
	return n, true
}
