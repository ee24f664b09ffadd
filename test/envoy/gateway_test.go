package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
)

// fleet is a shipped file with our gateway as the picker, in front of emulated engines with agents.
type fleet struct {
	*cluster.Fleet
	*proxy
}

// fleetOptions say how a fleet differs from three engines at ten times their speed.
type fleetOptions struct {
	engines    int
	speedup    float64
	gateway    []string
	engineArgs []string
	edit       func(*bootstrap)
}

func newFleet(t *testing.T, file string, o fleetOptions) *fleet {
	t.Helper()
	program(t, envoyVar)
	listen := pickerAddress(t, file)
	c := cluster.Options{
		Name: "pool", Exe: program(t, binVar), Dir: logDir(t), Engines: max(o.engines, 1), Speedup: 10, Policy: "prefix", Model: "tiny", Ports: &portPool,
		EngineArgs:  o.engineArgs,
		GatewayArgs: append([]string{"--listen=", "--ext-proc-listen", listen.flag, "--log-level", "debug"}, o.gateway...),
	}
	if o.engines == 0 {
		c.Engines = 3
	}
	if o.speedup > 0 {
		c.Speedup = o.speedup
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f, err := cluster.Up(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Down()
		if t.Failed() {
			for _, g := range f.Gateways {
				t.Logf("%s ends with:\n%s", g.Name, g.Tail(15))
			}
		}
	})
	b := readBootstrap(t, file)
	b.endpoints("grapevine", listen.envoy)
	b.endpoints("pods", engineAddresses(f)...)
	if o.edit != nil {
		o.edit(b)
	}
	p := startEnvoy(t, b)
	p.healthy(t, "grapevine", 1)
	return &fleet{f, p}
}

func engineAddresses(f *cluster.Fleet) []string {
	var out []string
	for _, e := range f.Engines {
		out = append(out, strings.TrimPrefix(e.URL, "http://"))
	}
	return out
}

// engine finds the one with an address.
func (f *fleet) engine(address string) *cluster.Engine {
	for _, e := range f.Engines {
		if e.URL == "http://"+address {
			return e
		}
	}
	panic("no engine " + address)
}

// receipt is what the gateway noted of a request.
type receipt struct {
	RequestID             string  `json:"request_id"`
	Endpoint              string  `json:"endpoint"`
	PromptTokens          int     `json:"prompt_tokens"`
	PredictedCachedTokens int     `json:"predicted_cached_tokens"`
	HeldMs                float64 `json:"held_ms"`
	Outcome               *struct {
		Status       int    `json:"status"`
		Error        string `json:"error"`
		CachedTokens int    `json:"cached_tokens"`
		OutputTokens int    `json:"output_tokens"`
	} `json:"outcome"`
}

// receipts of the first gateway, newest first.
func (f *fleet) receipts(t *testing.T) []receipt {
	t.Helper()
	var all []receipt
	if err := f.GetJSON(f.Gateways[0].Admin+"/receipts", &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// last is the newest receipt, when its request has ended.
func (f *fleet) last(t *testing.T) receipt {
	t.Helper()
	var r receipt
	eventually(t, 5*time.Second, "the end of the last request in the gateway", func() error {
		all := f.receipts(t)
		if len(all) == 0 || all[0].Outcome == nil {
			return fmt.Errorf("%d receipts", len(all))
		}
		r = all[0]
		return nil
	})
	return r
}

// status is what waits and runs as a gateway has it.
type status struct {
	Endpoints []struct {
		ID          string `json:"id"`
		Outstanding int    `json:"outstanding"`
		Running     int    `json:"running"`
	} `json:"endpoints"`
	Held struct {
		Requests int `json:"requests"`
	} `json:"held"`
}

func (f *fleet) load() (outstanding, held int, err error) {
	var l status
	err = f.GetJSON(f.Gateways[0].Admin+"/status", &l)
	for _, e := range l.Endpoints {
		outstanding += e.Outstanding
	}
	return outstanding, l.Held.Requests, err
}

// reaches waits until the gateway has so many requests at engines and so many held.
func (f *fleet) reaches(t *testing.T, limit time.Duration, outstanding, held int) {
	t.Helper()
	eventually(t, limit, fmt.Sprintf("%d requests outstanding and %d held", outstanding, held), func() error {
		o, h, err := f.load()
		if err == nil && (o != outstanding || h != held) {
			err = fmt.Errorf("%d and %d", o, h)
		}
		return err
	})
}

// words makes a text of n words, another one for each seed.
func words(seed, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "word%d-%d ", seed, i)
	}
	return b.String()
}

