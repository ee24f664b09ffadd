package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Config configures an Agent. Start from Default; only Engine has no default.
type Config struct {
	// Engine lists the engines, base URLs as http://127.0.0.1:8000. Each is a node
	// of the mesh of its own; the ports after the gossip port are used for the second
	// and later ones.
	Engine []string `json:"engine" help:"base URL of each engine"`
	// EngineKey is the engines' API key, for their list of models.
	EngineKey Secret `json:"engine-key" help:"API key of the engines, for their list of models; give it by environment"`
	// Address is what gateways send requests to, one per engine. Empty: the engine's
	// URL, with a loopback address replaced by the gossip address, as is a host
	// left out (http://:8000).
	Address []string `json:"address" help:"URL that gateways reach each engine by; empty: the engine's URL, loopback replaced by the pod's address"`
	// Pool is the set of interchangeable endpoints that the engines belong to.
	Pool string `json:"pool" help:"name of the pool of endpoints"`
	// Pod names the pod for people, namespace/name.
	Pod string `json:"pod" help:"namespace/name of the pod, shown to people"`
	// NodeName is the first part of the node's name; a nonce of the process follows.
	NodeName string `json:"node-name" help:"pod uid or host, first part of the gossip node name; empty: the host name"`
	// SeedFile holds the pool's secret hash seed, a decimal or 0x number.
	SeedFile string `json:"seed-file" help:"file with the pool's secret seed of block hashes; empty: the common default"`

	KVEvents EventsConfig `json:"kv-events"`
	Digest   DigestConfig `json:"digest"`
	Gossip   GossipConfig `json:"gossip"`

	// StateDir keeps snapshots over restarts of the agent. Empty: an agent that
	// restarts beside a warm engine knows what the engine's replay still has.
	StateDir string `json:"state-dir" help:"folder for snapshots, so that a restarted agent still knows the cache; empty: none"`
	// GPUs are the pod's, as in NVIDIA_VISIBLE_DEVICES.
	GPUs string `json:"gpus" help:"GPUs to watch, as in NVIDIA_VISIBLE_DEVICES; empty: all, none: no watching"`
	// ProbeListen has metrics and /livez and nothing else: what the kubelet and
	// Prometheus come for from outside of the pod. Empty: none.
	ProbeListen string `json:"probe-listen" help:"address of metrics and /livez alone, for other hosts; empty: none"`
	// MetricsListen is the admin listener's: metrics, status, cache resets. It has
	// no authentication, hence loopback. Empty: none.
	MetricsListen string `json:"metrics-listen" help:"address of metrics, status and cache resets; empty: none"`
	// DrainFor is how long the agent goes on telling that it drains before it leaves.
	DrainFor time.Duration `json:"drain-for" help:"time between the end signal and leaving the mesh"`

	LogLevel  string `json:"log-level" help:"debug, info, warn or error"`
	LogFormat string `json:"log-format" help:"text or json"`

	// Logger gets state changes; nil discards them.
	Logger *slog.Logger `json:"-"`
	// Version of the binary, for the status.
	Version string `json:"-"`
}

// EventsConfig overrides where the engine's KV events are. It is needed for
// engines that do not say it themselves (vLLM before 0.31, SGLang).
type EventsConfig struct {
	Endpoint string `json:"endpoint" help:"KV-event endpoint of rank 0 as the engine was given it; empty: ask the engine, else port 5557 of its host"`
	Replay   string `json:"replay" help:"replay endpoint of rank 0; empty: ask the engine, else port 5558 of its host"`
	Topic    string `json:"topic" help:"take only events of exactly this topic; empty: all"`
	// FullReports: see blockset.Config.
	FullReports bool `json:"full-reports" help:"requests ask the engine to report reused prefixes too (kv_cache_report_mode full)"`
}

// DigestConfig sizes what is told to gateways.
type DigestConfig struct {
	BitsPerBlock float64       `json:"bits-per-block" help:"filter bits per KV block; more bits, fewer false positives"`
	MinInterval  time.Duration `json:"min-interval" help:"shortest time between ticks; grows with the fleet"`
	MaxInterval  time.Duration `json:"max-interval" help:"longest time between ticks"`
	BytesPerSec  int           `json:"bytes-per-sec" help:"bytes of ticks per second to all gateways together, heartbeats apart"`
	// LowerBlocks sizes the digest of all tiers, made when an engine first stores to
	// a lower tier. 0: four times the GPU's blocks.
	LowerBlocks int `json:"lower-blocks" help:"blocks expected in all tiers together; 0: four times the GPU's"`
}

