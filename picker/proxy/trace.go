package proxy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A recording is one client of GET /trace on the admin listener: as long as its connection is open, it gets a line for each
// request that came since and has ended, in the form that `grapevine sim --format grapevine` reads, and several times a second
// a line {"recording": RecordingStatus}. See recordedLine for what a line holds. A reader that is too slow loses lines, which
// are counted; requests never wait. With ?for=10m it holds the requests that come in that time, and the answer ends when the
// last of them has ended.

const (
	maxRecordings    = 8
	maxRecordedBytes = 16 << 20 // that wait for one reader
	recordedEvery    = 250 * time.Millisecond
)

// RecordingStatus is what a recording says of itself. Counts are of requests that came since it began.
type RecordingStatus struct {
	Seconds     float64 `json:"seconds"`      // since it began
	Requests    int     `json:"requests"`     // that ended, lost ones included
	Lost        int     `json:"lost"`         // of these, no line for want of a quick reader
	Unserved    int     `json:"unserved"`     // besides these: refused, failed, or left before an answer
	InProgress  int     `json:"in_progress"`  // besides these: have not ended
	BlockTokens int     `json:"block_tokens"` // of a block in its lines
}

// recordings are those that run. Safe for concurrent use.
type recordings struct {
	maxBytes int        // that wait for one reader
	mu       sync.Mutex // guards changes of list
	list     atomic.Pointer[[]*recording]
}

// running is nil nearly always.
func (r *recordings) running() []*recording {
	if list := r.list.Load(); list != nil {
		return *list
	}
	return nil
}

// begin returns the recordings that a request belongs to that comes now. It costs one atomic load while there are none.
func (r *recordings) begin(now time.Time) []*recording {
	list := r.running()
	for _, rec := range list {
		rec.begin(now)
	}
	return list
}

// start adds a recording; nil: there are too many.
func (r *recordings) start(now time.Time, duration time.Duration, sizes []int) *recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.running()
	if len(list) >= maxRecordings {
		return nil
	}
	rec := newRecording(now, sizes, r.maxBytes)
	rec.duration = duration
	list = append(slices.Clip(list), rec)
	r.list.Store(&list)
	return rec
}

func (r *recordings) stop(rec *recording) {
	rec.stopped.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(r.running()), func(x *recording) bool { return x == rec })
	if len(list) == 0 {
		r.list.Store(nil)
		return
	}
	r.list.Store(&list)
}

// trace serves GET /trace: one recording, until the client leaves or all is in it that should be.
func (p *Proxy) trace(w http.ResponseWriter, r *http.Request) {
	var duration time.Duration
	if s := r.URL.Query().Get("for"); s != "" {
		var err error
		if duration, err = time.ParseDuration(s); err != nil || duration <= 0 {
			writeError(w, http.StatusBadRequest, "invalid_request_error", fmt.Sprintf("for=%q: give a duration such as 10m", s))
			return
		}
	}
	rec := p.traces.start(time.Now(), duration, p.picker.BlockSizes())
	if rec == nil {
		writeError(w, http.StatusTooManyRequests, "overloaded_error", fmt.Sprintf("%d recordings run already, as many as may: end one of them", maxRecordings))
		return
	}
	defer p.traces.stop(rec)
	p.metrics.recorders.Inc()
	defer p.metrics.recorders.Dec()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	ticker := time.NewTicker(recordedEvery)
	defer ticker.Stop()
	var lines []byte
	for {
		var status RecordingStatus
		var complete bool
		lines, status, complete = rec.take(lines[:0], time.Now())
		text, err := json.Marshal(map[string]RecordingStatus{"recording": status})
		if err != nil {
			return
		}
		lines = append(append(lines, text...), '\n')
		p.extend(w)
		if _, err := w.Write(lines); err != nil {
			return
		}
		if err := out.Flush(); err != nil || complete {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

// record hands an ended request to its recordings.
func (p *Proxy) record(c *call) {
	for _, rec := range c.traces {
		if !rec.stopped.Load() && !rec.add(c, time.Now(), p.picker.Hasher()) {
			p.metrics.lostLines.Inc()
		}
	}
}
