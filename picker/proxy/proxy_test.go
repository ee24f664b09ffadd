package proxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noIDs routes everything by load, as a model without a tokenizer does.
type noIDs struct{}

func (noIDs) Resolve(_ context.Context, req *openai.Request, _ string) (prompt.Result, error) {
	return prompt.Result{Rung: "none", EstimatedTokens: req.EstimatedTokens()}, nil
}

func (noIDs) Status() prompt.Status { return prompt.Status{} }

// gateway is a proxy before fake engines.
type gateway struct {
	*httptest.Server
	proxy  *Proxy
	picker *picker.Picker
}

func newGateway(t *testing.T, cfg Config, engines ...string) *gateway {
	t.Helper()
	pc := picker.Default()
	pc.Endpoints = engines
	pc.Policy.Shares = map[string]float64{picker.PolicyRoundRobin: 1}
	p, err := picker.New(pc)
	if err != nil {
		t.Fatal(err)
	}
	px, err := New(cfg, p, noIDs{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("picker: %v", err)
		}
	})
	s := httptest.NewServer(px.Handler())
	t.Cleanup(func() {
		s.Close()
		cancel()
		wg.Wait()
		px.Close()
	})
	return &gateway{s, px, p}
}

func engine(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func post(t *testing.T, url, body string) (*http.Response, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read answer: %v after %q", err, text)
	}
	http.DefaultClient.CloseIdleConnections()
	return resp, string(text)
}

const (
	chatPath   = "/v1/chat/completions"
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	plainBody  = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	roleEvent  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":null}` + "\n\n"
	firstEvent = `data: {"choices":[{"index":0,"delta":{"content":"one"}}],"usage":null}` + "\n\n"
	nextEvent  = `data: {"choices":[{"index":0,"delta":{"content":"two"},"finish_reason":"stop"}],"usage":null}` + "\n\n"
	usageEvent = `data: {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":2,"total_tokens":22,"prompt_tokens_details":{"cached_tokens":16}}}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
)

func send(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range events {
		fmt.Fprint(w, e)
		w.(http.Flusher).Flush()
	}
}

// die cuts the connection to the gateway.
func die(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, not an orderly end
		}
		conn.Close()
	}
}

func TestUsageIsAskedForAndTakenOut(t *testing.T) {
	var got atomic.Pointer[map[string]any]
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("engine's body: %v", err)
		}
		got.Store(&body)
		send(w, roleEvent, firstEvent, nextEvent, usageEvent, doneEvent)
	})
	cfg := Default()
	cfg.ResponseHeaders = true
	g := newGateway(t, cfg, e.URL)
	tests := []struct {
		name, body string
		usage      bool
	}{
		{"client does not ask", streamBody, false},
		{"client asks", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}`, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			resp, text := post(t, g.URL+chatPath, tc.body)
			if options, _ := (*got.Load())["stream_options"].(map[string]any); options["include_usage"] != true {
				t.Errorf("engine was not asked for usage: %v", *got.Load())
			}
			if has := strings.Contains(text, `"usage"`); has != tc.usage {
				t.Errorf("answer has usage: %v, want %v:\n%s", has, tc.usage, text)
			}
			for _, want := range []string{`"one"`, `"two"`, "[DONE]"} {
				if !strings.Contains(text, want) {
					t.Errorf("answer lacks %s:\n%s", want, text)
				}
			}
			receipt, ok := g.picker.Receipt(resp.Header.Get("X-Request-Id"))
			if !ok || receipt.Outcome == nil || receipt.Outcome.CachedTokens != 16 {
				t.Errorf("receipt: %v, outcome %+v, want 16 cached tokens", ok, receipt.Outcome)
			}
		})
	}
}

// countingListener counts the writes to its connections.
type countingListener struct {
	net.Listener
	writes *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.writes}, err
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func TestHeadersLeaveInOneWriteWithTheFirstEvent(t *testing.T) {
	release := make(chan struct{})
	e := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		send(w, firstEvent)
		<-release
		send(w, nextEvent, doneEvent)
	})
	cfg := Default()
	cfg.HeaderWait = time.Second // a slow machine must not decide this test
	g := newGateway(t, cfg, e.URL)
	var writes atomic.Int64
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: g.proxy.Handler()}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(countingListener{l, &writes}) })
	defer wg.Wait()
	defer s.Close()
	resp, err := http.Post("http://"+l.Addr().String()+chatPath, "application/json", strings.NewReader(streamBody))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, `"one"`) {
		t.Fatalf("first line %q, %v", line, err)
	}
	if n := writes.Load(); n != 1 {
		t.Errorf("headers and first event took %d writes, want 1", n)
	}
	close(release)
	_, _ = io.Copy(io.Discard, resp.Body)
	http.DefaultClient.CloseIdleConnections()
}

