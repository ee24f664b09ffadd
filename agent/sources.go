package agent

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
)

// Ports that vLLM's documentation uses where nothing else is said.
const (
	defaultEventPort  = "5557"
	defaultReplayPort = "5558"
)

// source is where one rank's events come from.
type source struct {
	rank             int
	endpoint, replay string
	topic            string
	// mayConnect: the endpoint names a host, so that the engine may have connected
	// to it instead of binding (vllm/distributed/kv_events.py): look who is there.
	mayConnect bool
	guessed    bool // nobody said so
}

// eventSources says where each rank's events are: as configured, else as the
// engine says, else at vLLM's usual ports. known is false if the engine could not
// be asked (vLLM before 0.31, SGLang); none are given by an engine whose events are
// off.
func eventSources(cfg EventsConfig, engine string, ranks []int, said []enginemetrics.EventSource, known bool) ([]source, error) {
	u, err := url.Parse(engine)
	if err != nil {
		return nil, fmt.Errorf("read engine URL: %w", err)
	}
	host := u.Hostname()
	var out []source
	if cfg.Endpoint == "" && known {
		for _, s := range said {
			topic := s.Topic
			if cfg.Topic != "" {
				topic = cfg.Topic
			}
			replay := s.ReplayEndpoint
			if cfg.Replay != "" {
				if replay, err = atRank(cfg.Replay, s.Rank); err != nil {
					return nil, err
				}
			}
			out = append(out, source{
				rank: s.Rank, endpoint: reachable(s.Endpoint, host), replay: reachable(replay, host), topic: topic,
				mayConnect: namesHost(s.Endpoint),
			})
		}
		return out, nil
	}
	for _, r := range ranks {
		s := source{rank: r, topic: cfg.Topic, guessed: cfg.Endpoint == ""}
		endpoint, replay := cfg.Endpoint, cfg.Replay
		if endpoint == "" {
			endpoint = "tcp://*:" + defaultEventPort
			if replay == "" && len(ranks) == 1 { // else it is the next rank's event port
				replay = "tcp://*:" + defaultReplayPort
			}
		}
		if endpoint, err = atRank(endpoint, r); err != nil {
			return nil, err
		}
		if replay, err = atRank(replay, r); err != nil {
			return nil, err
		}
		s.mayConnect = namesHost(endpoint)
		s.endpoint, s.replay = reachable(endpoint, host), reachable(replay, host)
		out = append(out, s)
	}
	return out, nil
}

// atRank is the endpoint of a rank, of which vLLM adds the number to the port.
func atRank(endpoint string, rank int) (string, error) {
	if endpoint == "" || rank == 0 {
		return endpoint, nil
	}
	i := strings.LastIndexByte(endpoint, ':')
	port, err := strconv.Atoi(endpoint[i+1:])
	if err != nil || !strings.HasPrefix(endpoint, "tcp://") || port+rank > 65535 {
		return "", fmt.Errorf("KV-event endpoint %q has no place for rank %d: data-parallel engines need tcp:// and a port", endpoint, rank)
	}
	return endpoint[:i+1] + strconv.Itoa(port+rank), nil
}

// hostOf is the host of a tcp endpoint, without brackets.
func hostOf(endpoint string) (host, port string, ok bool) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	i := strings.LastIndexByte(rest, ':')
	if !ok || i < 0 {
		return "", "", false
	}
	return strings.Trim(rest[:i], "[]"), rest[i+1:], true
}

func wildcard(host string) bool { return host == "*" || host == "0.0.0.0" || host == "::" }

func namesHost(endpoint string) bool {
	host, _, ok := hostOf(endpoint)
	return ok && !wildcard(host)
}

// reachable puts the engine's host in the place of a wildcard.
func reachable(endpoint, engineHost string) string {
	host, port, ok := hostOf(endpoint)
	if !ok || !wildcard(host) {
		return endpoint
	}
	return "tcp://" + net.JoinHostPort(engineHost, port)
}
