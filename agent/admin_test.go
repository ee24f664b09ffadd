package agent

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections hold nothing: what is written waits until it is read.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error { close(p); return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestClientThatReadsNothing: what is kept for an answer goes when its client does not take it in. The port is open to the network.
func TestClientThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Duration, 1)
		began := time.Now()
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			defer func() { ended <- time.Since(began) }()
			_, _ = w.Write(make([]byte, 1<<20))
		})
		ctx, cancel := context.WithCancel(t.Context())
		l := make(pipes, 1)
		served := make(chan error)
		go func() { served <- serve(ctx, l, h) }()
		client, server := net.Pipe()
		l <- server
		if _, err := io.WriteString(client, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(time.Hour):
			t.Error("the answer waits for its client for ever")
		}
		cancel()
		client.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
