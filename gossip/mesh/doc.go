// Package mesh is the shell around hashicorp/memberlist: who is there, how to
// reach them, and the keys they share. It owns membership, failure detection,
// the keyring, joining, and the two paths for the project's messages: single
// UDP packets and reliable streams. It does not know what is in a message:
// gossip/digest and gossip/view make and read them.
//
// A Mesh is used like this:
//
//	m, err := mesh.New(cfg)                 // binds the sockets, starts nothing
//	go m.Run(ctx)                           // joins; calls cfg.Handler; leaves when ctx ends
//	m.Send(node, packet)                    // one UDP packet, best effort
//	m.SendReliable(node, packet)            // queued, own stream, bounded time
//
// # Node meta
//
// Each node announces itself to the others with a few bytes that memberlist
// carries (at most 512; more would make memberlist panic). Version 1, integers
// big-endian:
//
//	1  meta version (1)
//	1  role: 1 agent, 2 picker
//	1  wire protocol version of the node's messages
//	4  fingerprint of the seed that block hashes are made with
//	1  length of the pool's name
//	n  pool
//
// Bytes behind that belong to later versions and are skipped. A node whose meta
// cannot be read takes part in membership, is counted, and is not reported.
package mesh
