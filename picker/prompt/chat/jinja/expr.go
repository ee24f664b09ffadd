package jinja

import (
	"math"
	"slices"
	"unsafe"
)

// Expressions.
type (
	constExpr struct{ v any }
	nameExpr  struct{ name string }
	listExpr  struct {
		items []expr
		tuple bool
	}
	dictExpr   struct{ keys, vals []expr }
	condExpr   struct{ cond, then, otherwise expr }
	orExpr     struct{ a, b expr }
	andExpr    struct{ a, b expr }
	notExpr    struct{ x expr }
	negExpr    struct{ x expr }
	binaryExpr struct {
		op   string
		a, b expr
		line int
	}
	// sumExpr is a + b + c...: mostly text, which is put together once.
	sumExpr struct {
		parts []expr
		line  int
	}
	compareExpr struct {
		first expr
		ops   []string
		rest  []expr
	}
	attrExpr struct {
		x    expr
		name string
		line int
	}
	itemExpr struct {
		x, key expr
		line   int
	}
	sliceExpr struct {
		x, from, to, step expr
		line              int
	}
	call struct {
		args    []expr
		kwNames []string
		kwVals  []expr
		star    expr // *list
		stars   expr // **dict
	}
	callExpr struct {
		fn expr
		call
		line int
	}
	filterExpr struct {
		x    expr
		name string
		fn   filter
		call
		line int
	}
	testExpr struct {
		x    expr
		name string
		fn   test
		args []expr
		line int
	}
)

func (x constExpr) eval(*env) any { return x.v }
func (x *nameExpr) eval(e *env) any {
	return e.lookup(x.name)
}

func (x *listExpr) eval(e *env) any {
	l := &List{Items: make([]any, len(x.items))}
	if x.tuple {
		l.kind = kindTuple
	}
	for i, it := range x.items {
		l.Items[i] = it.eval(e)
	}
	return l
}

func (x *dictExpr) eval(e *env) any {
	d := &Dict{}
	for i, k := range x.keys {
		key := dictKey(k.eval(e))
		d.Set(key, x.vals[i].eval(e))
	}
	return d
}

func (x *condExpr) eval(e *env) any {
	switch {
	case truth(x.cond.eval(e)):
		return x.then.eval(e)
	case x.otherwise != nil:
		return x.otherwise.eval(e)
	}
	return Undefined{"inline if without else"}
}

func (x *orExpr) eval(e *env) any {
	if a := x.a.eval(e); truth(a) {
		return a
	}
	return x.b.eval(e)
}

func (x *andExpr) eval(e *env) any {
	if a := x.a.eval(e); !truth(a) {
		return a
	}
	return x.b.eval(e)
}

func (x *notExpr) eval(e *env) any { return !truth(x.x.eval(e)) }

func (x *negExpr) eval(e *env) any {
	i, f, isInt, ok := number(x.x.eval(e))
	switch {
	case !ok:
		fail("only numbers have a negative")
	case isInt:
		return -i
	}
	return -f
}

func (x *sumExpr) eval(e *env) any {
	defer at(x.line)
	first := x.parts[0].eval(e)
	s, ok := first.(string)
	if !ok {
		return x.fold(e, first, 1)
	}
	start := len(e.out) // behind which the text is put together
	e.out = append(e.out, s...)
	for i, p := range x.parts[1:] {
		v := p.eval(e)
		if m, ok := v.(markup); ok {
			return x.fold(e, add(e.cut(start), m), i+2)
		}
		e.out = append(e.out, text(v)...)
	}
	return e.made(e.cut(start))
}

// cut takes back what was printed from start on. The text lies in e.texts.
func (e *env) cut(start int) string {
	s := e.out[start:]
	if len(s) > cap(e.texts)-len(e.texts) {
		e.texts = make([]byte, 0, max(len(s), 2*cap(e.texts), minTexts)) // the texts before keep theirs
	}
	from := len(e.texts)
	e.texts = append(e.texts, s...)
	e.out = e.out[:start]
	return unsafe.String(unsafe.SliceData(e.texts[from:]), len(s))
}

