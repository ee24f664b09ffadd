package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

func dictMethod(name string) bool {
	switch name {
	case "items", "keys", "values", "get", "copy", "pop", "popitem", "update", "setdefault", "clear", "fromkeys":
		return true
	}
	return false
}

func listMethod(name string) bool {
	switch name {
	case "index", "count", "copy", "append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear":
		return true
	}
	return false
}

func strMethod(name string) bool {
	switch name {
	case "startswith", "endswith", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "upper", "lower",
		"title", "capitalize", "replace", "join", "find", "rfind", "index", "count", "format", "removeprefix",
		"removesuffix", "isdigit", "isspace", "isalpha", "isalnum", "isupper", "islower", "zfill", "ljust", "rjust",
		"center", "partition", "rpartition", "encode", "casefold", "swapcase", "expandtabs", "translate":
		return true
	}
	return false
}

func callMethod(self any, name string, args []any, kw []kwarg) any {
	p := params{name, args, kw}
	switch self := self.(type) {
	case string:
		return strCall(self, p)
	case *Dict:
		return dictCall(self, p)
	case *List:
		return listCall(self, p)
	case *loop:
		p.known(len(args))
		return self.method(name, args)
	}
	fail("a %s has no method %s", typeName(self), name)
	return nil
}

func dictCall(d *Dict, p params) any {
	switch p.name {
	case "items":
		p.known(0)
		l := &List{Items: make([]any, d.Len())}
		for i, k := range d.keys {
			l.Items[i] = &List{Items: []any{k, d.vals[i]}, tuple: true}
		}
		return l
	case "keys":
		p.known(0)
		return &List{Items: items(d)}
	case "values":
		p.known(0)
		return &List{Items: append([]any(nil), d.vals...)}
	case "get":
		p.known(2)
		if k, ok := p.get(0, "key", nil).(string); ok {
			if v, ok := d.Get(k); ok {
				return v
			}
		}
		return p.get(1, "default", nil)
	case "copy":
		p.known(0)
		c := &Dict{}
		for i, k := range d.keys {
			c.Set(k, d.vals[i])
		}
		return c
	}
	fail("dict method %s is not supported", p.name)
	return nil
}

func listCall(l *List, p params) any {
	p.known(1)
	switch p.name {
	case "index":
		for i, x := range l.Items {
			if equal(x, p.get(0, "value", nil)) {
				return int64(i)
			}
		}
		fail("value is not in the list")
	case "count":
		n := int64(0)
		for _, x := range l.Items {
			if equal(x, p.get(0, "value", nil)) {
				n++
			}
		}
		return n
	case "copy":
		return &List{Items: append([]any(nil), l.Items...)}
	}
	fail("list method %s is not supported", p.name)
	return nil
}

// strCall runs a method of a string.
func strCall(s string, p params) any {
	switch p.name {
	case "startswith", "endswith":
		p.known(1)
		return affix(s, p.get(0, "prefix", nil), p.name == "startswith")
	case "strip":
		p.known(1)
		return strip(s, p.get(0, "chars", nil), true, true)
	case "lstrip":
		p.known(1)
		return strip(s, p.get(0, "chars", nil), true, false)
	case "rstrip":
		p.known(1)
		return strip(s, p.get(0, "chars", nil), false, true)
	case "split":
		p.known(2, "sep", "maxsplit")
		return split(s, p)
	case "rsplit":
		p.known(2, "sep", "maxsplit")
		return rsplit(s, p)
	case "splitlines":
		p.known(0)
		return splitLines(s)
	case "upper":
		p.known(0)
		return cases.Upper(language.Und).String(s)
	case "lower":
		p.known(0)
		return lower(s)
	case "capitalize":
		p.known(0)
		_, n := utf8.DecodeRuneInString(s)
		return strings.ToTitle(s[:n]) + lower(s[n:])
	case "title":
		p.known(0)
		return title(s)
	case "replace":
		p.known(3, "count")
		return strings.Replace(s, p.text(0, "old", ""), p.text(1, "new", ""), int(p.int(2, "count", -1)))
	case "join":
		p.known(1)
		var b []byte
		for i, x := range items(p.get(0, "iterable", nil)) {
			t, ok := x.(string)
			if !ok {
				fail("join: want text, not %s", typeName(x))
			}
			if i > 0 {
				b = append(b, s...)
			}
			b = append(b, t...)
		}
		return string(b)
	case "find", "rfind", "index":
		p.known(1)
		at := strings.Index(s, p.text(0, "sub", ""))
		if p.name == "rfind" {
			at = strings.LastIndex(s, p.text(0, "sub", ""))
		}
		switch {
		case at >= 0:
			return int64(utf8.RuneCountInString(s[:at]))
		case p.name == "index":
			fail("text was not found")
		}
		return int64(-1)
	case "count":
		p.known(1)
		return int64(strings.Count(s, p.text(0, "sub", "")))
	case "removeprefix":
		p.known(1)
		return strings.TrimPrefix(s, p.text(0, "prefix", ""))
	case "removesuffix":
		p.known(1)
		return strings.TrimSuffix(s, p.text(0, "suffix", ""))
	case "isdigit":
		p.known(0)
		return all(s, unicode.IsDigit)
	case "isspace":
		p.known(0)
		return all(s, isSpace)
	case "isalpha":
		p.known(0)
		return all(s, unicode.IsLetter)
	}
	fail("string method %s is not supported", p.name)
	return nil
}

