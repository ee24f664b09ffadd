package mesh

// Stats are counters since start, and two gauges.
type Stats struct {
	Members         int    // other nodes that are up
	HealthScore     int    // memberlist's own: 0 is healthy, higher is late or lossy
	SentPackets     uint64 // Send
	SentBytes       uint64 // payload of Send
	SendErrors      uint64
	ReceivedPackets uint64 // messages from other nodes, both paths
	ReceivedBytes   uint64
	InboxDropped    uint64 // oldest messages dropped, the handler was too slow
	HandoffDropped  uint64 // messages that memberlist dropped, its queue was full
	ReliableSent    uint64
	ReliableFailed  uint64
	ReliableFull    uint64 // SendReliable refused, queue full
	JoinFailures    uint64 // rounds in which no listed node answered
	KeyMismatches   uint64 // packets and streams made with another gossip key
	LabelMismatches uint64
	HungUp          uint64 // listed nodes that hung up before the first join, as on another label
	ForeignMeta     uint64 // nodes whose meta could not be read
	RefusedByCIDR   uint64 // packets and streams from networks not allowed
	NameConflicts   uint64
	KeyReloads      uint64
	KeyErrors       uint64 // changed key files that could not be used
}

// Stats returns the counters as they stand.
func (m *Mesh) Stats() Stats {
	m.mu.RLock()
	ml, members := m.ml, len(m.peers)
	m.mu.RUnlock()
	s := Stats{
		Members:         members,
		SentPackets:     m.sentPackets.Load(),
		SentBytes:       m.sentBytes.Load(),
		SendErrors:      m.sendErrors.Load(),
		ReceivedPackets: m.receivedPackets.Load(),
		ReceivedBytes:   m.receivedBytes.Load(),
		InboxDropped:    m.inbox.dropped.Load(),
		HandoffDropped:  m.logs.count[logHandoff].Load(),
		ReliableSent:    m.reliableSent.Load(),
		ReliableFailed:  m.reliableFailed.Load(),
		ReliableFull:    m.reliableOverflow.Load(),
		JoinFailures:    m.joinFailures.Load(),
		KeyMismatches:   m.logs.count[logKey].Load(),
		LabelMismatches: m.logs.count[logLabel].Load(),
		HungUp:          m.logs.count[logHungUp].Load(),
		ForeignMeta:     m.foreignMeta.Load(),
		RefusedByCIDR:   m.refused.Load(),
		NameConflicts:   m.conflicts.Load(),
		KeyReloads:      m.keyReloads.Load(),
		KeyErrors:       m.keyErrors.Load(),
	}
	if ml != nil {
		s.HealthScore = ml.GetHealthScore()
	}
	return s
}
