package openai

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
)

// maxDepth bounds the nesting of arrays and objects in a body. Tool schemas
// seen in practice stay below 30.
const maxDepth = 256

var (
	errDepth = fmt.Errorf("nested deeper than %d levels", maxDepth)
	errEnd   = errors.New("ends in the middle of a value")
)

// scanner walks JSON text without building values.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) errorf(format string, args ...any) error {
	return fmt.Errorf("at byte %d: %s", s.i, fmt.Sprintf(format, args...))
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.i < len(s.b) {
		switch c := s.b[s.i]; c {
		case ' ', '\n', '\t', '\r':
			s.i++
		default:
			return c
		}
	}
	return 0
}

// value skips one value and returns its raw text.
func (s *scanner) value(depth int) ([]byte, error) {
	s.peek()
	start := s.i
	err := s.skip(depth)
	return s.b[start:s.i], err
}

func (s *scanner) skip(depth int) error {
	switch c := s.peek(); {
	case c == '{':
		return s.object(depth, nil)
	case c == '[':
		return s.array(depth, nil)
	case c == '"':
		return s.str()
	case c == '-' || '0' <= c && c <= '9':
		return s.number()
	case c == 0 && s.i >= len(s.b):
		return errEnd
	}
	for _, word := range [...]string{"true", "false", "null", "NaN", "Infinity"} {
		if s.word(word) {
			return nil
		}
	}
	return s.errorf("no JSON value starts with %q", s.b[s.i])
}

func (s *scanner) word(w string) bool {
	if len(s.b)-s.i >= len(w) && string(s.b[s.i:s.i+len(w)]) == w {
		s.i += len(w)
		return true
	}
	return false
}

// object walks an object; each (may be nil) gets the raw key with its quotes
// and the raw value of each member, in order.
func (s *scanner) object(depth int, each func(key, value []byte) error) error {
	if depth >= maxDepth {
		return errDepth
	}
	s.i++ // {
	if s.peek() == '}' {
		s.i++
		return nil
	}
	for {
		if s.peek() != '"' {
			return s.expected("a key in quotes")
		}
		k := s.i
		if err := s.str(); err != nil {
			return err
		}
		key := s.b[k:s.i]
		if s.peek() != ':' {
			return s.expected("a colon")
		}
		s.i++
		v, err := s.value(depth + 1)
		if err != nil {
			return err
		}
		if each != nil {
			if err := each(key, v); err != nil {
				return err
			}
		}
		switch s.peek() {
		case ',':
			s.i++
		case '}':
			s.i++
			return nil
		default:
			return s.expected("a comma or a closing brace")
		}
	}
}

// array walks an array; each (may be nil) gets the raw elements in order.
func (s *scanner) array(depth int, each func(value []byte) error) error {
	if depth >= maxDepth {
		return errDepth
	}
	s.i++ // [
	if s.peek() == ']' {
		s.i++
		return nil
	}
	for {
		v, err := s.value(depth + 1)
		if err != nil {
			return err
		}
		if each != nil {
			if err := each(v); err != nil {
				return err
			}
		}
		switch s.peek() {
		case ',':
			s.i++
		case ']':
			s.i++
			return nil
		default:
			return s.expected("a comma or a closing bracket")
		}
	}
}

func (s *scanner) expected(what string) error {
	if s.i >= len(s.b) {
		return errEnd
	}
	return s.errorf("want %s, not %q", what, s.b[s.i])
}

func (s *scanner) str() error {
	s.i++ // opening quote
	for {
		s.i = stop(s.b, s.i)
		if s.i >= len(s.b) {
			return errEnd
		}
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
		case c < ' ':
			return s.errorf("control character %#02x in a string", c)
		}
	}
}

// stop is where a string that goes on at b[i] stops, or is more than text: at a quote that ends
// it, a control character or an escape other than the common ones; len(b) if it does neither. It
// looks at eight bytes at once: (x-ones)&^x has the top bit of the lowest zero byte of x set, and
// no lower one.
func stop(b []byte, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for i+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^ones*'"', x^ones*'\\'
		found := ((quote-ones)&^quote | (slash-ones)&^slash | (x-ones*' ')&^x) & tops
		if found == 0 {
			i += 8
			continue
		}
		i += bits.TrailingZeros64(found) / 8
		if b[i] != '\\' || i+1 >= len(b) || !simpleEscape(b[i+1]) {
			return i
		}
		i += 2
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
		i++
	}
	return i
}

