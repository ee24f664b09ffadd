package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// toStr is Python's str().
func toStr(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	switch v := v.(type) {
	case Undefined:
		return ""
	case markup:
		return string(v)
	}
	return string(appendRepr(nil, v))
}

// appendStr appends str(v).
func appendStr(dst []byte, v any) []byte {
	if s, ok := v.(string); ok {
		return append(dst, s...)
	}
	switch v := v.(type) {
	case Undefined:
		return dst
	case markup:
		return append(dst, v...)
	}
	return appendRepr(dst, v)
}

// appendRepr appends repr(v).
func appendRepr(dst []byte, v any) []byte { return reprAt(dst, v, 0) }

func reprAt(dst []byte, v any, depth int) []byte {
	if depth > maxDepth || len(dst) > 2*maxOutput {
		fail("value is too large to print")
	}
	switch v := v.(type) {
	case nil:
		return append(dst, "None"...)
	case bool:
		if v {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case *big.Int:
		return v.Append(dst, 10)
	case float64:
		return appendFloat(dst, v)
	case string:
		return appendQuoted(dst, v)
	case *List:
		open, end := byte('['), byte(']')
		switch v.kind {
		case kindTuple:
			open, end = '(', ')'
		case kindRange, kindView, kindIterator:
			fail("printing a %s is not supported", typeName(v))
		}
		dst = append(dst, open)
		for i, x := range v.Items {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = reprAt(dst, x, depth+1)
		}
		if v.kind == kindTuple && len(v.Items) == 1 {
			dst = append(dst, ',')
		}
		return append(dst, end)
	case *Dict:
		dst = append(dst, '{')
		for i, k := range v.keys {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = append(appendQuoted(dst, k), ": "...)
			dst = reprAt(dst, v.vals[i], depth+1)
		}
		return append(dst, '}')
	case Undefined:
		return append(dst, "Undefined"...)
	}
	fail("a %s has no text form here", typeName(v))
	return nil
}

// appendFloat is Python's repr of a float.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}
	abs := math.Abs(f)
	if abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	n := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	for _, c := range dst[n:] {
		if c == '.' {
			return dst
		}
	}
	return append(dst, ".0"...)
}

// appendQuoted is Python's repr of a string.
func appendQuoted(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	const hex = "0123456789abcdef"
	dst = append(dst, quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == ' ' || unicode.IsPrint(r):
			dst = utf8.AppendRune(dst, r)
		case r < 0x100:
			dst = append(dst, '\\', 'x', hex[r>>4], hex[r&15])
		case r < 0x10000:
			dst = append(dst, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			dst = append(dst, `\U`...)
			for shift := 28; shift >= 0; shift -= 4 {
				dst = append(dst, hex[r>>shift&15])
			}
		}
	}
	return append(dst, quote)
}
