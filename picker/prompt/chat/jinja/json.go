package jinja

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Decode turns JSON that was checked before into values as Python's json module
// does: objects keep their order, a number with a point or an exponent is a
// float. What is no JSON gives an arbitrary value.
func Decode(raw []byte) any {
	d := decoder{s: string(raw)}
	return d.value(0)
}

// maxDecode bounds nesting, as far as the caller's check does not.
const maxDecode = 1000

// decoder reads JSON; text without escapes stays a part of s.
type decoder struct {
	s string
	i int
}

// next skips white space and separators and returns the byte there, 0 at the
// end.
func (d *decoder) next() byte {
	for ; d.i < len(d.s); d.i++ {
		switch c := d.s[d.i]; c {
		case ' ', '\n', '\t', '\r', ',', ':':
		default:
			return c
		}
	}
	return 0
}

func (d *decoder) value(depth int) any {
	c := d.next()
	if depth > maxDecode {
		d.i = len(d.s)
		return nil
	}
	switch c {
	case '{':
		out := &Dict{}
		for d.i++; d.next() == '"'; {
			key := d.text()
			out.Set(key, d.value(depth+1))
		}
		d.i++
		return out
	case '[':
		out := &List{}
		for d.i++; d.next() != ']' && d.i < len(d.s); {
			out.Items = append(out.Items, d.value(depth+1))
		}
		d.i++
		return out
	case '"':
		return d.text()
	}
	start := d.i
	for d.i < len(d.s) && !strings.ContainsRune(" \n\t\r,:]}", rune(d.s[d.i])) {
		d.i++
	}
	if d.i == start {
		d.i++
	}
	return scalar(d.s[start:min(d.i, len(d.s))])
}

func scalar(s string) any {
	switch s {
	case "true":
		return true
	case "false":
		return false
	case "null", "":
		return nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	if !strings.ContainsAny(s, ".eEnN") { // NaN and Infinity have an n
		return bigInt(s)
	}
	f, _ := strconv.ParseFloat(s, 64) // out of range is infinite, as in Python
	return f
}

// text reads a string; its opening quote is at d.i.
func (d *decoder) text() string {
	start := d.i
	d.i++
	for escaped := false; ; {
		n := strings.IndexByte(d.s[d.i:], '"')
		if n < 0 {
			d.i = len(d.s)
			return ""
		}
		part := d.s[d.i : d.i+n]
		d.i += n + 1
		slashes := len(part) - len(strings.TrimRight(part, `\`))
		escaped = escaped || strings.IndexByte(part, '\\') >= 0
		if slashes%2 == 1 {
			continue // that quote is escaped
		}
		if !escaped {
			return d.s[start+1 : d.i-1]
		}
		var out string
		_ = json.Unmarshal([]byte(d.s[start:d.i]), &out)
		return out
	}
}

// bigInt is a whole number beyond 64 bits; templates only print it.
func bigInt(raw string) any {
	n, ok := new(big.Int).SetString(raw, 10)
	if !ok {
		return nil
	}
	return n
}

// toJSON is transformers' tojson: json.dumps without its ASCII default and
// without Jinja's HTML escapes.
func toJSON(_ *env, v any, p params) any {
	p.known(4, "ensure_ascii", "indent", "separators", "sort_keys")
	d := dumper{ascii: truth(p.get(0, "ensure_ascii", false)), item: ", ", key: ": "}
	switch indent := p.get(1, "indent", nil).(type) {
	case nil:
	case int64:
		d.pretty, d.indent, d.item = true, strings.Repeat(" ", int(min(max(indent, 0), 100))), ","
	case string:
		d.pretty, d.indent, d.item = true, indent, ","
	default:
		fail("tojson: indent must be a number or text")
	}
	if s := p.get(2, "separators", nil); s != nil {
		l := items(s)
		if len(l) != 2 {
			fail("tojson: separators must be two texts")
		}
		d.item, d.key = toStr(l[0]), toStr(l[1])
	}
	if truth(p.get(3, "sort_keys", false)) {
		fail("tojson: sort_keys is not supported")
	}
	d.value(v, 0)
	return string(d.out)
}

// dumper is Python's json.dumps.
type dumper struct {
	out       []byte
	ascii     bool
	pretty    bool
	indent    string
	item, key string
}

func (d *dumper) value(v any, depth int) {
	switch v := v.(type) {
	case nil:
		d.out = append(d.out, "null"...)
	case bool:
		d.out = strconv.AppendBool(d.out, v)
	case float64:
		switch {
		case math.IsNaN(v):
			d.out = append(d.out, "NaN"...)
		case math.IsInf(v, 0):
			if v < 0 {
				d.out = append(d.out, '-')
			}
			d.out = append(d.out, "Infinity"...)
		default:
			d.out = appendFloat(d.out, v)
		}
	case int64, *big.Int:
		d.out = appendRepr(d.out, v)
	case string:
		d.text(v)
	case *List:
		d.open('[', len(v.Items), depth, func(i int) { d.value(v.Items[i], depth+1) }, ']')
	case *Dict:
		d.open('{', len(v.keys), depth, func(i int) {
			d.text(v.keys[i])
			d.out = append(d.out, d.key...)
			d.value(v.vals[i], depth+1)
		}, '}')
	default:
		fail("tojson: a %s cannot be written as JSON", typeName(v))
	}
}

func (d *dumper) open(open byte, n, depth int, each func(i int), end byte) {
	d.out = append(d.out, open)
	for i := range n {
		if i > 0 {
			d.out = append(d.out, d.item...)
		}
		d.newline(depth + 1)
		each(i)
	}
	if n > 0 {
		d.newline(depth)
	}
	d.out = append(d.out, end)
}

func (d *dumper) newline(depth int) {
	if !d.pretty {
		return
	}
	d.out = append(d.out, '\n')
	for range depth {
		d.out = append(d.out, d.indent...)
	}
}

func (d *dumper) text(s string) {
	const hex = "0123456789abcdef"
	d.out = append(d.out, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			d.out = append(d.out, '\\', byte(r))
		case r == '\n':
			d.out = append(d.out, `\n`...)
		case r == '\r':
			d.out = append(d.out, `\r`...)
		case r == '\t':
			d.out = append(d.out, `\t`...)
		case r == '\b':
			d.out = append(d.out, `\b`...)
		case r == '\f':
			d.out = append(d.out, `\f`...)
		case r < ' ' || d.ascii && r > '~':
			units := [2]rune{r, -1}
			if r > 0xFFFF {
				units = [2]rune{0xD800 + (r-0x10000)>>10, 0xDC00 + (r-0x10000)&0x3FF}
			}
			for _, u := range units {
				if u >= 0 {
					d.out = append(d.out, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
				}
			}
		default:
			d.out = utf8.AppendRune(d.out, r)
		}
	}
	d.out = append(d.out, '"')
}

// strftime formats as C's function does; a directive it does not know is an
// error.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'B': "January",
		'b': "Jan", 'A': "Monday", 'a': "Mon", 'j': "002", 'y': "06", 'p': "PM", 'I': "03", 'F': "2006-01-02", 'T': "15:04:05"}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		i++
		switch {
		case i < len(format) && format[i] == '%':
			b.WriteByte('%')
		case i < len(format) && layouts[format[i]] != "":
			b.WriteString(t.Format(layouts[format[i]]))
		case i+1 < len(format) && format[i] == '-' && layouts[format[i+1]] != "": // without leading zeros
			i++
			b.WriteString(strings.TrimLeft(t.Format(layouts[format[i]]), "0"))
		default:
			fail("strftime: directive %q is not supported", format[i-1:])
		}
	}
	return b.String()
}
