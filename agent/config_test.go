package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

func TestDefaultLacksOnlyTheEngine(t *testing.T) {
	cfg := Default()
	if err := cfg.Validate(); err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "engine: none given") {
		t.Errorf("got %v, want one fault about the engine", err)
	}
	cfg.Engine = []string{"http://127.0.0.1:8000/"}
	if err := cfg.Validate(); err != nil {
		t.Errorf("with an engine: %v", err)
	}
}

func TestValidateJoinsAllFaults(t *testing.T) {
	cfg := Config{
		Engine: []string{"127.0.0.1:8000", "ftp://x"}, Address: []string{"x"}, KVEvents: EventsConfig{Endpoint: "localhost:5557"},
		Digest: DigestConfig{BitsPerBlock: 1, LowerBlocks: -1}, Gossip: GossipConfig{Bind: "nowhere"},
		MetricsListen: "9464", DrainFor: -time.Second, LogLevel: "loud", LogFormat: "xml",
	}
	err := cfg.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`engine "127.0.0.1:8000"`, `engine "ftp://x"`, `address "x"`, "1 given for 2 engines", "pool: empty", "run one agent per engine",
		`kv-events.endpoint "localhost:5557"`, "bits-per-block 1", "min-interval 0s", "bytes-per-sec 0", "lower-blocks -1", `bind "nowhere"`,
		`metrics-listen "9464"`, "drain-for -1s", `log-level "loud"`, `log-format "xml"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

func TestSeedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seed")
	for content, seed := range map[string]uint64{"42\n": 42, " 0xff ": 255} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := Config{SeedFile: path}.hasher()
		if err != nil || h != blockhash.NewHasher(seed) {
			t.Errorf("%q: got %v, want seed %d", content, err, seed)
		}
	}
	if err := os.WriteFile(path, []byte("secret!"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Config{SeedFile: path}).hasher(); err == nil || strings.Contains(err.Error(), "secret!") {
		t.Errorf("got %v, want an error that does not show the content", err)
	}
}

func TestAnnouncedAddress(t *testing.T) {
	tests := []struct{ name, configured, engine, gossip, want string }{
		{"configured", "http://a:1", "http://127.0.0.1:8000", "10.0.0.5:7946", "http://a:1"},
		{"pod", "", "http://127.0.0.1:8000", "10.0.0.5:7946", "http://10.0.0.5:8000"},
		{"localhost, IPv6 pod", "", "http://localhost:8000", "[fd00::5]:7946", "http://[fd00::5]:8000"},
		{"all on one host", "", "http://127.0.0.1:8000", "127.0.0.1:7946", "http://127.0.0.1:8000"},
		{"remote engine", "", "https://engine.example:8000", "10.0.0.5:7946", "https://engine.example:8000"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := announced(tt.configured, tt.engine, tt.gossip); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestEventSources(t *testing.T) {
	said := []enginemetrics.EventSource{
		{Rank: 0, Endpoint: "tcp://*:5557", ReplayEndpoint: "tcp://*:6557", Topic: "t"},
		{Rank: 1, Endpoint: "tcp://*:5558", ReplayEndpoint: "tcp://*:6558", Topic: "t"},
	}
	tests := []struct {
		name   string
		cfg    EventsConfig
		engine string
		ranks  []int
		said   []enginemetrics.EventSource
		known  bool
		want   []source
		err    string
	}{
		{"engine says", EventsConfig{}, "http://10.0.0.9:8000", []int{0, 1}, said, true, []source{
			{rank: 0, endpoint: "tcp://10.0.0.9:5557", replay: "tcp://10.0.0.9:6557", topic: "t"},
			{rank: 1, endpoint: "tcp://10.0.0.9:5558", replay: "tcp://10.0.0.9:6558", topic: "t"},
		}, ""},
		{"engine says a host", EventsConfig{}, "http://127.0.0.1:8000", []int{0}, []enginemetrics.EventSource{{Endpoint: "tcp://10.0.0.9:41000"}}, true,
			[]source{{endpoint: "tcp://10.0.0.9:41000", mayConnect: true}}, ""},
		{"engine says none", EventsConfig{}, "http://127.0.0.1:8000", []int{0}, nil, true, nil, ""},
		{"old engine", EventsConfig{}, "http://127.0.0.1:8000", []int{0}, nil, false,
			[]source{{endpoint: "tcp://127.0.0.1:5557", replay: "tcp://127.0.0.1:5558", guessed: true}}, ""},
		{"old engine, two ranks", EventsConfig{}, "http://[::1]:8000", []int{0, 1}, nil, false, []source{
			{rank: 0, endpoint: "tcp://[::1]:5557", guessed: true}, {rank: 1, endpoint: "tcp://[::1]:5558", guessed: true},
		}, ""},
		{"configured", EventsConfig{Endpoint: "tcp://*:7000", Replay: "tcp://[::]:8000", Topic: "x"}, "http://h:1", []int{3}, said, true,
			[]source{{rank: 3, endpoint: "tcp://h:7003", replay: "tcp://h:8003", topic: "x"}}, ""},
		{"configured, engine connects", EventsConfig{Endpoint: "tcp://127.0.0.1:7000"}, "http://127.0.0.1:1", []int{0}, nil, false,
			[]source{{endpoint: "tcp://127.0.0.1:7000", mayConnect: true}}, ""},
		{"ipc", EventsConfig{Endpoint: "ipc:///run/kv"}, "http://127.0.0.1:1", []int{0}, nil, false, []source{{endpoint: "ipc:///run/kv"}}, ""},
		{"ipc has no rank 1", EventsConfig{Endpoint: "ipc:///run/kv"}, "http://127.0.0.1:1", []int{0, 1}, nil, false, nil, "no place for rank 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := eventSources(tt.cfg, tt.engine, tt.ranks, tt.said, tt.known)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q in it", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(source{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddressesOfPods(t *testing.T) {
	for _, tt := range []struct{ configured, engine, gossip, want string }{
		{"", "http://127.0.0.1:8000", "10.0.0.5:7946", "http://10.0.0.5:8000"},
		{"http://:8000", "http://127.0.0.1:8200", "10.0.0.5:7946", "http://10.0.0.5:8000"},
		{"http://:8000", "http://127.0.0.1:8200", "[fd00::5]:7946", "http://[fd00::5]:8000"},
		{"http://10.9.9.9:1", "http://127.0.0.1:8200", "10.0.0.5:7946", "http://10.9.9.9:1"},
	} {
		if got := announced(tt.configured, tt.engine, tt.gossip); got != tt.want {
			t.Errorf("announced(%q, %q, %q) = %s, want %s", tt.configured, tt.engine, tt.gossip, got, tt.want)
		}
	}
	for in, want := range map[string]string{"http://fd00::5:8000": "http://[fd00::5]:8000", "http://10.0.0.5:8000/": "http://10.0.0.5:8000"} {
		if got, err := baseURL(in); err != nil || got != want {
			t.Errorf("baseURL(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, ip := range []string{"10.0.0.5", "fd00::5"} {
		m, err := Config{Gossip: GossipConfig{Bind: ":7946", Advertise: ip}}.mesh(0)
		if err != nil || m.AdvertiseAddr != ip || m.AdvertisePort != 0 {
			t.Errorf("advertise %s: %q %d %v", ip, m.AdvertiseAddr, m.AdvertisePort, err)
		}
	}
}
