package mesh

import (
	"bytes"
	"log/slog"

	"github.com/hashicorp/memberlist"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// memberlist calls the types of this file from its own goroutines, sometimes
// under its locks: they copy, enqueue and return.

type delegate struct{ m *Mesh }

var _ memberlist.Delegate = delegate{}

// NodeMeta implements [memberlist.Delegate]. Config.Validate keeps the meta below
// the limit, over which memberlist panics.
func (d delegate) NodeMeta(int) []byte { return d.m.meta }

// NotifyMsg implements [memberlist.Delegate].
func (d delegate) NotifyMsg(b []byte) {
	if len(b) == 0 {
		return
	}
	d.m.receivedPackets.Add(1)
	d.m.receivedBytes.Add(uint64(len(b)))
	d.m.inbox.putMessage(bytes.Clone(b))
}

// GetBroadcasts implements [memberlist.Delegate]: digests never use the
// broadcast queue.
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements [memberlist.Delegate]: it would go to agents as well.
func (delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements [memberlist.Delegate].
func (delegate) MergeRemoteState([]byte, bool) {}

type events struct{ m *Mesh }

var _ memberlist.EventDelegate = events{}

// NotifyJoin implements [memberlist.EventDelegate].
func (e events) NotifyJoin(n *memberlist.Node) { e.m.nodeUp(n) }

// NotifyUpdate implements [memberlist.EventDelegate].
func (e events) NotifyUpdate(n *memberlist.Node) { e.m.nodeUp(n) }

// NotifyLeave implements [memberlist.EventDelegate].
func (e events) NotifyLeave(n *memberlist.Node) {
	hash := wire.NodeHash(n.Name)
	e.m.mu.Lock()
	p, ok := e.m.peers[hash]
	delete(e.m.peers, hash)
	e.m.mu.Unlock()
	if !ok {
		return
	}
	e.m.log.Info("gossip node gone", memberAttrs(p.member)...)
	if p.member.Role == RolePicker {
		select {
		case e.m.lost <- struct{}{}:
		default:
		}
	}
	e.m.strangers.forget(p.member.Addr)
	e.m.inbox.putChange(change{member: p.member})
}

func (m *Mesh) nodeUp(n *memberlist.Node) {
	if n.Name == m.cfg.NodeName {
		return
	}
	info, err := decodeMeta(n.Meta)
	if err != nil {
		m.foreignMeta.Add(1)
		m.log.Warn("gossip node of another kind, ignored", slog.String(keyNode, n.Name), slog.String(keyAddr, n.Address()),
			slog.String(keyRemedy, "give each fleet its own gossip label"))
		return
	}
	p := peer{
		node:   *n,
		member: info.of(n.Name, n.Address()),
	}
	p.node.Meta = nil
	m.strangers.know(p.member.Addr)
	m.mu.Lock()
	m.peers[p.member.Hash] = p
	m.mu.Unlock()
	m.log.Info("gossip node up", memberAttrs(p.member)...)
	m.inbox.putChange(change{member: p.member, up: true})
}

func memberAttrs(m Member) []any {
	return []any{slog.String(keyNode, m.Name), slog.String(keyRole, m.Role.String()), slog.String(keyPool, m.Pool), slog.String(keyAddr, m.Addr)}
}

type conflicts struct{ m *Mesh }

var _ memberlist.ConflictDelegate = conflicts{}

// NotifyConflict implements [memberlist.ConflictDelegate].
func (c conflicts) NotifyConflict(existing, other *memberlist.Node) {
	c.m.conflicts.Add(1)
	c.m.log.Error("two gossip nodes have one name", slog.String(keyNode, existing.Name), slog.String(keyAddr, existing.Address()),
		slog.String("other", other.Address()), slog.String(keyRemedy, "give each process its own node name, or none at all"))
}
