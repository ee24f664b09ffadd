package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// maxProbes bounds the nodes that are probed: those that were named, and the
// gateways that they know.
const maxProbes = 16

const (
	remedyTCP = "let TCP through on the gossip port, in both directions: firewall, security group, NetworkPolicy"
	remedyUDP = "let UDP through on the gossip port too, in both directions: in a NetworkPolicy a port without `protocol: UDP` is TCP only, and security groups and service meshes often know of TCP only"
	remedyKey = "give all agents and gateways of the fleet the same --gossip-key-file, and this command too"
)

// mesh probes the named nodes, then the gateways that these know of.
func (x *exam) mesh(ctx context.Context, join []string) []*subject {
	var out []*subject
	var addrs []netip.AddrPort
	known := map[netip.AddrPort]bool{}
	add := func(found []netip.AddrPort) {
		for _, a := range found {
			if !known[a] && len(addrs) < maxProbes {
				addrs = append(addrs, a)
			}
			known[a] = true
		}
	}
	for _, j := range join {
		found, s := x.resolve(ctx, j)
		if s != nil {
			out = append(out, s)
		}
		add(found)
	}
	for done := 0; done < len(addrs); {
		var wg sync.WaitGroup
		var round []*subject
		for _, a := range addrs[done:] {
			s := &subject{name: "gossip " + a.String()}
			round = append(round, s)
			wg.Go(func() { x.node(ctx, s, a) })
		}
		wg.Wait()
		done = len(addrs)
		for _, s := range round {
			add(s.gateways)
		}
		out = append(out, round...)
	}
	if n := len(known) - len(addrs); n > 0 {
		s := &subject{name: "gossip"}
		s.skip("others", "%d more nodes: at most %d are probed; name others with --join", n, maxProbes)
		out = append(out, s)
	}
	return out
}

// resolve finds the addresses of an entry of a join list; a subject is only made
// of a name.
func (x *exam) resolve(ctx context.Context, entry string) ([]netip.AddrPort, *subject) {
	s := &subject{name: "name " + entry}
	host, port, err := mesh.SplitJoin(entry)
	if err != nil {
		s.fail("DNS", "give host or host:port, an IPv6 address with a port in brackets", "%q is no address", entry)
		return nil, s
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), port)}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		s.fail("DNS", "is it the headless Service (clusterIP: None) of the gateways, with its namespace, and does a gateway pod run? `kubectl get endpointslices` shows what it stands for", "%v", inWords(err))
		return nil, s
	}
	var out []netip.AddrPort
	var names []string
	for _, ip := range ips {
		out = append(out, netip.AddrPortFrom(ip.Unmap(), port))
		names = append(names, ip.Unmap().String())
	}
	slices.Sort(names)
	s.ok("DNS", "stands for %s", some(slices.Compact(names)))
	return out, s
}

// node probes one node.
func (x *exam) node(ctx context.Context, s *subject, addr netip.AddrPort) {
	if x.keyErr != nil {
		s.skip("TCP", "not probed: the gossip keys can't be read")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 4*x.cfg.Timeout)
	defer cancel()
	got, err := mesh.Prober{Label: x.cfg.Gossip.Label, Keys: x.keys}.Probe(ctx, addr)
	if err != nil && len(got.Members) == 0 {
		x.refusal(s, err)
		return
	}
	s.ok("TCP", "a state exchange went through")
	s.ok("label", "the node takes the label %q", x.cfg.Gossip.Label)
	switch {
	case got.KeyTaken > 0 || got.KeyUsed > 0:
		s.warn("keys", "during a change of keys this is normal; let each step reach all nodes before the next", "the node reads key %d of the file and writes with key %d", got.KeyTaken+1, got.KeyUsed+1)
	case got.KeyTaken == 0:
		s.ok("keys", "the node uses the first key of the file")
	case addr.Addr().IsLoopback():
		s.ok("keys", "the node does not encrypt, on this machine only")
	default:
		s.warn("keys", "make a key with `openssl rand -base64 32` and give it to all with --gossip-key-file", "gossip is not encrypted: whoever reaches the port can take part")
	}
	switch {
	case got.RoundTrip > 0:
		s.ok("UDP", "a packet came back in %.1f ms", float64(got.RoundTrip.Microseconds())/1000)
	case err != nil:
		s.fail("UDP", remedyUDP, "%v", err)
	default:
		s.fail("UDP", remedyUDP, "TCP yes, UDP no: the node answers over TCP, and no packet comes back")
	}
	switch {
	case got.RoundTrip == 0:
		s.skip("way back", "without UDP there is none")
	case got.PacketBack && got.StreamBack:
		s.ok("way back", "the node reaches other ports of this machine by UDP and TCP")
	case got.PacketBack:
		s.ok("way back", "the node reaches other ports of this machine by UDP")
	default:
		s.skip("way back", "the node does not reach other ports of this machine; policies may well open the gossip port alone")
	}
	x.members(s, addr, got)
}

