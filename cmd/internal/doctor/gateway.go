package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/prompt"
)

const (
	// oldDigest is an age that a reporting agent does not come to: five heartbeats.
	oldDigestMs = 1000
	// minChecked is how many answers must have been compared before an error counts.
	minChecked = 10
	// overclaimNote and overclaimFault are shares of promised tokens that were not there.
	overclaimNote, overclaimFault = 0.1, 0.4
)

// gatewayStatus is what a gateway's /status holds.
type gatewayStatus struct {
	Version string `json:"version"`
	picker.Status
	Pools   []watched      `json:"pools"`
	Prompts *prompt.Status `json:"prompts"`
}

// watched is a pool of Kubernetes as the gateway tells of it.
type watched struct {
	Name        string `json:"name"`
	Synced      bool   `json:"synced"`
	Endpoints   int    `json:"endpoints"`
	NotReady    int    `json:"not_ready"`
	Terminating int    `json:"terminating"`
	Error       string `json:"error"`
	Note        string `json:"note"`
}

// gateway asks a gateway.
func (x *exam) gateway(ctx context.Context, s *subject, base string) {
	var st gatewayStatus
	if !x.status(ctx, s, base, partGateway, "--admin-listen", &st) {
		return
	}
	s.version = st.Version
	if st.SeedFingerprint != 0 {
		s.seeds = append(s.seeds, seed{who: s.name, pool: st.Pool, fingerprint: st.SeedFingerprint})
	}
	if st.Gossip == nil {
		s.warn("gossip", "give the gateway --gossip", "gossip is off: it knows of no cache")
	} else {
		if a, err := netip.ParseAddrPort(st.Gossip.Addr); err == nil && beside(base) {
			s.gossip = append(s.gossip, a.String())
		}
		gatewayMesh(s, st.Gossip)
	}
	for i := range st.Pools {
		st.Pools[i].judge(s)
	}
	if len(st.Endpoints) == 0 {
		s.fail("endpoints", "do agents of its pool run and join it, or does its --endpoints or its pool in Kubernetes name any?", "it has no endpoint in pool %s", st.Pool)
		return
	}
	gatewayEndpoints(s, &st)
	gatewayEngines(s, st.Endpoints)
	gatewayPrompts(s, st.Prompts)
}

func (w *watched) judge(s *subject) {
	const remedy = "the pool's name, the rights of the gateway's ServiceAccount (`kubectl auth can-i list endpointslices --as ...`) and the CRD of the kind must be there"
	text := fmt.Sprintf("pool %s: %d ready, %d not ready, %d ending", w.Name, w.Endpoints, w.NotReady, w.Terminating)
	switch {
	case w.Error != "":
		s.fail("Kubernetes", remedy, "pool %s: %s", w.Name, w.Error)
	case !w.Synced:
		s.fail("Kubernetes", remedy, "pool %s has not been read yet", w.Name)
	case w.Endpoints == 0 && w.Note != "":
		s.fail("Kubernetes", "correct the pool", "%s; %s", text, w.Note)
	case w.Endpoints == 0:
		s.fail("Kubernetes", "look at the pods: `kubectl get pods` with the pool's selector; a model that loads is not ready", "%s", text)
	case w.Note != "":
		s.warn("Kubernetes", "correct the pool", "%s; %s", text, w.Note)
	default:
		s.ok("Kubernetes", "%s", text)
	}
}

func gatewayMesh(s *subject, g *picker.GossipStatus) {
	switch m := &g.Mesh; {
	case m.KeyMismatches > 0:
		s.warn("gossip", remedyKey, "somebody with another gossip key knocks (%d packets and streams)", m.KeyMismatches)
	case m.LabelMismatches > 0:
		s.warn("gossip", "give all of the fleet the same --gossip-label; another fleet on the same network is harmless", "somebody with another gossip label knocks (%d packets and streams)", m.LabelMismatches)
	case m.RefusedByCIDR > 0:
		s.warn("gossip", "add the network of agents and gateways to --gossip-allowed-cidrs", "somebody of a network that is not allowed knocks (%d packets and streams)", m.RefusedByCIDR)
	case m.NameConflicts > 0:
		s.warn("gossip", "give each process its own node name, or none at all", "two nodes have one name")
	case m.InboxDropped+m.HandoffDropped > 0:
		s.warn("gossip", "give the gateway more CPU", "%d messages dropped: it gets more than it can take in", m.InboxDropped+m.HandoffDropped)
	case m.Members == 0:
		s.fail("gossip", "let agents join it: --gossip-join with the gateways' headless Service; TCP and UDP on the gossip port", "it knows no other node")
	default:
		s.ok("gossip", "%s known at %s", plural(m.Members, "other node"), g.Addr)
	}
}

