package gatewaycmd

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/extproc"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/recording"
)

// kubernetes is what a gateway knows of pools from Kubernetes.
type kubernetes interface {
	extproc.Pools
	extproc.Objectives
}

// newExtProc returns the endpoint picker for Envoy with its listeners open, if there are any. k is nil without Kubernetes.
func (c *Config) newExtProc(pick *picker.Picker, resolver *prompt.Resolver, k kubernetes, rec *recording.Recorder, log *slog.Logger, reg prometheus.Registerer) (*extproc.Server, error) {
	o := extproc.Options{
		Picker: pick, Resolver: resolver, Headers: c.Headers,
		MaxBodyBytes: c.MaxBodyBytes, MaxBodiesBytes: c.MaxBodiesBytes, MaxStreams: c.MaxConcurrent, ClientTimeout: c.ClientTimeout,
		Recorder: rec, Logger: log, Registerer: reg,
	}
	if k != nil {
		o.Pools, o.Objectives = k, k
	}
	s, err := extproc.New(c.ExtProc, o)
	if err != nil {
		return nil, err
	}
	return s, s.Listen()
}
