package jinja

import (
	"math/big"
	"strconv"
	"strings"
)

// percent is Python's format % args for the conversions that templates use.
func percent(format string, args any) string {
	list := []any{args}
	l, tuple := args.(*List)
	if tuple = tuple && l.kind == kindTuple; tuple {
		list = l.Items
	}
	var b []byte
	used := 0
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b = append(b, format[i])
			continue
		}
		i++
		if i < len(format) && format[i] == '%' {
			b = append(b, '%')
			continue
		}
		start := i
		for i < len(format) && strings.IndexByte("-+ 0#123456789.", format[i]) >= 0 {
			i++
		}
		if i == len(format) || strings.IndexByte("sdirfeEgG", format[i]) < 0 {
			fail("formatting with %%%s is not supported", format[start:])
		}
		if used == len(list) {
			fail("not enough values to format")
		}
		spec := parseSpec(format[start:i], format[i])
		b = append(b, spec.percent(list[used])...)
		used++
	}
	_, mapping := args.(*Dict)
	if used < len(list) && (tuple || !mapping && l == nil) {
		fail("not all values were formatted")
	}
	return string(b)
}

// spec says how a value is written: [align][sign][0][width][.precision]kind.
type spec struct {
	fill      string
	align     byte // < > ^ or 0
	sign      byte // + or space
	zero      bool
	width     int64
	precision int // -1: none
	kind      byte
}

func parseSpec(flags string, kind byte) spec {
	s := spec{fill: " ", precision: -1, kind: kind}
	for flags != "" && strings.IndexByte("-+ 0#", flags[0]) >= 0 {
		switch flags[0] {
		case '-':
			s.align = '<'
		case '0':
			s.zero = true
		case '#':
			fail("formatting with # is not supported")
		default:
			s.sign = flags[0]
		}
		flags = flags[1:]
	}
	s.size(flags)
	if s.align == 0 {
		s.align = '>'
	}
	return s
}

// size reads width.precision.
func (s *spec) size(text string) {
	width, precision, dot := strings.Cut(text, ".")
	if width != "" {
		s.width = size(width)
	}
	if dot {
		s.precision = int(size(precision))
	}
}

func size(text string) int64 {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n > 1000 {
		fail("size %q of a format is not supported", text)
	}
	return int64(n)
}

func (s spec) percent(v any) string {
	switch s.kind {
	case 's', 'r':
		s.zero = false
		text := toStr(v)
		if s.kind == 'r' {
			text = string(appendRepr(nil, v))
		}
		return s.text(text)
	case 'd', 'i':
		if f, ok := v.(float64); ok {
			v = exact(int64(f), f)
		}
		s.kind = 'd'
		if s.align == '<' {
			s.zero = false
		}
	}
	if _, big := v.(*big.Int); !big {
		if _, _, _, ok := number(v); !ok {
			fail("formatting: want a number, not %s", typeName(v))
		}
	}
	return s.number(v)
}

// text cuts and pads.
func (s spec) text(text string) string {
	if chars := []rune(text); s.precision >= 0 && s.precision < len(chars) {
		text = string(chars[:s.precision])
	}
	return s.pad(text, '<')
}

func (s spec) pad(text string, absent byte) string {
	if s.align == 0 {
		s.align = absent
	}
	how := map[byte]string{'<': "ljust", '>': "rjust", '^': "center"}[s.align]
	if how == "center" {
		// unlike str.center, format puts the odd one behind
		left := (s.width - int64(len([]rune(text)))) / 2
		text = pad(text, int64(len([]rune(text)))+max(left, 0), s.fill, "rjust")
		how = "ljust"
	}
	return pad(text, s.width, s.fill, how)
}

