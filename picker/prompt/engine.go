package prompt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
	"unsafe"

	"github.com/grapevine-llm/grapevine/picker/openai"
)

// engine asks engines for token ids and remembers their answers.
type engine struct {
	keys
	client  *http.Client
	answers *byteCache[tokenIDs]

	mu     sync.Mutex           // guards closed
	closed map[string]time.Time // URLs that an engine does not serve: when to try again
}

const tokenizePath = "/tokenize"

const (
	// retryClosed is how long an endpoint that is not served is left alone.
	// Engines are restarted with other flags now and then.
	retryClosed = 5 * time.Minute
	// retryLate is how long an endpoint is left alone that missed the
	// deadline: a busy engine must not slow down every request.
	retryLate = 2 * time.Second
	maxClosed = 1024
	// maxAnswer bounds an engine's answer: ids of the longest prompts, in text.
	maxAnswer = 64 << 20
)

func newEngine(client *http.Client, k keys, cacheBytes int64) *engine {
	return &engine{keys: k, client: client, answers: newByteCache[tokenIDs](cacheBytes), closed: map[string]time.Time{}}
}

// errClosed means that an endpoint is not there: ask the next one.
var errClosed = errors.New("not served")

// ask tries the render endpoint, then /tokenize.
func (e *engine) ask(ctx context.Context, req *openai.Request, url string) (Result, error) {
	res, err := e.render(ctx, req, url)
	if err == nil {
		return res, nil
	}
	err = fmt.Errorf("render: %w", err)
	if !errors.Is(err, errClosed) { // refused, late or broken: /tokenize would do no better
		return Result{}, err
	}
	if e.isClosed(url + tokenizePath) {
		return Result{}, fmt.Errorf("%w; tokenize: %w", err, errClosed)
	}
	ids, tokErr := e.tokenize(ctx, req, url)
	if tokErr != nil {
		return Result{}, fmt.Errorf("%w; tokenize: %w", err, tokErr)
	}
	return Result{TokenIDs: ids, Rung: RungTokenize}, nil
}

// renderAnswer is the answer of a render endpoint (vLLM 0.18 and later).
type renderAnswer struct {
	TokenIDs []uint32 `json:"token_ids"`
	Features *struct {
		Placeholders map[string][]struct {
			Offset int `json:"offset"`
		} `json:"mm_placeholders"`
	} `json:"features"`
}

// render asks for what was not asked before.
func (e *engine) render(ctx context.Context, req *openai.Request, url string) (Result, error) {
	key := e.of(unsafe.String(unsafe.SliceData(req.Body), len(req.Body)), uint64(req.Kind))
	if ids, ok := e.known(key); ok {
		return Result{TokenIDs: ids, Rung: RungRender}, nil
	}
	res, err := e.rendered(ctx, req, url)
	if err == nil && len(res.TokenIDs) == res.EstimatedTokens {
		e.remember(key, res.TokenIDs)
	}
	return res, err
}

// rendered asks the render endpoint, whatever was answered before.
func (e *engine) rendered(ctx context.Context, req *openai.Request, url string) (Result, error) {
	var path string
	switch req.Kind {
	case openai.Chat:
		path = "/v1/chat/completions/render"
	case openai.Completion:
		path = "/v1/completions/render"
	case openai.Responses:
		path = "/v1/responses/render"
	case openai.Messages:
		path = "/v1/messages/render"
	default:
		return Result{}, errClosed
	}
	raw, err := e.post(ctx, url+path, req.Body)
	if err != nil {
		return Result{}, err
	}
	list := make([]renderAnswer, 1)
	if raw = bytes.TrimLeft(raw, " \r\n\t"); len(raw) > 0 && raw[0] == '[' {
		err = json.Unmarshal(raw, &list) // one for each prompt
	} else {
		err = json.Unmarshal(raw, &list[0])
	}
	var best renderAnswer
	for _, r := range list {
		if len(r.TokenIDs) > len(best.TokenIDs) {
			best = r
		}
	}
	if err != nil || len(best.TokenIDs) == 0 {
		e.close(url+path, retryClosed) // older engines answer in another form
		return Result{}, errClosed
	}
	res := Result{TokenIDs: best.TokenIDs, Rung: RungRender, EstimatedTokens: len(best.TokenIDs)}
	if best.Features != nil {
		for _, places := range best.Features.Placeholders {
			for _, p := range places {
				if p.Offset >= 0 && p.Offset < len(res.TokenIDs) {
					res.TokenIDs, res.Partial = res.TokenIDs[:p.Offset], true
				}
			}
		}
	}
	return res, nil
}

// truth asks an engine for a request's ids, to compare others with. It answers
// only if the engine's own way to the prompt gives the same.
func (e *engine) truth(ctx context.Context, req *openai.Request, url string) ([]uint32, error) {
	res, err := e.rendered(ctx, req, url)
	if !errors.Is(err, errClosed) {
		return res.TokenIDs, err
	}
	if req.TruncatePromptTokens < 0 || req.ResponseFormat != nil || req.ToolChoice != nil && string(req.ToolChoice) != `"auto"` {
		return nil, errors.New("/tokenize does not see all that makes the prompt")
	}
	body, err := TokenizeQuestion(req)
	if err != nil {
		return nil, err
	}
	ids, err := e.tokens(ctx, url, body)
	return truncate(ids, req), err
}

