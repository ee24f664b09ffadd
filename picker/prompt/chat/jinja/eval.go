package jinja

import "time"

// env is the state of one rendering.
type env struct {
	out   []byte
	frame *frame
	now   time.Time
	steps int
	nest  int
}

// frame is a scope: the template's, a loop body's or a macro's.
type frame struct {
	vars   []Var
	parent *frame
}

func newFrame(parent *frame) *frame { return &frame{make([]Var, 0, 6), parent} }

func (f *frame) set(name string, v any) {
	for i := range f.vars {
		if f.vars[i].Name == name {
			f.vars[i].Value = v
			return
		}
	}
	f.vars = append(f.vars, Var{name, v})
}

func (e *env) lookup(name string) any {
	for f := e.frame; f != nil; f = f.parent {
		for i := range f.vars {
			if f.vars[i].Name == name {
				return f.vars[i].Value
			}
		}
	}
	if fn, ok := globalTable(name); ok {
		return fn
	}
	return Undefined{name}
}

type (
	expr interface{ eval(e *env) any }
	stmt interface{ exec(e *env) control }
)

// control says how a statement ended.
type control uint8

const (
	ctlNext control = iota
	ctlBreak
	ctlContinue
)

// at puts a line number on an error that has none yet.
func at(line int) {
	switch r := recover().(type) {
	case nil:
	case *Error:
		if r.Line == 0 {
			r.Line = line
		}
		panic(r)
	default:
		panic(r)
	}
}

func (e *env) run(body []stmt) control {
	for _, s := range body {
		e.step()
		if len(e.out) > maxOutput {
			fail("rendered text is too long")
		}
		if c := s.exec(e); c != ctlNext {
			return c
		}
	}
	return ctlNext
}

func (e *env) step() {
	if e.steps++; e.steps > maxSteps {
		fail("template runs too long")
	}
}

// capture runs body and returns what it printed.
func (e *env) capture(body []stmt) string {
	start := len(e.out)
	e.run(body)
	s := string(e.out[start:])
	e.out = e.out[:start]
	return s
}

// Statements.
type (
	textStmt  string
	printStmt struct {
		x    expr
		line int
	}
	block  []stmt
	jump   control
	ifStmt struct {
		cond            expr
		then, otherwise []stmt
		line            int
	}
	forStmt struct {
		targets         []string
		iter, cond      expr
		body, otherwise []stmt
		line            int
	}
	setStmt struct {
		targets []string
		attr    string
		val     expr
		line    int
	}
	macroStmt struct {
		name     string
		params   []string
		defaults []expr
		body     []stmt
	}
	// macro is a macro with the scope it was defined in.
	macro struct {
		*macroStmt
		home *frame
	}
	captureExpr struct{ body []stmt }
)

func (s textStmt) exec(e *env) control {
	e.out = append(e.out, s...)
	return ctlNext
}

func (s *printStmt) exec(e *env) control {
	defer at(s.line)
	if sum, ok := s.x.(*sumExpr); ok {
		sum.print(e)
	} else {
		e.out = appendStr(e.out, s.x.eval(e))
	}
	return ctlNext
}

func (b block) exec(e *env) control { return e.run(b) }
func (j jump) exec(*env) control    { return control(j) }

func (s *ifStmt) exec(e *env) control {
	if s.test(e) {
		return e.run(s.then)
	}
	return e.run(s.otherwise)
}

func (s *ifStmt) test(e *env) bool {
	defer at(s.line)
	return truth(s.cond.eval(e))
}

func (s *forStmt) exec(e *env) control {
	list := s.list(e)
	if len(list) == 0 {
		return e.run(s.otherwise)
	}
	outer := e.frame
	defer func() { e.frame = outer }()
	l := &loop{items: list}
	for i, v := range list {
		e.step()
		l.i = i
		e.frame = newFrame(outer)
		s.bind(e.frame, v)
		e.frame.set("loop", l)
		if e.run(s.body) == ctlBreak {
			break
		}
	}
	return ctlNext
}