// lower is Python's: characters may become several.
func lower(s string) string { return cases.Lower(language.Und).String(s) }

func all(s string, ok func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
}

func affix(s string, with any, front bool) bool {
	has := strings.HasSuffix
	if front {
		has = strings.HasPrefix
	}
	switch with := with.(type) {
	case string:
		return has(s, with)
	case *List:
		for _, x := range with.Items {
			if t, ok := x.(string); ok && has(s, t) {
				return true
			}
		}
		return false
	}
	fail("startswith and endswith want text, not %s", typeName(with))
	return false
}

func strip(s string, chars any, left, right bool) string {
	cut := isSpace
	switch c := chars.(type) {
	case nil:
	case string:
		cut = func(r rune) bool { return strings.ContainsRune(c, r) }
	default:
		fail("strip wants text, not %s", typeName(chars))
	}
	if left {
		s = strings.TrimLeftFunc(s, cut)
	}
	if right {
		s = strings.TrimRightFunc(s, cut)
	}
	return s
}

func texts(parts []string) *List {
	l := &List{Items: make([]any, len(parts))}
	for i, s := range parts {
		l.Items[i] = s
	}
	return l
}

func split(s string, p params) any {
	most := int(p.int(1, "maxsplit", -1))
	if p.get(0, "sep", nil) == nil {
		if most >= 0 {
			fail("split: maxsplit without a separator is not supported")
		}
		return texts(strings.FieldsFunc(s, isSpace))
	}
	sep := p.text(0, "sep", "")
	if sep == "" {
		fail("split: empty separator")
	}
	if most < 0 {
		return texts(strings.Split(s, sep))
	}
	return texts(strings.SplitN(s, sep, most+1))
}

func rsplit(s string, p params) any {
	most := p.int(1, "maxsplit", -1)
	if most < 0 {
		return split(s, p)
	}
	sep := p.text(0, "sep", "")
	if sep == "" {
		fail("rsplit: empty separator")
	}
	var parts []string
	for range most {
		at := strings.LastIndex(s, sep)
		if at < 0 {
			break
		}
		parts = append([]string{s[at+len(sep):]}, parts...)
		s = s[:at]
	}
	return texts(append([]string{s}, parts...))
}

func splitLines(s string) *List {
	var out []string
	for s != "" {
		at := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if at < 0 {
			out = append(out, s)
			break
		}
		out = append(out, s[:at])
		_, n := utf8.DecodeRuneInString(s[at:])
		if strings.HasPrefix(s[at:], "\r\n") {
			n = 2
		}
		s = s[at+n:]
	}
	return texts(out)
}

func title(s string) string {
	inWord := false
	return strings.Map(func(r rune) rune {
		if !unicode.IsLetter(r) {
			inWord = false
			return r
		}
		if inWord {
			return unicode.ToLower(r)
		}
		inWord = true
		return unicode.ToTitle(r)
	}, s)
}