func TestHeadersDoNotWaitForASlowFirstEvent(t *testing.T) {
	release := make(chan struct{})
	e := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-release
		send(w, firstEvent, doneEvent)
	})
	g := newGateway(t, Default(), e.URL)
	resp, err := http.Post(g.URL+chatPath, "application/json", strings.NewReader(streamBody))
	if err != nil { // returns with the headers: the event is still held back
		t.Fatal(err)
	}
	close(release)
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !strings.Contains(string(text), `"one"`) {
		t.Errorf("stream %q lacks the event", text)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestNoDelayedAcknowledgements: a stall for a delayed acknowledgement shows as 40 ms per event.
func TestNoDelayedAcknowledgements(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		send(w, roleEvent, firstEvent, nextEvent, usageEvent, doneEvent)
	})
	g := newGateway(t, Default(), e.URL)
	median := func(url string) time.Duration {
		var took []time.Duration
		for range 31 {
			start := time.Now()
			post(t, url+chatPath, streamBody)
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	direct, through := median(e.URL), median(g.URL)
	if added := through - direct; added > 30*time.Millisecond {
		t.Errorf("the gateway adds %v to a stream of five events (median), direct %v: it waits for something", added, direct)
	}
}

func TestClientGoneEndsTheEnginesRequest(t *testing.T) {
	ended := make(chan struct{})
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		send(w, firstEvent)
		<-r.Context().Done()
		close(ended)
	})
	g := newGateway(t, Default(), e.URL)
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+chatPath, strings.NewReader(streamBody))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	resp.Body.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("engine's request goes on after the client left")
	}
	http.DefaultClient.CloseIdleConnections()
}

// A client that leaves while its endpoint can't be reached says nothing of the endpoint.
func TestClientGoneBeforeTheConnection(t *testing.T) {
	g := newGateway(t, Default(), refusing(t))
	g.proxy.direct.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	c := &call{w: httptest.NewRecorder(), r: httptest.NewRequestWithContext(ctx, http.MethodPost, chatPath, nil), body: []byte(plainBody)}
	c.decision.Endpoint.URL = g.proxy.engines()[0]
	if out, result := g.proxy.send(c); result != answered || !out.Cancelled || out.Connected || c.status != statusClientGone {
		t.Errorf("outcome %+v, result %d, status %d: want one of a client that left, of an endpoint that was not reached", out, result, c.status)
	}
}

func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func TestRefusedConnectionGoesToTheNextEndpoint(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, _ *http.Request) { send(w, firstEvent, doneEvent) })
	g := newGateway(t, Default(), refusing(t), e.URL, refusing(t))
	for i := range 6 {
		if resp, text := post(t, g.URL+chatPath, streamBody); resp.StatusCode != http.StatusOK || !strings.Contains(text, "[DONE]") {
			t.Errorf("request %d: %d %s", i, resp.StatusCode, text)
		}
	}
	dead := newGateway(t, Default(), refusing(t))
	if resp, text := post(t, dead.URL+chatPath, streamBody); resp.StatusCode != http.StatusBadGateway || !strings.Contains(text, "no endpoint could be reached") {
		t.Errorf("only dead endpoints: %d %s", resp.StatusCode, text)
	}
}

