package realengine

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestRealEngine runs the scenarios in order on one pair of engines: starting vLLM is what
// takes the time.
func TestRealEngine(t *testing.T) {
	f := newFleet(t, 2, adapterFlags(t)...)
	t.Run("GrowingChatsReturn", f.growingChats)
	t.Run("TextAndIDs", f.textAndIDs)
	t.Run("SaltAndAdapterStayApart", f.saltAndAdapter)
	t.Run("ResetThroughGateway", f.resetThroughGateway)
	t.Run("ResetThroughAgent", f.resetThroughAgent)
	t.Run("ResetByAnotherHand", f.resetByAnotherHand)
	t.Run("AgentLateHealsByReplay", f.lateAgent)
	t.Run("EngineRestart", f.engineRestart)
	t.Run("ShortRingIsPartial", f.shortRing)
	t.Logf("predicted = reported on %d of %d requests", exact, compared)
}

func message(role, content string) map[string]any {
	return map[string]any{"role": role, "content": content}
}

func (f *fleet) growingChats(t *testing.T) {
	var chats [4][]map[string]any
	var home [4]string
	for c := range chats {
		chats[c] = []map[string]any{
			message("system", "You answer in short sentences. "+words("rule", 60)),
			message("user", words(fmt.Sprintf("chat%dtopic", c), 150)),
		}
	}
	for turn := range 4 {
		for c := range chats {
			a := f.ask(t, "/v1/chat/completions", map[string]any{"messages": chats[c]})
			if turn == 0 {
				home[c] = a.endpoint
			} else {
				f.returned(t, a, home[c])
				if 2*a.cached < a.prompt {
					t.Errorf("chat %d turn %d: only %d of %d tokens cached", c, turn, a.cached, a.prompt)
				}
			}
			chats[c] = append(chats[c], message("assistant", a.text), message("user", words(fmt.Sprintf("more%d", turn), 20)))
		}
	}
	// The same request again: everything but the last partial block is cached.
	a := f.ask(t, "/v1/chat/completions", map[string]any{"messages": chats[0]})
	b := f.ask(t, "/v1/chat/completions", map[string]any{"messages": chats[0]})
	if want := (b.prompt - 1) / blockSize * blockSize; b.endpoint != a.endpoint || b.cached != want {
		t.Errorf("repeated chat: endpoint %s then %s, %d cached, want %d", a.endpoint, b.endpoint, b.cached, want)
	}
}

func ids(first, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = 300 + (first*7919+i*31)%3500
	}
	return out
}

func (f *fleet) textAndIDs(t *testing.T) {
	for p := range 3 {
		prompt := words(fmt.Sprintf("text%d", p), 120)
		first := f.ask(t, "/v1/completions", map[string]any{"prompt": prompt})
		again := f.ask(t, "/v1/completions", map[string]any{"prompt": prompt + " and then some more words"})
		f.returned(t, again, first.endpoint)
		if again.cached == 0 {
			t.Errorf("text %d: nothing cached", p)
		}
	}
	for p := range 3 {
		// An exact multiple of the block size: its last block is recomputed and exists twice.
		prompt := ids(p, 10*blockSize)
		first := f.ask(t, "/v1/completions", map[string]any{"prompt": prompt})
		again := f.ask(t, "/v1/completions", map[string]any{"prompt": prompt})
		longer := f.ask(t, "/v1/completions", map[string]any{"prompt": append(prompt, ids(90+p, 100)...)})
		f.returned(t, again, first.endpoint)
		f.returned(t, longer, first.endpoint)
		if again.cached != 9*blockSize || longer.cached != 10*blockSize {
			t.Errorf("ids %d: cached %d then %d, want %d then %d", p, again.cached, longer.cached, 9*blockSize, 10*blockSize)
		}
	}
}

func (f *fleet) saltAndAdapter(t *testing.T) {
	prompt := words("secret", 150)
	plain := f.ask(t, "/v1/completions", map[string]any{"prompt": prompt})
	if plain.cached != 0 {
		t.Fatalf("prompt is not new: %d cached", plain.cached)
	}
	variants := []map[string]any{
		{"prompt": prompt, "cache_salt": "a"},
		{"prompt": prompt, "cache_salt": "adapter"},
		{"prompt": prompt, "model": "adapter"},
		{"prompt": prompt, "model": "adapter", "cache_salt": "a"},
	}
	for _, v := range variants {
		if a := f.ask(t, "/v1/completions", v); a.predicted != 0 || a.cached != 0 {
			t.Errorf("%v %v matches another variant: predicted %d, cached %d", v["model"], v["cache_salt"], a.predicted, a.cached)
		}
	}
	for _, v := range append(variants, map[string]any{"prompt": prompt}) {
		if a := f.ask(t, "/v1/completions", v); a.cached == 0 {
			t.Errorf("%v %v: second time nothing is cached", v["model"], v["cache_salt"])
		}
	}
}

