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
// are counted; requests never wait.

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
	InProgress  int     `json:"in_progress"`  // now, those from before it began included
	BlockTokens int     `json:"block_tokens"` // of a block in its lines
}

// recordings are those that run. Safe for concurrent use.
type recordings struct {
	maxBytes int        // that wait for one reader
	mu       sync.Mutex // guards changes of list
	list     atomic.Pointer[[]*recording]
}

// running is what a request's end looks at: nil nearly always.
func (r *recordings) running() []*recording {
	if list := r.list.Load(); list != nil {
		return *list
	}
	return nil
}

// start adds a recording; nil: there are too many.
func (r *recordings) start(now time.Time, sizes []int) *recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.running()
	if len(list) >= maxRecordings {
		return nil
	}
	rec := newRecording(now, sizes, r.maxBytes)
	list = append(slices.Clip(list), rec)
	r.list.Store(&list)
	return rec
}

func (r *recordings) stop(rec *recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(r.running()), func(x *recording) bool { return x == rec })
	if len(list) == 0 {
		r.list.Store(nil)
		return
	}
	r.list.Store(&list)
}

// trace serves GET /trace: one recording, until the client leaves.
func (p *Proxy) trace(w http.ResponseWriter, r *http.Request) {
	rec := p.traces.start(time.Now(), p.picker.BlockSizes())
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
		lines, status = rec.take(lines[:0], time.Now())
		status.InProgress = len(p.slots)
		text, err := json.Marshal(map[string]RecordingStatus{"recording": status})
		if err != nil {
			return
		}
		lines = append(append(lines, text...), '\n')
		p.extend(w)
		if _, err := w.Write(lines); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

// record hands an ended request to the recordings. It costs one atomic load while there are none.
func (p *Proxy) record(c *call) {
	for _, rec := range p.traces.running() {
		if c.req != nil && !generates(c.req.Kind) || c.arrived.Before(rec.start) {
			continue
		}
		if !rec.add(c, time.Now(), p.picker.Hasher()) {
			p.metrics.lostLines.Inc()
		}
	}
}