func TestResetBeforeTheFirstEvent(t *testing.T) {
	tests := []struct {
		name     string
		headers  bool // the engine has sent headers before it breaks off
		healthy  bool // it answers /health afterwards
		body     string
		want     int
		requests int64 // that reach engines
	}{
		{"retried on another engine", false, true, streamBody, http.StatusOK, 2},
		{"retried after headers", true, true, streamBody, http.StatusOK, 2},
		{"plain answer retried", false, true, plainBody, http.StatusOK, 2},
		{"not retried where the engine died", false, false, streamBody, http.StatusBadGateway, 1},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var requests atomic.Int64
			h := func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/health" {
					if !tc.healthy {
						die(w)
					}
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				if requests.Add(1) > 1 {
					send(w, firstEvent, doneEvent)
					return
				}
				if tc.headers {
					w.Header().Set("Content-Type", "text/event-stream")
					w.(http.Flusher).Flush()
					time.Sleep(30 * time.Millisecond) // longer than headers wait
				}
				die(w)
			}
			g := newGateway(t, Default(), engine(t, h).URL, engine(t, h).URL)
			resp, text := post(t, g.URL+chatPath, tc.body)
			if resp.StatusCode != tc.want || requests.Load() != tc.requests {
				t.Errorf("got %d after %d requests, want %d after %d: %s", resp.StatusCode, requests.Load(), tc.want, tc.requests, text)
			}
		})
	}
}

func TestRequestThatKillsEnginesIsRefused(t *testing.T) {
	var requests atomic.Int64
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1") {
			requests.Add(1)
		}
		die(w)
	})
	g := newGateway(t, Default(), e.URL)
	for i := range 4 {
		deadline := time.Now().Add(5 * time.Second)
		for { // the endpoint is out for a moment after each death
			resp, text := post(t, g.URL+chatPath, streamBody)
			if resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(text, "two engines died") {
				if i < 2 {
					t.Fatalf("refused after %d deaths", i)
				}
				break
			}
			if requests.Load() > int64(i) && i < 2 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("try %d: %d %s", i, resp.StatusCode, text)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if n := requests.Load(); n != 2 {
		t.Errorf("engine got the request %d times, want 2", n)
	}
}

func TestBreakAfterTheFirstEventEndsInAnErrorEvent(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			send(w, firstEvent)
			die(w)
		}
	})
	g := newGateway(t, Default(), e.URL)
	resp, text := post(t, g.URL+chatPath, streamBody)
	if resp.StatusCode != http.StatusOK || !strings.Contains(text, `"one"`) || !strings.Contains(text, `"error"`) || !strings.Contains(text, "broke off") {
		t.Errorf("got %d:\n%s", resp.StatusCode, text)
	}
}

func TestAnswersToBadRequests(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, _ *http.Request) { send(w, firstEvent, doneEvent) })
	cfg := Default()
	cfg.MaxBodyBytes = 1 << 12
	g := newGateway(t, cfg, e.URL)
	g.picker.SetModels(map[string][]string{e.URL: {"m", "other"}})
	empty := newGateway(t, cfg)
	tests := []struct {
		name, method, url, body string
		status                  int
		says                    string
	}{
		{"malformed", "POST", g.URL + chatPath, `{"model":`, 400, ""},
		{"unknown model", "POST", g.URL + chatPath, `{"model":"x","messages":[]}`, 404, "m, other"},
		{"too large", "POST", g.URL + chatPath, `{"model":"m","messages":[],"x":"` + strings.Repeat("a", 1<<12) + `"}`, 413, "4096"},
		{"method", "GET", g.URL + chatPath, "", 405, "POST"},
		{"unknown path", "POST", g.URL + "/v1/nothing", "{}", 404, "--allow-paths"},
		{"dev endpoint", "POST", g.URL + "/reset_prefix_cache", "", 404, "--dev-endpoints"},
		{"empty pool", "POST", empty.URL + chatPath, streamBody, 503, "--endpoints"},
		{"health of an empty pool", "GET", empty.URL + "/health", "", 503, "empty"},
		{"health", "GET", g.URL + "/health", "", 200, ""},
		{"models", "GET", g.URL + "/v1/models", "", 200, `"other"`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequest(tc.method, tc.url, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tc.status || !strings.Contains(string(text), tc.says) {
				t.Errorf("got %d %s, want %d with %q", resp.StatusCode, text, tc.status, tc.says)
			}
			if tc.status >= 400 {
				var shape struct {
					Error struct{ Message, Type string } `json:"error"`
				}
				if err := json.Unmarshal(text, &shape); err != nil || shape.Error.Message == "" || shape.Error.Type == "" {
					t.Errorf("not in OpenAI's shape: %s", text)
				}
			}
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestTooManyRequestsAtOnce(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	e := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-release
		send(w, firstEvent, doneEvent)
	})
	cfg := Default()
	cfg.MaxConcurrent = 1
	g := newGateway(t, cfg, e.URL)
	var wg sync.WaitGroup
	wg.Go(func() { post(t, g.URL+chatPath, streamBody) })
	<-entered
	resp, text := post(t, g.URL+chatPath, streamBody)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("got %d, Retry-After %q: %s", resp.StatusCode, resp.Header.Get("Retry-After"), text)
	}
	close(release)
	wg.Wait()
}

