package jinja

import (
	"slices"
	"time"
)

// env is the state of one rendering.
type env struct {
	out   []byte
	texts []byte // memory of texts made on the way, which nobody sees after the end
	frame *frame
	now   time.Time
	limit int // of len(out)
	steps int
	nest  int
}

// frame is a scope: the template's, a loop body's or a macro's.
type frame struct {
	vars   []Var
	parent *frame
	kept   bool // a macro looks at it later
}

func newFrame(parent *frame) *frame { return &frame{vars: make([]Var, 0, 6), parent: parent} }

// again empties a frame for the next iteration of a loop, or makes a new one if
// this one is kept.
func (f *frame) again() *frame {
	if f.kept {
		return newFrame(f.parent)
	}
	clear(f.vars)
	f.vars = f.vars[:0]
	return f
}

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
		if len(e.out) > e.limit {
			fail("rendered text is too long")
		}
		if c := s.exec(e); c != ctlNext {
			return c
		}
	}
	return ctlNext
}

func (e *env) step() { e.charge(1) }

// charge counts work against the limit.
func (e *env) charge(n int) {
	if e.steps += n; e.steps > maxSteps {
		fail("template runs too long")
	}
}

// searched charges for looking through v.
func (e *env) searched(op string, v any) {
	if op != "in" && op != "not in" {
		return
	}
	switch v := plain(v).(type) {
	case string:
		e.charge(len(v) >> 8)
	case *List:
		e.charge(len(v.Items) >> 2)
	}
}

// made charges for a new text.
func (e *env) made(s string) string {
	if len(s) > maxOutput {
		fail("text is too long")
	}
	e.charge(len(s) >> 8)
	return s
}

// capture runs body and returns what it printed.
func (e *env) capture(body []stmt) string {
	start := len(e.out)
	e.run(body)
	return e.made(e.cut(start))
}

// Statements.
type (
	textStmt  string
	printStmt struct {
		x    expr
		line int
	}
	jump   control
	ifStmt struct {
		cond            expr
		then, otherwise []stmt
		line            int
	}
	forStmt struct {
		target          target
		iter, cond      expr
		body, otherwise []stmt
		recursive       bool
		line            int
	}
	setStmt struct {
		target target
		val    expr
		line   int
	}
	// scopeStmt is a body with a scope of its own: with, block.
	scopeStmt struct {
		sets []*setStmt // evaluated outside
		body []stmt
	}
	macroStmt struct {
		name     string
		params   []string
		defaults []expr
		body     []stmt
		caller   bool // the body uses caller, varargs or kwargs
		varargs  bool
		kwargs   bool
	}
	// callStmt is {% call %}: it prints what a macro returns that gets body as
	// caller.
	callStmt struct {
		fn   *callExpr
		body *macroStmt
	}
	// macro is a macro with the scope it was defined in.
	macro struct {
		*macroStmt
		home *frame
	}
	captureExpr struct{ body []stmt }
)

// target is what a value is assigned to: a name, a namespace's attribute, or a
// list of targets.
type target struct {
	name, attr string
	list       []target
}

func (t target) set(e *env, f *frame, v any) {
	switch {
	case t.list != nil:
		parts := items(v)
		if len(parts) != len(t.list) {
			fail("cannot unpack %d values into %d names", len(parts), len(t.list))
		}
		for i, sub := range t.list {
			sub.set(e, f, parts[i])
		}
	case t.attr != "":
		ns, ok := e.lookup(t.name).(*namespace)
		if !ok {
			fail("%s is no namespace", t.name)
		}
		ns.Set(t.attr, v)
	default:
		f.set(t.name, v)
	}
}

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

func (j jump) exec(*env) control { return control(j) }

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
	s.run(e, s.list(e, s.iter), 0)
	return ctlNext
}

func (s *forStmt) run(e *env, list []any, depth int) {
	outer := e.frame
	defer func() { e.frame = outer }()
	done := false // an iteration came to its end: to Jinja, else is for loops without one
	l := &loop{stmt: s, home: outer, items: list, depth: depth}
	inner := newFrame(outer)
	for i, v := range list {
		e.step()
		l.i = i
		inner = inner.again()
		e.frame = inner
		s.bind(e, v)
		e.frame.set("loop", l)
		switch e.run(s.body) {
		case ctlBreak:
			i = len(list)
		case ctlNext:
			done = true
		}
		if i == len(list) {
			break
		}
	}
	if !done {
		e.frame = newFrame(outer)
		e.run(s.otherwise)
	}
}

