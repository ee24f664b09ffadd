package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

func strMethod(name string) bool {
	switch name {
	case "startswith", "endswith", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "upper", "lower",
		"title", "capitalize", "replace", "join", "find", "rfind", "index", "rindex", "count", "format", "removeprefix",
		"removesuffix", "isdigit", "isspace", "isalpha", "isalnum", "isupper", "islower", "istitle", "isnumeric",
		"isdecimal", "isidentifier", "isprintable", "isascii", "zfill", "ljust", "rjust", "center", "partition",
		"rpartition", "encode", "casefold", "swapcase", "expandtabs", "translate", "maketrans", "format_map":
		return true
	}
	return false
}

// strCall runs a method of a string.
func strCall(s string, p params) any {
	switch p.name {
	case "startswith", "endswith":
		p.known(1)
		return affix(s, p.get(0, "prefix", nil), p.name == "startswith")
	case "strip", "lstrip", "rstrip":
		p.known(1)
		return strip(s, p.get(0, "chars", nil), p.name != "rstrip", p.name != "lstrip")
	case "split":
		p.known(2, "sep", "maxsplit")
		return split(s, p)
	case "rsplit":
		p.known(2, "sep", "maxsplit")
		return rsplit(s, p)
	case "splitlines":
		p.known(1, "keepends")
		return texts(splitLines(s, truth(p.get(0, "keepends", false))))
	case "upper":
		p.known(0)
		return upper(s)
	case "lower":
		p.known(0)
		return lower(s)
	case "capitalize":
		p.known(0)
		_, n := utf8.DecodeRuneInString(s)
		return titleCase(s[:n]) + lower(s[n:])
	case "title":
		p.known(0)
		return title(s)
	case "replace":
		p.known(3, "count")
		return replace(s, p.text(0, "old", ""), p.text(1, "new", ""), int(p.int(2, "count", -1)))
	case "join":
		p.known(1)
		return join(s, items(p.get(0, "iterable", nil)))
	case "find", "rfind", "index", "rindex":
		return find(s, p)
	case "count":
		p.known(1)
		sub := p.text(0, "sub", "")
		if sub == "" {
			return int64(utf8.RuneCountInString(s) + 1)
		}
		return int64(strings.Count(s, sub))
	case "removeprefix":
		p.known(1)
		return strings.TrimPrefix(s, p.text(0, "prefix", ""))
	case "removesuffix":
		p.known(1)
		return strings.TrimSuffix(s, p.text(0, "suffix", ""))
	case "partition", "rpartition":
		return partition(s, p)
	case "zfill":
		p.known(1)
		if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
			return s[:1] + pad(s[1:], p.int(0, "width", 0)-1, "0", "rjust")
		}
		return pad(s, p.int(0, "width", 0), "0", "rjust")
	case "ljust", "rjust", "center":
		p.known(2)
		return pad(s, p.int(0, "width", 0), p.text(1, "fillchar", " "), p.name)
	case "format":
		return format(s, p)
	case "isdigit":
		p.known(0)
		return all(s, unicode.IsDigit)
	case "isspace":
		p.known(0)
		return all(s, isSpace)
	case "isalpha":
		p.known(0)
		return all(s, unicode.IsLetter)
	case "isalnum":
		p.known(0)
		return all(s, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) })
	case "isupper", "islower":
		p.known(0)
		same := upper(s)
		if p.name == "islower" {
			same = lower(s)
		}
		return cased(s) && s == same
	}
	fail("string method %s is not supported", p.name)
	return nil
}

