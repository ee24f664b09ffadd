package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// filterTable returns a filter, nil if it is not known.
func filterTable(name string) filter {
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
	case "title":
		f = func(_ *env, v any, p params) any { p.known(0); return titleFilter(toStr(v)) }
	case "string":
		f = func(_ *env, v any, p params) any { p.known(0); return toStr(v) }
	case "safe":
		f = func(_ *env, v any, p params) any { p.known(0); return markup(toStr(v)) }
	case "escape", "e", "forceescape":
		f = func(_ *env, v any, p params) any { p.known(0); return markup(escape(toStr(v))) }
	case "xmlattr":
		f = xmlAttr
	case "replace":
		f = func(_ *env, v any, p params) any {
			p.known(3, "old", "new", "count")
			n := -1
			if p.get(2, "count", nil) != nil {
				n = int(p.int(2, "count", -1))
			}
			return replace(toStr(v), toStr(p.get(0, "old", nil)), toStr(p.get(1, "new", nil)), n)
		}
	case "join":
		f = joinFilter
	case "list":
		f = func(_ *env, v any, p params) any { p.known(0); return &List{Items: slices.Clone(items(v))} }
	case "first", "last":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			l, iter := v.(*List)
			if iter && l.kind == kindIterator && name == "last" {
				fail("last: a generator has no end")
			}
			list := items(v)
			switch {
			case len(list) == 0:
				return Undefined{name + " of nothing"}
			case name == "first":
				return list[0]
			}
			return list[len(list)-1]
		}
	case "reverse":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			l := slices.Clone(items(v))
			slices.Reverse(l)
			if _, ok := v.(string); ok {
				return joinFilter(nil, &List{Items: l}, params{})
			}
			return iterator(l)
		}
	case "items":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			switch v := v.(type) {
			case Undefined:
				return iterator(nil)
			case *Dict:
				return iterator(pairs(v))
			}
			fail("items: want a dict, not %s", typeName(v))
			return nil
		}
	case "dictsort":
		f = dictSort
	case "sort":
		f = sortFilter
	case "unique":
		f = uniqueFilter
	case "groupby":
		f = groupBy
	case "batch":
		f = batchFilter
	case "slice":
		f = sliceFilter
	case "sum":
		f = func(_ *env, v any, p params) any {
			p.known(2, "attribute", "start")
			key := keyOf(p.get(0, "attribute", nil), nil, true)
			sum := p.get(1, "start", int64(0))
			for _, x := range items(v) {
				sum = add(sum, key(x))
			}
			return sum
		}
	case "map":
		f = mapFilter
	case "select", "reject":
		f = func(e *env, v any, p params) any { return selectFilter(e, v, p, name == "select", false) }
	case "selectattr", "rejectattr":
		f = func(e *env, v any, p params) any { return selectFilter(e, v, p, name == "selectattr", true) }
	case "int", "float":
		f = numberFilter
	case "round":
		f = roundFilter
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
			p.known(2, "case_sensitive", "attribute")
			key := keyOf(p.get(1, "attribute", nil), nil, truth(p.get(0, "case_sensitive", false)))
			var best any = Undefined{name + " of nothing"}
			for i, x := range items(v) {
				if i == 0 {
					best = x
				} else if c := order(key(x), key(best)); c < 0 && name == "min" || c > 0 && name == "max" {
					best = x
				}
			}
			return best
		}
	case "indent":
		f = indentFilter
	case "center":
		f = func(_ *env, v any, p params) any { return pad(toStr(v), p.int(0, "width", 80), " ", "center") }
	case "wordcount":
		f = func(_ *env, v any, p params) any {
			p.known(0)
			return int64(len(strings.FieldsFunc(toStr(v), func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r) })))
		}
	case "truncate":
		f = truncateFilter
	case "format":
		f = func(_ *env, v any, p params) any {
			p.known(len(p.args))
			return percent(toStr(v), &List{Items: p.args, kind: kindTuple})
		}
	}
	return f
}

// apply runs a filter on a value that may be markup.
func (f filter) apply(e *env, v any, p params) any {
	if m, ok := v.(markup); ok {
		switch p.name {
		case "safe", "string", "default", "d", "escape", "e":
			return m
		case "tojson", "length", "count", "replace", "int", "float", "list", "first", "last", "join", "wordcount":
			v = string(m)
		default:
			fail("%s of markup is not supported", p.name)
		}
	}
	for i := range p.args {
		p.args[i] = plain(p.args[i])
	}
	return f(e, v, p)
}

// escape is markupsafe's.
func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;").Replace(s)
}

func xmlAttr(_ *env, v any, p params) any {
	p.known(1, "autospace")
	d, ok := v.(*Dict)
	if !ok {
		fail("xmlattr: want a dict")
	}
	var parts []string
	for k, x := range d.All() {
		if _, undefined := x.(Undefined); x == nil || undefined {
			continue
		}
		if strings.ContainsFunc(k, func(r rune) bool { return isSpace(r) || r == '/' || r == '>' || r == '=' }) {
			fail("xmlattr: bad key")
		}
		parts = append(parts, escape(k)+`="`+escape(toStr(x))+`"`)
	}
	s := strings.Join(parts, " ")
	if s != "" && truth(p.get(0, "autospace", true)) {
		s = " " + s
	}
	return s
}

