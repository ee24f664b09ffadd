// Package inbound is what all ways into the picker have in common, whatever brings a client's request: it turns headers and a
// parsed body into a picker.Request, and the picker's errors into an answer in OpenAI's terms.
//
//	req, err := openai.Parse(path, body)
//	pick, prompt, err := reader.Request(ctx, r.Header, req, inbound.RequestID(r.Header), true)
//	defer prompt.Release()
//	d, err := p.Pick(ctx, pick)
//	if err != nil { answer(inbound.Refuse(err)) }
//
// It reads no sockets and writes no answers.
package inbound

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

// Header is where a request's headers are looked up: Get returns the first value of a header, "" without one. Names are in
// any case. http.Header is one.
type Header interface{ Get(name string) string }

// Headers says which request headers count. An empty name: none.
type Headers struct {
	SessionHeader   string `json:"session-header" help:"request header that names the session, for policy shares; else the body's user field, else the API key"`
	FlowHeader      string `json:"flow-header" help:"trusted request header that names the flow for fair shares; else the API key"`
	PriorityHeader  string `json:"priority-header" help:"trusted request header with a priority (integer, higher first); empty ignores priorities"`
	SheddableHeader string `json:"sheddable-header" help:"trusted request header that marks a request as sheddable under overload"`
}

// DefaultHeaders names the session's and the flow's header.
func DefaultHeaders() Headers { return Headers{SessionHeader: "X-Session-Id", FlowHeader: "X-Flow-Id"} }

// Resolver turns a request into its chain or token ids; *prompt.Resolver is the real one.
type Resolver interface {
	Resolve(ctx context.Context, req *openai.Request, engineURL string) (prompt.Result, error)
}

// Reader makes the picker's requests. Its methods may be called concurrently.
type Reader struct {
	Headers  Headers
	Picker   *picker.Picker
	Resolver Resolver
	Log      *slog.Logger
}

// Request turns a client's request into the picker's, which may be used until the prompt is released. Without withPrompt
// the prompt is not looked at, only its length. Errors are those of [picker.Picker.EngineURL], or ctx's.
func (r *Reader) Request(ctx context.Context, h Header, req *openai.Request, id string, withPrompt bool) (picker.Request, prompt.Result, error) {
	pick := picker.Request{
		ID: id, Model: req.Model, MaxOutputTokens: req.MaxTokens, NoCacheRead: req.PromptLogprobs,
		Flow: r.flow(h), Session: r.session(h, req), Bytes: req.PromptBytes,
		NoFirstToken: !req.Stream,
	}
	if r.Headers.PriorityHeader != "" {
		pick.Priority, _ = strconv.Atoi(h.Get(r.Headers.PriorityHeader)) // not a number: 0
	}
	if r.Headers.SheddableHeader != "" {
		pick.Sheddable, _ = strconv.ParseBool(h.Get(r.Headers.SheddableHeader))
	}
	engine, err := r.Picker.EngineURL(req.Model)
	if err != nil {
		return pick, prompt.Result{}, err
	}
	if !withPrompt {
		pick.PromptTokens, pick.PromptRung = req.EstimatedTokens(), prompt.RungNone
		return pick, prompt.Result{Rung: prompt.RungNone}, nil
	}
	res, err := r.Resolver.Resolve(ctx, req, engine)
	if err != nil {
		return pick, res, err
	}
	if res.Reason != "" {
		r.Log.Debug("prompt not tokenized here", slog.String("request_id", id), slog.String("rung", res.Rung), slog.String("reason", res.Reason))
	}
	pick.TokenIDs, pick.Chains, pick.Extras = res.TokenIDs, res.Chains, res.Extras
	pick.PromptTokens, pick.PromptRung = res.EstimatedTokens, res.Rung
	return pick, res, nil
}

// flow names the share that a request counts against.
func (r *Reader) flow(h Header) string {
	if r.Headers.FlowHeader != "" {
		if f := h.Get(r.Headers.FlowHeader); f != "" {
			return f
		}
	}
	return h.Get("Authorization")
}

// session names the conversation for policy shares.
func (r *Reader) session(h Header, req *openai.Request) string {
	if r.Headers.SessionHeader != "" {
		if s := h.Get(r.Headers.SessionHeader); s != "" {
			return s
		}
	}
	if req.User != "" {
		return req.User
	}
	return h.Get("Authorization")
}

// RequestID keeps a client's X-Request-Id if it is fit for headers and logs, else makes one.
func RequestID(h Header) string {
	id := h.Get("X-Request-Id")
	if id == "" || len(id) > 128 || strings.ContainsFunc(id, func(c rune) bool { return c < '!' || c > '~' }) {
		return uuid.NewString()
	}
	return id
}

// Refusal is the answer to a request that gets no endpoint.
type Refusal struct {
	Status     int    // of HTTP
	Type       string // of the error, in OpenAI's terms
	Message    string
	RetryAfter int // seconds, for the header of that name; 0: none
}

// Refuse turns an error of the picker into an answer. One that is not the picker's own is a status 500: whether the client
// has left is the caller's to know.
func Refuse(err error) Refusal {
	var unknown picker.ErrUnknownModel
	var overloaded picker.ErrOverloaded
	switch {
	case errors.As(err, &unknown):
		return Refusal{Status: http.StatusNotFound, Type: "invalid_request_error", Message: err.Error()}
	case errors.As(err, &overloaded):
		return Refusal{
			Status: http.StatusTooManyRequests, Type: "overloaded_error", Message: err.Error(),
			RetryAfter: max(1, int(overloaded.RetryAfter.Round(time.Second).Seconds())),
		}
	case errors.Is(err, picker.ErrNoEndpoints):
		return Refusal{Status: http.StatusServiceUnavailable, Type: "unavailable", Message: err.Error()}
	}
	return Refusal{Status: http.StatusInternalServerError, Type: "internal_error", Message: err.Error()}
}