// warm sends a new prompt twice and returns its body: the second time it is cached.
func (f *fleet) warm(t *testing.T, name string) (map[string]any, answer) {
	t.Helper()
	body := map[string]any{"prompt": words(name, 150)}
	f.ask(t, "/v1/completions", body)
	a := f.ask(t, "/v1/completions", body)
	if a.cached == 0 {
		t.Fatalf("%s: second time nothing is cached", name)
	}
	return body, a
}

func (f *fleet) resetThroughGateway(t *testing.T) {
	body, _ := f.warm(t, "resetgateway")
	f.post(t, f.url+"/reset_prefix_cache", nil)
	if a := f.ask(t, "/v1/completions", body); a.predicted != 0 || a.cached != 0 {
		t.Errorf("after the reset: predicted %d, cached %d, want 0 and 0", a.predicted, a.cached)
	}
}

func (f *fleet) resetThroughAgent(t *testing.T) {
	body, _ := f.warm(t, "resetagent")
	for i := range f.agents {
		f.post(t, f.admins[i]+"/reset_prefix_cache", nil)
	}
	time.Sleep(settle)
	if a := f.ask(t, "/v1/completions", body); a.predicted != 0 || a.cached != 0 {
		t.Errorf("after the reset: predicted %d, cached %d, want 0 and 0", a.predicted, a.cached)
	}
}

func (f *fleet) resetByAnotherHand(t *testing.T) {
	body, _ := f.warm(t, "resetother")
	for _, e := range f.engines {
		f.post(t, e.url+"/reset_prefix_cache", nil)
	}
	// vLLM publishes the clear with the next stores only: make each engine store something.
	for i, e := range f.engines {
		f.post(t, e.url+"/v1/completions", map[string]any{"model": "tiny", "prompt": ids(200+i, 64), "max_tokens": 1})
	}
	time.Sleep(settle)
	if a := f.ask(t, "/v1/completions", body); a.predicted != 0 || a.cached != 0 {
		t.Errorf("after the next event: predicted %d, cached %d, want 0 and 0", a.predicted, a.cached)
	}
}

func (f *fleet) lateAgent(t *testing.T) {
	body, before := f.warm(t, "late")
	for i := range f.agents {
		f.agents[i].Kill()
	}
	for i := range f.agents {
		f.startAgent(t, i)
		f.waitRung(t, i, "digest")
		if e, err := f.endpoint(i); err != nil || e.Partial {
			t.Errorf("engine %d after a full replay: %+v, %v; want a complete picture", i, e, err)
		}
	}
	time.Sleep(2 * settle)
	if a := f.ask(t, "/v1/completions", body); a.endpoint != before.endpoint || a.predicted == 0 {
		t.Errorf("after the agents' restart: %s predicted %d, want %s and more than 0", a.endpoint, a.predicted, before.endpoint)
	}
}

func (f *fleet) engineRestart(t *testing.T) {
	body, before := f.warm(t, "restart")
	for i, e := range f.engines {
		if host(e.http) != before.endpoint {
			continue
		}
		e.kill()
		e.bufferSteps = 10 // for the last scenario
		e.start(t, fmt.Sprintf("vllm-%d-again", i))
		f.waitHealthy(t, e)
		time.Sleep(time.Second)
		for range 3 {
			f.ask(t, "/v1/completions", body) // predicted is compared with the truth
		}
		f.waitRung(t, i, "digest")
	}
}

func (f *fleet) shortRing(t *testing.T) {
	short := -1
	for i, e := range f.engines {
		if e.bufferSteps == 10 {
			short = i
		}
	}
	if short < 0 {
		t.Fatal("no engine with a short ring: the scenario before this one failed")
	}
	for n := range 14 { // more batches than the ring keeps
		f.post(t, f.engines[short].url+"/v1/completions", map[string]any{"model": "tiny", "prompt": ids(300+n, 64), "max_tokens": 1})
	}
	f.agents[short].Kill()
	f.startAgent(t, short)
	poll(t, 30*time.Second, "the agent to call its picture partial", func() error {
		e, err := f.endpoint(short)
		if err == nil && !e.Partial {
			err = fmt.Errorf("status is %+v", e)
		}
		return err
	})
	log, err := os.ReadFile(f.agents[short].LogPath)
	if err != nil || !strings.Contains(string(log), "partial") {
		t.Errorf("the agent's log does not say that its picture is partial (%v)", err)
	}
}
