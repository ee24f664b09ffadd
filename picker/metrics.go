package picker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/picker/hold"
)

// metrics are the picker's. Labels are bounded: policies, rungs and reasons are fixed sets, endpoints are those of the
// pool and vanish with them. A nil *metrics counts nothing.
type metrics struct {
	p       *Picker
	picks   *prometheus.CounterVec
	refusal *prometheus.CounterVec
	hold    *prometheus.HistogramVec
	error   *prometheus.HistogramVec
	missing *prometheus.CounterVec

	endpoints, reporting, digestAge, bias, trust *prometheus.Desc
	held, heldBytes, heldTokens, wanted          *prometheus.Desc
	drops, ignored, frozen                       *prometheus.Desc
	gateways, hints, others, othersNow           *prometheus.Desc
}

// newMetrics registers the metrics; without a registerer there are none.
func newMetrics(p *Picker, r prometheus.Registerer) (*metrics, error) {
	if r == nil {
		return nil, nil
	}
	pool := prometheus.Labels{"pool": p.cfg.Pool}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: pool}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: pool}, labels)
	}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, pool)
	}
	m := &metrics{
		p:       p,
		picks:   counter("grapevine_picks_total", "Requests bound, by policy, rung of the endpoint and reason.", "policy", "rung", "reason"),
		refusal: counter("grapevine_refused_total", "Requests refused, by reason.", "reason"),
		hold: histogram("grapevine_hold_seconds", "Time from arrival to binding.",
			[]float64{.001, .005, .02, .05, .1, .25, .5, 1, 2, 4, 8, 16}, "policy"),
		error: histogram("grapevine_prediction_error_tokens", "Predicted minus actual cached tokens of an answered request.",
			[]float64{-16384, -4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096, 16384}, "policy"),
		missing: counter("grapevine_cached_tokens_total", "Cached tokens of answered requests, predicted and actual.", "policy", "kind"),

		endpoints:  desc("grapevine_endpoints", "Endpoints in the pool, by best rung that a request can have there.", "rung"),
		reporting:  desc("grapevine_endpoints_reporting", "Endpoints in the pool whose agent speaks."),
		digestAge:  desc("grapevine_digest_age_seconds", "Time since an endpoint's last tick.", "endpoint"),
		bias:       desc("grapevine_endpoint_prediction_error_tokens", "Moving average of predicted minus actual cached tokens.", "endpoint"),
		trust:      desc("grapevine_endpoint_trust_ratio", "Share of an endpoint's digest that is believed.", "endpoint"),
		held:       desc("grapevine_held_requests", "Requests waiting at the gateway for a ready endpoint."),
		heldBytes:  desc("grapevine_held_bytes", "Bytes of requests waiting at the gateway."),
		heldTokens: desc("grapevine_held_uncached_tokens", "Prompt tokens to be computed for the waiting requests."),
		wanted:     desc("grapevine_wanted_endpoints", "Endpoints that would work off what waits within a second."),
		drops:      desc("grapevine_gossip_dropped_total", "Gossip messages not taken, by who refused them and why.", "by", "reason"),
		ignored:    desc("grapevine_verdicts_ignored", "Endpoints that gossip calls unusable beyond what it may exclude."),
		frozen:     desc("grapevine_view_frozen_ratio", "1 while the gateway mistrusts its own view, else 0."),
		gateways:   desc("grapevine_other_gateways", "Other gateways of the pool, which are told of the requests bound here."),
		hints:      desc("grapevine_hint_packets_total", "Packets between gateways about requests bound: sent, unsent (an error), received, lost on the way here, unread (damaged).", "result"),
		others:     desc("grapevine_other_gateways_requests_total", "Requests of other gateways: bound (heard of), expired (not ended two seconds after their prefill should have), refused (too many), unknown (on endpoints that this gateway does not have).", "result"),
		othersNow:  desc("grapevine_other_gateways_requests", "Requests of other gateways that this one counts on its endpoints now."),
	}
	for _, c := range []prometheus.Collector{m.picks, m.refusal, m.hold, m.error, m.missing, m} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) picked(d *Decision) {
	if m == nil {
		return
	}
	m.picks.WithLabelValues(d.Policy, d.Rung.String(), d.Reason).Inc()
	m.hold.WithLabelValues(d.Policy).Observe(d.Held.Seconds())
}

func (m *metrics) refused(why hold.Reason) {
	if m != nil {
		m.refusal.WithLabelValues(why.String()).Inc()
	}
}

func (m *metrics) checked(d *Decision, cached int) {
	if m == nil {
		return
	}
	m.error.WithLabelValues(d.Policy).Observe(float64(d.PredictedCachedTokens - cached))
	m.missing.WithLabelValues(d.Policy, "predicted").Add(float64(d.PredictedCachedTokens))
	m.missing.WithLabelValues(d.Policy, "actual").Add(float64(cached))
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.endpoints, m.reporting, m.digestAge, m.bias, m.trust,
		m.held, m.heldBytes, m.heldTokens, m.wanted, m.drops, m.ignored, m.frozen,
		m.gateways, m.hints, m.others, m.othersNow,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector: gauges are read when they are asked for, so that what left the pool is gone.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.p.Status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	var rungs [len(rungNames)]int
	others := 0
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		rungs[e.Rung]++
		others += e.Others
		gauge(m.bias, e.MeanError, e.ID)
		gauge(m.trust, e.Trust, e.ID)
		if e.DigestAgeMs >= 0 {
			gauge(m.digestAge, e.DigestAgeMs/1000, e.ID)
		}
	}
	for r, n := range rungs {
		gauge(m.endpoints, float64(n), Rung(r).String())
	}
	gauge(m.reporting, float64(s.Reporting))
	gauge(m.held, float64(s.Held.Requests))
	gauge(m.heldBytes, float64(s.Held.Bytes))
	gauge(m.heldTokens, float64(s.Held.UncachedTokens))
	gauge(m.wanted, float64(s.Held.Wanted))
	gauge(m.ignored, float64(s.IgnoredVerdicts))
	gauge(m.frozen, map[bool]float64{true: 1}[s.Frozen])
	if s.Gossip != nil {
		counter := func(d *prometheus.Desc, n uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
		}
		for reason, n := range s.Gossip.View.Drops {
			counter(m.drops, n, "view", reason)
		}
		gm := &s.Gossip.Mesh
		for reason, n := range map[string]uint64{
			"inbox full": gm.InboxDropped, "handoff full": gm.HandoffDropped, "other key": gm.KeyMismatches,
			"other label": gm.LabelMismatches, "foreign meta": gm.ForeignMeta, "network not allowed": gm.RefusedByCIDR,
		} {
			counter(m.drops, n, "mesh", reason)
		}
		h := &s.Gossip.Hint
		gauge(m.gateways, float64(h.Gateways))
		gauge(m.othersNow, float64(others))
		for result, n := range map[string]uint64{"sent": h.Sent, "unsent": h.Unsent, "received": h.Received, "lost": h.Lost, "unread": h.Unread} {
			counter(m.hints, n, result)
		}
		for result, n := range map[string]uint64{"bound": h.Bound, "expired": h.Expired, "refused": h.Refused, "unknown": h.Unknown} {
			counter(m.others, n, result)
		}
	}
}