// lower is Python's: characters may become several.
func lower(s string) string {
	if ascii(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

func upper(s string) string {
	if ascii(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

// titleCase is one character's title case.
func titleCase(s string) string { return cases.Title(language.Und, cases.NoLower).String(s) }

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func isCased(r rune) bool {
	return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) || unicode.Is(unicode.Other_Lowercase, r) || unicode.Is(unicode.Other_Uppercase, r)
}

func cased(s string) bool { return strings.ContainsFunc(s, isCased) }

// title is Python's: a letter behind anything without case begins a word.
func title(s string) string {
	var b strings.Builder
	inWord := false
	for _, r := range s {
		switch c := isCased(r); {
		case c && inWord:
			b.WriteString(lower(string(r)))
		case c:
			b.WriteString(titleCase(string(r)))
			inWord = true
		default:
			b.WriteRune(r)
			inWord = false
		}
	}
	return b.String()
}

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
		if with.kind != kindTuple {
			break
		}
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

func join(sep string, list []any) string {
	var b []byte
	for i, x := range list {
		t, ok := plain(x).(string)
		if !ok {
			fail("join: want text, not %s", typeName(x))
		}
		if i > 0 {
			b = append(b, sep...)
		}
		if b = append(b, t...); len(b) > maxOutput {
			fail("text is too long")
		}
	}
	return string(b)
}

// find looks for a part in s, from a place on if given.
func find(s string, p params) any {
	p.known(2)
	sub, from := p.text(0, "sub", ""), 0
	if start := p.int(1, "start", 0); start != 0 {
		chars := int64(utf8.RuneCountInString(s))
		if start < 0 {
			start = max(0, start+chars)
		}
		if start > chars {
			sub, from = "\x00not there\x00", len(s)
		} else {
			from = len(string([]rune(s)[:start]))
		}
	}
	at := strings.Index(s[from:], sub)
	if strings.HasPrefix(p.name, "r") {
		at = strings.LastIndex(s[from:], sub)
	}
	switch {
	case at >= 0:
		return int64(utf8.RuneCountInString(s[:from+at]))
	case strings.HasSuffix(p.name, "index"):
		fail("text was not found")
	}
	return int64(-1)
}

func partition(s string, p params) any {
	p.known(1)
	sep := p.text(0, "sep", "")
	if sep == "" {
		fail("%s: empty separator", p.name)
	}
	at := strings.Index(s, sep)
	if p.name == "rpartition" {
		at = strings.LastIndex(s, sep)
	}
	parts := []string{s, "", ""}
	switch {
	case at >= 0:
		parts = []string{s[:at], sep, s[at+len(sep):]}
	case p.name == "rpartition":
		parts = []string{"", "", s}
	}
	l := texts(parts)
	l.kind = kindTuple
	return l
}

// pad makes s width characters long: ljust, rjust or center.
func pad(s string, width int64, fill, how string) string {
	n := int(min(width, maxOutput)) - utf8.RuneCountInString(s)
	if utf8.RuneCountInString(fill) != 1 {
		fail("%s: the fill character must be one", how)
	}
	if n <= 0 {
		return s
	}
	if n > maxOutput/8 {
		fail("text is too long")
	}
	left := 0
	switch how {
	case "rjust":
		left = n
	case "center":
		left = n/2 + n&int(width)&1 // as CPython places the odd one
	}
	return strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left)
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
		return texts(fields(s, most))
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

// fields splits at white space, most times at most unless that is negative.
func fields(s string, most int) []string {
	if most < 0 {
		return strings.FieldsFunc(s, isSpace)
	}
	var out []string
	for s = strings.TrimLeftFunc(s, isSpace); s != ""; s = strings.TrimLeftFunc(s, isSpace) {
		at := strings.IndexFunc(s, isSpace)
		if len(out) == most || at < 0 {
			return append(out, s)
		}
		out = append(out, s[:at])
		s = s[at:]
	}
	return out
}

func rsplit(s string, p params) any {
	most := p.int(1, "maxsplit", -1)
	if most < 0 {
		return split(s, p)
	}
	sep := ""
	if p.get(0, "sep", nil) == nil {
		fail("rsplit: maxsplit without a separator is not supported")
	}
	if sep = p.text(0, "sep", ""); sep == "" {
		fail("rsplit: empty separator")
	}
	parts := strings.Split(s, sep)
	if over := len(parts) - 1 - int(min(most, maxOutput)); over > 0 {
		parts = append([]string{strings.Join(parts[:over+1], sep)}, parts[over+1:]...)
	}
	return texts(parts)
}

// splitLines is Python's: many characters end a line.
func splitLines(s string, keep bool) []string {
	var out []string
	for s != "" {
		at := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if at < 0 {
			return append(out, s)
		}
		_, n := utf8.DecodeRuneInString(s[at:])
		if strings.HasPrefix(s[at:], "\r\n") {
			n = 2
		}
		end := at
		if keep {
			end += n
		}
		out = append(out, s[:end])
		s = s[at+n:]
	}
	return out
}
