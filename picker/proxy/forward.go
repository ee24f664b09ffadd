package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

// result of one try at an endpoint.
type result uint8

const (
	answered      result = iota // to the end, or the client left
	tryAgainDial                // the endpoint could not be reached; nothing was sent
	tryAgainReset               // the connection broke before an event was forwarded
)

// send makes one try at the endpoint of c.decision.
func (p *Proxy) send(c *call) (picker.Outcome, result) {
	out := picker.Outcome{CachedTokens: -1}
	target, err := url.Parse(c.decision.Endpoint.URL)
	if err != nil {
		out.Err = err
		return out, tryAgainDial
	}
	target.Path, target.RawQuery = c.r.URL.Path, c.r.URL.RawQuery
	ctx, cancel := context.WithCancel(c.r.Context()) // ends the engine's request with ours
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(c.body))
	if err != nil {
		out.Err = err
		return out, tryAgainDial
	}
	copyRequestHeaders(req.Header, c.r.Header)
	req.Header.Set("X-Request-Id", c.id)
	if c.decision.Endpoint.Ranks > 1 {
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(c.decision.Endpoint.Rank))
	}
	own := time.Since(c.received) - c.held
	p.metrics.own.Observe(own.Seconds())
	resp, err := p.roundTrip(c, req)
	if err != nil {
		out.Err = err
		var op *net.OpError
		switch {
		case c.r.Context().Err() != nil:
			c.status, out.Cancelled = statusClientGone, true // whether the endpoint answers is not known
			p.metrics.aborted.WithLabelValues("client").Inc()
			return out, answered
		case errors.As(err, &op) && op.Op == "dial":
			return out, tryAgainDial
		default:
			out.Connected = true
			return out, tryAgainReset
		}
	}
	defer resp.Body.Close()
	out.Connected, out.Status = true, resp.StatusCode
	if c.status == 0 { // else the headers of an earlier try have gone out already
		copyResponseHeaders(c.w.Header(), resp.Header)
		c.w.Header().Set("X-Request-Id", c.id)
		if p.cfg.ResponseHeaders {
			c.w.Header().Set("X-Grapevine-Gateway-Ms", millis(own))
		}
		p.decisionHeaders(c)
	}
	if isEventStream(resp.Header) {
		c.streaming = true
		return p.stream(c, resp, out)
	}
	return p.plain(c, resp, out)
}

// roundTrip sends a request with c's body.
func (p *Proxy) roundTrip(c *call, req *http.Request) (resp *http.Response, err error) {
	if p.direct.serves(req.URL) {
		resp, err = p.direct.send(req, c.body)
	} else {
		c.lent = true
		resp, err = p.transport.RoundTrip(req)
	}
	if err == nil && resp.StatusCode < http.StatusOK { // no status at all, or another protocol
		_ = resp.Body.Close()
		return nil, fmt.Errorf("engine answers with status %d", resp.StatusCode)
	}
	return resp, err
}

// decisionHeaders tells the client what was decided, where that is switched on.
func (p *Proxy) decisionHeaders(c *call) {
	if !p.cfg.ResponseHeaders {
		return
	}
	d, h := &c.decision, c.w.Header()
	h.Set("X-Grapevine-Endpoint", d.Endpoint.ID)
	h.Set("X-Grapevine-Policy", d.Policy)
	h.Set("X-Grapevine-Rung", d.Rung.String())
	h.Set("X-Grapevine-Matched-Blocks", strconv.Itoa(d.MatchedBlocks))
	h.Set("X-Grapevine-Digest-Blocks", strconv.Itoa(d.DigestBlocks))
	h.Set("X-Grapevine-Predicted-Cached-Tokens", strconv.Itoa(d.PredictedCachedTokens))
	h.Set("X-Grapevine-Held-Ms", millis(c.held))
}

func millis(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 3, 64)
}

func isEventStream(h http.Header) bool {
	return strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
}

const (
	readBytes     = 32 << 10
	maxEventBytes = 16 << 20 // of one server-sent event
	maxUsageBytes = 8 << 20  // of a plain answer that is searched for usage
)

// chunk is what one read of an engine's answer gave.
type chunk struct {
	n   int
	err error
}

// firstRead reads while headers wait: it returns what came within HeaderWait, else sends the
// headers and goes on waiting.
func (p *Proxy) firstRead(c *call, body io.Reader, buf []byte, status int) chunk {
	if b, ok := body.(*answerBody); ok && b.arrived() {
		n, err := body.Read(buf)
		return chunk{n, err}
	}
	var mu sync.Mutex // guards came, and what is written before it is set
	came := false
	timer := time.AfterFunc(p.cfg.HeaderWait, func() {
		mu.Lock()
		defer mu.Unlock()
		if came {
			return
		}
		p.extend(c.w)
		p.begin(c, status)
		_ = http.NewResponseController(c.w).Flush() // a client that left shows at the next write
	})
	n, err := body.Read(buf)
	timer.Stop()
	mu.Lock()
	defer mu.Unlock()
	came = true
	return chunk{n, err}
}

