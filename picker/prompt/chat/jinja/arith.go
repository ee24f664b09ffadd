package jinja

import (
	"math"
	"slices"
	"strings"
)

// add is Python's +.
func add(a, b any) any {
	if x, y, ok := asMarkup(a, b); ok {
		return x + y
	}
	switch a := a.(type) {
	case string:
		if s, ok := b.(string); ok {
			return a + s
		}
	case *List:
		if l, ok := b.(*List); ok && a.kind == l.kind && a.kind <= kindTuple {
			if len(a.Items)+len(l.Items) > maxList {
				fail("list is too long")
			}
			return &List{Items: append(a.Items[:len(a.Items):len(a.Items)], l.Items...), kind: a.kind}
		}
	}
	i, f, isInt, ok := number(a)
	j, g, isInt2, ok2 := number(b)
	if !ok || !ok2 {
		fail("cannot compute %s + %s", typeName(a), typeName(b))
	}
	return arithmetic("+", i, j, f, g, isInt && isInt2)
}

// repeat is text or a list times number, either way round.
func repeat(a, b any) any {
	if _, _, _, ok := number(a); ok {
		a, b = b, a
	}
	n, _, isInt, _ := number(b)
	s, ok := a.(string)
	if l, isList := a.(*List); isList && isInt && l.kind <= kindTuple {
		if n > maxList || int(n)*len(l.Items) > maxList {
			fail("list is too long")
		}
		return &List{Items: slices.Repeat(l.Items, int(max(n, 0))), kind: l.kind}
	}
	if !ok || !isInt {
		fail("cannot multiply %s and %s", typeName(a), typeName(b))
	}
	if n <= 0 {
		return ""
	}
	if n > maxOutput || int(n)*len(s) > maxOutput {
		fail("text is too long")
	}
	return strings.Repeat(s, int(n))
}

// exact refuses a result that did not fit; about is its size as a float.
func exact(n int64, about float64) int64 {
	if math.Abs(about) > 1<<62 {
		fail("number is too large")
	}
	return n
}

func arithmetic(op string, i, j int64, f, g float64, ints bool) any {
	if (op == "/" || op == "//" || op == "%") && g == 0 {
		fail("division by zero")
	}
	switch {
	case op == "/":
		return f / g
	case op == "**":
		p := math.Pow(f, g)
		if ints && j >= 0 && math.Abs(p) < 1<<53 {
			return int64(p)
		}
		if ints && j >= 0 {
			fail("number is too large")
		}
		return p
	case ints:
		switch op {
		case "+":
			return exact(i+j, f+g)
		case "-":
			return exact(i-j, f-g)
		case "*":
			return exact(i*j, f*g)
		}
		q, r := i/j, i%j // Python rounds down
		if r != 0 && (r < 0) != (j < 0) {
			q, r = q-1, r+j
		}
		if op == "//" {
			return q
		}
		return r
	}
	switch op {
	case "+":
		return f + g
	case "-":
		return f - g
	case "*":
		return f * g
	case "//":
		return math.Floor(f / g)
	}
	r := math.Mod(f, g)
	if r != 0 && (r < 0) != (g < 0) {
		r += g
	}
	return r
}
