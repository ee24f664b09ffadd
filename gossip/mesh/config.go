package mesh

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"
)

// DefaultPort is the gossip port, UDP and TCP.
const DefaultPort = 7946

// Config says who this node is and whom it joins.
type Config struct {
	// NodeName is the node's name, unique for each *process*: memberlist ignores
	// a node that returns under its old name and address. Empty: UniqueName of
	// the host name.
	NodeName string
	// Role is RoleAgent or RolePicker.
	Role Role
	// Pool is the pool whose endpoints this node serves, up to 253 bytes. It goes
	// into the node's meta; membership does not depend on it.
	Pool string
	// Label is the fleet's: nodes with another label are refused. Up to 255
	// bytes; empty is a label like any other.
	Label string
	// BindAddr is the IP address to listen on; empty means all, IPv4 and IPv6.
	BindAddr string
	// BindPort is the UDP and TCP port; 0 takes a free one.
	BindPort int
	// AdvertiseAddr and AdvertisePort are what others are told. Empty and 0: the
	// bound ones, or a private address of this host when bound to all.
	AdvertiseAddr string
	AdvertisePort int
	// Join lists nodes to join, "host" or "host:port" (default port 7946). Names
	// are resolved again at each try and all their addresses are joined, so a
	// headless Service name is enough. Empty: this node waits to be joined.
	Join []string
	// KeyFile holds AES-256 keys, one a line (base64 or hex, # starts a comment):
	// the first encrypts, all decrypt. It is read again when it changes. Empty: no
	// encryption.
	KeyFile string
	// AllowedCIDRs are the networks nodes may live in; empty allows all.
	AllowedCIDRs []string
	// SeedFingerprint is the fingerprint of the seed of the block hashes, shown to
	// the others in the meta.
	SeedFingerprint uint32
	// InboxDepth is how many messages wait for the Handler before the oldest is
	// dropped. 0: 8192 for pickers, 1024 for agents.
	InboxDepth int
	// Handler gets messages and membership changes. Required.
	Handler Handler
	// Logger gets state changes; nil discards them.
	Logger *slog.Logger
	// Transport replaces UDP and TCP (tests); nil uses the network.
	Transport memberlist.Transport
}

// Handler is called from one goroutine of Run, so its methods never overlap. A
// slow handler costs messages, counted in Stats.InboxDropped.
type Handler interface {
	// Message gets a message of another node, whole. b belongs to the callee.
	Message(now time.Time, b []byte)
	// NodeUp says that a node is there or has changed; it can come again for a
	// node that is up.
	NodeUp(now time.Time, m Member)
	// NodeDown says that a node left or is believed dead; it can come for a node
	// that was never up.
	NodeDown(now time.Time, m Member)
}

// Member is another node of the mesh.
type Member struct {
	Name            string
	Hash            uint64 // wire.NodeHash(Name)
	Role            Role
	Pool            string
	Addr            string // gossip address, "ip:port"
	WireVersion     uint8  // protocol version of the messages it sends
	SeedFingerprint uint32
}

// UniqueName makes a node name of base (pod uid or host name; empty: this
// host's) that no other process has.
func UniqueName(base string) string {
	if base == "" {
		base, _ = os.Hostname() // without a host name the nonce alone must do
	}
	return base + "-" + uuid.NewString()[:8]
}

// Validate joins all faults of the configuration, each with field, value and
// remedy. It opens nothing: the key file is read by New.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Role != RoleAgent && c.Role != RolePicker {
		fault("Role %d: use RoleAgent or RolePicker", c.Role)
	}
	if c.Handler == nil {
		fault("Handler nil: give something that takes the messages")
	}
	if len(c.Pool) > maxPoolBytes {
		fault("Pool is %d bytes long: at most %d fit into the node meta", len(c.Pool), maxPoolBytes)
	}
	if len(c.Label) > memberlist.LabelMaxSize {
		fault("Label is %d bytes long: at most %d", len(c.Label), memberlist.LabelMaxSize)
	}
	for _, p := range []struct {
		name string
		port int
	}{{"BindPort", c.BindPort}, {"AdvertisePort", c.AdvertisePort}} {
		if p.port < 0 || p.port > 65535 {
			fault("%s %d: give 0 to 65535", p.name, p.port)
		}
	}
	for _, a := range []struct{ name, addr string }{{"BindAddr", c.BindAddr}, {"AdvertiseAddr", c.AdvertiseAddr}} {
		if a.addr != "" && net.ParseIP(a.addr) == nil {
			fault("%s %q: give an IP address, or leave it empty", a.name, a.addr)
		}
	}
	for _, j := range c.Join {
		if _, _, err := SplitJoin(j); err != nil {
			fault("Join %q: give host or host:port", j)
		}
	}
	if _, err := parseCIDRs(c.AllowedCIDRs); err != nil {
		faults = append(faults, err)
	}
	if c.InboxDepth < 0 {
		fault("InboxDepth %d: give 0 for the default, or more", c.InboxDepth)
	}
	return errors.Join(faults...)
}

func parseCIDRs(cidrs []string) ([]net.IPNet, error) {
	var out []net.IPNet
	var faults []error
	for _, c := range cidrs {
		_, n, err := net.ParseCIDR(strings.TrimSpace(c))
		if err != nil {
			faults = append(faults, fmt.Errorf("AllowedCIDRs %q: give a network as 10.0.0.0/8", c))
			continue
		}
		out = append(out, *n)
	}
	return out, errors.Join(faults...)
}
