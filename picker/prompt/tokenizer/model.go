package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// model is the BPE model: from a pre-token to ids.
type model struct {
	merges pairTable
	whole  map[string]uint32 // pre-tokens that win before merging; nil unless ignore_merges

	// Byte-level: a pre-token's symbols are its bytes.
	byteLevel bool
	byteID    [256]uint32

	// Otherwise they are its characters.
	ascii    [utf8.RuneSelf]uint32 // noRank: not in the vocabulary
	chars    pairTable             // the others: (character, 0)
	fallback [256]uint32           // <0x00> to <0xFF>, noRank where missing; used if hasFallback
	unk      uint32                // noRank: characters without a token vanish
	fuseUnk  bool
	fallsAll bool // every byte has its fallback token

	hasFallback bool

	// joins are the characters between which some merge can happen, see loadJoins.
	joins      pairTable
	asciiJoins [utf8.RuneSelf][2]uint64
	cuts       bool // joins can be relied on
}

// symbols appends the ids that merging begins with (BPE::merge_word in
// tokenizers 0.23), at most one per byte. A run of unknown characters is one
// unknown token if the file says so; as in the reference, it stays pending over
// characters written as bytes.
func (t *model) symbols(dst []uint32, word string) []uint32 {
	if t.byteLevel {
		for i := range len(word) {
			dst = append(dst, t.byteID[word[i]])
		}
		return dst
	}
	pending := false
	for i := 0; i < len(word); {
		n := 1
		id := noRank
		if c := word[i]; c < utf8.RuneSelf {
			id = t.ascii[c]
		} else {
			var r rune
			if r, n = utf8.DecodeRuneInString(word[i:]); n > 1 {
				id = t.char(r)
			}
		}
		char := word[i : i+n]
		i += n
		if id != noRank {
			if pending {
				dst, pending = append(dst, t.unk), false
			}
			dst = append(dst, id)
			continue
		}
		if t.hasFallback && t.falls(char) {
			for j := range len(char) {
				dst = append(dst, t.fallback[char[j]])
			}
			continue
		}
		if t.unk == noRank {
			continue
		}
		if pending && !t.fuseUnk {
			dst = append(dst, t.unk)
		}
		pending = true
	}
	if pending {
		dst = append(dst, t.unk)
	}
	return dst
}

func (t *model) char(r rune) uint32 {
	if r < utf8.RuneSelf {
		return t.ascii[r]
	}
	if rank, id := t.chars.get(uint32(r), 0); rank != noRank {
		return id
	}
	return noRank
}

func (t *model) falls(char string) bool {
	for i := range len(char) {
		if t.fallback[char[i]] == noRank {
			return false
		}
	}
	return true
}

