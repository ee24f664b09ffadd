package prompt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// ownModel is a folder of model files. What they hold may be missing, damaged
// or not supported: then the error stands in its place, and prompts are asked
// from engines.
type ownModel struct {
	number  uint64   // differs between folders
	names   []string // of the models that use it, sorted
	tok     *tokenizer.Tokenizer
	tokErr  error
	tmpl    *chat.Template
	tmplErr error

	unserved   bool // has been said; Run's
	trust      trust
	otherForms atomic.Bool                   // converted is contradicted: see Resolver.compare
	resolved   [len(rungNames)]atomic.Uint64 // requests by rung
}

// maxFile bounds a model file. The largest tokenizer.json in use are below
// 40 MB; reading takes several times the file's size in memory.
const maxFile = 128 << 20

// loadModel reads a folder. The only error is that of a folder that is not
// there; anything wrong with its files is in the model.
func loadModel(dir string, opts chat.Options, number uint64) (*ownModel, error) {
	switch info, err := os.Stat(dir); {
	case err != nil:
		return nil, fmt.Errorf("open model folder: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("open model folder: %s is a file", dir)
	}
	m := &ownModel{number: number}
	if m.tok, m.tokErr = tokenizer.LoadDir(os.DirFS(dir)); m.tokErr != nil {
		m.tokErr = fmt.Errorf("%s: %w", dir, m.tokErr)
	}
	if m.tmplErr = checkSizes(dir, "tokenizer_config.json", "chat_template.jinja"); m.tmplErr == nil {
		m.tmpl, m.tmplErr = opts.Load(os.DirFS(dir))
	}
	if m.tmplErr != nil {
		m.tmplErr = fmt.Errorf("%s: %w", dir, m.tmplErr)
	}
	return m, nil
}

// checkSizes refuses files that are too large to be what their name says; ones
// that are not there are somebody else's to judge.
func checkSizes(dir string, names ...string) error {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Size() > maxFile {
			return fmt.Errorf("%s: has %d bytes, more than the %d that are read", path, info.Size(), int64(maxFile))
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read %s: %w", path, err)
		}
	}
	return nil
}

func (m *ownModel) problems() []error {
	return slices.DeleteFunc([]error{m.tokErr, m.tmplErr}, func(err error) bool { return err == nil })
}

// trusted is the error of a model that may not be used now.
func (m *ownModel) trusted() error {
	if m.tokErr != nil {
		return m.tokErr
	}
	if why := m.trust.why.Load(); why != nil {
		return why
	}
	return nil
}

// text is the prompt before tokenization, whole or up to the last added token
// in front of its first image. It may lie in buf, which the text needs until
// nobody reads it any more.
func (m *ownModel) text(req *openai.Request, buf *textBuffer) (text string, whole bool, err error) {
	in, err := m.chatRequest(req)
	if err != nil {
		return "", false, err
	}
	if len(req.Prompts) > 0 {
		return req.Longest().Text, true, nil
	}
	text, err = buf.render(m.tmpl.AppendRender, in)
	if !errors.Is(err, chat.ErrMultimodal) {
		return text, true, err
	}
	refused := err
	if text, err = buf.render(m.tmpl.AppendPrefix, in); err != nil {
		return "", false, refused
	}
	// What follows may change the ids of all that is behind the last cut.
	cut := text
	for {
		_, _, rest, found := m.tok.CutAlways(cut)
		if !found {
			break
		}
		cut = rest
	}
	if len(cut) == len(text) {
		return "", false, refused
	}
	return text[:len(text)-len(cut)], false, nil
}

