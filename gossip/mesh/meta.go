package mesh

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// Role says what a node of the mesh does.
type Role uint8

// Roles, as they travel in the node meta.
const (
	RoleAgent  Role = 1 // stands beside engines and sends digests
	RolePicker Role = 2 // receives digests and picks endpoints
)

// String names the role for logs and pages.
func (r Role) String() string {
	switch r {
	case RoleAgent:
		return "agent"
	case RolePicker:
		return "picker"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

const (
	metaVersion   = 1
	metaFixedSize = 8
	// maxPoolBytes is the longest pool name: with the fixed part it stays far
	// below memberlist's limit of 512 bytes of meta.
	maxPoolBytes = 253
)

// meta is what a node says of itself, see the package comment.
type meta struct {
	role            Role
	wireVersion     uint8
	seedFingerprint uint32
	pool            string
}

func (m meta) append(dst []byte) []byte {
	dst = append(dst, metaVersion, byte(m.role), m.wireVersion)
	dst = binary.BigEndian.AppendUint32(dst, m.seedFingerprint)
	dst = append(dst, byte(len(m.pool)))
	return append(dst, m.pool...)
}

// of makes the member that said it.
func (m meta) of(name, addr string) Member {
	return Member{
		Name: name, Hash: wire.NodeHash(name), Role: m.role, Pool: m.pool, Addr: addr,
		WireVersion: m.wireVersion, SeedFingerprint: m.seedFingerprint,
	}
}

var errMeta = errors.New("node meta is not one of this project")

// decodeMeta reads a node's meta. A later meta version is read as far as
// version 1 goes: the layout only grows.
func decodeMeta(b []byte) (meta, error) {
	if len(b) < metaFixedSize || b[0] < metaVersion {
		return meta{}, errMeta
	}
	m := meta{role: Role(b[1]), wireVersion: b[2], seedFingerprint: binary.BigEndian.Uint32(b[3:])}
	n := int(b[7])
	if len(b) < metaFixedSize+n {
		return meta{}, errMeta
	}
	m.pool = string(b[metaFixedSize : metaFixedSize+n])
	return m, nil
}
