package zmqsub

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"

	"github.com/grapevine-llm/grapevine/agent/kvevent"
)

// loop is what only the goroutine of Run touches.
type loop struct {
	*Subscriber
	done   <-chan struct{} // Run shall end
	zctx   *zmq.Context
	poller *zmq.Poller
	ipv6   bool

	sub, monitor, woken, dealer *zmq.Socket

	replay *replay
	until  time.Time // when the replay counts as idle
	held   held
}

func (l *loop) open() error {
	var err error
	if l.sub, err = l.socket(zmq.SUB); err != nil {
		return err
	}
	if err := errors.Join(
		l.sub.SetSubscribe(l.cfg.Topic),
		l.sub.SetReconnectIvl(100*time.Millisecond),
		l.sub.SetReconnectIvlMax(2*time.Second),
		l.sub.SetHeartbeatIvl(5*time.Second),
		l.sub.SetHeartbeatTimeout(15*time.Second),
	); err != nil {
		return fmt.Errorf("set up SUB socket: %w", err)
	}
	const monitorAddr, wakeAddr = "inproc://monitor", "inproc://wake"
	if err := l.sub.Monitor(monitorAddr, zmq.EVENT_HANDSHAKE_SUCCEEDED|zmq.EVENT_DISCONNECTED); err != nil {
		return fmt.Errorf("monitor SUB socket: %w", err)
	}
	if l.monitor, err = l.pair(monitorAddr, false); err != nil {
		return err
	}
	if l.woken, err = l.pair(wakeAddr, true); err != nil {
		return err
	}
	wake, err := l.pair(wakeAddr, false)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.wake = wake
	l.signal() // for a Replay that was asked before
	l.mu.Unlock()

	if l.cfg.Listen {
		err = l.sub.Bind(l.cfg.Endpoint)
	} else {
		err = l.sub.Connect(l.cfg.Endpoint)
	}
	switch {
	case err == nil:
	case zmq.AsErrno(err) == zmq.Errno(syscall.EADDRINUSE):
		return fmt.Errorf("listen for KV events on %s: the port is taken by another process: give another one to engine and agent: %w", l.cfg.Endpoint, err)
	default:
		return fmt.Errorf("open KV-event endpoint %s: %w", l.cfg.Endpoint, err)
	}
	l.poller.Add(l.sub, zmq.POLLIN)
	l.poller.Add(l.monitor, zmq.POLLIN)
	l.poller.Add(l.woken, zmq.POLLIN)
	l.held = held{maxMsgs: maxHeldMsgs, maxBytes: maxHeldBytes}
	return nil
}

// socket makes a socket that never lingers and bounds what it takes in.
func (l *loop) socket(kind zmq.Type) (*zmq.Socket, error) {
	soc, err := l.zctx.NewSocket(kind)
	if err != nil {
		return nil, fmt.Errorf("make %v socket: %w", kind, err)
	}
	if err := errors.Join(soc.SetIpv6(l.ipv6), soc.SetLinger(0), soc.SetRcvhwm(receiveDepth), soc.SetMaxmsgsize(maxMessage)); err != nil {
		soc.Close()
		return nil, fmt.Errorf("set up %v socket: %w", kind, err)
	}
	return soc, nil
}

func (l *loop) pair(addr string, bind bool) (*zmq.Socket, error) {
	soc, err := l.zctx.NewSocket(zmq.PAIR)
	if err != nil {
		return nil, fmt.Errorf("make PAIR socket: %w", err)
	}
	if bind {
		err = soc.Bind(addr)
	} else {
		err = soc.Connect(addr)
	}
	if err = errors.Join(err, soc.SetLinger(0)); err != nil {
		soc.Close()
		return nil, fmt.Errorf("open %s: %w", addr, err)
	}
	return soc, nil
}

func (l *loop) close() {
	l.mu.Lock()
	wake := l.wake
	l.wake = nil
	l.mu.Unlock()
	for _, soc := range []*zmq.Socket{l.dealer, l.sub, l.monitor, l.woken, wake} {
		if soc != nil {
			soc.Close()
		}
	}
	if err := l.zctx.Term(); err != nil {
		l.log.Debug("end ZMQ context", slog.Any("err", err))
	}
}

func (l *loop) run(ctx context.Context) error {
	for ctx.Err() == nil {
		timeout := time.Duration(-1)
		if l.replay != nil {
			timeout = max(time.Until(l.until), time.Millisecond)
		}
		if _, err := l.poller.Poll(timeout); err != nil {
			return fmt.Errorf("poll ZMQ sockets: %w", err)
		}
		drain(l.woken, func([][]byte) bool { return true })
		// The monitor first: a restart shows there before its first messages.
		l.readMonitor()
		// Replay before live messages: what is held waits for its end.
		l.readReplay()
		l.startReplay()
		drain(l.sub, l.live)
	}
	return nil
}

// drain reads what is there, up to a bound; f returns false to stop.
func drain(soc *zmq.Socket, f func(frames [][]byte) bool) {
	for range drainAtOnce {
		frames, err := soc.RecvMessageBytes(zmq.DONTWAIT)
		if err != nil || !f(frames) { // EAGAIN: nothing there
			return
		}
	}
}

