package proxy

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the proxy. Labels are bounded: paths are those that the proxy serves, prompt rungs
// and policies are few.
type metrics struct {
	requests  *prometheus.CounterVec   // path, status, policy
	retries   *prometheus.CounterVec   // reason
	aborted   *prometheus.CounterVec   // side
	bodies    prometheus.Histogram     // bytes
	own       prometheus.Histogram     // seconds
	firstByte *prometheus.HistogramVec // policy, seconds
	inFlight  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_gateway_requests_total", Help: "Requests answered, by path, HTTP status and routing policy."}, []string{"path", "status", "policy"}),
		retries:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_gateway_retries_total", Help: "Requests sent to a further endpoint, by reason (connect, reset)."}, []string{"reason"}),
		aborted:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_gateway_aborted_total", Help: "Answers that ended early, by side (client, engine)."}, []string{"side"}),
		bodies:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "grapevine_gateway_body_bytes", Help: "Size of request bodies in bytes.", Buckets: prometheus.ExponentialBuckets(1<<10, 4, 8)}),
		own:       prometheus.NewHistogram(prometheus.HistogramOpts{Name: "grapevine_gateway_own_seconds", Help: "Gateway's own time per request: from its body read to the request sent on, without the time that it was held.", Buckets: prometheus.ExponentialBuckets(50e-6, 2, 14)}),
		firstByte: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "grapevine_gateway_ttft_seconds", Help: "From the request's headers read to the first output forwarded, for streamed answers, by routing policy.", Buckets: prometheus.ExponentialBuckets(5e-3, 2, 15)}, []string{"policy"}),
		inFlight:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "grapevine_gateway_requests_in_flight", Help: "Requests in progress, held ones included."}),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.retries, m.aborted, m.bodies, m.own, m.firstByte, m.inFlight)
	}
	return m
}

func (m *metrics) answered(path string, status int, policy string) {
	if policy == "" {
		policy = "none"
	}
	m.requests.WithLabelValues(path, strconv.Itoa(status), policy).Inc()
}

func (m *metrics) firstOutput(policy string, after time.Duration) {
	m.firstByte.WithLabelValues(policy).Observe(after.Seconds())
}
