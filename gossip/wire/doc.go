// Package wire is Grapevine's gossip format: what an agent and a gateway say to
// each other about KV-cache blocks, and gateways to each other about requests. It
// encodes, decodes and checks; it knows nothing of sockets, clocks or of what a
// message leads to.
//
// # Format
//
// Fixed-width integers are little-endian. uv is an unsigned LEB128 varint of at
// most 64 bits. str is uv length + UTF-8 bytes. f32 is an IEEE 754 single,
// finite and not negative. Durations are uv in the unit given.
//
// Every message starts with the header:
//
//	version  u8    protocol version, 1
//	type     u8    message number, see below
//	node     u64   NodeHash of the sender's node name
//
// Then come the fixed fields of its type, in the order below, then optional
// fields up to the end of the packet, each
//
//	tag u8, length uv, value (length bytes)
//
// in any order. Of a tag that appears twice the later one counts, unless it is
// marked "repeated".
//
//	1 INFO   infoVersion uv, seedFingerprint u32
//	         1 node str          2 pool str          3 pod str
//	         4 address str       5 blockSize uv      6 numBlocks uv
//	         7 maxModelLen uv    8 maxNumSeqs uv     9 engine str
//	         10 engineVersion str                    11 draining (empty)
//	         12 model, repeated: name str, parent str, maxLen uv
//	         13 rank, repeated: rank u16, epoch uv, GPU geometry, ALL geometry
//	         14 kvEvents str
//	2 TICK   endpoint u64, rank u16, epoch uv, tickNo uv, interval uv (ms),
//	         flags uv, infoVersion uv
//	         1 load: running uv, waiting uv, blocks total uv, used uv, cached uv,
//	           free uv, victimIdle uv (ms), prefillOverhead uv (µs),
//	           prefillPerToken f32 (s), prefillQuadratic f32 (s), decodeStep uv
//	           (µs), decodePerToken f32 (s), hitTokens uv, queryTokens uv,
//	           bits u8 (1 = prefill speed is fitted)
//	         2 health: gpus u8, fault u8, slowdown f32, memUsed uv (B),
//	           memTotal uv (B), util u8 (%), bits u8 (1 = known)
//	         3 GPU SET, 4 GPU CLEAR, 5 ALL SET, 6 ALL CLEAR: position lists
//	         7 CRCs: uv count, then count × (tier u8, segment u16, crc u32)
//	3 NACK   endpoint u64, rank u16, epoch uv
//	         1 ticks: from uv, to uv (inclusive)
//	         2 segments: tier u8, uv count, count × u16
//	         3 wantInfo (empty)
//	4 SEG    endpoint u64, rank u16, epoch uv, tickNo uv, tier u8, geometry,
//	         index uv, words uv, words × u64, crc u32 (CRC32C of the words)
//	5 HELLO  node str
//	         1 known, repeated: endpoint u64, rank u16, epoch uv, tickNo uv
//
//	9 HINT   number uv, held uv
//	         1 bound, repeated: id uv, endpoint u64, rank u16, age uv (ms),
//	           promptTokens uv, cachedTokens uv, blocks uv, last u64, before u64,
//	           first uv, count uv, points uv, points × u32, bits u8 (1 = told)
//	         2 over: ids, each uv, to the end
//	         3 ended: the same
//
// Numbers 6 VV, 7 VVREQ, 8 RELAY and 10 LEARN are taken. Message numbers and tags
// are append-only.
//
// A geometry is buckets uv, k u8; both 0 means no digest of that tier. A
// bucket is 64 bits (one word); bit position p is bit p%64 of word p/64. A
// segment is 128 consecutive words (1 KiB), the last one may be shorter. A SEG
// packet that goes by datagram holds one segment; over a stream it may hold up to
// MaxSegmentsPerMessage consecutive ones.
//
// A position list is sorted and without repeats: uv count, parameter u8 r, then a
// bit string, least significant bit of each byte first: for every position its
// distance to the one before it less one (the first: the position itself) as a
// Rice code: distance>>r one-bits, a zero-bit, the r low bits. Unused bits of the
// last byte are zero. At 1,250 block changes a second this costs about 3.5 B a
// changed block.
//
// # Meaning
//
// A tick's position lists are assignments, not toggles, and carry their tick
// number; a segment carries the number of the tick after which it is true. So
// applying a message twice changes nothing, and any order of delivery ends in the
// same state if later numbers win per bit. In one tick CLEAR comes before SET.
//
// # Compatibility
//
// A reader skips optional fields that it does not know, and bytes after the last
// field that it knows inside load, health, model, rank and bound, which may grow
// at their end. Version rises only when a fixed field changes; a reader accepts its
// own version and the two before it, see [Supported]. Packets of version 1 stay in
// testdata for ever.
//
// # Limits
//
// TICK, NACK, HELLO and HINT are at most MaxPacketBytes, so that they fit memberlist's
// datagrams with encryption and label; INFO and SEG at most MaxMessageBytes. Every
// count and length is checked against the bytes at hand before memory is taken;
// a message is decoded whole or not at all.
package wire
