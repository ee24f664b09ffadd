// Package pattern matches the part of Oniguruma's regular expressions that
// tokenizer files use, on UTF-8 text, with Unicode 16 classes as the Hugging
// Face library has them (Ruby syntax): literals, classes with ranges, escapes
// and \p{..}, alternation, groups, (?i:..), greedy, lazy and possessive
// quantifiers, look-ahead, atomic groups, anchors. Compile refuses the rest by
// name; it also refuses what may match nothing, since no tokenizer splits there.
//
// Matching backtracks, as the original does, within a budget of steps.
package pattern

import (
	"unicode/utf8"
)

// Regexp is a compiled pattern; safe for concurrent use.
type Regexp struct {
	prog  []inst
	first [utf8.RuneSelf]bool // ASCII characters a match can begin with
}

type op uint8

const (
	opMatch  op = iota
	opSet       // one character of the set
	opRun       // min to max characters of the set, as many as there are; y possessive
	opSplit     // try x, then y
	opJump      // to x
	opAhead     // the program from pc+1 to its opMatch must (y: must not) match here; then x
	opAtomic    // match the program from pc+1 once and for all; then x
	opAssert    // x is the kind
)

type inst struct {
	op       op
	x, y     int
	min, max int
	set      *set
}

// Machine is the scratch of matching; one per goroutine. Steps bounds the work
// that is left: Find gives up, as if nothing matched, once it is spent.
type Machine struct {
	Steps int
	stack []frame
}

type frame struct{ pc, at, low int } // low < at: characters that a run can give back

// Find returns the first match in text that begins at from or later; start is
// -1 if there is none.
func (re *Regexp) Find(m *Machine, text string, from int) (start, end int) {
	for at := from; at < len(text); {
		c := text[at]
		if c >= utf8.RuneSelf || re.first[c] {
			m.stack = m.stack[:0]
			if end := re.run(m, text, 0, at); end > at {
				return at, end
			}
			if m.Steps <= 0 {
				break
			}
		}
		if c < utf8.RuneSelf {
			at++
		} else {
			_, n := utf8.DecodeRuneInString(text[at:])
			at += n
		}
	}
	return -1, -1
}

// run matches the program from pc at a position: where the match ends, or -1.
func (re *Regexp) run(m *Machine, text string, pc, at int) int {
	base := len(m.stack)
	for {
		if m.Steps--; m.Steps <= 0 {
			return -1
		}
		ok := true
		switch in := &re.prog[pc]; in.op {
		case opMatch:
			m.stack = m.stack[:base]
			return at
		case opSet:
			var n int
			if n, ok = in.set.match(text, at); ok {
				at += n
				pc++
			}
		case opRun:
			low, n := at, 0
			for n < in.max {
				size, more := in.set.match(text, at)
				if !more {
					break
				}
				at += size
				if n++; n == in.min {
					low = at
				}
			}
			m.Steps -= n >> 3
			if ok = n >= in.min; ok {
				pc++
				if at > low && in.y == 0 {
					m.stack = append(m.stack, frame{pc, at, low})
				}
			}
		case opSplit:
			m.stack = append(m.stack, frame{in.y, at, at})
			pc = in.x
		case opJump:
			pc = in.x
		case opAhead, opAtomic:
			end := re.run(m, text, pc+1, at)
			if in.op == opAtomic {
				if ok = end >= 0; ok {
					at = end
				}
			} else {
				ok = end >= 0 == (in.y == 0)
			}
			pc = in.x
		case opAssert:
			ok = holds(in.x, text, at)
			pc++
		}
		if ok {
			continue
		}
		if len(m.stack) == base {
			return -1
		}
		f := &m.stack[len(m.stack)-1]
		if f.at > f.low {
			// A run gives back one character.
			_, n := utf8.DecodeLastRuneInString(text[:f.at])
			f.at -= n
			pc, at = f.pc, f.at
			if f.at <= f.low {
				m.stack = m.stack[:len(m.stack)-1]
			}
			continue
		}
		pc, at = f.pc, f.at
		m.stack = m.stack[:len(m.stack)-1]
	}
}

const (
	beginLine = iota
	endLine
	beginText
	endText
	endTextOrLine
	wordEdge
	noWordEdge
)

func holds(kind int, text string, at int) bool {
	switch kind {
	case beginLine:
		return at == 0 || text[at-1] == '\n' && at < len(text)
	case endLine:
		return at == len(text) || text[at] == '\n'
	case beginText:
		return at == 0
	case endText:
		return at == len(text)
	case endTextOrLine:
		return at == len(text) || text[at:] == "\n"
	}
	before, after := false, false
	if at > 0 {
		r, _ := utf8.DecodeLastRuneInString(text[:at])
		before = isWord(r)
	}
	if at < len(text) {
		r, _ := utf8.DecodeRuneInString(text[at:])
		after = isWord(r)
	}
	return before != after == (kind == wordEdge)
}