// simpleEscape reports whether c and a backslash before it are an escape.
func simpleEscape(c byte) bool {
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	}
	return false
}

func (s *scanner) escape() error {
	if s.i+1 >= len(s.b) {
		return errEnd
	}
	switch c := s.b[s.i+1]; {
	case simpleEscape(c):
		s.i += 2
		return nil
	case c == 'u':
		if s.i+6 > len(s.b) {
			return errEnd
		}
		for _, h := range s.b[s.i+2 : s.i+6] {
			if ('0' > h || h > '9') && ('a' > h|0x20 || h|0x20 > 'f') {
				return s.errorf("bad \\u escape")
			}
		}
		s.i += 6
		return nil
	}
	return s.errorf("bad escape \\%c", s.b[s.i+1])
}

func (s *scanner) number() error {
	if s.b[s.i] == '-' {
		s.i++
		if s.word("Infinity") {
			return nil
		}
	}
	zero := s.i < len(s.b) && s.b[s.i] == '0'
	n := s.digits()
	if n == 0 || zero && n > 1 {
		return s.errorf("bad number")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if s.digits() == 0 {
			return s.errorf("bad number")
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if s.digits() == 0 {
			return s.errorf("bad number")
		}
	}
	return nil
}

func (s *scanner) digits() int {
	start := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i - start
}

// byteOrderMark may precede a body: Python's json module skips it.
var byteOrderMark = []byte("\ufeff")

// members calls each for every member of the object b, keys decoded. b must
// hold one object and white space only.
func members(b []byte, each func(key string, value []byte) error) error {
	s := scanner{b: b}
	if bytes.HasPrefix(b, byteOrderMark) {
		s.i = len(byteOrderMark)
	}
	if s.peek() != '{' {
		if s.i >= len(b) {
			return errors.New("is empty, want a JSON object")
		}
		return errors.New("want a JSON object")
	}
	err := s.object(0, func(k, v []byte) error {
		key, err := unquote(k)
		if err != nil {
			return err
		}
		return each(key, v)
	})
	if err != nil {
		return err
	}
	if s.peek(); s.i < len(b) {
		return s.errorf("more text after the object")
	}
	return nil
}

// member returns the value of the last member called name, nil if absent or if
// b is no object. b was checked before.
func member(b []byte, name string) []byte {
	var got []byte
	if len(b) == 0 || b[0] != '{' {
		return nil
	}
	_ = members(b, func(k string, v []byte) error {
		if k == name {
			got = v
		}
		return nil
	})
	return got
}

// elements calls each for every element of the array b.
func elements(b []byte, each func(v []byte) error) error {
	s := scanner{b: b}
	if s.peek() != '[' {
		return errors.New("want a list")
	}
	return s.array(0, each)
}

// unquote decodes a checked JSON string.
func unquote(q []byte) (string, error) {
	if bytes.IndexByte(q, '\\') < 0 {
		return string(q[1 : len(q)-1]), nil
	}
	var out string
	if err := json.Unmarshal(q, &out); err != nil {
		return "", fmt.Errorf("decode string: %w", err)
	}
	return out, nil
}

func isNull(b []byte) bool { return len(b) == 0 || b[0] == 'n' }

func text(b []byte) (string, error) {
	switch {
	case isNull(b):
		return "", nil
	case b[0] != '"':
		return "", errors.New("want a string")
	}
	return unquote(b)
}

// integer reads a whole number the way Python's lenient readers do: 3, 3.0
// and "3" are all 3.
func integer(b []byte) (int, error) {
	if isNull(b) {
		return 0, nil
	}
	if b[0] == '"' {
		b = b[1 : len(b)-1]
	}
	if n, err := strconv.Atoi(string(b)); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, errors.New("want a whole number")
	}
	return int(f), nil
}

// boolean reads a flag the way pydantic does, which reads bodies for vLLM: words
// in any case and numbers do too.
func boolean(b []byte, absent bool) (bool, error) {
	if isNull(b) {
		return absent, nil
	}
	if b[0] == '"' {
		b = bytes.ToLower(b[1 : len(b)-1])
		switch string(b) {
		case "t", "y", "yes", "on":
			return true, nil
		case "f", "n", "no", "off":
			return false, nil
		}
	}
	switch string(b) {
	case "true", "1", "1.0":
		return true, nil
	case "false", "0", "0.0":
		return false, nil
	}
	return false, errors.New("want true or false")
}
