package inject

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Engines' own names and defaults (vllm/config/kv_events.py; SGLang has the same).
const (
	flagEvents      = "kv-events-config"
	defaultEndpoint = "tcp://*:5557"
)

// First release whose KV events can be trusted beside LoRA, first whose events
// leave the cache of hybrid models alone, and the newest one known.
var (
	firstEvents = version{0, 11, 1}
	firstHybrid = version{0, 20, 0}
	newestVLLM  = version{0, 33, 0}
)

// ownEvents and ownReplay are what configure gives the engine. The engine connects
// to an endpoint with a host in it, and the agent listens there: nothing is open to
// the network. The replay socket is always the engine's.
var (
	ownEvents = "tcp://127.0.0.1:" + strconv.Itoa(eventsPort)
	ownReplay = "tcp://127.0.0.1:" + strconv.Itoa(replayPort)
)

func ownConfig(k kind) string {
	enable := `"enable_kv_cache_events":true,`
	if k == sglang {
		enable = "" // has no such field: giving the flag enables
	}
	return fmt.Sprintf(`{%s"publisher":"zmq","endpoint":%q,"replay_endpoint":%q}`, enable, ownEvents, ownReplay)
}

// line is what the owner should add to the engine's arguments, ready to paste.
func (e *engine) line() string {
	line := "--" + flagEvents + " '" + ownConfig(e.kind) + "'"
	if e.kind == sglang {
		if !e.flags.has("enable-metrics") {
			line += " --enable-metrics"
		}
		if !e.flags.has("page-size") {
			line += " --page-size 16"
		}
	}
	return line
}

// events is where an engine's KV events are.
type events struct {
	endpoint, replay string // for the agent; "" if it has to ask the engine
	given            bool   // the engine has a configuration of its own
}

// ownersEvents reads the configuration that the engine already has; it is never
// changed.
func (e *engine) ownersEvents() (ev events, warnings []string) {
	config, given, ok := e.flags.object(flagEvents)
	if !given {
		return events{}, nil
	}
	ev.given = true
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	if !ok {
		warn("--%s cannot be read here, the agent looks for the events by itself", flagEvents)
		return ev, warnings
	}
	text := func(key, def string) string {
		if s, ok := config[key].(string); ok {
			return s
		}
		return def
	}
	enabled := e.kind == sglang
	switch on := config["enable_kv_cache_events"].(type) {
	case bool:
		enabled = on
	case string: // of --kv-events-config.enable_kv_cache_events
		enabled = strings.EqualFold(on, "true")
	}
	publisher := text("publisher", "")
	off := publisher == "null" || publisher == "" && e.kind == sglang
	if !enabled || off {
		warn("--%s leaves KV events off: routed by load only; give it: %s", flagEvents, e.line())
		return ev, warnings
	}
	endpoint, replay := text("endpoint", defaultEndpoint), text("replay_endpoint", "")
	host, port, isTCP := splitEndpoint(endpoint)
	switch {
	case strings.Contains(strings.ReplaceAll(endpoint, podIP, ""), "$"):
		warn("the endpoint of --%s cannot be read here, the agent looks for the events by itself", flagEvents)
		return ev, warnings
	case !isTCP:
		warn("the engine publishes its KV events at %s, where the agent cannot listen: routed by load only; give the endpoint %s", endpoint, ownEvents)
		return ev, warnings
	case port == "0" || port == "":
		return ev, warnings // the engine says where, when asked
	case wildcard(host):
		warn("the engine's KV events are open to the network at port %s, and they carry token ids: give the endpoint %s (the engine connects, the agent listens), or close the port with a NetworkPolicy", port, ownEvents)
	case host != "127.0.0.1" && host != "localhost" && host != podIP:
		warn("the engine sends its KV events to %s, where the agent cannot hear them: routed by load only; for both to hear them give the endpoint %s, open to the network, and let the other side connect", endpoint, defaultEndpoint)
		return ev, warnings
	}
	ev.endpoint = endpoint
	switch host, port, isTCP := splitEndpoint(replay); {
	case replay == "":
		warn(`--%s has no replay_endpoint: an agent that comes late or loses events cannot catch up; add "replay_endpoint":%q`, flagEvents, ownReplay)
	case !isTCP || strings.Contains(strings.ReplaceAll(replay, podIP, ""), "$"):
	default:
		ev.replay = replay
		if wildcard(host) {
			warn("the replay of the engine's KV events is open to the network at port %s: give the replay_endpoint tcp://127.0.0.1:%s", port, port)
		}
	}
	return ev, warnings
}

func splitEndpoint(endpoint string) (host, port string, ok bool) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	i := strings.LastIndexByte(rest, ':')
	if !ok || i < 0 {
		return "", "", false
	}
	return strings.Trim(rest[:i], "[]"), rest[i+1:], true
}

// wildcard says whether the engine binds all addresses.
func wildcard(host string) bool { return host == "*" || host == "::" || host == "0.0.0.0" }

