package pattern

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/ucd"
)

// node of the syntax tree.
type node struct {
	kind     nodeKind
	subs     []*node
	set      *set
	min, max int
	mode     byte // of a repeat: 0 greedy, '?' lazy, '+' possessive
	assert   int
	negative bool
}

type nodeKind uint8

const (
	kindSet nodeKind = iota
	kindSequence
	kindChoice
	kindRepeat
	kindAhead
	kindAtomic
	kindAssert
)

// unlimited is the upper bound of * and +.
const unlimited = 1 << 30

// Limits on what Compile takes.
const (
	maxSource  = 1 << 14 // bytes
	maxProgram = 1 << 14 // instructions
	maxDepth   = 100     // nested groups
)

type parser struct {
	src   string
	at    int
	depth int
	fold  bool
}

// Compile parses a pattern. The error names what is not supported and where.
func Compile(src string) (*Regexp, error) {
	if len(src) > maxSource {
		return nil, fmt.Errorf("pattern of %d bytes is too long, at most %d", len(src), maxSource)
	}
	p := &parser{src: src}
	n, err := p.choice()
	if err == nil && p.at < len(src) {
		err = p.errorf("unexpected %q", src[p.at:p.at+1])
	}
	if err != nil {
		return nil, err
	}
	if n.minimum() == 0 {
		return nil, fmt.Errorf("pattern %q can match nothing, which is not supported", src)
	}
	re := &Regexp{}
	if err := re.emit(n); err != nil {
		return nil, fmt.Errorf("pattern %q: %w", src, err)
	}
	re.add(inst{op: opMatch})
	for c := range re.first {
		re.first[c] = n.begins(rune(c))
	}
	return re, nil
}

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("pattern %q at byte %d: %s", p.src, p.at, fmt.Sprintf(format, args...))
}

func (p *parser) has(s string) bool { return strings.HasPrefix(p.src[p.at:], s) }

func (p *parser) take(s string) bool {
	if p.has(s) {
		p.at += len(s)
		return true
	}
	return false
}

func (p *parser) next() (rune, bool) {
	if p.at >= len(p.src) {
		return 0, false
	}
	r, n := utf8.DecodeRuneInString(p.src[p.at:])
	p.at += n
	return r, true
}

func (p *parser) choice() (*node, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, p.errorf("groups are nested too deep")
	}
	defer func() { p.depth-- }()
	n := &node{kind: kindChoice}
	for {
		s, err := p.sequence()
		if err != nil {
			return nil, err
		}
		n.subs = append(n.subs, s)
		if !p.take("|") {
			return n, nil
		}
	}
}

func (p *parser) sequence() (*node, error) {
	n := &node{kind: kindSequence}
	for p.at < len(p.src) && !p.has("|") && !p.has(")") {
		a, err := p.atom()
		if err != nil {
			return nil, err
		}
		if a, err = p.repeats(a); err != nil {
			return nil, err
		}
		n.subs = append(n.subs, a)
	}
	return n, nil
}

func (p *parser) repeats(a *node) (*node, error) {
	for {
		r := &node{kind: kindRepeat, subs: []*node{a}, max: unlimited}
		interval := false
		switch {
		case p.take("*"):
		case p.take("+"):
			r.min = 1
		case p.take("?"):
			r.max = 1
		case p.has("{"):
			ok, err := p.interval(r)
			if err != nil {
				return nil, err
			}
			if !ok {
				return a, nil
			}
			interval = true
		default:
			return a, nil
		}
		if a.kind == kindAssert || a.kind == kindAhead {
			return nil, p.errorf("a repeated assertion is not supported")
		}
		if r.max > 1 && a.minimum() == 0 {
			return nil, p.errorf("repeating what can match nothing is not supported")
		}
		switch {
		case interval && p.has("?") && r.min == r.max:
			return nil, p.errorf("{n}? is not supported")
		case p.take("?"):
			r.mode = '?'
		case !interval && p.take("+"): // after {n,m} a + repeats, in Ruby's syntax
			r.mode = '+'
		}
		a = r
	}
}

