package demo

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/load"
)

func result(ttft time.Duration, cached int, headers ...string) load.Result {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return load.Result{Status: 200, PromptTokens: 1000, CachedTokens: cached, TTFT: ttft, Latency: ttft, Header: h}
}

func TestEmulatedTTFT(t *testing.T) {
	tests := []struct {
		name string
		r    load.Result
		want float64
	}{
		{"engine's time counts as emulated, the rest as measured", result(12*time.Millisecond, 0, "X-Engine-Ttft-Ms", "100", "X-Engine-Wall-Ms", "10"), 102},
		{"waiting for an engine is emulated time too", result(32*time.Millisecond, 0, "X-Engine-Ttft-Ms", "100", "X-Engine-Wall-Ms", "10", "X-Grapevine-Held-Ms", "20"), 302},
		{"clocks that disagree take nothing off", result(5*time.Millisecond, 0, "X-Engine-Ttft-Ms", "100", "X-Engine-Wall-Ms", "10"), 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := EmulatedTTFT(&tt.r, 10); got != tt.want {
				t.Errorf("got %g ms, want %g", got, tt.want)
			}
		})
	}
}

func TestRow(t *testing.T) {
	failed := load.Result{Err: errors.New("refused")}
	r, own := row("documents", "grapevine", []load.Result{
		result(time.Millisecond, 960, "X-Grapevine-Rung", "digest", "X-Grapevine-Matched-Blocks", "60", "X-Grapevine-Digest-Blocks", "50", "X-Grapevine-Predicted-Cached-Tokens", "960", "X-Grapevine-Gateway-Ms", "2"),
		result(time.Millisecond, 0, "X-Grapevine-Rung", "digest", "X-Grapevine-Matched-Blocks", "0", "X-Grapevine-Digest-Blocks", "0", "X-Grapevine-Predicted-Cached-Tokens", "16"),
		failed,
	}, 10)
	if r.Requests != 3 || r.Errors != 1 || r.FirstError != "refused" || r.Cold != 1 || r.HitRatio != 0.48 || r.Predicted != 1 {
		t.Errorf("got %+v", r)
	}
	if r.MatchedByRung["digest"] != 50 || r.MatchedByRung["speculation"] != 10 || len(r.MatchedByRung) != 2 {
		t.Errorf("matched by rung: %v, want 50 by digest and 10 by speculation", r.MatchedByRung)
	}
	if len(own) != 2 || r.GatewayMS.P99 != 2 {
		t.Errorf("gateway's own time: %v, %+v", own, r.GatewayMS)
	}
	rep := Report{Clock: "H200 time", Workloads: []Row{r}}
	var out bytes.Buffer
	rep.WriteTable(&out)
	for _, want := range []string{"documents", "grapevine", "48.0 %", "first error: refused"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestRequestsNamesTheWorkloads(t *testing.T) {
	for _, name := range WorkloadNames() {
		if reqs, err := Requests(name, 0.1, load.DefaultVocabulary()); err != nil || len(reqs) == 0 {
			t.Errorf("%s: %d requests, %v", name, len(reqs), err)
		}
	}
	if _, err := Requests("nothing", 1, load.DefaultVocabulary()); err == nil || !strings.Contains(err.Error(), "multi-turn") {
		t.Errorf("error %v does not name the workloads", err)
	}
}
