package engine

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/test/engine/sched"
)

// metrics are vLLM's by name, label and unit. Durations are real seconds, i.e.
// emulated ones divided by the speed-up, so that counters and rates fit together.
type metrics struct {
	registry *prometheus.Registry

	// Counted when the first token is there.
	ttft                     *prometheus.HistogramVec
	prompt, cached, bySource *prometheus.CounterVec
	// With every further token.
	itl *prometheus.HistogramVec
	// At the end of a request.
	size, computed, perToken, e2e, queue, prefill, decode, inference *prometheus.HistogramVec
	success                                                          *prometheus.CounterVec
}

func newMetrics(e *Engine) *metrics {
	// vLLM's buckets.
	ttft := []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itl := []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	long := []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	size := []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000}

	m := &metrics{registry: prometheus.NewRegistry()}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "vllm:" + name, Help: help, Buckets: buckets},
			[]string{"model_name", "engine"})
		for rank := range e.cfg.Ranks { // shown as 0 from the start, as in vLLM
			h.WithLabelValues(e.cfg.Model, strconv.Itoa(rank))
		}
		m.registry.MustRegister(h)
		return h
	}
	m.ttft = histogram("time_to_first_token_seconds", "Time to first token.", ttft)
	m.itl = histogram("inter_token_latency_seconds", "Time between two tokens.", itl)
	m.perToken = histogram("request_time_per_output_token_seconds", "Mean time per output token of a request.", itl)
	m.e2e = histogram("e2e_request_latency_seconds", "Arrival to end.", long)
	m.queue = histogram("request_queue_time_seconds", "Time in the waiting phase.", long)
	m.prefill = histogram("request_prefill_time_seconds", "Time in the prefill phase.", long)
	m.decode = histogram("request_decode_time_seconds", "Time in the decode phase.", long)
	m.inference = histogram("request_inference_time_seconds", "Time in the running phase.", long)
	m.size = histogram("request_prompt_tokens", "Prompt tokens of a request.", size)
	m.computed = histogram("request_prefill_kv_computed_tokens", "New tokens of a prefill.", size)
	counter := func(name, help string, more ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:" + name, Help: help},
			append([]string{"model_name", "engine"}, more...))
		m.registry.MustRegister(c)
		return c
	}
	m.prompt = counter("prompt_tokens_total", "Prefilled tokens.")
	m.cached = counter("prompt_tokens_cached_total", "Prompt tokens not computed.")
	m.bySource = counter("prompt_tokens_by_source_total", "Prompt tokens by source.", "source")
	m.success = counter("request_success_total", "Finished requests.", "finished_reason")
	for rank := range e.cfg.Ranks {
		m.count(e.cfg.Model, strconv.Itoa(rank), 0, 0)
		for _, reason := range []sched.Reason{sched.Stop, sched.Length, sched.Abort} {
			m.success.WithLabelValues(e.cfg.Model, strconv.Itoa(rank), string(reason))
		}
	}
	m.registry.MustRegister(snapshot{e})
	return m
}

// count counts the prompt of a request that got its first token.
func (m *metrics) count(model, rank string, prompt, cached int) {
	m.prompt.WithLabelValues(model, rank).Add(float64(prompt))
	m.cached.WithLabelValues(model, rank).Add(float64(cached))
	m.bySource.WithLabelValues(model, rank, "local_compute").Add(float64(prompt - cached))
	m.bySource.WithLabelValues(model, rank, "local_cache_hit").Add(float64(cached))
}