// stream forwards server-sent events one by one as they come.
func (p *Proxy) stream(c *call, resp *http.Response, out picker.Outcome) (picker.Outcome, result) {
	c.w.Header().Del("Content-Length") // events may be taken out
	flusher := http.NewResponseController(c.w)
	buf := p.readBuffers.Take(readBytes)[:readBytes]
	defer p.readBuffers.Give(buf)
	var events openai.Events
	ended := false // the engine's last event was seen
	for first := true; ; first = false {
		var got chunk
		if first {
			got = p.firstRead(c, resp.Body, buf, resp.StatusCode)
		} else {
			got.n, got.err = resp.Body.Read(buf)
		}
		p.extend(c.w)
		events.Add(buf[:got.n])
		wrote := false
		for event, ok := events.Next(); ok; event, ok = events.Next() {
			kept, last := p.event(c, event, &out)
			ended = ended || last
			if len(kept) == 0 {
				continue
			}
			p.begin(c, resp.StatusCode)
			if _, err := c.w.Write(kept); err != nil {
				return p.clientGone(out, err), answered
			}
			c.forwarded, wrote = true, true
			c.events++
		}
		if wrote {
			if err := flusher.Flush(); err != nil {
				return p.clientGone(out, err), answered
			}
		}
		if pending := events.Pending(); got.err != nil || len(pending) > maxEventBytes {
			return p.streamEnd(c, resp, out, got.err, pending, ended)
		}
	}
}

// begin sends the status line and headers unless they have gone out.
func (p *Proxy) begin(c *call, status int) {
	if c.status == 0 {
		c.status = status
		c.w.WriteHeader(status)
	}
}

// event looks at one event and returns what the client gets of it.
func (p *Proxy) event(c *call, event []byte, out *picker.Outcome) (kept []byte, last bool) {
	data := openai.Data(event)
	if !c.output && openai.HasOutput(data) {
		c.output = true
		p.picker.FirstToken(c.decision)
		p.metrics.firstOutput(c.decision.Policy, time.Since(c.arrived))
	}
	if bytes.Contains(data, []byte(`"usage"`)) {
		if u, ok := openai.ReadUsage(data); ok {
			out.PromptTokens, out.OutputTokens, out.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
		}
		if c.strip {
			stripped, keep := openai.StripUsage(event)
			if !keep {
				return nil, false
			}
			event = stripped
		}
	}
	return event, openai.IsDone(data)
}

// streamEnd judges how a stream ended. rest is what came after the last complete event.
func (p *Proxy) streamEnd(c *call, resp *http.Response, out picker.Outcome, err error, rest []byte, ended bool) (picker.Outcome, result) {
	if c.r.Context().Err() != nil {
		return p.clientGone(out, c.r.Context().Err()), answered
	}
	clean := errors.Is(err, io.EOF)
	if clean || ended {
		p.begin(c, resp.StatusCode)
		_, _ = c.w.Write(rest) // a body that was no event stream after all loses nothing
		return out, answered
	}
	if err == nil {
		err = errors.New("one event is over 16 MiB")
	}
	out.Err = err
	if !c.forwarded && resp.StatusCode == http.StatusOK {
		return out, tryAgainReset
	}
	p.broken(c, "engine "+c.decision.Endpoint.ID+" broke off its answer")
	return out, answered
}

// clientGone notes that the client left; the engine's request ends with the context.
func (p *Proxy) clientGone(out picker.Outcome, err error) picker.Outcome {
	out.Cancelled, out.Err = true, err
	p.metrics.aborted.WithLabelValues("client").Inc()
	return out
}

// plain forwards an answer that is no stream and reads its usage.
func (p *Proxy) plain(c *call, resp *http.Response, out picker.Outcome) (picker.Outcome, result) {
	var head []byte // of the answer, for its usage; nil when it grew too long
	keep := c.req.Kind != openai.Embedding && c.req.Kind != openai.Pooling
	buf := p.readBuffers.Take(readBytes)[:readBytes]
	defer p.readBuffers.Give(buf)
	for {
		n, err := resp.Body.Read(buf)
		if n == 0 && err != nil && !errors.Is(err, io.EOF) && c.status == 0 && c.r.Context().Err() == nil {
			out.Err = err
			return out, tryAgainReset
		}
		p.extend(c.w)
		p.begin(c, resp.StatusCode)
		if keep {
			if head = append(head, buf[:n]...); len(head) > maxUsageBytes {
				keep, head = false, nil
			}
		}
		if _, werr := c.w.Write(buf[:n]); werr != nil {
			return p.clientGone(out, werr), answered
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			if u, ok := openai.ReadUsage(head); ok {
				out.PromptTokens, out.OutputTokens, out.CachedTokens = u.PromptTokens, u.CompletionTokens, u.CachedTokens
			}
			return out, answered
		case c.r.Context().Err() != nil:
			return p.clientGone(out, err), answered
		}
		out.Err = err
		p.broken(c, "engine "+c.decision.Endpoint.ID+" broke off its answer")
		return out, answered
	}
}

// hopHeaders are for one connection only (RFC 9110 §7.6.1).
var hopHeaders = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// copyRequestHeaders passes a client's headers on, without hop-by-hop ones and without
// x-grapevine-*, which only this gateway may set.
func copyRequestHeaders(dst, src http.Header) {
	perConnection := connectionHeaders(src)
	for name, values := range src {
		switch {
		case slices.Contains(hopHeaders, name), slices.Contains(perConnection, name), name == "Content-Length", name == "Expect", name == "Accept-Encoding",
			name == "X-Data-Parallel-Rank", strings.HasPrefix(name, "X-Grapevine-"):
		default:
			dst[name] = values
		}
	}
	if _, ok := dst["User-Agent"]; !ok {
		dst["User-Agent"] = nil // the client sent none: neither do we
	}
}

// copyResponseHeaders passes an engine's headers on.
func copyResponseHeaders(dst, src http.Header) {
	perConnection := connectionHeaders(src)
	for name, values := range src {
		if !slices.Contains(hopHeaders, name) && !slices.Contains(perConnection, name) {
			dst[name] = values
		}
	}
}

// connectionHeaders are the headers that a Connection header names as hop-by-hop.
func connectionHeaders(h http.Header) []string {
	var names []string
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); name != "" {
				names = append(names, http.CanonicalHeaderKey(name))
			}
		}
	}
	return names
}