// interval reads {n}, {n,}, {,m} or {n,m}; a brace that begins none stands for
// itself.
func (p *parser) interval(r *node) (bool, error) {
	end := strings.IndexByte(p.src[p.at:], '}')
	if end < 0 {
		return false, p.errorf("a lone { is not supported")
	}
	low, high, comma := strings.Cut(p.src[p.at+1:p.at+end], ",")
	if !comma {
		high = low
	}
	number := func(s string, otherwise int) (int, bool) {
		if s == "" {
			return otherwise, comma
		}
		v, err := strconv.ParseUint(s, 10, 16)
		return int(v), err == nil
	}
	var ok1, ok2 bool
	r.min, ok1 = number(low, 0)
	r.max, ok2 = number(high, unlimited)
	if !ok1 || !ok2 || low == "" && high == "" || r.min > r.max || r.max == 0 {
		return false, p.errorf("interval %q is not supported", p.src[p.at:p.at+end+1])
	}
	p.at += end + 1
	return true, nil
}

func (p *parser) group(kind nodeKind, negative bool) (*node, error) {
	fold := p.fold
	n, err := p.choice()
	p.fold = fold
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, p.errorf("a group is not closed")
	}
	if kind == kindChoice {
		return n, nil
	}
	return &node{kind: kind, subs: []*node{n}, negative: negative}, nil
}

func (p *parser) atom() (*node, error) {
	switch {
	case p.take("(?:"):
		return p.group(kindChoice, false)
	case p.take("(?i:"):
		fold := p.fold
		p.fold = true
		n, err := p.group(kindChoice, false)
		p.fold = fold
		return n, err
	case p.take("(?="):
		return p.group(kindAhead, false)
	case p.take("(?!"):
		return p.group(kindAhead, true)
	case p.take("(?>"):
		return p.group(kindAtomic, false)
	case p.has("(?"):
		return nil, p.errorf("group %q is not supported", p.src[p.at:min(len(p.src), p.at+4)])
	case p.take("("):
		return p.group(kindChoice, false)
	case p.take("["):
		return p.class()
	case p.take("^"):
		return &node{kind: kindAssert, assert: beginLine}, nil
	case p.take("$"):
		return &node{kind: kindAssert, assert: endLine}, nil
	case p.take("."):
		s := &set{items: []item{{lo: '\n', hi: '\n'}}, not: true}
		return &node{set: s.ready()}, nil
	case p.has("*") || p.has("+") || p.has("?") || p.has("{"):
		return nil, p.errorf("nothing to repeat")
	case p.has(`\`):
		for i, a := range []string{beginText: `\A`, endText: `\z`, endTextOrLine: `\Z`, wordEdge: `\b`, noWordEdge: `\B`} {
			if a != "" && p.take(a) {
				return &node{kind: kindAssert, assert: i}, nil
			}
		}
		i, err := p.escape()
		if err != nil {
			return nil, err
		}
		return p.one(i)
	}
	r, _ := p.next()
	return p.one(item{lo: r, hi: r})
}

// one is a single item as a node.
func (p *parser) one(i item) (*node, error) {
	s := &set{items: []item{i}}
	if err := p.folded(s); err != nil {
		return nil, err
	}
	return &node{set: s.ready()}, nil
}

// folded adds the other cases of ASCII letters under (?i:..).
func (p *parser) folded(s *set) error {
	if !p.fold {
		return nil
	}
	for _, i := range s.items {
		if i.kind == inRange && i.hi >= utf8.RuneSelf {
			return p.errorf("ignoring case outside ASCII is not supported")
		}
		if i.kind == inMask {
			return p.errorf("ignoring the case of a property is not supported")
		}
		if i.kind != inRange {
			continue
		}
		for r := max(i.lo, 'A'); r <= min(i.hi, 'z'); r++ {
			lower := r | 0x20
			if lower < 'a' || 'z' < lower {
				continue
			}
			s.items = append(s.items, item{lo: lower, hi: lower}, item{lo: lower ^ 0x20, hi: lower ^ 0x20})
			switch lower {
			case 's':
				s.items = append(s.items, item{lo: 'ſ', hi: 'ſ'})
			case 'k':
				s.items = append(s.items, item{lo: 0x212A, hi: 0x212A})
			}
		}
	}
	return nil
}

func (p *parser) class() (*node, error) {
	s := &set{not: p.take("^")}
	if p.has("]") {
		return nil, p.errorf("an empty class is not supported")
	}
	for !p.take("]") {
		if p.has("[") || p.has("&&") {
			return nil, p.errorf("nested classes are not supported")
		}
		i, err := p.member()
		if err != nil {
			return nil, err
		}
		if p.has("-") && !p.has("-]") {
			p.at++
			to, err := p.member()
			if err != nil {
				return nil, err
			}
			if i.kind != inRange || to.kind != inRange || i.not || to.not || to.lo < i.lo {
				return nil, p.errorf("bad range in a class")
			}
			i.hi = to.hi
		}
		s.items = append(s.items, i)
	}
	if err := p.folded(s); err != nil {
		return nil, err
	}
	return &node{set: s.ready()}, nil
}

func (p *parser) member() (item, error) {
	if p.has(`\`) {
		return p.escape()
	}
	r, ok := p.next()
	if !ok {
		return item{}, p.errorf("a class is not closed")
	}
	return item{lo: r, hi: r}, nil
}

// escape reads a backslash and what follows it.
func (p *parser) escape() (item, error) {
	p.at++
	r, ok := p.next()
	if !ok {
		return item{}, p.errorf("the pattern ends in a backslash")
	}
	if i := strings.IndexByte("nrtfvae", byte(r)); r < utf8.RuneSelf && i >= 0 {
		c := rune("\n\r\t\f\v\a\x1b"[i])
		return item{lo: c, hi: c}, nil
	}
	switch r {
	case 's', 'S':
		return item{kind: inSpace, not: r == 'S'}, nil
	case 'w', 'W':
		return item{kind: inWord, not: r == 'W'}, nil
	case 'd', 'D':
		return item{kind: inMask, mask: ucd.MaskOf("Nd"), not: r == 'D'}, nil
	case 'p', 'P':
		return p.property(r == 'P')
	case 'x', 'u':
		return p.code(r)
	}
	if r >= utf8.RuneSelf || '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z' {
		return item{}, p.errorf("escape \\%c is not supported", r)
	}
	return item{lo: r, hi: r}, nil
}

func (p *parser) property(not bool) (item, error) {
	end := strings.IndexByte(p.src[p.at:], '}')
	if end < 0 || !p.take("{") {
		return item{}, p.errorf("\\p without braces is not supported")
	}
	name := p.src[p.at : p.at+end-1]
	if inner, ok := strings.CutPrefix(name, "^"); ok {
		name, not = inner, !not
	}
	mask := ucd.MaskOf(name)
	if mask == 0 {
		return item{}, p.errorf("property %q is not supported", name)
	}
	p.at += end
	return item{kind: inMask, mask: mask, not: not}, nil
}

func (p *parser) code(kind rune) (item, error) {
	digits := map[rune]int{'x': 2, 'u': 4}[kind]
	s := p.src[p.at:min(len(p.src), p.at+digits)]
	if kind == 'x' && p.has("{") {
		end := strings.IndexByte(p.src[p.at:], '}')
		if end < 0 {
			return item{}, p.errorf("bad character code")
		}
		s = p.src[p.at+1 : p.at+end]
		digits = end + 1
	}
	v, err := strconv.ParseUint(s, 16, 21)
	if err != nil || !utf8.ValidRune(rune(v)) || digits <= 4 && len(s) != digits && !p.has("{") || kind == 'x' && !p.has("{") && v >= utf8.RuneSelf {
		return item{}, p.errorf("character code %q is not supported", s)
	}
	p.at += digits
	return item{lo: rune(v), hi: rune(v)}, nil
}
