package pattern

import (
	"strings"
	"testing"
)

// all joins the matches in text by |.
func all(re *Regexp, text string) string {
	m := &Machine{Steps: 1 << 20}
	var out []string
	for at := 0; ; {
		from, to := re.Find(m, text, at)
		if from < 0 {
			return strings.Join(out, "|")
		}
		out = append(out, text[from:to])
		at = to
	}
}

func TestMatch(t *testing.T) {
	tests := []struct{ pattern, text, want string }{
		{`abc`, "xabcabc", "abc|abc"},
		{`a|ab`, "ab", "a"},
		{`(?:a|ab)c`, "abc", "abc"},
		{`[a-c]+`, "abcdcba", "abc|cba"},
		{`[^a-c]+`, "abcdefabc", "def"},
		{`[^\s\p{L}]+`, "a1 !é", "1|!"},
		{`[\]\-x]+`, "a]-x", "]-x"},
		{`\p{Lu}\p{Ll}*`, "HelloWorldÉté", "Hello|World|Été"},
		{`\P{L}+`, "ab12cd", "12"},
		{`\p{^L}+`, "ab12cd", "12"},
		{`\p{N}{1,3}`, "12345", "123|45"},
		{`a{2}`, "aaaaa", "aa|aa"},
		{`a{2,}`, "aaaaa", "aaaaa"},
		{`ba{,2}`, "baaa", "baa"},
		{`(?:ab){1,2}`, "ababab", "abab|ab"},
		{`a+?b?`, "aab", "a|ab"},
		{`<.+?>`, "<a><b>", "<a>|<b>"},
		{`<.+>`, "<a><b>", "<a><b>"},
		{`a++ab|a`, "aab", "a|a"},
		{`(?:ab|a)++b|x`, "abx", "x"},
		{`(?>a|ab)c|b`, "abc", "b"},
		{`(?i:'s|k)`, "'S 'ſ K \u212a", "'S|'ſ|K|\u212a"},
		{`(?i:[a-c]+)d`, "ABcd", "ABcd"},
		{`\s+(?!\S)|\s+`, "a   b  ", "  | |  "},
		{`x(?=y)`, "xxy", "x"},
		{`(?!a)\w`, "ab", "b"},
		{`^x|x$`, "xax\nx", "x|x|x"},
		{`\Ax|x\z`, "xxx", "x|x"},
		{`\bthe\b`, "the other the", "the|the"},
		{`\Bx`, "xx", "x"},
		{`x\Z`, "x\nx\n", "x"},
		{`\x41\x{1F642}\u00e9`, "A🙂é", "A🙂é"},
		{`\d+\D`, "12a", "12a"},
		{`\r\n|\t`, "\r\n\t", "\r\n|\t"},
		{`.+`, "a\nb", "a|b"},
		{`(?:a{2})+`, "aaaaa", "aaaa"},
		{`a{1,2}+`, "aaaaa", "aaaaa"}, // Ruby: the + repeats the interval
		{`日本+`, "日本本", "日本本"},
		{`\w+`, "a²\u200db", "a²|b"},
		{"\U00010d4a", "\U00010d4a", "\U00010d4a"},
		{`\p{L}`, "\U00010d4a", "\U00010d4a"}, // Unicode 16
	}
	for _, tt := range tests {
		t.Run(tt.pattern, func(t *testing.T) {
			re, err := Compile(tt.pattern)
			if err != nil {
				t.Fatal(err)
			}
			if got := all(re, tt.text); got != tt.want {
				t.Errorf("on %q: %q, want %q", tt.text, got, tt.want)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	for _, p := range []string{
		``, `a*`, `a|`, `(?:)`, `(`, `)`, `[`, `[]`, `[a`, `[a[b]]`, `[a&&b]`, `a{`, `a{2,1}`, `a{x}`, `a{2}?`, `*`, `\`, `\1`, `\k<x>`, `\p{Greek}`, `\pL`, `(?<=a)b`,
		`(?<!a)b`, `(?<n>a)`, `(?m:a)`, `(?:a*)*b`, `(?i:é)`, `(?i:\p{Lu})`, `\h`, `[z-a]`, `(?=a)+b`, `\xFF`, strings.Repeat("(", 200) + strings.Repeat(")", 200), `(?:(?:a{1000}){1000}){1000}`, strings.Repeat("a", maxSource+1),
	} {
		if _, err := Compile(p); err == nil {
			t.Errorf("%.60q was accepted", p)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, p := range []string{`(?i:'s|'t)|[^\r\n\p{L}]?\p{L}+|\s+(?!\S)|\s+`, `a{2,3}?b`, `(?>a|b)++`, `[\x{41}-Z]`} {
		f.Add(p, "it's a test\n ab")
	}
	f.Fuzz(func(t *testing.T, p, text string) {
		re, err := Compile(p)
		if err != nil {
			return
		}
		m := &Machine{Steps: 1 << 16}
		for at := 0; ; {
			from, to := re.Find(m, text, at)
			if from < 0 {
				return
			}
			if from < at || to <= from || to > len(text) {
				t.Fatalf("%q on %q from %d: match %d to %d", p, text, at, from, to)
			}
			at = to
		}
	})
}
