package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

// Limits of INFO. Geometries have those of package bloom.
const (
	MaxStringBytes = 256
	MaxModels      = 512
	MaxRanks       = 32 // per endpoint; also streams in a HELLO
)

// Info is what changes rarely about an endpoint. It replaces the INFO before it
// of the same node as a whole.
type Info struct {
	Node            string // memberlist node name of the agent
	Pool            string
	Pod             string // namespace/name; informal
	Address         string // URL that gateways send requests to, e.g. http://10.0.0.5:8000
	Version         uint32 // rises with every change; 0 is never sent
	SeedFingerprint uint32 // blockhash.Hasher.Fingerprint
	BlockSize       uint32 // tokens; 0: not known yet
	NumBlocks       uint32
	MaxModelLen     uint32
	MaxNumSeqs      uint32
	Engine          string // "vllm", "sglang"
	EngineVersion   string
	Draining        bool
	Models          []Model
	Ranks           []RankInfo
	KVEvents        string // "ok", "silent", "absent", or why there are none
}

// Model is a model that the endpoint serves; Parent is set for a LoRA adapter.
type Model struct {
	Name, Parent string
	MaxLen       uint32 // tokens; 0: the endpoint's MaxModelLen
}

// RankInfo describes the digests of one data-parallel rank.
type RankInfo struct {
	Rank  uint16
	Epoch uint64
	GPU   bloom.Geometry
	All   bloom.Geometry // Buckets == 0: there is no lower tier
}

// Key returns the key of the endpoint's stream for a rank: EndpointKey of the pool
// and the host:port part of Address.
func (in *Info) Key(rank uint16) Key {
	addr := in.Address
	if _, rest, ok := strings.Cut(addr, "://"); ok {
		addr = rest
	}
	addr, _, _ = strings.Cut(addr, "/")
	return Key{Endpoint: EndpointKey(in.Pool, addr), Rank: rank}
}

// Validate reports strings and lists that a decoder would refuse. Call it when the
// Info is made; Append does not check.
func (in *Info) Validate() error {
	var errs []error
	text := func(what, s string) {
		if len(s) > MaxStringBytes {
			errs = append(errs, fmt.Errorf("%s of %d bytes, limit %d: %w", what, len(s), MaxStringBytes, ErrLimit))
		}
	}
	text("node", in.Node)
	text("pool", in.Pool)
	text("pod", in.Pod)
	text("address", in.Address)
	text("engine", in.Engine)
	text("engine version", in.EngineVersion)
	text("kv events", in.KVEvents)
	for _, m := range in.Models {
		text("model name", m.Name)
		text("parent model name", m.Parent)
	}
	if len(in.Models) > MaxModels {
		errs = append(errs, fmt.Errorf("%d models, limit %d: %w", len(in.Models), MaxModels, ErrLimit))
	}
	if len(in.Ranks) > MaxRanks {
		errs = append(errs, fmt.Errorf("%d ranks, limit %d: %w", len(in.Ranks), MaxRanks, ErrLimit))
	}
	for _, k := range in.Ranks {
		for _, g := range []bloom.Geometry{k.GPU, k.All} {
			if err := checkGeometry(g); err != nil {
				errs = append(errs, fmt.Errorf("rank %d: %w", k.Rank, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Append encodes the message at the end of dst.
func (in *Info) Append(dst []byte, node uint64) []byte {
	dst = appendHeader(dst, TypeInfo, node)
	dst = binary.AppendUvarint(dst, uint64(in.Version))
	dst = binary.LittleEndian.AppendUint32(dst, in.SeedFingerprint)
	dst = appendStringField(dst, 1, in.Node)
	dst = appendStringField(dst, 2, in.Pool)
	dst = appendStringField(dst, 3, in.Pod)
	dst = appendStringField(dst, 4, in.Address)
	dst = appendUintField(dst, 5, in.BlockSize)
	dst = appendUintField(dst, 6, in.NumBlocks)
	dst = appendUintField(dst, 7, in.MaxModelLen)
	dst = appendUintField(dst, 8, in.MaxNumSeqs)
	dst = appendStringField(dst, 9, in.Engine)
	dst = appendStringField(dst, 10, in.EngineVersion)
	if in.Draining {
		dst = append(dst, 11, 0)
	}
	for _, m := range in.Models {
		dst = appendField(dst, 12, func(b []byte) []byte {
			b = appendString(b, m.Name)
			b = appendString(b, m.Parent)
			return binary.AppendUvarint(b, uint64(m.MaxLen))
		})
	}
	for _, k := range in.Ranks {
		dst = appendField(dst, 13, func(b []byte) []byte {
			b = binary.LittleEndian.AppendUint16(b, k.Rank)
			b = binary.AppendUvarint(b, k.Epoch)
			b = appendGeometry(b, k.GPU)
			return appendGeometry(b, k.All)
		})
	}
	return appendStringField(dst, 14, in.KVEvents)
}

func (in *Info) decode(r *reader) {
	in.Version = r.uv32("info version")
	in.SeedFingerprint = r.u32()
	r.fields(func(tag uint8, v *reader) {
		switch tag {
		case 1:
			in.Node = v.text("node")
		case 2:
			in.Pool = v.text("pool")
		case 3:
			in.Pod = v.text("pod")
		case 4:
			in.Address = v.text("address")
		case 5:
			in.BlockSize = v.uv32("block size")
		case 6:
			in.NumBlocks = v.uv32("block count")
		case 7:
			in.MaxModelLen = v.uv32("model length")
		case 8:
			in.MaxNumSeqs = v.uv32("sequence count")
		case 9:
			in.Engine = v.text("engine")
		case 10:
			in.EngineVersion = v.text("engine version")
		case 11:
			in.Draining = true
		case 12:
			if len(in.Models) == MaxModels {
				v.fail(fmt.Errorf("more than %d models: %w", MaxModels, ErrLimit))
				return
			}
			in.Models = append(in.Models, Model{Name: v.str("model name"), Parent: v.str("parent model name"), MaxLen: v.uv32("model length")})
		case 13:
			if len(in.Ranks) == MaxRanks {
				v.fail(fmt.Errorf("more than %d ranks: %w", MaxRanks, ErrLimit))
				return
			}
			in.Ranks = append(in.Ranks, RankInfo{Rank: v.u16(), Epoch: v.uv(), GPU: v.geometry(), All: v.geometry()})
		case 14:
			in.KVEvents = v.text("kv events")
		}
	})
}

func appendGeometry(dst []byte, g bloom.Geometry) []byte {
	return append(binary.AppendUvarint(dst, uint64(g.Buckets)), g.K)
}

func (r *reader) geometry() bloom.Geometry {
	g := bloom.Geometry{Buckets: r.uv32("buckets"), K: r.u8()}
	if err := checkGeometry(g); err != nil {
		r.fail(err)
	}
	return g
}

// checkGeometry accepts the zero geometry, "no digest".
func checkGeometry(g bloom.Geometry) error {
	if g == (bloom.Geometry{}) {
		return nil
	}
	if err := g.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}
