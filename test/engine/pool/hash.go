package pool

import (
	"crypto/sha256"
	"encoding/binary"
)

// DefaultSeed is the text that vLLM hashes to the start of every chain when
// PYTHONHASHSEED is not set (vLLM 0.29 and later, sha256 algorithms).
const DefaultSeed = "vllm-none-hash"

// Digest is vLLM's identity of a block and everything before it.
type Digest [sha256.Size]byte

// Low64 is the integer form of the digest in KV events: its last 8 bytes,
// big-endian.
func (d Digest) Low64() uint64 { return binary.BigEndian.Uint64(d[len(d)-8:]) }

// Adapter is a LoRA adapter. Path enters the tagged form of the hash, as vLLM
// 0.31 and later do.
type Adapter struct {
	ID   int
	Name string
	Path string
}

// Extras are what enters the hash of a request's blocks besides its tokens.
type Extras struct {
	Adapter *Adapter // nil: the base model; hashed into every block
	Salt    string   // cache_salt; hashed into block 0 only
}

// keys are the extra keys of block i as KV events show them: bare strings.
func (x Extras) keys(i int) []string {
	var k []string
	if x.Adapter != nil {
		k = append(k, x.Adapter.Name)
	}
	if x.Salt != "" && i == 0 {
		k = append(k, x.Salt)
	}
	return k
}

// Hasher computes block hashes with vLLM's sha256_cbor: SHA-256 over the
// canonical CBOR of (parent digest, tokens, extra keys or null). It is
// stateless and safe for concurrent use.
type Hasher struct {
	none   Digest
	tagged bool
}

// NewHasher starts the chain at NONE_HASH = sha256_cbor(seed), where seed is
// the text of PYTHONHASHSEED ("" stands for unset, see DefaultSeed). Extra keys
// are hashed tagged, as in vLLM 0.31 and later, or bare, as in 0.30 and before.
func NewHasher(seed string, bare bool) Hasher {
	if seed == "" {
		seed = DefaultSeed
	}
	return Hasher{none: sha256.Sum256(appendText(nil, seed)), tagged: !bare}
}

// None is the parent of every root block.
func (h Hasher) None() Digest { return h.none }

// AppendChain appends the digests of the full blocks of tokens from block
// len(dst) on; dst holds the digests of the blocks before.
func (h Hasher) AppendChain(dst []Digest, tokens []uint32, blockSize int, x Extras) []Digest {
	parent := h.none
	if len(dst) > 0 {
		parent = dst[len(dst)-1]
	}
	buf := make([]byte, 0, 64+5*blockSize)
	for i := len(dst); (i+1)*blockSize <= len(tokens); i++ {
		buf = h.appendBlock(buf[:0], parent, tokens[i*blockSize:(i+1)*blockSize], x, i)
		parent = sha256.Sum256(buf)
		dst = append(dst, parent)
	}
	return dst
}

// appendBlock appends the bytes that vLLM hashes for block i.
func (h Hasher) appendBlock(b []byte, parent Digest, tokens []uint32, x Extras, i int) []byte {
	b = appendHead(b, cborArray, 3)
	b = append(appendHead(b, cborBytes, uint64(len(parent))), parent[:]...)
	b = appendHead(b, cborArray, uint64(len(tokens)))
	for _, t := range tokens {
		b = appendHead(b, cborUint, uint64(t))
	}
	return h.appendExtras(b, x, i)
}

func (h Hasher) appendExtras(b []byte, x Extras, i int) []byte {
	salted := x.Salt != "" && i == 0
	n := uint64(0)
	if x.Adapter != nil {
		n++
	}
	if salted {
		n++
	}
	if n == 0 {
		return append(b, cborNull)
	}
	b = appendHead(b, cborArray, n)
	if a := x.Adapter; a != nil && h.tagged {
		b = appendHead(b, cborArray, 3)
		b = appendText(appendText(appendText(b, "lora"), a.Name), a.Path)
	} else if a != nil {
		b = appendText(b, a.Name)
	}
	if salted && h.tagged {
		b = appendText(appendHead(b, cborArray, 2), "cache_salt")
	}
	if salted {
		b = appendText(b, x.Salt)
	}
	return b
}

// Major types of RFC 8949, section 3.
const (
	cborUint  = 0 << 5
	cborBytes = 2 << 5
	cborText  = 3 << 5
	cborArray = 4 << 5
	cborNull  = 0xf6
)

func appendText(b []byte, s string) []byte {
	return append(appendHead(b, cborText, uint64(len(s))), s...)
}

// appendHead appends a CBOR head in its shortest form.
func appendHead(b []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n <= 0xff:
		return append(b, major|24, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n <= 0xffffffff:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, major|27), n)
	}
}
