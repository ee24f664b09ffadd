// Package proxy is an OpenAI-compatible reverse proxy around the picker library: it reads a
// request, learns its token ids, asks the picker for an endpoint and forwards the answer without
// adding delay to its stream.
//
// It owns HTTP in both directions and nothing else: which endpoint is best is the
// picker's to say, what a prompt's tokens are is package prompt's. The admin surface
// (metrics, status, receipts, live page) is a handler of its own, for a listener of its own.
//
// Prompt text is in no log, metric or receipt.
package proxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	gopath "path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/recording"
)

// Config of a Proxy. The zero value of a limit means its default.
type Config struct {
	MaxBodyBytes    int64         `json:"max-body-bytes" help:"largest request body; larger ones are answered 413"`
	MaxBodiesBytes  int64         `json:"max-bodies-bytes" help:"bytes of the bodies of all requests in progress; further ones are answered 429"`
	MaxConcurrent   int           `json:"max-concurrent" help:"requests in progress at most, held ones included; further ones are answered 429"`
	DialTimeout     time.Duration `json:"dial-timeout" help:"limit on connecting to an endpoint; after it the next endpoint is tried"`
	ClientTimeout   time.Duration `json:"client-timeout" help:"how long a client may take to send its body, and to take in each part of its answer"`
	HeaderWait      time.Duration `json:"header-wait" help:"how long an answer's headers wait for its first event, to leave in one write with it"`
	MaxRetryShare   float64       `json:"max-retry-share" help:"share of the requests in progress that may be retries after a connection was reset"`
	AllowPaths      []string      `json:"allow-paths" help:"further POST paths to forward, each to the endpoint with the least load"`
	DevEndpoints    bool          `json:"dev-endpoints" help:"forward the engines' dev and adapter endpoints (reset_prefix_cache, sleep, load_lora_adapter, ...) to all endpoints"`
	ForwardTokenIDs bool          `json:"forward-token-ids" help:"give chat requests' token ids to engines, which then don't tokenize again (vLLM since August 2026; others ignore them); only ids of models that an engine agreed with"`
	ResponseHeaders bool          `json:"response-headers" help:"put the decision into X-Grapevine-* headers of each answer"`
	inbound.Headers

	// Version of the binary, for the status.
	Version string `json:"-"`
	// Pools is what a watcher of the pool has to show, for the status; nil: nothing.
	Pools func() any `json:"-"`
	// Advice is what watching another router has shown, for the status; nil: none is watched.
	Advice func() any `json:"-"`
	// NotReady says what keeps the gateway from serving just now, for /health; empty, or nil: nothing.
	NotReady func() string `json:"-"`
}

// Default returns the configuration that suits most gateways.
func Default() Config {
	return Config{
		MaxBodyBytes:   32 << 20,
		MaxBodiesBytes: 1 << 30,
		MaxConcurrent:  4096,
		DialTimeout:    500 * time.Millisecond,
		ClientTimeout:  time.Minute,
		HeaderWait:     10 * time.Millisecond,
		MaxRetryShare:  0.1,
		Headers:        inbound.DefaultHeaders(),
	}
}

// Validate joins all faults; each has the methods Field, Value, Problem and Remedy.
func (c Config) Validate() error {
	var errs []error
	fault := func(bad bool, field string, value any, problem, remedy string) {
		if bad {
			errs = append(errs, &fieldError{field, fmt.Sprint(value), problem, remedy})
		}
	}
	fault(c.MaxBodyBytes < 1<<10, "max-body-bytes", c.MaxBodyBytes, "is too small", "give at least 1024")
	fault(c.MaxBodiesBytes < c.MaxBodyBytes, "max-bodies-bytes", c.MaxBodiesBytes, "is less than max-body-bytes", "give room for several bodies")
	fault(c.MaxConcurrent < 1, "max-concurrent", c.MaxConcurrent, "is too small", "give at least 1")
	fault(c.DialTimeout <= 0, "dial-timeout", c.DialTimeout, "is not positive", "give a duration such as 500ms")
	fault(c.ClientTimeout <= 0, "client-timeout", c.ClientTimeout, "is not positive", "give a duration such as 1m")
	fault(c.HeaderWait < 0 || c.HeaderWait > time.Second, "header-wait", c.HeaderWait, "is out of range", "give 0 to 1s")
	fault(c.MaxRetryShare < 0 || c.MaxRetryShare > 1, "max-retry-share", c.MaxRetryShare, "is no share", "give a number from 0 to 1")
	served := slices.Clone(generatePaths)
	for _, path := range c.AllowPaths {
		fault(!plainPath(path), "allow-paths", path, "is no plain path", "give a path such as /v1/audio, without a slash at its end, braces or spaces")
		fault(slices.Contains(served, path), "allow-paths", path, "is served already", "leave it out")
		served = append(served, path)
	}
	return errors.Join(errs...)
}

