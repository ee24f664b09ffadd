package prompt

import (
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// ownModel is a model whose files were read. What they hold may not be
// supported: then the error stands in its place.
type ownModel struct {
	number  uint64 // differs between models
	tok     *tokenizer.Tokenizer
	tokErr  error
	tmpl    *chat.Template
	tmplErr error
	// wrong is set when an engine was seen to tokenize differently.
	wrong atomic.Pointer[Mismatch]
}

func (m *ownModel) distrust(why *Mismatch) { m.wrong.Store(why) }

// loadModel reads a folder. The error is that of a folder without a readable
// tokenizer.json.
func loadModel(dir fs.FS, number uint64) (*ownModel, error) {
	data, err := fs.ReadFile(dir, "tokenizer.json")
	if err != nil {
		return nil, fmt.Errorf("read tokenizer: %w", err)
	}
	m := &ownModel{number: number}
	m.tok, m.tokErr = tokenizer.Parse(data)
	m.tmpl, m.tmplErr = chat.Load(dir)
	return m, nil
}

func (m *ownModel) problems() []error {
	var errs []error
	for _, err := range []error{m.tokErr, m.tmplErr} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// encode returns the ids of a request's prompt.
func (m *ownModel) encode(req *openai.Request, cache *segmentCache) ([]uint32, error) {
	if m.tokErr != nil {
		return nil, m.tokErr
	}
	if why := m.wrong.Load(); why != nil {
		return nil, why
	}
	text, err := m.text(req)
	if err != nil {
		return nil, err
	}
	ids := make([]uint32, 0, len(text)/3+8)
	if req.AddSpecialTokens {
		ids = append(ids, m.tok.Prefix()...)
	}
	ids = cache.encode(m.tok, m.number, ids, text)
	if req.AddSpecialTokens {
		ids = append(ids, m.tok.Suffix()...)
	}
	return ids, nil
}

// text is the prompt before tokenization.
func (m *ownModel) text(req *openai.Request) (string, error) {
	switch {
	case len(req.Prompts) > 0:
		return req.Longest().Text, nil
	case req.Kind == openai.Responses || req.Kind == openai.Messages:
		return "", errors.New("this API renders prompts in its own way")
	case req.Messages == nil:
		return "", errors.New("no prompt")
	case m.tmplErr != nil:
		return "", m.tmplErr
	case req.ChatTemplate != "":
		return "", errors.New("the request brings its own chat template")
	}
	return m.tmpl.Render(time.Now(), chat.Request{
		Messages: req.Messages, Tools: req.Tools, Documents: req.Documents, Kwargs: req.ChatTemplateKwargs,
		ReasoningEffort: req.ReasoningEffort, AddGenerationPrompt: req.AddGenerationPrompt,
		ContinueFinalMessage: req.ContinueFinalMessage,
	})
}