// which returns the names of the endpoints that are so.
func which(endpoints []picker.EndpointStatus, is func(e *picker.EndpointStatus) bool) (out []string) {
	for i := range endpoints {
		if is(&endpoints[i]) {
			out = append(out, endpoints[i].ID)
		}
	}
	return out
}

func gatewayEndpoints(s *subject, st *gatewayStatus) {
	all := st.Endpoints
	bare := which(all, func(e *picker.EndpointStatus) bool { return e.DigestAgeMs < 0 && e.Problem == "" })
	stale := which(all, func(e *picker.EndpointStatus) bool { return e.Stale })
	switch {
	case len(bare) == len(all):
		s.fail("agents", "do agents run beside the engines, and do they join this gateway? Ask one with --agent", "no endpoint has an agent (%d)", len(all))
	case len(bare) > 0:
		s.warn("agents", "run an agent beside each: those without are used by their load only; the address that an agent tells must be the one that the pool names", "%d of %d endpoints without an agent: %s", len(bare), len(all), some(bare))
	case len(stale) > 0:
		s.skip("agents", "every endpoint has one (%d), %d of them silent now", len(all), len(stale))
	default:
		s.ok("agents", "every endpoint has one (%d)", len(all))
	}
	old := which(all, func(e *picker.EndpointStatus) bool { return !e.Stale && e.DigestAgeMs > oldDigestMs })
	const remedyAge = "does the agent run, and do its UDP packets come through? Probe it with --join, and see that it has CPU"
	switch {
	case st.Frozen:
		s.warn("digest ages", "if it lasts, the gateway's own network or CPU is at fault", "the view is frozen: many agents fell silent at once, or the gateway got no CPU")
	case len(stale) > 0:
		s.fail("digest ages", remedyAge, "the agent is silent: %s", some(stale))
	case len(old) > 0:
		s.warn("digest ages", remedyAge, "nothing heard for over a second: %s", some(old))
	case len(bare) == len(all):
		s.skip("digest ages", "no digest")
	default:
		oldest := slices.MaxFunc(all, func(a, b picker.EndpointStatus) int { return int(a.DigestAgeMs - b.DigestAgeMs) })
		s.ok("digest ages", "at most %.0f ms", oldest.DigestAgeMs)
	}
	without := which(all, func(e *picker.EndpointStatus) bool { return e.Rung != picker.RungDigest })
	switch {
	case st.Draining:
		s.warn("warm", "it is ending; ask another", "draining")
	case st.Warm || len(without) == 0:
		s.ok("warm", "the digests of all endpoints are there")
	default:
		s.warn("warm", "the other checks say why; right after its start a gateway is warm within two seconds", "without a digest that counts: %s", some(without))
	}
	problems := map[string][]string{}
	for i := range all {
		switch e := &all[i]; {
		case e.Problem != "":
			problems[e.Problem] = append(problems[e.Problem], e.ID)
		case e.Verdict != "":
			problems[e.Verdict] = append(problems[e.Verdict], e.ID)
		case e.Out:
			problems["not reachable from the gateway"] = append(problems["not reachable from the gateway"], e.ID)
		}
	}
	if len(problems) > 0 {
		s.fail("endpoints", "see the endpoint's own checks with --agent and --engine", "%s", groups(problems))
	} else {
		s.ok("endpoints", "%d in pool %s, no fault of any is known", len(all), st.Pool)
	}
}

