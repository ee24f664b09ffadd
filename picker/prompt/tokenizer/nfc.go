package tokenizer

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxMarks is how many combining marks in a row norm.NFC leaves alone: past 30
// it inserts U+034F (stream-safe text, UAX 15 section 13), which the reference
// does not.
const maxMarks = 30

// nfc is Unicode's normal form C.
func nfc(s string) string {
	if isASCII(s) {
		return s
	}
	if mayHaveLongRun(s) && hasLongRun(s) {
		return nfcByParts(s)
	}
	if norm.NFC.IsNormalString(s) {
		return s
	}
	return norm.NFC.String(s)
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// mayHaveLongRun is a cheap test before hasLongRun: nothing below U+0300 is a
// combining mark.
func mayHaveLongRun(s string) bool {
	marks := 0
	for _, r := range s {
		if r < 0x300 {
			marks = 0
		} else if marks++; marks >= maxMarks {
			return true
		}
	}
	return false
}

// nfcByParts cuts s before ASCII characters, which never combine with what
// stands before them, and takes the slow way only where it is needed.
func nfcByParts(s string) string {
	out := make([]byte, 0, len(s))
	for len(s) > 0 {
		n := 1
		for n < len(s) && s[n] >= utf8.RuneSelf {
			n++
		}
		if part := s[:n]; hasLongRun(part) {
			out = append(out, nfcUnbounded(part)...)
		} else {
			out = append(out, norm.NFC.String(part)...)
		}
		s = s[n:]
	}
	return string(out)
}

// hasLongRun tells whether s holds a run of combining marks that norm.NFC would
// break.
func hasLongRun(s string) bool {
	marks := 0
	for i := 0; i < len(s); {
		p := norm.NFD.PropertiesString(s[i:])
		d := p.Decomposition()
		switch {
		case p.Size() == 0:
			i++
			marks = 0
			continue
		case d == nil && p.CCC() == 0:
			marks = 0
		case d == nil:
			marks++
		default:
			for _, r := range string(d) {
				if ccc(r) == 0 {
					marks = 0
				} else {
					marks++
				}
			}
		}
		if marks >= maxMarks {
			return true
		}
		i += p.Size()
	}
	return false
}

func ccc(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }

// nfcUnbounded is the textbook algorithm (UAX 15): decompose, order the marks,
// compose. For the rare texts that norm.NFC treats differently.
func nfcUnbounded(s string) string {
	type char struct {
		r    rune
		cc   uint8
		back bool // may combine with what stands before it
	}
	var d []char
	for i := 0; i < len(s); {
		p := norm.NFD.PropertiesString(s[i:])
		n := max(1, p.Size())
		part := s[i : i+n]
		if dec := p.Decomposition(); dec != nil {
			part = string(dec)
		}
		for _, r := range part {
			q := norm.NFC.PropertiesString(string(r))
			d = append(d, char{r, q.CCC(), !q.BoundaryBefore()})
		}
		i += n
	}
	for i := 0; i < len(d); i++ {
		j := i
		for j < len(d) && d[j].cc != 0 {
			j++
		}
		slices.SortStableFunc(d[i:j], func(a, b char) int { return int(a.cc) - int(b.cc) })
		i = j
	}
	out := make([]char, 0, len(d))
	starter, lastCC := -1, uint8(0)
	for _, c := range d {
		if c.back && starter >= 0 && (starter == len(out)-1 || lastCC < c.cc) {
			if r, ok := compose(out[starter].r, c.r); ok {
				out[starter].r = r
				continue
			}
		}
		if c.cc == 0 {
			starter = len(out)
		}
		lastCC = c.cc
		out = append(out, c)
	}
	b := make([]byte, 0, len(s))
	for _, c := range out {
		b = utf8.AppendRune(b, c.r)
	}
	return string(b)
}

// compose returns the primary composite of two characters.
func compose(a, b rune) (rune, bool) {
	s := norm.NFC.String(string(a) + string(b))
	r, n := utf8.DecodeRuneInString(s)
	return r, n == len(s)
}
