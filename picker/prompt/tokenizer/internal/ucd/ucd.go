// Package ucd holds the facts about characters that the Hugging Face tokenizers
// library goes by, which are not those of Go's unicode package: its pattern
// engine follows Unicode 16, its normal forms Unicode 12, its lower case
// Unicode 17. make_tables.py asked the library itself about every code point.
package ucd

import (
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

//go:generate sh -c "python3 make_tables.py > tables.txt.gz"

//go:embed tables.txt.gz
var packed string

// Categories lists the general categories; a Category is an index into it. A
// category's group is its first letter.
const Categories = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn"

// Mask is a set of categories, one bit each, in the order of Categories.
type Mask uint32

// MaskOf returns the categories that name stands for: "Lu" one, "L" a group;
// 0 for an unknown name.
func MaskOf(name string) Mask {
	var m Mask
	for i, c := range strings.Fields(Categories) {
		if c == name || len(name) == 1 && c[:1] == name {
			m |= 1 << i
		}
	}
	return m
}

// Props are a character's properties: the low five bits are its category.
type Props uint8

const (
	categoryBits = 0x1F
	// Word marks \w as the regex crate has it, by which added tokens with
	// single_word go.
	Word Props = 0x20
	// stable marks what normal form C leaves alone whatever stands before or
	// behind it.
	stable Props = 0x40
)

// In tells whether the character's category is one of m.
func (p Props) In(m Mask) bool { return m>>(p&categoryBits)&1 != 0 }

// Tables are read only once made.
type Tables struct {
	index  [utf8.MaxRune>>8 + 1]uint16
	blocks [][256]Props

	numeric, punct []span
	lower          map[rune]string
	class          map[rune]uint8
	canonical      map[rune]string // full decompositions
	compat         map[rune]string
	compose        map[[2]rune]rune
}

type span struct{ first, last rune }

func within(r rune, spans []span) bool {
	lo, hi := 0, len(spans)
	for lo < hi {
		mid := (lo + hi) / 2
		if spans[mid].last < r {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo < len(spans) && spans[lo].first <= r
}

// Props returns the properties of r, which must be at most utf8.MaxRune.
func (t *Tables) Props(r rune) Props { return t.blocks[t.index[r>>8]][r&0xFF] }

// Numeric is what the Digits pre-tokenizer takes for a digit.
func (t *Tables) Numeric(r rune) bool { return within(r, t.numeric) }

// Punctuation is what the Punctuation pre-tokenizer takes for one.
func (t *Tables) Punctuation(r rune) bool { return within(r, t.punct) }

// Space tells whether r is white space: \s everywhere in the library.
func Space(r rune) bool {
	switch {
	case r < 0x85:
		return r == ' ' || 9 <= r && r <= 13
	case 0x2000 <= r && r <= 0x200A:
		return true
	}
	switch r {
	case 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000:
		return true
	}
	return false
}

// Lower is the lower case of s, character by character.
func (t *Tables) Lower(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for _, r := range s {
		if l, ok := t.lower[r]; ok {
			b.WriteString(l)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Load unpacks the tables at the first call (a few milliseconds).
var Load = sync.OnceValue(func() *Tables {
	t, err := unpack(packed)
	if err != nil {
		panic("unicode tables: " + err.Error()) // part of this program
	}
	return t
})

func unpack(packed string) (*Tables, error) {
	z, err := gzip.NewReader(strings.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	t := &Tables{
		lower: map[rune]string{}, class: map[rune]uint8{}, canonical: map[rune]string{},
		compat: map[rune]string{}, compose: map[[2]rune]rune{},
	}
	flat := make([]Props, utf8.MaxRune+1)
	categories := map[string]Props{}
	for i, c := range strings.Fields(Categories) {
		categories[c] = Props(i)
	}
	from, now := rune(0), Props(0)
	fill := func(to rune) {
		for ; from < to; from++ {
			flat[from] = now
		}
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if f[0] == "g" {
			r, err := hex(f[1:2])
			if err != nil {
				return nil, err
			}
			fill(r[0])
			if now = categories[f[2]]; f[3] == "1" {
				now |= Word
			}
			continue
		}
		if err := t.line(f[0], f[1:]); err != nil {
			return nil, err
		}
	}
	fill(utf8.MaxRune + 1)
	t.markStable(flat)
	t.pack(flat)
	return t, nil
}

func hex(f []string) ([]rune, error) {
	out := make([]rune, len(f))
	for i, s := range f {
		v, err := strconv.ParseUint(s, 16, 21)
		if err != nil {
			return nil, err
		}
		out[i] = rune(v)
	}
	return out, nil
}

func (t *Tables) line(key string, fields []string) error {
	if key == "o" {
		r, err := hex(fields[:1])
		if err != nil {
			return err
		}
		cc, err := strconv.ParseUint(fields[1], 10, 8)
		t.class[r[0]] = uint8(cc)
		return err
	}
	r, err := hex(fields)
	if err != nil {
		return err
	}
	switch key {
	case "n":
		t.numeric = append(t.numeric, span{r[0], r[1]})
	case "p":
		t.punct = append(t.punct, span{r[0], r[1]})
	case "l":
		t.lower[r[0]] = string(r[1:])
	case "d":
		t.canonical[r[0]] = string(r[1:])
	case "k":
		t.compat[r[0]] = string(r[1:])
	case "m":
		t.compose[[2]rune{r[0], r[1]}] = r[2]
	default:
		return fmt.Errorf("unknown line %q", key)
	}
	return nil
}

func (t *Tables) markStable(flat []Props) {
	for r := range flat {
		flat[r] |= stable
	}
	for r := range t.class {
		flat[r] &^= stable
	}
	for r := range t.canonical {
		flat[r] &^= stable
	}
	for pair, r := range t.compose {
		flat[r] |= stable
		flat[pair[1]] &^= stable
	}
	for pair := range t.compose { // again: a composite may itself come second
		flat[pair[1]] &^= stable
	}
	for r := jamoV; r < jamoT+tCount; r++ {
		flat[r] &^= stable
	}
}

// pack keeps equal blocks once.
func (t *Tables) pack(flat []Props) {
	seen := map[[256]Props]uint16{}
	for i := range t.index {
		block := [256]Props(flat[i<<8:])
		n, ok := seen[block]
		if !ok {
			n = uint16(len(t.blocks))
			seen[block] = n
			t.blocks = append(t.blocks, block)
		}
		t.index[i] = n
	}
}