// chat is the body of a chat request.
func chat(text string, maxTokens int, stream bool) string {
	body := object{"model": "tiny", "max_tokens": maxTokens, "messages": []any{object{"role": "user", "content": text}}}
	if stream {
		body["stream"], body["stream_options"] = true, object{"include_usage": true}
	}
	text2, _ := json.Marshal(body) // strings and numbers
	return string(text2)
}

// tokens is the body of a completion request of n tokens, others for each seed.
func tokens(seed, n, maxTokens int) string {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = 100 + (seed*7919+i*31+i/97)%900
	}
	body, _ := json.Marshal(object{"model": "tiny", "prompt": ids, "max_tokens": maxTokens}) // numbers
	return string(body)
}

// usage is what an engine reports in its answer.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	Details          struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func usageOf(t *testing.T, body string) usage {
	t.Helper()
	var a struct {
		Usage usage `json:"usage"`
	}
	if !strings.HasPrefix(body, "{") { // a stream: usage is in the last event but one
		for line := range strings.Lines(body) {
			if data, ok := strings.CutPrefix(line, "data: "); ok && strings.Contains(data, `"prompt_tokens"`) {
				body = data
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil || a.Usage.PromptTokens == 0 {
		t.Fatalf("no usage in %.300s: %v", body, err)
	}
	return a.Usage
}

// The gateway's choice is Envoy's: a prompt goes where its prefix is, and the engine finds in its cache what was predicted.
func TestPrefixIsFound(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			f := newFleet(t, file, fleetOptions{})
			for i, stream := range []bool{false, true} {
				text := words(i, 1500)
				first := usageOf(t, mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 8, stream)).body)
				r := f.last(t)
				if first.Details.CachedTokens != r.PredictedCachedTokens || r.Outcome.CachedTokens != r.PredictedCachedTokens || r.Outcome.Status != 200 {
					t.Errorf("new prompt: the engine reports %+v, the gateway notes %+v, %+v", first, r, r.Outcome)
				}
				home := r.Endpoint
				for range 3 {
					// Its blocks have to be known before others may be asked.
					time.Sleep(300 * time.Millisecond)
					text += words(10+i, 30)
					got := usageOf(t, mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 8, stream)).body)
					r := f.last(t)
					if r.Endpoint != home || r.PredictedCachedTokens < 1000 || got.Details.CachedTokens != r.PredictedCachedTokens ||
						r.Outcome.CachedTokens != got.Details.CachedTokens || r.Outcome.OutputTokens != got.CompletionTokens {
						t.Errorf("known prompt: first at %s, the engine reports %+v, the gateway notes %+v, %+v", home, got, r, r.Outcome)
					}
				}
			}
			var stats struct{ Requests int }
			sum := 0
			for _, e := range f.Engines {
				if err := f.GetJSON(e.URL+"/debug/stats", &stats); err != nil {
					t.Fatal(err)
				}
				sum += stats.Requests
			}
			if sum < 8 {
				t.Errorf("%d requests at the engines, want 8", sum)
			}
		})
	}
}

