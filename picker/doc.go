// Package picker chooses the endpoint for each request: it is Grapevine as a library.
//
// A Picker listens to the gossip of the agents beside the engines, knows which KV-cache blocks each endpoint holds, and
// binds a request to the endpoint where it costs the fleet least, at the moment when that endpoint can start it:
//
//	p, err := picker.New(cfg)
//	go p.Run(ctx)
//	d, err := p.Pick(ctx, picker.Request{ID: id, Model: model, TokenIDs: ids})
//	// send the request to d.Endpoint.URL; on the first event with output:
//	p.FirstToken(d)
//	// and at the end, whatever it was:
//	p.Done(d, picker.Outcome{Status: 200, Connected: true, CachedTokens: 4096, PromptTokens: 4500})
//
// Gossip can only help. Which endpoints may be used comes from the pool (a static list, a watcher that calls
// SetEndpoints, or the agents' own announcements) and from connection failures. An endpoint without an agent, or with a
// silent one, is priced with less knowledge (see [Rung]), never refused; without any gossip the picker goes by what it
// bound where itself: a prompt returns to its endpoint within a bound on the load, and else goes where the picker has the
// fewest requests.
//
// The package does not parse requests, talk HTTP or tokenize; those sit in its sub-packages. How a price is made is in
// package score, when a request is bound in package hold.
//
// A path through the files: Pick (pick.go) hashes and matches the prompt without a lock (query.go, over the table built
// in table.go), then asks the binder (bind.go), which prices every endpoint (price.go) and binds or holds. Run (run.go)
// feeds the view and gives held requests their opportunities.
package picker
