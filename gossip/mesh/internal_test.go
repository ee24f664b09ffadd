package mesh

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMetaRoundTrip(t *testing.T) {
	for _, m := range []meta{
		{role: RoleAgent, wireVersion: 1, seedFingerprint: 0xdeadbeef, pool: "llama-70b"},
		{role: RolePicker, pool: strings.Repeat("p", maxPoolBytes)},
	} {
		b := m.append(nil)
		if len(b) > 512 {
			t.Errorf("meta takes %d bytes, memberlist panics over 512", len(b))
		}
		got, err := decodeMeta(append(b, "of a later version"...))
		if err != nil || got != m {
			t.Errorf("got %+v, %v; want %+v", got, err, m)
		}
	}
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add(meta{role: RoleAgent, wireVersion: 1, pool: "p"}.append(nil))
	f.Add([]byte{})
	f.Add([]byte{1, 1, 1, 0, 0, 0, 0, 200})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		again, err := decodeMeta(m.append(nil))
		if err != nil || again != m {
			t.Errorf("round trip: got %+v, %v; want %+v", again, err, m)
		}
	})
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte("# a\n" + strings.Repeat("ab", 32) + "\nAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n"))
	f.Add([]byte("nonsense"))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := parseKeys(b)
		if err == nil && len(keys) == 0 {
			t.Error("neither keys nor an error")
		}
		for _, k := range keys {
			if len(k) != keyBytes {
				t.Errorf("key of %d bytes", len(k))
			}
		}
	})
}

func TestLogLinesAreSortedAndHeldBack(t *testing.T) {
	var b bytes.Buffer
	w := &logWriter{log: slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, line := range []string{
		"[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=1.2.3.4:5\n",
		"[ERR] memberlist: failed to receive: remote state is encrypted and encryption is not configured from=1.2.3.4:5\n",
		`[ERR] memberlist: discarding packet with unacceptable label "x": from=1.2.3.4:5` + "\n",
		"[WARN] memberlist: handler queue full, dropping message (8) from=1.2.3.4:5\n",
		"[DEBUG] memberlist: Stream connection from=1.2.3.4:5\n",
		"[ERR] memberlist: Failed to send gossip to 1.2.3.4: no route\n",
		"[ERR] memberlist: Failed to send gossip to 1.2.3.5: no route\n",
	} {
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	var levels []string
	for line := range strings.Lines(b.String()) {
		_, rest, _ := strings.Cut(line, "level=")
		level, _, _ := strings.Cut(rest, " ")
		levels = append(levels, level)
	}
	if diff := cmp.Diff([]string{"ERROR", "ERROR", "WARN", "DEBUG", "WARN"}, levels); diff != "" {
		t.Errorf("levels, one key line and one failed send held back (-want +got):\n%s\n%s", diff, b.String())
	}
	if got := w.count[logKey].Load(); got != 2 {
		t.Errorf("%d key faults counted, want 2", got)
	}
	if held, ok := w.allow(logKey, time.Now().Add(2*logEvery)); !ok || held != 1 {
		t.Errorf("after the pause: held %d, allowed %v; want 1, true", held, ok)
	}
}

// Whoever refuses a label closes the connection. How that looks depends on what was on its way, and it may come after another
// failure: it is said in each case, until this node has joined once.
func TestHangUpIsSaidInWords(t *testing.T) {
	tests := []struct {
		name   string
		err    string
		joined bool
		want   bool
	}{
		{"closed", "failed to join 10.0.0.1:7946: EOF", false, true},
		{"closed with bytes unread", "failed to join 10.0.0.1:7946: read tcp 10.0.0.2:5->10.0.0.1:7946: read: connection reset by peer", false, true},
		{"closed while writing", "failed to join 10.0.0.1:7946: write tcp 10.0.0.2:5->10.0.0.1:7946: write: broken pipe", false, true},
		{"nobody there", "failed to join 10.0.0.1:7946: dial tcp 10.0.0.1:7946: connect: connection refused", false, false},
		{"has joined before", "failed to join 10.0.0.1:7946: EOF", true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b bytes.Buffer
			m := &Mesh{log: slog.New(slog.NewTextHandler(&b, nil)), logs: &logWriter{}}
			m.logJoinFailure(errors.New("failed to join 10.0.0.1:7946: i/o timeout"), !tt.joined, !tt.joined)
			for range 3 {
				m.logJoinFailure(errors.New(tt.err), !tt.joined, false)
			}
			if got := strings.Count(b.String(), "same gossip label"); got > 1 || (got == 1) != tt.want {
				t.Errorf("said %d times, want %v:\n%s", got, tt.want, b.String())
			}
		})
	}
}

func TestPickAddress(t *testing.T) {
	nets := func(ss ...string) (out []net.Addr) {
		for _, s := range ss {
			out = append(out, &net.IPNet{IP: net.ParseIP(s), Mask: net.CIDRMask(24, 128)})
		}
		return out
	}
	tests := []struct {
		name  string
		addrs []net.Addr
		want  string
	}{
		{"private before public", nets("127.0.0.1", "8.8.8.8", "10.1.2.3", "fd00::1"), "10.1.2.3"},
		{"IPv4 before IPv6", nets("::1", "2001:db8::5", "8.8.8.8"), "8.8.8.8"},
		{"IPv6-only pod", nets("127.0.0.1", "::1", "fe80::1", "fd00::7"), "fd00::7"},
		{"loopback only", nets("127.0.0.1", "::1"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := pickAddress(tt.addrs)
			if ok != (tt.want != "") || ok && got.String() != tt.want {
				t.Errorf("got %v, want %q", got, tt.want)
			}
		})
	}
}
