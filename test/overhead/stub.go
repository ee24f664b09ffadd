package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// stub is an engine that reads a request and answers at once.
type stub struct {
	url    string
	served atomic.Int64
	server http.Server
}

const stubAnswer = `data: {"id":"c","object":"chat.completion.chunk","model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":"ok"},"finish_reason":"length"}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","model":"tiny","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}

data: [DONE]

`

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/chat/completions":
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		s.served.Add(1)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, stubAnswer) // a client that left is no matter
	case "/v1/models":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"tiny","object":"model","owned_by":"vllm","root":"tiny","parent":null,"max_model_len":1048576}]}`)
	case "/health":
	default:
		http.NotFound(w, r)
	}
}

// startStub serves until stop is called.
func startStub() (*stub, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &stub{url: "http://" + l.Addr().String()}
	s.server.Handler = s
	go func() { _ = s.server.Serve(l) }() // ends with stop
	return s, nil
}

func (s *stub) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.server.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) {
		_ = s.server.Close()
	}
}
