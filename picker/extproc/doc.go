// Package extproc is the endpoint picker of the Gateway API Inference Extension: an ext_proc server that Envoy, or a gateway
// built on it, asks for each request.
//
// The protocol, as far as it is spoken here. Envoy opens a gRPC stream per request (envoy.service.ext_proc.v3) and says in
// its first message how it treats bodies. The picker wants all of the body, since the prompt is in it:
//
//	FULL_DUPLEX_STREAMED  headers, chunks, end or trailers come; then the headers' answer goes out, and every byte of the
//	                      body after it, in pieces of at most 62,000 bytes
//	BUFFERED              the headers are answered at once, the whole body comes, and its answer brings the pick
//	others, or no body    the pick is made on the headers, by load alone
//
// The pick is one address host:port or an ordered list of them, in the header x-gateway-destination-endpoint and, the same, in
// the dynamic metadata envoy.lb / x-gateway-destination-endpoint. A client's own header of that name never passes. Where
// there is nothing to pick the answer is an ImmediateResponse: 503 without an endpoint, 429 under load, 404 for a model that
// nobody serves, 400 or 413 for a body that can't be one. Envoy may restrict the choice by the metadata envoy.lb.subset_hint /
// x-gateway-destination-endpoint-subset, and tells in envoy.lb / x-gateway-destination-endpoint-served who has really served.
//
// Envoy does not wait for ever only where it is told so: in full duplex nothing ends a pick but [Config].Deadline. A stream is
// never ended without an error while Envoy is owed any part of a body, for Envoy would go on without it.
//
// What becomes of a request is learned from the response, if this stream shows it. In the recommended topology it does not:
// Envoy ends the stream right after the pick, and a second filter in observability mode sends the response here, to an
// observing stream that is told by its messages (observability_mode) and joined by x-request-id. Neither can cut an answer by
// dying. Where several gateways stand behind one Envoy, the metadata envoy.lb / x-grapevine-gateway (host:port of who picked)
// leads the second filter to the right one. Decisions that nobody observes end after [Config].Unobserved.
//
// With [Config].Advise it picks nothing: every stream is an observing one, of a filter beside another router, and gets no answer.
// Each request is judged as if it had come here, and compared with what whoever served has: see Advice.
//
// exchange, answer, open and sighting are cores: messages in, messages out. The rest is the shell around them: gRPC, TLS, listeners.
package extproc
