package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// state is how far Kubernetes lets something be used.
type state uint8

const (
	notReady state = iota
	ready
	terminating // marked for deletion
	ended       // Succeeded or Failed: its address may be another's by now
)

// pod is what matters of a Pod.
type pod struct {
	ip    string // the first of its addresses, which is also the one that its agent tells; empty: none yet
	state state
}

// poolSpec is what matters of an InferencePool.
type poolSpec struct {
	selector string // of labels, as the API server reads it
	ports    []int32
	protocol string
}

// slice is what matters of an EndpointSlice.
type slice struct {
	family  string
	ports   []slicePort
	members []sliceMember
}

type slicePort struct {
	name   string
	number int32 // 0: any
}

type sliceMember struct {
	address string
	target  string // the pod behind it; empty: unknown
	state   state
}

// set is the answer for one pool.
type set struct {
	endpoints   []string // eligible, host:port, sorted, each once
	notReady    int      // pods, or members of a Service
	terminating int
	note        string // what an operator should know; empty: nothing
}

// podSet is the set of an InferencePool. A pod counts once for each port.
func podSet(spec poolSpec, pods map[string]pod) set {
	var s set
	s.endpoints = make([]string, 0, len(pods)*len(spec.ports))
	for _, p := range pods {
		switch {
		case p.state == terminating:
			s.terminating++
		case p.state == ready && p.ip != "":
			for _, port := range spec.ports {
				if !usable(p.ip, port) {
					s.note = max(s.note, unusable(p.ip, port))
					continue
				}
				s.endpoints = append(s.endpoints, hostPort(p.ip, port))
			}
		case p.state != ended:
			s.notReady++
		}
	}
	s.endpoints = sorted(s.endpoints)
	if spec.protocol == protocolH2C && s.note == "" {
		s.note = "appProtocol " + protocolH2C + ": this gateway's own proxy speaks HTTP/1.1 with endpoints; behind ext_proc the gateway in front speaks with them"
	}
	return s
}

// usable reports whether an address can be one of an endpoint. The API server looks at no port of an EndpointSlice, and one
// that can't be must not keep the others from the picker.
func usable(ip string, port int32) bool {
	a, err := netip.ParseAddr(ip)
	return err == nil && a.Zone() == "" && 1 <= port && port <= 65535
}

func unusable(ip string, port int32) string {
	return fmt.Sprintf("%q with port %d is no address of an endpoint: left out", ip, port)
}

const protocolH2C = "kubernetes.io/h2c"

// sliceSet is the set of a Service's port, given by name or number; empty: the only one.
//
// A pod that has addresses of both families is one endpoint, by IPv4. A member that is in several slices, as it may be
// while slices change, is one; it is terminating if any of them says so.
func sliceSet(port string, parts map[string]slice) set {
	families := map[string]bool{}
	for _, p := range parts {
		if len(p.members) > 0 {
			families[p.family] = true
		}
	}
	type key struct{ address, target string }
	states := map[key]state{}
	ports := map[string]bool{} // that there are
	found, bad := false, ""
	for _, p := range parts {
		if p.family == familyNames || p.family == familyIPv6 && families[familyIPv4] {
			continue
		}
		for _, n := range p.ports {
			ports[n.String()] = true
		}
		number, ok := p.port(port)
		if !ok {
			continue
		}
		found = true
		for _, m := range p.members {
			if !usable(m.address, number) {
				bad = max(bad, unusable(m.address, number))
				continue
			}
			k := key{hostPort(m.address, number), m.target}
			states[k] = max(states[k], m.state)
		}
	}
	s := set{endpoints: make([]string, 0, len(states))}
	for k, st := range states {
		switch st {
		case terminating:
			s.terminating++
		case ready:
			s.endpoints = append(s.endpoints, k.address)
		default:
			s.notReady++
		}
	}
	s.endpoints = sorted(s.endpoints)
	switch {
	case len(parts) == 0:
		s.note = "no EndpointSlice: there is no such Service, or it selects no pod"
	case !found && len(ports) > 0 && port == "":
		s.note = "the Service has several ports: name one of " + list(ports)
	case !found && len(ports) > 0:
		s.note = fmt.Sprintf("no port %s: the EndpointSlices have %s (by name or number; the number is the pods' own, not the Service's)", port, list(ports))
	case bad != "":
		s.note = bad
	case !found && families[familyNames]:
		s.note = "EndpointSlices of names (FQDN) are not supported: give these hosts as --endpoints"
	}
	return s
}

// Address types of EndpointSlices.
const (
	familyIPv4  = "IPv4"
	familyIPv6  = "IPv6"
	familyNames = "FQDN"
)

// port finds the port asked for in a slice.
func (s slice) port(want string) (number int32, ok bool) {
	if want == "" {
		if len(s.ports) != 1 {
			return 0, false
		}
		return s.ports[0].number, s.ports[0].number != 0
	}
	n, err := strconv.Atoi(want)
	for _, p := range s.ports {
		switch {
		case err != nil && p.name == want:
			return p.number, p.number != 0
		case err == nil && (p.number == int32(n) || p.number == 0):
			return int32(n), true
		}
	}
	return 0, false
}

func (p slicePort) String() string {
	if p.name == "" {
		return strconv.Itoa(int(p.number))
	}
	return p.name + " (" + strconv.Itoa(int(p.number)) + ")"
}

func list(names map[string]bool) string {
	out := make([]string, 0, len(names))
	for n := range names {
		out = append(out, n)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// sorted sorts in place and drops what is there twice.
func sorted(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}

// union is all endpoints of several sets.
func union(sets map[string]*set) []string {
	out := []string{}
	for _, s := range sets {
		out = append(out, s.endpoints...)
	}
	return sorted(out)
}