func TestHeaders(t *testing.T) {
	var got atomic.Pointer[http.Header]
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		h := r.Header.Clone()
		got.Store(&h)
		w.Header().Set("X-Engine", "yes")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "no")
		fmt.Fprint(w, `{"choices":[],"usage":{"prompt_tokens":1}}`)
	})
	g := newGateway(t, Default(), e.URL)
	req, _ := http.NewRequest(http.MethodPost, g.URL+chatPath, strings.NewReader(plainBody))
	req.Header.Set("X-Grapevine-Rung", "forged")
	req.Header.Set("X-Data-Parallel-Rank", "7")
	req.Header.Set("X-Request-Id", "abc")
	req.Header.Set("Authorization", "Bearer k")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	h := *got.Load()
	for name, want := range map[string]string{"X-Grapevine-Rung": "", "X-Data-Parallel-Rank": "", "X-Request-Id": "abc", "Authorization": "Bearer k"} {
		if h.Get(name) != want {
			t.Errorf("engine got %s %q, want %q", name, h.Get(name), want)
		}
	}
	if resp.Header.Get("X-Request-Id") != "abc" || resp.Header.Get("X-Engine") != "yes" || resp.Header.Get("X-Hop") != "" || resp.Header.Get("X-Grapevine-Rung") != "" {
		t.Errorf("client got %v", resp.Header)
	}
	if !bytes.Contains(text, []byte(`"prompt_tokens":1`)) {
		t.Errorf("body %s", text)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestDevEndpointsGoToAll(t *testing.T) {
	var asked atomic.Int64
	ok := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, `{"success":true}`)
	})
	busy := engine(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, `{"success":false}`)
	})
	cfg := Default()
	cfg.DevEndpoints = true
	g := newGateway(t, cfg, ok.URL, busy.URL, refusing(t))
	resp, text := post(t, g.URL+"/reset_prefix_cache", "")
	if resp.StatusCode != http.StatusBadGateway || asked.Load() != 2 {
		t.Errorf("got %d after asking %d engines, want 502 after 2: one cannot be reached", resp.StatusCode, asked.Load())
	}
	var said struct{ Endpoints []answerOf }
	if err := json.Unmarshal([]byte(text), &said); err != nil || len(said.Endpoints) != 3 {
		t.Errorf("answers: %v in %s", err, text)
	}
}