func TestOneMegabyte(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			f := newFleet(t, file, fleetOptions{})
			body := strings.TrimSuffix(chat(words(1, 15_000), 4, false), "}")
			body += `,"metadata":{"note":"` + strings.Repeat("x", 1<<20-len(body)) + `"}}`
			for i := range 2 {
				u := usageOf(t, mustPost(t, http.StatusOK, f.url+chatPath, body).body)
				r := f.last(t)
				if r.PredictedCachedTokens != u.Details.CachedTokens || (i == 1) != (u.Details.CachedTokens > 50_000) {
					t.Errorf("request %d: predicted %d cached tokens, the engine reports %+v", i, r.PredictedCachedTokens, u)
				}
				time.Sleep(500 * time.Millisecond)
			}
		})
	}
}

// A client that leaves while the engine works for it is noticed.
func TestClientLeavesEngine(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			f := newFleet(t, file, fleetOptions{speedup: 1})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := post(ctx, f.url+chatPath, chat("hello", 5000, true))
				done <- err
			}()
			f.reaches(t, 5*time.Second, 1, 0)
			// It stays so while the answer comes: the picker's stream has long ended.
			time.Sleep(2 * time.Second)
			f.reaches(t, 0, 1, 0)
			cancel()
			if err := <-done; err == nil {
				t.Fatal("the answer was whole")
			}
			f.reaches(t, 2*time.Second, 0, 0)
			eventually(t, 2*time.Second, "the engines to stop", func() error {
				for _, e := range f.Engines {
					m, err := f.Metrics(e.URL + "/metrics")
					if err != nil || m["vllm:num_requests_running"] != 0 {
						return fmt.Errorf("%v running, %v", m["vllm:num_requests_running"], err)
					}
				}
				return nil
			})
			if r := f.last(t); r.Outcome.Error == "" {
				t.Errorf("the receipt says nothing of it: %+v", r.Outcome)
			}
		})
	}
}

// A request is held until an engine can start it, longer than pings may be missing; one whose client leaves meanwhile is let go.
func TestHeld(t *testing.T) {
	for _, file := range []string{"full-duplex.yaml", "sidecar.yaml"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, file, fleetOptions{engines: 1, speedup: 1})
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() { // about ten seconds of prefill
				if _, err := post(t.Context(), f.url+"/v1/completions", tokens(1, 70_000, 1)); err != nil {
					t.Error(err)
				}
			})
			f.reaches(t, 5*time.Second, 1, 0)

			ctx, cancel := context.WithCancel(t.Context())
			wg.Go(func() {
				if a, err := post(ctx, f.url+"/v1/completions", tokens(2, 20_000, 1)); err == nil {
					t.Errorf("status %d for a client that left", a.status)
				}
			})
			f.reaches(t, 5*time.Second, 1, 1)
			cancel()
			f.reaches(t, time.Second, 1, 0)

			a := mustPost(t, http.StatusOK, f.url+"/v1/completions", tokens(3, 1000, 1))
			usageOf(t, a.body)
			r := f.last(t)
			if r.HeldMs < 6000 {
				t.Errorf("held for %.0f ms: %+v", r.HeldMs, r)
			}
			t.Logf("held for %.0f ms", r.HeldMs)
			f.reaches(t, 2*time.Second, 0, 0)
		})
	}
}

// Buffered, no request is held: Envoy would not wait.
func TestBufferedIsNotHeld(t *testing.T) {
	f := newFleet(t, "buffered.yaml", fleetOptions{engines: 1, speedup: 1})
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range 2 {
		wg.Go(func() { _, _ = post(ctx, f.url+"/v1/completions", tokens(i, 30_000, 1)) })
		f.reaches(t, 5*time.Second, i+1, 0)
	}
}

// An engine that is gone is passed over: the client gets its answer from the next one on the list.
func TestEngineKilled(t *testing.T) {
	for _, file := range pickerFiles {
		t.Run(file, func(t *testing.T) {
			f := newFleet(t, file, fleetOptions{})
			text := words(1, 1500)
			mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 4, false))
			home := f.last(t).Endpoint
			time.Sleep(300 * time.Millisecond)
			f.engine(home).Kill()
			// It may or may not be known already that it is gone.
			for i := range 5 {
				sent := time.Now()
				usageOf(t, mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 4, i%2 == 0)).body)
				if took := time.Since(sent); took > 3*time.Second {
					t.Errorf("request %d took %v", i, took)
				}
			}
			tried := 0
			for _, r := range f.receipts(t)[:5] {
				if r.Endpoint == home {
					tried++
				}
			}
			if tried > 1 {
				t.Errorf("%d requests were sent to the engine that is gone", tried)
			}
		})
	}
}

