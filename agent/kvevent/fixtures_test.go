package kvevent

import (
	"archive/zip"
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"testing"
)

// fixtures is testdata/kv-events.zip: payloads made by the engines' own event classes
// and msgspec, with what a reader must make of them.
type fixtures struct{ zip *zip.ReadCloser }

func openFixtures(t testing.TB) fixtures {
	t.Helper()
	z, err := zip.OpenReader("testdata/kv-events.zip")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { z.Close() })
	return fixtures{z}
}

func (f fixtures) read(t testing.TB, name string) []byte {
	t.Helper()
	r, err := f.zip.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lines decodes a JSON-lines file; numbers stay exact where a field asks for that.
func lines[T any](t testing.TB, f fixtures, name string) []T {
	t.Helper()
	var out []T
	sc := bufio.NewScanner(bytes.NewReader(f.read(t, name)))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var v T
		d := json.NewDecoder(bytes.NewReader(sc.Bytes()))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, v)
	}
	return out
}

type validCase struct {
	Name, File string
	Expect     struct {
		TS         float64
		DPRank     *int `json:"dp_rank"`
		Events     []map[string]any
		EventCount int            `json:"event_count"`
		Types      map[string]int `json:"types"`
		HashCount  int            `json:"hash_count"`
		TokenCount int            `json:"token_count"`
		U64SHA256  string         `json:"u64_sha256"`
		FirstU64   string         `json:"first_u64"`
		LastU64    string         `json:"last_u64"`
	}
}

type malformedCase struct{ Name, File, Action, Why string }

type frameCase struct {
	Name, Kind, Action, Why string
	FramesHex               []string `json:"frames_hex"`
}
