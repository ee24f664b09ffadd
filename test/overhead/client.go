package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// sample is one request as its client sees it.
type sample struct {
	firstByte time.Duration // from before the request is written to the answer's first byte
	late      time.Duration // sent later than planned
	cpu       time.Duration // that the target took meanwhile, and shortly after
	err       error
}

// client keeps its connections to one target.
type client struct {
	url  string
	http http.Client
	cpu  func() (time.Duration, error) // that the target has taken so far; nil: not known
}

func newClient(url string) *client {
	c := &client{url: url}
	c.http.Transport = &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	c.http.Timeout = time.Minute
	return c
}

func (c *client) send(ctx context.Context, body []byte) (s sample) {
	var first time.Time
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotFirstResponseByte: func() { first = time.Now() }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return sample{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	start := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return sample{err: err}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %d: %.200s", c.url, resp.StatusCode, answer)
	}
	return sample{firstByte: first.Sub(start), err: err}
}

// settle is how long a target may work on after its answer's end.
const settle = 2 * time.Millisecond

// measured is send with the CPU time that the target takes for it.
func (c *client) measured(ctx context.Context, body []byte) sample {
	if c.cpu == nil {
		return c.send(ctx, body)
	}
	before, err := c.cpu()
	if err != nil {
		return sample{err: err}
	}
	s := c.send(ctx, body)
	time.Sleep(settle)
	after, err := c.cpu()
	if s.err == nil {
		s.err = err
	}
	s.cpu = after - before
	return s
}

// sendAll sends each request to every target, gap apart and in an order that rotates, whatever
// became of those before; samples are by target, then by request.
func sendAll(ctx context.Context, targets []*client, requests [][]byte, gap time.Duration) [][]sample {
	out := make([][]sample, len(targets))
	for t := range out {
		out[t] = make([]sample, len(requests))
	}
	var wg sync.WaitGroup
	start := time.Now()
	for i, body := range requests {
		for k := range targets {
			t := (i + k) % len(targets)
			at := start.Add(time.Duration(i*len(targets)+k) * gap)
			select {
			case <-time.After(time.Until(at)):
			case <-ctx.Done():
			}
			late := time.Since(at)
			wg.Go(func() {
				s := targets[t].measured(ctx, body)
				s.late = late
				out[t][i] = s
			})
		}
	}
	wg.Wait()
	return out
}
