package ucd

import (
	"slices"
	"unicode/utf8"
)

// Hangul syllables compose by arithmetic (Unicode chapter 3.12).
const (
	jamoL, jamoV, jamoT, syllable  = rune(0x1100), rune(0x1161), rune(0x11A7), rune(0xAC00)
	lCount, vCount, tCount, sCount = 19, 21, 28, 11172
)

// NFC is normal form C. The text is returned as it is if nothing changes.
func (t *Tables) NFC(s string) string {
	at := t.unstable(s, 0)
	if at == len(s) {
		return s
	}
	out := make([]byte, 0, len(s)+16)
	var work []char
	for done := 0; ; {
		// From the character before, with which it may combine, to the next one
		// that is left alone.
		from := at
		if at > done {
			_, n := utf8.DecodeLastRuneInString(s[:at])
			from -= n
		}
		out = append(out, s[done:from]...)
		end := at
		for end < len(s) {
			r, n := utf8.DecodeRuneInString(s[end:])
			if t.Props(r)&stable != 0 {
				break
			}
			end += n
		}
		work = t.decompose(work[:0], s[from:end], false)
		for _, c := range t.composed(work) {
			out = utf8.AppendRune(out, c.r)
		}
		done = end
		if at = t.unstable(s, done); at == len(s) {
			return string(append(out, s[done:]...))
		}
	}
}

// unstable is where the next character stands that normal form C may change or
// combine with the one before it.
func (t *Tables) unstable(s string, from int) int {
	for i := from; i < len(s); {
		if s[i] < utf8.RuneSelf {
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if t.Props(r)&stable == 0 {
			return i
		}
		i += n
	}
	return len(s)
}

// NFD is normal form D, NFKD and NFKC the compatibility forms.
func (t *Tables) NFD(s string) string { return text(t.decompose(nil, s, false)) }

// NFKD: see NFD.
func (t *Tables) NFKD(s string) string { return text(t.decompose(nil, s, true)) }

// NFKC: see NFD.
func (t *Tables) NFKC(s string) string { return text(t.composed(t.decompose(nil, s, true))) }

type char struct {
	r     rune
	class uint8
}

func text(cs []char) string {
	b := make([]byte, 0, len(cs)+len(cs)/2)
	for _, c := range cs {
		b = utf8.AppendRune(b, c.r)
	}
	return string(b)
}

// decompose appends the full decomposition of s in canonical order.
func (t *Tables) decompose(dst []char, s string, compat bool) []char {
	for _, r := range s {
		if d, ok := t.canonical[r]; ok && !compat {
			dst = t.chars(dst, d)
		} else if k, has := t.compat[r]; has && compat {
			dst = t.chars(dst, k)
		} else if ok {
			dst = t.chars(dst, d)
		} else if i := r - syllable; 0 <= i && i < sCount {
			dst = append(dst, char{jamoL + i/(vCount*tCount), 0}, char{jamoV + i%(vCount*tCount)/tCount, 0})
			if i%tCount != 0 {
				dst = append(dst, char{jamoT + i%tCount, 0})
			}
		} else {
			dst = append(dst, char{r, t.class[r]})
		}
	}
	for i := 0; i < len(dst); i++ {
		j := i
		for j < len(dst) && dst[j].class != 0 {
			j++
		}
		if j > i+1 {
			slices.SortStableFunc(dst[i:j], func(a, b char) int { return int(a.class) - int(b.class) })
		}
		i = max(i, j-1)
	}
	return dst
}

func (t *Tables) chars(dst []char, s string) []char {
	for _, r := range s {
		dst = append(dst, char{r, t.class[r]})
	}
	return dst
}

// composed composes in place (UAX 15, canonical composition).
func (t *Tables) composed(cs []char) []char {
	out, starter, last := cs[:0], -1, uint8(0)
	for _, c := range cs {
		if starter >= 0 && (starter == len(out)-1 || last < c.class) {
			if r, ok := t.pair(out[starter].r, c.r); ok {
				out[starter].r = r
				continue
			}
		}
		if c.class == 0 {
			starter = len(out)
		}
		last = c.class
		out = append(out, c)
	}
	return out
}

func (t *Tables) pair(a, b rune) (rune, bool) {
	if l, v := a-jamoL, b-jamoV; 0 <= l && l < lCount && 0 <= v && v < vCount {
		return syllable + (l*vCount+v)*tCount, true
	}
	if i, n := a-syllable, b-jamoT; 0 <= i && i < sCount && i%tCount == 0 && 0 < n && n < tCount {
		return a + n, true
	}
	r, ok := t.compose[[2]rune{a, b}]
	return r, ok
}
