package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	joinRetryMin  = 250 * time.Millisecond
	joinRetryMax  = 10 * time.Second
	aloneRetryMax = 2 * time.Second // without any member: nothing works until one answers
	rejoinEvery   = 60 * time.Second
	joinParallel  = 8
	lostWait      = 500 * time.Millisecond // after a picker has gone
	lookupTimeout = 5 * time.Second
	// maxJoinAddrs bounds what one round joins; a name with more addresses is
	// joined in part, the rest comes through push/pull.
	maxJoinAddrs = 256
)

// SplitJoin reads an entry of Config.Join.
func SplitJoin(s string) (host string, port uint16, err error) {
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return ip.String(), DefaultPort, nil
	}
	if !strings.Contains(s, ":") {
		if s == "" {
			return "", 0, fmt.Errorf("empty address")
		}
		return s, DefaultPort, nil
	}
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 || host == "" {
		return "", 0, fmt.Errorf("bad address %q", s)
	}
	return host, uint16(n), nil
}

// keepJoined joins at start, tries again until somebody answered, and joins
// again now and then whoever is listed and not a member: memberlist never tries
// a node again that it has given up.
func (m *Mesh) keepJoined(ctx context.Context) {
	if len(m.cfg.Join) == 0 {
		return
	}
	retry := joinRetryMin
	joined := false
	for {
		found, reached, err := m.joinOnce(ctx)
		var wait time.Duration
		switch {
		case ctx.Err() != nil:
			return
		case found > 0 && reached == 0, found == 0 && err != nil:
			m.joinFailures.Add(1)
			m.logJoinFailure(err, !joined, !joined && retry == joinRetryMin)
			if m.alone() {
				retry = min(retry, aloneRetryMax)
			}
			wait = jitter(retry)
			retry = min(2*retry, joinRetryMax)
		case reached > 0 && m.alone():
			// It has only just started, and did not count itself yet.
			wait = jitter(retry)
			retry = min(2*retry, aloneRetryMax)
		default:
			if !joined {
				m.log.Info("joined the gossip mesh", slog.Int(keyCount, reached))
			}
			joined = true
			retry = joinRetryMin
			wait = jitter(rejoinEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-m.lost:
			// Perhaps it has only restarted, under a new name.
			select {
			case <-ctx.Done():
				return
			case <-time.After(jitter(lostWait)):
			}
			retry = joinRetryMin
		}
	}
}

// alone reports whether no other node is a member.
func (m *Mesh) alone() bool { return m.list().NumMembers() <= 1 }

// jitter spreads d by ±50 %.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}

// logJoinFailure says the first failure aloud; later ones are for debugging,
// since a fleet may start in any order. But what only a person can mend is said
// again and again, and when it comes after another failure.
func (m *Mesh) logJoinFailure(err error, never, first bool) {
	level := slog.LevelDebug
	if first {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.Any(keyErr, err)}
	msg := "no listed gossip node answered, trying again"
	switch {
	case err != nil && isKeyFault(err.Error()):
		// Nothing else says it on this side.
		if _, ok := m.logs.allow(logKey, time.Now()); ok {
			level = slog.LevelError
		}
		m.logs.count[logKey].Add(1)
		msg = "the listed gossip nodes use a different gossip key"
		attrs = append(attrs, slog.String(keyRemedy, remedyKey))
	case err != nil && never && hungUp(err.Error()):
		if _, ok := m.logs.allow(logHungUp, time.Now()); ok {
			level = slog.LevelWarn
		}
		m.logs.count[logHungUp].Add(1)
		attrs = append(attrs, slog.String(keyRemedy, "the node hung up without a word: most likely its gossip label differs, or it does not allow this node's network; "+remedyLabel))
	}
	m.log.LogAttrs(context.Background(), level, msg, attrs...)
}

// hungUp recognises a node that closed the connection instead of answering, as
// memberlist does when the label is another. The kernel turns the close into a
// reset if bytes were on their way that the node had not read.
func hungUp(text string) bool {
	for _, end := range []string{"EOF", "connection reset by peer", "broken pipe"} {
		if strings.HasSuffix(text, end) {
			return true
		}
	}
	return false
}

// joinOnce resolves the list and joins every address that is not a member yet.
// It returns how many addresses it tried and how many answered; err is the last
// failure.
func (m *Mesh) joinOnce(ctx context.Context) (found, reached int, err error) {
	addrs, err := m.resolveJoin(ctx)
	if len(addrs) == 0 {
		return 0, 0, err
	}
	var mu sync.Mutex // guards reached and err
	var wg sync.WaitGroup
	slots := make(chan struct{}, joinParallel)
	for _, a := range addrs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			_, joinErr := m.list().Join([]string{a.String()})
			mu.Lock()
			defer mu.Unlock()
			if joinErr == nil {
				reached++
				return
			}
			err = firstLineError(joinErr)
		})
	}
	wg.Wait()
	return len(addrs), reached, err
}

// firstLineError takes memberlist's list of errors down to the error itself.
func firstLineError(err error) error {
	type lister interface{ WrappedErrors() []error }
	if l, ok := err.(lister); ok && len(l.WrappedErrors()) > 0 {
		return l.WrappedErrors()[0]
	}
	return err
}

// resolveJoin returns the addresses of Config.Join that are neither this node
// nor members, in random order and without repeats.
func (m *Mesh) resolveJoin(ctx context.Context) ([]netip.AddrPort, error) {
	known := m.knownAddrs()
	var out []netip.AddrPort
	var lastErr error
	for _, j := range m.cfg.Join {
		host, port, err := SplitJoin(j)
		if err != nil {
			lastErr = err
			continue
		}
		var ips []netip.Addr
		if ip, err := netip.ParseAddr(host); err == nil {
			ips = []netip.Addr{ip}
		} else if ips, err = lookup(ctx, host); err != nil {
			lastErr = fmt.Errorf("resolve gossip node %s: %w", host, err)
			continue
		}
		for _, ip := range ips {
			a := netip.AddrPortFrom(ip.Unmap(), port)
			if !known[a] {
				known[a] = true
				out = append(out, a)
			}
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), maxJoinAddrs)], lastErr
}

func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}