func (l *loop) readMonitor() {
	for {
		event, addr, _, err := l.monitor.RecvEvent(zmq.DONTWAIT)
		if err != nil {
			return
		}
		switch event {
		case zmq.EVENT_HANDSHAKE_SUCCEEDED:
			l.count(func(c *Stats) { c.Connects++ })
			l.log.Debug("KV-event socket connected", slog.String("endpoint", addr))
			l.emit(Event{Kind: Connected})
		case zmq.EVENT_DISCONNECTED:
			l.log.Debug("KV-event socket disconnected", slog.String("endpoint", addr))
			if l.replay != nil {
				l.endReplay()
			}
			l.emit(Event{Kind: Disconnected})
		}
	}
}

func (l *loop) live(frames [][]byte) bool {
	msg, err := kvevent.ParseLive(frames)
	switch {
	case err != nil:
		l.badFrames(err)
		return true
	case l.cfg.Topic != "" && msg.Topic != l.cfg.Topic:
		l.count(func(c *Stats) { c.OtherTopic++ })
		return true
	}
	l.received.Add(1)
	l.bytes.Add(uint64(len(msg.Payload)))
	m := Message{Topic: msg.Topic, Seq: msg.Seq, Payload: msg.Payload, At: time.Now()}
	if l.replay != nil {
		l.held.add(m)
		return true
	}
	return l.emit(Event{Kind: Live, Message: m})
}

func (l *loop) badFrames(err error) {
	l.count(func(c *Stats) { c.BadFrames++ })
	l.log.Debug("drop ZMQ message", slog.Any("err", err))
}

// emit hands e over; it returns false when Run shall end first.
func (l *loop) emit(e Event) bool {
	select {
	case l.events <- e:
		return true
	case <-l.done:
		return false
	}
}

// startReplay begins the replay that waits, if any.
func (l *loop) startReplay() {
	if l.replay != nil {
		return
	}
	l.mu.Lock()
	wanted, from := l.wanted, l.from
	l.wanted = false
	if wanted {
		l.counter.Replays++
	}
	l.mu.Unlock()
	if !wanted {
		return
	}
	l.replay = newReplay(from)
	if l.cfg.Replay == "" || !l.ask() {
		l.endReplay()
	}
}

// ask sends a request on a new socket, so that nothing of an older answer comes
// with the new one.
func (l *loop) ask() bool {
	l.closeDealer()
	soc, err := l.socket(zmq.DEALER)
	if err == nil {
		l.dealer = soc
		l.poller.Add(soc, zmq.POLLIN)
		if err = soc.Connect(l.cfg.Replay); err == nil {
			// An empty delimiter, else the ROUTER's owner drops the request.
			_, err = soc.SendMessageDontwait([]byte{}, binary.BigEndian.AppendUint64(nil, l.replay.result.Next))
		}
	}
	if err != nil {
		l.log.Warn("ask for a replay of KV events", slog.String("endpoint", l.cfg.Replay), slog.Any("err", err))
		return false
	}
	l.count(func(c *Stats) { c.ReplayAsks++ })
	l.until = time.Now().Add(l.cfg.Idle)
	return true
}

func (l *loop) closeDealer() {
	if l.dealer != nil {
		_ = l.poller.RemoveBySocket(l.dealer) // it was added when it was made
		l.dealer.Close()
		l.dealer = nil
	}
}

func (l *loop) readReplay() {
	if l.replay == nil {
		return
	}
	next := ignore
	drain(l.dealer, func(frames [][]byte) bool {
		l.until = time.Now().Add(l.cfg.Idle)
		var msg kvevent.Message
		if msg, next = l.answer(frames); next == deliver {
			l.count(func(c *Stats) { c.Replayed++ })
			return l.emit(Event{Kind: Replayed, Message: Message{Topic: msg.Topic, Seq: msg.Seq, Payload: msg.Payload, At: time.Now()}})
		}
		return next == ignore
	})
	if next != ask && next != finish && time.Now().After(l.until) {
		next = l.replay.idle()
	}
	if next == finish || next == ask && !l.ask() {
		l.endReplay()
	}
}

func (l *loop) answer(frames [][]byte) (kvevent.Message, action) {
	msg, err := kvevent.ParseReplay(frames)
	switch {
	case err != nil:
		l.badFrames(err)
		return msg, ignore
	case msg.End:
		return msg, l.replay.end()
	case l.cfg.Topic != "" && msg.Topic != "" && msg.Topic != l.cfg.Topic:
		return msg, ignore
	}
	return msg, l.replay.data(msg.Seq)
}

// endReplay reports the replay and lets the held live messages follow.
func (l *loop) endReplay() {
	l.closeDealer()
	r := l.replay.result
	l.replay = nil
	l.emit(Event{Kind: ReplayDone, Replay: r})
	dropped := l.held.dropped
	l.held.dropped = 0
	l.count(func(c *Stats) { c.HeldDropped += dropped })
	for _, m := range l.held.take(r.Next) {
		if !l.emit(Event{Kind: Live, Message: m}) {
			return
		}
	}
}
