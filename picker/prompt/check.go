package prompt

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/grapevine-llm/grapevine/picker/openai"
)

// probes are requests whose ids Check compares: roles, white space, scripts,
// digits, tools.
var probes = [...]struct{ path, rest string }{
	{"/v1/completions", `"prompt":"It's  12345 naïve café, 日本語\r\n\n  👩‍💻 e\u0301 <|im_end|>\t x"}`},
	{"/v1/chat/completions", `"messages":[{"role":"user","content":" Hello, \n world 42! "},{"role":"assistant","content":"Grüße 🙂"},{"role":"user","content":"And then?"}]}`},
	{"/v1/chat/completions", `"messages":[{"role":"user","content":"What's the weather?"}],"tools":[{"type":"function","function":{"name":"weather","description":"Tells <it> & \"more\"","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"number","maximum":7.0}},"required":["city"]}}}]}`},
}

// Mismatch says that an engine tokenizes differently from the model's files.
type Mismatch struct {
	Model string
	Probe int // which of the probes, from 0
	At    int // the first token that differs
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("model %s: engine and files differ at token %d of probe %d; give the folder the engine was started with", m.Model, m.At, m.Probe)
}

// Check compares the ids of a few requests with those of an engine that serves
// the model. If they differ, the model's files are not used any more, nor for
// other names of the same folder, and the error is a *Mismatch: raise an alarm.
// Other errors mean that nothing was compared. A model without files is fine.
// Call it when an engine appears and now and then, off the path of requests.
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
		own, err := m.encode(req, r.segments)
		if err != nil {
			last = err // not supported, or refused by the template: never used either
			continue
		}
		body, err := tokenizeBody(req)
		if err != nil {
			return err
		}
		ids, err := r.engine.tokens(ctx, engineURL, body)
		if err != nil {
			last = err
			continue
		}
		compared++
		if at := firstDifference(own, ids); at >= 0 {
			miss := &Mismatch{Model: model, Probe: i, At: at}
			m.distrust(miss)
			r.log.Error("own token ids are wrong, asking engines instead", slog.String("model", model), slog.Any("error", miss))
			return miss
		}
	}
	if compared == 0 {
		return fmt.Errorf("check token ids of model %s: %w", model, last)
	}
	return nil
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