// chatRequest is what the template sees of a request, the zero value for one
// that has no messages.
func (m *ownModel) chatRequest(req *openai.Request) (chat.Request, error) {
	switch {
	case len(req.Prompts) > 0:
		return chat.Request{}, nil
	case m.tmplErr != nil:
		return chat.Request{}, m.tmplErr
	case req.Kind == openai.Responses || req.Kind == openai.Messages:
		if m.otherForms.Load() {
			return chat.Request{}, errors.New("an engine was seen to render this API otherwise")
		}
		return converted(req)
	case req.Messages == nil:
		return chat.Request{}, errors.New("no prompt")
	case req.ChatTemplate != "":
		return chat.Request{}, errors.New("the request brings its own chat template")
	}
	return chat.Request{
		Messages: req.Messages, Tools: req.Tools, ToolChoice: req.ToolChoice, Documents: req.Documents, Kwargs: req.ChatTemplateKwargs,
		ReasoningEffort: req.ReasoningEffort, AddGenerationPrompt: req.AddGenerationPrompt,
		ContinueFinalMessage: req.ContinueFinalMessage,
	}, nil
}

// textBuffer holds rendered texts, one after the other.
type textBuffer struct{ b []byte }

// render returns a text that is valid until the next call.
func (t *textBuffer) render(as func([]byte, time.Time, chat.Request) ([]byte, error), req chat.Request) (string, error) {
	out, err := as(t.b[:0], time.Now(), req)
	if err != nil {
		return "", err
	}
	t.b = out
	return unsafe.String(unsafe.SliceData(out), len(out)), nil
}

var textBuffers = sync.Pool{New: func() any { return new(textBuffer) }}

// maxText bounds what is kept of a textBuffer.
const maxText = 4 << 20

func (t *textBuffer) release() {
	if cap(t.b) <= maxText {
		textBuffers.Put(t)
	}
}

// around returns the ids that the tokenizer puts before and behind a text.
func (m *ownModel) around(req *openai.Request, whole bool) (prefix, suffix []uint32) {
	switch {
	case !req.AddSpecialTokens:
		return nil, nil
	case !whole:
		return m.tok.Prefix(), nil
	}
	return m.tok.Prefix(), m.tok.Suffix()
}

// encode returns the ids of a request's prompt, whether the model is trusted or
// not, in a slice of its own. whole is false if they end where the first image
// begins.
func (m *ownModel) encode(req *openai.Request, cache *segmentCache) (ids []uint32, whole bool, err error) {
	if m.tokErr != nil {
		return nil, false, m.tokErr
	}
	buf := textBuffers.Get().(*textBuffer)
	defer buf.release()
	text, whole, err := m.text(req, buf)
	if err != nil {
		return nil, false, err
	}
	return m.encodeText(req, text, whole, cache), whole, nil
}

func (m *ownModel) encodeText(req *openai.Request, text string, whole bool, cache *segmentCache) []uint32 {
	prefix, suffix := m.around(req, whole)
	ids := append(make([]uint32, 0, len(text)/3+8), prefix...)
	ids = cache.encode(ids, m.tok, cache.cut(nil, m.tok, m.number, cacheKey{}, text))
	return append(ids, suffix...)
}

// trust says what comparing with engines gave. Safe for concurrent use.
type trust struct {
	why atomic.Pointer[Mismatch] // the files are not used; nil: they are

	mu       sync.Mutex           // guards what follows
	engines  map[string]*Mismatch // that contradict the files as they were started, by URL
	verified bool                 // an engine agreed since the last mismatch
	checks   [3]uint64            // by CheckResult
	last     *Mismatch            // nil: none yet
}

// equal notes that an engine agreed. A whole start-check of an engine that has
// just come takes back what it, and engines that are gone, said before.
func (t *trust) equal(url string, start bool, present func(url string) bool) (recovered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checks[CheckEqual]++
	if start {
		delete(t.engines, url)
		for other := range t.engines {
			if !present(other) {
				delete(t.engines, other)
			}
		}
	}
	if len(t.engines) == 0 {
		t.verified = true
		return t.why.Swap(nil) != nil
	}
	return false
}

func (t *trust) different(url string, why *Mismatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checks[CheckDifferent]++
	if t.engines == nil {
		t.engines = map[string]*Mismatch{}
	}
	t.engines[url] = why
	t.verified, t.last = false, why
	t.why.Store(why)
}

func (t *trust) counted(result CheckResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.checks[result]++
}

func (t *trust) isVerified() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.verified
}
