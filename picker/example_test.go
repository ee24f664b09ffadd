package picker_test

import (
	"context"
	"fmt"

	"github.com/grapevine-llm/grapevine/picker"
)

// Three endpoints and no gossip: requests go where this gateway has the fewest of its own.
func Example() {
	cfg := picker.Default()
	cfg.Endpoints = []string{"http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.3:8000"}
	p, err := picker.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()

	used := map[string]int{}
	for i := range 6 {
		d, err := p.Pick(ctx, picker.Request{ID: fmt.Sprint("request ", i), PromptTokens: 1000})
		if err != nil {
			fmt.Println(err)
			return
		}
		used[d.Endpoint.URL]++ // send the request there, then:
		p.FirstToken(d)
		defer p.Done(d, picker.Outcome{Status: 200, Connected: true, CachedTokens: -1})
	}
	fmt.Println(used)

	cancel()
	fmt.Println(<-done)
	// Output:
	// map[http://10.0.0.1:8000:2 http://10.0.0.2:8000:2 http://10.0.0.3:8000:2]
	// <nil>
}
