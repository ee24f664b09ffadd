package tinymodel

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestExtract(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if err := Extract(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		inside, err := fs.ReadFile(FS(), name)
		if err != nil || string(inside) != string(b) {
			t.Errorf("%s differs from the embedded file (%v)", name, err)
		}
		if !json.Valid(b) {
			t.Errorf("%s is no JSON", name)
		}
	}
}
