// Package prompt turns a request into the token ids that the engine will see,
// and these into the request's chain of blocks.
//
// A Resolver climbs down a ladder: ids that the client sent; the model's own
// tokenizer and chat template, read here; the engine's render endpoint; the
// engine's /tokenize; nothing, when the request is routed by load only. Every
// step down has a reason, and all are counted. Run compares the ids made here
// with those of engines, and takes a model that is contradicted down a rung.
//
// Added tokens (<|im_end|>) cut a rendered prompt into segments. The reference
// library looks for them before it normalizes, splits and merges, and does all
// that to each segment alone, so a segment's ids depend on nothing around it but
// on whether the prompt begins with it. Tokenizers with added tokens for which
// that is not so are not cut: see tokenizer.Cut. The ids of segments, and how
// far the chain has come at places between them, are cached: a growing
// conversation costs its new text only, exactly.
package prompt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
)

// Rungs of the ladder, best first.
const (
	RungIDs      = "ids"      // the client sent them
	RungOwn      = "own"      // tokenized here
	RungRender   = "render"   // the engine's render endpoint
	RungTokenize = "tokenize" // the engine's /tokenize
	RungNone     = "none"     // not known
)

var rungNames = [...]string{RungIDs, RungOwn, RungRender, RungTokenize, RungNone}

// Config of a Resolver. The zero value works: it knows no model's files and
// asks engines.
type Config struct {
	// Models maps a model's name to the folder with its tokenizer.json,
	// tokenizer_config.json and, if that holds no template,
	// chat_template.jinja.
	Models map[string]string
	// Chat holds, by model name, what the model's engines were started with
	// that changes their chat prompts; without an entry the defaults.
	Chat map[string]chat.Options
	// Base names the base model of an adapter, "" if unknown. Nil, or "": an
	// adapter without an entry in Models uses the only folder there is.
	Base func(model string) string
	// IsAdapter tells whether a model's name is that of a LoRA adapter, which
	// then marks the chain. Nil: none is.
	IsAdapter func(model string) bool
	// BlockSizes says for which block sizes, in tokens, results hold chains
	// instead of ids. Nil, or none: ids.
	BlockSizes func() []int
	// Hasher hashes blocks as the pool does; for chains only.
	Hasher blockhash.Hasher
	// KeepIDs puts ids beside the chains, for callers that pass them on.
	KeepIDs bool
	// Client asks engines. Nil means http.DefaultClient.
	Client *http.Client
	// Deadline bounds all questions to engines for one request; 0 means 300 ms.
	// A longer one finds more prompts and may cost more than a cache hit saves.
	Deadline time.Duration
	// CacheBytes bounds each of three caches: ids of segments, chains of
	// conversations, engines' answers; 0 means 32 MiB, negative none.
	CacheBytes int64
	// Engines lists the engines of the pool for Run's comparisons. Nil: none
	// are made.
	Engines func() []Engine
	// CheckEvery compares one in so many requests with an engine; 0: none.
	CheckEvery int
	// LogPromptText shows what differs as text in the log. Prompts are secrets
	// of users: off, the log holds positions and hashes.
	LogPromptText bool
	Logger        *slog.Logger // nil discards
}

// Result is what is known of a request's prompt.
type Result struct {
	// TokenIDs of the prompt, the longest one if there are several; nil if
	// unknown, or if there are Chains instead. With images they end where the
	// first begins: what follows has no identity here. Shared: do not change.
	TokenIDs []uint32
	// Chains of the prompt, one for each of Config.BlockSizes. They are valid
	// until Release.
	Chains []blockhash.Chain
	// Extras mark the whole request's chain: adapter, cache salt.
	Extras []blockhash.Extra
	Rung   string // one of the Rung constants
	// EstimatedTokens is the prompt's length: exact when TokenIDs or Chains are
	// known and not Partial, else a guess from its bytes.
	EstimatedTokens int
	// Partial tells that TokenIDs or Chains end where the first image or sound
	// begins.
	Partial bool
	// Verified tells that an engine was seen to agree with the model's files,
	// and none to disagree. Only on RungOwn.
	Verified bool
	Reason   string // why better rungs failed; "" if none was better

	walk   *walk
	chains *chainCache
}

// Release gives the memory of Chains back for other requests. It may be left
// out, and must not be called while Chains are read.
func (r *Result) Release() {
	if r.walk != nil {
		r.chains.release(r.walk)
		r.walk, r.Chains = nil, nil
	}
}