// gatewayEngines judges what endpoints' agents and answers say of the engines.
func gatewayEngines(s *subject, all []picker.EndpointStatus) {
	bad, waiting, silent := map[string][]string{}, []string(nil), 0
	versions := map[string][]string{}
	checked := 0
	var notes, faults []string
	for i := range all {
		e := &all[i]
		switch {
		case e.KVEvents == "" || e.KVEvents == "ok":
			if e.Stale {
				silent++
			}
		case strings.HasPrefix(e.KVEvents, "waiting"):
			waiting = append(waiting, e.ID)
		default:
			bad[e.KVEvents] = append(bad[e.KVEvents], e.ID)
		}
		if e.Engine != "" {
			versions[e.Engine] = append(versions[e.Engine], e.ID)
		}
		if e.Checked >= minChecked {
			checked++
			text := fmt.Sprintf("%s (%.0f %% of %d promises)", e.ID, 100*e.OverclaimRate, e.Checked)
			switch {
			case e.OverclaimRate > overclaimFault:
				faults = append(faults, text)
			case e.OverclaimRate > overclaimNote:
				notes = append(notes, text)
			}
		}
	}
	switch {
	case len(bad) > 0:
		s.fail("events", remedyEvents, "engines whose KV events are missing: %s", groups(bad))
	case len(waiting) > 0:
		s.skip("events", "no request has made one yet: %s", some(waiting))
	case len(versions) == 0:
		s.skip("events", "no agent tells of any")
	case silent > 0:
		s.skip("events", "the agents of %d of %d endpoints are silent", silent, len(all))
	default:
		s.ok("events", "KV events flow from all engines with an agent")
	}
	const remedy = "the engine's prompts differ from the gateway's: compare with `grapevine chain`; adapters, salts, images, a chat template or a seed that one side does not know"
	switch {
	case len(faults) > 0:
		s.fail("hash check", remedy, "promised cache hits that were not there: %s", some(append(faults, notes...)))
	case len(notes) > 0:
		s.warn("hash check", remedy, "promised cache hits that were not there: %s", some(notes))
	case checked == 0:
		s.skip("hash check", "too few answers with cached_tokens to compare; engines tell them with --enable-prompt-tokens-details")
	default:
		s.ok("hash check", "predicted and actual hits agree at %s", plural(checked, "endpoint"))
	}
	partial := which(all, func(e *picker.EndpointStatus) bool { return e.Partial || e.Suspect })
	if len(partial) > 0 {
		s.warn("pictures", "they get whole as old blocks are evicted; a replay_endpoint in --kv-events-config lets an agent ask for what it missed", "what is cached is known in part only: %s", some(partial))
	}
	for _, name := range sortedKeys(versions) {
		if status, why := judgeEngine(name); status != OK {
			s.add("engine versions", status, "update the engine", "%s (%s): %s", name, some(versions[name]), why)
			return
		}
	}
	switch len(versions) {
	case 0:
	case 1:
		s.ok("engine versions", "%s", sortedKeys(versions)[0])
	default:
		s.warn("engine versions", "fine during an update; else give a pool's engines one version, since their templates and hashes may differ", "mixed: %s", groups(versions))
	}
}

func gatewayPrompts(s *subject, p *prompt.Status) {
	if p == nil {
		s.skip("tokenizer", "the gateway does not tell")
		return
	}
	before := len(s.checks)
	for i := range p.Models {
		m := &p.Models[i]
		if len(m.Models) == 0 { // those without files
			if n := m.Resolved["none"]; n > 0 {
				s.warn("tokenizer", "give the gateway the model's folder with --model NAME=FOLDER; vLLM before 0.15 cannot be asked, from 0.30 on only if told so", "%d prompts without token ids: they went by load", n)
			} else if asked := m.Resolved["render"] + m.Resolved["tokenize"]; asked > 0 {
				s.warn("tokenizer", "give the gateway the model's folder with --model NAME=FOLDER: it saves the way to the engine", "engines were asked for the token ids of %d prompts", asked)
			}
			continue
		}
		switch {
		case m.Problem != "":
			s.fail("tokenizer", "give the folder that the engines serve, and their --chat-template and its settings", "model %s: its files are not used: %s", m.Name(), m.Problem)
		case m.Mismatches > 0:
			s.warn("tokenizer", "see the gateway's log for what differs", "model %s: %d of its prompts differed from the engine's", m.Name(), m.Mismatches)
		case m.Verified:
			s.ok("tokenizer", "model %s: an engine agrees with the gateway's token ids", m.Name())
		default:
			s.skip("tokenizer", "model %s: no engine has been compared yet", m.Name())
		}
	}
	if len(s.checks) == before {
		s.skip("tokenizer", "no prompt has been read yet")
	}
}
