package jinja

import (
	"slices"
	"strconv"
)

// tuple is an expression, or several with commas between them.
func (p *parser) tuple() expr { return p.tupleOf(p.expr) }

func (p *parser) tupleOf(item func() expr) expr {
	first := item()
	if !p.is(tOp, ",") {
		return first
	}
	l := &listExpr{items: []expr{first}, tuple: true}
	for p.op(",") {
		if k := p.cur().kind; k == tEndBlock || k == tEndPrint || p.is(tOp, ")") {
			break
		}
		l.items = append(l.items, item())
	}
	return l
}

func (p *parser) expr() expr {
	if p.nest++; p.nest > maxNest {
		p.fail("nested too deep")
	}
	defer func() { p.nest-- }()
	x := p.or()
	for p.word("if") {
		c := &condExpr{cond: p.or(), then: x}
		if p.word("else") {
			c.otherwise = p.expr()
		}
		x = c
	}
	return x
}

func (p *parser) or() expr {
	x := p.and()
	for p.word("or") {
		x = &orExpr{x, p.and()}
	}
	return x
}

func (p *parser) and() expr {
	x := p.not()
	for p.word("and") {
		x = &andExpr{x, p.not()}
	}
	return x
}

func (p *parser) not() expr {
	if p.is(tName, "not") {
		if p.nest++; p.nest > maxNest {
			p.fail("nested too deep")
		}
		defer func() { p.nest-- }()
		p.pos++
		return &notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	first := p.sum()
	var c *compareExpr
	for {
		op := ""
		switch t := p.cur(); {
		case t.kind == tOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.val):
			op = t.val
			p.pos++
		case p.word("in"):
			op = "in"
		case t.kind == tName && t.val == "not" && p.toks[p.pos+1].kind == tName && p.toks[p.pos+1].val == "in":
			op = "not in"
			p.pos += 2
		default:
			if c == nil {
				return first
			}
			return c
		}
		if c == nil {
			c = &compareExpr{first: first}
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
}

func (p *parser) sum() expr {
	return p.binary([]string{"+", "-"}, func() expr {
		return p.binary([]string{"~"}, func() expr {
			return p.binary([]string{"*", "/", "//", "%"}, func() expr {
				return p.binary([]string{"**"}, func() expr { return p.unary(true) })
			})
		})
	})
}

func (p *parser) binary(ops []string, operand func() expr) expr {
	x := operand()
	for p.cur().kind == tOp && slices.Contains(ops, p.cur().val) {
		op := p.next()
		right := operand()
		if s, ok := x.(*sumExpr); ok && op.val == "+" {
			s.parts = append(s.parts, right)
		} else if op.val == "+" {
			x = &sumExpr{[]expr{x, right}, op.line}
		} else {
			x = &binaryExpr{op.val, x, right, op.line}
		}
	}
	return x
}

func (p *parser) unary(withFilter bool) expr {
	if p.nest++; p.nest > maxNest {
		p.fail("nested too deep")
	}
	defer func() { p.nest-- }()
	var x expr
	switch {
	case p.op("-"):
		x = &negExpr{p.unary(false)}
	case p.op("+"):
		x = p.unary(false)
	default:
		x = p.primary()
	}
	x = p.postfix(x)
	if withFilter {
		x = p.filters(x)
	}
	return x
}

func (p *parser) primary() expr {
	switch t := p.next(); t.kind {
	case tName:
		switch t.val {
		case "true", "True":
			return constExpr{true}
		case "false", "False":
			return constExpr{false}
		case "none", "None":
			return constExpr{nil}
		}
		return &nameExpr{t.val}
	case tString:
		s := t.val
		for p.cur().kind == tString {
			s += p.next().val
		}
		return constExpr{s}
	case tInt:
		n, err := strconv.ParseInt(t.val, 0, 64)
		if err != nil {
			p.fail("number is too large")
		}
		return constExpr{n}
	case tFloat:
		f, _ := strconv.ParseFloat(t.val, 64) // out of range is infinite
		return constExpr{f}
	case tOp:
		switch t.val {
		case "(":
			if p.op(")") {
				return &listExpr{tuple: true}
			}
			x := p.tuple()
			p.expectOp(")")
			return x
		case "[":
			l := &listExpr{}
			for !p.op("]") {
				l.items = append(l.items, p.expr())
				if !p.is(tOp, "]") {
					p.expectOp(",")
				}
			}
			return l
		case "{":
			d := &dictExpr{}
			for !p.op("}") {
				d.keys = append(d.keys, p.expr())
				p.expectOp(":")
				d.vals = append(d.vals, p.expr())
				if !p.is(tOp, "}") {
					p.expectOp(",")
				}
			}
			return d
		}
	}
	p.pos--
	p.fail("unexpected " + p.show())
	return nil
}

func (p *parser) postfix(x expr) expr {
	for {
		line := p.cur().line
		switch {
		case p.op("."):
			if p.cur().kind == tInt {
				n, _ := strconv.ParseInt(p.next().val, 10, 64)
				x = &itemExpr{x, constExpr{n}, line}
				continue
			}
			x = &attrExpr{x, p.name(), line}
		case p.op("["):
			x = p.subscript(x, line)
		case p.is(tOp, "("):
			x = &callExpr{fn: x, call: p.args(), line: line}
		default:
			return x
		}
	}
}

func (p *parser) subscript(x expr, line int) expr {
	var part [3]expr
	n, colon := 0, false
	for !p.op("]") {
		if p.op(":") {
			colon = true
			if n++; n > 2 {
				p.fail("bad slice")
			}
			continue
		}
		if part[n] != nil {
			p.fail("want ], not " + p.show())
		}
		part[n] = p.expr()
	}
	if colon {
		return &sliceExpr{x, part[0], part[1], part[2], line}
	}
	if part[0] == nil {
		p.fail("want an index")
	}
	return &itemExpr{x, part[0], line}
}

// args parses (a, b, c=d).
func (p *parser) args() call {
	var c call
	p.expectOp("(")
	for !p.op(")") {
		if p.op("*") {
			c.star = p.expr()
		} else if p.op("**") {
			c.stars = p.expr()
		} else if p.cur().kind == tName && p.toks[p.pos+1].kind == tOp && p.toks[p.pos+1].val == "=" {
			c.kwNames = append(c.kwNames, p.name())
			p.pos++
			c.kwVals = append(c.kwVals, p.expr())
		} else {
			c.args = append(c.args, p.expr())
		}
		if !p.is(tOp, ")") {
			p.expectOp(",")
		}
	}
	return c
}

// filters parses what may follow an operand: |filter, is test, a call.
func (p *parser) filters(x expr) expr {
	for {
		line := p.cur().line
		switch {
		case p.op("|"):
			x = p.filter(x)
		case p.word("is"):
			x = p.test(x, line)
		case p.is(tOp, "("):
			x = &callExpr{fn: x, call: p.args(), line: line}
		default:
			return x
		}
	}
}

// filter parses a filter's name and arguments.
func (p *parser) filter(x expr) expr {
	line := p.cur().line
	name := p.name()
	f := &filterExpr{x: x, name: name, fn: filterTable(name), line: line}
	if f.fn == nil {
		p.pos--
		p.fail("filter " + name + " is not supported")
	}
	if p.is(tOp, "(") {
		f.call = p.args()
	}
	return f
}

func (p *parser) test(x expr, line int) expr {
	negated := p.word("not")
	name := p.name()
	f := testTable(name)
	if f == nil {
		p.fail("test " + name + " is not supported")
	}
	t := &testExpr{x: x, name: name, fn: f, line: line}
	switch c := p.cur(); {
	case p.is(tOp, "("):
		t.args = p.args().args
	case c.kind == tString || c.kind == tInt || c.kind == tFloat || c.kind == tOp && (c.val == "[" || c.val == "{"),
		c.kind == tName && !slices.Contains([]string{"else", "or", "and", "if", "is", "in", "not"}, c.val):
		t.args = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &notExpr{t}
	}
	return t
}
