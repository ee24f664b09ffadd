package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	maxIdlePerEngine = 1024
	maxIdleTime      = 90 * time.Second
	maxAnswerHeader  = 1 << 20
	// lateAnswer is how long an engine that stopped to read may take to say why.
	lateAnswer = 100 * time.Millisecond
	// closedWithin bounds the time between a request on a used connection and its end for which the
	// engine can't have begun on it.
	closedWithin = 250 * time.Millisecond
	// unreadBytes of a body arrive though the engine reads nothing: more may have to wait for it.
	unreadBytes = 32 << 10
)

// direct sends requests over plain HTTP/1.1 as http.Transport does, but in its caller's
// goroutine: no other one has to be woken up on the way there and back, a body leaves from where
// it lies, in one write with its headers, and nobody reads it after send has returned. It starts
// no goroutines. Safe for concurrent use.
type direct struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex               // guards what follows
	idle  map[string][]*engineConn // by address, the one used last at the end
	swept time.Time                // when those that waited too long were dropped
}

func newDirect(dialer *net.Dialer) *direct {
	return &direct{dial: dialer.DialContext, idle: map[string][]*engineConn{}}
}

// engineConn is a connection to an engine.
type engineConn struct {
	net.Conn
	address string
	limit   io.LimitedReader // of what an answer's header may take
	r       *bufio.Reader    // of limit
	head    bytes.Buffer     // scratch
	since   time.Time        // idle
}

// serves reports whether direct can send to a URL.
func (d *direct) serves(u *url.URL) bool { return u.Scheme == "http" && u.User == nil }

// send sends req, whose own body is not used, and returns the answer. Its body must be read to
// its end, or closed; it fails when req's context ends.
func (d *direct) send(req *http.Request, body []byte) (*http.Response, error) {
	address := req.URL.Host
	if req.URL.Port() == "" {
		address = net.JoinHostPort(req.URL.Hostname(), "80")
	}
	c, used, err := d.take(req.Context(), address)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	stop := context.AfterFunc(req.Context(), func() { _ = c.Close() }) // whoever waits for c wakes up
	resp, whole, err := c.exchange(req, body)
	if err != nil && used && c.silent(err) && time.Since(began) < closedWithin && req.Context().Err() == nil {
		// The engine gave the idle connection up just when it was taken: it has not seen the request.
		stop()
		_ = c.Close()
		if c, err = d.fresh(req.Context(), address); err != nil {
			return nil, err
		}
		stop = context.AfterFunc(req.Context(), func() { _ = c.Close() })
		resp, whole, err = c.exchange(req, body)
	}
	if err != nil {
		stop()
		_ = c.Close()
		return nil, err
	}
	resp.Body = &answerBody{ReadCloser: resp.Body, d: d, c: c, stop: stop, last: resp.Close || !whole || resp.StatusCode < http.StatusOK}
	return resp, nil
}

// silent reports whether err, of an exchange, says that the other side closed the connection without a word.
func (c *engineConn) silent(err error) bool {
	return c.limit.N == maxAnswerHeader && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

// take returns an idle connection, which was used before, or a new one.
func (d *direct) take(ctx context.Context, address string) (c *engineConn, used bool, err error) {
	for {
		c := d.pop(address)
		if c == nil {
			break
		}
		if time.Since(c.since) < maxIdleTime && c.quiet() {
			return c, true, nil
		}
		_ = c.Close()
	}
	c, err = d.fresh(ctx, address)
	return c, false, err
}

// fresh returns a new connection.
func (d *direct) fresh(ctx context.Context, address string) (*engineConn, error) {
	conn, err := d.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &engineConn{Conn: conn, address: address, limit: io.LimitedReader{R: conn}}
	c.r = bufio.NewReaderSize(&c.limit, readBytes)
	return c, nil
}

func (d *direct) pop(address string) *engineConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	idle := d.idle[address]
	if len(idle) == 0 {
		return nil
	}
	c := idle[len(idle)-1]
	idle[len(idle)-1] = nil
	d.idle[address] = idle[:len(idle)-1]
	return c
}

// put keeps a connection for the next request, and drops those that have waited too long.
func (d *direct) put(c *engineConn) {
	c.since = time.Now()
	var old []*engineConn
	d.mu.Lock()
	for address, idle := range d.overdue(c.since) {
		n := 0
		for n < len(idle) && c.since.Sub(idle[n].since) >= maxIdleTime {
			n++
		}
		if n == 0 {
			continue
		}
		old = append(old, idle[:n]...)
		if d.idle[address] = append([]*engineConn(nil), idle[n:]...); n == len(idle) {
			delete(d.idle, address)
		}
	}
	if kept := d.idle[c.address]; len(kept) < maxIdlePerEngine {
		d.idle[c.address] = append(kept, c)
	} else {
		old = append(old, c)
	}
	d.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}

