package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// TestTraceIsRecordedAndPlayed: what grapevine trace takes down of a fleet's traffic is what was sent, and the simulator finds
// in it what the engines found in their caches.
func TestTraceIsRecordedAndPlayed(t *testing.T) {
	f := up(t, cluster.Options{})
	path := filepath.Join(t.TempDir(), "trace.jsonl.zst")
	tool := exec.Command(binary, "trace", "--gateway", f.Gateways[0].Admin, "-o", path, "--json")
	var out, log bytes.Buffer
	tool.Stdout, tool.Stderr = &out, &log
	if err := tool.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	defer func() {
		if !ended {
			_ = tool.Process.Kill()
			_ = tool.Wait()
		}
	}()
	eventually(t, 10*time.Second, "the recording", func() error {
		m, err := f.Metrics(f.Gateways[0].Admin + "/metrics")
		if err == nil && m["grapevine_gateway_recordings"] != 1 {
			err = os.ErrNotExist
		}
		return err
	})
	reqs := documents(3, 4)
	results := send(t, f.Gateways[0].URL, reqs, nil)
	noErrors(t, results)
	time.Sleep(time.Second) // the gateway speaks four times a second
	if err := tool.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := tool.Wait()
	ended = true
	if err != nil {
		t.Fatalf("grapevine trace: %v: %s", err, log.String())
	}
	var sum struct {
		Requests       int
		PromptTokens   int `json:"prompt_tokens"`
		UnknownPrompts int `json:"unknown_prompts"`
		Lost, Unserved int
	}
	if err := json.Unmarshal(out.Bytes(), &sum); err != nil {
		t.Fatal(err)
	}
	prompts := 0
	for _, r := range reqs {
		prompts += r.PromptTokens()
	}
	if sum.Requests != len(reqs) || sum.PromptTokens != prompts || sum.UnknownPrompts+sum.Lost+sum.Unserved != 0 {
		t.Errorf("recorded %+v, want %d requests with %d tokens, all known", sum, len(reqs), prompts)
	}

	tr, err := trace.Read(path, trace.Grapevine, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sessions, follow := map[string]bool{}, 0
	for _, r := range tr.Requests {
		name, _, _ := strings.Cut(r.Session, ".") // calls that overlap are in lanes of their session
		sessions[name] = true
		if r.Previous >= 0 && r.Think > 0 {
			follow++
		}
	}
	if len(sessions) != 3 || follow < len(reqs)/2 {
		t.Errorf("%d sessions, %d calls after another one; want 3 and most of %d", len(sessions), follow, len(reqs))
	}

	cached := 0
	for _, r := range results {
		cached += r.CachedTokens
	}
	play := exec.Command(binary, "sim", "--trace", path, "--format", "grapevine", "--pods", "3", "--load", "0.3", "--policy", "grapevine", "--json", "-")
	log.Reset()
	play.Stderr = &log
	text, err := play.Output()
	if err != nil {
		t.Fatalf("grapevine sim: %v: %s", err, log.String())
	}
	var runs []struct {
		Requests int
		HitRatio float64 `json:"hit_ratio"`
	}
	if err := json.Unmarshal(text, &runs); err != nil {
		t.Fatal(err)
	}
	got := float64(cached) / float64(prompts)
	if len(runs) != 1 || runs[0].Requests != len(reqs) || runs[0].HitRatio < got-0.05 || runs[0].HitRatio > got+0.05 {
		t.Errorf("simulated %+v; the engines found %.3f in their caches", runs, got)
	}
}
