package tokenizer

import (
	"encoding/json"
	"slices"
	"testing"
)

// variantFile is testdata/variants.json.gz, written by
// test/parity/tokenizer_variants.py: small models that differ in components.
type variantFile struct {
	Bases    map[string]map[string]json.RawMessage
	Variants []struct {
		Name, Base string
		Set        map[string]json.RawMessage
	}
}

// variants are the tokenizer files by name.
func variants(tb testing.TB) map[string][]byte {
	tb.Helper()
	f := eachLine[variantFile](tb, "variants.json.gz")[0]
	out := map[string][]byte{}
	for _, v := range f.Variants {
		keys := map[string]json.RawMessage{}
		for k, x := range f.Bases[v.Base] {
			keys[k] = x
		}
		for k, x := range v.Set {
			if k != "model" {
				keys[k] = x
				continue
			}
			var model map[string]json.RawMessage
			if err := json.Unmarshal(keys["model"], &model); err != nil {
				tb.Fatal(err)
			}
			if err := json.Unmarshal(x, &model); err != nil {
				tb.Fatal(err)
			}
			keys["model"] = marshal(tb, model)
		}
		out[v.Name] = marshal(tb, keys)
	}
	return out
}

func marshal(tb testing.TB, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func loadVariants(tb testing.TB) map[string]*Tokenizer {
	out := map[string]*Tokenizer{}
	for name, data := range variants(tb) {
		tok, err := Parse(data)
		if err != nil {
			tb.Errorf("%s: %v", name, err)
			continue
		}
		out[name] = tok
	}
	return out
}

type variantVector struct {
	Variant, Text, Decoded, Skipped string
	IDs, Around                     []uint32
}

// TestVariants compares with the Hugging Face library (0.23.3).
func TestVariants(t *testing.T) {
	toks := loadVariants(t)
	count := map[string]int{}
	for _, v := range eachLine[variantVector](t, "variant_vectors.jsonl.gz") {
		tok := toks[v.Variant]
		if tok == nil {
			continue
		}
		count[v.Variant]++
		if got := tok.Encode(nil, v.Text); !slices.Equal(got, v.IDs) {
			t.Errorf("%s: Encode(%q)\n got %v\nwant %v", v.Variant, v.Text, got, v.IDs)
		}
		if got := slices.Concat(tok.Prefix(), v.IDs, tok.Suffix()); !slices.Equal(got, v.Around) {
			t.Errorf("%s: %q with special tokens: %v, want %v", v.Variant, v.Text, got, v.Around)
		}
		for name, got := range map[string][]uint32{"Cut": byCut(tok, v.Text), "CutAlways": byCutAlways(tok, v.Text)} {
			if !slices.Equal(got, v.IDs) {
				t.Errorf("%s: %q by %s\n got %v\nwant %v", v.Variant, v.Text, name, got, v.IDs)
			}
		}
		if got := tok.Decode(v.IDs, false); got != v.Decoded {
			t.Errorf("%s: Decode(%v)\n got %q\nwant %q", v.Variant, v.IDs, got, v.Decoded)
		}
		if got := tok.Decode(v.IDs, true); got != v.Skipped {
			t.Errorf("%s: Decode(%v) without special tokens\n got %q\nwant %q", v.Variant, v.IDs, got, v.Skipped)
		}
	}
	for name := range toks {
		if count[name] < 50 {
			t.Errorf("%s: %d texts, want at least 50", name, count[name])
		}
	}
}

func byCut(tok *Tokenizer, text string) (ids []uint32) {
	for {
		before, id, rest, found := tok.Cut(text)
		ids = tok.EncodePiece(ids, before)
		if !found {
			return ids
		}
		ids, text = append(ids, id), rest
	}
}

func byCutAlways(tok *Tokenizer, text string) (ids []uint32) {
	for start := true; ; start = false {
		before, id, rest, found := tok.CutAlways(text)
		ids = tok.EncodePieceAt(ids, before, start)
		if !found {
			return ids
		}
		ids, text = append(ids, id), rest
	}
}