// overdue returns what is to be searched for connections that have waited too long: all, now and then.
func (d *direct) overdue(now time.Time) map[string][]*engineConn {
	if now.Sub(d.swept) < time.Second {
		return nil
	}
	d.swept = now
	return d.idle
}

// closeIdle closes the connections that nobody uses.
func (d *direct) closeIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, idle := range d.idle {
		for _, c := range idle {
			_ = c.Close()
		}
	}
	clear(d.idle)
}

// quiet reports whether an idle connection is open and the engine has sent nothing: else it has
// closed it, or is out of step.
func (c *engineConn) quiet() bool {
	conn, ok := c.Conn.(syscall.Conn)
	if !ok || c.r.Buffered() > 0 {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var one [1]byte
	if raw.Read(func(fd uintptr) bool { // the socket does not block
		_, _, err = syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK)
		return true
	}) != nil {
		return false
	}
	return errors.Is(err, syscall.EAGAIN)
}

// exchange writes a request and reads the answer's header. whole tells that all of the request
// was taken.
func (c *engineConn) exchange(req *http.Request, body []byte) (resp *http.Response, whole bool, err error) {
	c.head.Reset()
	c.head.WriteString(req.Method)
	c.head.WriteByte(' ')
	c.head.WriteString(req.URL.RequestURI())
	c.head.WriteString(" HTTP/1.1\r\nHost: ")
	c.head.WriteString(req.URL.Host)
	c.head.WriteString("\r\nContent-Length: ")
	c.head.Write(strconv.AppendInt(c.head.AvailableBuffer(), int64(len(body)), 10))
	c.head.WriteString("\r\n")
	_ = req.Header.Write(&c.head) // a Buffer takes all
	c.head.WriteString("\r\n")
	c.limit.N = maxAnswerHeader
	writeErr := c.write(net.Buffers{c.head.Bytes(), body}, len(body) > unreadBytes)
	if writeErr != nil { // an engine may refuse a request without reading all of it
		_ = c.SetReadDeadline(time.Now().Add(lateAnswer))
	}
	for resp == nil || resp.StatusCode/100 == 1 && resp.StatusCode != http.StatusSwitchingProtocols {
		if resp, err = http.ReadResponse(c.r, req); err != nil {
			break
		}
	}
	switch {
	case err != nil && writeErr != nil:
		return nil, false, fmt.Errorf("send request: %w", writeErr)
	case err != nil && c.limit.N <= 0:
		return nil, false, fmt.Errorf("read answer: its header is longer than %d bytes", maxAnswerHeader)
	case err != nil:
		return nil, false, fmt.Errorf("read answer: %w", err)
	}
	c.limit.N = math.MaxInt64
	if writeErr != nil {
		_ = c.SetReadDeadline(time.Time{}) // its body has all time
	}
	return resp, writeErr == nil, nil
}

// write sends a request. If it may have to wait for the engine to read, it ends early with
// os.ErrDeadlineExceeded when the engine has stopped and answers instead.
func (c *engineConn) write(out net.Buffers, waits bool) error {
	if !waits {
		_, err := out.WriteTo(c.Conn)
		return err
	}
	defer func() { _ = c.SetWriteDeadline(time.Time{}) }()
	for {
		_ = c.SetWriteDeadline(time.Now().Add(lateAnswer))
		if _, err := out.WriteTo(c.Conn); !errors.Is(err, os.ErrDeadlineExceeded) || c.answered() {
			return err
		}
	}
}

// answered reports whether an answer has begun to come, other than an informational one. Only
// during a request.
func (c *engineConn) answered() bool {
	if c.quiet() {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond)) // all of its start is there
	start, _ := c.r.Peek(len("HTTP/1.1 2"))
	_ = c.SetReadDeadline(time.Time{})
	return len(start) == len("HTTP/1.1 2") && start[len(start)-1] != '1'
}

// answerBody is an answer's body; its connection is kept when all of it was read.
type answerBody struct {
	io.ReadCloser // as http.ReadResponse made it; its Close would read on
	d             *direct
	c             *engineConn // nil: given back or closed
	end           error       // what Read gives then
	stop          func() bool // the context's end from closing c
	last          bool        // c is not kept
}

// errAnswerClosed is what reading gives after Close.
var errAnswerClosed = errors.New("answer is closed")

func (b *answerBody) Read(p []byte) (int, error) {
	if b.c == nil {
		return 0, b.end
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		keep := b.stop() && !b.last && b.c.r.Buffered() == 0
		c := b.c
		if b.c, b.end = nil, io.EOF; keep {
			b.d.put(c)
		} else {
			_ = c.Close()
		}
	}
	return n, err
}

func (b *answerBody) Close() error {
	if b.c == nil {
		return nil
	}
	b.stop()
	err := b.c.Close()
	b.c, b.end = nil, errAnswerClosed
	return err
}

// arrived reports whether the next Read need not wait.
func (b *answerBody) arrived() bool { return b.c != nil && b.c.r.Buffered() > 0 }
