package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// keyOf returns what filters compare or take: an attribute such as "a.b", or
// the value itself if attribute is nil; absent in place of an undefined one
// unless that is nil; text without case unless sensitive.
func keyOf(attribute, absent any, sensitive bool) func(any) any {
	return func(v any) any {
		if attribute != nil {
			v = path(v, attribute)
			if _, undefined := v.(Undefined); undefined && absent != nil {
				v = absent
			}
		}
		if s, ok := v.(string); ok && !sensitive {
			return lower(s)
		}
		return v
	}
}

// path follows an attribute filter's "a.b".
func path(v any, attribute any) any {
	for _, part := range strings.Split(toStr(attribute), ".") {
		key := any(part)
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			key = n
		}
		v = (&itemExpr{x: constExpr{v}, key: constExpr{key}}).eval(nil)
	}
	return v
}

func sortFilter(_ *env, v any, p params) any {
	p.known(3, "reverse", "case_sensitive", "attribute")
	reverse, sensitive := truth(p.get(0, "reverse", false)), truth(p.get(1, "case_sensitive", false))
	attributes := []any{p.get(2, "attribute", nil)}
	if s, ok := attributes[0].(string); ok {
		attributes = attributes[:0]
		for _, a := range strings.Split(s, ",") {
			attributes = append(attributes, a)
		}
	}
	l := slices.Clone(items(v))
	slices.SortStableFunc(l, func(a, b any) int {
		if reverse {
			a, b = b, a
		}
		for _, attribute := range attributes {
			key := keyOf(attribute, nil, sensitive)
			if c := order(key(a), key(b)); c != 0 {
				return c
			}
		}
		return 0
	})
	return &List{Items: l}
}

func dictSort(_ *env, v any, p params) any {
	p.known(3, "case_sensitive", "by", "reverse")
	d, ok := v.(*Dict)
	if !ok {
		fail("dictsort: want a dict")
	}
	at := int64(0)
	switch by := p.text(1, "by", "key"); by {
	case "key":
	case "value":
		at = 1
	default:
		fail("dictsort: by is key or value")
	}
	key := keyOf(at, nil, truth(p.get(0, "case_sensitive", false)))
	l := pairs(d)
	reverse := truth(p.get(2, "reverse", false))
	slices.SortStableFunc(l, func(a, b any) int {
		if reverse {
			a, b = b, a
		}
		return order(key(a), key(b))
	})
	return &List{Items: l}
}

func uniqueFilter(_ *env, v any, p params) any {
	p.known(2, "case_sensitive", "attribute")
	key := keyOf(p.get(1, "attribute", nil), nil, truth(p.get(0, "case_sensitive", false)))
	out := iterator(nil)
	seen := map[any]bool{}
	for _, x := range items(v) {
		k := key(x)
		switch k.(type) {
		case string, nil:
		default:
			_, f, _, ok := number(k)
			if !ok {
				fail("unique: a %s is not supported", typeName(k))
			}
			k = f
		}
		if !seen[k] {
			seen[k] = true
			out.Items = append(out.Items, x)
		}
	}
	return out
}

func groupBy(e *env, v any, p params) any {
	p.known(3, "attribute", "default", "case_sensitive")
	attribute, absent := p.get(0, "attribute", nil), p.get(1, "default", nil)
	key := keyOf(attribute, absent, truth(p.get(2, "case_sensitive", false)))
	exact := keyOf(attribute, absent, true)
	l := slices.Clone(items(v))
	slices.SortStableFunc(l, func(a, b any) int { return order(key(a), key(b)) })
	out := &List{}
	for from := 0; from < len(l); {
		to := from + 1
		for to < len(l) && equal(key(l[from]), key(l[to])) {
			to++
		}
		out.Items = append(out.Items, &List{
			Items: []any{exact(l[from]), &List{Items: l[from:to:to]}},
			kind:  kindTuple, names: []string{"grouper", "list"},
		})
		from = to
	}
	return out
}

func batchFilter(_ *env, v any, p params) any {
	p.known(2, "linecount", "fill_with")
	n := int(p.int(0, "linecount", 0))
	if n < 1 || n > maxRange {
		fail("batch: %d is not supported", n)
	}
	out := iterator(nil)
	for part := range slices.Chunk(items(v), n) {
		part = slices.Clone(part)
		for fill := p.get(1, "fill_with", nil); fill != nil && len(part) < n; {
			part = append(part, fill)
		}
		out.Items = append(out.Items, &List{Items: part})
	}
	return out
}

func sliceFilter(_ *env, v any, p params) any {
	p.known(2, "slices", "fill_with")
	n, fill := int(p.int(0, "slices", 0)), p.get(1, "fill_with", nil)
	if n < 1 || n > maxRange {
		fail("slice: %d is not supported", n)
	}
	list := items(v)
	size, over := len(list)/n, len(list)%n // the first ones take what is over
	out := iterator(nil)
	for i := range n {
		take := size
		if i < over {
			take++
		}
		part := &List{Items: slices.Clone(list[:take])}
		list = list[take:]
		if fill != nil && i >= over {
			part.Items = append(part.Items, fill)
		}
		out.Items = append(out.Items, part)
	}
	return out
}

func mapFilter(e *env, v any, p params) any {
	out := iterator(nil)
	if attribute, ok := named(p.kw, "attribute"); ok {
		p.known(0, "attribute", "default")
		absent, _ := named(p.kw, "default")
		key := keyOf(attribute, absent, true)
		for _, x := range items(v) {
			out.Items = append(out.Items, key(x))
		}
		return out
	}
	name := p.text(0, "filter", "")
	f := filterTable(name)
	if f == nil {
		fail("map: filter %s is not supported", name)
	}
	for _, x := range items(v) {
		e.step()
		out.Items = append(out.Items, f.apply(e, x, params{name, p.args[1:], p.kw}))
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
		if t = testTable(name); t == nil {
			fail("%s: test %s is not supported", p.name, name)
		}
		args = args[1:]
	}
	out := iterator(nil)
	for _, x := range items(v) {
		e.step()
		got := x
		if byAttr {
			got = path(x, attribute)
		}
		if t(e, plain(got), params{name: name, args: args}) == want {
			out.Items = append(out.Items, x)
		}
	}
	return out
}