// plainPath reports whether a path stands for itself alone in a ServeMux.
func plainPath(path string) bool {
	return len(path) > 1 && gopath.Clean(path) == path && path[0] == '/' && !strings.ContainsFunc(path, func(c rune) bool {
		return c <= ' ' || c > '~' || c == '{' || c == '}'
	})
}

// fieldError is one fault of a Config.
type fieldError struct{ field, value, problem, remedy string }

func (e *fieldError) Error() string {
	return fmt.Sprintf("%s = %q %s; %s", e.field, e.value, e.problem, e.remedy)
}
func (e *fieldError) Field() string   { return e.field }
func (e *fieldError) Value() string   { return e.value }
func (e *fieldError) Problem() string { return e.problem }
func (e *fieldError) Remedy() string  { return e.remedy }

// Resolver turns a request into its chain or token ids; *prompt.Resolver is the real one.
type Resolver interface {
	inbound.Resolver
	Status() prompt.Status
}

// Proxy forwards requests. Safe for concurrent use.
type Proxy struct {
	cfg         Config
	picker      *picker.Picker
	resolver    Resolver
	log         *slog.Logger
	metrics     *metrics
	direct      *direct         // to engines without TLS
	transport   *http.Transport // to others
	reader      inbound.Reader
	bodyBuffers inbound.Buffers
	readBuffers inbound.Buffers // readBytes each
	budget      retryBudget
	deaths      *deathList
	draining    atomic.Bool
	slots       chan struct{} // one per request in progress
	bodies      atomic.Int64  // bytes of their bodies
	recorder    *recording.Recorder
	joined      chan struct{} // endpoints may be new: see Run
}

// New returns a Proxy that picks with p and reads prompts with r. log and reg may be nil.
func New(cfg Config, p *picker.Picker, r Resolver, log *slog.Logger, reg prometheus.Registerer) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if reg != nil {
		if err := reg.Register(newPromptMetrics(r)); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	// TCP_NODELAY is Go's default on both sides.
	dialer := &net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}
	return &Proxy{
		cfg: cfg, picker: p, resolver: r, log: log,
		reader:  inbound.Reader{Headers: cfg.Headers, Picker: p, Resolver: r, Log: log},
		metrics: newMetrics(reg),
		joined:  make(chan struct{}, 1),
		direct:  newDirect(dialer),
		transport: &http.Transport{
			DialContext:           dialer.DialContext,
			MaxIdleConnsPerHost:   maxIdlePerEngine,
			IdleConnTimeout:       maxIdleTime,
			DisableCompression:    true,
			WriteBufferSize:       64 << 10,
			ReadBufferSize:        32 << 10,
			ExpectContinueTimeout: time.Second,
		},
		budget: retryBudget{share: cfg.MaxRetryShare},
		deaths: newDeathList(),
		slots:  make(chan struct{}, cfg.MaxConcurrent),
		recorder: recording.New(recording.Config{
			BlockSizes: p.BlockSizes, Hasher: p.Hasher(), WriteTimeout: cfg.ClientTimeout, Registerer: reg,
		}),
	}, nil
}

// Drain makes /health fail and binds all held requests; requests in progress go on.
func (p *Proxy) Drain() {
	p.draining.Store(true)
	p.picker.Drain()
}

