package webhook

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/deploy/inject"
)

const namespace = "grapevine_injector"

type metrics struct {
	admissions, errors   *prometheus.CounterVec
	seconds              prometheus.Histogram
	expiry               *prometheus.GaugeVec
	checks, checkFailure prometheus.Counter
	ok                   prometheus.Gauge
}

// Describe registers the metrics of a Server, for those who list them.
func Describe(reg prometheus.Registerer) { newMetrics(reg) }

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	m := &metrics{
		admissions: counter("admissions_total", "pods reviewed, by what became of them", "outcome"),
		errors:     counter("errors_total", "pods let through unseen, by reason", "reason"),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "admission_seconds", Help: "time to answer a review",
			Buckets: []float64{.0002, .0005, .001, .002, .005, .01, .05, .2, 1}}),
		expiry:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: "certificate_expiry_timestamp_seconds", Help: "end of the certificate's life, by certificate"}, []string{"certificate"}),
		checks:       prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "checks_total", Help: "looks at certificates, webhook configuration and own listener"}),
		checkFailure: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "check_failures_total", Help: "looks that found something wrong"}),
		ok:           prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "ready", Help: "1 while the API server can reach the injector as far as the last look shows"}),
	}
	reg.MustRegister(m.admissions, m.errors, m.seconds, m.expiry, m.checks, m.checkFailure, m.ok)
	for _, o := range []inject.Outcome{inject.InjectedAgent, inject.InjectedConfigure, inject.Undone, inject.LeftOff, inject.LeftAlready, inject.LeftNoEngine, inject.LeftWorker, inject.LeftUnsafe} {
		m.admissions.WithLabelValues(string(o))
	}
	for _, r := range []string{reasonBody, reasonPod, reasonPanic, reasonOld} {
		m.errors.WithLabelValues(r)
	}
	return m
}
