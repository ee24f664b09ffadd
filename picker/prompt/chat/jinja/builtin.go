package jinja

import (
	"math"
	"slices"
	"strconv"
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

func filterTable(name string) (filter, bool) {
	var f filter
	switch name {
	case "tojson":
		f = toJSON
	case "trim":
		f = func(_ *env, v any, p params) any {
			p.known(1, "chars")
			return strip(toStr(v), p.get(0, "chars", nil), true, true)
		}
	case "length", "count":
		f = func(_ *env, v any, p params) any { p.known(0); return int64(length(v)) }
	case "default", "d":
		f = func(_ *env, v any, p params) any {
			p.known(2, "default_value", "boolean")
			_, undefined := v.(Undefined)
			if undefined || truth(p.get(1, "boolean", false)) && !truth(v) {
				return p.get(0, "default_value", "")
			}
			return v
		}
	case "upper", "lower", "capitalize":
		f = func(_ *env, v any, p params) any { p.known(0); return callMethod(toStr(v), name, nil, nil) }
	case "string", "safe":
		f = func(_ *env, v any, p params) any { p.known(0); return toStr(v) }
	case "replace":
		f = func(_ *env, v any, p params) any {
			p.known(2, "old", "new")
			return strings.ReplaceAll(toStr(v), toStr(p.get(0, "old", nil)), toStr(p.get(1, "new", nil)))
		}
	case "join":
		f = joinFilter
	case "list":
		f = func(_ *env, v any, p params) any { p.known(0); return &List{Items: slices.Clone(items(v))} }
	case "first", "last":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			l := items(v)
			switch {
			case len(l) == 0:
				return Undefined{name + " of nothing"}
			case name == "first":
				return l[0]
			}
			return l[len(l)-1]
		}
	case "reverse":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			l := slices.Clone(items(v))
			slices.Reverse(l)
			if _, ok := v.(string); ok {
				return joinFilter(nil, &List{Items: l}, params{})
			}
			return &List{Items: l}
		}
	case "items":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			if _, ok := v.(Undefined); ok {
				return &List{}
			}
			return callMethod(v, "items", nil, nil)
		}
	case "dictsort":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			l, ok := callMethod(v, "items", nil, nil).(*List)
			if !ok {
				fail("dictsort: want a dict")
			}
			key := func(x any) string { return strings.ToLower(toStr(items(x)[0])) }
			slices.SortStableFunc(l.Items, func(a, b any) int { return strings.Compare(key(a), key(b)) })
			return l
		}
	case "sort":
		f = sortFilter
	case "unique":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			out := &List{}
			for _, x := range items(v) {
				if !slices.ContainsFunc(out.Items, func(y any) bool { return equal(fold(x), fold(y)) }) {
					out.Items = append(out.Items, x)
				}
			}
			return out
		}
	case "map":
		f = mapFilter
	case "select", "reject":
		f = func(e *env, v any, p params) any { return selectFilter(e, v, p, name == "select", false) }
	case "selectattr", "rejectattr":
		f = func(e *env, v any, p params) any { return selectFilter(e, v, p, name == "selectattr", true) }
	case "int", "float":
		f = numberFilter
	case "abs":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			i, x, isInt, ok := number(v)
			switch {
			case !ok:
				fail("abs: want a number")
			case isInt:
				return max(i, -i)
			}
			return math.Abs(x)
		}
	case "max", "min":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			var best any = Undefined{name + " of nothing"}
			for i, x := range items(v) {
				if i == 0 || (order(x, best) < 0) == (name == "min") && order(x, best) != 0 {
					best = x
				}
			}
			return best
		}
	case "indent":
		f = indentFilter
	}
	return f, f != nil
}

func joinFilter(_ *env, v any, p params) any {
	p.known(2, "d", "attribute")
	sep := toStr(p.get(0, "d", ""))
	attribute := p.get(1, "attribute", nil)
	var b []byte
	for i, x := range items(v) {
		if i > 0 {
			b = append(b, sep...)
		}
		if attribute != nil {
			x = path(x, attribute)
		}
		b = appendStr(b, x)
	}
	return string(b)
}

// path follows an attribute filter's "a.b".
func path(v any, attribute any) any {
	for _, part := range strings.Split(toStr(attribute), ".") {
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			v = (&itemExpr{x: constExpr{v}, key: constExpr{n}}).eval(nil)
			continue
		}
		v = (&itemExpr{x: constExpr{v}, key: constExpr{part}}).eval(nil)
	}
	return v
}

// fold is what sort and unique compare: text without case.
func fold(v any) any {
	if s, ok := v.(string); ok {
		return strings.ToLower(s)
	}
	return v
}

func sortFilter(_ *env, v any, p params) any {
	p.known(3, "reverse", "case_sensitive", "attribute")
	reverse, sensitive := truth(p.get(0, "reverse", false)), truth(p.get(1, "case_sensitive", false))
	attribute := p.get(2, "attribute", nil)
	key := func(x any) any {
		if attribute != nil {
			x = path(x, attribute)
		}
		if !sensitive {
			x = fold(x)
		}
		return x
	}
	l := slices.Clone(items(v))
	slices.SortStableFunc(l, func(a, b any) int {
		if reverse {
			return order(key(b), key(a))
		}
		return order(key(a), key(b))
	})
	return &List{Items: l}
}