// refusal says what an error of the probe means.
func (x *exam) refusal(s *subject, err error) {
	label := func() { s.ok("label", "the node takes the label %q", x.cfg.Gossip.Label) }
	noUDP := func() { s.skip("UDP", "nodes do not answer packets of strangers") }
	switch {
	case errors.Is(err, mesh.ErrOtherKey):
		s.ok("TCP", "connected")
		label()
		s.fail("keys", remedyKey, "wrong key: the node uses no key of %s", x.cfg.Gossip.KeyFile)
		noUDP()
	case errors.Is(err, mesh.ErrKeyWanted):
		s.ok("TCP", "connected")
		label()
		s.warn("keys", "give this command the fleet's --gossip-key-file to look further; agents and gateways without it cannot join", "the node encrypts, and this command has no key")
		noUDP()
	case errors.Is(err, mesh.ErrNoKey):
		s.ok("TCP", "connected")
		label()
		s.fail("keys", remedyKey, "the node does not encrypt, and there is a key file here")
		noUDP()
	case errors.Is(err, mesh.ErrHungUp):
		s.ok("TCP", "connected")
		s.fail("label", "give all of the fleet, and this command, the same --gossip-label; if it is, see --gossip-allowed-cidrs of that node", "wrong label: the node hangs up on the label %q (or it does not allow this network)", x.cfg.Gossip.Label)
		s.skip("keys", "the node did not listen so far")
		noUDP()
	case errors.Is(err, mesh.ErrNotANode):
		s.fail("TCP", "give the gossip port (7946 if nothing else was said)", "what answers there is no gossip node")
	default:
		s.fail("TCP", remedyTCP, "%v", inWords(err))
	}
}

// members judges what a node says of the others.
func (x *exam) members(s *subject, addr netip.AddrPort, got mesh.ProbeResult) {
	var gateways, agents int
	var local, newer []string
	pools := map[string]bool{}
	versions := map[string][]string{}
	for _, m := range got.Members {
		pools[m.Pool] = true
		role := "agent"
		switch m.Role {
		case mesh.RolePicker:
			role = "gateway"
			gateways++
		case mesh.RoleAgent:
			agents++
		}
		a, err := netip.ParseAddrPort(m.Addr)
		if err == nil && m.Role == mesh.RolePicker {
			s.gateways = append(s.gateways, a)
		}
		if err == nil && a.Addr().IsLoopback() != addr.Addr().IsLoopback() {
			local = append(local, m.Name+" at "+m.Addr)
		}
		if !wire.Supported(wire.Version, m.WireVersion) || !wire.Supported(m.WireVersion, wire.Version) {
			newer = append(newer, fmt.Sprintf("%s (%d)", m.Name, m.WireVersion))
		}
		versions[strconv.Itoa(int(m.WireVersion))] = append(versions[strconv.Itoa(int(m.WireVersion))], m.Name)
		s.seeds = append(s.seeds, seed{who: role + " " + m.Name, pool: m.Pool, fingerprint: m.SeedFingerprint})
	}
	found := fmt.Sprintf("%s and %s, pools: %s", plural(gateways, "gateway"), plural(agents, "agent"), strings.Join(sortedKeys(pools), ", "))
	switch {
	case len(local) > 0:
		s.fail("members", "give these --gossip-advertise with an address that others reach", "some on one host, some not, which cannot reach each other: %s", some(local))
	case gateways == 0:
		s.fail("members", "give the agents' --gossip-join a name that stands for the gateways", "%s: agents have nobody to tell", found)
	case agents == 0:
		s.warn("members", "do agents run, and does their --gossip-join name this fleet?", "%s: gateways know of no cache", found)
	default:
		s.ok("members", "%s", found)
	}
	switch {
	case len(newer) > 0:
		s.fail("messages", "update the older side: gateways first, then agents", "some speak a version of the messages that %d does not go with: %s", wire.Version, some(newer))
	case len(versions) > 1:
		s.warn("messages", "fine during an update; gateways first, agents as their pods are replaced", "mixed versions of the messages: %s", groups(versions))
	default:
		s.ok("messages", "all speak version %s", strings.Join(sortedKeys(versions), ", "))
	}
}
