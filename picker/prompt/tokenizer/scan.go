package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// scanner reads the two large parts of a file, which encoding/json has found to
// be valid JSON, without building a tree of them.
type scanner struct {
	data []byte
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// take skips c and white space around it.
func (s *scanner) take(c byte) bool {
	s.space()
	if s.at >= len(s.data) || s.data[s.at] != c {
		return false
	}
	s.at++
	s.space()
	return true
}

var errNotString = errors.New("want a string")

// text reads a string: its bytes, and whether they are as they stand in data.
func (s *scanner) text() (b []byte, plain bool, err error) {
	if s.at >= len(s.data) || s.data[s.at] != '"' {
		return nil, false, errNotString
	}
	from := s.at
	for i := from + 1; i < len(s.data); i++ {
		switch s.data[i] {
		case '"':
			s.at = i + 1
			if b = s.data[from+1 : i]; bytes.IndexByte(b, '\\') < 0 {
				return b, utf8.Valid(b), nil
			}
			var v string
			if err := json.Unmarshal(s.data[from:s.at], &v); err != nil {
				return nil, false, err
			}
			return []byte(v), false, nil
		case '\\':
			i++
		}
	}
	return nil, false, errNotString
}

func (s *scanner) id() (uint32, error) {
	from, v := s.at, uint32(0)
	for s.at < len(s.data) && '0' <= s.data[s.at] && s.data[s.at] <= '9' {
		if v = v*10 + uint32(s.data[s.at]-'0'); v >= maxID {
			return 0, fmt.Errorf("id %.20s is too large", s.data[from:])
		}
		s.at++
	}
	if s.at == from {
		return 0, fmt.Errorf("id %.20q is no number", s.data[from:])
	}
	return v, nil
}

// scanVocab reads the object from tokens to ids.
func scanVocab(raw []byte) (map[string]uint32, error) {
	s := scanner{data: raw}
	if !s.take('{') {
		return nil, errors.New("no vocabulary")
	}
	kept := string(raw) // tokens are slices of it
	vocab := make(map[string]uint32, len(raw)/20)
	for !s.take('}') {
		b, plain, err := s.text()
		if err != nil {
			return nil, err
		}
		var token string
		if plain {
			token = kept[s.at-1-len(b) : s.at-1]
		} else {
			token = string(bytes.ToValidUTF8(b, []byte("\uFFFD")))
		}
		s.take(':')
		if vocab[token], err = s.id(); err != nil {
			return nil, fmt.Errorf("token %q: %w", token, err)
		}
		s.take(',')
	}
	if len(vocab) == 0 {
		return nil, errors.New("no vocabulary")
	}
	return vocab, nil
}

// scanMerges calls f for every merge: two strings or, in older files, one with
// a space. f must not keep its arguments.
func scanMerges(raw []byte, f func(a, b []byte) error) error {
	s := scanner{data: raw}
	if !s.take('[') {
		return errors.New("no merges")
	}
	for n := 0; !s.take(']'); n++ {
		pair := s.take('[')
		a, _, err := s.text()
		if err != nil {
			return fmt.Errorf("merge %d: %w", n, err)
		}
		var b []byte
		if pair {
			s.take(',')
			if b, _, err = s.text(); err != nil {
				return fmt.Errorf("merge %d: %w", n, err)
			}
			if !s.take(']') {
				return fmt.Errorf("merge %d: want two parts", n)
			}
		} else {
			var ok bool
			if a, b, ok = bytes.Cut(a, []byte{' '}); !ok || bytes.IndexByte(b, ' ') >= 0 {
				return fmt.Errorf("merge %d: want two parts with a space between them", n)
			}
		}
		if err := f(a, b); err != nil {
			return err
		}
		s.take(',')
	}
	return nil
}
