package mesh

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	greetEvery = 250 * time.Millisecond // between two joins of strangers, doubled with each failure
	greetMax   = 30 * time.Second
	// maxKnown bounds the sources that are remembered beside the members.
	maxKnown = 16_384
)

// strangers notices packets from addresses that are no member's. After a restart a picker knows
// nobody, while agents still send to the process that was at its address before: the picker
// joins one of them and learns of all. Nil does nothing.
type strangers struct {
	known atomic.Pointer[map[netip.AddrPort]struct{}] // copied on write
	mu    sync.Mutex                                  // guards writing known
	met   chan netip.AddrPort                         // one at a time; others come again
}

func newStrangers() *strangers {
	s := &strangers{met: make(chan netip.AddrPort, 1)}
	s.known.Store(&map[netip.AddrPort]struct{}{})
	return s
}

// see is called for each packet.
func (s *strangers) see(from netip.AddrPort) {
	if _, ok := (*s.known.Load())[from]; ok {
		return
	}
	select {
	case s.met <- from:
	default:
	}
}

// know takes in an address, "ip:port".
func (s *strangers) know(addr string) { s.change(addr, true) }

// forget drops one.
func (s *strangers) forget(addr string) { s.change(addr, false) }

func (s *strangers) change(addr string, known bool) {
	if s == nil {
		return
	}
	a, err := netip.ParseAddrPort(addr)
	if err != nil {
		return // memberlist only hands out addresses; see would not know it either
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(*s.known.Load())
	if known && len(next) < maxKnown {
		next[a] = struct{}{}
	} else {
		delete(next, a)
	}
	s.known.Store(&next)
}

// greetStrangers joins them, at most one at a time, until ctx ends. What a packet's source
// says is not trusted: a join proves the label and the key, and failures slow it down.
func (m *Mesh) greetStrangers(ctx context.Context) {
	pause := greetEvery
	for {
		var who netip.AddrPort
		select {
		case <-ctx.Done():
			return
		case who = <-m.strangers.met:
		}
		ml := m.list()
		if ml == nil {
			return
		}
		if _, err := ml.Join([]string{who.String()}); err != nil {
			m.log.Debug("stranger does not answer as a gossip node", slog.String(keyAddr, who.String()), slog.Any(keyErr, firstLineError(err)))
			pause = min(2*pause, greetMax)
		} else {
			// Its advertised address may be another: its source is no stranger any more.
			m.strangers.know(who.String())
			pause = greetEvery
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
