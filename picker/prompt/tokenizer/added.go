package tokenizer

import (
	"cmp"
	"slices"
	"strings"
)

// addedTokens finds added tokens in text, leftmost first and the longest of
// those that begin at the same place.
type addedTokens struct {
	first   [256][]addedToken // by first byte, longest first
	starts  string            // the first bytes that occur
	special map[uint32]bool
}

type addedToken struct {
	content string
	id      uint32
}

func newAddedTokens(list []addedToken) addedTokens {
	a := addedTokens{special: map[uint32]bool{}}
	for _, t := range list {
		a.first[t.content[0]] = append(a.first[t.content[0]], t)
	}
	for b, l := range a.first {
		if len(l) > 0 {
			a.starts += string([]byte{byte(b)})
		}
		slices.SortStableFunc(l, func(x, y addedToken) int { return cmp.Compare(len(y.content), len(x.content)) })
	}
	return a
}

// find returns where the first added token begins, its length and id; length 0
// if there is none.
func (a *addedTokens) find(text string) (at, n int, id uint32) {
	for i := 0; i < len(text); i++ {
		if len(a.starts) == 1 { // the usual case: all begin with <
			n := strings.IndexByte(text[i:], a.starts[0])
			if n < 0 {
				break
			}
			i += n
		}
		for _, t := range a.first[text[i]] {
			if len(text)-i >= len(t.content) && text[i:i+len(t.content)] == t.content {
				return i, len(t.content), t.id
			}
		}
	}
	return 0, 0, 0
}
