package enginemetrics

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrUnsupported is returned, wrapped, where the engine has no such endpoint.
var ErrUnsupported = errors.New("the engine does not offer it")

// ErrTooLarge is returned, wrapped, where an answer is over the limit.
var ErrTooLarge = errors.New("answer too large")

// Limits of answers: the metrics of 16 ranks with all histograms are about 1 MiB.
const (
	maxMetricsBytes = 8 << 20
	maxJSONBytes    = 4 << 20
)

// Client asks one engine. It keeps one connection and uses no more. Safe for
// concurrent use, but the calls queue for the connection.
type Client struct {
	base string
	key  string // API key, "" none
	http *http.Client
}

// NewClient returns a client for the engine at base, e.g.
// "http://127.0.0.1:8000". Each call ends after timeout at the latest.
func NewClient(base string, timeout time.Duration) *Client {
	return &Client{
		base: strings.TrimRight(base, "/"),
		http: &http.Client{
			Timeout: timeout,
			Transport: &http.Transport{
				DialContext:           (&net.Dialer{Timeout: timeout}).DialContext,
				MaxConnsPerHost:       1,
				MaxIdleConnsPerHost:   1,
				IdleConnTimeout:       time.Minute,
				ResponseHeaderTimeout: timeout,
				DisableCompression:    true, // the engine's CPU is worth more than bytes inside the pod
				TLSClientConfig:       TLS(base),
			},
			// An engine doesn't redirect; following would leave the pod.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// TLS is how an engine at base is asked by https. On the own host its certificate
// proves nothing, and is made for another name: it is not checked.
func TLS(base string) *tls.Config {
	u, err := url.Parse(base)
	if err != nil {
		return nil
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: u.Hostname() == "localhost" || err == nil && ip.IsLoopback()}
}

// WithKey returns the client with an API key, which vLLM wants under /v1 where it
// was given --api-key.
func (c *Client) WithKey(key string) *Client {
	c.key = key
	return c
}

// Close drops the idle connection.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Metrics reads /metrics into buf, which may be nil, and returns it grown.
func (c *Client) Metrics(ctx context.Context, buf []byte) ([]byte, error) {
	return c.get(ctx, "/metrics", buf[:0], maxMetricsBytes)
}

// Model is an entry of /v1/models.
type Model struct {
	ID          string `json:"id"`
	Root        string `json:"root"`          // path; of an adapter its own, which vLLM hashes from 0.31.0 on
	Parent      string `json:"parent"`        // of an adapter the base model's ID, else ""
	MaxModelLen int    `json:"max_model_len"` // tokens; 0 unknown
}

// Models lists the served models and adapters.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	var out struct {
		Data []Model `json:"data"`
	}
	if err := c.getJSON(ctx, "/v1/models", &out); err != nil {
		return nil, err
	}
	return out.Data, nil
}

// Version is the engine's version.
func (c *Client) Version(ctx context.Context) (string, error) {
	var out struct {
		Version string `json:"version"`
	}
	if err := c.getJSON(ctx, "/version", &out); err != nil {
		return "", err
	}
	return out.Version, nil
}

// EventSource is where one rank publishes its KV events.
type EventSource struct {
	Rank           int    `json:"-"`
	Endpoint       string `json:"endpoint"`
	ReplayEndpoint string `json:"replay_endpoint"` // "" none
	Topic          string `json:"topic"`
	BufferSteps    int    `json:"buffer_steps"`
}

// EventSources reads /kv_event_sources (vLLM from 0.31.0 on), rising by rank.
// Events that are switched off give none.
func (c *Client) EventSources(ctx context.Context) ([]EventSource, error) {
	var byRank map[string]EventSource
	if err := c.getJSON(ctx, "/kv_event_sources", &byRank); err != nil {
		return nil, err
	}
	out := make([]EventSource, 0, len(byRank))
	for rank := range maxRank + 1 {
		if src, ok := byRank[strconv.Itoa(rank)]; ok {
			src.Rank = rank
			out = append(out, src)
		}
	}
	return out, nil
}

func (c *Client) getJSON(ctx context.Context, path string, into any) error {
	body, err := c.get(ctx, path, nil, maxJSONBytes)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// get appends the body of an answer to dst.
func (c *Client) get(ctx context.Context, path string, dst []byte, limit int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return dst, fmt.Errorf("get %s: %w", path, err)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return dst, fmt.Errorf("get %s: %w", path, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusMethodNotAllowed:
		drain(resp.Body)
		return dst, fmt.Errorf("get %s: status %d: %w", path, resp.StatusCode, ErrUnsupported)
	case resp.StatusCode != http.StatusOK:
		drain(resp.Body)
		return dst, fmt.Errorf("get %s: status %d", path, resp.StatusCode)
	}
	dst, err = readAll(resp.Body, dst, limit)
	if err != nil {
		return dst, fmt.Errorf("get %s: %w", path, err)
	}
	return dst, nil
}

// readAll appends r to dst, which is reused from call to call.
func readAll(r io.Reader, dst []byte, limit int) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if len(dst) > limit {
			return dst, fmt.Errorf("over %d bytes: %w", limit, ErrTooLarge)
		}
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}

// drain reads a short body to its end, so that the connection can be kept.
func drain(r io.Reader) { _, _ = io.CopyN(io.Discard, r, 4<<10) }
