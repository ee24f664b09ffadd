package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
)

const (
	adminTimeout   = 10 * time.Second
	resetTimeout   = 30 * time.Second
	maxResetAnswer = 64 << 10
)

func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: adminTimeout, ReadTimeout: adminTimeout, WriteTimeout: resetTimeout + adminTimeout, IdleTimeout: time.Minute,
	}
	done := make(chan struct{})
	defer close(done)
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// probeHandler serves what others may see: metrics, and /livez, which is 200 while
// the agent's own loops turn, whatever the engine does.
func (a *Agent) probeHandler() *http.ServeMux {
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(a))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if err := a.alive(time.Now()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// adminHandler serves:
//
//	GET  /metrics, /livez      as probeHandler
//	GET  /status               JSON, see Status
//	GET  /healthz              200 while the agent runs, engine or not
//	POST /v1/cache/cleared     somebody reset the engines' caches: forget them
//	POST /reset_prefix_cache   reset the engines' caches and forget them
//
// The last two take ?engine=URL for one of several engines.
func (a *Agent) adminHandler() http.Handler {
	mux := a.probeHandler()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.Status()) })
	mux.HandleFunc("POST /v1/cache/cleared", func(w http.ResponseWriter, r *http.Request) {
		units, ok := a.chosen(w, r)
		if !ok {
			return
		}
		for _, u := range units {
			u.cleared(time.Now())
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /reset_prefix_cache", a.reset)
	return mux
}

// chosen returns the units that a request is about; if there are none it answers.
func (a *Agent) chosen(w http.ResponseWriter, r *http.Request) ([]*unit, bool) {
	engine := r.URL.Query().Get("engine")
	all, waiting := a.state()
	if waiting != nil {
		answer(w, http.StatusServiceUnavailable, map[string]any{"error": waiting.Reason, "remedy": waiting.Remedy})
		return nil, false
	}
	if engine == "" {
		return all, true
	}
	for _, u := range all {
		if u.engine == strings.TrimRight(engine, "/") {
			return []*unit{u}, true
		}
	}
	answer(w, http.StatusNotFound, map[string]any{"error": "this agent has no such engine", "engines": a.cfg.Engine})
	return nil, false
}

// reset passes a reset on to the engines and clears the picture of those that did
// it. vLLM answers 200 also where it refused, since a request runs; then nothing
// was reset.
func (a *Agent) reset(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), resetTimeout)
	defer cancel()
	units, ok := a.chosen(w, r)
	if !ok {
		return
	}
	query := r.URL.Query()
	query.Del("engine")
	results := make(map[string]bool)
	status := http.StatusOK
	for _, u := range units {
		ok, err := u.resetEngine(ctx, query.Encode())
		if err != nil {
			u.log.Warn("engine did not reset its cache", slog.Any(keyErr, err))
			status = http.StatusBadGateway
		}
		if ok {
			u.cleared(time.Now())
		}
		results[u.engine] = ok
	}
	answer(w, status, map[string]any{"success": results})
}

func (u *unit) resetEngine(ctx context.Context, query string) (bool, error) {
	url := u.engine + "/reset_prefix_cache"
	if query != "" {
		url += "?" + query
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return false, fmt.Errorf("reset prefix cache: %w", err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: enginemetrics.TLS(u.engine)}} // resets are rare
	resp, err := client.Do(req)
	if err != nil {
		return false, fmt.Errorf("reset prefix cache: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResetAnswer))
	switch {
	case err != nil:
		return false, fmt.Errorf("reset prefix cache: %w", err)
	case resp.StatusCode == http.StatusNotFound:
		return false, errors.New("reset prefix cache: the engine has no such endpoint: start it with VLLM_SERVER_DEV_MODE=1")
	case resp.StatusCode != http.StatusOK:
		return false, fmt.Errorf("reset prefix cache: status %d", resp.StatusCode)
	}
	var result struct {
		Success *bool `json:"success"`
	}
	if json.Unmarshal(body, &result) == nil && result.Success != nil {
		return *result.Success, nil
	}
	return true, nil // older versions answer nothing
}

// Status is what the agent knows, for people and tests.
type Status struct {
	Version         string         `json:"version,omitempty"`
	Time            time.Time      `json:"time"`
	SeedFingerprint uint32         `json:"seed_fingerprint"`  // of the seed of block hashes
	Waiting         *Waiting       `json:"waiting,omitempty"` // nil: the agent is in the mesh
	GPU             GPUStatus      `json:"gpu"`
	Engines         []EngineStatus `json:"engines"`
}

// GPUStatus says whether the agent sees the pod's GPUs.
type GPUStatus struct {
	Count   int    `json:"count"`             // watched
	Problem string `json:"problem,omitempty"` // why none is watched
	Fault   string `json:"fault,omitempty"`   // of one of them
}

// EngineStatus is the state of one engine.
type EngineStatus struct {
	Engine   string       `json:"engine"`
	Kind     string       `json:"kind,omitempty"` // engine and version
	Address  string       `json:"address"`        // as told to gateways
	Pool     string       `json:"pool"`
	Node     string       `json:"node"`
	Gossip   string       `json:"gossip"` // own address
	Up       bool         `json:"up"`
	KVEvents string       `json:"kv_events"`
	Gateways int          `json:"gateways"`
	Mesh     mesh.Stats   `json:"mesh"`
	Ranks    []RankStatus `json:"ranks"`
}

// RankStatus is the state of one rank.
type RankStatus struct {
	Rank     int     `json:"rank"`
	Epoch    uint64  `json:"epoch"`
	TickNo   uint64  `json:"tick_no"`
	Blocks   int     `json:"blocks"` // that can be hit in the GPU
	All      int     `json:"blocks_all_tiers"`
	Orphans  int     `json:"orphans"`
	Coverage float64 `json:"coverage"`
	Partial  bool    `json:"partial"`
	Suspect  bool    `json:"suspect"`
	Restarts uint64  `json:"restarts"`
}

// Status returns the state as it stands.
func (a *Agent) Status() Status {
	units, waiting := a.state()
	out := Status{Version: a.cfg.Version, Time: time.Now(), Waiting: waiting, GPU: a.gpus.status()}
	for _, u := range units {
		out.SeedFingerprint = u.hasher.Fingerprint()
		out.Engines = append(out.Engines, u.status())
	}
	return out
}

func (u *unit) status() EngineStatus {
	ranks := u.ranks()
	u.mu.Lock()
	defer u.mu.Unlock()
	out := EngineStatus{
		Engine: u.engine, Kind: strings.TrimSpace(u.info.Engine + " " + u.info.EngineVersion),
		Address: u.info.Address, Pool: u.info.Pool, Node: u.info.Node, Gossip: u.mesh.LocalAddr(),
		Up: u.up, KVEvents: u.kvEvents, Gateways: len(u.pickers), Mesh: u.mesh.Stats(),
	}
	for _, rank := range ranks {
		s := u.streams[rank]
		st := s.set.Stats()
		out.Ranks = append(out.Ranks, RankStatus{
			Rank: int(rank), Epoch: s.pub.Epoch(), TickNo: s.pub.TickNo(),
			Blocks: st.Visible[blockset.GPU], All: st.Visible[blockset.All], Orphans: st.Orphans,
			Coverage: s.coverage(), Partial: s.set.Partial(), Suspect: s.set.Suspect(), Restarts: s.restarts,
		})
	}
	return out
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client went away
}
