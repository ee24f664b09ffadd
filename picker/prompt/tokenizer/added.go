package tokenizer

import (
	"cmp"
	"slices"
)

// addedTokens finds added tokens in text, leftmost first and the longest of
// those that begin at the same place.
type addedTokens struct {
	first   [256][]addedToken // by first byte, longest first
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
	for _, l := range a.first {
		slices.SortStableFunc(l, func(x, y addedToken) int { return cmp.Compare(len(y.content), len(x.content)) })
	}
	return a
}

// find returns where the first added token begins, its length and id; length 0
// if there is none.
func (a *addedTokens) find(text string) (at, n int, id uint32) {
	for i := range len(text) {
		for _, t := range a.first[text[i]] {
			if len(text)-i >= len(t.content) && text[i:i+len(t.content)] == t.content {
				return i, len(t.content), t.id
			}
		}
	}
	return 0, 0, 0
}