// GossipConfig says how to reach the gateways.
type GossipConfig struct {
	Bind         string   `json:"bind" help:"host:port for gossip, UDP and TCP; no host: all addresses; port 0: a free one"`
	Advertise    string   `json:"advertise" help:"host:port told to others, or an address alone with the bound port; empty: the bound one"`
	Join         []string `json:"join" help:"gateways to join, host or host:port; a headless Service name stands for all its addresses"`
	Label        string   `json:"label" help:"the fleet's label; nodes with another are refused"`
	KeyFile      string   `json:"key-file" help:"AES-256 keys, one a line, base64 or hex, first encrypts; empty: plain"`
	AllowedCIDRs []string `json:"allowed-cidrs" help:"networks that nodes may live in; empty: all"`
}

// Default returns a configuration that lacks only the engine.
func Default() Config {
	return Config{
		Pool:          "default",
		Digest:        DigestConfig{BitsPerBlock: 8, MinInterval: 25 * time.Millisecond, MaxInterval: 200 * time.Millisecond, BytesPerSec: 20_000},
		Gossip:        GossipConfig{Bind: ":" + strconv.Itoa(mesh.DefaultPort)},
		MetricsListen: "127.0.0.1:9464",
		DrainFor:      time.Second,
		LogLevel:      "info",
		LogFormat:     "text",
	}
}

// Validate joins all faults, each with field, value and remedy.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(c.Engine) == 0 {
		fault("engine: none given; give the engine's base URL, e.g. http://127.0.0.1:8000")
	}
	for _, u := range c.Engine {
		if _, err := baseURL(u); err != nil {
			fault("engine %q: give a base URL as http://127.0.0.1:8000", u)
		}
	}
	for _, u := range c.Address {
		if _, err := baseURL(u); err != nil && !strings.HasPrefix(u, "http://:") {
			fault("address %q: give a base URL as http://10.0.0.5:8000", u)
		}
	}
	if len(c.Address) > 0 && len(c.Address) != len(c.Engine) {
		fault("address: %d given for %d engines; give one for each, or none", len(c.Address), len(c.Engine))
	}
	if c.Pool == "" {
		fault("pool: empty; name the pool as the gateway does")
	}
	if len(c.Engine) > 1 && (c.KVEvents.Endpoint != "" || c.KVEvents.Replay != "") {
		fault("kv-events.endpoint and kv-events.replay hold for one engine, %d are given; run one agent per engine", len(c.Engine))
	}
	for _, e := range []struct{ name, value string }{{"kv-events.endpoint", c.KVEvents.Endpoint}, {"kv-events.replay", c.KVEvents.Replay}} {
		if e.value != "" && !strings.HasPrefix(e.value, "tcp://") && !strings.HasPrefix(e.value, "ipc://") {
			fault("%s %q: give tcp://host:port or ipc://path", e.name, e.value)
		}
	}
	if !(c.Digest.BitsPerBlock >= 2 && c.Digest.BitsPerBlock <= 64) {
		fault("digest.bits-per-block %g: give 2 to 64; 8 is a good value", c.Digest.BitsPerBlock)
	}
	if c.Digest.MinInterval <= 0 || c.Digest.MaxInterval < c.Digest.MinInterval {
		fault("digest.min-interval %v, digest.max-interval %v: give positive times, the second not below the first", c.Digest.MinInterval, c.Digest.MaxInterval)
	}
	if c.Digest.BytesPerSec < wire.MaxPacketBytes {
		fault("digest.bytes-per-sec %d: give at least %d, one packet", c.Digest.BytesPerSec, wire.MaxPacketBytes)
	}
	if c.Digest.LowerBlocks < 0 {
		fault("digest.lower-blocks %d: give 0 or more", c.Digest.LowerBlocks)
	}
	if c.DrainFor < 0 {
		fault("drain-for %v: give 0 or more", c.DrainFor)
	}
	if _, err := c.level(); err != nil {
		fault("log-level %q: give debug, info, warn or error", c.LogLevel)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		fault("log-format %q: give text or json", c.LogFormat)
	}
	for _, l := range []struct{ name, value string }{{"metrics-listen", c.MetricsListen}, {"probe-listen", c.ProbeListen}} {
		if _, _, err := net.SplitHostPort(l.value); l.value != "" && err != nil {
			fault("%s %q: give host:port", l.name, l.value)
		}
	}
	for i := range c.Engine {
		m, err := c.mesh(i)
		if err == nil {
			m.Handler = noHandler{}
			err = m.Validate()
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("gossip: %w", err))
			break
		}
	}
	return errors.Join(faults...)
}

