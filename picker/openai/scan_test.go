package openai

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

// A body is taken if it is UTF-8 and JSON, whatever stands at which place of the scanner's eight bytes.
func TestParseTakesJSONOnly(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "abcdefg", `\n`, `\"`, `\u00e9`, "é", "日本", "🙂", "\U0010ffff", "日本語の文章です", "\xff", "\x80", "\xe6\x97", "\xed\xa0\x80", "\xc0\xaf", "\x01", `\x`}
	taken := 0
	for range 20000 {
		var b strings.Builder
		b.WriteString(`{"k":"`)
		for range rng.IntN(8) {
			b.WriteString(pieces[min(rng.IntN(len(pieces)), rng.IntN(2*len(pieces)))]) // more of the first
		}
		b.WriteString(`"}`)
		body := []byte(b.String())
		_, err := Parse("/", body)
		if want := utf8.Valid(body) && json.Valid(body); (err == nil) != want {
			t.Fatalf("%q: %v, valid: %v", body, err, want)
		} else if want {
			taken++
		}
	}
	if taken < 1000 {
		t.Errorf("only %d were valid", taken)
	}
}
