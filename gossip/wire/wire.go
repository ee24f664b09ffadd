package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/zeebo/xxh3"
)

// Version is the protocol version that this package writes.
const Version = 1

// Size limits of whole messages.
const (
	// MaxPacketBytes bounds TICK, NACK, HELLO, HINT and a SEG of one segment. memberlist
	// v0.7.0 sends datagrams of up to 1400 B (Config.UDPBufferSize), of which AES-GCM
	// takes 29, its message types and compound headers 9, and a label 2 + its length.
	MaxPacketBytes = 1300
	// MaxMessageBytes bounds INFO and bulk SEG, which travel over a stream.
	MaxMessageBytes = 512 << 10
)

// Type is a message number.
type Type uint8

// The message numbers. Append only.
const (
	TypeInfo Type = 1 + iota
	TypeTick
	TypeNack
	TypeSegment
	TypeHello
	TypeVV
	TypeVVReq
	TypeRelay
	TypeHint
	TypeLearn
)

// Errors of Decode. Reason names them for counters.
var (
	ErrShort    = errors.New("packet ends early")
	ErrVersion  = errors.New("protocol version not supported")
	ErrType     = errors.New("unknown message type")
	ErrLimit    = errors.New("over a limit of the format")
	ErrInvalid  = errors.New("invalid value")
	ErrChecksum = errors.New("checksum mismatch")
)

// Reason returns a short constant name of a decode error for a counter's label:
// "short", "version", "type", "limit", "invalid", "checksum"; "other" for any
// other error.
func Reason(err error) string {
	switch {
	case errors.Is(err, ErrShort):
		return "short"
	case errors.Is(err, ErrVersion):
		return "version"
	case errors.Is(err, ErrType):
		return "type"
	case errors.Is(err, ErrLimit):
		return "limit"
	case errors.Is(err, ErrInvalid):
		return "invalid"
	case errors.Is(err, ErrChecksum):
		return "checksum"
	}
	return "other"
}

// Supported reports whether a reader of protocol version reader understands
// packets of version v: its own and the two before it.
func Supported(reader, v uint8) bool {
	return v >= 1 && v <= reader && reader-v <= 2
}

// Header starts every message.
type Header struct {
	Version uint8
	Type    Type
	Node    uint64 // NodeHash of the sender
}

const headerBytes = 10

func appendHeader(dst []byte, t Type, node uint64) []byte {
	dst = append(dst, Version, byte(t))
	return binary.LittleEndian.AppendUint64(dst, node)
}

// DecodeHeader reads the header alone. It returns ErrShort or ErrVersion; the
// header is filled as far as it could be read.
func DecodeHeader(b []byte) (Header, error) {
	if len(b) < headerBytes {
		return Header{}, fmt.Errorf("decode header of %d bytes: %w", len(b), ErrShort)
	}
	h := Header{Version: b[0], Type: Type(b[1]), Node: binary.LittleEndian.Uint64(b[2:])}
	if !Supported(Version, h.Version) {
		return h, fmt.Errorf("decode header: version %d, this build reads up to %d: %w", h.Version, Version, ErrVersion)
	}
	return h, nil
}

// Message is one of *Info, *Tick, *Nack, *Segment, *Hello, *Hint.
type Message interface {
	// Append encodes the message, sent by the node with the given NodeHash, at the
	// end of dst.
	Append(dst []byte, node uint64) []byte
	decode(r *reader)
}

// Decode reads one message. The message holds no reference to b. It returns
// ErrShort, ErrVersion, ErrType, ErrLimit, ErrInvalid or ErrChecksum, wrapped, and
// then no message; the header is returned if it could be read.
func Decode(b []byte) (Header, Message, error) {
	h, err := DecodeHeader(b)
	if err != nil {
		return h, nil, err
	}
	var m Message
	limit := MaxPacketBytes
	switch h.Type {
	case TypeInfo:
		m, limit = new(Info), MaxMessageBytes
	case TypeTick:
		m = new(Tick)
	case TypeNack:
		m = new(Nack)
	case TypeSegment:
		m, limit = new(Segment), MaxMessageBytes
	case TypeHello:
		m = new(Hello)
	case TypeHint:
		m = new(Hint)
	default:
		return h, nil, fmt.Errorf("decode message type %d: %w", h.Type, ErrType)
	}
	if len(b) > limit {
		return h, nil, fmt.Errorf("decode message type %d of %d bytes, limit %d: %w", h.Type, len(b), limit, ErrLimit)
	}
	r := reader{b: b[headerBytes:]}
	m.decode(&r)
	if r.err != nil {
		return h, nil, fmt.Errorf("decode message type %d: %w", h.Type, r.err)
	}
	return h, m, nil
}

// Key names one stream of ticks: one data-parallel rank of one endpoint.
type Key struct {
	Endpoint uint64 // EndpointKey
	Rank     uint16
}

// Less orders keys by endpoint, then rank.
func (k Key) Less(o Key) bool {
	if k.Endpoint != o.Endpoint {
		return k.Endpoint < o.Endpoint
	}
	return k.Rank < o.Rank
}

// EndpointKey identifies an endpoint over restarts of its pod's processes: a hash
// of the pool and of the engine's serving address, "host:port". All ways to write
// an IP address give the same key.
func EndpointKey(pool, address string) uint64 {
	if a, err := netip.ParseAddrPort(address); err == nil {
		address = netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
	}
	return xxh3.HashString(pool + "\x00" + address)
}

// NodeHash is the short form of a memberlist node name that headers carry.
func NodeHash(nodeName string) uint64 { return xxh3.HashString(nodeName) }

// Tier is a set of memory tiers that a digest covers.
type Tier uint8

// The tiers: blocks in GPU memory; blocks in any tier, GPU included.
const (
	TierGPU Tier = 0
	TierAll Tier = 1
)

// Tiers is the number of tiers.
const Tiers = 2
