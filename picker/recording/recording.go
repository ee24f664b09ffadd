// Package recording makes traces of the requests that pass: when each came, how long its prompt and answer were, which blocks
// of its prompt are the same as other requests', and its session, without text, token ids or names.
//
// A Recorder serves GET /trace. As long as a client's connection is open, it gets a line for each request that came since and
// has ended, in the form that `grapevine sim --format grapevine` reads, and several times a second a line {"recording": Status}.
// See line for what a line holds. A reader that is too slow loses lines, which are counted; requests never wait. With ?for=10m
// a recording holds the requests that come in that time, and the answer ends when the last of them has ended.
//
// Whoever sees the requests tells of them:
//
//	in := recorder.Begin(time.Now()) // the request comes
//	recorder.End(in, &call)          // and has ended
package recording

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

const (
	maxRecordings = 8
	maxBytes      = 16 << 20 // that wait for one reader
	every         = 250 * time.Millisecond
)

// Config of a Recorder.
type Config struct {
	BlockSizes   func() []int // of the pool, in tokens
	Hasher       blockhash.Hasher
	WriteTimeout time.Duration         // how long a reader may take for what is sent
	Registerer   prometheus.Registerer // nil: no metrics
}

// Status is what a recording says of itself. Counts are of requests that came since it began.
type Status struct {
	Seconds     float64 `json:"seconds"`      // since it began
	Requests    int     `json:"requests"`     // that ended, lost ones included
	Lost        int     `json:"lost"`         // of these, no line for want of a quick reader
	Unserved    int     `json:"unserved"`     // besides these: refused, failed, or left before an answer
	InProgress  int     `json:"in_progress"`  // besides these: have not ended
	BlockTokens int     `json:"block_tokens"` // of a block in its lines
}

// Call is a request that has ended.
type Call struct {
	Arrived   time.Time
	Request   *openai.Request // nil: it was not understood
	Pick      picker.Request  // as far as its prompt is known
	Partial   bool            // what Pick has of the prompt is its beginning
	Status    int             // of the answer; 0: there was none
	Streaming bool            // the answer was a stream of events
	Events    int             // of the stream
	Outcome   picker.Outcome
	Served    string // host:port of who served, for the line if the host is an address; "": it does not say, nor how much was cached
}

// Recorder has the recordings that run. Safe for concurrent use.
type Recorder struct {
	cfg      Config
	maxBytes int // that wait for one reader
	running  prometheus.Gauge
	lost     prometheus.Counter

	mu   sync.Mutex // guards changes of list
	list atomic.Pointer[[]*recording]
}

// New returns a Recorder.
func New(cfg Config) *Recorder {
	r := &Recorder{
		cfg: cfg, maxBytes: maxBytes,
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "grapevine_gateway_recordings", Help: "Recordings of the traffic that run (grapevine trace)."}),
		lost:    prometheus.NewCounter(prometheus.CounterOpts{Name: "grapevine_gateway_recording_lost_total", Help: "Requests that are missing in recordings because their readers were too slow."}),
	}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(r.running, r.lost)
	}
	return r
}

// Running returns how many recordings run: nearly always none.
func (r *Recorder) Running() int { return len(r.recordings()) }

func (r *Recorder) recordings() []*recording {
	if list := r.list.Load(); list != nil {
		return *list
	}
	return nil
}

// Membership are the recordings that a request belongs to.
type Membership []*recording

// Begin returns the recordings that a request belongs to that comes now. It costs one atomic load while there are none.
func (r *Recorder) Begin(now time.Time) Membership {
	list := r.recordings()
	for _, rec := range list {
		rec.begin(now)
	}
	return list
}

// End hands a request that has ended now to its recordings. It must be called once for each Begin.
func (r *Recorder) End(in Membership, c *Call) {
	for _, rec := range in {
		if !rec.stopped.Load() && !rec.add(c, time.Now(), r.cfg.Hasher) {
			r.lost.Inc()
		}
	}
}

// start adds a recording; nil: there are too many.
func (r *Recorder) start(now time.Time, duration time.Duration) *recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.recordings()
	if len(list) >= maxRecordings {
		return nil
	}
	rec := newRecording(now, r.cfg.BlockSizes(), r.maxBytes)
	rec.duration = duration
	list = append(slices.Clip(list), rec)
	r.list.Store(&list)
	return rec
}

func (r *Recorder) stop(rec *recording) {
	rec.stopped.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(r.recordings()), func(x *recording) bool { return x == rec })
	if len(list) == 0 {
		r.list.Store(nil)
		return
	}
	r.list.Store(&list)
}

// ServeHTTP serves GET /trace: one recording, until the client leaves or all is in it that should be.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var duration time.Duration
	if s := req.URL.Query().Get("for"); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil || duration <= 0 {
			refuse(w, http.StatusBadRequest, "invalid_request_error", fmt.Sprintf("for=%q: give a duration such as 10m", s))
			return
		}
	}
	rec := r.start(time.Now(), duration)
	if rec == nil {
		refuse(w, http.StatusTooManyRequests, "overloaded_error", fmt.Sprintf("%d recordings run already, as many as may: end one of them", maxRecordings))
		return
	}
	defer r.stop(rec)
	r.running.Inc()
	defer r.running.Dec()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var lines []byte
	for {
		var status Status
		var complete bool
		lines, status, complete = rec.take(lines[:0], time.Now())
		text, err := json.Marshal(map[string]Status{"recording": status})
		if err != nil {
			return
		}
		lines = append(append(lines, text...), '\n')
		_ = out.SetWriteDeadline(time.Now().Add(r.cfg.WriteTimeout)) // not supported: no limit
		if _, err := w.Write(lines); err != nil {
			return
		}
		if err := out.Flush(); err != nil || complete {
			return
		}
		select {
		case <-req.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

func refuse(w http.ResponseWriter, status int, typ, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(openai.ErrorBody(status, typ, message))
}
