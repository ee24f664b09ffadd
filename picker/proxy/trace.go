package proxy

import "github.com/grapevine-llm/grapevine/picker/recording"

// Recorder returns what records this proxy's traffic and serves GET /trace. Others may tell it of requests too.
func (p *Proxy) Recorder() *recording.Recorder { return p.recorder }

// record hands an ended request to its recordings.
func (p *Proxy) record(c *call) {
	if len(c.recordings) == 0 {
		return
	}
	p.recorder.End(c.recordings, &recording.Call{
		Arrived: c.arrived, Request: c.req, Pick: c.pick, Partial: c.prompt.Partial,
		Status: c.status, Streaming: c.streaming, Events: c.events, Outcome: c.outcome,
	})
}
