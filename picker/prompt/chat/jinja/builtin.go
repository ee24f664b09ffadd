package jinja

import (
	"slices"
	"strings"
)

// params are the arguments of a filter, test or function.
type params struct {
	name string
	args []any
	kw   []kwarg
}

// get returns an argument by place or name, absent if it was not given.
func (p params) get(i int, name string, absent any) any {
	if i < len(p.args) {
		return p.args[i]
	}
	if v, ok := named(p.kw, name); ok {
		return v
	}
	return absent
}

func (p params) text(i int, name, absent string) string {
	v := p.get(i, name, absent)
	s, ok := v.(string)
	if !ok {
		fail("%s: %s must be text, not %s", p.name, name, typeName(v))
	}
	return s
}

func (p params) int(i int, name string, absent int64) int64 {
	v := p.get(i, name, absent)
	n, ok := v.(int64)
	if !ok {
		fail("%s: %s must be a whole number, not %s", p.name, name, typeName(v))
	}
	return n
}

// known refuses arguments that the implementation would ignore.
func (p params) known(most int, names ...string) {
	if len(p.args) > most {
		fail("%s: %d arguments are not supported", p.name, len(p.args))
	}
	for _, k := range p.kw {
		if !slices.Contains(names, k.name) {
			fail("%s: argument %s is not supported", p.name, k.name)
		}
	}
}

type (
	filter func(e *env, v any, p params) any
	test   func(e *env, v any, p params) bool
)

// testTable returns a test, nil if it is not known.
func testTable(name string) test {
	kindOf := func(ok func(v any) bool) test {
		return func(_ *env, v any, p params) bool { p.known(0); return ok(v) }
	}
	with := func(op string) test {
		return func(e *env, v any, p params) bool {
			if len(p.args) != 1 {
				fail("test %s wants one argument", p.name)
			}
			e.searched(op, p.args[0])
			return compare(op, v, p.args[0])
		}
	}
	var t test
	switch name {
	case "defined", "undefined":
		t = kindOf(func(v any) bool { _, u := v.(Undefined); return u == (name == "undefined") })
	case "none":
		t = kindOf(func(v any) bool { return v == nil })
	case "string":
		t = kindOf(func(v any) bool { _, ok := v.(string); return ok })
	case "boolean":
		t = kindOf(func(v any) bool { _, ok := v.(bool); return ok })
	case "true", "false":
		t = kindOf(func(v any) bool { b, ok := v.(bool); return ok && b == (name == "true") })
	case "integer":
		t = kindOf(func(v any) bool { return typeName(v) == "int" })
	case "float":
		t = kindOf(func(v any) bool { _, ok := v.(float64); return ok })
	case "number":
		t = kindOf(func(v any) bool { _, _, _, ok := number(v); return ok || typeName(v) == "int" })
	case "mapping":
		t = kindOf(func(v any) bool { _, ok := v.(*Dict); return ok })
	case "sequence", "iterable":
		t = kindOf(func(v any) bool {
			switch v := v.(type) {
			case string, *Dict, Undefined:
				return true
			case *List:
				return v.indexed() || name == "iterable"
			}
			return false
		})
	case "callable":
		t = kindOf(func(v any) bool {
			switch v.(type) {
			case function, *macro, bound, *loop, Undefined:
				return true
			}
			return false
		})
	case "sameas":
		t = func(_ *env, v any, p params) bool {
			switch with := p.get(0, "other", Undefined{}).(type) {
			case nil, bool:
				return v == with
			}
			fail("test sameas is not supported for anything but none, true and false")
			return false
		}
	case "even", "odd":
		t = kindOf(func(v any) bool {
			i, _, isInt, _ := number(v)
			if !isInt {
				fail("test %s wants a whole number", name)
			}
			return (i%2 == 0) == (name == "even")
		})
	case "divisibleby":
		t = func(_ *env, v any, p params) bool {
			i, _, isInt, _ := number(v)
			by := p.int(0, "num", 0)
			if !isInt || by == 0 {
				fail("test divisibleby wants whole numbers")
			}
			return i%by == 0
		}
	case "eq", "equalto", "==":
		t = with("==")
	case "ne", "!=":
		t = with("!=")
	case "lt", "lessthan", "<":
		t = with("<")
	case "le", "<=":
		t = with("<=")
	case "gt", "greaterthan", ">":
		t = with(">")
	case "ge", ">=":
		t = with(">=")
	case "in":
		t = with("in")
	case "lower", "upper":
		t = kindOf(func(v any) bool {
			s := toStr(v)
			return cased(s) && s == callMethod(s, name, nil, nil)
		})
	case "filter":
		t = kindOf(func(v any) bool { return filterTable(toStr(v)) != nil })
	case "test":
		t = kindOf(func(v any) bool { return testTable(toStr(v)) != nil })
	}
	return t
}

