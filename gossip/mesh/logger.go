package mesh

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Log attribute keys of this package.
const (
	keyNode       = "node"
	keyRole       = "role"
	keyPool       = "pool"
	keyAddr       = "addr"
	keyErr        = "err"
	keyText       = "text"
	keyRemedy     = "remedy"
	keyCount      = "count"
	keySuppressed = "suppressed"
)

const (
	remedyKey     = "give every agent and gateway the same gossip key file; when rotating, add the new key everywhere before it becomes the first one"
	remedyLabel   = "give every agent and gateway of the fleet the same gossip label"
	remedyHandoff = "this node gets more packets than it can take in: give it more CPU, or run fewer gateways per pod"
)

// logEvery is the shortest time between two log lines of one kind: one wrong
// key makes memberlist complain with every packet.
const logEvery = 30 * time.Second

// logKind sorts memberlist's log lines.
type logKind int

const (
	logOther logKind = iota
	logKey
	logLabel
	logHandoff
	logHungUp // no line of memberlist's: see Mesh.logJoinFailure
	logKinds
)

// logWriter turns memberlist's log lines into slog records: levels are mapped,
// lines that mean a wrong key, a wrong label or a full queue are counted and said
// in words with what to do, and repeats are held back. memberlist may log while it
// holds its locks, so nothing here calls back into it.
type logWriter struct {
	log   *slog.Logger
	count [logKinds]atomic.Uint64

	mu   sync.Mutex // guards what follows
	last [logKinds]time.Time
	held [logKinds]uint64
}

// Write takes one log line; it never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	level, text := splitLevel(string(line))
	kind := classify(text)
	w.count[kind].Add(1)
	if kind == logOther && level < slog.LevelWarn {
		w.log.LogAttrs(context.Background(), level, "memberlist", slog.String(keyText, text))
		return len(line), nil
	}
	suppressed, ok := w.allow(kind, time.Now())
	if !ok {
		return len(line), nil
	}
	attrs := []slog.Attr{slog.String(keyText, text), slog.Uint64(keyCount, w.count[kind].Load()), slog.Uint64(keySuppressed, suppressed)}
	switch kind {
	case logKey:
		w.log.LogAttrs(context.Background(), slog.LevelError, "another node uses a different gossip key", append(attrs, slog.String(keyRemedy, remedyKey))...)
	case logLabel:
		w.log.LogAttrs(context.Background(), slog.LevelError, "another node uses a different gossip label", append(attrs, slog.String(keyRemedy, remedyLabel))...)
	case logHandoff:
		w.log.LogAttrs(context.Background(), slog.LevelWarn, "gossip packets dropped, queue full", append(attrs, slog.String(keyRemedy, remedyHandoff))...)
	default:
		w.log.LogAttrs(context.Background(), level, "memberlist", attrs...)
	}
	return len(line), nil
}

// allow says whether a line of this kind may be logged now, and how many were
// held back before it.
func (w *logWriter) allow(kind logKind, now time.Time) (suppressed uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.last[kind].IsZero() && now.Sub(w.last[kind]) < logEvery {
		w.held[kind]++
		return 0, false
	}
	suppressed, w.held[kind] = w.held[kind], 0
	w.last[kind] = now
	return suppressed, true
}

// splitLevel maps memberlist's "[LEVEL] memberlist: text". Its errors are mostly
// single packets or peers that went away, hence no more than warnings here; its
// warnings and notices concern developers.
func splitLevel(line string) (slog.Level, string) {
	line = strings.TrimSpace(line)
	level := slog.LevelWarn
	if rest, ok := strings.CutPrefix(line, "["); ok {
		if name, text, ok := strings.Cut(rest, "] "); ok {
			line = text
			if name != "ERR" && name != "ERROR" {
				level = slog.LevelDebug
			}
		}
	}
	return level, strings.TrimPrefix(line, "memberlist: ")
}

// keyFaults are the texts of memberlist (security.go and net.go, v0.7.0) for
// packets and streams made with another key, or with none.
var keyFaults = [...]string{
	"no installed keys could decrypt",
	"Decrypt packet failed",
	"encryption is configured but remote state is not encrypted",
	"remote state is encrypted and encryption is not configured",
}

func isKeyFault(text string) bool {
	for _, f := range keyFaults {
		if strings.Contains(text, f) {
			return true
		}
	}
	return false
}

func classify(text string) logKind {
	switch {
	case isKeyFault(text):
		return logKey
	case strings.Contains(text, "with unacceptable label"):
		return logLabel
	case strings.Contains(text, "handler queue full"):
		return logHandoff
	}
	return logOther
}