func (c Config) level() (slog.Level, error) {
	var l slog.Level
	err := l.UnmarshalText([]byte(c.LogLevel))
	return l, err
}

// Secret is a setting that is not shown.
type Secret string

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Secret) UnmarshalText(b []byte) error {
	*s = Secret(b)
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (s Secret) MarshalText() ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	return []byte("(set)"), nil
}

// baseURL reads an engine's URL and returns it without a trailing slash. An IPv6
// address may lack its brackets, as a variable with the pod's address does.
func baseURL(s string) (string, error) {
	if rest, ok := strings.CutPrefix(s, "http://"); ok && strings.Count(rest, ":") > 1 && !strings.ContainsAny(rest, "[/") {
		i := strings.LastIndexByte(rest, ':')
		s = "http://[" + rest[:i] + "]" + rest[i:]
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return "", fmt.Errorf("bad base URL %q", s)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// mesh is the configuration of the mesh node of engine i, without what New adds.
func (c Config) mesh(i int) (mesh.Config, error) {
	m := mesh.Config{
		Role: mesh.RoleAgent, Pool: c.Pool, Label: c.Gossip.Label, Join: c.Gossip.Join,
		KeyFile: c.Gossip.KeyFile, AllowedCIDRs: c.Gossip.AllowedCIDRs,
	}
	var err error
	if m.BindAddr, m.BindPort, err = hostPort("bind", c.Gossip.Bind, i); err != nil {
		return m, err
	}
	if a, parseErr := netip.ParseAddr(c.Gossip.Advertise); parseErr == nil {
		m.AdvertiseAddr = a.String()
	} else if c.Gossip.Advertise != "" {
		m.AdvertiseAddr, m.AdvertisePort, err = hostPort("advertise", c.Gossip.Advertise, i)
	}
	return m, err
}

// hostPort reads host:port, i ports further unless it is 0.
func hostPort(name, s string, i int) (string, int, error) {
	host, port, err := net.SplitHostPort(s)
	n, convErr := strconv.ParseUint(port, 10, 16)
	if err != nil || convErr != nil {
		return "", 0, fmt.Errorf("%s %q: give host:port, an IPv6 address in brackets ([$(POD_IP)]:7946 holds for both kinds)", name, s)
	}
	if n > 0 {
		n += uint64(i)
	}
	return host, int(n), nil
}

// hasher reads the seed file.
func (c Config) hasher() (blockhash.Hasher, error) {
	if c.SeedFile == "" {
		return blockhash.NewHasher(blockhash.DefaultSeed), nil
	}
	b, err := os.ReadFile(c.SeedFile)
	if err != nil {
		return blockhash.Hasher{}, seedError{fmt.Errorf("read seed: %w", err)}
	}
	seed, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64)
	if err != nil { // the content is a secret and not repeated
		return blockhash.Hasher{}, seedError{fmt.Errorf("read seed: %s does not hold one number of 64 bits, decimal or 0x", c.SeedFile)}
	}
	return blockhash.NewHasher(seed), nil
}

// announced is the URL that gateways are told: the configured one, else the
// engine's with a loopback host replaced by the address of the gossip node. So is
// a configured host that is empty.
func announced(configured, engine, gossipAddr string) string {
	if configured != "" {
		u, err := url.Parse(configured)
		if err != nil || u.Hostname() != "" {
			return configured
		}
		engine = "http://localhost:" + u.Port()
	}
	u, err := url.Parse(engine)
	if err != nil {
		return engine
	}
	host := u.Hostname()
	ip, err := netip.ParseAddr(host)
	loopback := host == "localhost" || err == nil && (ip.IsLoopback() || ip.IsUnspecified())
	own, err := netip.ParseAddrPort(gossipAddr)
	if !loopback || err != nil || own.Addr().IsLoopback() {
		return engine
	}
	port := u.Port()
	u.Host = own.Addr().String()
	if own.Addr().Is6() {
		u.Host = "[" + u.Host + "]"
	}
	if port != "" {
		u.Host += ":" + port
	}
	return u.String()
}

// noHandler stands in where a mesh configuration is only checked.
type noHandler struct{}

func (noHandler) Message(time.Time, []byte)       {}
func (noHandler) NodeUp(time.Time, mesh.Member)   {}
func (noHandler) NodeDown(time.Time, mesh.Member) {}
