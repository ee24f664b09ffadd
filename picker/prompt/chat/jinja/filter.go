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