// print is eval for {{ }}: text goes to the output part by part. A macro among
// the parts captures what it prints behind that.
func (x *sumExpr) print(e *env) {
	defer at(x.line)
	first := x.parts[0].eval(e)
	s, ok := first.(string)
	if !ok {
		e.out = appendStr(e.out, x.fold(e, first, 1))
		return
	}
	start := len(e.out)
	e.out = append(e.out, s...)
	for i, p := range x.parts[1:] {
		v := p.eval(e)
		if m, ok := v.(markup); ok {
			sum := add(e.cut(start), m)
			e.out = appendStr(e.out, x.fold(e, sum, i+2))
			return
		}
		s := text(v)
		e.out = append(e.out, s...)
	}
}

// fold adds the parts from number i on to the sum of those before, which is no
// text.
func (x *sumExpr) fold(e *env, sum any, i int) any {
	for _, p := range x.parts[i:] {
		sum = add(sum, p.eval(e))
	}
	return sum
}

// text is a part of a sum that began with text.
func text(v any) string {
	s, ok := v.(string)
	if !ok {
		fail("cannot compute str + %s", typeName(v))
	}
	return s
}

func (x *binaryExpr) eval(e *env) any {
	defer at(x.line)
	a, b := x.a.eval(e), x.b.eval(e)
	if x.op == "~" {
		return e.made(toStr(a) + toStr(b))
	}
	if s, ok := a.(string); ok && x.op == "%" {
		return percent(s, b)
	}
	i, f, isInt, ok := number(a)
	j, g, isInt2, ok2 := number(b)
	if x.op == "*" && ok != ok2 {
		return repeat(a, b)
	}
	if !ok || !ok2 {
		fail("cannot compute %s %s %s", typeName(a), x.op, typeName(b))
	}
	return arithmetic(x.op, i, j, f, g, isInt && isInt2)
}

func (x *compareExpr) eval(e *env) any {
	a := x.first.eval(e)
	for i, op := range x.ops {
		b := x.rest[i].eval(e)
		e.searched(op, b)
		if !compare(op, a, b) {
			return false
		}
		a = b
	}
	return true
}

func compare(op string, a, b any) bool {
	switch op {
	case "==":
		return equal(a, b)
	case "!=":
		return !equal(a, b)
	case "in":
		return contains(b, a)
	case "not in":
		return !contains(b, a)
	case "<":
		return order(a, b) < 0
	case "<=":
		return order(a, b) <= 0
	case ">":
		return order(a, b) > 0
	}
	return order(a, b) >= 0
}

func (x *attrExpr) eval(e *env) any {
	v := x.x.eval(e)
	if d, ok := v.(*Dict); ok && !dictMethod(x.name) { // the usual case
		if got, ok := d.Get(x.name); ok {
			return got
		}
		return Undefined{x.name}
	}
	defer at(x.line)
	return attr(v, x.name)
}

// attr is v.name: a method if there is one, else an item.
func attr(v any, name string) any {
	switch v := v.(type) {
	case *Dict:
		switch {
		case dictMethod(name) && changes(name):
			return Undefined{name} // the sandbox hides it
		case dictMethod(name):
			return bound{v, name}
		}
		if got, ok := v.Get(name); ok {
			return got
		}
	case *namespace:
		if got, ok := v.Get(name); ok {
			return got
		}
	case *loop:
		return v.attr(name)
	case *cycler:
		return v.attr(name)
	case string:
		if strMethod(name) {
			return bound{v, name}
		}
	case *List:
		if i := slices.Index(v.names, name); i >= 0 {
			return v.Items[i]
		}
		if v.kind == kindList && listMethod(name) && !changes(name) || v.kind <= kindRange && (name == "count" || name == "index") {
			return bound{v, name}
		}
	case *macro:
		if name == "name" {
			return v.name
		}
	case Undefined:
		fail("%s is undefined", v.name)
	case markup:
		fail("methods of markup are not supported")
	}
	return Undefined{name}
}

func (x *itemExpr) eval(e *env) any {
	defer at(x.line)
	v, key := x.x.eval(e), plain(x.key.eval(e))
	if _, ok := v.(markup); ok {
		fail("characters of markup are not supported")
	}
	switch v := v.(type) {
	case *Dict:
		if s, ok := key.(string); ok {
			if got, ok := v.Get(s); ok {
				return got
			}
			return attr(v, s)
		}
		return Undefined{toStr(key)}
	case *List:
		if i, ok := key.(int64); ok && v.indexed() {
			if i < 0 {
				i += int64(len(v.Items))
			}
			if i >= 0 && i < int64(len(v.Items)) {
				return v.Items[i]
			}
			return Undefined{"list item"}
		}
	case string:
		if i, ok := key.(int64); ok {
			chars := []rune(v)
			if i < 0 {
				i += int64(len(chars))
			}
			if i >= 0 && i < int64(len(chars)) {
				return string(chars[i])
			}
			return Undefined{"character"}
		}
	}
	if s, ok := key.(string); ok {
		return attr(v, s)
	}
	if u, ok := v.(Undefined); ok {
		fail("%s is undefined", u.name)
	}
	return Undefined{toStr(key)}
}