func (s spec) number(v any) string {
	i, f, isInt, _ := number(v)
	var text string
	switch s.kind {
	case 'd':
		if x, ok := v.(*big.Int); ok {
			text = x.String()
		} else if !isInt {
			fail("formatting: want a whole number")
		} else {
			text = strconv.FormatInt(i, 10)
		}
		if s.precision >= 0 {
			fail("precision of a whole number is not supported")
		}
	case 'f', 'F', 'e', 'E':
		if s.precision < 0 {
			s.precision = 6
		}
		text = strconv.FormatFloat(f, s.kind|0x20, s.precision, 64)
		if s.kind == 'E' {
			text = strings.ToUpper(text)
		}
	default:
		fail("format type %c is not supported", s.kind)
	}
	if strings.ContainsAny(text, "NI") {
		fail("formatting %s is not supported", text)
	}
	if s.sign != 0 && text[0] != '-' {
		text = string(s.sign) + text
	}
	if s.zero {
		sign := text[:len(text)-len(strings.TrimLeft(text, "+- "))]
		return sign + pad(text[len(sign):], s.width-int64(len(sign)), "0", "rjust")
	}
	return s.pad(text, '>')
}

// format is Python's str.format for fields {}, {0} and {name}, each with
// !r, !s and a simple specification.
func format(text string, p params) string {
	var b []byte
	next := 0
	for text != "" {
		at := strings.IndexAny(text, "{}")
		if at < 0 {
			break
		}
		b = append(b, text[:at]...)
		brace := text[at]
		if text = text[at+1:]; text != "" && text[0] == brace {
			b = append(b, brace)
			text = text[1:]
			continue
		}
		field, rest, ok := strings.Cut(text, "}")
		if brace == '}' || !ok || strings.Contains(field, "{") {
			fail("format: single brace")
		}
		text = rest
		name, how, _ := strings.Cut(field, ":")
		name, conversion, converted := strings.Cut(name, "!")
		var v any
		var found bool
		if name == "" {
			name, next = strconv.Itoa(next), next+1
		}
		if n, err := strconv.ParseUint(name, 10, 16); err == nil {
			if found = int(n) < len(p.args); found {
				v = p.args[n]
			}
		} else {
			v, found = named(p.kw, name)
		}
		if !found {
			fail("format: field %q is not supported or has no value", name)
		}
		if converted {
			switch conversion {
			case "s":
				v = toStr(v)
			case "r":
				v = string(appendRepr(nil, v))
			default:
				fail("format: conversion %q is not supported", conversion)
			}
		}
		b = append(b, formatField(v, how)...)
	}
	return string(append(b, text...))
}

func formatField(v any, how string) string {
	if how == "" {
		return toStr(v)
	}
	s := spec{fill: " ", precision: -1}
	if chars := []rune(how); len(chars) > 1 && strings.ContainsRune("<>^", chars[1]) {
		s.fill, s.align, how = string(chars[0]), byte(chars[1]), string(chars[2:])
	} else if strings.ContainsRune("<>^", chars[0]) {
		s.align, how = byte(chars[0]), how[1:]
	}
	if how != "" && (how[0] == '+' || how[0] == ' ' || how[0] == '-') {
		if how[0] != '-' {
			s.sign = how[0]
		}
		how = how[1:]
	}
	if strings.HasPrefix(how, "0") && s.align == 0 {
		s.zero, how = true, how[1:]
	}
	if how != "" && strings.IndexByte("sdfFeE", how[len(how)-1]) >= 0 {
		s.kind, how = how[len(how)-1], how[:len(how)-1]
	}
	s.size(how)
	_, isText := v.(string)
	_, _, isInt, isNumber := number(v)
	_, isBool := v.(bool)
	switch {
	case isText && (s.kind == 0 || s.kind == 's') && !s.zero && s.sign == 0:
		return s.text(v.(string))
	case isNumber && !isBool && s.kind == 0 && isInt:
		s.kind = 'd'
	case isNumber && !isBool && s.kind != 0 && s.kind != 's':
	default:
		fail("format: this specification is not supported for a %s", typeName(v))
	}
	return s.number(v)
}
