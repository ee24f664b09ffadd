// Package engine is an emulated vLLM: its HTTP surface, its KV events over ZeroMQ
// and its metrics, on top of a true block pool and a modelled H200 clock. It has
// no model: text is tokenized with a real tokenizer, answered with words drawn
// from the prompt's hash, and timed by arithmetic.
//
//	cfg := engine.Default()
//	cfg.Tokenizer, err = engine.Tiny()
//	e, err := engine.New(cfg) // sockets are open, e.Addr() is known
//	err = e.Run(ctx)          // serves until ctx ends
//
// What is true to vLLM (0.32 by default): which prompts hit how many tokens, which
// blocks are evicted when, hashes, event bytes, replay, the last-token rule, the
// endpoints a router or an agent touches. What is modelled: time (package sched
// says how). What is missing: sampling parameters, logprobs, tools in answers,
// images, preemption for lack of memory.
//
// The package is the shell. The cores are test/engine/pool (blocks) and
// test/engine/sched (time); test/engine/zmqpub publishes. None of it shares code
// with the agent's or the router's reading of the same data, so that one can
// test the other.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

// Version is the vLLM version whose behaviour the defaults follow.
const Version = "0.32.0"

// Config of an Engine. Start from Default.
type Config struct {
	Listen string // address of the HTTP server, port 0 picks one
	Model  string // served model name
	// Adapters are the LoRA adapters loaded at the start; IDs are given by New.
	Adapters []pool.Adapter
	// Tokenizer is the model's text side; required.
	Tokenizer Tokenizer

	Speedup     float64     // emulated seconds in a real second; over 0
	Clock       sched.Clock // what prefill and decode cost, emulated
	BlockSize   int         // tokens a block
	KVTokens    int         // KV memory in tokens, a multiple of BlockSize in effect
	MaxModelLen int         // longest prompt and output; 0: 131,072 or what fits
	MaxNumSeqs  int         // requests running at once
	ChunkTokens int         // prompt tokens in one step
	// StreamInterval is the number of tokens in a decode event; 0 chooses it so
	// that a stream's events are at least 20 ms apart in real time.
	StreamInterval int
	// Seed is the text of PYTHONHASHSEED; empty: unset, i.e. vLLM's fixed seed.
	Seed string
	// Ranks is the data-parallel size: that many pools, schedulers and publishers.
	Ranks int

	// Events configures the publisher of rank 0; an empty Endpoint publishes nothing.
	Events zmqpub.Config
	// BareExtras hashes adapter and salt without labels, as vLLM up to 0.30.
	BareExtras bool
	// RenderClosed answers 403 on the render endpoints, as vLLM from 0.30 on does
	// without --enable-scale-out.
	RenderClosed bool

	Logger *slog.Logger // nil: discard
}

// Default is one engine of 190,464 tokens on an H200 clock in real time, with
// events on vLLM's usual ports. Tokenizer is left to the caller.
func Default() Config {
	return Config{
		Listen:      "127.0.0.1:8000",
		Model:       "tiny",
		Speedup:     1,
		Clock:       sched.H200(),
		BlockSize:   16,
		KVTokens:    190_464,
		MaxNumSeqs:  256,
		ChunkTokens: 8192,
		Ranks:       1,
		Events:      zmqpub.Config{Endpoint: "tcp://*:5557", ReplayEndpoint: "tcp://*:5558"},
	}
}

// Validate names every field that cannot work, as the flags of `grapevine engine` do.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Model != "", "model is empty: give the served model name")
	check(c.Tokenizer != nil, "Tokenizer is missing")
	check(c.Speedup > 0 && !math.IsInf(c.Speedup, 0), "speedup %g: give a number above 0", c.Speedup)
	check(c.BlockSize > 0, "block-size %d: give a number of tokens above 0", c.BlockSize)
	check(c.BlockSize <= 0 || c.KVTokens >= 2*c.BlockSize, "kv-tokens %d: give at least two blocks", c.KVTokens)
	check(c.MaxModelLen >= 0, "max-model-len %d: give 0 or more", c.MaxModelLen)
	check(c.MaxNumSeqs > 0, "max-num-seqs %d: give 1 or more", c.MaxNumSeqs)
	check(c.ChunkTokens > 0, "ChunkTokens %d: give 1 or more", c.ChunkTokens)
	check(c.StreamInterval >= 0, "stream-interval %d: give 0 or more", c.StreamInterval)
	check(c.Ranks > 0 && c.Ranks <= 64, "data-parallel-size %d: give 1 to 64", c.Ranks)
	for _, a := range c.Adapters {
		check(a.Name != "" && a.Name != c.Model, "adapter %q: give a name other than the model's", a.Name)
	}
	return errors.Join(errs...)
}

