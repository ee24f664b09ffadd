package extproc

import (
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// observation is one HTTP request and its response as an observing stream shows them. It is a core: messages in.
type observation struct {
	headers headers // of the request
	answer  answer
}

// take takes in one message, of which nothing is kept but headers. None is out of order: what an observer misses, it misses.
func (o *observation) take(m *extprocv3.ProcessingRequest) {
	switch r := m.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		o.headers = r.RequestHeaders.GetHeaders().GetHeaders()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		o.answer.begin(r.ResponseHeaders.GetHeaders().GetHeaders(), m.MetadataContext, r.ResponseHeaders.GetEndOfStream())
	case *extprocv3.ProcessingRequest_ResponseBody:
		o.answer.body(r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream())
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		o.answer.trailers()
	}
}

// observedFor is how long one observing stream shows that there is an observing filter.
const observedFor = time.Minute

// observing reports whether Envoy is likely to tell what becomes of a request.
func (s *Server) observing(now time.Time) bool {
	return now.UnixNano()-s.observed.Load() < int64(observedFor)
}

// observe learns from a stream that wants no answer what becomes of a pick.
func (l *service) observe(stream extprocv3.ExternalProcessor_ProcessServer, m *extprocv3.ProcessingRequest) error {
	l.observed.Store(time.Now().UnixNano())
	if l.watchers.Add(1) > int64(l.opt.MaxStreams) {
		l.watchers.Add(-1)
		return nil // Envoy goes on without
	}
	defer l.watchers.Add(-1)
	kind := l.metrics.streams.WithLabelValues("observer")
	kind.Inc()
	defer kind.Dec()

	var o observation
	var t *ticket
	for told := false; ; {
		o.take(m)
		if n := len(m.GetResponseBody().GetBody()); n > 0 {
			l.metrics.bytes.WithLabelValues("response").Add(float64(n))
		}
		if t == nil && m.GetRequestHeaders() != nil {
			t = l.join(&o)
		}
		if t != nil && o.answer.begun {
			if !told {
				told = true
				l.served(t, &o.answer)
			}
			if o.answer.output {
				l.open.firstToken(t)
			}
			if o.answer.ended {
				l.open.end(t, o.answer.outcome())
			}
		}
		var err error
		if m, err = stream.Recv(); err != nil {
			if t != nil {
				l.open.end(t, o.answer.outcome())
			}
			return gone(err)
		}
	}
}

// join finds the pick that a stream observes.
func (l *service) join(o *observation) *ticket {
	t, ambiguous := l.open.observe(o.headers.Get(headerRequestID))
	result := "joined"
	switch {
	case ambiguous:
		result = "ambiguous"
	case t == nil:
		result = "unknown"
	}
	l.metrics.observations.WithLabelValues(result).Inc()
	return t
}