func TestDrain(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, _ *http.Request) { send(w, firstEvent, doneEvent) })
	g := newGateway(t, Default(), e.URL)
	g.proxy.Drain()
	resp, err := http.Get(g.URL + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("health while draining: %d, want 503", resp.StatusCode)
	}
	w := httptest.NewRecorder()
	g.proxy.Admin(prometheus.NewRegistry()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	if w.Code != http.StatusOK {
		t.Errorf("healthz while draining: %d, want 200: a drain must not be cut short by a restart", w.Code)
	}
	if resp, text := post(t, g.URL+chatPath, streamBody); resp.StatusCode != http.StatusOK {
		t.Errorf("request while draining: %d %s", resp.StatusCode, text)
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	cfg := Config{MaxBodiesBytes: -1, AllowPaths: []string{"x", "/v1/completions", "/v9/{x", "/a b", "/c", "/c", "/d/"}, HeaderWait: time.Hour, MaxRetryShare: 2}
	err := cfg.Validate()
	for _, want := range []string{
		"max-body-bytes", "max-bodies-bytes", "max-concurrent", "dial-timeout", "client-timeout", "header-wait", "max-retry-share",
		`"x" is no plain path`, `"/v1/completions" is served already`, `"/v9/{x" is no plain path`, `"/a b" is no`, `"/c" is served already`, `"/d/" is no`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
}

// raw writes text on a connection of its own and returns what comes back until the gateway closes it.
func raw(t *testing.T, g *gateway, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", g.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("read: %v after %q", err, got)
	}
	return string(got)
}

func TestBodiesThatDoNotCome(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, _ *http.Request) { t.Error("the engine was asked") })
	cfg := Default()
	cfg.MaxBodyBytes = 2 << 10
	cfg.ClientTimeout = 100 * time.Millisecond
	g := newGateway(t, cfg, e.URL)
	const head = "POST /v1/completions HTTP/1.1\r\nHost: g\r\n"
	for _, tt := range []struct{ name, text, want, not string }{
		{"announced too large", head + "Content-Length: 2049\r\n\r\n", "413", ""},
		{"announced far too large, asking first", head + "Expect: 100-continue\r\nContent-Length: 9223372036854775807\r\n\r\n", "413", "100 Continue"},
		{"too large in chunks", head + "Transfer-Encoding: chunked\r\n\r\n801\r\n" + strings.Repeat(" ", 2049), "413", ""},
		{"no chunks", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", "400", ""},
		{"stops half-way", head + "Content-Length: 20\r\n\r\n{", "408", ""},
		{"stops between chunks", head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", "408", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := raw(t, g, tt.text)
			if !strings.HasPrefix(got, "HTTP/1.1 "+tt.want) || !strings.Contains(got, `{"error":{"message":"`) || tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("got %q, want status %s in OpenAI's shape", got, tt.want)
			}
		})
	}
}

func TestBodiesTogetherHaveALimit(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == chatPath {
			arrived <- struct{}{}
			<-goOn
		}
	})
	cfg := Default()
	cfg.MaxBodyBytes, cfg.MaxBodiesBytes = 4<<10, 6<<10
	g := newGateway(t, cfg, e.URL)
	body := `{"messages":[],"user":"` + strings.Repeat("x", 3<<10) + `"}`
	var wg sync.WaitGroup
	wg.Go(func() { post(t, g.URL+chatPath, body) })
	<-arrived
	resp, text := post(t, g.URL+chatPath, body)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || !strings.Contains(text, "--max-bodies-bytes") {
		t.Errorf("second body: %d %s", resp.StatusCode, text)
	}
	if resp, text := post(t, g.URL+"/tokenize", `{"prompt":"x"}`); resp.StatusCode != http.StatusOK {
		t.Errorf("small body: %d %s", resp.StatusCode, text)
	}
	close(goOn)
	wg.Wait()
	g.Server.Close() // waits for the requests' end on this side
	if left := g.proxy.bodies.Load(); left != 0 {
		t.Errorf("%d bytes are still counted", left)
	}
}

func TestClientTimeoutIsNotTheAnswers(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		time.Sleep(150 * time.Millisecond)
		send(w, firstEvent)
		time.Sleep(150 * time.Millisecond)
		send(w, nextEvent, doneEvent)
	})
	cfg := Default()
	cfg.ClientTimeout = 100 * time.Millisecond
	g := newGateway(t, cfg, e.URL)
	for range 2 { // on one connection
		resp, err := http.Post(g.URL+chatPath, "application/json", strings.NewReader(streamBody))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.HasSuffix(string(text), doneEvent) {
			t.Errorf("got %q, %v", text, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestClientThatTakesNothingInIsGone(t *testing.T) {
	ended := make(chan struct{})
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		_, _ = io.Copy(io.Discard, r.Body)
		event := "data: " + strings.Repeat("x", 1<<20) + "\n\n"
		for r.Context().Err() == nil {
			send(w, event)
		}
	})
	cfg := Default()
	cfg.ClientTimeout = 100 * time.Millisecond
	g := newGateway(t, cfg, e.URL)
	conn, err := net.Dial("tcp", g.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(streamBody), streamBody)
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the engine's request goes on")
	}
}

func TestAllowedPathsAreServed(t *testing.T) {
	cfg := Default()
	cfg.AllowPaths = []string{"/v1/audio", "/v1/chat"}
	e := engine(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
	g := newGateway(t, cfg, e.URL)
	if resp, text := post(t, g.URL+"/v1/audio", `{}`); resp.StatusCode != 200 || text != "/v1/audio" {
		t.Errorf("got %d %q", resp.StatusCode, text)
	}
}
