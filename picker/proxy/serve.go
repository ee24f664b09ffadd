package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/recording"
)

// call is one client's request on its way.
type call struct {
	w        http.ResponseWriter
	r        *http.Request
	id       string
	body     []byte // as sent on: with usage asked for
	original []byte // as it came, in a buffer of the proxy's
	forced   []byte // with usage asked for, the same; nil: it was asked for
	lent     bool   // body may be read after the end
	taken    int64  // by the body, of MaxBodiesBytes
	strip    bool   // usage was asked for here and is taken out again
	req      *openai.Request
	prompt   prompt.Result // what pick has of it is valid until the end
	pick     picker.Request
	decision picker.Decision
	arrived  time.Time // its headers
	received time.Time // all of its body
	held     time.Duration

	status    int  // answered; 0 while nothing has been written
	streaming bool // the answer is a stream of events
	forwarded bool // an event has gone to the client
	output    bool // an event with output was seen
	cutShort  bool // the answer must not look complete
	events    int  // of the stream that went to the client

	outcome    picker.Outcome       // of the last try
	recordings recording.Membership // that it belongs to
}

// serve picks an endpoint for a request and forwards it.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	c := &call{w: w, r: r, arrived: time.Now(), id: inbound.RequestID(r.Header)}
	c.recordings = p.recorder.Begin(c.arrived)
	w.Header().Set("X-Request-Id", c.id)
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		p.fail(c, http.StatusTooManyRequests, "overloaded_error", fmt.Sprintf("this gateway has %d requests in progress, its limit (--max-concurrent)", cap(p.slots)))
		p.record(c)
		p.metrics.answered(r.Pattern, c.status, "")
		return
	}
	p.metrics.inFlight.Inc()
	defer p.metrics.inFlight.Dec()
	p.budget.begin()
	defer p.budget.end()
	defer func() {
		p.free(c.taken)
		c.prompt.Release()
		if !c.lent {
			p.bodyBuffers.Give(c.original)
			p.bodyBuffers.Give(c.forced)
		}
	}()

	if p.read(c) && p.resolve(c) {
		p.forward(c)
	}
	p.record(c)
	p.metrics.answered(r.Pattern, c.status, c.decision.Policy)
	if c.cutShort || c.status == statusClientGone {
		panic(http.ErrAbortHandler) // the server closes the connection without the end of the answer
	}
}

// fail answers in OpenAI's shape before anything was forwarded.
func (p *Proxy) fail(c *call, status int, typ, msg string) {
	c.status = status
	p.extend(c.w)
	if status == http.StatusTooManyRequests && c.w.Header().Get("Retry-After") == "" {
		c.w.Header().Set("Retry-After", strconv.Itoa(1+rand.IntN(3)))
	}
	writeError(c.w, status, typ, msg)
	p.log.Debug("request refused", slog.String("request_id", c.id), slog.Int("status", status), slog.String("reason", msg))
}

// read takes the body in and understands it. False: answered.
func (p *Proxy) read(c *call) bool {
	body, status, err := p.readBody(c.w, c.r, p.cfg.MaxBodyBytes, &c.taken)
	switch {
	case status == statusClientGone:
		c.status = statusClientGone
		return false
	case status == http.StatusRequestEntityTooLarge:
		p.fail(c, status, "invalid_request_error", err.Error()+" (--max-body-bytes)")
		return false
	case status == http.StatusTooManyRequests:
		p.fail(c, status, "overloaded_error", err.Error())
		return false
	case err != nil:
		p.fail(c, status, "invalid_request_error", err.Error())
		return false
	}
	c.original, c.received = body, time.Now()
	p.metrics.bodies.Observe(float64(len(c.original)))
	req, err := openai.Parse(c.r.URL.Path, c.original)
	if err != nil {
		p.fail(c, http.StatusBadRequest, "invalid_request_error", err.Error())
		return false
	}
	c.req, c.body = req, c.original
	if req.Kind == openai.Chat || req.Kind == openai.Completion {
		if req.Stream && !req.IncludeUsage {
			c.body, c.strip = req.ForceUsage(p.bodyBuffers.Take(len(c.original) + spliceBytes))
		}
		if c.strip {
			c.forced = c.body
		}
	}
	if left, refused := p.deaths.refuses(time.Now(), c.original); refused {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(left.Seconds())+1))
		p.fail(c, http.StatusServiceUnavailable, "engine_error", fmt.Sprintf("two engines died while they computed this very request: it is refused for another %v", left.Round(time.Second)))
		return false
	}
	return true
}

