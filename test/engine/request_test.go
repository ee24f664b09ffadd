package engine

import (
	"encoding/json"
	"slices"
	"testing"
)

// FuzzPrompt: whatever comes, the fast reader of token ids agrees with
// encoding/json, or refuses.
func FuzzPrompt(f *testing.F) {
	for _, s := range []string{
		`"text"`, `["a","b"]`, `[1,2,3]`, `[ 1 ,
 2]`, `[[1],[2,3]]`, `[]`, `[[]]`, `null`, `[2147483647]`, `[2147483648]`,
		`[99999999999999999999]`, `[-1]`, `[1.0]`, `[1e3]`, `[true]`, `[1,"a"]`, `{}`, `7`, `[[[1]]]`, `[{}]`, `[01]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p promptField
		if json.Unmarshal(b, &p) != nil {
			return
		}
		var flat []uint32
		var lists [][]uint32
		switch {
		case len(p.ids) == 0:
		case json.Unmarshal(b, &flat) == nil:
			if len(p.ids) != 1 || !slices.Equal(p.ids[0], flat) {
				t.Errorf("%s: %v, want %v", b, p.ids, flat)
			}
		case json.Unmarshal(b, &lists) == nil:
			if !slices.EqualFunc(p.ids, lists, slices.Equal[[]uint32]) {
				t.Errorf("%s: %v, want %v", b, p.ids, lists)
			}
		default:
			t.Errorf("%s was read as ids %v", b, p.ids)
		}
	})
}

func BenchmarkPrompt32K(b *testing.B) {
	body := []byte(`{"prompt":` + ids(0, 32_000) + `}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var r request
		if err := json.Unmarshal(body, &r); err != nil {
			b.Fatal(err)
		}
	}
}