// Resolver finds token ids. Safe for concurrent use.
type Resolver struct {
	cfg      Config
	models   map[string]*ownModel
	folders  []*ownModel // each once, by name
	only     *ownModel   // the only folder's model, nil if there are several or none
	segments *segmentCache
	chains   *chainCache
	engine   *engine
	log      *slog.Logger
	others   [len(rungNames)]atomic.Uint64 // requests of models without a folder, by rung
	sampler  sampler
}

const (
	defaultDeadline   = 300 * time.Millisecond
	defaultCacheBytes = 32 << 20
)

// New returns a Resolver and reads the files of all models. It starts nothing:
// see Run. A folder that is not there is an error; one whose tokenizer or
// template is missing, damaged or not supported is logged, and that model's
// prompts are asked from engines.
func New(cfg Config) (*Resolver, error) {
	if cfg.Client == nil {
		cfg.Client = http.DefaultClient
	}
	if cfg.Deadline <= 0 {
		cfg.Deadline = defaultDeadline
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = defaultCacheBytes
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	k := newKeys()
	r := &Resolver{
		cfg:      cfg,
		models:   map[string]*ownModel{},
		segments: newSegmentCache(k, cfg.CacheBytes),
		engine:   newEngine(cfg.Client, k, cfg.CacheBytes),
		log:      cfg.Logger,
		sampler:  newSampler(cfg.CheckEvery),
	}
	r.chains = newChainCache(r.segments, cfg.CacheBytes)
	loaded := map[string]*ownModel{} // by folder and options
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Models)) {
		dir, opts := cfg.Models[name], cfg.Chat[name]
		key := fmt.Sprintf("%q %+v", dir, opts)
		m := loaded[key]
		if m == nil {
			var err error
			if m, err = loadModel(dir, opts, uint64(len(loaded))); err != nil {
				errs = append(errs, fmt.Errorf("model %s: %w", name, err))
				continue
			}
			loaded[key] = m
			r.folders = append(r.folders, m)
		}
		r.models[name] = m
		m.names = append(m.names, name)
		for _, err := range m.problems() {
			r.log.Error("model's prompts are asked from engines", slog.String("model", name), slog.Any("error", err))
		}
	}
	if len(r.folders) == 1 {
		r.only = r.folders[0]
	}
	return r, errors.Join(errs...)
}

// Resolve finds the token ids of a request, or its chains. engineURL is the
// base URL of an engine that serves the model, "" if there is none to ask. Not
// finding ids is no error: the result then says RungNone with the reason. The
// only error is ctx's.
func (r *Resolver) Resolve(ctx context.Context, req *openai.Request, engineURL string) (Result, error) {
	extras := r.extras(req)
	m := r.model(req.Model)
	res := r.find(ctx, m, req, extras, engineURL)
	if err := ctx.Err(); err != nil {
		res.Release()
		return Result{}, err
	}
	res.Extras = extras
	if res.Partial && res.EstimatedTokens == 0 {
		res.EstimatedTokens = mediaTokens + len(res.TokenIDs)
		if res.walk != nil {
			res.EstimatedTokens = mediaTokens + res.walk.tokens
		}
	}
	switch {
	case len(res.Chains) > 0:
		res.EstimatedTokens = max(res.EstimatedTokens, res.walk.tokens)
	case res.TokenIDs != nil:
		res.EstimatedTokens = max(res.EstimatedTokens, len(res.TokenIDs))
	default:
		res.EstimatedTokens = max(res.EstimatedTokens, estimate(req))
	}
	if !cacheable(req.Kind) {
		return res, nil // not counted: it could not have been found
	}
	counts := &r.others
	if m != nil {
		counts = &m.resolved
	}
	counts[slices.Index(rungNames[:], res.Rung)].Add(1)
	return res, nil
}

// cacheable reports whether a kind of request has a prompt that engines keep.
func cacheable(k openai.Kind) bool {
	switch k {
	case openai.Chat, openai.Completion, openai.Responses, openai.Messages:
		return true
	}
	return false
}

// estimate guesses how many tokens a request makes an engine compute: of all
// its prompts.
func estimate(req *openai.Request) int {
	total := 0
	for _, p := range req.Prompts {
		total += len(p.Text)/4 + len(p.IDs)
	}
	return max(total, req.EstimatedTokens())
}

// mediaTokens is assumed of what follows the beginning of an image: models make
// some hundreds of tokens of one. Its bytes in the body say nothing.
const mediaTokens = 1024

