package tokenizer

import (
	"unicode/utf8"

	regex "github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/pattern"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/ucd"
)

// The patterns of the families in use, written out by hand in this file. The
// tests hold each against the pattern engine.
const (
	// Qwen 2 to 3: GPT-4's pattern with digits one by one.
	gpt4OneDigit = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// Llama 3.
	gpt4Triples = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// gpt-oss, Llama 4: o200k.
	o200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// Mistral Nemo and later: o200k without contractions, digits one by one.
	tekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// DeepSeek V3's three, one after the other.
	deepseekDigits = `\p{N}{1,3}`
	deepseekCJK    = `[一-龥぀-ゟ゠-ヿ]+`
	deepseekWords  = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// compile returns a hand-written finder for the patterns above, else the
// pattern engine's.
func compile(pattern string) (finder, error) {
	switch pattern {
	case gpt4OneDigit:
		return &gpt4Split{newClasses(letters), 1}, nil
	case gpt4Triples:
		return &gpt4Split{newClasses(letters), 3}, nil
	case o200k:
		return &o200kSplit{newClasses(cases), 3, true}, nil
	case tekken:
		return &o200kSplit{newClasses(cases), 1, false}, nil
	case deepseekDigits:
		return &digitSplit{newClasses(letters)}, nil
	case deepseekCJK:
		return cjkSplit{}, nil
	case deepseekWords:
		return &deepseekSplit{newClasses(symbols)}, nil
	}
	return regex.Compile(pattern)
}

// class of a character, as a pattern sees it.
type class uint8

const (
	other   class = iota
	letter        // \p{L}
	number        // \p{N}
	space         // \s, but for the next
	newline       // \r \n
	upper         // \p{Lu} \p{Lt}
	lower         // \p{Ll}
	both          // \p{Lm} \p{Lo}
	mark          // \p{M}
	symbol        // \p{P} \p{S}
)

// grouping gives categories their class; the first that fits.
type grouping []struct {
	categories string
	class      class
}

// The groupings of GPT-4's, o200k's and DeepSeek's patterns.
var (
	letters = grouping{{"L", letter}, {"N", number}, {"Z", space}}
	cases   = grouping{{"Lu", upper}, {"Lt", upper}, {"Ll", lower}, {"L", both}, {"M", mark}, {"N", number}, {"Z", space}}
	symbols = grouping{{"L", letter}, {"M", mark}, {"P", symbol}, {"S", symbol}, {"Z", space}}
)

// classes gives every character's class.
type classes struct {
	ascii [utf8.RuneSelf]class
	of    [256]class // by properties
	u     *ucd.Tables
}

func newClasses(g grouping) *classes {
	c := &classes{u: ucd.Load()}
	for p := range c.of {
		for _, k := range g {
			if ucd.Props(p).In(ucd.MaskOf(k.categories)) {
				c.of[p] = k.class
				break
			}
		}
	}
	for r := range c.ascii {
		switch c.ascii[r] = c.of[c.u.Props(rune(r))]; {
		case r == '\r' || r == '\n':
			c.ascii[r] = newline
		case ucd.Space(rune(r)):
			c.ascii[r] = space
		}
	}
	return c
}

// at returns the class and size of the character at i; size 0 at the end.
func (c *classes) at(s string, i int) (class, int) {
	if i >= len(s) {
		return other, 0
	}
	if b := s[i]; b < utf8.RuneSelf {
		return c.ascii[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if r == 0x85 { // the only white space that is no separator
		return space, n
	}
	return c.of[c.u.Props(r)], n
}

// run is the end of the run of characters of class k that begins at i.
func (c *classes) run(s string, i int, k class) int {
	for i < len(s) {
		if b := s[i]; b < utf8.RuneSelf {
			if c.ascii[b] != k {
				break
			}
			i++
			continue
		}
		got, n := c.at(s, i)
		if got != k {
			break
		}
		i += n
	}
	return i
}

// run2 is run for two classes.
func (c *classes) run2(s string, i int, k, l class) int {
	for {
		got, n := c.at(s, i)
		if n == 0 || got != k && got != l {
			return i
		}
		i += n
	}
}

// white: \s*[\r\n]+|\s+(?!\S)|\s+ at a white space character.
func (c *classes) white(s string, from int) int {
	end, last, lines := from, from, from // the run's end, its last character, the end of its last line break
	for {
		k, n := c.at(s, end)
		if n == 0 || k != space && k != newline {
			break
		}
		last = end
		end += n
		if k == newline {
			lines = end
		}
	}
	switch {
	case lines > from:
		return lines
	case end == len(s) || last == from:
		return end
	}
	return last // the last one belongs to what follows
}

// digits is the end of a run of at most n numbers, the first of which ends at i.
func (c *classes) digits(s string, i, n int) int {
	for range n - 1 {
		k, size := c.at(s, i)
		if size == 0 || k != number {
			break
		}
		i += size
	}
	return i
}

// contraction is the size of (?i:'s|'t|'re|'ve|'m|'ll|'d) at i. The long s
// folds to s.
func contraction(s string, i int) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return 0
	}
	s = s[i+1:]
	switch s[0] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if len(s) > 1 && s[1]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if len(s) > 1 && s[1]|0x20 == 'l' {
			return 3
		}
	}
	if len(s) >= 2 && s[:2] == "ſ" {
		return 3
	}
	return 0
}

// gpt4Split is gpt4OneDigit and gpt4Triples. Every character belongs to a match.
type gpt4Split struct {
	*classes
	together int // digits
}

