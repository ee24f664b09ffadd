package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/webui"
)

// Admin serves operators: metrics, status, receipts, explain, recordings (see package recording),
// profiles and the live page. It must not share a listener with clients.
func (p *Proxy) Admin(metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.status()) })
	mux.HandleFunc("GET /receipts", p.receipts)
	mux.HandleFunc("GET /receipts/{id}", p.receipt)
	mux.HandleFunc("POST /explain", p.explain)
	mux.Handle("GET /trace", p.recorder)
	mux.HandleFunc("GET /health", p.health)
	// For a supervisor that restarts: an empty pool or a drain is no reason to.
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.Handle("GET /", webui.Handler(p.picker))
	return mux
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client left
}

// receipts answers with the last decisions, newest first; ?n=100 by default.
func (p *Proxy) receipts(w http.ResponseWriter, r *http.Request) {
	n := 100
	if s := r.URL.Query().Get("n"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 {
			writeError(w, http.StatusBadRequest, "invalid_request_error", fmt.Sprintf("n=%q: give a number above 0", s))
			return
		}
	}
	writeJSON(w, p.picker.Receipts(n))
}

// receipt answers with the decision on one request.
func (p *Proxy) receipt(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	receipt, ok := p.picker.Receipt(id)
	if !ok {
		writeError(w, http.StatusNotFound, "not_found_error", fmt.Sprintf("no receipt for request id %q: only the last decisions of this gateway are kept", id))
		return
	}
	writeJSON(w, receipt)
}

// explain says what would be decided on a request body now; nothing is sent on. The API is named
// by ?path=, chat completions by default.
func (p *Proxy) explain(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if path == "" {
		path = "/v1/chat/completions"
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, p.cfg.MaxBodyBytes))
	if err != nil {
		writeError(w, http.StatusRequestEntityTooLarge, "invalid_request_error", "body: "+err.Error())
		return
	}
	req, err := openai.Parse(path, body)
	if err != nil {
		writeError(w, http.StatusBadRequest, "invalid_request_error", err.Error())
		return
	}
	pick, prompt, err := p.request(r, req, inbound.RequestID(r.Header), true)
	defer prompt.Release()
	if err == nil {
		var receipt picker.Receipt
		if receipt, err = p.picker.Explain(r.Context(), pick); err == nil {
			writeJSON(w, receipt)
			return
		}
	}
	status := http.StatusInternalServerError
	var unknown picker.ErrUnknownModel
	switch {
	case errors.As(err, &unknown):
		status = http.StatusNotFound
	case errors.Is(err, picker.ErrNoEndpoints):
		status = http.StatusServiceUnavailable
	}
	writeError(w, status, "invalid_request_error", err.Error())
}
