package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// parser follows jinja2/parser.py.
type parser struct {
	toks  []token
	pos   int
	nest  int
	loops int // for loops around this place, in this macro
}

func (p *parser) cur() token { return p.toks[p.pos] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	if t.kind != tEOF {
		p.pos++
	}
	return t
}

func (p *parser) fail(msg string) { panic(&Error{Line: p.cur().line, Msg: msg}) }

func (p *parser) is(k kind, val string) bool {
	t := p.cur()
	return t.kind == k && t.val == val
}

func (p *parser) accept(k kind, val string) bool {
	if p.is(k, val) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) op(val string) bool   { return p.accept(tOp, val) }
func (p *parser) word(val string) bool { return p.accept(tName, val) }

func (p *parser) expectOp(val string) {
	if !p.op(val) {
		p.fail("want " + val + ", not " + p.show())
	}
}

func (p *parser) show() string {
	if p.cur().kind == tEOF {
		return "the template's end"
	}
	return strconv.Quote(p.cur().val)
}

func (p *parser) name() string {
	if p.cur().kind != tName {
		p.fail("want a name, not " + p.show())
	}
	return p.next().val
}

func (p *parser) endBlock() {
	if p.cur().kind != tEndBlock {
		p.fail("want the tag's end, not " + p.show())
	}
	p.pos++
}

// body parses up to a block tag named in until, and leaves that name as the
// current token; with no names, to the end.
func (p *parser) body(until ...string) []stmt {
	if p.nest++; p.nest > maxNest {
		p.fail("nested too deep")
	}
	defer func() { p.nest-- }()
	var out []stmt
	for {
		switch t := p.next(); t.kind {
		case tEOF:
			if len(until) > 0 {
				p.fail("want " + strings.Join(until, " or ") + " before the template's end")
			}
			return out
		case tText:
			out = append(out, textStmt(t.val))
		case tPrint:
			out = append(out, &printStmt{p.tuple(), t.line})
			if p.next().kind != tEndPrint {
				p.pos--
				p.fail("want the tag's end, not " + p.show())
			}
		case tBlock:
			if p.cur().kind == tName && slices.Contains(until, p.cur().val) {
				return out
			}
			out = append(out, p.statement())
		default:
			p.pos--
			p.fail("unexpected " + p.show())
		}
	}
}

func (p *parser) statement() stmt {
	line := p.cur().line
	switch name := p.name(); name {
	case "if":
		return p.ifStmt(line)
	case "for":
		return p.forStmt(line)
	case "set":
		return p.setStmt(line)
	case "macro":
		return p.macroStmt()
	case "break", "continue":
		if p.loops == 0 {
			p.fail(name + " outside a loop")
		}
		p.endBlock()
		if name == "break" {
			return jump(ctlBreak)
		}
		return jump(ctlContinue)
	case "generation":
		p.endBlock()
		b := p.body("endgeneration")
		p.pos++
		p.endBlock()
		return block(b)
	default:
		p.fail("tag " + name + " is not supported")
		return nil
	}
}

func (p *parser) ifStmt(line int) stmt {
	s := &ifStmt{line: line}
	s.cond = p.tuple()
	p.endBlock()
	s.then = p.body("elif", "else", "endif")
	switch p.next().val {
	case "elif":
		s.otherwise = []stmt{p.ifStmt(p.cur().line)}
		return s // the inner one took endif
	case "else":
		p.endBlock()
		s.otherwise = p.body("endif")
		p.pos++
	}
	p.endBlock()
	return s
}

func (p *parser) forStmt(line int) stmt {
	s := &forStmt{line: line, targets: []string{p.name()}}
	for p.op(",") {
		if p.cur().kind == tName && p.cur().val == "in" {
			break
		}
		s.targets = append(s.targets, p.name())
	}
	if !p.word("in") {
		p.fail("want in, not " + p.show())
	}
	s.iter = p.or() // an if behind it filters
	if p.word("if") {
		s.cond = p.expr()
	}
	if p.is(tName, "recursive") {
		p.fail("recursive loops are not supported")
	}
	p.endBlock()
	p.loops++
	s.body = p.body("else", "endfor")
	p.loops--
	if p.next().val == "else" {
		p.endBlock()
		s.otherwise = p.body("endfor")
		p.pos++
	}
	p.endBlock()
	return s
}

func (p *parser) setStmt(line int) stmt {
	s := &setStmt{line: line, targets: []string{p.name()}}
	if p.op(".") {
		s.attr = p.name()
	}
	for s.attr == "" && p.op(",") {
		s.targets = append(s.targets, p.name())
	}
	if p.op("=") {
		s.val = p.tuple()
		p.endBlock()
		return s
	}
	if len(s.targets) > 1 {
		p.fail("want =, not " + p.show())
	}
	capture := &captureExpr{}
	s.val = capture
	if p.is(tOp, "|") {
		s.val = p.filters(capture)
	}
	p.endBlock()
	capture.body = p.body("endset")
	p.pos++
	p.endBlock()
	return s
}

func (p *parser) macroStmt() stmt {
	s := &macroStmt{name: p.name()}
	p.expectOp("(")
	for !p.op(")") {
		s.params = append(s.params, p.name())
		var def expr
		if p.op("=") {
			def = p.expr()
		}
		s.defaults = append(s.defaults, def)
		if !p.is(tOp, ")") {
			p.expectOp(",")
		}
	}
	p.endBlock()
	loops := p.loops
	p.loops = 0
	s.body = p.body("endmacro")
	p.loops = loops
	p.pos++
	p.endBlock()
	return s
}
