// Package webui is the gateway's live page: requests landing on endpoints with their cached
// share, what is held, and how each endpoint is known. One embedded page without outside assets, fed by
// one stream of server-sent events. It shows no prompt text.
package webui

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/grapevine-llm/grapevine/picker"
)

//go:embed index.html
var page []byte

const (
	interval    = 250 * time.Millisecond
	perInterval = 400 // decisions sent per interval at most, the newest
)

// update is one event of the stream.
type update struct {
	Endpoints  []endpoint `json:"endpoints"`
	Decisions  []decision `json:"decisions"` // since the last event, oldest first
	Held       int        `json:"held"`
	HeldTokens int        `json:"held_tokens"`
	Gateways   int        `json:"gateways"` // others
}

type endpoint struct {
	ID           string `json:"id"`
	Rung         string `json:"rung"`
	Partial      bool   `json:"partial"`
	Out          bool   `json:"out"`
	AgeMs        int    `json:"age_ms"` // -1: no agent
	Running      int    `json:"running"`
	Waiting      int    `json:"waiting"`
	Others       int    `json:"others"` // requests of other gateways
	BlocksCached int    `json:"blocks_cached"`
}

type decision struct {
	RequestID             string  `json:"request_id"`
	Endpoint              string  `json:"endpoint"`
	Policy                string  `json:"policy"`
	Rung                  string  `json:"rung"`
	PromptTokens          int     `json:"prompt_tokens"`
	PredictedCachedTokens int     `json:"predicted_cached_tokens"`
	ActualCachedTokens    int     `json:"actual_cached_tokens"` // -1: not known yet
	HeldMs                float64 `json:"held_ms"`
}

// Handler serves the page at / and its events at /events.
func Handler(p *picker.Picker) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'")
		_, _ = w.Write(page)
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) { stream(w, r, p) })
	return mux
}

// stream sends an update every interval until the client leaves.
func stream(w http.ResponseWriter, r *http.Request, p *picker.Picker) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	flusher := http.NewResponseController(w)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	since := time.Time{}
	for {
		u := next(p, &since)
		body, err := json.Marshal(u)
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", body); err != nil {
			return
		}
		if err := flusher.Flush(); err != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

// next builds an update of what came after since, and moves since on.
func next(p *picker.Picker, since *time.Time) update {
	s := p.Status()
	u := update{Endpoints: []endpoint{}, Decisions: []decision{}, Held: s.Held.Requests, HeldTokens: s.Held.UncachedTokens}
	if s.Gossip != nil {
		u.Gateways = s.Gossip.Hint.Gateways
	}
	for _, e := range s.Endpoints {
		u.Endpoints = append(u.Endpoints, endpoint{
			ID: e.ID, Rung: e.Rung.String(), Partial: e.Partial, Out: e.Out, AgeMs: int(e.DigestAgeMs),
			Running: max(e.Running, e.Outstanding), Waiting: e.Waiting, Others: e.Others, BlocksCached: e.CachedBlocks,
		})
	}
	receipts := p.Receipts(perInterval)
	for i := len(receipts) - 1; i >= 0; i-- {
		r := &receipts[i]
		if !r.Time.After(*since) {
			continue
		}
		d := decision{
			RequestID: r.RequestID, Endpoint: r.Endpoint, Policy: r.Policy, Rung: r.Rung.String(),
			PromptTokens: r.PromptTokens, PredictedCachedTokens: r.PredictedCachedTokens, ActualCachedTokens: -1, HeldMs: r.HeldMs,
		}
		if r.Outcome != nil {
			d.ActualCachedTokens = r.Outcome.CachedTokens
		}
		u.Decisions = append(u.Decisions, d)
	}
	if len(receipts) > 0 {
		*since = receipts[0].Time
	}
	return u
}
