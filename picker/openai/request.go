package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Kind says which API a request speaks.
type Kind uint8

// Kinds of requests, by path.
const (
	Other      Kind = iota // unknown path: only the model is read
	Chat                   // /v1/chat/completions
	Completion             // /v1/completions
	Embedding              // /v1/embeddings
	Responses              // /v1/responses
	Messages               // /v1/messages (Anthropic)
	Tokenize               // /tokenize
	Detokenize             // /detokenize
	Pooling                // score, rerank, pooling, classify: only the model is read
)

// Generates reports whether such requests have a prompt that engines keep and an answer that they decode.
func (k Kind) Generates() bool {
	return k == Chat || k == Completion || k == Responses || k == Messages
}

// KindOf tells the kind of a request from its URL path. A trailing slash and a
// query are ignored.
func KindOf(path string) Kind {
	path, _, _ = strings.Cut(path, "?")
	switch strings.TrimSuffix(path, "/") {
	case "/v1/chat/completions":
		return Chat
	case "/v1/completions":
		return Completion
	case "/v1/embeddings":
		return Embedding
	case "/v1/responses":
		return Responses
	case "/v1/messages":
		return Messages
	case "/tokenize", "/v1/tokenize":
		return Tokenize
	case "/detokenize", "/v1/detokenize":
		return Detokenize
	case "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/pooling", "/classify":
		return Pooling
	}
	return Other
}

// Prompt is one prompt: text, or token ids if the client tokenized it itself.
type Prompt struct {
	Text string
	IDs  []uint32 // nil: the prompt is Text
}

func (p Prompt) size() int {
	if p.IDs != nil {
		return len(p.IDs) * bytesPerToken
	}
	return len(p.Text)
}

// bytesPerToken is the rule of thumb for text whose tokens are unknown.
const bytesPerToken = 4

// Request is what routing needs of one request. Raw members are slices of the
// body given to Parse, nil if absent or null; the body must not change while
// they are used. Defaults of absent fields are filled in.
type Request struct {
	Path  string
	Kind  Kind
	Body  []byte // as given to Parse
	Model string // "" if not given: the engine takes its own

	Stream       bool
	IncludeUsage bool // the client asked for usage in the stream
	// StreamOptions is an object or null.
	StreamOptions json.RawMessage
	N             int    // sequences from this prompt: the larger of n and best_of, at least 1
	MaxTokens     int    // output tokens at most, per sequence; 0: no limit given
	User          string // the client's name for its end user

	// Prompts holds the prompts of a completion, an embedding or a /tokenize
	// request; empty for chat. Longest gives the one that decides.
	Prompts []Prompt
	// TokenIDs are the prompt's token ids as the client gave them beside
	// messages (kv_transfer_params.prompt_token_ids), which the engine does not
	// truncate; nil: none.
	TokenIDs []uint32

	Messages           json.RawMessage // a list
	Tools              json.RawMessage // a list
	ToolChoice         json.RawMessage
	Documents          json.RawMessage // a list
	ChatTemplateKwargs json.RawMessage // an object
	MMProcessorKwargs  json.RawMessage // an object
	MediaIOKwargs      json.RawMessage // an object
	ResponseFormat     json.RawMessage // an object

	ChatTemplate         string // "" means the model's own
	ReasoningEffort      string
	AddGenerationPrompt  bool
	ContinueFinalMessage bool
	AddSpecialTokens     bool
	// TruncatePromptTokens: 0 none, -1 the model's length, else how many
	// tokens of the prompt are kept.
	TruncatePromptTokens int
	TruncationSide       string // "left" or "right", where tokens are cut; "": the engine's default
	CacheSalt            string
	PromptLogprobs       bool // prompt_logprobs, or echo with logprobs: the cache is not read
	PromptEmbeds         bool // part of the prompt is embeddings, not tokens

	// PromptBytes is the size of what becomes the prompt: text, or the raw
	// messages, tools and input. Ids count four bytes each, pooling requests
	// their whole body.
	PromptBytes int
}

// Longest returns the longest prompt, the zero Prompt if there is none. With
// several prompts in one request, all go to one engine and the longest decides
// which.
func (r *Request) Longest() Prompt {
	var best Prompt
	for i, p := range r.Prompts {
		if i == 0 || p.size() > best.size() {
			best = p
		}
	}
	return best
}

// EstimatedTokens guesses the prompt's length in tokens from its size in bytes
// (a quarter). At least 1.
func (r *Request) EstimatedTokens() int {
	return max(1, r.PromptBytes/bytesPerToken)
}

// fields collects the raw values of one body by name, the last of duplicates.
type fields map[string][]byte

