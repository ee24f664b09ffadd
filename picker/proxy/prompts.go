package proxy

import (
	"bytes"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

// status is what /status shows.
type status struct {
	Version string `json:"version,omitempty"` // of the gateway
	picker.Status
	Pools   any            `json:"pools,omitempty"`  // see Config.Pools
	Advice  any            `json:"advice,omitempty"` // see Config.Advice
	Prompts *prompt.Status `json:"prompts,omitempty"`
}

func (p *Proxy) status() status {
	s := status{Version: p.cfg.Version, Status: p.picker.Status()}
	if p.cfg.Pools != nil {
		s.Pools = p.cfg.Pools()
	}
	if p.cfg.Advice != nil {
		s.Advice = p.cfg.Advice()
	}
	if p.resolver != nil {
		prompts := p.resolver.Status()
		s.Prompts = &prompts
	}
	return s
}

// promptMetrics shows what the resolver counts. Models are those that have
// files of their own here, by the first of their names, and "other".
type promptMetrics struct {
	resolver                                       Resolver // nil: nothing to show
	resolved, checks, own, hits, misses, cacheSize *prometheus.Desc
}

func newPromptMetrics(r Resolver) *promptMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &promptMetrics{
		resolver:  r,
		resolved:  desc("grapevine_prompt_resolved_total", "Prompts by model (one with files of its own here, or other) and the way in which their token ids were found (ids, own, render, tokenize, none).", "model", "rung"),
		checks:    desc("grapevine_prompt_checks_total", "Comparisons of own token ids with an engine's, by model and result (equal, different, failed).", "model", "result"),
		own:       desc("grapevine_prompt_own_ratio", "1 while a model's files are used, 0 while engines are asked because the files are damaged or an engine contradicted them.", "model"),
		hits:      desc("grapevine_prompt_cache_hits_total", "Look-ups that found something, by cache (segments, chains, answers).", "cache"),
		misses:    desc("grapevine_prompt_cache_misses_total", "Look-ups that found nothing, by cache (segments, chains, answers).", "cache"),
		cacheSize: desc("grapevine_prompt_cache_bytes", "Bytes held, by cache (segments, chains, answers).", "cache"),
	}
}

// Describe implements prometheus.Collector.
func (m *promptMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.resolved, m.checks, m.own, m.hits, m.misses, m.cacheSize} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *promptMetrics) Collect(ch chan<- prometheus.Metric) {
	if m.resolver == nil {
		return
	}
	show := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	s := m.resolver.Status()
	for i := range s.Models {
		model := &s.Models[i]
		for rung, n := range model.Resolved {
			show(m.resolved, prometheus.CounterValue, float64(n), model.Name(), rung)
		}
		for result, n := range model.Checks {
			show(m.checks, prometheus.CounterValue, float64(n), model.Name(), result)
		}
		if len(model.Models) > 0 {
			show(m.own, prometheus.GaugeValue, map[bool]float64{true: 1}[model.Rung == prompt.RungOwn], model.Name())
		}
	}
	for name, c := range s.Caches {
		show(m.hits, prometheus.CounterValue, float64(c.Hits), name)
		show(m.misses, prometheus.CounterValue, float64(c.Misses), name)
		show(m.cacheSize, prometheus.GaugeValue, float64(c.Bytes), name)
	}
}

// withTokenIDs returns a chat body that also brings its prompt's token ids, as
// vLLM takes them since August 2026 (vLLM 0.32, renderers/online_renderer.py):
// it then neither renders nor tokenizes, and takes the member out again. Older
// engines ignore it. A body that has the member, or in which the name occurs in
// any way, comes back as it is.
func withTokenIDs(body []byte, ids []uint32) []byte {
	const name = `"kv_transfer_params"`
	at := bytes.IndexByte(body, '{') + 1
	if at == 0 || len(ids) == 0 || bytes.Contains(body, []byte("kv_transfer_params")) {
		return body
	}
	out := make([]byte, 0, len(body)+len(name)+32+7*len(ids))
	out = append(out, body[:at]...)
	out = append(out, name+`:{"prompt_token_ids":[`...)
	for i, id := range ids {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(id), 10)
	}
	out = append(out, `]},`...) // a chat body has messages: something follows
	return append(out, body[at:]...)
}

// forwardable reports whether an engine may take ids in place of the messages:
// those of a whole prompt whose model's files an engine was seen to agree with.
func forwardable(req *openai.Request, res *prompt.Result) bool {
	return req.Kind == openai.Chat && res.Rung == prompt.RungOwn && res.Verified && req.TruncatePromptTokens == 0
}
