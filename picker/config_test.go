package picker

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	if err := Default().Scaled(50).Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesEveryFault(t *testing.T) {
	c := Default()
	c.Endpoints = []string{"good:1", "ftp://bad"}
	c.Hold.DeadlineShare = 1.5
	c.Hold.MaxScan = 0
	c.Score.Spread = math.NaN()
	c.Policy.Shares = map[string]float64{"prefix": 1, "random": 1}
	c.Failure.BackoffMax = time.Millisecond
	c.Receipts, c.Speculation.Blocks = 2_000_000_000, 2_000_000_000
	c.Gossip.Enabled, c.Gossip.Bind, c.Gossip.Advertise = true, "7946", "10.0.0.1:gossip"
	joined, ok := c.Validate().(interface{ Unwrap() []error })
	if !ok {
		t.Fatal("Validate does not join")
	}
	var got []string
	for _, err := range joined.Unwrap() {
		var f interface {
			Field() string
			Value() string
			Problem() string
			Remedy() string
		}
		if !errors.As(err, &f) || f.Remedy() == "" || f.Problem() == "" {
			t.Errorf("%v has no field, value, problem and remedy", err)
			continue
		}
		if text := err.Error(); !strings.Contains(text, f.Field()) || !strings.Contains(text, f.Remedy()) {
			t.Errorf("%q does not name %s", text, f.Field())
		}
		got = append(got, f.Field()+"="+f.Value())
	}
	want := []string{
		"endpoints=ftp://bad", "policy=random=1", "hold.deadline-share=1.5", "hold.max-scan=0", "score.spread=NaN", "speculation.blocks=2000000000",
		"gossip.bind=7946", "gossip.advertise=10.0.0.1:gossip", "failure.backoff-max=1ms", "receipts=2000000000",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if _, err := New(c); err == nil {
		t.Error("New took the configuration")
	}
}

func TestParseEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1:8000":           "10.0.0.1:8000 http://10.0.0.1:8000",
		"http://10.0.0.1:8000/":   "10.0.0.1:8000 http://10.0.0.1:8000",
		"https://pod.svc":         "pod.svc:443 https://pod.svc",
		"[fd00::1]:8000":          "[fd00::1]:8000 http://[fd00::1]:8000",
		"http://[FD00:0:0::1]":    "[fd00::1]:80 http://[FD00:0:0::1]",
		"http://user@host:1":      "",
		"http://host:1/v1":        "",
		"unix:///run/engine.sock": "",
		"":                        "",
	} {
		address, link, err := parseEndpoint(in)
		if got := strings.TrimSpace(address + " " + link); got != want || (err != nil) != (want == "") {
			t.Errorf("parseEndpoint(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestSeedFile(t *testing.T) {
	write := func(s string) string {
		name := filepath.Join(t.TempDir(), "seed")
		if err := os.WriteFile(name, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	c := Default()
	c.SeedFile = write("0xdeadbeef\n")
	p, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.hasher.Fingerprint(), blockhash.NewHasher(0xdeadbeef).Fingerprint(); got != want {
		t.Errorf("fingerprint %x, want %x", got, want)
	}
	c.SeedFile = write("s3cret")
	if _, err := New(c); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("error %v: want one that does not show the seed", err)
	}
	c.SeedFile = "missing"
	if _, err := New(c); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want not exist", err)
	}
}

func TestPolicyShares(t *testing.T) {
	s := newShares(Policy{Shares: map[string]float64{PolicyPrefix: 70, PolicyLeastLoad: 20, PolicyRoundRobin: 10}})
	got := map[string]int{}
	for i := range 10000 {
		session := fmt.Sprint("session ", i)
		first := s.of(session)
		got[first]++
		if again := s.of(session); again != first {
			t.Fatalf("%s had policy %s, then %s", session, first, again)
		}
	}
	for name, want := range map[string]int{PolicyPrefix: 7000, PolicyLeastLoad: 2000, PolicyRoundRobin: 1000} {
		if d := got[name] - want; d < -200 || d > 200 {
			t.Errorf("%s got %d of 10000 sessions, want about %d", name, got[name], want)
		}
	}
}

func TestPolicies(t *testing.T) {
	f := newFleet(t, 4, nil)
	ids := prompt(1, 2000)
	f.holds(1, ids)
	set := func(name string) {
		t.Helper()
		if err := f.SetPolicy(Policy{Shares: map[string]float64{name: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	set(PolicyRoundRobin)
	for id, n := range f.spread(12, Request{TokenIDs: ids}) {
		if n != 3 {
			t.Errorf("round robin: %s got %d of 12", id, n)
		}
	}
	set(PolicyLeastLoad)
	got := map[string]int{}
	for i := range 12 {
		d := f.pick(Request{ID: fmt.Sprint(i), TokenIDs: ids})
		if got[d.Endpoint.ID]++; d.Policy != PolicyLeastLoad {
			t.Errorf("policy %s", d.Policy)
		}
	}
	for id, n := range got {
		if n != 3 {
			t.Errorf("least load: %s got %d of 12", id, n)
		}
	}
	set(PolicyPrefix)
	if d := f.pick(Request{ID: "p", TokenIDs: ids}); d.Endpoint.ID != id(1) {
		t.Errorf("prefix: went to %s", d.Endpoint.ID)
	}
	if err := f.SetPolicy(Policy{}); err == nil {
		t.Error("a policy without shares was taken")
	}
}

func TestSpeculationOff(t *testing.T) {
	f := newFleet(t, 2, func(c *Config) { c.Policy.Speculation = false })
	f.pick(Request{ID: "a", TokenIDs: prompt(1, 2000)})
	if d := f.pick(Request{ID: "b", TokenIDs: prompt(1, 2000)}); d.MatchedBlocks != 0 {
		t.Errorf("matched %d blocks that nobody reported", d.MatchedBlocks)
	}
}

func TestReceiptsRing(t *testing.T) {
	f := newFleet(t, 20, func(c *Config) { c.Receipts, c.ReceiptCandidates = 3, 5 })
	for i := range 5 {
		f.pick(Request{ID: fmt.Sprint(i), PromptTokens: 100})
	}
	var got []string
	for _, r := range f.Receipts(10) {
		got = append(got, r.RequestID)
		if len(r.Candidates) != 5 || r.Considered != 20 {
			t.Errorf("receipt %s has %d of %d candidates, want 5 of 20", r.RequestID, len(r.Candidates), r.Considered)
		}
		chosen := 0
		for _, c := range r.Candidates {
			if c.Endpoint == r.Endpoint {
				chosen++
			}
		}
		if chosen != 1 {
			t.Errorf("receipt %s shows the chosen endpoint %d times", r.RequestID, chosen)
		}
	}
	if diff := cmp.Diff([]string{"4", "3", "2"}, got); diff != "" {
		t.Errorf("receipts (-want +got):\n%s", diff)
	}
	if _, ok := f.Receipt("1"); ok {
		t.Error("receipt 1 is still there")
	}
	r, err := f.Explain(t.Context(), Request{ID: "what if", PromptTokens: 100})
	if err != nil || len(r.Candidates) != 20 || r.Endpoint == "" {
		t.Errorf("Explain: %d candidates, endpoint %q, %v", len(r.Candidates), r.Endpoint, err)
	}
	if _, ok := f.Receipt("what if"); ok || f.Status().Endpoints[0].Outstanding > 5 {
		t.Error("Explain left a trace")
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	f := newFleet(t, 3, func(c *Config) { c.Registerer = reg })
	d := f.pick(Request{ID: "a", PromptTokens: 100})
	f.Done(d, answered(0, 100))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range families {
		for _, x := range m.Metric {
			switch {
			case x.Gauge != nil:
				got[m.GetName()] += x.Gauge.GetValue()
			case x.Counter != nil:
				got[m.GetName()] += x.Counter.GetValue()
			case x.Histogram != nil:
				got[m.GetName()] += float64(x.Histogram.GetSampleCount())
			}
		}
	}
	for name, want := range map[string]float64{
		"grapevine_endpoints": 3, "grapevine_endpoints_reporting": 3, "grapevine_picks_total": 1, "grapevine_hold_seconds": 1,
		"grapevine_held_requests": 0, "grapevine_prediction_error_tokens": 1, "grapevine_endpoint_trust_ratio": 3,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v, want %v", name, v, want)
		}
	}
	if _, err := New(Config{Registerer: reg}); err == nil {
		t.Error("New took an empty configuration")
	}
}