func mapFilter(e *env, v any, p params) any {
	out := &List{}
	if attribute, ok := named(p.kw, "attribute"); ok {
		p.known(0, "attribute", "default")
		absent, hasDefault := named(p.kw, "default")
		for _, x := range items(v) {
			got := path(x, attribute)
			if _, undefined := got.(Undefined); undefined && hasDefault {
				got = absent
			}
			out.Items = append(out.Items, got)
		}
		return out
	}
	name := p.text(0, "filter", "")
	f, ok := filterTable(name)
	if !ok {
		fail("map: filter %s is not supported", name)
	}
	for _, x := range items(v) {
		out.Items = append(out.Items, f(e, x, params{name, p.args[1:], p.kw}))
	}
	return out
}

func selectFilter(e *env, v any, p params, want, byAttr bool) any {
	p.known(len(p.args))
	args := p.args
	var attribute any
	if byAttr {
		if len(args) == 0 {
			fail("%s: want an attribute", p.name)
		}
		attribute, args = args[0], args[1:]
	}
	t := func(_ *env, v any, _ params) bool { return truth(v) }
	name := ""
	if len(args) > 0 {
		name = toStr(args[0])
		named, ok := testTable(name)
		if !ok {
			fail("%s: test %s is not supported", p.name, name)
		}
		t, args = named, args[1:]
	}
	out := &List{}
	for _, x := range items(v) {
		got := x
		if byAttr {
			got = path(x, attribute)
		}
		if t(e, got, params{name: name, args: args}) == want {
			out.Items = append(out.Items, x)
		}
	}
	return out
}

func numberFilter(_ *env, v any, p params) any {
	p.known(1, "default")
	i, f, isInt, ok := number(v)
	if s, isText := v.(string); isText {
		s = strings.TrimFunc(s, isSpace)
		n, err := strconv.ParseInt(s, 10, 64)
		x, err2 := strconv.ParseFloat(s, 64)
		i, f, isInt, ok = n, x, err == nil, err == nil || err2 == nil
	}
	if p.name == "int" {
		switch {
		case !ok || !isInt && (math.IsNaN(f) || math.Abs(f) > 1<<62):
			return p.get(0, "default", int64(0))
		case isInt:
			return i
		}
		return int64(f)
	}
	if !ok {
		return p.get(0, "default", 0.0)
	}
	return f
}

func indentFilter(_ *env, v any, p params) any {
	p.known(3, "width", "first", "blank")
	pad, ok := p.get(0, "width", int64(4)).(string)
	if !ok {
		pad = strings.Repeat(" ", int(min(max(p.int(0, "width", 4), 0), 1000)))
	}
	blank := truth(p.get(2, "blank", false))
	lines := strings.Split(toStr(v), "\n")
	for i, l := range lines {
		if i == 0 && !truth(p.get(1, "first", false)) || i > 0 && l == "" && !blank {
			continue
		}
		lines[i] = pad + l
	}
	return strings.Join(lines, "\n")
}

func testTable(name string) (test, bool) {
	kindOf := func(ok func(v any) bool) test {
		return func(_ *env, v any, p params) bool { p.known(0); return ok(v) }
	}
	with := func(op string) test {
		return func(_ *env, v any, p params) bool {
			if len(p.args) != 1 {
				fail("test %s wants one argument", p.name)
			}
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
		t = kindOf(func(v any) bool { _, ok := v.(int64); return ok })
	case "float":
		t = kindOf(func(v any) bool { _, ok := v.(float64); return ok })
	case "number":
		t = kindOf(func(v any) bool { _, _, _, ok := number(v); return ok })
	case "mapping":
		t = kindOf(func(v any) bool { _, ok := v.(*Dict); return ok })
	case "sequence", "iterable":
		t = kindOf(func(v any) bool {
			switch v.(type) {
			case string, *List, *Dict, Undefined:
				return true
			}
			return false
		})
	case "callable":
		t = kindOf(func(v any) bool {
			switch v.(type) {
			case function, *macro, bound:
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
	}
	return t, t != nil
}

// maxRange is the sandbox's own limit.
const maxRange = 100_000

func globalTable(name string) (function, bool) {
	var f function
	switch name {
	case "range":
		f = rangeFunc
	case "namespace":
		f = func(_ *env, args []any, kw []kwarg) any {
			if len(args) > 0 {
				fail("namespace with a dict is not supported")
			}
			ns := &namespace{}
			for _, k := range kw {
				ns.Set(k.name, k.val)
			}
			return ns
		}
	case "dict":
		f = func(_ *env, args []any, kw []kwarg) any {
			if len(args) > 0 {
				fail("dict with arguments is not supported")
			}
			d := &Dict{}
			for _, k := range kw {
				d.Set(k.name, k.val)
			}
			return d
		}
	case "raise_exception":
		f = func(_ *env, args []any, kw []kwarg) any {
			panic(&Error{Msg: toStr(params{name, args, kw}.get(0, "message", "")), Raised: true})
		}
	case "strftime_now":
		f = func(e *env, args []any, kw []kwarg) any {
			return strftime(e.now, params{name, args, kw}.text(0, "format", ""))
		}
	}
	return f, f != nil
}

func rangeFunc(_ *env, args []any, kw []kwarg) any {
	p := params{"range", args, kw}
	p.known(3)
	from, to, step := int64(0), p.int(0, "stop", 0), p.int(2, "step", 1)
	if len(args) > 1 {
		from, to = to, p.int(1, "stop", 0)
	}
	if step == 0 {
		fail("range: step is zero")
	}
	l := &List{}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		if len(l.Items) >= maxRange {
			fail("range: more than %d numbers", maxRange)
		}
		l.Items = append(l.Items, i)
	}
	return l
}
