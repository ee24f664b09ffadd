// Package zmqsub is the shell around an engine's KV-event sockets: it subscribes
// to the live stream, asks for replays, and hands over messages in an order that a
// reader can apply. It does not look into a batch (agent/kvevent does) and keeps no
// view of the cache (agent/blockset does); which replay to ask for is the reader's
// decision.
//
// Live events go on while a replay runs. The subscriber holds them back, so that
// the reader gets the replay first, then the live messages behind it:
//
//	Connected, Live…, [reader: Replay(0)], Replayed…, ReplayDone, Live…
//
// # Replay
//
// The facts are vLLM's publisher (vllm/distributed/kv_events.py) as it was seen
// to behave from v0.9.0 to v0.32.0. Its ROUTER answers a request with one message
// for each batch that it still has, and an end marker. A slow reader loses some of
// them without a word: the ROUTER drops what is over its high-water mark. So each
// request goes out on a DEALER of its own (no answer to an older one can mix in),
// the numbers are checked, and where one is missing the rest is asked for again
// from there. What is still missing then is gone for good and is reported.
package zmqsub
