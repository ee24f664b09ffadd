package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
)

// engine asks an engine.
func (x *exam) engine(ctx context.Context, s *subject, base string) {
	a, err := x.get(ctx, base+"/metrics")
	if err != nil {
		s.fail("reachable", "is it running, and does it listen on that address? While a model loads this is normal", "%v", err)
		return
	}
	sample, parseErr := enginemetrics.Parse(a.body)
	if a.status != http.StatusOK || parseErr != nil {
		s.fail("reachable", "give the engine's own URL; SGLang needs --enable-metrics, vLLM must not have --disable-log-stats", "something answers there with status %d%s, but without the metrics of vLLM or SGLang", a.status, a.elsewhere())
		return
	}
	if h, err := x.get(ctx, base+"/health"); err != nil || h.status != http.StatusOK {
		s.fail("reachable", "look at the engine's log", "it answers, and is not healthy")
	} else {
		s.ok("reachable", "healthy")
	}
	s.clock(a)
	client := enginemetrics.NewClient(base, x.cfg.Timeout)
	defer client.Close()
	version, err := client.Version(ctx)
	if err != nil {
		s.skip("version", "%s does not tell its version", sample.Engine)
	} else {
		name := strings.TrimSpace(string(sample.Engine) + " " + version)
		status, why := judgeEngine(name)
		switch status {
		case OK:
			s.ok("version", "%s", name)
		default:
			s.add("version", status, "update the engine", "%s: %s", name, why)
		}
	}
	cache := sample.Ranks[0].Cache
	switch {
	case sample.Engine != enginemetrics.VLLM || cache.NumBlocks == 0:
		s.skip("prefix caching", "the engine does not tell")
	case !cache.PrefixCaching:
		s.fail("prefix caching", "start the engine with --enable-prefix-caching", "prefix caching is off: there is nothing to route by")
	default:
		s.ok("prefix caching", "on, %d blocks of %d tokens", cache.NumBlocks, cache.BlockSize)
	}
	x.engineEvents(ctx, s, client, base)
}

// engineEvents asks an engine whether it publishes KV events.
func (x *exam) engineEvents(ctx context.Context, s *subject, client *enginemetrics.Client, base string) {
	sources, err := client.EventSources(ctx)
	switch {
	case errors.Is(err, enginemetrics.ErrUnsupported) && x.sglangEvents(ctx, base):
		s.ok("events", "published")
	case errors.Is(err, enginemetrics.ErrUnsupported):
		s.skip("events", "this engine does not tell (vLLM does from 0.31 on); see that it was started with --kv-events-config, and ask its agent with --agent")
	case err != nil:
		s.skip("events", "%v", inWords(err))
	case len(sources) == 0:
		s.fail("events", remedyEvents, "the engine publishes no KV events: --kv-events-config is missing")
	default:
		replay := "with replay"
		for _, src := range sources {
			if src.ReplayEndpoint == "" {
				replay = "without replay: an agent that restarts or loses events cannot ask for them"
			}
		}
		if strings.HasPrefix(replay, "without") {
			s.warn("events", `add "replay_endpoint": "tcp://*:6557" to --kv-events-config`, "published on %s, %s", sources[0].Endpoint, replay)
			return
		}
		s.ok("events", "published on %s, %s", sources[0].Endpoint, replay)
	}
}

// sglangEvents reports whether an SGLang says in /server_info that it publishes.
func (x *exam) sglangEvents(ctx context.Context, base string) bool {
	a, err := x.get(ctx, base+"/server_info")
	if err != nil || a.status != http.StatusOK {
		return false
	}
	var info struct {
		Events *struct {
			Publisher string `json:"publisher"`
		} `json:"kv_events"`
	}
	return json.Unmarshal(a.body, &info) == nil && info.Events != nil && info.Events.Publisher != "" && info.Events.Publisher != "null"
}

// judgeEngine judges an engine by its name and version, as "vllm 0.28.0". The
// limits are those of KV events: vLLM has them from 0.9.0 on, and crashes on
// adapters beside them before 0.11.1 (vllm-project/vllm#27728).
func judgeEngine(name string) (Status, string) {
	version, isVLLM := strings.CutPrefix(name, string(enginemetrics.VLLM)+" ")
	var v [3]int
	if !isVLLM {
		return OK, ""
	}
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]); n < 2 {
		return OK, "" // a build of one's own
	}
	below := func(major, minor, patch int) bool {
		for i, limit := range [3]int{major, minor, patch} {
			if v[i] != limit {
				return v[i] < limit
			}
		}
		return false
	}
	switch {
	case v == [3]int{}, version == "dev":
		return OK, "" // built from a checkout without tags
	case below(0, 9, 0):
		return Failed, "too old: vLLM has KV events from 0.9.0 on"
	case below(0, 11, 1):
		return Warning, "before 0.11.1 vLLM fails on requests for LoRA adapters while KV events are on"
	}
	return OK, ""
}
