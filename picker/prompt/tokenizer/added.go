package tokenizer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer/internal/ucd"
)

// addedToken is a token that is found in text before anything is merged.
type addedToken struct {
	content        string // as it is searched: normalized if the token is
	id             uint32
	singleWord     bool
	lstrip, rstrip bool
}

// addedTokens finds added tokens in text, leftmost first and the longest of
// those that begin at the same place.
type addedTokens struct {
	tokens map[string]addedToken
	first  [256]bool            // bytes that one begins with
	only   int                  // the only such byte; -1: there are several
	sizes  map[[2]byte][]int    // by the first two bytes: lengths, longest first
	single map[byte]*addedToken // tokens of one byte
	odd    bool                 // some have lstrip, rstrip or single_word
}

func newAddedTokens(list []addedToken) (addedTokens, error) {
	a := addedTokens{tokens: map[string]addedToken{}, only: -1, sizes: map[[2]byte][]int{}, single: map[byte]*addedToken{}}
	firsts := 0
	for _, t := range list {
		if _, ok := a.tokens[t.content]; ok {
			return a, fmt.Errorf("two tokens are written %q", t.content)
		}
		a.tokens[t.content] = t
		a.odd = a.odd || t.lstrip || t.rstrip || t.singleWord
		c := t.content[0]
		if !a.first[c] {
			a.first[c], a.only = true, int(c)
			firsts++
		}
		if len(t.content) == 1 {
			a.single[c] = &t
			continue
		}
		key := [2]byte{c, t.content[1]}
		if !slices.Contains(a.sizes[key], len(t.content)) {
			a.sizes[key] = append(a.sizes[key], len(t.content))
		}
	}
	for _, l := range a.sizes {
		slices.SortFunc(l, func(x, y int) int { return cmp.Compare(y, x) })
	}
	if firsts > 1 {
		a.only = -1
	}
	return a, nil
}

// find returns the first token at or after from; at is -1 if there is none.
func (a *addedTokens) find(text string, from int) (at int, t addedToken) {
	if len(a.tokens) == 0 {
		return -1, t
	}
	for i := from; i < len(text); i++ {
		if a.only >= 0 { // the usual case: all begin with <
			n := strings.IndexByte(text[i:], byte(a.only))
			if n < 0 {
				break
			}
			i += n
		} else if !a.first[text[i]] {
			continue
		}
		if i+1 < len(text) {
			for _, n := range a.sizes[[2]byte{text[i], text[i+1]}] {
				if n > len(text)-i {
					continue
				}
				if t, ok := a.tokens[text[i:i+n]]; ok {
					return i, t
				}
			}
		}
		if t := a.single[text[i]]; t != nil {
			return i, *t
		}
	}
	return -1, t
}

// place is where the next token of a text stands.
type place struct {
	token       addedToken
	start, stop int // with the white space that the token takes
	search      int // where the search goes on: the token's own end
}

// next finds the next token as the reference does (AddedVocabulary's
// find_matches in tokenizers 0.23): done is the end of the last one with its
// white space, search where to look from. A token that is no single word is
// passed over whole.
func (a *addedTokens) next(text string, done, search int) (p place, ok bool) {
	for {
		at, t := a.find(text, search)
		if at < 0 {
			return p, false
		}
		p = place{token: t, start: at, stop: at + len(t.content), search: at + len(t.content)}
		if !a.odd {
			return p, true
		}
		if t.singleWord && (wordBefore(text[:p.start]) || wordAfter(text[p.stop:])) {
			search = p.search
			continue
		}
		if t.lstrip {
			p.start = max(len(trimRight(text[:p.start])), done)
		}
		if t.rstrip {
			p.stop += len(text[p.stop:]) - len(trimLeft(text[p.stop:]))
		}
		return p, true
	}
}

func trimLeft(s string) string  { return strings.TrimLeftFunc(s, ucd.Space) }
func trimRight(s string) string { return strings.TrimRightFunc(s, ucd.Space) }

func wordBefore(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && ucd.Load().Props(r)&ucd.Word != 0
}

func wordAfter(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && ucd.Load().Props(r)&ucd.Word != 0
}

// independent tells whether cutting at a token leaves the search behind it as
// it was: next looks at what stands before the place it begins at only for
// single_word tokens (does a word end there?) and for tokens that begin inside
// white space that the token before took.
func (a *addedTokens) independent() bool {
	single, endsInWord, takesSpace, startsInSpace := false, false, false, false
	for _, t := range a.tokens {
		single = single || t.singleWord
		endsInWord = endsInWord || wordBefore(t.content)
		takesSpace = takesSpace || t.rstrip
		startsInSpace = startsInSpace || trimLeft(t.content) != t.content
	}
	return !(single && endsInWord) && !(takesSpace && startsInSpace)
}