// maxRange is the sandbox's own limit.
const maxRange = 100_000

func globalTable(name string) (function, bool) {
	var f function
	switch name {
	case "range":
		f = rangeFunc
	case "namespace":
		f = func(_ *env, args []any, kw []kwarg) any { return &namespace{*newDict(args, kw)} }
	case "dict":
		f = func(_ *env, args []any, kw []kwarg) any { return newDict(args, kw) }
	case "cycler":
		f = func(_ *env, args []any, kw []kwarg) any {
			if len(args) == 0 || len(kw) > 0 {
				fail("cycler wants values")
			}
			return &cycler{items: args}
		}
	case "joiner":
		f = func(_ *env, args []any, kw []kwarg) any {
			sep, used := params{name, args, kw}.text(0, "sep", ", "), false
			return function(func(*env, []any, []kwarg) any {
				if !used {
					used = true
					return ""
				}
				return sep
			})
		}
	case "raise_exception":
		f = func(_ *env, args []any, kw []kwarg) any {
			msg := toStr(params{name, args, kw}.get(0, "message", ""))
			panic(&Error{Msg: strings.Clone(msg), Raised: true}) // it outlives the values
		}
	case "strftime_now":
		f = func(e *env, args []any, kw []kwarg) any {
			return strftime(e.now, params{name, args, kw}.text(0, "format", ""))
		}
	}
	return f, f != nil
}

// newDict is Python's dict(args, **kw).
func newDict(args []any, kw []kwarg) *Dict {
	d := &Dict{}
	if len(args) > 1 {
		fail("a dict takes one argument")
	}
	for _, a := range args {
		list, ok := a.(*Dict)
		entries := []any(nil)
		if ok {
			entries = pairs(list)
		} else {
			entries = items(a)
		}
		for _, e := range entries {
			pair := items(e)
			if len(pair) != 2 {
				fail("a dict wants pairs")
			}
			d.Set(dictKey(pair[0]), pair[1])
		}
	}
	for _, k := range kw {
		d.Set(k.name, k.val)
	}
	return d
}

// dictKey is the key of a dict.
func dictKey(v any) string {
	s, ok := v.(string)
	if !ok {
		fail("only text keys are supported in a dict")
	}
	return s
}

// cycler is Jinja's cycler object.
type cycler struct {
	items []any
	i     int
}

func (c *cycler) attr(name string) any {
	switch name {
	case "current":
		return c.items[c.i]
	case "next", "reset":
		return bound{c, name}
	}
	return Undefined{name}
}

func (c *cycler) method(name string) any {
	if name == "reset" {
		c.i = 0
		return nil
	}
	v := c.items[c.i]
	c.i = (c.i + 1) % len(c.items)
	return v
}

func rangeFunc(e *env, args []any, kw []kwarg) any {
	p := params{"range", args, kw}
	p.known(3)
	if len(args) == 0 {
		fail("range wants a number")
	}
	from, to, step := int64(0), p.int(0, "stop", 0), p.int(2, "step", 1)
	if len(args) > 1 {
		from, to = to, p.int(1, "stop", 0)
	}
	if step == 0 {
		fail("range: step is zero")
	}
	l := &List{kind: kindRange}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		if len(l.Items) >= maxRange {
			fail("range: more than %d numbers", maxRange)
		}
		e.step()
		l.Items = append(l.Items, i)
	}
	return l
}
