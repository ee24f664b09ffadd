// Package tinymodel holds the project's own model: a Qwen3 of 0.3 million
// parameters without weights, with a real byte-level tokenizer of 4,096 entries
// and a chat template with tools. Tests, the emulated engine and a real vLLM
// with --load-format dummy all speak its tokens.
//
// make_tiny_model.py wrote the files and writes larger variants.
package tinymodel

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
)

//go:embed model
var files embed.FS

// FS is the model directory: config.json, generation_config.json,
// tokenizer.json, tokenizer_config.json.
func FS() fs.FS {
	sub, err := fs.Sub(files, "model")
	if err != nil {
		panic(err) // the name is constant
	}
	return sub
}

// Extract writes the model directory's files into dir, which it makes if
// needed. A file that exists already is an error.
func Extract(dir string) error {
	if err := os.CopyFS(dir, FS()); err != nil {
		return fmt.Errorf("extract tiny model: %w", err)
	}
	return nil
}