// list evaluates what the loop runs over, its filter applied.
func (s *forStmt) list(e *env) []any {
	defer at(s.line)
	list := items(s.iter.eval(e))
	if s.cond == nil {
		return list
	}
	outer := e.frame
	defer func() { e.frame = outer }()
	var kept []any
	for _, v := range list {
		e.frame = newFrame(outer)
		s.bind(e.frame, v)
		if truth(s.cond.eval(e)) {
			kept = append(kept, v)
		}
	}
	return kept
}

func (s *forStmt) bind(f *frame, v any) {
	if len(s.targets) == 1 {
		f.set(s.targets[0], v)
		return
	}
	unpack(s.targets, v, f.set)
}

func unpack(targets []string, v any, set func(string, any)) {
	parts := items(v)
	if len(parts) != len(targets) {
		fail("cannot unpack %d values into %d names", len(parts), len(targets))
	}
	for i, t := range targets {
		set(t, parts[i])
	}
}

func (s *setStmt) exec(e *env) control {
	defer at(s.line)
	v := s.val.eval(e)
	switch {
	case s.attr != "":
		ns, ok := e.lookup(s.targets[0]).(*namespace)
		if !ok {
			fail("%s is no namespace", s.targets[0])
		}
		ns.Set(s.attr, v)
	case len(s.targets) == 1:
		e.frame.set(s.targets[0], v)
	default:
		unpack(s.targets, v, e.frame.set)
	}
	return ctlNext
}

func (s *macroStmt) exec(e *env) control {
	e.frame.set(s.name, &macro{s, e.frame})
	return ctlNext
}

func (m *macro) call(e *env, args []any, kw []kwarg) any {
	if len(args) > len(m.params) {
		fail("macro %s takes %d arguments, not %d", m.name, len(m.params), len(args))
	}
	if e.nest++; e.nest > maxNest {
		fail("macros call each other too deep")
	}
	caller := e.frame
	defer func() { e.nest--; e.frame = caller }()
	e.frame = newFrame(m.home)
	for i, a := range args {
		e.frame.set(m.params[i], a)
	}
	used := 0
	for i := len(args); i < len(m.params); i++ {
		v, ok := named(kw, m.params[i])
		switch {
		case ok:
			used++
		case m.defaults[i] != nil:
			v = m.defaults[i].eval(e)
		default:
			v = Undefined{m.params[i]}
		}
		e.frame.set(m.params[i], v)
	}
	if used != len(kw) {
		fail("macro %s got an argument it does not take, or twice", m.name)
	}
	return e.capture(m.body)
}

func named(kw []kwarg, name string) (any, bool) {
	for _, k := range kw {
		if k.name == name {
			return k.val, true
		}
	}
	return nil, false
}

func (c *captureExpr) eval(e *env) any {
	outer := e.frame
	defer func() { e.frame = outer }()
	e.frame = newFrame(outer)
	return e.capture(c.body)
}

// loop is the loop variable.
type loop struct {
	items   []any
	i       int
	changed *List // what loop.changed saw last
}

func (l *loop) attr(name string) any {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.i + 1)
	case "index0":
		return int64(l.i)
	case "revindex":
		return int64(n - l.i)
	case "revindex0":
		return int64(n - l.i - 1)
	case "first":
		return l.i == 0
	case "last":
		return l.i == n-1
	case "length":
		return int64(n)
	case "depth":
		return int64(1) // counts recursive loops only
	case "depth0":
		return int64(0)
	case "previtem":
		if l.i > 0 {
			return l.items[l.i-1]
		}
	case "nextitem":
		if l.i+1 < n {
			return l.items[l.i+1]
		}
	case "cycle", "changed":
		return bound{l, name}
	}
	return Undefined{"loop." + name}
}

func (l *loop) method(name string, args []any) any {
	if name == "cycle" {
		if len(args) == 0 {
			fail("loop.cycle needs values")
		}
		return args[l.i%len(args)]
	}
	seen := &List{Items: args}
	same := l.changed != nil && equal(l.changed, seen)
	l.changed = seen
	return !same
}
