package ucd

import (
	"strings"
	"testing"
)

func TestNormalForms(t *testing.T) {
	u := Load()
	tests := []struct{ name, in, nfc, nfd, nfkc, nfkd string }{
		{"ascii", "abc", "abc", "abc", "abc", "abc"},
		{"accent", "e\u0301x", "éx", "e\u0301x", "éx", "e\u0301x"},
		{"order", "a\u0301\u0323", "ạ\u0301", "a\u0323\u0301", "ạ\u0301", "a\u0323\u0301"},
		{"blocked", "a\u0300\u0301", "à\u0301", "a\u0300\u0301", "à\u0301", "a\u0300\u0301"},
		{"hangul", "\u1112\u1161\u11ab", "한", "\u1112\u1161\u11ab", "한", "\u1112\u1161\u11ab"},
		{"syllable and final", "\uac00\u11a8", "각", "\u1100\u1161\u11a8", "각", "\u1100\u1161\u11a8"},
		{"excluded", "\u0958", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c", "\u0915\u093c"},
		{"singleton", "\u212b", "Å", "A\u030a", "Å", "A\u030a"},
		{"ligature", "ﬁ", "ﬁ", "ﬁ", "fi", "fi"},
		{"newer than the library's tables", "\u32ff", "\u32ff", "\u32ff", "\u32ff", "\u32ff"},
		{"long run", "e" + strings.Repeat("\u0301", 40), "é" + strings.Repeat("\u0301", 39), "e" + strings.Repeat("\u0301", 40), "é" + strings.Repeat("\u0301", 39), "e" + strings.Repeat("\u0301", 40)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, f := range []struct {
				name, want string
				form       func(string) string
			}{{"NFC", tt.nfc, u.NFC}, {"NFD", tt.nfd, u.NFD}, {"NFKC", tt.nfkc, u.NFKC}, {"NFKD", tt.nfkd, u.NFKD}} {
				if got := f.form(tt.in); got != f.want {
					t.Errorf("%s(%+q) = %+q, want %+q", f.name, tt.in, got, f.want)
				}
			}
		})
	}
}

// TestStable checks the short cut of NFC against the whole algorithm.
func TestStable(t *testing.T) {
	u := Load()
	for r := rune(0); r < 0x20000; r++ {
		if 0xD800 <= r && r < 0xE000 {
			continue
		}
		for _, s := range []string{string(r), "e" + string(r), string(r) + "\u0301", "\u1100" + string(r)} {
			if got, want := u.NFC(s), text(u.composed(u.decompose(nil, s, false))); got != want {
				t.Fatalf("NFC(%+q) = %+q, want %+q", s, got, want)
			}
		}
	}
}

func TestProps(t *testing.T) {
	u := Load()
	tests := []struct {
		r    rune
		mask string
		word bool
	}{{'a', "Ll", true}, {'A', "L", true}, {'5', "N", true}, {' ', "Zs", false}, {'_', "Pc", true}, {0x301, "M", true}, {0x10D4A, "Lo", true}, {0x10FFFF, "Cn", false}}
	for _, tt := range tests {
		p := u.Props(tt.r)
		if !p.In(MaskOf(tt.mask)) || p&Word != 0 != tt.word {
			t.Errorf("%U: properties %#x, want %s, word %v", tt.r, p, tt.mask, tt.word)
		}
	}
	if u.Lower("İIſẞ") != "i\u0307iſß" {
		t.Errorf("Lower = %+q", u.Lower("İIſẞ"))
	}
	if !u.Numeric('Ⅷ') || u.Numeric('x') || !u.Punctuation('!') || !u.Punctuation('$') || u.Punctuation('a') {
		t.Error("numeric or punctuation wrong")
	}
}
