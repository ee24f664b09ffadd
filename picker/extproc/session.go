package extproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

// service is what one listener serves.
type service struct {
	extprocv3.UnimplementedExternalProcessorServer
	*Server
	pool string // that its picks are from; "": any
}

// Process serves one stream of Envoy: one HTTP request.
func (l *service) Process(stream extprocv3.ExternalProcessor_ProcessServer) (err error) {
	defer l.contain(&err)
	first, err := stream.Recv()
	if err != nil {
		return gone(err)
	}
	if l.adviser != nil {
		return l.advise(stream, first)
	}
	if first.GetObservabilityMode() {
		return l.observe(stream, first)
	}
	c := &session{service: l, stream: stream, ready: make(chan struct{}, 1), ended: make(chan error, 1)}
	return c.run(first)
}

// gone is the end of a stream that Envoy has ended: a finished request looks like one that its client left.
func gone(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// session is one picking stream.
type session struct {
	*service
	stream extprocv3.ExternalProcessor_ProcessServer
	cancel context.CancelFunc // ends the choice
	ready  chan struct{}      // the choice is wanted
	ended  chan error         // with what the stream is to end

	mu        sync.Mutex // guards what follows, and sending
	exchange  exchange
	requestID string
	given     bool    // requestID was made here
	ticket    *ticket // of the decision; nil: none yet
	told      bool    // who serves
	taken     int64   // bytes of MaxBodiesBytes
}

// run serves a stream from its first message to its end.
func (c *session) run(first *extprocv3.ProcessingRequest) error {
	kind := c.metrics.streams.WithLabelValues("picker")
	kind.Inc()
	defer kind.Dec()
	crowded := c.streams.Add(1) > int64(c.opt.MaxStreams)
	defer c.streams.Add(-1)
	ctx, cancel := context.WithCancel(c.stream.Context())
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()
	c.cancel = cancel
	c.exchange.limit = int(c.opt.MaxBodyBytes)
	defer c.finish()

	if crowded {
		c.requestID = inbound.RequestID(headers(first.GetRequestHeaders().GetHeaders().GetHeaders()))
		return c.refuse(&refusal{
			Refusal: busy(fmt.Sprintf("this gateway has %d requests in progress, its limit (--max-concurrent)", c.opt.MaxStreams)),
			dropped: droppedSaturated, result: "overloaded",
		})
	}
	if err := c.message(first); err != nil {
		return err
	}
	go c.receive()
	draining := c.draining.Done()
	late := time.NewTimer(c.opt.ClientTimeout)
	defer late.Stop()
	for {
		select {
		case err := <-c.ended:
			return err
		case <-c.ready:
			c.choose(ctx)
		case <-late.C:
			c.late()
		case <-draining:
			draining = nil
		case <-c.closing.Done():
			if c.mayLeave() {
				return nil
			}
			if c.refuse(c.shuttingDown()) != nil {
				return status.Error(codes.Unavailable, "the endpoint picker is shutting down")
			}
			return nil
		}
		if c.draining.Err() != nil && c.mayLeave() {
			return nil
		}
	}
}

// receive takes in messages until Envoy ends the stream, or has to be told that it is at an end.
func (c *session) receive() {
	var fault error
	defer func() {
		if fault != nil {
			c.leave(fault)
		}
	}()
	defer c.contain(&fault)
	for {
		m, err := c.stream.Recv()
		if errors.Is(err, io.EOF) && !c.mayLeave() {
			err = status.Error(codes.Aborted, "stream ended before its request did")
		}
		if err != nil {
			c.leave(gone(err))
			return
		}
		if err := c.message(m); err != nil {
			c.leave(err)
			return
		}
	}
}

// leave ends the stream.
func (c *session) leave(err error) {
	select {
	case c.ended <- err:
	default: // it ends already
	}
	c.cancel()
}

// late ends a request whose body has not come in time: its stream is one of a limited number.
func (c *session) late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exchange.phase == awaitBody {
		c.refuseLocked(&refusal{
			Refusal: inbound.Refusal{Status: http.StatusRequestTimeout, Type: "invalid_request_error", Message: fmt.Sprintf("body did not arrive within %v (--client-timeout)", c.opt.ClientTimeout)},
			result:  "client_timeout",
		})
	}
}

func (c *session) mayLeave() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exchange.mayLeave()
}