func (x *sliceExpr) eval(e *env) any {
	defer at(x.line)
	v := x.x.eval(e)
	bound := func(b expr, absent int) (int, bool) {
		if b == nil {
			return absent, false
		}
		switch n := b.eval(e).(type) {
		case nil:
			return absent, false
		case bool:
			i, _, _, _ := number(n)
			return int(i), true
		case int64:
			return int(max(min(n, math.MaxInt32), math.MinInt32)), true
		}
		fail("slice with something else than whole numbers")
		return 0, false
	}
	step, _ := bound(x.step, 1)
	if step == 0 {
		fail("slice step is zero")
	}
	switch v := v.(type) {
	case *List:
		if v.indexed() {
			return &List{Items: slice(v.Items, bound, x, step), kind: v.kind}
		}
	case string:
		return string(slice([]rune(v), bound, x, step))
	}
	fail("cannot slice a %s", typeName(v))
	return nil
}

func slice[T any](s []T, bound func(expr, int) (int, bool), x *sliceExpr, step int) []T {
	n := len(s)
	clamp := func(b expr, absent, low, high int) int {
		i, given := bound(b, absent)
		if given && i < 0 {
			i += n
		}
		if !given {
			return i
		}
		return max(low, min(i, high))
	}
	var out []T
	if step > 0 {
		to := clamp(x.to, n, 0, n)
		for i := clamp(x.from, 0, 0, n); i < to; i += step {
			out = append(out, s[i])
		}
		return out
	}
	to := clamp(x.to, -1, -1, n-1)
	for i := clamp(x.from, n-1, -1, n-1); i > to; i += step {
		out = append(out, s[i])
	}
	return out
}

func (c *call) eval(e *env) (args []any, kw []kwarg) {
	if len(c.args) > 0 {
		args = make([]any, len(c.args))
		for i, a := range c.args {
			args[i] = a.eval(e)
		}
	}
	for i, n := range c.kwNames {
		kw = append(kw, kwarg{n, c.kwVals[i].eval(e)})
	}
	if c.star != nil {
		args = append(args, items(c.star.eval(e))...)
	}
	if c.stars != nil {
		d, ok := c.stars.eval(e).(*Dict)
		if !ok {
			fail("what follows ** is no dict")
		}
		for k, v := range d.All() {
			kw = append(kw, kwarg{k, v})
		}
	}
	return args, kw
}

func (x *callExpr) eval(e *env) any {
	defer at(x.line)
	fn := x.fn.eval(e)
	args, kw := x.call.eval(e)
	v := e.call(fn, args, kw)
	if s, ok := v.(string); ok {
		e.made(s)
	}
	return v
}

func (e *env) call(fn any, args []any, kw []kwarg) any {
	switch fn := fn.(type) {
	case function:
		return fn(e, args, kw)
	case *loop:
		if len(args) != 1 || len(kw) > 0 {
			fail("loop takes one argument")
		}
		return fn.again(e, args[0])
	case *macro:
		return fn.call(e, args, kw)
	case bound:
		for i := range args {
			args[i] = plain(args[i])
		}
		return callMethod(fn.self, fn.name, args, kw)
	case Undefined:
		fail("%s is undefined", fn.name)
	}
	fail("a %s cannot be called", typeName(fn))
	return nil
}

func (x *filterExpr) eval(e *env) any {
	defer at(x.line)
	v := x.x.eval(e)
	args, kw := x.call.eval(e)
	v = x.fn.apply(e, v, params{x.name, args, kw})
	if s, ok := v.(string); ok {
		e.made(s)
	}
	return v
}

func (x *testExpr) eval(e *env) any {
	defer at(x.line)
	v := plain(x.x.eval(e))
	args := make([]any, len(x.args))
	for i, a := range x.args {
		args[i] = plain(a.eval(e))
	}
	return x.fn(e, v, params{name: x.name, args: args})
}
