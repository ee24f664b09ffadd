package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/extproc"
)

// adviceOf asks a gateway that watches what it has seen.
func adviceOf(admin string) (a extproc.Advice, err error) {
	text, err := get(admin + "/status")
	if err != nil {
		return a, err
	}
	var s struct{ Advice *extproc.Advice }
	if err = json.Unmarshal([]byte(text), &s); err != nil {
		return a, err
	}
	if s.Advice == nil {
		return a, fmt.Errorf("%s/status has no advice", admin)
	}
	return *s.Advice, nil
}

// newAdvised is advise.yaml in front of emulated engines with agents. The other router is the constant picker, or Envoy's own
// round robin.
func newAdvised(t *testing.T, constant bool) *fleet {
	t.Helper()
	p := ports(t, 1)
	return newFleet(t, "advise.yaml", fleetOptions{gateway: []string{"--ext-proc-advise"}, edit: func(b *bootstrap) {
		b.endpoints("other-router", local(p[0]))
		if constant {
			var all []string
			for _, e := range at(b.cluster("pods"), "load_assignment", "endpoints", 0, "lb_endpoints").([]any) {
				all = append(all, fmt.Sprintf("127.0.0.1:%v", at(e, "endpoint", "address", "socket_address", "port_value")))
			}
			startConstant(t, local(p[0]), all...)
			return
		}
		m := b.connectionManager(0)
		m["http_filters"] = slices.DeleteFunc(m["http_filters"].([]any), func(f any) bool { return at(f, "name") == "other-router" })
	}})
}

// seen waits until so many requests have been seen to their ends.
func (f *fleet) seen(t *testing.T, n int) (a extproc.Advice) {
	t.Helper()
	eventually(t, 10*time.Second, fmt.Sprintf("%d requests to be seen", n), func() (err error) {
		if a, err = adviceOf(f.Gateways[0].Admin); err == nil && (a.Requests != n || a.InProgress > 0) {
			err = fmt.Errorf("advice is %+v", a)
		}
		return err
	})
	return a
}

// grapevine runs a command of the tool.
func grapevine(ctx context.Context, t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, program(t, binVar), args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("grapevine %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), err
}

// Each of a few conversations goes on for some turns, one after the other. What our gateway says that it would have found, what
// it says that whoever served had, and what that engine reports, has to fit together; the trace of it is played by the simulator.
func TestAdviseCompares(t *testing.T) {
	for name, constant := range map[string]bool{"constant picker": true, "round robin": false} {
		t.Run(name, func(t *testing.T) {
			f := newAdvised(t, constant)
			const conversations, turns = 4, 4
			file := filepath.Join(t.TempDir(), "trace.jsonl.gz")
			var summary struct {
				Requests       int `json:"requests"`
				BlockTokens    int `json:"block_tokens"`
				UnknownPrompts int `json:"unknown_prompts"`
			}
			var recording sync.WaitGroup
			recording.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				text, err := grapevine(ctx, t, "trace", "--gateway", f.Gateways[0].Admin, "--requests", fmt.Sprint(conversations*turns), "-o", file, "--json")
				if err == nil {
					err = json.Unmarshal([]byte(text), &summary)
				}
				if err != nil {
					t.Error(err)
				}
			})
			eventually(t, 10*time.Second, "the recording to begin", func() error {
				m, err := f.Metrics(f.Gateways[0].Admin + "/metrics")
				if err == nil && m["grapevine_gateway_recordings"] != 1 {
					err = fmt.Errorf("%v run", m["grapevine_gateway_recordings"])
				}
				return err
			})
			var found, asked int // as the client is told
			for i := range turns {
				for c := range conversations {
					u := usageOf(t, mustPost(t, http.StatusOK, f.url+"/v1/completions", tokens(c, 800*(i+1), 8)).body)
					found, asked = found+u.Details.CachedTokens, asked+u.PromptTokens
					time.Sleep(200 * time.Millisecond) // for the digests
				}
			}
			a := f.seen(t, conversations*turns)
			recording.Wait()
			text, err := grapevine(t.Context(), t, "status", "--admin", f.Gateways[0].Admin)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("\n%s", text)

			if a.Compared < conversations*turns*3/4 || a.Engines.Requests != conversations*turns {
				t.Errorf("%d of %d compared, %d told by engines: %+v", a.Compared, a.Requests, a.Engines.Requests, a)
			}
			if a.Engines.CachedTokens != int64(found) || a.Engines.PromptTokens != int64(asked) {
				t.Errorf("engines told clients of %d of %d tokens, the gateway of %+v", found, asked, a.Engines)
			}
			if c := a.Checked; max(c.TheirsTokens, c.CachedTokens)-min(c.TheirsTokens, c.CachedTokens) > c.PromptTokens/50 {
				t.Errorf("whoever served was predicted to have %d tokens, and had %d", c.TheirsTokens, c.CachedTokens)
			}
			ratio := float64(a.OursTokens) / float64(a.TheirsTokens)
			if constant && (ratio < 0.9 || ratio > 1.1) || !constant && ratio < 2 {
				t.Errorf("ours would have found %d tokens, theirs found %d", a.OursTokens, a.TheirsTokens)
			}
			if !strings.Contains(text, "no forecast") || !strings.Contains(text, "grapevine sim") {
				t.Error("the status does not say what the figures are")
			}

			if summary.Requests != conversations*turns || summary.UnknownPrompts != 0 {
				t.Errorf("recorded %+v", summary)
			}
			out, err := grapevine(t.Context(), t, "sim", "--trace", file, "--format", "grapevine", "--block-tokens", fmt.Sprint(summary.BlockTokens), "--pods", "3")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("\n%s", out)
		})
	}
}

// A gateway that is killed while it watches is missed by nobody, and goes on when it is back.
func TestAdviserKilled(t *testing.T) {
	f := newAdvised(t, true)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var mu sync.Mutex
	sent, altered := 0, 0
	for c := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				path, body := "/v1/completions", tokens(100*c+i, 500, 20)
				if i%2 > 0 {
					path, body = chatPath, chat(words(100*c+i, 200), 20, true)
				}
				a, err := post(t.Context(), f.url+path, body)
				mu.Lock()
				if sent++; err != nil || a.status != http.StatusOK || usageOf(t, a.body).CompletionTokens != 20 {
					altered++
				}
				mu.Unlock()
			}
		})
	}
	time.Sleep(time.Second)
	f.Gateways[0].Kill()
	time.Sleep(3 * time.Second)
	if err := f.Gateways[0].Start(); err != nil {
		t.Fatal(err)
	}
	f.healthy(t, "grapevine", 1)
	time.Sleep(time.Second)
	close(stop)
	wg.Wait()
	if altered > 0 {
		t.Errorf("%d of %d requests were not served as they should be", altered, sent)
	}
	a, err := adviceOf(f.Gateways[0].Admin)
	if err != nil || a.Requests == 0 {
		t.Errorf("after the restart: %+v, %v", a, err)
	}
	eventually(t, 5*time.Second, "all that was seen to end", func() error {
		if a, err = adviceOf(f.Gateways[0].Admin); err == nil && a.InProgress > 0 {
			err = fmt.Errorf("%d are in progress", a.InProgress)
		}
		return err
	})
	t.Logf("%d requests, %d altered or failed; the restarted gateway says %+v", sent, altered, a)
}
