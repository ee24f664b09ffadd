package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
)

// socketMode lets the group of the process connect to a unix socket: Envoy in the same pod.
const socketMode = 0o660

// listen opens host:port or unix:///path. A socket that a dead process left behind is removed.
func listen(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix://")
	if !isUnix {
		return net.Listen("tcp", address)
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("listen on %s: it is there and no socket", address)
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen on %s: another process does", address)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, socketMode); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// certificateAge is how old what was read of the certificate's files may be.
const certificateAge = time.Second

// certificate is one that lies in files, read again when they change. Safe for concurrent use.
type certificate struct {
	certFile, keyFile string
	failed            func(error) // is told of files that can't be used; the certificate before them stays

	mu      sync.Mutex // guards what follows
	current *tls.Certificate
	checked time.Time
	state   [2]fileState
}

// fileState changes when a file does.
type fileState struct {
	modified time.Time
	size     int64
}

func newCertificate(certFile, keyFile string, failed func(error)) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, failed: failed}
	if err := c.load(time.Now()); err != nil {
		return nil, err
	}
	return c, nil
}

// load reads the files if they have changed.
func (c *certificate) load(now time.Time) error {
	c.checked = now
	var state [2]fileState
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("read certificate: %w", err)
		}
		state[i] = fileState{info.ModTime(), info.Size()}
	}
	if c.current != nil && state == c.state {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	c.current, c.state = &pair, state
	return nil
}

// get is for tls.Config.GetCertificate.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= certificateAge {
		if err := c.load(now); err != nil {
			c.failed(err)
		}
	}
	return c.current, nil
}

// localAddress is where Envoy reached this gateway, "" if that means nothing elsewhere.
func localAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.LocalAddr.(*net.TCPAddr); ok {
			return a.String()
		}
	}
	return ""
}
