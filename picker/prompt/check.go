package prompt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

// probes are requests whose ids Check compares: roles, white space, scripts,
// digits, tools.
var probes = [...]struct{ path, rest string }{
	{"/v1/completions", `"prompt":"It's  12345 naïve café, 日本語\r\n\n  👩‍💻 e\u0301 <|im_end|>\t x"}`},
	{"/v1/completions", `"prompt":"\n\nfunc main() {\n\tfor i := range 3_000 { fmt.Println(\"it's\", i*0.5) }\n}  \n <s> </s> "}`},
	{"/v1/chat/completions", `"messages":[{"role":"user","content":" Hello, \n world 42! "},{"role":"assistant","content":"Grüße 🙂"},{"role":"user","content":"And then?"}]}`},
	{"/v1/chat/completions", `"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"One"},{"type":"text","text":"two"}]}]}`},
	{"/v1/responses", `"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"One"}]},{"role":"assistant","content":"Two."},{"role":"user","content":"Three?"}]}`},
	{"/v1/messages", `"max_tokens":9,"system":[{"type":"text","text":"Be "},{"type":"text","text":"brief."}],"messages":[{"role":"user","content":"One"},{"role":"assistant","content":[{"type":"text","text":"Two."}]},{"role":"user","content":"Three?"}]}`},
	{"/v1/chat/completions", `"messages":[{"role":"user","content":"What's the weather?"}],"tools":[{"type":"function","function":{"name":"weather","description":"Tells <it> & \"more\"","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"number","maximum":7.0}},"required":["city"]}}}]}`},
}

// CheckResult is what comparing a request's ids with an engine's gave.
type CheckResult uint8

// Results of comparisons.
const (
	CheckEqual     CheckResult = iota
	CheckDifferent             // the model's files are not used any more
	CheckFailed                // nothing was compared
)

func (c CheckResult) String() string { return [...]string{"equal", "different", "failed"}[c] }

// Mismatch says that an engine tokenizes differently from the model's files.
type Mismatch struct {
	Model        string `json:"model"`
	Engine       string `json:"engine"` // its URL
	Probe        int    `json:"probe"`  // which of the built-in requests, from 0; -1: a client's request
	At           int    `json:"at"`     // the first token that differs
	OwnTokens    int    `json:"own_tokens"`
	EngineTokens int    `json:"engine_tokens"`
	OwnHash      string `json:"own_hash"` // of all ids, hexadecimal
	EngineHash   string `json:"engine_hash"`
}

func (m *Mismatch) Error() string {
	what := fmt.Sprintf("probe %d", m.Probe)
	if m.Probe < 0 {
		what = "a client's request"
	}
	return fmt.Sprintf("model %s: engine %s and files differ at token %d of %s; give the folder the engine was started with", m.Model, m.Engine, m.At, what)
}

// Check compares the ids of a few requests with those of an engine that serves
// the model. If they differ, the model's files are not used any more, nor for
// other names of the same folder, and the error is a *Mismatch. Once all are
// equal, an earlier mismatch of the same engine is forgotten, and those of
// engines that are gone. Other errors mean that nothing, or not all, was
// compared. A model without files is fine. Run calls it for each engine that
// appears or restarts; call it off the path of requests.
func (r *Resolver) Check(ctx context.Context, model, engineURL string) error {
	m := r.model(model)
	if m == nil {
		return nil
	}
	compared := 0
	var last error
	for i, p := range probes {
		req, err := openai.Parse(p.path, fmt.Appendf(nil, `{"model":%q,%s`, model, p.rest))
		if err != nil {
			return fmt.Errorf("read probe: %w", err)
		}
		var different *Mismatch
		switch err := r.compare(ctx, m, req, engineURL, i); {
		case errors.As(err, &different):
			if m.trusted() != nil {
				return different
			}
		case err != nil:
			last = err // not supported, refused by the template, or by the engine: never used either
		default:
			compared++
		}
	}
	if compared == 0 {
		m.trust.counted(CheckFailed)
		return fmt.Errorf("check token ids of model %s: %w", model, last)
	}
	if m.trust.equal(engineURL, true, r.present) {
		r.log.Info("own token ids are used again", slog.String("model", model), slog.String("engine", engineURL))
	}
	return nil
}

// compare takes a request's ids from the files and from an engine. The error is
// a *Mismatch if they differ: the model is then not trusted any more, or, where
// the request is of another API than chat and completions, not for that.
func (r *Resolver) compare(ctx context.Context, m *ownModel, req *openai.Request, engineURL string, probe int) error {
	var own, theirs []uint32
	at := -1
	for range 2 { // a template may print the time: twice in a row it does not pass midnight
		var whole bool
		var err error
		if own, whole, err = m.encode(req, r.segments); err != nil {
			return err
		}
		own = truncate(own, req)
		if theirs, err = r.engine.truth(ctx, req, engineURL); err != nil {
			return err
		}
		if !whole && len(theirs) > len(own) {
			theirs = theirs[:len(own)]
		}
		if at = firstDifference(own, theirs); at < 0 {
			return nil
		}
	}
	hash := func(ids []uint32) string {
		return fmt.Sprintf("%016x", uint64(blockhash.NewHasher(blockhash.DefaultSeed).Local(ids)))
	}
	miss := &Mismatch{
		Model: req.Model, Engine: engineURL, Probe: probe, At: at, OwnTokens: len(own), EngineTokens: len(theirs),
		OwnHash: hash(own), EngineHash: hash(theirs),
	}
	if req.Kind == openai.Responses || req.Kind == openai.Messages {
		// Chat and completions may be right all the same.
		m.otherForms.Store(true)
		m.trust.counted(CheckDifferent)
	} else {
		m.trust.different(engineURL, miss)
	}
	attrs := []any{
		slog.String("model", miss.Model), slog.String("engine", miss.Engine), slog.Int("probe", probe), slog.Int("at", at),
		slog.Int("own_tokens", len(own)), slog.Int("engine_tokens", len(theirs)),
		slog.String("own_hash", miss.OwnHash), slog.String("engine_hash", miss.EngineHash),
	}
	if r.cfg.LogPromptText || probe >= 0 { // what the probes say is no secret
		attrs = append(attrs, slog.String("own_text", m.excerpt(own, at)), slog.String("engine_text", m.excerpt(theirs, at)))
	}
	r.log.Error("own token ids are wrong, asking engines instead", attrs...)
	return miss
}

// excerpt is the text of the tokens around a place.
func (m *ownModel) excerpt(ids []uint32, at int) string {
	return m.tok.Decode(ids[max(0, min(at, len(ids))-8):min(at+8, len(ids))], false)
}

// firstDifference is -1 for equal lists.
func firstDifference(a, b []uint32) int {
	if slices.Equal(a, b) {
		return -1
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
