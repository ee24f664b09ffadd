package jinja

import (
	"iter"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// List is a Python list, or something else that can be iterated over.
type List struct {
	Items []any
	kind  listKind
	names []string // of a named tuple's items
}

// listKind says what a List is to Python.
type listKind uint8

const (
	kindList listKind = iota
	kindTuple
	kindRange
	kindView     // what dict.keys, values and items return
	kindIterator // a generator: true, without a length, empty when it was read once
)

func iterator(items []any) *List { return &List{Items: items, kind: kindIterator} }

// indexed tells whether Python's v[i] works.
func (l *List) indexed() bool { return l.kind <= kindRange }

// Dict is a Python dict with text keys: it keeps the order of insertion.
type Dict struct {
	keys  []string
	vals  []any
	index map[string]int // nil while small
}

// markup is a text that the filters safe and escape return: what is added to it
// is escaped. (Jinja's own ~ and macros don't see it, since autoescape is off.)
type markup string

// plain is v as text if it is markup.
func plain(v any) any {
	if m, ok := v.(markup); ok {
		return string(m)
	}
	return v
}

// asMarkup is what a + b adds if one of them is markup.
func asMarkup(a, b any) (x, y markup, ok bool) {
	x, isMarkup := a.(markup)
	y, isMarkup2 := b.(markup)
	s, isText := a.(string)
	t, isText2 := b.(string)
	switch {
	case isMarkup && isText2:
		y = markup(escape(t))
	case isText && isMarkup2:
		x = markup(escape(s))
	case !isMarkup || !isMarkup2:
		return "", "", false
	}
	return x, y, true
}

// Undefined is the value of a name, attribute or item that does not exist.
type Undefined struct{ name string }

// namespace is the object that {% set ns.x %} may change.
type namespace struct{ Dict }

// bound is a method that was looked up and not called yet.
type bound struct {
	self any
	name string
}

// function is a global function.
type function func(e *env, args []any, kw []kwarg) any

type kwarg struct {
	name string
	val  any
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// Set adds a key or replaces its value in place.
func (d *Dict) Set(key string, val any) {
	if i := d.find(key); i >= 0 {
		d.vals[i] = val
		return
	}
	if d.keys == nil {
		d.keys, d.vals = make([]string, 0, 4), make([]any, 0, 4)
	}
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, val)
	switch {
	case d.index != nil:
		d.index[key] = len(d.keys) - 1
	case len(d.keys) > smallDict:
		d.reindex()
	}
}

// Get returns the value of a key.
func (d *Dict) Get(key string) (any, bool) {
	if i := d.find(key); i >= 0 {
		return d.vals[i], true
	}
	return nil, false
}

// Delete removes a key.
func (d *Dict) Delete(key string) {
	i := d.find(key)
	if i < 0 {
		return
	}
	d.keys = slices.Delete(d.keys, i, i+1)
	d.vals = slices.Delete(d.vals, i, i+1)
	d.index = nil
	if len(d.keys) > smallDict {
		d.reindex()
	}
}

// All yields the members in order.
func (d *Dict) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for i, k := range d.keys {
			if !yield(k, d.vals[i]) {
				return
			}
		}
	}
}

// smallDict is how many keys are searched in a line.
const smallDict = 8

func (d *Dict) reindex() {
	d.index = make(map[string]int, 2*len(d.keys))
	for i, k := range d.keys {
		d.index[k] = i
	}
}

func (d *Dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	for i, k := range d.keys {
		if k == key {
			return i
		}
	}
	return -1
}

// TrimSpace is Python's strip().
func TrimSpace(s string) string { return strings.TrimFunc(s, isSpace) }

// TrimRightSpace is Python's rstrip().
func TrimRightSpace(s string) string { return strings.TrimRightFunc(s, isSpace) }

func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

// typeName is Python's name of a value's type, for messages.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		return [...]string{"list", "tuple", "range", "dict view", "generator"}[v.kind]
	case *Dict:
		return "dict"
	case markup:
		return "Markup"
	case Undefined:
		return "undefined value " + strconv.Quote(v.name)
	}
	return "object"
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, Undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case markup:
		return v != ""
	case *List:
		return v.kind == kindIterator || len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	case *big.Int:
		return true // beyond 64 bits
	}
	return true
}

