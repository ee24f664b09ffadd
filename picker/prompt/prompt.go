// Package prompt turns a request into the token ids that the engine will see,
// so that the gateway can hash them into the request's chain of blocks.
//
// A Resolver climbs down a ladder: ids that the client sent; the model's own
// tokenizer and chat template, read here; the engine's render endpoint; the
// engine's /tokenize; nothing, when the request is routed by load only. Every
// step down has a reason, and all are counted.
//
// Special tokens cut a rendered prompt into segments that tokenize
// independently, and the ids of segments are cached: a growing conversation
// costs its new text only, exactly.
package prompt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

// Rungs of the ladder, best first.
const (
	RungIDs      = "ids"      // the client sent them
	RungOwn      = "own"      // tokenized here
	RungRender   = "render"   // the engine's render endpoint
	RungTokenize = "tokenize" // the engine's /tokenize
	RungNone     = "none"     // not known
)

// Config of a Resolver. The zero value works: it knows no model's files and
// asks engines.
type Config struct {
	// Models maps a model's name to the folder with its tokenizer.json,
	// tokenizer_config.json and, if that holds no template,
	// chat_template.jinja.
	Models map[string]string
	// Base names the base model of an adapter, "" if unknown. Nil, or "": an
	// adapter without an entry in Models uses the only folder there is.
	Base func(model string) string
	// IsAdapter tells whether a model's name is that of a LoRA adapter, which
	// then marks the chain. Nil: none is.
	IsAdapter func(model string) bool
	// Client asks engines. Nil means http.DefaultClient.
	Client *http.Client
	// Deadline bounds all questions to engines for one request; 0 means 300 ms.
	// A longer one finds more prompts and may cost more than a cache hit saves.
	Deadline time.Duration
	// CacheBytes bounds each of two caches, of segments and of engines'
	// answers; 0 means 16 MiB, negative none.
	CacheBytes int64
	Logger     *slog.Logger // nil discards
}

// Result is what is known of a request's prompt.
type Result struct {
	// TokenIDs of the prompt, the longest one if there are several; nil if
	// unknown. With images they end where the first begins: what follows has
	// no identity here. Shared: do not change.
	TokenIDs []uint32
	// Extras mark the whole request's chain: adapter, cache salt.
	Extras []blockhash.Extra
	Rung   string // one of the Rung constants
	// EstimatedTokens is the prompt's length: exact when TokenIDs are known,
	// else a guess from its bytes.
	EstimatedTokens int
	Reason          string // why better rungs failed; "" if none was better
}

// Stats counts results by rung since the start, and what the caches did.
type Stats struct {
	IDs, Own, Render, Tokenize, None uint64
	SegmentHits, SegmentMisses       uint64 // of segments long enough to cache
	AnswerHits, AnswerMisses         uint64 // of engines' answers
}

// Resolver finds token ids. Safe for concurrent use.
type Resolver struct {
	cfg      Config
	models   map[string]*ownModel
	only     *ownModel // the only folder's model, nil if there are several or none
	segments *segmentCache
	engine   *engine
	log      *slog.Logger
	rungs    [5]atomic.Uint64 // in the order of Stats
}

const (
	defaultDeadline   = 300 * time.Millisecond
	defaultCacheBytes = 16 << 20
)

// New returns a Resolver and reads the files of all models. A folder that
// cannot be read is an error; one whose tokenizer or template is not supported
// is logged, and that model's prompts are asked from engines.
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
	r := &Resolver{
		cfg:      cfg,
		models:   map[string]*ownModel{},
		segments: newSegmentCache(cfg.CacheBytes),
		engine:   newEngine(cfg.Client, cfg.CacheBytes),
		log:      cfg.Logger,
	}
	byDir := map[string]*ownModel{}
	var errs []error
	for name, dir := range cfg.Models {
		m := byDir[dir]
		if m == nil {
			var err error
			if m, err = loadModel(os.DirFS(dir), uint64(len(byDir))); err != nil {
				errs = append(errs, fmt.Errorf("model %s: %w", name, err))
				continue
			}
			byDir[dir] = m
		}
		r.models[name] = m
		for _, err := range m.problems() {
			r.log.Warn("model's prompts are asked from engines", slog.String("model", name), slog.Any("error", err))
		}
	}
	if len(byDir) == 1 {
		for _, m := range byDir {
			r.only = m
		}
	}
	return r, errors.Join(errs...)
}

// Resolve finds the token ids of a request. engineURL is the base URL of an
// engine that serves the model, "" if there is none to ask. Not finding ids is
// no error: the result then says RungNone with the reason. The only error is
// ctx's.
func (r *Resolver) Resolve(ctx context.Context, req *openai.Request, engineURL string) (Result, error) {
	res := r.find(ctx, req, engineURL)
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	res.Extras = r.extras(req)
	if res.TokenIDs == nil {
		res.EstimatedTokens = max(res.EstimatedTokens, req.EstimatedTokens())
	} else {
		res.EstimatedTokens = max(res.EstimatedTokens, len(res.TokenIDs))
	}
	for i, rung := range [...]string{RungIDs, RungOwn, RungRender, RungTokenize, RungNone} {
		if res.Rung == rung {
			r.rungs[i].Add(1)
		}
	}
	return res, nil
}

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

func (r *Resolver) find(ctx context.Context, req *openai.Request, engineURL string) Result {
	switch req.Kind {
	case openai.Chat, openai.Completion, openai.Embedding, openai.Responses, openai.Messages:
	default:
		return Result{Rung: RungNone, Reason: "this kind of request fills no cache"}
	}
	if req.PromptEmbeds {
		return Result{Rung: RungNone, Reason: "prompt is embeddings"}
	}
	ids := req.TokenIDs
	if ids == nil {
		ids = req.Longest().IDs
	}
	if ids != nil {
		return Result{TokenIDs: truncate(ids, req), Rung: RungIDs}
	}
	ids, ownErr := r.own(req)
	if ownErr == nil {
		return Result{TokenIDs: truncate(ids, req), Rung: RungOwn}
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
func (r *Resolver) own(req *openai.Request) ([]uint32, error) {
	m := r.model(req.Model)
	if m == nil {
		return nil, errors.New("no files for this model")
	}
	return m.encode(req, r.segments)
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

// truncate keeps as many tokens as the request wants, from the side that vLLM
// keeps: the end for generation, the beginning for embeddings. -1, the model's
// own length, matters only to prompts that are too long for it and is left to
// the engine.
func truncate(ids []uint32, req *openai.Request) []uint32 {
	n := req.TruncatePromptTokens
	if n <= 0 || len(ids) <= n {
		return ids
	}
	side := req.TruncationSide
	if side == "" && req.Kind == openai.Embedding {
		side = "right"
	}
	if side == "right" {
		return ids[:n]
	}
	return ids[len(ids)-n:]
}

// Stats returns what was counted so far.
func (r *Resolver) Stats() Stats {
	s := Stats{
		IDs: r.rungs[0].Load(), Own: r.rungs[1].Load(), Render: r.rungs[2].Load(),
		Tokenize: r.rungs[3].Load(), None: r.rungs[4].Load(),
	}
	s.SegmentHits, s.SegmentMisses = r.segments.hits.Load(), r.segments.misses.Load()
	s.AnswerHits, s.AnswerMisses = r.engine.hits.Load(), r.engine.misses.Load()
	return s
}