// whyNot says why the engine's arguments are left alone at level configure, "" if
// they can be added. hint is what the owner should know beside the line to add.
func (e *engine) whyNot(pod *corev1.Pod) (reason, hint string) {
	switch {
	case e.kind == sglang:
		return "SGLang's arguments are not touched", ""
	case pod.Spec.HostNetwork:
		return "with hostNetwork the ports are the node's", "one engine on a node"
	case e.shell:
		return "the arguments stand in a shell script, which is not touched", ""
	case e.opaque:
		return "the container's arguments are not to be seen", ""
	case e.wrapper != "":
		return fmt.Sprintf("the engine is started by %s, which may not pass arguments on", e.wrapper), ""
	case e.flags.has("config"):
		return "--config names a file with further arguments", ""
	case e.flags.opaque:
		return "an argument comes from a variable whose value is not to be seen", ""
	case e.flags.has("no-enable-prefix-caching"):
		return "prefix caching is off", "in place of --no-enable-prefix-caching"
	case !e.known:
		return "the release of vLLM is not known", fmt.Sprintf("it needs vLLM %v or later (hybrid models: %v); say which with annotation %s", firstEvents, firstHybrid, KeyVersion)
	case e.tooOld():
		return fmt.Sprintf("vLLM %v is too old for KV events", e.version), ""
	case newestVLLM.below(e.version.major, e.version.minor, 0):
		return fmt.Sprintf("vLLM %v is newer than this injector knows (%d.%d)", e.version, newestVLLM.major, newestVLLM.minor), "update Grapevine"
	}
	if e.version.below(firstHybrid.major, firstHybrid.minor, firstHybrid.patch) && !e.flags.has("disable-hybrid-kv-cache-manager") {
		switch hybrid := pod.Annotations[KeyHybrid]; {
		case hybrid == "false":
		case hybrid == "true":
			return fmt.Sprintf("KV events would switch off the hybrid KV cache of vLLM %v", e.version), fmt.Sprintf("with vLLM %v or later", firstHybrid)
		case !plainModel.MatchString(e.model):
			return fmt.Sprintf("vLLM %v switches off the hybrid KV cache for KV events, and whether %s has one is not known", e.version, e.modelName()),
				fmt.Sprintf("if it has full attention only (then annotation %s: \"false\" lets the injector add it), or with vLLM %v or later", KeyHybrid, firstHybrid)
		}
	}
	first, n := e.ranks()
	if first+n > replayPort-eventsPort {
		return fmt.Sprintf("the event ports of ranks from %d on would be those of replay", replayPort-eventsPort), "with a replay_endpoint further off"
	}
	var ports []int
	for rank := first; rank < first+n; rank++ {
		ports = append(ports, eventsPort+rank, replayPort+rank)
	}
	if who := e.taken(pod, ports...); who != "" {
		return who, "with other ports"
	}
	return "", ""
}

// tooOld says whether the engine is known to be a release whose KV events are of no use.
func (e *engine) tooOld() bool {
	return e.kind == vllm && e.known && e.version.below(firstEvents.major, firstEvents.minor, firstEvents.patch)
}

func (e *engine) modelName() string {
	if e.model == "" {
		return "the model"
	}
	return strconv.Quote(e.model)
}

// remarks are what an owner should know of the engine's arguments, whatever the
// level.
func (e *engine) remarks() (out []string) {
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if e.portFrom != "" {
		warn("the engine's port is not to be seen, %d (%s) is taken; say it with annotation %s", e.port, e.portFrom, KeyPort)
	}
	if e.several {
		warn("the script starts several engines, only the one at port %d is followed", e.port)
	}
	if e.flags.has("disable-log-stats") {
		warn("--disable-log-stats takes the engine's metrics away, without which the agent can tell nothing: remove it")
	}
	if e.flags.has("no-enable-prefix-caching") {
		warn("--no-enable-prefix-caching: the engine caches no prefixes, there is nothing to route by but load")
	}
	if n, local := e.flags.get("data-parallel-size"), e.flags.get("data-parallel-size-local"); local != "" && local != n && !e.flags.has("data-parallel-hybrid-lb") {
		warn("%s of %s data-parallel ranks run in this pod: the agent hears the KV events of these only", local, n)
	}
	return out
}

// ranks is how many data-parallel ranks publish events in this pod, with the
// number of the first.
func (e *engine) ranks() (first, n int) {
	atoi := func(name string, def int) int {
		if v, err := strconv.Atoi(e.flags.get(name)); err == nil {
			return v
		}
		return def
	}
	if e.flags.has("data-parallel-rank") {
		return atoi("data-parallel-rank", 0), 1
	}
	return atoi("data-parallel-start-rank", 0), max(1, atoi("data-parallel-size-local", atoi("data-parallel-size", atoi("dp-size", 1))))
}

// taken says who has one of the ports, "" if nobody is known to. The engine need not
// declare the one that it listens at.
func (e *engine) taken(pod *corev1.Pod, ports ...int) string {
	if slices.Contains(ports, e.port) {
		return fmt.Sprintf("the engine listens at port %d", e.port)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			for _, p := range c.Ports {
				for _, want := range ports {
					if int(p.ContainerPort) == want {
						return fmt.Sprintf("container %q declares port %d", c.Name, want)
					}
				}
			}
		}
	}
	return ""
}

// joinable is a gateway as memberlist takes it: the port is the usual one if none
// is given.
func joinable(s string) string {
	if _, _, err := net.SplitHostPort(s); err == nil {
		return s
	}
	return net.JoinHostPort(strings.Trim(s, "[]"), strconv.Itoa(gossipPort))
}