func (c *gpt4Split) Find(_ *machine, s string, i int) (start, end int) {
	if i >= len(s) {
		return -1, -1
	}
	if s[i] == '\'' {
		if n := contraction(s, i); n > 0 {
			return i, i + n
		}
	}
	k, n := c.at(s, i)
	switch k {
	case letter:
		return i, c.run(s, i+n, letter)
	case number:
		return i, c.digits(s, i+n, c.together)
	case newline:
		return i, c.white(s, i)
	}
	// other or space: one such character may lead a word
	next, m := c.at(s, i+n)
	if m > 0 && next == letter {
		return i, c.run(s, i+n+m, letter)
	}
	if k == other {
		return i, c.run(s, c.run(s, i, other), newline)
	}
	if s[i] == ' ' && m > 0 && next == other {
		return i, c.run(s, c.run(s, i+1, other), newline)
	}
	return i, c.white(s, i)
}

// o200kSplit is o200k and tekken. Every character belongs to a match.
type o200kSplit struct {
	*classes
	together     int // digits
	contractions bool
}

func (c *o200kSplit) Find(_ *machine, s string, i int) (start, end int) {
	k, n := c.at(s, i)
	if n == 0 {
		return -1, -1
	}
	// A word may be led by a character that is no letter, number or line break;
	// a mark may lead it or begin it.
	led := k == other || k == space || k == mark
	for _, lower := range [2]bool{true, false} {
		if led {
			if end := c.word(s, i+n, lower); end > 0 {
				return i, end
			}
		}
		if k != other && k != space {
			if end := c.word(s, i, lower); end > 0 {
				return i, end
			}
		}
	}
	switch k {
	case number:
		return i, c.digits(s, i+n, c.together)
	case newline:
		return i, c.white(s, i)
	case other:
		return i, c.symbols(s, i)
	}
	if s[i] == ' ' {
		if next, m := c.at(s, i+1); m > 0 && (next == other || next == mark) {
			return i, c.symbols(s, i+1)
		}
	}
	return i, c.white(s, i)
}

// symbols: [^\s\p{L}\p{N}]+[\r\n/]*
func (c *o200kSplit) symbols(s string, i int) int {
	i = c.run2(s, i, other, mark)
	for i < len(s) && (s[i] == '\r' || s[i] == '\n' || s[i] == '/') {
		i++
	}
	return i
}

// word matches a word without what leads it, and returns its end, or 0:
//
//	lower: [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+
//	else:  [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
func (c *o200kSplit) word(s string, i int, needLower bool) int {
	from, back := i, 0 // back: the end of the last character that both classes hold
	var k class
	for {
		var n int
		if k, n = c.at(s, i); n == 0 || k != upper && k != both && k != mark {
			if n == 0 {
				k = other
			}
			break
		}
		i += n
		if k != upper {
			back = i
		}
	}
	if needLower {
		switch {
		case k == lower:
			i = c.lowers(s, i)
		case back > 0:
			i = back // the first part gives back what follows, and that character
		default:
			return 0
		}
	} else if i == from {
		return 0
	} else {
		i = c.lowers(s, i)
	}
	if c.contractions {
		i += contraction(s, i)
	}
	return i
}

func (c *o200kSplit) lowers(s string, i int) int {
	for {
		k, n := c.at(s, i)
		if n == 0 || k != lower && k != both && k != mark {
			return i
		}
		i += n
	}
}

// digitSplit is deepseekDigits.
type digitSplit struct{ *classes }

func (c *digitSplit) Find(_ *machine, s string, i int) (start, end int) {
	for i < len(s) {
		k, n := c.at(s, i)
		if k == number {
			return i, c.digits(s, i+n, 3)
		}
		i += n
	}
	return -1, -1
}

// cjkSplit is deepseekCJK.
type cjkSplit struct{}

func (cjkSplit) Find(_ *machine, s string, i int) (start, end int) {
	start = -1
	for i < len(s) {
		if s[i] < utf8.RuneSelf {
			if start >= 0 {
				break
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		in := '一' <= r && r <= '龥' || 0x3040 <= r && r <= 0x30FF
		switch {
		case in && start < 0:
			start = i
		case !in && start >= 0:
			return start, i
		}
		i += n
	}
	if start < 0 {
		return -1, -1
	}
	return start, i
}

// deepseekSplit is deepseekWords. Numbers, control characters and the like
// belong to no match unless they lead a word.
type deepseekSplit struct{ *classes }

func (c *deepseekSplit) Find(_ *machine, s string, i int) (start, end int) {
	for i < len(s) {
		k, n := c.at(s, i)
		if end := c.match(s, i, k, n); end > 0 {
			return i, end
		}
		i += n
	}
	return -1, -1
}

func (c *deepseekSplit) match(s string, i int, k class, n int) int {
	next, m := c.at(s, i+n)
	switch k {
	case letter, mark:
		return c.run2(s, i, letter, mark)
	case newline:
		return c.white(s, i)
	case symbol:
		if s[i] < utf8.RuneSelf && m > 0 && isASCIILetter(s[i+1]) {
			i += 2
			for i < len(s) && isASCIILetter(s[i]) {
				i++
			}
			return i
		}
		return c.run(s, c.run(s, i, symbol), newline)
	}
	if m > 0 && (next == letter || next == mark) {
		return c.run2(s, i+n, letter, mark)
	}
	if k == other {
		return 0
	}
	if s[i] == ' ' && m > 0 && next == symbol {
		return c.run(s, c.run(s, i+1, symbol), newline)
	}
	return c.white(s, i)
}

func isASCIILetter(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }
