package jinja

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

type kind uint8

const (
	tEOF      kind = iota
	tText          // text between tags
	tPrint         // {{
	tEndPrint      // }}
	tBlock         // {%
	tEndBlock      // %}
	tName
	tString
	tInt
	tFloat
	tOp
)

type token struct {
	kind kind
	val  string
	line int
}

// operators, longest first.
var operators = [...]string{"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "(", ")", "[", "]", "{", "}", ",", ":", ".", "|", "=", "<", ">"}

// lexer follows jinja2/lexer.py with trim_blocks and lstrip_blocks on.
type lexer struct {
	src  string
	pos  int
	line int
	toks []token
	// lineStart: what was read last ends with a line break
	lineStart bool
}

func lex(src string) []token {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	src = strings.TrimSuffix(src, "\n") // keep_trailing_newline is off
	l := &lexer{src: src, line: 1, lineStart: true}
	for l.pos < len(l.src) {
		l.text()
	}
	l.add(tEOF, "")
	return l.toks
}

func (l *lexer) add(k kind, val string) { l.toks = append(l.toks, token{k, val, l.line}) }

func (l *lexer) fail(msg string) { panic(&Error{Line: l.line, Msg: msg}) }

func (l *lexer) advance(n int) {
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n
}

// text reads up to the next tag and that tag.
func (l *lexer) text() {
	at := nextTag(l.src[l.pos:])
	if at < 0 {
		l.add(tText, l.src[l.pos:])
		l.advance(len(l.src) - l.pos)
		return
	}
	text := l.src[l.pos : l.pos+at]
	open := l.src[l.pos+at : l.pos+at+2]
	sign := byte(0)
	if i := l.pos + at + 2; i < len(l.src) && (l.src[i] == '-' || l.src[i] == '+') {
		sign = l.src[i]
	}
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && open != "{{":
		start := strings.LastIndexByte(text, '\n') + 1
		if (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			text = text[:start]
		}
	}
	if text != "" {
		l.add(tText, text)
	}
	l.advance(at + 2)
	if sign != 0 {
		l.advance(1)
	}
	switch open {
	case "{#":
		end := strings.Index(l.src[l.pos:], "#}")
		if end < 0 {
			l.fail("comment is never closed")
		}
		sign := byte(0)
		if end > 0 {
			sign = l.src[l.pos+end-1]
		}
		l.advance(end + 2)
		l.afterTag(sign, true)
	case "{{":
		l.add(tPrint, "")
		l.code("}}")
		l.add(tEndPrint, "")
	case "{%":
		if l.raw() {
			return
		}
		l.add(tBlock, "")
		l.code("%}")
		l.add(tEndBlock, "")
	}
}

// nextTag finds the next {{, {% or {#.
func nextTag(s string) int {
	for i := 0; ; {
		n := strings.IndexByte(s[i:], '{')
		if n < 0 || i+n+1 >= len(s) {
			return -1
		}
		i += n
		switch s[i+1] {
		case '{', '%', '#':
			return i
		}
		i++
	}
}

// afterTag handles the white space behind a tag.
func (l *lexer) afterTag(sign byte, trim bool) {
	start := l.pos
	rest := l.src[l.pos:]
	switch {
	case sign == '-':
		l.advance(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
	case sign != '+' && trim && strings.HasPrefix(rest, "\n"):
		l.advance(1)
	}
	l.lineStart = l.pos > start && l.src[l.pos-1] == '\n'
}

// raw reads {% raw %} ... {% endraw %}; the opening {% is behind.
func (l *lexer) raw() bool {
	rest, ok := strings.CutPrefix(strings.TrimLeftFunc(l.src[l.pos:], isSpace), "raw")
	if !ok {
		return false
	}
	rest = strings.TrimLeftFunc(rest, isSpace)
	sign := byte(0)
	if strings.HasPrefix(rest, "-%}") {
		sign, rest = '-', rest[1:]
	}
	if !strings.HasPrefix(rest, "%}") {
		return false
	}
	l.advance(len(l.src) - l.pos - len(rest) + 2)
	l.afterTag(sign, false)
	for i := 0; ; {
		n := strings.Index(l.src[l.pos+i:], "{%")
		if n < 0 {
			l.fail("raw is never closed")
		}
		i += n
		before, after, ok := endRaw(l.src[l.pos+i+2:])
		if !ok {
			i += 2
			continue
		}
		text := l.src[l.pos : l.pos+i]
		start := strings.LastIndexByte(text, '\n') + 1
		if before == '-' {
			text = strings.TrimRightFunc(text, isSpace)
		} else if before != '+' && (start > 0 || l.lineStart) && strings.TrimLeftFunc(text[start:], isSpace) == "" {
			text = text[:start]
		}
		l.add(tText, text)
		tag := l.src[l.pos+i:]
		l.advance(i + strings.Index(tag, "%}") + 2)
		l.afterTag(after, true)
		return true
	}
}

// endRaw reads what follows {% of an endraw tag: its signs.
func endRaw(s string) (before, after byte, ok bool) {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		before, s = s[0], s[1:]
	}
	s, ok = strings.CutPrefix(strings.TrimLeftFunc(s, isSpace), "endraw")
	s = strings.TrimLeftFunc(s, isSpace)
	if s != "" && (s[0] == '-' || s[0] == '+') {
		after, s = s[0], s[1:]
	}
	return before, after, ok && strings.HasPrefix(s, "%}")
}

// code reads the inside of a tag up to its end.
func (l *lexer) code(end string) {
	depth := 0 // of brackets: }} may close two of them
	for {
		rest := l.src[l.pos:]
		if n := len(rest) - len(strings.TrimLeftFunc(rest, isSpace)); n > 0 {
			l.advance(n)
			continue
		}
		if rest == "" {
			l.fail("tag is never closed")
		}
		if depth == 0 {
			if strings.HasPrefix(rest, end) {
				l.advance(len(end))
				l.afterTag(0, end == "%}")
				return
			}
			if (rest[0] == '-' || rest[0] == '+' && end == "%}") && strings.HasPrefix(rest[1:], end) {
				l.advance(1 + len(end))
				l.afterTag(rest[0], end == "%}")
				return
			}
		}
		switch c := rest[0]; {
		case isNameStart(c):
			n := 1
			for n < len(rest) && (isNameStart(rest[n]) || isDigit(rest[n])) {
				n++
			}
			l.add(tName, rest[:n])
			l.advance(n)
		case isDigit(c):
			l.number(rest)
		case c == '"' || c == '\'':
			l.str(rest)
		default:
			depth += l.operator(rest)
		}
	}
}

func (l *lexer) operator(rest string) (depth int) {
	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			l.add(tOp, op)
			l.advance(len(op))
			switch op {
			case "(", "[", "{":
				return 1
			case ")", "]", "}":
				return -1
			}
			return 0
		}
	}
	l.fail("unexpected character " + string([]rune(rest)[:1]))
	return 0
}

func (l *lexer) number(rest string) {
	n, k := 0, tInt
	for n < len(rest) && (isDigit(rest[n]) || rest[n] == '_' && n+1 < len(rest) && isDigit(rest[n+1])) {
		n++
	}
	if n == 1 && rest[0] == '0' && len(rest) > 2 && strings.IndexByte("xXoObB", rest[1]) >= 0 {
		n = 2
		for n < len(rest) && (isNameStart(rest[n]) || isDigit(rest[n])) {
			n++
		}
		l.add(k, rest[:n])
		l.advance(n)
		return
	}
	if n+1 < len(rest) && rest[n] == '.' && isDigit(rest[n+1]) {
		k = tFloat
		for n++; n < len(rest) && isDigit(rest[n]); n++ {
		}
	}
	if exp := exponent(rest[n:]); exp > 0 {
		n, k = n+exp, tFloat
	}
	if n < len(rest) && isNameStart(rest[n]) {
		l.fail("number format is not supported")
	}
	l.add(k, rest[:n])
	l.advance(n)
}

// exponent is the length of an exponent such as e-5 at the start of s, or 0.
func exponent(s string) int {
	if s == "" || s[0]|0x20 != 'e' {
		return 0
	}
	n := 1
	if n < len(s) && (s[n] == '+' || s[n] == '-') {
		n++
	}
	first := n
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	if n == first {
		return 0
	}
	return n
}

func (l *lexer) str(rest string) {
	quote := rest[0]
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; c {
		case quote:
			l.add(tString, b.String())
			l.advance(i + 1)
			return
		case '\\':
			i++
			if i == len(rest) {
				break
			}
			if n := unescape(&b, rest[i:]); n > 0 {
				i += n - 1
			} else {
				l.fail("string escape is not supported")
			}
		default:
			b.WriteByte(c)
		}
	}
	l.fail("string is never closed")
}

// unescape writes what Python reads behind a backslash and returns how much of
// s that was, 0 if it is not known.
func unescape(b *strings.Builder, s string) int {
	const from, to = `ntrabfv\'"`, "\n\t\r\a\b\f\v\\'\""
	if i := strings.IndexByte(from, s[0]); i >= 0 {
		b.WriteByte(to[i])
		return 1
	}
	digits := 0
	switch s[0] {
	case '\n':
		return 1
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	case '0', '1', '2', '3', '4', '5', '6', '7':
		n := 1
		for n < min(3, len(s)) && '0' <= s[n] && s[n] <= '7' {
			n++
		}
		r, _ := strconv.ParseUint(s[:n], 8, 16)
		b.WriteRune(rune(r))
		return n
	case 'N':
		return 0
	default: // Python keeps the backslash
		b.WriteByte('\\')
		b.WriteByte(s[0])
		return 1
	}
	if len(s) <= digits {
		return 0
	}
	var r rune
	for _, c := range s[1 : 1+digits] {
		d := strings.IndexRune("0123456789abcdef", c|0x20)
		if d < 0 {
			return 0
		}
		r = r<<4 | rune(d)
	}
	if !utf8.ValidRune(r) {
		return 0
	}
	b.WriteRune(r)
	return 1 + digits
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isNameStart(c byte) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
