// Package agent stands beside inference engines and tells the gateways, by
// gossip, which KV-cache blocks each engine holds, how busy it is and how its GPUs
// are. It is the shell around agent/zmqsub, agent/enginemetrics, agent/blockset,
// gossip/digest, gossip/mesh and gpu:
//
//	zmqsub → kvevent → blockset → digest → mesh     one per data-parallel rank
//	enginemetrics → load, configuration, restarts   one per engine
//
// stream is the core: messages of one rank in, packets out, without sockets,
// clocks or goroutines. unit drives the streams of one engine; an engine is one
// node of the mesh, since an INFO describes one endpoint. Agent is all of the
// process: its units, the GPUs and the admin listener.
//
// The agent takes its configuration from the engine (/metrics, /v1/models,
// /version, /kv_event_sources) and waits for an engine that is not there yet.
package agent
