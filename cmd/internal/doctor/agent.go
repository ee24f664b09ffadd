package doctor

import (
	"context"
	"net/netip"
	"net/url"
	"strings"

	"github.com/grapevine-llm/grapevine/agent"
)

const remedyEvents = `start the engine with --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6557"}', or tell the agent where they are with --kv-events-endpoint`

// agent asks an agent.
func (x *exam) agent(ctx context.Context, s *subject, base string) {
	var st agent.Status
	if !x.status(ctx, s, base, partAgent, "--metrics-listen", &st) {
		return
	}
	s.version = st.Version
	if w := st.Waiting; w != nil {
		check := "keys"
		if strings.Contains(w.Reason, "seed") {
			check = "seed"
		}
		s.fail(check, w.Remedy, "not in the mesh: %s: %s", w.Reason, w.Error)
	}
	for i := range st.Engines {
		e := &st.Engines[i]
		if beside(base) {
			s.engines = append(s.engines, e.Engine)
			s.gossip = append(s.gossip, e.Gossip)
		}
		if st.SeedFingerprint != 0 {
			s.seeds = append(s.seeds, seed{who: "agent " + e.Node, pool: e.Pool, fingerprint: st.SeedFingerprint})
		}
		x.agentEngine(s, e)
	}
	switch g := &st.GPU; {
	case g.Fault != "":
		s.fail("GPU", "gateways already avoid it; look at `nvidia-smi -q` and the kernel's log on that host", "%s", g.Fault)
	case g.Count > 0:
		s.ok("GPU", "%s watched", plural(g.Count, "GPU"))
	case g.Problem != "":
		s.skip("GPU", "none watched: %s", g.Problem)
	default:
		s.skip("GPU", "none watched")
	}
}

// beside says whether a URL is of this host or pod, so that addresses told by it
// hold here too.
func beside(base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// agentEngine judges what an agent says of one of its engines.
func (x *exam) agentEngine(s *subject, e *agent.EngineStatus) {
	if !e.Up {
		s.fail("engine", "is it running, and is this the agent's --engine? While a model loads this is normal", "%s does not answer the agent", e.Engine)
	} else {
		s.ok("engine", "%s is %s", e.Engine, strings.TrimSpace(e.Kind+" up"))
	}
	x.agentMesh(s, e)
	announced, err := url.Parse(e.Address)
	own, ownErr := netip.ParseAddrPort(e.Gossip)
	if err == nil && ownErr == nil && beside(e.Address) && !own.Addr().IsLoopback() {
		s.fail("address", "give the agent --address with a URL that gateways reach", "gateways are told %s, which is their own host", e.Address)
	} else if err == nil {
		s.ok("address", "gateways are told %s", announced)
	}
	x.agentEvents(s, e)
	if !e.Up {
		return
	}
	for _, r := range e.Ranks {
		const remedy = "it gets whole when the old blocks are evicted, or at once when the engine restarts; give the engine a replay_endpoint so that an agent can ask for what it missed"
		switch {
		case r.Suspect:
			s.warn("hash check", remedy, "rank %d: events were lost for good, the picture of its cache is suspect", r.Rank)
		case r.Partial:
			s.warn("hash check", remedy, "rank %d: the picture of its cache is partial, %.0f %% is known", r.Rank, 100*r.Coverage)
		default:
			s.ok("hash check", "rank %d: %d blocks, the picture of its cache is whole", r.Rank, r.Blocks)
		}
	}
}

func (x *exam) agentEvents(s *subject, e *agent.EngineStatus) {
	switch state := e.KVEvents; {
	case state == "ok":
		s.ok("events", "KV events flow")
	case state == "silent":
		s.fail("events", remedyEvents, "requests ran, and no KV event came")
	case state == "absent":
		s.fail("events", remedyEvents, "the engine publishes no KV events")
	case strings.Contains(state, "prefix caching"):
		s.fail("events", "start the engine with --enable-prefix-caching", "prefix caching is off: there is nothing to route by")
	default:
		s.skip("events", "%s", state)
	}
}

func (x *exam) agentMesh(s *subject, e *agent.EngineStatus) {
	if e.Gateways > 0 {
		s.ok("gateways", "tells %s", plural(e.Gateways, "gateway"))
		return
	}
	switch m := &e.Mesh; {
	case m.KeyMismatches > 0:
		s.fail("gateways", remedyKey, "in touch with no gateway: other nodes use a different gossip key")
	case m.LabelMismatches > 0:
		s.fail("gateways", "give all of the fleet the same --gossip-label", "in touch with no gateway: other nodes use a different gossip label")
	case m.HungUp > 0:
		s.fail("gateways", "give all of the fleet the same --gossip-label; if it is, see --gossip-allowed-cidrs of the gateways", "in touch with no gateway: those that it joins hang up, most likely for another gossip label")
	case m.Members > 0:
		s.fail("gateways", "give gateways and agents the same --pool", "in touch with %s, and no gateway of its pool %s is among them", plural(m.Members, "node"), e.Pool)
	case m.JoinFailures > 0:
		s.fail("gateways", "examine the way from here with --join and the agent's --gossip-join", "in touch with no gateway: no listed node answered in %s", plural(int(m.JoinFailures), "round"))
	default:
		s.fail("gateways", "give the agent --gossip-join with the gateways' headless Service", "in touch with no gateway: it has none to join, and none has joined it")
	}
}
