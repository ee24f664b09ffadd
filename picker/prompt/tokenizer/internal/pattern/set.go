package pattern

import (
	"unicode/utf8"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/ucd"
)

// set is a set of characters.
type set struct {
	ascii [2]uint64 // answers below 128, everything applied
	items []item
	not   bool
}

// item is one part of a class: a range or a predicate.
type item struct {
	lo, hi rune
	mask   ucd.Mask
	kind   itemKind
	not    bool
}

type itemKind uint8

const (
	inRange itemKind = iota
	inMask
	inSpace
	inWord
)

func (i item) has(r rune) bool {
	var in bool
	switch i.kind {
	case inRange:
		in = i.lo <= r && r <= i.hi
	case inMask:
		in = ucd.Load().Props(r).In(i.mask)
	case inSpace:
		in = ucd.Space(r)
	case inWord:
		in = isWord(r)
	}
	return in != i.not
}

// isWord is Oniguruma's \w: that of the regex crate but for eight characters
// (both asked about every code point).
func isWord(r rune) bool {
	switch r {
	case 0x200C, 0x200D:
		return false
	case 0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE:
		return true
	}
	return ucd.Load().Props(r)&ucd.Word != 0
}

func (s *set) has(r rune) bool {
	for _, i := range s.items {
		if i.has(r) {
			return !s.not
		}
	}
	return s.not
}

// ready fills in the answers for ASCII.
func (s *set) ready() *set {
	for r := range rune(utf8.RuneSelf) {
		if s.has(r) {
			s.ascii[r>>6] |= 1 << (r & 63)
		}
	}
	return s
}

// match tells whether the character at a position is in the set, and its size.
func (s *set) match(text string, at int) (int, bool) {
	if at >= len(text) {
		return 0, false
	}
	if c := text[at]; c < utf8.RuneSelf {
		return 1, s.ascii[c>>6]>>(c&63)&1 != 0
	}
	r, n := utf8.DecodeRuneInString(text[at:])
	return n, s.has(r)
}
