package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// extend gives the client time to take in what is written next; one that does not counts as gone.
func (p *Proxy) extend(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.cfg.ClientTimeout)) // not supported: no limit
}

// maxTrustedLength is how much room a Content-Length gets before a byte of the body has come.
const maxTrustedLength = 1 << 20

// errBodies says that the bodies in progress take all the memory that they may.
var errBodies = errors.New("bodies of the requests in progress are over their limit (--max-bodies-bytes)")

// metered reads a body and counts it against what all bodies together may take.
type metered struct {
	r     io.Reader
	p     *Proxy
	taken *int64 // by this body; free gives it back
}

func (m metered) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	*m.taken += int64(n)
	if m.p.bodies.Add(int64(n)) > m.p.cfg.MaxBodiesBytes {
		return n, errBodies
	}
	return n, err
}

// free gives back what a body took.
func (p *Proxy) free(taken int64) { p.bodies.Add(-taken) }

// readBody reads r's body, which may have limit bytes and has to come in the time that Handler gave it; else it returns
// what to answer. The body is in one of p.bodyBuffers. A body announced as larger is not waited for. What it takes is added to taken.
func (p *Proxy) readBody(w http.ResponseWriter, r *http.Request, limit int64, taken *int64) (body []byte, status int, err error) {
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // the rest is not read
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("body is over the limit of %d bytes", limit)
	}
	buf := bytes.NewBuffer(p.bodyBuffers.Take(int(min(max(r.ContentLength, 0), maxTrustedLength)) + bytes.MinRead))
	_, err = buf.ReadFrom(metered{http.MaxBytesReader(w, r.Body, limit), p, taken})
	var tooLarge *http.MaxBytesError
	var network net.Error
	switch {
	case err == nil:
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the server reads on, to see the client leave
		return buf.Bytes(), 0, nil
	case errors.As(err, &tooLarge):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("body is over the limit of %d bytes", limit)
	case errors.Is(err, errBodies):
		w.Header().Set("Connection", "close")
		return nil, http.StatusTooManyRequests, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, http.StatusRequestTimeout, fmt.Errorf("body did not arrive within %v (--client-timeout)", p.cfg.ClientTimeout)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return nil, statusClientGone, err
	}
	return nil, http.StatusBadRequest, fmt.Errorf("read body: %w", err) // chunks that are none
}