// tokenizeRequest is the body of /tokenize: the fields of a chat request that
// decide its prompt, or a text.
type tokenizeRequest struct {
	Model                string          `json:"model,omitempty"`
	Prompt               *string         `json:"prompt,omitempty"`
	Messages             json.RawMessage `json:"messages,omitempty"`
	Tools                json.RawMessage `json:"tools,omitempty"`
	ChatTemplate         string          `json:"chat_template,omitempty"`
	ChatTemplateKwargs   json.RawMessage `json:"chat_template_kwargs,omitempty"`
	MMProcessorKwargs    json.RawMessage `json:"mm_processor_kwargs,omitempty"`
	MediaIOKwargs        json.RawMessage `json:"media_io_kwargs,omitempty"`
	AddGenerationPrompt  *bool           `json:"add_generation_prompt,omitempty"`
	ContinueFinalMessage bool            `json:"continue_final_message,omitempty"`
	AddSpecialTokens     bool            `json:"add_special_tokens"`
}

func (e *engine) tokenize(ctx context.Context, req *openai.Request, url string) ([]uint32, error) {
	body, err := TokenizeQuestion(req)
	if err != nil {
		return nil, err
	}
	key := e.of(string(body), uint64(openai.Tokenize))
	if ids, ok := e.known(key); ok {
		return ids, nil
	}
	ids, err := e.tokens(ctx, url, body)
	if err == nil {
		e.remember(key, ids)
	}
	return ids, err
}

// TokenizeQuestion returns the body that asks vLLM's /tokenize for the ids of a
// request's prompt, of the longest one if there are several. It truncates
// nothing. The error says what of the request that endpoint would not heed.
func TokenizeQuestion(req *openai.Request) ([]byte, error) {
	ask := tokenizeRequest{Model: req.Model, AddSpecialTokens: req.AddSpecialTokens}
	switch {
	case len(req.Prompts) > 0:
		text := req.Longest().Text
		ask.Prompt = &text
	case bytes.Contains(req.Messages, []byte(`"reasoning_content"`)):
		// The chat API takes it for "reasoning", /tokenize drops it (vLLM 0.32).
		return nil, errors.New("it drops reasoning_content")
	case req.Messages != nil && req.Kind != openai.Messages:
		kwargs, err := templateKwargs(req)
		if err != nil {
			return nil, err
		}
		ask.Messages, ask.Tools, ask.ChatTemplate, ask.ChatTemplateKwargs = req.Messages, req.Tools, req.ChatTemplate, kwargs
		ask.MMProcessorKwargs, ask.MediaIOKwargs = req.MMProcessorKwargs, req.MediaIOKwargs
		ask.AddGenerationPrompt, ask.ContinueFinalMessage = &req.AddGenerationPrompt, req.ContinueFinalMessage
	default:
		return nil, errors.New("cannot render this API's prompts")
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("encode question: %w", err)
	}
	return body, nil
}

// tokens asks /tokenize, whatever was answered before.
func (e *engine) tokens(ctx context.Context, url string, body []byte) ([]uint32, error) {
	raw, err := e.post(ctx, url+tokenizePath, body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if len(answer.Tokens) == 0 {
		return nil, errors.New("answer has no tokens")
	}
	return answer.Tokens, nil
}

// templateKwargs adds to chat_template_kwargs what /tokenize does not take on
// its own, the way vLLM's chat endpoint does.
func templateKwargs(req *openai.Request) (json.RawMessage, error) {
	if req.Documents == nil && req.ReasoningEffort == "" {
		return req.ChatTemplateKwargs, nil
	}
	kwargs := map[string]any{}
	if req.ChatTemplateKwargs != nil {
		var given map[string]json.RawMessage
		if err := json.Unmarshal(req.ChatTemplateKwargs, &given); err != nil {
			return nil, fmt.Errorf("read chat_template_kwargs: %w", err)
		}
		for k, v := range given {
			kwargs[k] = v
		}
	}
	if req.Documents != nil {
		kwargs["documents"] = req.Documents
	}
	if effort := req.ReasoningEffort; effort != "" {
		kwargs["reasoning_effort"] = effort
		if _, given := kwargs["enable_thinking"]; !given {
			kwargs["enable_thinking"] = effort != "none"
		}
	}
	return json.Marshal(kwargs)
}

// post sends JSON and returns the answer. errClosed: the endpoint is not there,
// or was not a short while ago.
func (e *engine) post(ctx context.Context, url string, body []byte) ([]byte, error) {
	if e.isClosed(url) {
		return nil, errClosed
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(bytes.Clone(body))) // may be read after the deadline
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, e.late(url, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, e.late(url, fmt.Errorf("read answer: %w", err))
	}
	if len(raw) > maxAnswer {
		return nil, fmt.Errorf("answer is longer than %d bytes", maxAnswer)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return raw, nil
	case http.StatusNotFound:
		if bytes.Contains(raw, []byte(`"error"`)) {
			break // the path is there, the model is not
		}
		fallthrough
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		e.close(url, retryClosed)
		return nil, errClosed
	}
	return nil, fmt.Errorf("engine answers %d", resp.StatusCode)
}

// late leaves an endpoint alone for a moment if err is a missed deadline.
func (e *engine) late(url string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		e.close(url, retryLate)
	}
	return err
}

func (e *engine) isClosed(url string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	until, ok := e.closed[url]
	if ok && time.Now().After(until) {
		delete(e.closed, url)
		return false
	}
	return ok
}

func (e *engine) close(url string, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.closed) >= maxClosed {
		clear(e.closed)
	}
	e.closed[url] = time.Now().Add(d)
}

func (e *engine) known(key cacheKey) ([]uint32, bool) {
	e.answers.mu.Lock()
	defer e.answers.mu.Unlock()
	return e.answers.get(key)
}

func (e *engine) remember(key cacheKey, ids []uint32) {
	e.answers.mu.Lock()
	defer e.answers.mu.Unlock()
	e.answers.put(key, ids)
}