// Close drops idle connections to endpoints.
func (p *Proxy) Close() {
	p.direct.closeIdle()
	p.transport.CloseIdleConnections()
}

// Paths that are picked for, by method. Other paths are 404 unless allowed by Config.
var generatePaths = []string{
	"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings",
	"/tokenize", "/detokenize", "/pooling", "/classify",
	"/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank",
	"/v1/chat/completions/render", "/v1/completions/render",
}

// devPaths are the engines' dev and adapter-management endpoints (vLLM 0.32,
// vllm/entrypoints/serve), by method.
var devPaths = map[string]string{
	"/reset_prefix_cache": http.MethodPost, "/reset_mm_cache": http.MethodPost, "/reset_encoder_cache": http.MethodPost,
	"/sleep": http.MethodPost, "/wake_up": http.MethodPost, "/is_sleeping": http.MethodGet,
	"/pause": http.MethodPost, "/resume": http.MethodPost, "/is_paused": http.MethodGet,
	"/server_info":          http.MethodGet,
	"/v1/load_lora_adapter": http.MethodPost, "/v1/unload_lora_adapter": http.MethodPost,
}

// Handler serves clients.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, path := range generatePaths {
		mux.HandleFunc("POST "+path, p.serve)
	}
	for _, path := range p.cfg.AllowPaths {
		mux.HandleFunc("POST "+path, p.serve)
	}
	for path, method := range devPaths {
		if p.cfg.DevEndpoints {
			mux.HandleFunc(method+" "+path, p.broadcast)
		}
	}
	mux.HandleFunc("GET /v1/models", p.models)
	mux.HandleFunc("GET /health", p.health)
	mux.HandleFunc("GET /ping", p.health)
	mux.HandleFunc("/", p.unknown)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.extend(w) // the connection may still have the limit of an earlier answer
		if r.Body != http.NoBody {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(p.cfg.ClientTimeout)) // see readBody
		}
		mux.ServeHTTP(w, r)
	})
}

// unknown answers paths that are not served, and known paths with a wrong method.
func (p *Proxy) unknown(w http.ResponseWriter, r *http.Request) {
	for _, path := range append(generatePaths, p.cfg.AllowPaths...) {
		if r.URL.Path == path {
			w.Header().Set("Allow", http.MethodPost)
			writeError(w, http.StatusMethodNotAllowed, "invalid_request_error", r.Method+" is not allowed here: use POST")
			return
		}
	}
	if _, dev := devPaths[r.URL.Path]; dev {
		writeError(w, http.StatusNotFound, "invalid_request_error", "dev and adapter endpoints are off: start the gateway with --dev-endpoints to forward them to all endpoints")
		return
	}
	remedy := "allow it with --allow-paths"
	if r.Method == http.MethodGet {
		remedy = "metrics, status and the live page are at the admin address (--admin-listen)"
	}
	writeError(w, http.StatusNotFound, "invalid_request_error", "path "+r.URL.Path+" is not served: "+remedy)
}

// health answers 200 while requests can be served, and says why not otherwise.
func (p *Proxy) health(w http.ResponseWriter, _ *http.Request) {
	why := ""
	if p.cfg.NotReady != nil {
		why = p.cfg.NotReady()
	}
	switch {
	case p.draining.Load():
		writeError(w, http.StatusServiceUnavailable, "unavailable", "draining: this gateway is going down")
	case why != "":
		writeError(w, http.StatusServiceUnavailable, "unavailable", why)
	case len(p.picker.Status().Endpoints) == 0:
		writeError(w, http.StatusServiceUnavailable, "unavailable", emptyPool)
	default:
		w.WriteHeader(http.StatusOK)
	}
}

const emptyPool = "the pool is empty: give --endpoints, name pools of Kubernetes that have ready pods, or let agents join by gossip"

// writeError answers in OpenAI's shape.
func writeError(w http.ResponseWriter, status int, typ, msg string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(openai.ErrorBody(status, typ, msg))
}
