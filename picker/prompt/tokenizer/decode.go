package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// loadDecoder prepares Decode, and what Bytes returns: a token by itself, as
// the decoder's steps that look at one token see it.
func (t *Tokenizer) loadDecoder(f *file) error {
	t.bytes = make([][]byte, len(t.tokens))
	if f.Decoder != nil && f.Decoder.Type == "ByteLevel" {
		toByte := alphabet()
		for id, token := range t.tokens {
			if t.known[id] {
				t.bytes[id], _ = rawBytes(token, &toByte)
			}
		}
		t.tokens = nil // their bytes are enough
		return nil
	}
	if f.Decoder == nil {
		t.decoders = append(t.decoders, func(tokens []string) []string { return []string{strings.Join(tokens, " ")} })
	}
	single := []func(string) string{}
	sub := func(c *component) []component { return c.Decoders }
	err := parts("decoder", f.Decoder, sub, func(place string, c *component) error {
		return t.decoder(place, c, &single)
	})
	if err != nil {
		return err
	}
	for id, token := range t.tokens {
		if !t.known[id] {
			continue
		}
		for _, f := range single {
			token = f(token)
		}
		t.bytes[id] = []byte(token)
	}
	return nil
}

func (t *Tokenizer) decoder(place string, c *component, single *[]func(string) string) error {
	var all func([]string) []string
	var one func(string) string
	switch c.Type {
	case "Replace":
		find, err := finderFor(place, c.Pattern)
		if err != nil {
			return err
		}
		one = replacer(find, c.Content)
		all = eachToken(one)
	case "ByteFallback":
		one = func(token string) string {
			if b, ok := fallbackByte(token); ok {
				return string([]byte{b})
			}
			return token
		}
		all = joinBytes
	case "Fuse":
		all = func(tokens []string) []string { return []string{strings.Join(tokens, "")} }
	case "Strip":
		if utf8.RuneCountInString(c.Content) != 1 || c.Start < 0 || c.Stop < 0 {
			return errors.New(place + ": Strip wants one character and counts that are not negative")
		}
		all = eachToken(func(token string) string { return strip(token, c) })
	case "Metaspace":
		if utf8.RuneCountInString(c.Replacement) != 1 {
			return fmt.Errorf("%s: replacement %q is not one character", place, c.Replacement)
		}
		one = func(token string) string { return strings.ReplaceAll(token, c.Replacement, " ") }
		all = func(tokens []string) []string {
			for i, s := range tokens {
				if i == 0 && c.PrependScheme != "never" {
					tokens[i] = strings.ReplaceAll(s, c.Replacement, "")
				} else {
					tokens[i] = one(s)
				}
			}
			return tokens
		}
	case "ByteLevel":
		return unsupported(place, "ByteLevel inside a Sequence")
	default:
		return unsupported(place, fmt.Sprintf("type %q", c.Type))
	}
	if one != nil {
		*single = append(*single, one)
	}
	t.decoders = append(t.decoders, all)
	return nil
}

func eachToken(f func(string) string) func([]string) []string {
	return func(tokens []string) []string {
		for i := range tokens {
			tokens[i] = f(tokens[i])
		}
		return tokens
	}
}

func strip(token string, c *component) string {
	for range c.Start {
		rest, ok := strings.CutPrefix(token, c.Content)
		if !ok {
			break
		}
		token = rest
	}
	for range c.Stop {
		rest, ok := strings.CutSuffix(token, c.Content)
		if !ok {
			break
		}
		token = rest
	}
	return token
}

// fallbackByte reads <0xNN>.
func fallbackByte(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(b), err == nil
}

// joinBytes makes characters of runs of <0xNN>, or one U+FFFD for each if the
// run is not UTF-8.
func joinBytes(tokens []string) []string {
	out := make([]string, 0, len(tokens))
	var run []byte
	flush := func() {
		switch {
		case len(run) == 0:
		case utf8.Valid(run):
			out = append(out, string(run))
		default:
			out = append(out, slices.Repeat([]string{"\uFFFD"}, len(run))...)
		}
		run = run[:0]
	}
	for _, token := range tokens {
		if b, ok := fallbackByte(token); ok {
			run = append(run, b)
			continue
		}
		flush()
		out = append(out, token)
	}
	flush()
	return out
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
	if t.decoders == nil {
		var b []byte
		for _, id := range ids {
			if !skipSpecial || !t.special[id] {
				b = append(b, t.Bytes(id)...)
			}
		}
		return lossy(b)
	}
	var tokens []string
	for _, id := range ids {
		if int64(id) < int64(len(t.known)) && t.known[id] && !(skipSpecial && t.special[id]) {
			tokens = append(tokens, t.tokens[id])
		}
	}
	for _, f := range t.decoders {
		tokens = f(tokens)
	}
	return strings.Join(tokens, "")
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