// eventGap is the least real time between two events of one stream when
// StreamInterval is chosen: fine enough for a viewer, cheap enough for many
// engines on a small machine.
const eventGap = 20 * time.Millisecond

func (c *Config) fill() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.StreamInterval == 0 {
		c.StreamInterval = max(1, int(math.Ceil(float64(eventGap)*c.Speedup/float64(c.Clock.Step))))
	}
	usable := (c.KVTokens/c.BlockSize - 1) * c.BlockSize // the null block is never used
	if c.MaxModelLen == 0 {
		c.MaxModelLen = 131_072
	}
	c.MaxModelLen = min(c.MaxModelLen, usable)
}

// Engine is one emulated engine process.
type Engine struct {
	cfg      Config
	hasher   pool.Hasher
	voice    voice
	started  time.Time
	listener net.Listener
	ranks    []*rank
	metrics  *metrics
	history  history
	serving  atomic.Int64 // HTTP requests that generate
	sleep    atomic.Int32 // level, 0 awake

	mu       sync.RWMutex // guards adapters and nextID
	adapters []*pool.Adapter
	nextID   int
}

// New opens the engine's sockets; nothing is served before Run. Run closes them;
// without Run, call Close.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("engine configuration: %w", err)
	}
	cfg.fill()
	e := &Engine{
		cfg:     cfg,
		hasher:  pool.NewHasher(cfg.Seed, cfg.BareExtras),
		voice:   newVoice(cfg.Tokenizer),
		started: time.Now(),
	}
	for _, a := range cfg.Adapters {
		if err := e.load(a.Name, a.Path); err != nil {
			return nil, err
		}
	}
	e.metrics = newMetrics(e)
	for i := range cfg.Ranks {
		r := newRank(e, i)
		e.ranks = append(e.ranks, r)
		if cfg.Events.Endpoint == "" {
			continue
		}
		ec := cfg.Events
		ec.Rank = i
		var err error
		if r.pub, err = zmqpub.Open(ec); err != nil {
			e.Close()
			return nil, fmt.Errorf("open publisher of rank %d: %w", i, err)
		}
	}
	var err error
	if e.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		e.Close()
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	return e, nil
}

// Addr is the HTTP server's address, host:port.
func (e *Engine) Addr() string { return e.listener.Addr().String() }

// Endpoints are the ZeroMQ addresses of a rank; empty where there is none.
func (e *Engine) Endpoints(rank int) (events, replay string) {
	if p := e.ranks[rank].pub; p != nil {
		return p.Endpoints()
	}
	return "", ""
}

// Close closes the sockets of an engine that does not run.
func (e *Engine) Close() {
	for _, r := range e.ranks {
		if r.pub != nil {
			r.pub.Close()
		}
	}
	if e.listener != nil {
		_ = e.listener.Close()
	}
}

// Run serves until ctx ends; requests under way are then cut off. It returns nil
// after ctx, else what broke.
func (e *Engine) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range e.ranks {
		g.Go(func() error { r.run(ctx); return nil })
		if r.pub != nil {
			g.Go(func() error { return r.pub.Run(ctx) })
		}
	}
	srv := &http.Server{
		Handler:           e.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(e.cfg.Logger.Handler(), slog.LevelDebug),
	}
	g.Go(func() error {
		if err := srv.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve HTTP: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			_ = srv.Close()
		}
		return nil
	})
	return g.Wait()
}

// load adds an adapter; it refuses a name in use.
func (e *Engine) load(name, path string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name == "" || name == e.cfg.Model {
		return fmt.Errorf("adapter %q: the name is empty or the model's", name)
	}
	for _, a := range e.adapters {
		if a.Name == name {
			return fmt.Errorf("adapter %q has already been loaded", name)
		}
	}
	e.nextID++
	e.adapters = append(e.adapters, &pool.Adapter{ID: e.nextID, Name: name, Path: path})
	return nil
}

// unload removes an adapter; its blocks stay until evicted, as in vLLM.
func (e *Engine) unload(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, a := range e.adapters {
		if a.Name == name {
			e.adapters = append(e.adapters[:i:i], e.adapters[i+1:]...)
			return true
		}
	}
	return false
}

// served returns the adapters, in order of loading.
func (e *Engine) served() []*pool.Adapter {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.adapters[:len(e.adapters):len(e.adapters)]
}

// lookUp finds a served model; nil, true is the base model.
func (e *Engine) lookUp(model string) (*pool.Adapter, bool) {
	if model == "" || model == e.cfg.Model {
		return nil, true
	}
	for _, a := range e.served() {
		if a.Name == model {
			return a, true
		}
	}
	return nil, false
}
