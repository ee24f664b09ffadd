package jinja

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// Decode turns JSON that was checked before into values as Python's json module
// does: objects keep their order, a number with a point or an exponent is a
// float. What is no JSON gives an arbitrary value.
func Decode(raw []byte) any {
	var d Decoder
	return d.Decode(slices.Clone(raw))
}

// Decoder is Decode without copies: texts are parts of the JSON itself or, if
// they hold escapes, of the decoder's own memory. Both must stay as they are
// while the values are in use.
type Decoder struct{ texts []byte }

// Decode is the function of that name.
func (d *Decoder) Decode(raw []byte) any {
	if free := cap(d.texts) - len(d.texts); free < len(raw) {
		d.texts = make([]byte, 0, max(len(raw), 2*cap(d.texts)))
	}
	r := decoder{s: unsafe.String(unsafe.SliceData(raw), len(raw)), texts: d.texts}
	v := r.value(0)
	d.texts = r.texts
	return v
}

// Reset makes the memory of all values decoded before free for new ones.
func (d *Decoder) Reset() { d.texts = d.texts[:0] }

// Size is the memory that Reset keeps, in bytes.
func (d *Decoder) Size() int { return cap(d.texts) }

// decoder reads JSON; text without escapes stays a part of s.
type decoder struct {
	s     string
	i     int
	texts []byte // never longer than s: an escape is longer than what it stands for
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
	if depth > maxDepth {
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
	start := d.i + 1
	end := strings.IndexByte(d.s[start:], '"')
	if end < 0 {
		d.i = len(d.s)
		return ""
	}
	if slash := strings.IndexByte(d.s[start:start+end], '\\'); slash >= 0 {
		return d.unescape(start, start+slash)
	}
	d.i = start + end + 1
	return d.s[start : start+end]
}

// unescape reads a string that begins at start and has its first backslash at
// slash.
func (d *decoder) unescape(start, slash int) string {
	from := len(d.texts)
	out := append(d.texts, d.s[start:slash]...)
	i := slash
	for i < len(d.s) && d.s[i] != '"' {
		if d.s[i] != '\\' {
			if i >= slash { // the next one
				if slash = strings.IndexByte(d.s[i:], '\\'); slash < 0 {
					slash = len(d.s)
				} else {
					slash += i
				}
			}
			n := strings.IndexByte(d.s[i:slash], '"')
			if n < 0 {
				n = slash - i
			}
			out = append(out, d.s[i:i+n]...)
			i += n
			continue
		}
		if i+1 == len(d.s) {
			i++
			break
		}
		switch c := d.s[i+1]; c {
		case 'n':
			out = append(out, '\n')
		case 't':
			out = append(out, '\t')
		case 'r':
			out = append(out, '\r')
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'u':
			r := hex4(d.s[i:])
			if utf16.IsSurrogate(r) {
				if pair := utf16.DecodeRune(r, hex4(d.s[min(i+6, len(d.s)):])); pair != utf8.RuneError {
					r = pair
					i += 6
				}
			}
			out = utf8.AppendRune(out, r)
			i += 4
		default:
			out = append(out, c)
		}
		i += 2
	}
	d.i = min(i+1, len(d.s))
	d.texts = out
	return unsafe.String(unsafe.SliceData(out[from:]), len(out)-from)
}

// hex4 reads \uXXXX at the start of s, -1 if that is not there.
func hex4(s string) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(s[2:6], 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
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
	d.sorted = truth(p.get(3, "sort_keys", false))
	d.value(v, 0)
	return string(d.out)
}

// dumper is Python's json.dumps.
type dumper struct {
	out       []byte
	ascii     bool
	sorted    bool
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
	case markup:
		d.text(string(v))
	case *List:
		if v.kind > kindTuple {
			fail("tojson: a %s cannot be written as JSON", typeName(v))
		}
		d.open('[', len(v.Items), depth, func(i int) { d.value(v.Items[i], depth+1) }, ']')
	case *Dict:
		if d.sorted {
			v = sorted(v)
		}
		d.open('{', len(v.keys), depth, func(i int) {
			d.text(v.keys[i])
			d.out = append(d.out, d.key...)
			d.value(v.vals[i], depth+1)
		}, '}')
	default:
		fail("tojson: a %s cannot be written as JSON", typeName(v))
	}
}

// sorted is d with its keys in order.
func sorted(d *Dict) *Dict {
	keys := slices.Clone(d.keys)
	slices.Sort(keys)
	out := &Dict{}
	for _, k := range keys {
		v, _ := d.Get(k)
		out.Set(k, v)
	}
	return out
}

func (d *dumper) open(open byte, n, depth int, each func(i int), end byte) {
	if depth > maxDepth {
		fail("values are nested too deep")
	}
	d.out = append(d.out, open)
	for i := range n {
		if i > 0 {
			d.out = append(d.out, d.item...)
		}
		d.newline(depth + 1)
		each(i)
		if len(d.out) > maxOutput {
			fail("text is too long")
		}
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
