package pool

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the pools. Labels are bounded: the pools are those of the configuration, states and reasons are few.
type metrics struct {
	watcher                   *Watcher
	endpoints, synced, silent *prometheus.Desc
	failures                  *prometheus.CounterVec // pool, reason
	changes                   prometheus.Counter
}

func newMetrics(w *Watcher, reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		watcher:   w,
		endpoints: prometheus.NewDesc("grapevine_pool_endpoints", "Endpoints of a Kubernetes pool, by state: eligible, not_ready, terminating (the last two count pods).", []string{"kubernetes_pool", "state"}, nil),
		synced:    prometheus.NewDesc("grapevine_pool_synced", "1 if a Kubernetes pool has been read, else 0.", []string{"kubernetes_pool"}, nil),
		silent:    prometheus.NewDesc("grapevine_pool_age_seconds", "For how long the API server has not been heard about a Kubernetes pool; 0: its watch works.", []string{"kubernetes_pool"}, nil),
		failures:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_pool_watch_failures_total", Help: "Calls of the API server for a Kubernetes pool that failed, by reason (forbidden, unauthorized, absent, expired, busy, refused, unreachable)."}, []string{"kubernetes_pool", "reason"}),
		changes:   prometheus.NewCounter(prometheus.CounterOpts{Name: "grapevine_pool_changes_total", Help: "Changes of the set of eligible endpoints that were passed on."}),
	}
	for _, name := range w.names {
		for _, r := range reasons() {
			m.failures.WithLabelValues(name, r)
		}
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m, m.failures, m.changes} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) failed(pool, reason string) { m.failures.WithLabelValues(pool, reason).Inc() }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.endpoints, m.synced, m.silent} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := m.watcher.now.Load()
	for _, name := range m.watcher.names {
		var known set
		synced := 0.0
		if k := s.sets[name]; k != nil {
			known, synced = *k, 1
		}
		gauge(m.endpoints, float64(len(known.endpoints)), name, "eligible")
		gauge(m.endpoints, float64(known.notReady), name, "not_ready")
		gauge(m.endpoints, float64(known.terminating), name, "terminating")
		gauge(m.synced, synced, name)
		age := 0.0
		if h, bad := s.health[name]; bad {
			age = time.Since(h.since).Seconds()
		}
		gauge(m.silent, age, name)
	}
}
