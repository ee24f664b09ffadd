package extproc

import (
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of comparing a request: each has one.
const (
	resultCompared   = "compared"
	resultOther      = "other"            // no prompt that engines keep, or an answer that is not decoded
	resultUnserved   = "unserved"         // refused, failed, or its client left before an answer
	resultPrompt     = "prompt_unknown"   // its token ids
	resultBody       = "body_skipped"     // over a limit
	resultIncomplete = "incomplete"       // answered before all of it had come
	resultLate       = "late"             // judged when its own blocks may have been in the caches, and the engine did not tell what it found
	resultBusy       = "busy"             // too many waited to be judged
	resultFailed     = "not_judged"       // nobody serves its model as far as is known, an engine that was asked for tokens failed
	resultEndpoint   = "endpoint_unknown" // who served does not show, or is not in the pool
	resultDigest     = "no_digest"        // of who served, or of who would have been picked
	resultMissed     = "missed"           // too many streams
)

// verdict is a request compared.
type verdict struct {
	result string
	// Compared:
	prompt, ours, theirs int // tokens; of the prompt, found by who would have been picked, by who served
	same                 bool
	held                 bool // it would have waited
	late                 bool // theirs is what the engine told
	// As the engine told:
	engine, engineOf int // tokens found, of a prompt of so many; -1: it did not
}

// Advice is what watching another router has shown since the gateway started. Tokens are of prompts.
//
// Ours and theirs are both predicted by the same digests, at the moment when the request came; the caches are as the other
// router has filled them. With this gateway in its place they would hold other things, and often more that requests share. So
// Ours is what would be found if nothing but one choice were different, no forecast: a trace of the same requests, played by
// grapevine sim, is that.
type Advice struct {
	Since       time.Time      `json:"since"`
	Requests    int            `json:"requests"`     // seen
	InProgress  int            `json:"in_progress"`  // of these
	Compared    int            `json:"compared"`     // of these
	NotCompared map[string]int `json:"not_compared"` // of these, by reason
	// Of those compared:
	SameEndpoint int   `json:"same_endpoint"` // this gateway would have picked who served
	WouldWait    int   `json:"would_wait"`    // this gateway would have held them until an endpoint was ready
	Late         int   `json:"late"`          // theirs is what the engine told: they were judged when their own blocks may have been in its cache
	PromptTokens int64 `json:"prompt_tokens"`
	OursTokens   int64 `json:"ours_tokens"`   // found in the cache of who would have been picked, as its digest says
	TheirsTokens int64 `json:"theirs_tokens"` // found in the cache of who served, as its digest says
	// Checked are those compared in time whose engines told what they found.
	Checked Checked `json:"checked"`
	// Engines is what all engines told, compared or not.
	Engines EngineTold `json:"engines"`
}

// Checked are predictions beside what engines told, in tokens.
type Checked struct {
	Requests     int   `json:"requests"`
	PromptTokens int64 `json:"prompt_tokens"`
	OursTokens   int64 `json:"ours_tokens"`
	TheirsTokens int64 `json:"theirs_tokens"` // predicted
	CachedTokens int64 `json:"cached_tokens"` // found
}

// EngineTold is what engines told, in tokens.
type EngineTold struct {
	Requests     int   `json:"requests"`
	PromptTokens int64 `json:"prompt_tokens"`
	CachedTokens int64 `json:"cached_tokens"`
}

// report adds verdicts up. Safe for concurrent use.
type report struct {
	requests *prometheus.CounterVec // result
	tokens   *prometheus.CounterVec // of
	same     prometheus.Counter
	judging  prometheus.Histogram // seconds
	wait     prometheus.Counter

	mu  sync.Mutex // guards sum
	sum Advice
}

func newReport(now time.Time, reg prometheus.Registerer) *report {
	r := &report{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_advise_requests_total", Help: "Requests seen beside another router, by result: compared, or why not (other, unserved, prompt_unknown, body_skipped, incomplete, late, busy, not_judged, endpoint_unknown, no_digest, missed)."}, []string{"result"}),
		tokens:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_advise_tokens_total", Help: "Prompt tokens of the requests compared: all (prompt), found by who would have been picked here (ours) and by who served (theirs), both as digests say; and of all requests whose engines told: all (engine_prompt), found (engine_cached)."}, []string{"of"}),
		same:     prometheus.NewCounter(prometheus.CounterOpts{Name: "grapevine_advise_same_endpoint_total", Help: "Requests compared that went where they would have gone from here."}),
		wait:     prometheus.NewCounter(prometheus.CounterOpts{Name: "grapevine_advise_would_wait_total", Help: "Requests compared that would have been held here until an endpoint was ready."}),
		judging:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "grapevine_advise_judge_seconds", Help: "From all of a request seen to what would have been picked for it.", Buckets: prometheus.ExponentialBuckets(250e-6, 2, 14)}),
		sum:      Advice{Since: now, NotCompared: map[string]int{}},
	}
	if reg != nil {
		reg.MustRegister(r.requests, r.tokens, r.same, r.wait, r.judging)
	}
	return r
}

func (r *report) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Requests++
	r.sum.InProgress++
}

// missed counts a request of which nothing was taken in.
func (r *report) missed() {
	r.begin()
	r.end(verdict{result: resultMissed, engine: -1})
}

func (r *report) end(v verdict) {
	r.requests.WithLabelValues(v.result).Inc()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.sum
	s.InProgress--
	if v.engine >= 0 {
		s.Engines.Requests++
		s.Engines.PromptTokens += int64(v.engineOf)
		s.Engines.CachedTokens += int64(v.engine)
		r.tokens.WithLabelValues("engine_prompt").Add(float64(v.engineOf))
		r.tokens.WithLabelValues("engine_cached").Add(float64(v.engine))
	}
	if v.result != resultCompared {
		s.NotCompared[v.result]++
		return
	}
	s.Compared++
	s.PromptTokens += int64(v.prompt)
	s.OursTokens += int64(v.ours)
	s.TheirsTokens += int64(v.theirs)
	r.tokens.WithLabelValues("prompt").Add(float64(v.prompt))
	r.tokens.WithLabelValues("ours").Add(float64(v.ours))
	r.tokens.WithLabelValues("theirs").Add(float64(v.theirs))
	if v.same {
		s.SameEndpoint++
		r.same.Inc()
	}
	if v.held {
		s.WouldWait++
		r.wait.Inc()
	}
	if v.late {
		s.Late++
	}
	if c := &s.Checked; v.engine >= 0 && !v.late {
		c.Requests++
		c.PromptTokens += int64(v.engineOf)
		c.OursTokens += int64(v.ours)
		c.TheirsTokens += int64(v.theirs)
		c.CachedTokens += int64(v.engine)
	}
}

// Advice returns what has been seen beside another router; nil: this gateway picks itself.
func (s *Server) Advice() *Advice {
	if s.adviser == nil {
		return nil
	}
	return s.adviser.report.advice()
}

func (r *report) advice() *Advice {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := r.sum
	sum.NotCompared = maps.Clone(sum.NotCompared)
	return &sum
}
