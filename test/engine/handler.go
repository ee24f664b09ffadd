package engine

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

// handler is the whole HTTP surface. Every answer carries the request's id.
func (e *Engine) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", e.generate(true))
	mux.HandleFunc("POST /v1/completions", e.generate(false))
	mux.HandleFunc("POST /v1/chat/completions/render", e.render(true))
	mux.HandleFunc("POST /v1/completions/render", e.render(false))
	mux.HandleFunc("POST /tokenize", e.tokenize)
	mux.HandleFunc("POST /detokenize", e.detokenize)
	mux.HandleFunc("GET /v1/models", e.models)
	mux.HandleFunc("POST /v1/load_lora_adapter", e.loadAdapter)
	mux.HandleFunc("POST /v1/unload_lora_adapter", e.unloadAdapter)
	mux.HandleFunc("POST /reset_prefix_cache", e.resetCache)
	mux.HandleFunc("POST /sleep", e.fallAsleep)
	mux.HandleFunc("POST /wake_up", e.wakeUp)
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"is_sleeping": e.sleep.Load() > 0})
	})
	mux.HandleFunc("GET /kv_event_sources", e.eventSources)
	mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"server_load": e.serving.Load()})
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"version": Version})
	})
	mux.HandleFunc("GET /debug/stats", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, e.Stats())
	})
	ok := func(http.ResponseWriter, *http.Request) {}
	mux.HandleFunc("GET /health", ok)
	mux.HandleFunc("GET /ping", ok)
	mux.Handle("GET /metrics", promhttp.HandlerFor(e.metrics.registry, promhttp.HandlerOpts{}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if id == "" {
			id = requestID()
		}
		w.Header().Set("X-Request-Id", id)
		mux.ServeHTTP(w, r)
	})
}

// render answers with the prompt's tokens and generates nothing.
func (e *Engine) render(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if e.cfg.RenderClosed {
			writeError(w, &apiError{http.StatusForbidden, "Scale-out endpoints are disabled. Start the engine with --render open to enable them."})
			return
		}
		var body request
		if err := decode(w, r, &body); err != nil {
			writeError(w, err)
			return
		}
		id := "cmpl-" + w.Header().Get("X-Request-Id")
		if chat {
			id = "chat" + id
		}
		jobs, err := e.jobs(&body, chat, id)
		if err != nil {
			writeError(w, err)
			return
		}
		var out []any
		for _, j := range jobs {
			var salt any
			if body.CacheSalt != "" {
				salt = body.CacheSalt
			}
			out = append(out, map[string]any{
				"request_id": id, "token_ids": j.prompt, "features": nil,
				"sampling_params": map[string]any{"max_tokens": len(j.req.Output)},
				"model":           e.cfg.Model, "stream": body.Stream, "stream_options": nil,
				"cache_salt": salt, "priority": 0, "kv_transfer_params": nil,
			})
		}
		if chat {
			writeJSON(w, http.StatusOK, out[0])
			return
		}
		writeJSON(w, http.StatusOK, out)
	}
}

func (e *Engine) tokenize(w http.ResponseWriter, r *http.Request) {
	var body struct {
		request
		Prompt *string `json:"prompt"`
	}
	err := decode(w, r, &body)
	var ids []uint32
	switch {
	case err != nil:
	case body.Prompt != nil:
		ids = e.cfg.Tokenizer.Encode(*body.Prompt)
	default:
		ids, err = e.renderChat(&body.request)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"count": len(ids), "max_model_len": e.cfg.MaxModelLen, "tokens": ids, "token_strs": nil,
	})
}

func (e *Engine) detokenize(w http.ResponseWriter, r *http.Request) {
	var body struct{ Tokens []uint32 }
	if err := decode(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"prompt": e.cfg.Tokenizer.Decode(body.Tokens)})
}

func (e *Engine) models(w http.ResponseWriter, _ *http.Request) {
	entry := func(id, root string, parent, maxLen any) map[string]any {
		return map[string]any{
			"id": id, "object": "model", "created": e.started.Unix(), "owned_by": "vllm",
			"root": root, "parent": parent, "max_model_len": maxLen, "permission": []any{},
		}
	}
	data := []any{entry(e.cfg.Model, e.cfg.Model, nil, e.cfg.MaxModelLen)}
	for _, a := range e.served() {
		data = append(data, entry(a.Name, a.Path, e.cfg.Model, nil))
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

type adapterBody struct {
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

func (e *Engine) loadAdapter(w http.ResponseWriter, r *http.Request) {
	var body adapterBody
	err := decode(w, r, &body)
	if err == nil {
		err = e.load(body.Name, body.Path)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	e.cfg.Logger.Info("loaded adapter", "name", body.Name, "path", body.Path)
	fmt.Fprintf(w, "Success: LoRA adapter '%s' added successfully.", body.Name)
}

func (e *Engine) unloadAdapter(w http.ResponseWriter, r *http.Request) {
	var body adapterBody
	if err := decode(w, r, &body); err != nil {
		writeError(w, err)
		return
	}
	if !e.unload(body.Name) {
		writeError(w, &apiError{http.StatusNotFound, fmt.Sprintf("The lora adapter '%s' cannot be found.", body.Name)})
		return
	}
	e.cfg.Logger.Info("unloaded adapter", "name", body.Name)
	fmt.Fprintf(w, "Success: LoRA adapter '%s' removed successfully.", body.Name)
}

// resetCache is always 200; the body says whether the cache is empty now.
func (e *Engine) resetCache(w http.ResponseWriter, r *http.Request) {
	preempt, _ := strconv.ParseBool(r.URL.Query().Get("reset_running_requests"))
	ok := true
	for _, rank := range e.ranks {
		ok = rank.reset(preempt) && ok
	}
	e.cfg.Logger.Info("reset prefix cache", "success", ok, "preempt", preempt)
	writeJSON(w, http.StatusOK, map[string]any{"success": ok})
}

func (e *Engine) fallAsleep(w http.ResponseWriter, r *http.Request) {
	level := 1
	if s := r.URL.Query().Get("level"); s != "" {
		var err error
		if level, err = strconv.Atoi(s); err != nil || level < 1 || level > 2 {
			writeError(w, bad("level must be 1 or 2, got %q.", s))
			return
		}
	}
	e.sleep.Store(int32(level))
	for _, rank := range e.ranks {
		rank.sleep()
	}
	e.cfg.Logger.Info("fell asleep", "level", level)
}

func (e *Engine) wakeUp(http.ResponseWriter, *http.Request) {
	e.sleep.Store(0)
	for _, rank := range e.ranks {
		rank.wake()
	}
	e.cfg.Logger.Info("woke up")
}

// eventSources is where vLLM 0.31 and later tell a sidecar of their publishers.
func (e *Engine) eventSources(w http.ResponseWriter, _ *http.Request) {
	out := map[string]any{}
	for i, r := range e.ranks {
		if r.pub == nil {
			continue
		}
		events, replay := r.pub.Endpoints()
		var at any
		if replay != "" {
			at = replay
		}
		out[strconv.Itoa(i)] = map[string]any{
			"endpoint": events, "replay_endpoint": at, "topic": e.cfg.Events.Topic, "buffer_steps": cmp.Or(e.cfg.Events.BufferSteps, zmqpub.DefaultBufferSteps),
		}
	}
	writeJSON(w, http.StatusOK, out)
}