// replace bounds the length of what it makes.
func replace(s, old, with string, n int) string {
	if len(with) > len(old) {
		hits := strings.Count(s, old)
		if n >= 0 {
			hits = min(hits, n)
		}
		if hits*(len(with)-len(old)) > maxOutput-len(s) {
			fail("text is too long")
		}
	}
	return strings.Replace(s, old, with, n)
}

// titleFilter is Jinja's own title, which knows other word beginnings than
// Python's.
func titleFilter(s string) string {
	var b strings.Builder
	start := true
	for _, r := range s {
		switch {
		case isSpace(r) || strings.ContainsRune("-({[<", r):
			start = true
			b.WriteRune(r)
		case start:
			start = false
			b.WriteString(upper(string(r)))
		default:
			b.WriteString(lower(string(r)))
		}
	}
	return b.String()
}

func joinFilter(_ *env, v any, p params) any {
	p.known(2, "d", "attribute")
	sep := toStr(p.get(0, "d", ""))
	key := keyOf(p.get(1, "attribute", nil), nil, true)
	var b []byte
	for i, x := range items(v) {
		if i > 0 {
			b = append(b, sep...)
		}
		b = appendStr(b, key(x))
		if len(b) > maxOutput {
			fail("text is too long")
		}
	}
	return string(b)
}

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

func numberFilter(_ *env, v any, p params) any {
	p.known(1, "default")
	if u, undefined := v.(Undefined); undefined {
		fail("%s is undefined", u.name)
	}
	i, f, isInt, ok := number(v)
	if s, isText := v.(string); isText {
		s = strings.TrimFunc(s, isSpace)
		i, f, isInt, ok = parseNumber(s)
		if t := strings.ReplaceAll(s, "_", ""); t != s || strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf && unicode.IsDigit(r) }) {
			if _, _, _, ok = parseNumber(t); ok || t == s {
				fail("%s: %q is not supported", p.name, s)
			}
		}
	}
	if p.name == "int" {
		switch {
		case !ok || !isInt && (math.IsNaN(f) || math.IsInf(f, 0)):
			return p.get(0, "default", int64(0))
		case isInt:
			return i
		}
		return exact(int64(f), f)
	}
	if !ok {
		return p.get(0, "default", 0.0)
	}
	return f
}

// parseNumber reads what Python's int and float read, but for underscores and
// digits of other scripts.
func parseNumber(s string) (i int64, f float64, isInt, ok bool) {
	i, err := strconv.ParseInt(s, 10, 64)
	if err == nil {
		return i, float64(i), true, true
	}
	if strings.ContainsAny(s, "xXpP_") {
		return 0, 0, false, false
	}
	f, err = strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, 0, false, false
	}
	return 0, f, false, true
}

func roundFilter(_ *env, v any, p params) any {
	p.known(2, "precision", "method")
	i, f, isInt, ok := number(v)
	n, method := p.int(0, "precision", 0), p.text(1, "method", "common")
	switch {
	case !ok:
		fail("round: want a number")
	case n < 0 || n > 300:
		fail("round: precision %d is not supported", n)
	case method == "common" && isInt:
		return i
	case method == "common":
		x, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(n), 64), 64)
		return x
	case method == "ceil":
		return math.Ceil(f*math.Pow10(int(n))) / math.Pow10(int(n))
	case method == "floor":
		return math.Floor(f*math.Pow10(int(n))) / math.Pow10(int(n))
	}
	fail("round: method is common, ceil or floor")
	return nil
}

func indentFilter(_ *env, v any, p params) any {
	p.known(3, "width", "first", "blank")
	pad, ok := p.get(0, "width", int64(4)).(string)
	if !ok {
		pad = strings.Repeat(" ", int(min(max(p.int(0, "width", 4), 0), 1000)))
	}
	s, blank := toStr(v), truth(p.get(2, "blank", false))
	if strings.Count(s, "\n")*len(pad) > maxOutput {
		fail("text is too long")
	}
	lines := splitLines(s+"\n", false)
	for i, l := range lines {
		if i == 0 && truth(p.get(1, "first", false)) || i > 0 && (l != "" || blank) {
			lines[i] = pad + l
		}
	}
	return strings.Join(lines, "\n")
}

func truncateFilter(_ *env, v any, p params) any {
	p.known(4, "length", "killwords", "end", "leeway")
	n, end, leeway := int(p.int(0, "length", 255)), p.text(2, "end", "..."), 5
	if p.get(3, "leeway", nil) != nil {
		leeway = int(p.int(3, "leeway", 5))
	}
	s := []rune(toStr(v))
	tail := utf8.RuneCountInString(end)
	if n < tail || leeway < 0 {
		fail("truncate: length %d is too small", n)
	}
	if len(s) <= n+leeway {
		return string(s)
	}
	cut := string(s[:n-tail])
	if !truth(p.get(1, "killwords", false)) {
		if at := strings.LastIndexByte(cut, ' '); at >= 0 {
			cut = cut[:at]
		}
	}
	return cut + end
}