// number widens bool and int to what arithmetic uses: an int64 or a float64.
func number(v any) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

func toBig(v any) *big.Int {
	if n, ok := v.(int64); ok {
		return big.NewInt(n)
	}
	n, _ := v.(*big.Int)
	return n
}

// equal is Python's ==.
func equal(a, b any) bool { return equalAt(a, b, 0) }

func equalAt(a, b any, depth int) bool {
	if depth > maxDepth {
		fail("values are nested too deep")
	}
	a, b = plain(a), plain(b)
	if x, ok := a.(string); ok {
		y, ok := b.(string)
		return ok && x == y
	}
	if i, f, isInt, ok := number(a); ok {
		j, g, isInt2, ok := number(b)
		if isInt && isInt2 {
			return ok && i == j
		}
		return ok && f == g
	}
	switch x := a.(type) {
	case nil:
		return b == nil
	case *big.Int:
		y, ok := b.(*big.Int)
		return ok && x.Cmp(y) == 0
	case Undefined:
		_, ok := b.(Undefined)
		return ok
	case *List:
		y, ok := b.(*List)
		if x == y {
			return true
		}
		if !ok || x.kind != y.kind || x.kind == kindIterator || len(x.Items) != len(y.Items) {
			return false
		}
		for i := range x.Items {
			if !equalAt(x.Items[i], y.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || len(x.keys) != len(y.keys) {
			return false
		}
		for i, k := range x.keys {
			if v, ok := y.Get(k); !ok || !equalAt(x.vals[i], v, depth+1) {
				return false
			}
		}
		return true
	}
	return false
}

// order is negative, 0 or positive; values that Python cannot order are an error.
func order(a, b any) int {
	a, b = plain(a), plain(b)
	if x, ok := a.(string); ok {
		if y, ok := b.(string); ok {
			return strings.Compare(x, y) // UTF-8 sorts as code points do
		}
	}
	if i, f, isInt, ok := number(a); ok {
		if j, g, isInt2, ok := number(b); ok {
			switch {
			case isInt && isInt2 && i < j || !(isInt && isInt2) && f < g:
				return -1
			case isInt && isInt2 && i == j || !(isInt && isInt2) && f == g:
				return 0
			}
			return 1
		}
	}
	if typeName(a) == "int" && typeName(b) == "int" {
		return toBig(a).Cmp(toBig(b))
	}
	x, ok := a.(*List)
	y, ok2 := b.(*List)
	if ok && ok2 && x.kind == y.kind && x.kind <= kindTuple {
		for i := range min(len(x.Items), len(y.Items)) {
			if !equal(x.Items[i], y.Items[i]) {
				return order(x.Items[i], y.Items[i])
			}
		}
		return len(x.Items) - len(y.Items)
	}
	fail("cannot order %s and %s", typeName(a), typeName(b))
	return 0
}

// contains is Python's "x in v".
func contains(v, x any) bool {
	x = plain(x)
	switch v := plain(v).(type) {
	case string:
		s, ok := x.(string)
		if !ok {
			fail("cannot look for %s in a str", typeName(x))
		}
		return strings.Contains(v, s)
	case *List:
		for _, y := range items(v) {
			if equal(x, y) {
				return true
			}
		}
		return false
	case *Dict:
		s, ok := x.(string)
		return ok && v.find(s) >= 0
	case Undefined:
		return false
	}
	fail("cannot look into a %s", typeName(v))
	return false
}

// items is what iterating over v yields.
func items(v any) []any {
	switch v := plain(v).(type) {
	case *List:
		list := v.Items
		if v.kind == kindIterator {
			v.Items = nil
		}
		return list
	case *Dict:
		out := make([]any, len(v.keys))
		for i, k := range v.keys {
			out[i] = k
		}
		return out
	case string:
		out := make([]any, 0, len(v))
		for _, r := range v {
			out = append(out, string(r))
		}
		return out
	case Undefined:
		return nil
	}
	fail("cannot iterate over a %s", typeName(v))
	return nil
}

func length(v any) int {
	switch v := plain(v).(type) {
	case string:
		return utf8.RuneCountInString(v)
	case *List:
		if v.kind != kindIterator {
			return len(v.Items)
		}
	case *Dict:
		return len(v.keys)
	case Undefined:
		return 0
	}
	fail("a %s has no length", typeName(v))
	return 0
}