func (s *forStmt) bind(e *env, v any) {
	defer at(s.line)
	s.target.set(e, e.frame, v)
}

// list evaluates what the loop runs over, its filter applied.
func (s *forStmt) list(e *env, iter expr) []any {
	defer at(s.line)
	list := items(iter.eval(e))
	if s.cond == nil {
		return list
	}
	outer := e.frame
	defer func() { e.frame = outer }()
	var kept []any
	e.frame = newFrame(outer)
	for _, v := range list {
		e.step()
		e.frame = e.frame.again()
		s.bind(e, v)
		if truth(s.cond.eval(e)) {
			kept = append(kept, v)
		}
	}
	return kept
}

func (s *setStmt) exec(e *env) control {
	defer at(s.line)
	s.target.set(e, e.frame, s.val.eval(e))
	return ctlNext
}

func (s *scopeStmt) exec(e *env) control {
	outer := e.frame
	defer func() { e.frame = outer }()
	inner := newFrame(outer)
	for _, set := range s.sets {
		set.target.set(e, inner, set.val.eval(e))
	}
	e.frame = inner
	return e.run(s.body)
}

func (s *macroStmt) exec(e *env) control {
	e.frame.set(s.name, e.macro(s))
	return ctlNext
}

func (s *callStmt) exec(e *env) control {
	defer at(s.fn.line)
	args, kw := s.fn.call.eval(e)
	kw = append(kw, kwarg{"caller", e.macro(s.body)})
	e.out = appendStr(e.out, e.call(s.fn.fn.eval(e), args, kw))
	return ctlNext
}

// macro makes a macro that sees the variables of this place, and of all around
// it.
func (e *env) macro(s *macroStmt) *macro {
	for f := e.frame; f != nil && !f.kept; f = f.parent {
		f.kept = true
	}
	return &macro{s, e.frame}
}

func (m *macro) call(e *env, args []any, kw []kwarg) any {
	if len(args) > len(m.params) && !m.varargs {
		fail("macro %s takes %d arguments, not %d", m.name, len(m.params), len(args))
	}
	e.enter()
	caller := e.frame
	defer func() { e.nest--; e.frame = caller }()
	e.frame = newFrame(m.home)
	rest := &Dict{}
	for _, k := range kw {
		switch i := slices.Index(m.params, k.name); {
		case i >= len(args):
		case i >= 0:
			fail("macro %s got argument %s twice", m.name, k.name)
		case k.name == "caller" && m.caller:
			e.frame.set("caller", k.val)
		case m.kwargs && k.name != "caller":
			rest.Set(k.name, k.val)
		default:
			fail("macro %s takes no argument %s", m.name, k.name)
		}
	}
	if _, ok := named(kw, "caller"); m.caller && !ok && !slices.Contains(m.params, "caller") {
		e.frame.set("caller", Undefined{"caller"})
	}
	if m.varargs {
		e.frame.set("varargs", &List{Items: args[min(len(args), len(m.params)):], kind: kindTuple})
	}
	if m.kwargs {
		e.frame.set("kwargs", rest)
	}
	for i, name := range m.params {
		v, ok := named(kw, name)
		switch {
		case i < len(args):
			v = args[i]
		case ok:
		case m.defaults[i] != nil:
			v = m.defaults[i].eval(e)
		default:
			v = Undefined{name}
		}
		e.frame.set(name, v)
	}
	return e.capture(m.body)
}

// enter counts calls inside one another.
func (e *env) enter() {
	if e.nest++; e.nest > maxNest {
		fail("macros call each other too deep")
	}
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
	stmt    *forStmt
	home    *frame
	items   []any
	i       int
	depth   int
	changed *List // what loop.changed saw last
}

// again is loop(v) in a recursive loop.
func (l *loop) again(e *env, v any) any {
	if !l.stmt.recursive {
		fail("loop is not recursive")
	}
	e.enter()
	caller, start := e.frame, len(e.out)
	defer func() { e.nest--; e.frame = caller }()
	e.frame = l.home
	l.stmt.run(e, l.stmt.list(e, constExpr{v}), l.depth+1)
	return e.made(e.cut(start))
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
		return int64(l.depth + 1) // counts recursive loops only
	case "depth0":
		return int64(l.depth)
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
