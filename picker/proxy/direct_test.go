package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// wireEngine answers each request on a connection with what answer writes; false closes it.
func wireEngine(t *testing.T, answer func(conn net.Conn, r *bufio.Reader) bool) (url string, connections *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections = new(atomic.Int32)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			r := bufio.NewReader(conn)
			for answer(conn, r) {
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return "http://" + l.Addr().String(), connections
}

// readRequest takes a request in; false at the connection's end.
func readRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

func directPost(t *testing.T, d *direct, ctx context.Context, url, body string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+chatPath+"?a=b", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Test", "1")
	resp, err := d.send(req, []byte(body))
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestDirectReadsEveryKindOfAnswer(t *testing.T) {
	tests := []struct {
		name, raw   string
		status      int
		body, fault string
		connections int32 // that two requests take
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", "", 1},
		{"empty", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", "", 1},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", 200, "hi", "", 1},
		{"after informational", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", "", 1},
		{"closing", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", "", 2},
		{"more than asked for", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n\r\n", 200, "hi", "", 2},
		{"short", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nhi", 200, "hi", "unexpected EOF", 2},
		{"none", "", 0, "", "EOF", 2},
		{"no HTTP", "hello\r\n\r\n", 0, "", "malformed HTTP", 2},
		{"endless header", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", maxAnswerHeader), 0, "", "longer than", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url, connections := wireEngine(t, func(conn net.Conn, r *bufio.Reader) bool {
				if !readRequest(r) {
					return false
				}
				_, err := io.WriteString(conn, tt.raw)
				return err == nil && tt.connections == 1
			})
			d := newDirect(&net.Dialer{})
			defer d.closeIdle()
			for range 2 {
				status, body, err := directPost(t, d, t.Context(), url, plainBody)
				if status != tt.status || body != tt.body || (err != nil) != (tt.fault != "") || err != nil && !strings.Contains(err.Error(), tt.fault) {
					t.Errorf("answer = %d, %q, %v, want %d, %q, %q", status, body, err, tt.status, tt.body, tt.fault)
				}
			}
			if n := connections.Load(); n != tt.connections {
				t.Errorf("two requests took %d connections, want %d", n, tt.connections)
			}
		})
	}
}

// Status 0 to 99 is none, and nobody asked for another protocol. Go's server would panic at the former.
func TestAnswersThatAreNone(t *testing.T) {
	for _, answer := range []string{"HTTP/1.1 099 Eh\r\nContent-Length: 2\r\n\r\nhi", "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhi"} {
		t.Run(strings.Fields(answer)[1], func(t *testing.T) {
			url, _ := wireEngine(t, func(conn net.Conn, r *bufio.Reader) bool {
				if !readRequest(r) {
					return false
				}
				_, err := io.WriteString(conn, answer)
				return err == nil // the connection stays open
			})
			g := newGateway(t, Default(), url)
			defer g.proxy.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if status, text, err := directPost(t, newDirect(&net.Dialer{}), ctx, g.URL, plainBody); status != http.StatusBadGateway || err != nil {
				t.Errorf("answer = %d, %q, %v, want 502", status, text, err)
			}
		})
	}
}

// What arrives is what http.Transport would have sent.
func TestDirectSendsTheRequest(t *testing.T) {
	var got *http.Request
	var body []byte
	e := engine(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	d := newDirect(&net.Dialer{})
	defer d.closeIdle()
	if _, _, err := directPost(t, d, t.Context(), e.URL, plainBody); err != nil {
		t.Fatal(err)
	}
	if got.RequestURI != chatPath+"?a=b" || "http://"+got.Host != e.URL || got.Header.Get("X-Test") != "1" || string(body) != plainBody || got.ContentLength != int64(len(plainBody)) {
		t.Errorf("got %s %s %v %q", got.RequestURI, got.Host, got.Header, body)
	}
}

// An engine closes connections that idle: that must not cost the next request.
func TestDirectSeesThatAnIdleConnectionIsClosed(t *testing.T) {
	closed := make(chan struct{}, 8)
	url, connections := wireEngine(t, func(conn net.Conn, r *bufio.Reader) bool {
		if readRequest(r) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		}
		_ = conn.Close()
		closed <- struct{}{}
		return false
	})
	d := newDirect(&net.Dialer{})
	defer d.closeIdle()
	for range 3 {
		if _, _, err := directPost(t, d, t.Context(), url, plainBody); err != nil {
			t.Fatal(err)
		}
		<-closed
	}
	if n := connections.Load(); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}

// It may also close one in the very moment in which it is used again.
func TestDirectTriesAnewWhenAUsedConnectionIsGone(t *testing.T) {
	requests := 0
	url, connections := wireEngine(t, func(conn net.Conn, r *bufio.Reader) bool {
		requests++
		if requests == 2 {
			_, _ = r.Peek(1)
			return false // what has come is not read: the client sees a reset
		}
		if !readRequest(r) {
			return false
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		return requests < 3
	})
	d := newDirect(&net.Dialer{})
	defer d.closeIdle()
	for i := range 2 {
		if status, text, err := directPost(t, d, t.Context(), url, plainBody); err != nil || status != http.StatusOK || text != "hi" {
			t.Fatalf("request %d: %d %q, %v", i, status, text, err)
		}
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// A new connection that is closed without a word is an engine in trouble.
func TestDirectTriesANewConnectionOnce(t *testing.T) {
	url, connections := wireEngine(t, func(_ net.Conn, r *bufio.Reader) bool {
		_, _ = r.Peek(1)
		return false
	})
	d := newDirect(&net.Dialer{})
	defer d.closeIdle()
	if _, _, err := directPost(t, d, t.Context(), url, plainBody); err == nil {
		t.Error("no error")
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestDirectTakesAnAnswerThatComesBeforeTheRequestsEnd(t *testing.T) {
	url, _ := wireEngine(t, func(conn net.Conn, r *bufio.Reader) bool {
		if _, err := http.ReadRequest(r); err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
		}
		_, _ = io.Copy(io.Discard, r)
		return false
	})
	d := newDirect(&net.Dialer{})
	defer d.closeIdle()
	status, text, err := directPost(t, d, t.Context(), url, strings.Repeat(" ", 8<<20))
	if status != http.StatusRequestEntityTooLarge || text != "no" || err != nil {
		t.Errorf("answer = %d, %q, %v", status, text, err)
	}
}

// An engine may answer and read no further, with the connection open. Its answer may take its time.
func TestDirectTakesAnAnswerInsteadOfWaiting(t *testing.T) {
	left := make(chan struct{})
	url, connections := wireEngine(t, func(conn net.Conn, r *bufio.Reader) bool {
		if _, err := http.ReadRequest(r); err != nil {
			return false
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nn")
		time.Sleep(3 * lateAnswer)
		_, _ = io.WriteString(conn, "o")
		<-left
		return false
	})
	defer close(left)
	d := newDirect(&net.Dialer{})
	defer d.closeIdle()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	status, text, err := directPost(t, d, ctx, url, strings.Repeat(" ", 32<<20))
	if status != http.StatusUnauthorized || text != "no" || err != nil {
		t.Errorf("answer = %d, %q, %v", status, text, err)
	}
	if n := len(d.idle); n != 0 || connections.Load() != 1 {
		t.Errorf("%d of %d connections kept, though the engine has not all of the request", n, connections.Load())
	}
}

// An engine that reads slowly gets all of a request, also when it has said that it will answer.
func TestDirectWaitsForASlowReader(t *testing.T) {
	const size = 16 << 20
	var got atomic.Int64
	url, _ := wireEngine(t, func(conn net.Conn, r *bufio.Reader) bool {
		req, err := http.ReadRequest(r)
		if err != nil {
			return false
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		time.Sleep(3 * lateAnswer)
		n, _ := io.Copy(io.Discard, req.Body)
		got.Store(n)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		return true
	})
	d := newDirect(&net.Dialer{})
	defer d.closeIdle()
	for _, body := range []string{strings.Repeat(" ", size), plainBody} { // the second on the same connection, after a while
		status, text, err := directPost(t, d, t.Context(), url, body)
		if status != http.StatusOK || text != "hi" || err != nil || got.Load() != int64(len(body)) {
			t.Errorf("answer = %d, %q, %v to %d of %d bytes", status, text, err, got.Load(), len(body))
		}
		time.Sleep(2 * lateAnswer)
	}
}

func TestDirectEndsWithItsContext(t *testing.T) {
	for _, header := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nh"} {
		t.Run(fmt.Sprintf("after %d bytes", len(header)), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			gone := make(chan struct{})
			url, _ := wireEngine(t, func(conn net.Conn, r *bufio.Reader) bool {
				readRequest(r)
				_, _ = io.WriteString(conn, header)
				time.AfterFunc(20*time.Millisecond, cancel)
				_, _ = io.Copy(io.Discard, r) // until the gateway leaves
				close(gone)
				return false
			})
			d := newDirect(&net.Dialer{})
			defer d.closeIdle()
			if _, _, err := directPost(t, d, ctx, url, plainBody); err == nil {
				t.Error("no error")
			}
			<-gone
			if n := len(d.idle); n != 0 {
				t.Errorf("%d connections kept", n)
			}
		})
	}
}

func TestDirectSaysThatDiallingFailed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, _, err = directPost(t, newDirect(&net.Dialer{}), t.Context(), "http://"+l.Addr().String(), plainBody)
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" {
		t.Errorf("error = %v, want one of dialling", err)
	}
}

func TestDirectDropsOldConnections(t *testing.T) {
	e := engine(t, func(http.ResponseWriter, *http.Request) {})
	d := newDirect(&net.Dialer{})
	defer d.closeIdle()
	if _, _, err := directPost(t, d, t.Context(), e.URL, plainBody); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(e.URL, "http://")
	old := d.idle[address][0]
	old.since, d.swept = time.Now().Add(-maxIdleTime), time.Time{}
	conn, err := d.dial(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	d.put(&engineConn{Conn: conn, address: address})
	if idle := d.idle[address]; len(idle) != 1 || idle[0] == old {
		t.Errorf("kept %d connections", len(idle))
	}
	if _, err := old.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the old one is open: %v", err)
	}
}
