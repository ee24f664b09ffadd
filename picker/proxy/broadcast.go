package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	broadcastTimeout = 2 * time.Minute // adapters take a while to load
	maxBroadcastBody = 1 << 20
)

// answerOf is one endpoint's answer to a request that went to all.
type answerOf struct {
	Endpoint string          `json:"endpoint"`
	Status   int             `json:"status"` // 0: not reached
	Body     json.RawMessage `json:"body,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// broadcast sends a dev or adapter request to every endpoint and joins the answers: 200 if all
// said 200, else 502 with what each said.
func (p *Proxy) broadcast(w http.ResponseWriter, r *http.Request) {
	var taken int64
	defer func() { p.free(taken) }()
	body, status, err := p.readBody(w, r, maxBroadcastBody, &taken)
	switch {
	case status == statusClientGone:
		panic(http.ErrAbortHandler)
	case err != nil:
		writeError(w, status, "invalid_request_error", err.Error())
		return
	}
	urls := p.engines()
	if len(urls) == 0 {
		writeError(w, http.StatusServiceUnavailable, "unavailable", emptyPool)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), broadcastTimeout)
	defer cancel()
	answers := make([]answerOf, len(urls))
	var wg sync.WaitGroup
	for i, base := range urls {
		wg.Go(func() { answers[i] = p.ask(ctx, base, r, body) })
	}
	wg.Wait()
	p.extend(w)
	status = http.StatusOK
	for i, a := range answers {
		if a.Status != http.StatusOK {
			status = http.StatusBadGateway
		}
		if r.URL.Path == "/reset_prefix_cache" && resetSucceeded(a) {
			p.picker.CacheCleared(address(urls[i]))
		}
		if r.URL.Path == "/sleep" || r.URL.Path == "/pause" { // both empty the cache
			p.picker.CacheCleared(address(urls[i]))
		}
	}
	p.log.Info("sent to all endpoints", slog.String("path", r.URL.Path), slog.Int("endpoints", len(urls)), slog.Int("status", status))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"endpoints": answers})
}

// resetSucceeded reads vLLM's answer: {"success": false} where blocks were in use; older
// versions answer 200 with an empty body.
func resetSucceeded(a answerOf) bool {
	var said struct {
		Success *bool `json:"success"`
	}
	_ = json.Unmarshal(a.Body, &said) // no body: no refusal
	return a.Status == http.StatusOK && (said.Success == nil || *said.Success)
}

// ask sends r's copy to one engine.
func (p *Proxy) ask(ctx context.Context, base string, r *http.Request, body []byte) answerOf {
	a := answerOf{Endpoint: address(base)}
	req, err := http.NewRequestWithContext(ctx, r.Method, base+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		a.Error = err.Error()
		return a
	}
	copyRequestHeaders(req.Header, r.Header)
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	defer resp.Body.Close()
	a.Status = resp.StatusCode
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBroadcastBody))
	switch {
	case err != nil:
		a.Error = err.Error()
	case json.Valid(text):
		a.Body = text
	case len(text) > 0:
		a.Error = string(text[:min(len(text), 200)])
	}
	return a
}

// engines are the base URLs of the pool, each once.
func (p *Proxy) engines() []string {
	var urls []string
	for _, e := range p.picker.Status().Endpoints {
		if !slices.Contains(urls, e.URL) {
			urls = append(urls, e.URL)
		}
	}
	return urls
}

// address is the host:port of a base URL.
func address(base string) string {
	_, rest, ok := strings.Cut(base, "://")
	if !ok {
		rest = base
	}
	return strings.TrimSuffix(rest, "/")
}

// modelList is the answer of GET /v1/models.
type modelList struct {
	Object string      `json:"object"`
	Data   []modelCard `json:"data"`
}

type modelCard struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	OwnedBy string `json:"owned_by"`
}

// models answers with every model and adapter that some endpoint serves.
func (p *Proxy) models(w http.ResponseWriter, _ *http.Request) {
	list := modelList{Object: "list", Data: []modelCard{}}
	for _, m := range p.picker.Status().Models {
		list.Data = append(list.Data, modelCard{ID: m, Object: "model", OwnedBy: "grapevine"})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

// How often endpoints without an agent are asked for their models. One that has not answered yet is asked again sooner,
// with pauses that double: with several pools it gets no requests for what others serve.
const (
	modelPoll  = 10 * time.Second
	modelRetry = 500 * time.Millisecond
	modelAsks  = 64                    // at once
	modelBatch = 50 * time.Millisecond // answers within it are taken over together: each time costs work for all endpoints
)

// Run asks endpoints that no agent speaks for which models they serve, until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	retry, all := modelRetry, time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.joined:
			retry = modelRetry
		case <-timer.C:
		}
		now := time.Now()
		everybody := !now.Before(all)
		if everybody {
			all = now.Add(modelPoll)
		}
		pause := time.Until(all)
		if p.pollModels(ctx, everybody) > 0 {
			pause = min(pause, retry)
			retry = min(2*retry, modelPoll)
		}
		timer.Reset(pause)
	}
}

// EndpointsChanged makes Run ask endpoints that are new at once.
func (p *Proxy) EndpointsChanged() {
	select {
	case p.joined <- struct{}{}:
	default:
	}
}

// pollModels asks endpoints without an agent, everybody or those whose models are unknown. It returns how many did not
// answer.
func (p *Proxy) pollModels(ctx context.Context, everybody bool) int {
	ask := map[string]string{} // endpoint by URL
	for _, e := range p.picker.Status().Endpoints {
		if e.DigestAgeMs < 0 && (everybody || len(e.Models) == 0) {
			ask[e.URL] = e.ID
		}
	}
	type answer struct {
		url   string
		names []string // nil: none came
	}
	answers := make(chan answer)
	asks := make(chan struct{}, modelAsks)
	for url, id := range ask {
		go func() {
			asks <- struct{}{}
			defer func() { <-asks }()
			names, err := p.modelsOf(ctx, url)
			if err != nil {
				p.log.Debug("models unknown", slog.String("endpoint", id), slog.Any("error", err))
			}
			answers <- answer{url, names}
		}()
	}
	silent := 0
	batch := map[string][]string{}
	ticker := time.NewTicker(modelBatch)
	defer ticker.Stop()
	for left := len(ask); left > 0; {
		select {
		case a := <-answers:
			left--
			if a.names == nil {
				silent++
			} else {
				batch[a.url] = a.names
			}
		case <-ticker.C:
			p.picker.SetModels(batch)
			clear(batch)
		}
	}
	p.picker.SetModels(batch)
	return silent
}

// modelsOf asks one engine.
func (p *Proxy) modelsOf(ctx context.Context, base string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	var list modelList
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBroadcastBody)).Decode(&list); err != nil {
		return nil, fmt.Errorf("read models: %w", err)
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	if len(names) == 0 {
		return nil, errors.New("no model in the list")
	}
	return names, nil
}