// observe records one progress; the rank's lock is held.
func (e *Engine) observe(j *job, p sched.Progress) {
	m, rank, r := e.metrics, strconv.Itoa(j.rank.index), p.Request
	wall := func(d time.Duration) float64 { return d.Seconds() / e.cfg.Speedup }
	at := func(h *prometheus.HistogramVec) prometheus.Observer { return h.WithLabelValues(e.cfg.Model, rank) }
	switch {
	case p.At == r.First && len(p.Tokens) > 0:
		at(m.ttft).Observe(wall(r.First - r.Arrived))
		m.count(e.cfg.Model, rank, r.Prompt, r.Cached)
		e.history.add(RequestStats{
			ID: j.id, Rank: j.rank.index, PromptTokens: r.Prompt, CachedTokens: r.Cached,
			Arrival: j.arrived, TTFTMillis: (r.First - r.Arrived).Seconds() * 1000,
		})
	case len(p.Tokens) > 0:
		itl := at(m.itl)
		for range p.Tokens {
			itl.Observe(wall(p.Step))
		}
	}
	if p.Reason == "" {
		return
	}
	m.success.WithLabelValues(e.cfg.Model, rank, string(p.Reason)).Inc()
	at(m.e2e).Observe(wall(p.At - r.Arrived))
	if p.Reason == sched.Abort {
		return
	}
	at(m.size).Observe(float64(r.Prompt))
	at(m.computed).Observe(float64(r.Prompt - r.Cached))
	at(m.queue).Observe(wall(r.Started - r.Arrived))
	at(m.prefill).Observe(wall(r.First - r.Started))
	at(m.decode).Observe(wall(p.At - r.First))
	at(m.inference).Observe(wall(p.At - r.Started))
	if n := len(r.Output); n > 1 {
		at(m.perToken).Observe(wall(p.At-r.First) / float64(n-1))
	}
}

// snapshot collects what the schedulers know.
type snapshot struct{ e *Engine }

// Describe sends nothing: the set depends on the configuration.
func (snapshot) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s snapshot) Collect(ch chan<- prometheus.Metric) {
	e := s.e
	send := func(name, help string, kind prometheus.ValueType, v float64, labels ...string) {
		var names, values []string
		for i := 0; i < len(labels); i += 2 {
			names, values = append(names, labels[i]), append(values, labels[i+1])
		}
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, values...)
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	send("process_start_time_seconds", "Start of the engine since 1970.", gauge, float64(e.started.UnixMilli())/1000)
	running, waiting := map[string]bool{}, map[string]bool{}
	for i, r := range e.ranks {
		st, rank := r.stats(), strconv.Itoa(i)
		of := func(name, help string, kind prometheus.ValueType, v float64, more ...string) {
			send("vllm:"+name, help, kind, v, append([]string{"model_name", e.cfg.Model, "engine", rank}, more...)...)
		}
		of("num_requests_running", "Requests in execution.", gauge, float64(st.Running))
		of("num_requests_waiting", "Requests in the queue.", gauge, float64(st.Waiting))
		of("num_requests_waiting_by_reason", "Requests in the queue, by reason.", gauge, float64(st.Waiting), "reason", "capacity")
		of("num_requests_waiting_by_reason", "Requests in the queue, by reason.", gauge, 0, "reason", "deferred")
		of("kv_cache_usage_perc", "KV blocks in use; 1 is all.", gauge, float64(st.BlocksUsed)/float64(st.BlocksUsable))
		of("prefix_cache_queries_total", "Prompt tokens looked up.", counter, float64(st.PromptTokens))
		of("prefix_cache_hits_total", "Prompt tokens found.", counter, float64(st.CachedTokens))
		of("generation_tokens_total", "Generated tokens.", counter, float64(st.GeneratedTokens))
		of("num_preemptions_total", "Preemptions.", counter, float64(st.Preemptions))
		for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
			v := 0.0
			if int(e.sleep.Load()) == level {
				v = 1
			}
			of("engine_sleep_state", "1 for the state the engine is in.", gauge, v, "sleep_state", state)
		}
		send("vllm:cache_config_info", "The cache's configuration.", gauge, 1,
			"engine", rank, "block_size", strconv.Itoa(e.cfg.BlockSize),
			"num_gpu_blocks", strconv.Itoa(e.cfg.KVTokens/e.cfg.BlockSize), "num_cpu_blocks", "None",
			"enable_prefix_caching", "True", "prefix_caching_hash_algo", "sha256_cbor", "hash_block_size", "None",
			"cache_dtype", "auto", "kv_cache_size_tokens", strconv.Itoa(e.cfg.KVTokens))
		up, down := r.adapterNames()
		for name := range up {
			running[name] = true
		}
		for name := range down {
			waiting[name] = true
		}
	}
	if len(e.served()) > 0 {
		send("vllm:lora_requests_info", "Adapters in use; the value is the time of this report.", gauge,
			float64(time.Now().UnixMilli())/1000, "max_lora", strconv.Itoa(max(1, len(e.cfg.Adapters))),
			"running_lora_adapters", joined(running), "waiting_lora_adapters", joined(waiting))
	}
}

func joined(names map[string]bool) string {
	var out []string
	for n := range names {
		out = append(out, n)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
