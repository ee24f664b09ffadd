package doctor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// serving is a server of one kind of answer.
func serving(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func saying(t *testing.T, text string) string {
	t.Helper()
	return serving(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
}

// TestStrangers: what answers in a part's place is named for what it is, and nothing that it says does harm.
func TestStrangers(t *testing.T) {
	empty := saying(t, "{}")
	page := saying(t, "<html>")
	drip := serving(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			fmt.Fprint(w, " ")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond)
		}
	})
	endless := serving(t, func(w http.ResponseWriter, r *http.Request) {
		for block := []byte(strings.Repeat("vllm:x 1\n", 1000)); r.Context().Err() == nil; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	away := serving(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://login.example/?from=x", http.StatusFound)
	})
	c := Default()
	c.Timeout = time.Second
	c.Gateway = []string{empty, page, drip, endless, away}
	c.Agent = c.Gateway
	c.Engine = append(c.Gateway, saying(t, "vllm:something_new 1\n"))
	began := time.Now()
	r := examine(t, c)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, kind := range []string{"gateway ", "agent ", "engine "} {
		expect(t, r, kind+empty, "reachable", Failed, "status 200, but")
		expect(t, r, kind+page, "reachable", Failed, "status 200, but")
		expect(t, r, kind+drip, "reachable", Failed, "no answer in time")
		expect(t, r, kind+endless, "reachable", Failed, "")
		expect(t, r, kind+away, "reachable", Failed, "status 302 (go to https://login.example/?from=x)")
	}
	expect(t, r, "engine "+c.Engine[5], "reachable", Failed, "without the metrics")
	if n := r.Count(Failed); n != 16 {
		t.Errorf("%d failed, want one of each", n)
	}
	x := &exam{cfg: c}
	for _, base := range c.Engine {
		if x.answers(t.Context(), base, partGateway) || x.answers(t.Context(), base, partAgent) {
			t.Errorf("%s is taken for a part of ours", base)
		}
	}
}

// TestPartsMixedUp: an agent is no gateway that lacks everything.
func TestPartsMixedUp(t *testing.T) {
	f := startFleet(t, options{})
	c := f.config()
	c.Gateway, c.Agent = []string{f.agent}, []string{f.gateway}
	r := examine(t, c)
	expect(t, r, "gateway", "reachable", Failed, "the agent listens there")
	expect(t, r, "agent", "reachable", Failed, "the gateway listens there")
	x := &exam{cfg: c}
	if !x.answers(t.Context(), f.gateway, partGateway) || !x.answers(t.Context(), f.agent, partAgent) {
		t.Error("a gateway or an agent is not recognized")
	}
}

// TestEngineWithItsOwnCertificate: on the own host it is not checked, as the agent does not.
func TestEngineWithItsOwnCertificate(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	c := Default()
	c.Engine = []string{s.URL}
	expect(t, examine(t, c), "engine", "reachable", Failed, "status 404")
}

// TestReportIsClean: no passwords, no escape sequences and no novels, whoever wrote them; JSON that can be read.
func TestReportIsClean(t *testing.T) {
	hostile := saying(t, `{"time":"2026-01-01T00:00:00Z","version":"v1\u001b[2J\n  ok everything","engines":[{"engine":"http://u:s3cret@10.0.0.1:8000","kv_events":"`+strings.Repeat("x", 1<<20)+`","ranks":[{}]},{"ranks":null,"mesh":null}],"gpu":{"fault":"a\r\nb"}}`)
	c := Default()
	c.Agent = []string{strings.Replace(hostile, "http://", "http://me:s3cret@", 1)}
	c.Engine = []string{"http://me:s3cret@127.0.0.1:1"}
	r := examine(t, c)
	var text strings.Builder
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{text.String(), string(b)} {
		if strings.Contains(out, "s3cret") || strings.ContainsAny(out, "\x1b\r") || len(out) > 32<<10 {
			t.Errorf("%d bytes: %.3000s", len(out), out)
		}
	}
	expect(t, r, "agent http://***@", "reachable", OK, "")
}

// TestManyNodes: those that are not probed are counted.
func TestManyNodes(t *testing.T) {
	c := Default()
	c.Timeout = 100 * time.Millisecond
	for i := range maxProbes + 5 {
		c.Join = append(c.Join, fmt.Sprintf("127.0.0.%d:1", i+1))
	}
	expect(t, examine(t, c), "gossip", "others", NotChecked, "5 more nodes")
}