// An engine that dies before it has answered: its requests are done elsewhere.
func TestEngineKilledAtWork(t *testing.T) {
	f := newFleet(t, "full-duplex.yaml", fleetOptions{speedup: 2})
	done := make(chan answer, 1)
	go func() {
		a, err := post(t.Context(), f.url+"/v1/completions", tokens(1, 30_000, 1))
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	f.reaches(t, 5*time.Second, 1, 0)
	time.Sleep(300 * time.Millisecond)
	var l status
	if err := f.GetJSON(f.Gateways[0].Admin+"/status", &l); err != nil {
		t.Fatal(err)
	}
	for _, e := range l.Endpoints {
		if e.Outstanding > 0 {
			f.engine(e.ID).Kill()
		}
	}
	if a := <-done; a.status != http.StatusOK || usageOf(t, a.body).PromptTokens != 30_000 {
		t.Errorf("status %d: %.300s", a.status, a.body)
	}
	f.reaches(t, 2*time.Second, 0, 0)
}

// A gateway that dies cuts no answer. While it is away, requests get what the file promises; after that the choice is right again.
func TestGatewayKilled(t *testing.T) {
	for file, down := range map[string]int{"full-duplex.yaml": 503, "buffered.yaml": 200, "sidecar.yaml": 503} {
		t.Run(file, func(t *testing.T) {
			f := newFleet(t, file, fleetOptions{speedup: 1})
			text := words(1, 1500)
			mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 4, false))
			home := f.last(t).Endpoint
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					a, err := post(t.Context(), f.url+chatPath, chat(words(i, 5), 100, true))
					if err != nil || a.status != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(a.body), "[DONE]") || usageOf(t, a.body).CompletionTokens != 100 {
						t.Errorf("a running answer was cut: status %d, %d bytes, %v", a.status, len(a.body), err)
					}
				})
			}
			f.reaches(t, 5*time.Second, 4, 0)
			f.Gateways[0].Kill()
			sent := time.Now()
			mustPost(t, down, f.url+chatPath, chat("hello", 4, false))
			if took := time.Since(sent); took > 2*time.Second {
				t.Errorf("answered %d after %v", down, took)
			}
			wg.Wait()
			f.healthy(t, "grapevine", 0)
			if err := f.Gateways[0].Start(); err != nil {
				t.Fatal(err)
			}
			f.healthy(t, "grapevine", 1)
			a := mustPost(t, http.StatusOK, f.url+chatPath, chat(text, 4, false))
			if r := f.last(t); r.Endpoint != home || usageOf(t, a.body).Details.CachedTokens != r.PredictedCachedTokens || r.PredictedCachedTokens < 1000 {
				t.Errorf("after the restart: prefix at %s, %+v", home, r)
			}
		})
	}
}

// A gateway that is told to end loses no request: those that it holds are sent on, and Envoy asks it no more.
func TestGatewayStops(t *testing.T) {
	f := newFleet(t, "full-duplex.yaml", fleetOptions{engines: 1, speedup: 1})
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			if a, err := post(t.Context(), f.url+"/v1/completions", tokens(i, 20_000, 1)); err != nil || a.status != http.StatusOK {
				t.Errorf("status %d, %v: %.200s", a.status, err, a.body)
			}
		})
	}
	eventually(t, 5*time.Second, "a request to be held", func() error {
		_, held, err := f.load()
		if err == nil && held == 0 {
			err = fmt.Errorf("none is")
		}
		return err
	})
	f.Gateways[0].Stop(30 * time.Second)
	wg.Wait()
}