// spliceBytes is room for what asks for usage.
const spliceBytes = 64

// statusClientGone marks a client that left before its answer (as nginx does); it is never sent.
const statusClientGone = 499

// resolve learns the prompt's chain or token ids. False: answered.
func (p *Proxy) resolve(c *call) bool {
	var err error
	if c.pick, c.prompt, err = p.request(c.r, c.req, c.id, p.wantsPrompts()); err != nil {
		p.refuse(c, err)
		return false
	}
	if p.cfg.ForwardTokenIDs && forwardable(c.req, &c.prompt) {
		c.body = withTokenIDs(c.body, c.prompt.TokenIDs)
	}
	return true
}

// request turns a client's request into the picker's, which may be used until the prompt is released.
func (p *Proxy) request(r *http.Request, req *openai.Request, id string, withPrompt bool) (picker.Request, prompt.Result, error) {
	return p.reader.Request(r.Context(), r.Header, req, id, withPrompt)
}

// wantsPrompts reports whether anybody looks at what a prompt's tokens are.
func (p *Proxy) wantsPrompts() bool {
	return p.cfg.ForwardTokenIDs || p.picker.ReadsPrompts() || p.recorder.Running() > 0
}

// refuse answers an error of the picker.
func (p *Proxy) refuse(c *call, err error) {
	a := inbound.Refuse(err)
	if a.Status == http.StatusInternalServerError && c.r.Context().Err() != nil {
		c.status = statusClientGone
		return
	}
	if a.RetryAfter > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(a.RetryAfter))
	}
	if errors.Is(err, picker.ErrNoEndpoints) && len(p.picker.Status().Endpoints) == 0 {
		a.Message = emptyPool
	}
	p.fail(c, a.Status, a.Type, a.Message)
}

// forward picks and sends until an endpoint has answered or no further try is allowed.
func (p *Proxy) forward(c *call) {
	retried := false
	for {
		d, err := p.picker.Pick(c.r.Context(), c.pick)
		if err != nil {
			if len(c.pick.Avoid) > 0 && !errors.Is(err, context.Canceled) && c.status == 0 {
				p.fail(c, http.StatusBadGateway, "engine_error", fmt.Sprintf("no endpoint could be reached; tried %s", strings.Join(c.pick.Avoid, ", ")))
				return
			}
			p.refuse(c, err)
			return
		}
		c.decision = d
		c.held += d.Held
		outcome, result := p.send(c)
		p.picker.Done(d, outcome)
		c.outcome = outcome
		if result != tryAgainDial && result != tryAgainReset {
			break
		}
		c.pick.Avoid = append(c.pick.Avoid, d.Endpoint.ID)
		if result == tryAgainDial {
			p.metrics.retries.WithLabelValues("connect").Inc()
			continue
		}
		if died := !p.alive(c.r.Context(), d.Endpoint); died {
			p.deaths.add(time.Now(), c.original)
			p.broken(c, "engine "+d.Endpoint.ID+" died before it answered")
			break
		}
		if retried || !p.budget.take() {
			p.broken(c, "engine "+d.Endpoint.ID+" closed the connection before it answered")
			break
		}
		defer p.budget.done()
		retried = true
		p.metrics.retries.WithLabelValues("reset").Inc()
	}
}

// alive asks an endpoint whether it still answers at all.
func (p *Proxy) alive(ctx context.Context, e picker.Endpoint) bool {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.DialTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK { // the body of another protocol has no end
		return false
	}
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	return true
}

// broken tells the client that its answer ends here: as a status if none was sent, else as the
// stream's last event.
func (p *Proxy) broken(c *call, msg string) {
	p.metrics.aborted.WithLabelValues("engine").Inc()
	p.log.Warn("answer broken off", slog.String("request_id", c.id), slog.String("endpoint", c.decision.Endpoint.ID), slog.String("reason", msg))
	p.extend(c.w)
	if c.status == 0 {
		c.status = http.StatusBadGateway
		p.decisionHeaders(c)
		writeError(c.w, http.StatusBadGateway, "engine_error", msg)
		return
	}
	if c.streaming {
		_, _ = c.w.Write(openai.ErrorEvent(http.StatusBadGateway, "engine_error", msg))
		_ = http.NewResponseController(c.w).Flush()
		return
	}
	c.cutShort = true
}
