package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
)

// request is the part of a chat or completions body that matters here; other
// fields are ignored.
type request struct {
	Model         string          `json:"model"`
	Messages      json.RawMessage `json:"messages"`
	Prompt        promptField     `json:"prompt"`
	Tools         json.RawMessage `json:"tools"`
	MaxTokens     *int            `json:"max_tokens"`
	MaxCompletion *int            `json:"max_completion_tokens"`
	N             *int            `json:"n"`
	Stream        bool            `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	IgnoreEOS           bool            `json:"ignore_eos"`
	CacheSalt           string          `json:"cache_salt"`
	PromptLogprobs      *int            `json:"prompt_logprobs"`
	ReturnTokenIDs      bool            `json:"return_token_ids"`
	AddGenerationPrompt *bool           `json:"add_generation_prompt"`
	ContinueFinal       bool            `json:"continue_final_message"`
	TemplateKwargs      json.RawMessage `json:"chat_template_kwargs"`
	Documents           json.RawMessage `json:"documents"`
	ReasoningEffort     string          `json:"reasoning_effort"`
	KVTransfer          struct {
		PromptTokenIDs []uint32 `json:"prompt_token_ids"`
	} `json:"kv_transfer_params"`
}

// promptField is the prompt of /v1/completions: a text, a list of texts, a list
// of ids, or a list of such lists.
type promptField struct {
	texts []string
	ids   [][]uint32
}

func (p *promptField) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if b[0] == '"' {
		p.texts = make([]string, 1)
		return json.Unmarshal(b, &p.texts[0])
	}
	if b[0] != '[' {
		return errors.New("prompt: want a text, token ids, or a list of either")
	}
	switch inner := bytes.TrimLeft(b[1:], " \t\r\n"); inner[0] {
	case '"':
		return json.Unmarshal(b, &p.texts)
	case '[':
		var lists []json.RawMessage
		if err := json.Unmarshal(b, &lists); err != nil {
			return err
		}
		for _, l := range lists {
			ids, err := parseIDs(l)
			if err != nil {
				return err
			}
			p.ids = append(p.ids, ids)
		}
		return nil
	default:
		ids, err := parseIDs(b)
		p.ids = [][]uint32{ids}
		return err
	}
}

// parseIDs reads a JSON array of token ids; b is valid JSON. Long prompts of ids
// are the usual load here, and this is several times faster than reflection.
func parseIDs(b []byte) ([]uint32, error) {
	if b[0] != '[' {
		return nil, errors.New("prompt: want a list of token ids")
	}
	ids := make([]uint32, 0, len(b)/4)
	for i := 1; i < len(b); {
		switch c := b[i]; c {
		case ' ', '\t', '\r', '\n', ',', ']':
			i++
			continue
		}
		n := uint64(0)
		start := i
		for ; i < len(b) && b[i] >= '0' && b[i] <= '9' && n <= math.MaxInt32; i++ {
			n = 10*n + uint64(b[i]-'0')
		}
		if i == start || n > math.MaxInt32 || b[i] != ',' && b[i] != ']' && b[i] > ' ' {
			return nil, errors.New("prompt: token ids are integers from 0 to 2147483647")
		}
		ids = append(ids, uint32(n))
	}
	return ids, nil
}

// apiError is an answer other than 200, in vLLM's form.
type apiError struct {
	status int
	text   string
}

func (e *apiError) Error() string { return e.text }

func bad(format string, args ...any) error {
	return &apiError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// writeError answers with vLLM's error object.
func writeError(w http.ResponseWriter, err error) {
	status, kind := http.StatusBadRequest, "BadRequestError"
	var api *apiError
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		status = api.status
	case errors.As(err, &large):
		status = http.StatusRequestEntityTooLarge
	}
	switch status {
	case http.StatusNotFound:
		kind = "NotFoundError"
	case http.StatusForbidden:
		kind = "ForbiddenError"
	}
	writeJSON(w, status, map[string]any{"error": map[string]any{
		"message": err.Error(), "type": kind, "param": nil, "code": status,
	}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error here is the client's disconnect
}

// decode reads a JSON body of at most 32 MiB.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 32<<20)).Decode(into)
	if err != nil {
		return fmt.Errorf("read body: %w", err)
	}
	return nil
}

// prompts resolves the request to token ids, one list a prompt.
func (e *Engine) prompts(r *request, isChat bool) ([][]uint32, error) {
	if !isChat {
		out := r.Prompt.ids
		for _, t := range r.Prompt.texts {
			out = append(out, e.cfg.Tokenizer.Encode(t))
		}
		if len(out) == 0 {
			return nil, bad("prompt is missing")
		}
		return out, nil
	}
	if ids := r.KVTransfer.PromptTokenIDs; len(ids) > 0 {
		return [][]uint32{ids}, nil
	}
	ids, err := e.renderChat(r)
	return [][]uint32{ids}, err
}

func (e *Engine) renderChat(r *request) ([]uint32, error) {
	if len(r.Messages) == 0 {
		return nil, bad("messages is missing")
	}
	add := r.AddGenerationPrompt == nil || *r.AddGenerationPrompt
	if r.AddGenerationPrompt == nil && r.ContinueFinal {
		add = false
	}
	if add && r.ContinueFinal {
		return nil, bad("Cannot set both continue_final_message and add_generation_prompt to True.")
	}
	text, err := e.cfg.Tokenizer.Render(chat.Request{
		Messages: r.Messages, Tools: given(r.Tools), Documents: given(r.Documents), Kwargs: given(r.TemplateKwargs),
		ReasoningEffort: r.ReasoningEffort, AddGenerationPrompt: add, ContinueFinalMessage: r.ContinueFinal,
	})
	if err != nil {
		return nil, bad("render chat template: %v", err)
	}
	return e.cfg.Tokenizer.Encode(text), nil
}

// given is a field's JSON, nil for null.
func given(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// jobs turns a request into one job for each prompt and choice, in that order.
func (e *Engine) jobs(r *request, isChat bool, id string) ([]*job, error) {
	adapter, ok := e.lookUp(r.Model)
	if !ok {
		return nil, &apiError{http.StatusNotFound, fmt.Sprintf("The model `%s` does not exist.", r.Model)}
	}
	n := 1
	if r.N != nil {
		n = *r.N
	}
	if n < 1 || n > 64 {
		return nil, bad("n must be between 1 and 64, got %d.", n)
	}
	prompts, err := e.prompts(r, isChat)
	if err != nil {
		return nil, err
	}
	if len(prompts)*n > 1024 {
		return nil, bad("%d prompts with n = %d: at most 1024 choices.", len(prompts), n)
	}
	ready := make(chan struct{}, 1)
	var out []*job
	for _, ids := range prompts {
		if len(ids) == 0 {
			return nil, bad("The prompt is empty: at least one token is needed.")
		}
		seed := promptSeed(ids)
		limit, end, err := e.outputLength(r, isChat, len(ids), seed)
		if err != nil {
			return nil, err
		}
		for choice := range n {
			out = append(out, &job{
				id: id, prompt: ids, adapter: adapter, ready: ready,
				req: &sched.Request{
					Table:       pool.NewTable(e.hasher, ids, e.cfg.BlockSize, pool.Extras{Adapter: adapter, Salt: r.CacheSalt}),
					Output:      e.voice.say(seed, uint64(choice), limit),
					End:         end,
					NoCacheRead: r.PromptLogprobs != nil,
				},
			})
		}
	}
	return out, nil
}

// outputLength is how much the model is going to say. It always runs to
// max_tokens; without a limit a chat ends by itself and a completion after 16
// tokens, as the API has it.
func (e *Engine) outputLength(r *request, isChat bool, prompt int, seed uint64) (int, sched.Reason, error) {
	room := e.cfg.MaxModelLen - prompt
	if room < 1 {
		return 0, "", bad("This model's maximum context length is %d tokens. However, your request has %d input tokens. "+
			"Please reduce the length of the input messages.", e.cfg.MaxModelLen, prompt)
	}
	limit := r.MaxTokens
	if isChat && r.MaxCompletion != nil {
		limit = r.MaxCompletion
	}
	switch {
	case limit != nil && *limit < 1:
		return 0, "", bad("max_tokens must be at least 1, got %d.", *limit)
	case limit != nil && *limit > room:
		return 0, "", bad("'max_tokens' or 'max_completion_tokens' is too large: %d. This model's maximum context length is "+
			"%d tokens and your request has %d input tokens.", *limit, e.cfg.MaxModelLen, prompt)
	case limit != nil:
		return *limit, sched.Length, nil
	case !isChat:
		return min(16, room), sched.Length, nil
	case r.IgnoreEOS || naturalLength(seed) > room:
		return room, sched.Length, nil
	default:
		return naturalLength(seed), sched.Stop, nil
	}
}

// promptSeed is a number drawn from a prompt; the same prompt is always answered
// the same way.
func promptSeed(ids []uint32) uint64 {
	h := fnv.New64a()
	var b [4]byte
	for _, t := range ids[max(0, len(ids)-64):] {
		binary.LittleEndian.PutUint32(b[:], t)
		_, _ = h.Write(b[:])
	}
	return h.Sum64() + uint64(len(ids))
}
