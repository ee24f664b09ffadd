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
	case "generation": // a call block to transformers
		return &scopeStmt{body: p.closed("endgeneration")}
	case "block":
		if p.nest > 1 {
			p.fail("block inside another tag is not supported")
		}
		p.name()
		return &scopeStmt{body: p.closed("endblock")}
	case "call":
		return p.callStmt(line)
	case "filter":
		capture := &captureExpr{}
		x := p.filterChain(capture)
		capture.body = p.tagBody("endfilter")
		return &printStmt{x, line}
	case "with":
		s := &scopeStmt{}
		for p.cur().kind != tEndBlock {
			if len(s.sets) > 0 {
				p.expectOp(",")
			}
			set := &setStmt{line: line, target: p.target()}
			p.expectOp("=")
			set.val = p.expr()
			s.sets = append(s.sets, set)
		}
		s.body = p.tagBody("endwith")
		return s
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

// tagBody parses a tag's end, what follows up to the end tag, and that.
func (p *parser) tagBody(end string) []stmt {
	p.endBlock()
	b := p.body(end)
	p.pos++
	if end == "endblock" && p.cur().kind == tName {
		p.pos++ // its name again
	}
	p.endBlock()
	return b
}

// closed is tagBody for a body that cannot leave a loop around it.
func (p *parser) closed(end string) []stmt {
	loops := p.loops
	p.loops = 0
	b := p.tagBody(end)
	p.loops = loops
	return b
}

// target parses what a loop or an assignment sets.
func (p *parser) target() target {
	if p.op("(") {
		t := p.targets()
		p.expectOp(")")
		return t
	}
	t := target{name: p.name()}
	switch t.name {
	case "true", "false", "none", "True", "False", "None", "loop":
		p.pos--
		p.fail("cannot assign to " + t.name)
	}
	return t
}

// targets parses one target or several with commas between them.
func (p *parser) targets() target {
	t := p.target()
	if !p.is(tOp, ",") {
		return t
	}
	l := target{list: []target{t}}
	for p.op(",") {
		if k := p.cur(); k.kind == tName && k.val == "in" || p.is(tOp, ")") {
			break
		}
		l.list = append(l.list, p.target())
	}
	return l
}

func (p *parser) forStmt(line int) stmt {
	s := &forStmt{line: line, target: p.targets()}
	if !p.word("in") {
		p.fail("want in, not " + p.show())
	}
	s.iter = p.tupleOf(p.or) // an if behind it filters
	if p.word("if") {
		s.cond = p.expr()
	}
	s.recursive = p.word("recursive")
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
	s := &setStmt{line: line, target: p.targets()}
	if s.target.list == nil && p.op(".") {
		s.target.attr = p.name()
	}
	if p.op("=") {
		s.val = p.tuple()
		p.endBlock()
		return s
	}
	if s.target.list != nil {
		p.fail("want =, not " + p.show())
	}
	capture := &captureExpr{}
	s.val = capture
	if p.op("|") {
		s.val = p.filterChain(capture)
	}
	capture.body = p.tagBody("endset")
	return s
}

// filterChain parses name(args)|name...
func (p *parser) filterChain(x expr) expr {
	x = p.filter(x)
	for p.op("|") {
		x = p.filter(x)
	}
	return x
}

func (p *parser) macroStmt() stmt {
	s := &macroStmt{name: p.name()}
	p.params(s)
	p.macroBody(s, "endmacro")
	return s
}

// params parses (a, b=1).
func (p *parser) params(s *macroStmt) {
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
}

func (p *parser) macroBody(s *macroStmt, end string) {
	from := p.pos
	s.body = p.closed(end)
	for _, t := range p.toks[from:p.pos] {
		if t.kind == tName {
			s.caller = s.caller || t.val == "caller"
			s.varargs = s.varargs || t.val == "varargs"
			s.kwargs = s.kwargs || t.val == "kwargs"
		}
	}
}

// callStmt parses {% call(params) macro(args) %}.
func (p *parser) callStmt(line int) stmt {
	body := &macroStmt{name: "caller"}
	if p.is(tOp, "(") {
		p.params(body)
	}
	fn, ok := p.expr().(*callExpr)
	if !ok {
		p.fail("call wants a call")
	}
	fn.line = line
	p.macroBody(body, "endcall")
	return &callStmt{fn, body}
}
