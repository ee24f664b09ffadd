package tokenizer

import (
	"fmt"
	"sync"
	"unicode"
	"unicode/utf8"
)

// splitter returns the length in bytes of the first pre-token of text, which is
// not empty.
type splitter func(text string) int

// The patterns this package knows, written out by hand below. Both are the
// GPT-4 pattern; they differ in how many digits go together.
const (
	oneDigit = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	triples  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitterFor compiles a pattern of a Split pre-tokenizer.
func splitterFor(pattern string) (splitter, error) {
	c := charClasses()
	switch pattern {
	case oneDigit:
		return func(s string) int { return c.split(s, 1) }, nil
	case triples:
		return func(s string) int { return c.split(s, 3) }, nil
	}
	return nil, fmt.Errorf("split pattern %q is not supported", pattern)
}

// class of a character, as the patterns see it.
type class uint8

const (
	other   class = iota
	letter        // \p{L}
	number        // \p{N}
	space         // \s, but for the next
	newline       // \r \n
)

// classes gives every assigned character's class by table.
type classes struct{ of []class }

// charClasses builds the table (200 KB) once.
var charClasses = sync.OnceValue(func() *classes {
	c := &classes{of: make([]class, 0x32400)} // past the last letter (CJK extension H)
	fill := func(t *unicode.RangeTable, k class) {
		for _, r := range t.R16 {
			for x := uint32(r.Lo); x <= uint32(r.Hi); x += uint32(r.Stride) {
				c.of[x] = k
			}
		}
		for _, r := range t.R32 {
			for x := r.Lo; x <= r.Hi && x < uint32(len(c.of)); x += r.Stride {
				c.of[x] = k
			}
		}
	}
	fill(unicode.L, letter)
	fill(unicode.N, number)
	fill(unicode.White_Space, space)
	c.of['\r'], c.of['\n'] = newline, newline
	return c
})

// at returns the class and length of the first character of s; length 0 at the
// end.
func (c *classes) at(s string) (class, int) {
	if len(s) == 0 {
		return other, 0
	}
	if b := s[0]; b < utf8.RuneSelf {
		return c.of[b], 1
	}
	r, n := utf8.DecodeRuneInString(s)
	if int(r) >= len(c.of) {
		return other, n
	}
	return c.of[r], n
}

// run is the length of the longest beginning of s whose characters are all of
// class k.
func (c *classes) run(s string, k class) int {
	i := 0
	for i < len(s) {
		got, n := c.at(s[i:])
		if got != k {
			break
		}
		i += n
	}
	return i
}

// split follows the alternatives of the pattern in their order.
func (c *classes) split(s string, digits int) int {
	if n := contraction(s); n > 0 {
		return n
	}
	k, n := c.at(s)
	switch k {
	case letter:
		return n + c.run(s[n:], letter)
	case number:
		for range digits - 1 {
			next, m := c.at(s[n:])
			if m == 0 || next != number {
				break
			}
			n += m
		}
		return n
	case newline:
		return c.white(s)
	}
	// other or space: one such character may lead a word
	next, m := c.at(s[n:])
	if m > 0 && next == letter {
		return n + c.run(s[n:], letter)
	}
	if k == other {
		return c.symbols(s)
	}
	if s[0] == ' ' && m > 0 && next == other {
		return 1 + c.symbols(s[1:])
	}
	return c.white(s)
}

// symbols: [^\s\p{L}\p{N}]+[\r\n]*
func (c *classes) symbols(s string) int {
	n := c.run(s, other)
	return n + c.run(s[n:], newline)
}

// white: \s*[\r\n]+|\s+(?!\S)|\s+ at a white space character
func (c *classes) white(s string) int {
	end, last, lines := 0, 0, 0 // the run's end, its last character, the end of its last line break
	for end < len(s) {
		k, n := c.at(s[end:])
		if k != space && k != newline {
			break
		}
		last = end
		end += n
		if k == newline {
			lines = end
		}
	}
	switch {
	case lines > 0:
		return lines
	case end == len(s) || last == 0:
		return end
	}
	return last // the last one belongs to what follows
}

// contraction: (?i:'s|'t|'re|'ve|'m|'ll|'d). The long s folds to s.
func contraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	switch s[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 2 && s[2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 2 && s[2]|0x20 == 'l' {
			return 3
		}
	}
	if len(s) >= 3 && s[1:3] == "ſ" {
		return 3
	}
	return 0
}