// message takes in one message and answers it. The error is one to end the stream with.
func (c *session) message(m *extprocv3.ProcessingRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := &c.exchange
	s, err := x.take(m)
	if err != nil {
		var p *protocolError
		if errors.As(err, &p) {
			c.metrics.protocol.WithLabelValues(p.reason).Inc()
		}
		c.disordered(err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if m.GetRequestHeaders() != nil {
		c.requestID = inbound.RequestID(x.headers)
		c.given = x.headers.Get(headerRequestID) != c.requestID
	}
	if n := len(m.GetResponseBody().GetBody()); n > 0 {
		c.metrics.bytes.WithLabelValues("response").Add(float64(n))
	}
	if n := int64(len(m.GetRequestBody().GetBody())); n > 0 {
		c.metrics.bytes.WithLabelValues("request").Add(float64(n))
		if x.phase == awaitBody || x.phase == picking {
			c.taken += n
			if c.bodies.Add(n) > c.opt.MaxBodiesBytes {
				s = step{refusal: &refusal{
					Refusal: busy("bodies of the requests in progress are over their limit (--max-bodies-bytes)"), dropped: droppedSaturated, result: "overloaded",
				}}
			}
		}
	}
	if err := c.send(s.out); err != nil {
		return err
	}
	switch {
	case s.refusal != nil:
		c.refuseLocked(s.refusal)
	case s.abandon:
		c.cancel()
	case s.pick:
		c.ready <- struct{}{} // once in a stream
	}
	c.tell()
	return nil
}

// disorderEvery is how often it is logged that Envoy sends what can't come: each request may have it, if it is configured so.
const disorderEvery = time.Minute

func (c *session) disordered(err error) {
	now := time.Now().UnixNano()
	if last := c.disorder.Load(); now-last > int64(disorderEvery) && c.disorder.CompareAndSwap(last, now) {
		c.log.Warn("stream of Envoy out of order", keyRequestID, c.requestID, keyError, err)
	}
}

// send sends messages. Caller holds c.mu.
func (c *session) send(out []*extprocv3.ProcessingResponse) error {
	for _, m := range out {
		if err := c.stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// tell passes on what the response has shown. Caller holds c.mu.
func (c *session) tell() {
	t, a := c.ticket, &c.exchange.answer
	if t == nil || !a.begun {
		return
	}
	if !c.told {
		c.told = true
		c.service.served(t, a)
	}
	if a.output {
		c.open.firstToken(t)
	}
	if a.ended {
		c.open.end(t, a.outcome())
	}
}

// served passes on who serves.
func (s *Server) served(t *ticket, a *answer) {
	if s.open.served(t, a.served) {
		s.metrics.elsewhere.Inc()
	}
}

// finish ends what the stream has begun, however it ended.
func (c *session) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free()
	c.exchange.drop()
	t := c.ticket
	if t == nil {
		return
	}
	if c.exchange.demand().shows {
		c.open.end(t, c.exchange.answer.outcome())
		return
	}
	c.open.linger(t, time.Now().Add(c.cfg.Unobserved)) // Envoy ends such streams after the pick
}

// free gives back what the body took. Caller holds c.mu.
func (c *session) free() {
	c.bodies.Add(-c.taken)
	c.taken = 0
}

// refuse answers the client in place of an endpoint. The error says that it has an answer already.
func (c *session) refuse(r *refusal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.refuseLocked(r) {
		return errAnswered
	}
	return nil
}

var errAnswered = errors.New("answered already")

// refuseLocked is refuse for who holds c.mu; the stream ends.
func (c *session) refuseLocked(r *refusal) bool {
	out := c.exchange.refuse(r, c.requestID)
	if out == nil {
		return false
	}
	c.metrics.picks.WithLabelValues(r.result).Inc()
	c.log.Debug("request refused", keyRequestID, c.requestID, keyResult, r.result, keyReason, r.Message)
	c.free()
	c.leave(c.send(out))
	return true
}

// choose makes the choice and gives the request back with it.
func (c *session) choose(ctx context.Context) {
	began := time.Now()
	d, wanted := c.wanted()
	if !wanted { // the client has an answer already
		c.metrics.picks.WithLabelValues("cancelled").Inc()
		return
	}
	decision, r := c.decide(ctx, began, &d)

	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r == nil:
	case r.result == "cancelled":
		c.metrics.picks.WithLabelValues(r.result).Inc()
		return
	default:
		c.refuseLocked(r)
		return
	}
	p := pickOf(&decision)
	p.gateway = localAddress(c.stream.Context())
	if c.given {
		p.requestID = c.requestID
	}
	out := c.exchange.picked(p)
	if out == nil { // the client has got another answer just now
		c.metrics.picks.WithLabelValues("cancelled").Inc()
		c.open.decider.Done(decision, picker.Outcome{CachedTokens: -1, Cancelled: true, Err: context.Canceled})
		return
	}
	c.ticket = c.open.add(c.requestID, decision) // before Envoy can tell anything of it
	if err := c.send(out); err != nil {
		c.leave(err)
		return
	}
	c.metrics.picks.WithLabelValues("picked").Inc()
	c.metrics.pick.Observe((time.Since(began) - decision.Held).Seconds())
	c.free()
}

// wanted returns what to choose by, and asks Envoy for the time that a hold may take; false: nobody waits for the choice any more.
func (c *session) wanted() (demand, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.exchange.demand()
	if c.exchange.phase != picking {
		return d, false
	}
	if d.hurried && c.cfg.BufferedHold > 0 { // heeded where Envoy's max_message_timeout allows it
		_ = c.send([]*extprocv3.ProcessingResponse{{OverrideMessageTimeout: durationpb.New(c.cfg.BufferedHold + time.Second)}})
	}
	return d, true
}

// promptWait is how long an engine may be asked for a prompt's tokens while Envoy waits for the answer to a buffered body.
const promptWait = 100 * time.Millisecond

// decide reads the request and asks the picker.
func (c *session) decide(ctx context.Context, began time.Time, d *demand) (picker.Decision, *refusal) {
	ctx, cancel := context.WithDeadline(ctx, began.Add(c.cfg.Deadline))
	defer cancel()
	body, done := d.body(&c.buffers)
	defer done()
	req, err := d.parse(body)
	if err != nil {
		return picker.Decision{}, &refusal{
			Refusal: inbound.Refusal{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: err.Error()}, result: "bad_request",
		}
	}
	pick, res, err := c.read(ctx, d, req)
	if err != nil {
		return picker.Decision{}, c.refusal(ctx, err)
	}
	defer res.Release()
	pick.Only, pick.Fallbacks = c.only(d.subset), c.cfg.Fallbacks
	pick.NoFirstToken = !req.Stream || !d.shows && !c.observing(began)
	pick.MaxHold = c.maxHold(d, time.Since(began))
	if c.cfg.TrustHeaders {
		c.trust(d.headers, &pick)
	}
	decision, err := c.service.pick(ctx, pick)
	if err != nil {
		return picker.Decision{}, c.refusal(ctx, err)
	}
	return decision, nil
}

// read turns the request into the picker's.
func (c *session) read(ctx context.Context, d *demand, req *openai.Request) (picker.Request, prompt.Result, error) {
	wanted := req.Kind != openai.Other && c.opt.Picker.ReadsPrompts()
	if !d.hurried || !wanted {
		return c.reader.Request(ctx, d.headers, req, c.requestID, wanted)
	}
	short, cancel := context.WithTimeout(ctx, promptWait)
	defer cancel()
	pick, res, err := c.reader.Request(short, d.headers, req, c.requestID, true)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return c.reader.Request(ctx, d.headers, req, c.requestID, false)
	}
	return pick, res, err
}

// only lists the endpoints that may be chosen; nil: all.
func (l *service) only(subset []string) []string {
	if l.pool == "" {
		return subset
	}
	members, known := l.opt.Pools.Members(l.pool)
	switch {
	case !known || members == nil:
		return []string{}
	case subset == nil:
		return members
	}
	in := make(map[string]bool, len(members))
	for _, address := range members {
		in[address] = true
	}
	return slices.DeleteFunc(slices.Clone(subset), func(address string) bool { return !in[address] })
}

// deadlineReserve is left of the deadline for a held request to be bound.
const deadlineReserve = 200 * time.Millisecond

// maxHold is the bound on the hold of a request on which some time has been spent.
func (c *session) maxHold(d *demand, spent time.Duration) time.Duration {
	hold := c.cfg.Deadline - deadlineReserve
	if d.hurried {
		hold = c.cfg.BufferedHold
	}
	if hold -= spent; hold <= 0 {
		return -1
	}
	return hold
}

// trust takes over what llm-d's headers say.
func (c *session) trust(h headers, pick *picker.Request) {
	if flow := h.Get(headerFairness); flow != "" {
		pick.Flow = flow
	}
	name := h.Get(headerObjective)
	if name == "" {
		name = h.Get(headerOldObjective)
	}
	if name == "" || c.opt.Objectives == nil {
		return
	}
	if priority, ok := c.opt.Objectives.Objective(c.pool, name); ok {
		pick.Priority, pick.Sheddable = priority, priority < 0
	}
}

// refusal is the answer to an error of the picker.
func (c *session) refusal(ctx context.Context, err error) *refusal {
	switch {
	case c.closing.Err() != nil:
		return c.shuttingDown()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &refusal{
			Refusal: inbound.Refusal{Status: http.StatusServiceUnavailable, Type: "unavailable", Message: fmt.Sprintf("no endpoint was ready within %v (--ext-proc-deadline)", c.cfg.Deadline)},
			dropped: droppedExpired, result: "deadline",
		}
	case ctx.Err() != nil:
		return &refusal{result: "cancelled"}
	}
	r := &refusal{Refusal: inbound.Refuse(err), result: "error"}
	switch r.Status {
	case http.StatusNotFound:
		r.result = "unknown_model"
	case http.StatusTooManyRequests:
		r.result, r.dropped = "overloaded", droppedSaturated
	case http.StatusServiceUnavailable:
		r.result, r.dropped = "no_endpoints", droppedNobody
	}
	return r
}

func (s *Server) shuttingDown() *refusal {
	return &refusal{
		Refusal: inbound.Refusal{Status: http.StatusServiceUnavailable, Type: "unavailable", Message: "the endpoint picker is shutting down"},
		dropped: droppedShutdown, result: "shutting_down",
	}
}

// busy is the answer where a limit of this gateway is reached.
func busy(message string) inbound.Refusal {
	return inbound.Refusal{Status: http.StatusTooManyRequests, Type: "overloaded_error", Message: message, RetryAfter: 1 + rand.IntN(3)}
}