// encode appends the ids of a pre-token.
//
// A pre-token of characters is first cut between neighbours x, y that no merge
// can ever join, and the parts are merged alone: where a whole text is one
// pre-token (Llama 2, Gemma) this makes words of it. It is exact. Every symbol
// spells the text that it stands for, so the merge that crosses the place
// between x and y joins a symbol ending in x with one beginning with y. If no
// rule (a, b) has x last in a and y first in b, that never happens, at any
// stage; then neither part sees what the other does, and "lowest rank, leftmost
// first" over both is the same as over each. Symbols that do not spell their
// text, the fallback bytes and the unknown token, must be in no rule (cuts is
// false else); and next to a character that may become the unknown token
// nothing is cut, since runs of it are fused.
func (t *model) encode(m *merger, dst []uint32, word string) []uint32 {
	if t.byteLevel {
		if len(word) == 1 {
			return append(dst, t.byteID[word[0]])
		}
		return m.encode(t, dst, word, t.whole != nil)
	}
	if t.whole != nil {
		if id, ok := t.whole[word]; ok {
			return append(dst, id)
		}
	}
	if !t.cuts {
		return m.encode(t, dst, word, false)
	}
	from := 0
	last := rune(-1)
	for i := 0; i < len(word); {
		r, n := rune(word[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(word[i:])
		}
		if last >= 0 && !t.join(last, r) {
			dst = m.encode(t, dst, word[from:i], false)
			from = i
		}
		last = r
		i += n
	}
	return m.encode(t, dst, word[from:], false)
}

// join tells whether two neighbouring characters must stay together.
func (t *model) join(x, y rune) bool {
	if x < utf8.RuneSelf && y < utf8.RuneSelf {
		return t.asciiJoins[x][y>>6]>>(y&63)&1 != 0
	}
	if !t.fallsAll && (t.char(x) == noRank || t.char(y) == noRank) {
		return true
	}
	rank, _ := t.joins.get(uint32(x), uint32(y))
	return rank != noRank
}

func (t *model) load(f *modelFile, vocab map[string]uint32, byteLevel bool) error {
	t.byteLevel = byteLevel
	if err := t.loadSymbols(f, vocab); err != nil {
		return err
	}
	if f.IgnoreMerges {
		t.whole = make(map[string]uint32, len(vocab))
		toByte := alphabet()
		for token, id := range vocab {
			if !byteLevel {
				t.whole[token] = id
			} else if b, ok := rawBytes(token, &toByte); ok {
				t.whole[string(b)] = id
			}
		}
	}
	return t.loadMerges(f.Merges, vocab)
}

func (t *model) loadSymbols(f *modelFile, vocab map[string]uint32) error {
	if t.byteLevel {
		for r, b := range alphabet() {
			if b < 0 {
				continue
			}
			id, ok := vocab[string(rune(r))]
			if !ok {
				return fmt.Errorf("byte %#02x has no token: not a byte-level vocabulary", b)
			}
			t.byteID[b] = id
		}
		return nil
	}
	for c := range t.ascii {
		t.ascii[c] = noRank
	}
	var others []string
	for token, id := range vocab {
		r, n := utf8.DecodeRuneInString(token)
		if n == 0 || n != len(token) {
			continue
		}
		if r < utf8.RuneSelf {
			t.ascii[r] = id
		} else {
			others = append(others, token)
		}
	}
	t.chars = newPairTable(len(others))
	for _, token := range others {
		r, _ := utf8.DecodeRuneInString(token)
		t.chars.add(uint32(r), 0, 0, vocab[token])
	}
	t.fallsAll, t.hasFallback = f.ByteFallback, f.ByteFallback
	for b := range t.fallback {
		id, ok := vocab[fmt.Sprintf("<0x%02X>", b)]
		if !ok {
			id, t.fallsAll = noRank, false
		}
		t.fallback[b] = id
	}
	t.unk, t.fuseUnk = noRank, f.FuseUnk
	if f.Unk != nil && *f.Unk != "" {
		id, ok := vocab[*f.Unk]
		if !ok {
			return fmt.Errorf("unknown token %q is not in the vocabulary", *f.Unk)
		}
		t.unk = id
	}
	return nil
}

func (t *model) loadMerges(raw []byte, vocab map[string]uint32) error {
	if len(raw) == 0 {
		return errors.New("no merges")
	}
	if string(raw) == "null" {
		return errors.New("merges is null")
	}
	n := max(bytes.Count(raw, []byte{'\n'}), len(raw)/16)
	t.merges = newPairTable(min(n, maxID))
	joins := map[[2]rune]bool{}
	opaque := t.opaque()
	t.cuts = !t.byteLevel
	rank := uint32(0)
	var both []byte
	err := scanMerges(raw, func(a, b []byte) error {
		left, ok1 := vocab[string(a)]
		right, ok2 := vocab[string(b)]
		both = append(append(both[:0], a...), b...)
		into, ok3 := vocab[string(both)]
		if !ok1 || !ok2 || !ok3 {
			return fmt.Errorf("merge %d, %q with %q: not in the vocabulary", rank, a, b)
		}
		if int(rank) >= len(t.merges.slots)/2 {
			t.merges = t.merges.doubled()
		}
		t.merges.add(left, right, rank, into)
		rank++
		if t.cuts {
			x, _ := utf8.DecodeLastRune(a)
			y, _ := utf8.DecodeRune(b)
			joins[[2]rune{x, y}] = true
			t.cuts = !opaque[left] && !opaque[right]
		}
		return nil
	})
	if err == nil && t.cuts {
		t.loadJoins(joins)
	}
	return err
}

// doubled is the same table with twice the room.
func (p *pairTable) doubled() pairTable {
	out := newPairTable(len(p.slots))
	for _, s := range p.slots {
		if k := s.key - 1; s.key != 0 {
			out.add(uint32(k>>32), uint32(k), uint32(s.val>>32), uint32(s.val))
		}
	}
	return out
}

// opaque are the symbols whose token is not the text that they stand for.
func (t *model) opaque() map[uint32]bool {
	ids := map[uint32]bool{t.unk: true}
	if t.hasFallback {
		for _, id := range t.fallback {
			ids[id] = true
		}
	}
	delete(ids, noRank)
	return ids
}

func (t *model) loadJoins(joins map[[2]rune]bool) {
	t.joins = newPairTable(len(joins))
	for p := range joins {
		t.joins.add(uint32(p[0]), uint32(p[1]), 0, 0)
		if p[0] < utf8.RuneSelf && p[1] < utf8.RuneSelf {
			t.asciiJoins[p[0]][p[1]>>6] |= 1 << (p[1] & 63)
		}
	}
	if t.fallsAll {
		return
	}
	for x := range t.asciiJoins {
		for y := range t.ascii {
			if t.ascii[x] == noRank || t.ascii[y] == noRank {
				t.asciiJoins[x][y>>6] |= 1 << (y & 63)
			}
		}
	}
}

// alphabet maps the characters below U+0180 that stand for bytes in byte-level
// vocabularies (GPT-2's table): printable Latin-1 stands for itself, the rest
// for U+0100 up; -1: stands for none.
func alphabet() [0x180]int16 {
	var m [0x180]int16
	for r := range m {
		m[r] = -1
	}
	next := 0x100
	for b := range 256 {
		if '!' <= b && b <= '~' || 0xA1 <= b && b <= 0xAC || 0xAE <= b {
			m[b] = int16(b)
			continue
		}
		m[next] = int16(b)
		next++
	}
	return m
}

// rawBytes decodes a token as the ByteLevel decoder does: a character outside
// the alphabet makes the whole token stand for itself.
func rawBytes(token string, toByte *[0x180]int16) (b []byte, ok bool) {
	b = make([]byte, 0, len(token))
	for _, r := range token {
		if int(r) >= len(toByte) || toByte[r] < 0 {
			return []byte(token), false
		}
		b = append(b, byte(toByte[r]))
	}
	return b, true
}
