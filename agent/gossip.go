package agent

import (
	"log/slog"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/digest"
	"github.com/grapevine-llm/grapevine/gossip/mesh"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

var _ mesh.Handler = (*unit)(nil)

// Message implements [mesh.Handler]: gateways ask.
func (u *unit) Message(now time.Time, b []byte) {
	h, msg, err := wire.Decode(b)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		u.counts.badMessages++
		u.log.Debug("drop gossip message", slog.String(keyReason, wire.Reason(err)), slog.Any(keyErr, err))
		return
	}
	switch m := msg.(type) {
	case *wire.Nack:
		u.counts.nacks++
		if m.WantInfo {
			u.sendInfo(h.Node)
		}
		if s := u.streamOf(m.Key); s != nil {
			u.reply(h.Node, s.nack(now, m))
		}
	case *wire.Hello:
		u.counts.hellos++
		epochs := false
		var replies []digest.Reply
		for _, s := range u.streams {
			before := s.pub.Epoch()
			replies = append(replies, s.hello(now, knownOf(m, s.cfg.key))...)
			epochs = epochs || s.pub.Epoch() != before
		}
		if epochs {
			u.log.Warn("a gateway knows a later epoch, going above it: the clock went back, or somebody uses this endpoint's name", slog.String(keyNode, m.Node))
			u.announce()
		}
		u.sendInfo(h.Node)
		u.reply(h.Node, replies)
		u.poke()
	}
}

func knownOf(m *wire.Hello, key wire.Key) *wire.KnownStream {
	for i := range m.Known {
		if m.Known[i].Key == key {
			return &m.Known[i]
		}
	}
	return nil
}

// streamOf finds a stream; the caller holds mu.
func (u *unit) streamOf(key wire.Key) *stream {
	if s := u.streams[key.Rank]; s != nil && s.cfg.key == key {
		return s
	}
	return nil
}

// reply sends answers to one gateway; the caller holds mu.
func (u *unit) reply(node uint64, replies []digest.Reply) {
	for _, r := range replies {
		send := u.mesh.Send
		if r.Reliable {
			send = u.mesh.SendReliable
		}
		if err := send(node, r.Packet); err != nil {
			u.counts.sendErrors++
		}
	}
}

// NodeUp implements [mesh.Handler].
func (u *unit) NodeUp(_ time.Time, m mesh.Member) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case m.Role == mesh.RoleAgent:
		u.countAgents()
	case m.Role == mesh.RolePicker && (m.Pool == u.cfg.Pool || m.Pool == ""):
		if m.SeedFingerprint != u.info.SeedFingerprint {
			u.log.Error("gateway hashes blocks with another seed, it will match nothing", slog.String(keyNode, m.Name),
				slog.String(keyRemedy, "give agents and gateways of the pool the same --seed-file"))
		}
		if !wire.Supported(m.WireVersion, wire.Version) {
			u.log.Error("gateway cannot read this agent's messages", slog.String(keyNode, m.Name), slog.Int(keyVersion, int(m.WireVersion)),
				slog.String(keyRemedy, "update the gateway"))
		}
		u.pickers[m.Hash] = m
		u.sendInfo(m.Hash)
		u.poke()
	case m.Role == mesh.RolePicker:
		u.log.Info("gateway routes for another pool, it is told nothing", slog.String(keyNode, m.Name), slog.String(keyPool, m.Pool),
			slog.String(keyRemedy, "if it should route to this engine, give both the same --pool"))
	}
}

// NodeDown implements [mesh.Handler].
func (u *unit) NodeDown(_ time.Time, m mesh.Member) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.pickers, m.Hash)
	if m.Role == mesh.RoleAgent {
		u.countAgents()
	}
}

// countAgents adapts the shortest time between ticks to the fleet; the caller
// holds mu.
func (u *unit) countAgents() {
	u.agents = 0
	for _, m := range u.mesh.Members() {
		if m.Role == mesh.RoleAgent {
			u.agents++
		}
	}
	for _, s := range u.streams {
		s.setMinInterval(u.minInterval())
	}
}

func (u *unit) minInterval() time.Duration {
	return max(u.cfg.Digest.MinInterval, time.Duration(u.agents+1)*packetsPerPicker)
}
