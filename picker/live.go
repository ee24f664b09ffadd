package picker

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/view"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// liveView is what changes with every tick of a stream.
type liveView = view.Live

// liveFacts is one reading of it.
type liveFacts struct {
	*view.Facts
	age   time.Duration
	stale bool
}

// readLive reads l by the clock of the view that it belongs to.
func readLive(l *liveView, clock time.Time) liveFacts {
	f := l.Facts()
	return liveFacts{Facts: f, age: l.Age(clock), stale: l.Stale(clock)}
}

func gapOpen(l *liveView) bool { return l != nil && l.Facts().GapOpen }

func newView(cfg *Config, h blockhash.Hasher, seed uint64, changed func(wire.Key)) *view.View {
	return view.New(view.Config{
		Node: cfg.Gossip.NodeName, Pool: cfg.Pool, SeedFingerprint: h.Fingerprint(), Seed: seed,
		MaxStreams: cfg.Gossip.MaxStreams, StaleAfter: cfg.Gossip.StaleAfter, PollEvery: repairPause,
		OnChange: changed,
	})
}

func (p *Picker) newMesh() (*mesh.Mesh, error) {
	g := &p.cfg.Gossip
	bindAddr, bindPort, err := splitGossip(g.Bind)
	if err != nil {
		return nil, fmt.Errorf("gossip.bind %q: %w", g.Bind, err)
	}
	advertiseAddr, advertisePort, err := splitGossip(g.Advertise)
	if err != nil {
		return nil, fmt.Errorf("gossip.advertise %q: %w", g.Advertise, err)
	}
	return mesh.New(mesh.Config{
		NodeName: g.NodeName, Role: mesh.RolePicker, Pool: p.cfg.Pool, Label: g.Label,
		BindAddr: bindAddr, BindPort: bindPort, AdvertiseAddr: advertiseAddr, AdvertisePort: advertisePort,
		Join: g.Join, KeyFile: g.KeyFile, AllowedCIDRs: g.AllowedCIDRs, SeedFingerprint: p.hasher.Fingerprint(),
		Logger: p.log, Handler: (*listener)(p),
	})
}

// splitGossip reads host:port, where the host may be missing; an empty string gives neither.
func splitGossip(s string) (host string, port int, err error) {
	if s == "" {
		return "", 0, nil
	}
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return host, int(n), err
}

// listener is the picker as the mesh sees it.
type listener Picker

// Message takes in a gossip message; what is wrong with it is counted there.
func (p *listener) Message(now time.Time, b []byte) {
	_ = (*Picker)(p).take(now, b)
}

// take gives a gossip packet to whom it concerns.
func (p *Picker) take(now time.Time, b []byte) error {
	if h, err := wire.DecodeHeader(b); err == nil && h.Type == wire.TypeHint {
		return p.hear(now, b)
	}
	p.viewMu.Lock()
	defer p.viewMu.Unlock()
	return p.view.Apply(now, b)
}

// NodeUp tells the view of a node.
func (p *listener) NodeUp(now time.Time, m mesh.Member) {
	if m.Pool != p.cfg.Pool {
		return
	}
	if m.Role == mesh.RolePicker {
		(*Picker)(p).gatewayUp(m)
		return
	}
	if m.SeedFingerprint != p.hasher.Fingerprint() {
		p.log.Error("agent hashes blocks with another seed: its digest is not used", keyNode, m.Name)
	}
	p.viewMu.Lock()
	defer p.viewMu.Unlock()
	p.view.NodeUp(now, m.Name)
}

// NodeDown tells the view that a node has gone.
func (p *listener) NodeDown(now time.Time, m mesh.Member) {
	if m.Role == mesh.RolePicker {
		(*Picker)(p).gatewayDown(now, m)
		return
	}
	p.viewMu.Lock()
	defer p.viewMu.Unlock()
	p.view.NodeDown(now, m.Name)
}

// repair sends what the view wants to ask the agents.
func (p *Picker) repair(now time.Time) {
	if p.mesh == nil {
		return
	}
	p.viewMu.Lock()
	outs := p.view.Poll(now)
	p.viewMu.Unlock()
	for _, o := range outs {
		var err error
		if o.Reliable {
			err = p.mesh.SendReliable(o.Node, o.Packet)
		} else {
			err = p.mesh.Send(o.Node, o.Packet)
		}
		if err != nil {
			p.log.Debug("repair message not sent", keyError, err) // the view asks again
		}
	}
}