// wanted is every member that Parse looks at; the rest is skipped.
func wanted(name string) bool {
	switch name {
	case "model", "stream", "stream_options", "n", "best_of", "max_tokens", "max_completion_tokens",
		"max_output_tokens", "user", "prompt", "input", "messages", "tools", "tool_choice", "documents",
		"chat_template", "chat_template_kwargs", "mm_processor_kwargs", "media_io_kwargs", "response_format",
		"reasoning_effort", "add_generation_prompt", "continue_final_message", "add_special_tokens",
		"truncate_prompt_tokens", "truncation_side", "cache_salt", "prompt_logprobs", "echo", "logprobs", "prompt_embeds",
		"kv_transfer_params", "tokens", "system", "instructions":
		return true
	}
	return false
}

// maxModelName bounds a name that receipts and logs keep.
const maxModelName = 1024

// Parse reads a request's body. The error says which part is wrong and what is
// wanted instead; it suits an answer with status 400. Parse is lenient about
// fields that routing does not need: those are the engine's to judge.
func Parse(path string, body []byte) (*Request, error) {
	if !utf8.Valid(body) {
		return nil, errors.New("request body is not UTF-8 text")
	}
	f := fields{}
	err := members(body, func(k string, v []byte) error {
		if wanted(k) {
			f[k] = v
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("request body: %w", err)
	}
	r := &Request{Path: path, Kind: KindOf(path), Body: body, N: 1}
	p := parser{f: f}
	p.text(&r.Model, "model")
	if len(r.Model) > maxModelName {
		p.fail("model", fmt.Errorf("longer than %d bytes", maxModelName))
	}
	if r.Kind != Other && r.Kind != Pooling && r.Kind != Detokenize {
		p.common(r)
	}
	switch r.Kind {
	case Pooling:
		r.PromptBytes = len(body)
	case Chat:
		p.chat(r)
		if r.Messages == nil {
			p.fail("messages", errors.New("missing, want a list of messages"))
		}
	case Completion:
		p.completion(r)
	case Embedding:
		p.prompts(r, "input")
		p.flag(&r.AddSpecialTokens, "add_special_tokens", f["messages"] == nil)
		p.chatTemplate(r, false)
	case Tokenize:
		p.prompts(r, "prompt")
		p.flag(&r.AddSpecialTokens, "add_special_tokens", f["messages"] == nil)
		p.chatTemplate(r, true)
	case Messages:
		r.Messages = p.raw("messages", '[')
		p.number(&r.MaxTokens, "max_tokens")
		r.PromptBytes = len(r.Messages) + len(f["system"]) + len(f["tools"])
	case Responses:
		p.number(&r.MaxTokens, "max_output_tokens")
		r.PromptBytes = len(f["input"]) + len(f["instructions"]) + len(f["tools"])
	}
	if p.err != nil {
		return nil, p.err
	}
	return r, nil
}

// parser interprets fields and keeps the first error.
type parser struct {
	f   fields
	err error
}

func (p *parser) fail(name string, err error) {
	if p.err == nil && err != nil {
		p.err = fmt.Errorf("field %q: %w", name, err)
	}
}

func (p *parser) text(to *string, name string) {
	v, err := text(p.f[name])
	*to = v
	p.fail(name, err)
}

func (p *parser) number(to *int, name string) {
	if isNull(p.f[name]) {
		return
	}
	n, err := integer(p.f[name])
	*to = n
	p.fail(name, err)
}

func (p *parser) flag(to *bool, name string, absent bool) {
	v, err := boolean(p.f[name], absent)
	*to = v
	p.fail(name, err)
}

// raw returns a member that must start with the given byte, nil if absent.
func (p *parser) raw(name string, first byte) json.RawMessage {
	v := p.f[name]
	if isNull(v) {
		return nil
	}
	if v[0] != first {
		want := "an object"
		if first == '[' {
			want = "a list"
		}
		p.fail(name, fmt.Errorf("want %s", want))
		return nil
	}
	return json.RawMessage(v)
}

func (p *parser) common(r *Request) {
	p.flag(&r.Stream, "stream", false)
	r.StreamOptions = p.f["stream_options"]
	if so := p.raw("stream_options", '{'); so != nil {
		v, err := boolean(member(so, "include_usage"), false)
		r.IncludeUsage = v
		p.fail("stream_options.include_usage", err)
	}
	var n, bestOf int
	p.number(&n, "n")
	p.number(&bestOf, "best_of")
	r.N = max(1, n, bestOf)
	p.text(&r.User, "user")
	p.text(&r.CacheSalt, "cache_salt")
	p.number(&r.TruncatePromptTokens, "truncate_prompt_tokens")
	p.text(&r.TruncationSide, "truncation_side")
	r.PromptLogprobs = asksLogprobs(p.f["prompt_logprobs"])
}

// asksLogprobs tells whether a logprobs field (a number or a boolean) asks for
// any. 0 does: it wants the chosen token's own.
func asksLogprobs(v []byte) bool { return !isNull(v) && v[0] != 'f' }

func (p *parser) chat(r *Request) {
	p.chatTemplate(r, true)
	p.number(&r.MaxTokens, "max_tokens")
	p.number(&r.MaxTokens, "max_completion_tokens")
	p.flag(&r.AddSpecialTokens, "add_special_tokens", false)
	var echo bool
	p.flag(&echo, "echo", false)
	// Chat's top_logprobs, which echo turns into prompt_logprobs, are 0 and not
	// none by default (vLLM 0.32, openai/chat_completion/protocol.py).
	r.PromptLogprobs = r.PromptLogprobs || echo
	if kv := p.f["kv_transfer_params"]; kv != nil && !echo { // echo needs the messages rendered
		if v := member(kv, "prompt_token_ids"); !isNull(v) {
			ids, err := tokenIDs(v)
			r.TokenIDs = ids
			r.TruncatePromptTokens = 0 // the engine takes them as they are
			p.fail("kv_transfer_params.prompt_token_ids", err)
			r.PromptBytes = len(ids) * bytesPerToken
		}
	}
}

// chatTemplate reads everything that a chat template sees.
func (p *parser) chatTemplate(r *Request, generation bool) {
	r.Messages = p.raw("messages", '[')
	r.Tools = p.raw("tools", '[')
	r.Documents = p.raw("documents", '[')
	r.ChatTemplateKwargs = p.raw("chat_template_kwargs", '{')
	r.MMProcessorKwargs = p.raw("mm_processor_kwargs", '{')
	r.MediaIOKwargs = p.raw("media_io_kwargs", '{')
	r.ResponseFormat = p.raw("response_format", '{')
	if v := p.f["tool_choice"]; !isNull(v) {
		r.ToolChoice = json.RawMessage(v)
	}
	p.text(&r.ChatTemplate, "chat_template")
	p.text(&r.ReasoningEffort, "reasoning_effort")
	p.flag(&r.AddGenerationPrompt, "add_generation_prompt", generation)
	p.flag(&r.ContinueFinalMessage, "continue_final_message", false)
	r.PromptBytes += len(r.Messages) + len(r.Tools) + len(r.Documents)
}

// completionMaxTokens is the limit of a completion that names none.
const completionMaxTokens = 16

func (p *parser) completion(r *Request) {
	r.PromptEmbeds = !isNull(p.f["prompt_embeds"])
	p.prompts(r, "prompt")
	if len(r.Prompts) == 0 && !r.PromptEmbeds {
		p.fail("prompt", errors.New("missing, want text, a list of texts, token ids or a list of those"))
	}
	p.flag(&r.AddSpecialTokens, "add_special_tokens", true)
	if p.f["max_tokens"] == nil {
		r.MaxTokens = completionMaxTokens
	}
	p.number(&r.MaxTokens, "max_tokens")
	var echo bool
	p.flag(&echo, "echo", false)
	r.PromptLogprobs = r.PromptLogprobs || echo && asksLogprobs(p.f["logprobs"])
}

// prompts reads the four forms of a prompt: text, a list of texts, token ids,
// a list of lists of ids.
func (p *parser) prompts(r *Request, name string) {
	v := p.f[name]
	if isNull(v) {
		return
	}
	var err error
	r.Prompts, err = prompts(v)
	p.fail(name, err)
	r.PromptBytes = r.Longest().size()
}

func prompts(v []byte) ([]Prompt, error) {
	mixed := errors.New("want text, a list of texts, token ids or a list of those")
	switch v[0] {
	case '"':
		s, err := unquote(v)
		return []Prompt{{Text: s}}, err
	case '[':
	default:
		return nil, mixed
	}
	s := scanner{b: v, i: 1}
	first := s.peek()
	if first == ']' {
		return nil, errors.New("empty list, want at least one prompt")
	}
	if first != '"' && first != '[' {
		ids, err := tokenIDs(v)
		return []Prompt{{IDs: ids}}, err
	}
	var out []Prompt
	err := elements(v, func(e []byte) error {
		if e[0] != first {
			return mixed
		}
		var one Prompt
		var err error
		if first == '"' {
			one.Text, err = unquote(e)
		} else {
			one.IDs, err = tokenIDs(e)
		}
		out = append(out, one)
		return err
	})
	return out, err
}

// tokenID reads an id: digits nearly always, so these first.
func tokenID(e []byte) (uint32, error) {
	var n int
	for _, c := range e {
		if c < '0' || c > '9' || n > math.MaxUint32 {
			n = -1
			break
		}
		n = n*10 + int(c-'0')
	}
	if n < 0 {
		var err error
		if n, err = integer(e); err != nil || n < 0 || isNull(e) {
			return 0, errors.New("want a whole number that is not negative")
		}
	}
	if n > math.MaxUint32 {
		return 0, errors.New("too large")
	}
	return uint32(n), nil
}

func tokenIDs(v []byte) ([]uint32, error) {
	ids := []uint32{}
	err := elements(v, func(e []byte) error { // its errors quote nothing: they go into logs
		n, err := tokenID(e)
		if err != nil {
			return fmt.Errorf("token id %d of the list: %w", len(ids), err)
		}
		ids = append(ids, n)
		return nil
	})
	if err == nil && len(ids) == 0 {
		err = errors.New("empty list, want at least one token id")
	}
	return ids, err
}
