package extproc

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the server. All labels have few values.
type metrics struct {
	streams      *prometheus.GaugeVec   // kind
	picks        *prometheus.CounterVec // result
	bytes        *prometheus.CounterVec // side
	protocol     *prometheus.CounterVec // reason
	pick         prometheus.Histogram   // seconds
	elsewhere    prometheus.Counter
	observations *prometheus.CounterVec // result
	panics       prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, o *open) *metrics {
	m := &metrics{
		streams:      prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "grapevine_extproc_streams", Help: "Streams from Envoy in progress, by kind (picker, observer)."}, []string{"kind"}),
		picks:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_extproc_picks_total", Help: "Requests that Envoy asked for a pick for, by result (picked, no_endpoints, overloaded, unknown_model, bad_request, too_large, client_timeout, deadline, cancelled, shutting_down, error)."}, []string{"result"}),
		bytes:        prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_extproc_body_bytes_total", Help: "Bytes of bodies that Envoy sent here, by side (request, response)."}, []string{"side"}),
		protocol:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_extproc_protocol_errors_total", Help: "Streams ended with an error since a message came that could not come then, by reason."}, []string{"reason"}),
		pick:         prometheus.NewHistogram(prometheus.HistogramOpts{Name: "grapevine_extproc_pick_seconds", Help: "From all of a request here to its pick sent, without the time that it was held.", Buckets: prometheus.ExponentialBuckets(50e-6, 2, 14)}),
		elsewhere:    prometheus.NewCounter(prometheus.CounterOpts{Name: "grapevine_extproc_served_elsewhere_total", Help: "Requests that another endpoint served than the one picked first."}),
		observations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "grapevine_extproc_observations_total", Help: "Responses seen on observing streams, by result: joined to a pick of this gateway, unknown (picked by another gateway, not at all, or too long ago), or ambiguous (several picks have its x-request-id, which Envoy took from clients)."}, []string{"result"}),
		panics:       prometheus.NewCounter(prometheus.CounterOpts{Name: "grapevine_extproc_panics_total", Help: "Streams ended by a fault of this gateway, which its log tells; each is a bug."}),
	}
	if reg != nil {
		undecided := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "grapevine_extproc_open_picks", Help: "Picks whose requests have not ended as far as this gateway knows."}, func() float64 { return float64(o.len()) })
		reg.MustRegister(m.streams, m.picks, m.bytes, m.protocol, m.pick, m.elsewhere, m.observations, m.panics, undecided)
	}
	return m
}