// extras mark the whole chain. An engine keeps adapters and salts apart, so do
// we.
func (r *Resolver) extras(req *openai.Request) []blockhash.Extra {
	var out []blockhash.Extra
	if r.cfg.IsAdapter != nil && r.cfg.IsAdapter(req.Model) {
		out = append(out, blockhash.Extra{Kind: blockhash.LoRA, Value: req.Model})
	}
	if req.CacheSalt != "" {
		out = append(out, blockhash.Extra{Kind: blockhash.CacheSalt, Value: req.CacheSalt})
	}
	return out
}

func (r *Resolver) find(ctx context.Context, m *ownModel, req *openai.Request, extras []blockhash.Extra, engineURL string) Result {
	if !cacheable(req.Kind) { // embeddings, scores: what such prompts share is short, and most of their engines keep no cache
		return Result{Rung: RungNone, Reason: "this kind of request is routed by load"}
	}
	if req.PromptEmbeds {
		return Result{Rung: RungNone, Reason: "prompt is embeddings"}
	}
	// Several prompts in one request stay together and the longest decides.
	// To split them would mean to put their answers, or streams of answers,
	// together again as one engine gives them: usage, indexes, errors. Who
	// sends lists wants throughput of one engine's batch, and what most of
	// their prompts share, the longest one has too.
	ids := req.TokenIDs
	if ids == nil {
		ids = req.Longest().IDs
	}
	if ids != nil {
		return Result{TokenIDs: truncate(ids, req), Rung: RungIDs}
	}
	res, ownErr := r.own(m, req, extras)
	if ownErr == nil {
		r.sampler.offer(m, req, engineURL)
		return res
	}
	reason := "own: " + ownErr.Error()
	if engineURL == "" {
		return Result{Rung: RungNone, Reason: reason + "; no engine to ask"}
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Deadline)
	defer cancel()
	res, err := r.engine.ask(ctx, req, engineURL)
	if err != nil {
		return Result{Rung: RungNone, Reason: reason + "; " + err.Error()}
	}
	if res.Rung == RungTokenize { // render truncates itself
		res.TokenIDs = truncate(res.TokenIDs, req)
	}
	res.Reason = reason
	return res
}

// own tokenizes with the model's files.
func (r *Resolver) own(m *ownModel, req *openai.Request, extras []blockhash.Extra) (Result, error) {
	if m == nil {
		return Result{}, errors.New("no files for this model")
	}
	if err := m.trusted(); err != nil {
		return Result{}, err
	}
	buf := textBuffers.Get().(*textBuffer)
	defer buf.release()
	text, whole, err := m.text(req, buf)
	if err != nil {
		return Result{}, err
	}
	res := Result{Rung: RungOwn, Verified: m.trust.isVerified()}
	var sizes []int
	if r.cfg.BlockSizes != nil {
		sizes = r.cfg.BlockSizes()
	}
	// A prompt that loses its beginning has another chain: it takes the long way.
	asIDs := len(sizes) == 0 || req.TruncatePromptTokens > 0
	if !whole {
		if req.TruncatePromptTokens > 0 {
			return Result{}, chat.ErrMultimodal
		}
		res.Partial, res.Reason = true, "own: what follows the first image is not known"
	}
	if asIDs || r.cfg.KeepIDs {
		res.TokenIDs = truncate(m.encodeText(req, text, whole, r.segments), req)
	}
	if asIDs {
		return res, nil
	}
	prefix, suffix := m.around(req, whole)
	res.walk, res.chains = r.chains.chains(&source{
		tok: m.tok, model: m.number, text: text, prefix: prefix, suffix: suffix,
		hasher: r.cfg.Hasher, root: r.cfg.Hasher.Root(extras...), sizes: sizes,
	}), r.chains
	res.Chains = res.walk.chains
	return res, nil
}

// model returns what was read for a model or its base, nil if nothing was.
func (r *Resolver) model(name string) *ownModel {
	m := r.models[name]
	if m == nil && r.cfg.Base != nil {
		m = r.models[r.cfg.Base(name)]
	}
	if m == nil && (name == "" || r.cfg.IsAdapter != nil && r.cfg.IsAdapter(name)) {
		m = r.only
	}
	return m
}

// truncate keeps as many tokens as the request wants, from the end if it does not
// say which side, as vLLM does for generation. -1, the model's
// own length, matters only to prompts that are too long for it and is left to
// the engine.
func truncate(ids []uint32, req *openai.Request) []uint32 {
	n := req.TruncatePromptTokens
	if n <= 0 || len(ids) <= n {
		return ids
	}
	if req.TruncationSide == "right" {
		return ids[:n]
	}
	return ids[len(ids)-n:]
}
