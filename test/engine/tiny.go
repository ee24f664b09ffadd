package engine

import (
	"fmt"
	"io/fs"
	"time"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
	"github.com/grapevine-llm/grapevine/test/tinymodel"
)

// tiny is the embedded model's text side.
type tiny struct {
	tok      *tokenizer.Tokenizer
	template *chat.Template
}

// Tiny is the tokenizer and chat template of the project's own model, see package
// tinymodel.
func Tiny() (Tokenizer, error) {
	dir := tinymodel.FS()
	raw, err := fs.ReadFile(dir, "tokenizer.json")
	if err != nil {
		return nil, fmt.Errorf("read tiny model: %w", err)
	}
	t := tiny{}
	if t.tok, err = tokenizer.Parse(raw); err != nil {
		return nil, fmt.Errorf("load tiny tokenizer: %w", err)
	}
	if t.template, err = chat.Load(dir); err != nil {
		return nil, fmt.Errorf("load tiny template: %w", err)
	}
	return t, nil
}

func (t tiny) Encode(text string) []uint32 { return t.tok.Encode(nil, text) }

func (t tiny) Decode(ids []uint32) string { return t.tok.Decode(ids, true) }

func (t tiny) Render(r chat.Request) (string, error) { return t.template.Render(time.Now(), r) }
