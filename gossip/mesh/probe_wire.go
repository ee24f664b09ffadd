package mesh

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/memberlist"
	"github.com/vmihailenco/msgpack/v5"
)

// memberlist's messages (net.go and security.go, v0.7.0), as far as a probe
// needs them: it has no way to ask without becoming a member.
const (
	pingMsg         = 0
	indirectPingMsg = 1
	pushPullMsg     = 6
	encryptMsg      = 10
	errMsg          = 13
	// sealVersion is memberlist's encryption version 1: version, nonce, AES-GCM
	// without padding.
	sealVersion = 1
	nonceBytes  = 12
	// sizedHeader is the type and the length in front of an encrypted stream.
	sizedHeader = 5
)

// encodeMsg writes a message: its type, and the body as a MessagePack map by
// names of fields.
func encodeMsg(kind byte, body any) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte(kind)
	enc := msgpack.NewEncoder(&b)
	enc.UseCompactInts(true)
	if err := enc.Encode(body); err != nil {
		return nil, fmt.Errorf("encode gossip message: %w", err)
	}
	return b.Bytes(), nil
}

// sealPacket encrypts a packet, unless there is no key, and labels it.
func sealPacket(key, msg []byte, label string) ([]byte, error) {
	if key != nil {
		var err error
		if msg, err = seal(nil, key, msg, []byte(label)); err != nil {
			return nil, err
		}
	}
	return memberlist.AddLabelHeaderToPacket(msg, label)
}

// sealStream encrypts what goes over a stream, unless there is no key. The label
// was sent before.
func sealStream(key, msg []byte, label string) ([]byte, error) {
	if key == nil {
		return msg, nil
	}
	header := binary.BigEndian.AppendUint32([]byte{encryptMsg}, uint32(1+nonceBytes+len(msg)+16))
	return seal(header, key, msg, append(bytes.Clone(header), label...))
}

func seal(dst, key, msg, with []byte) ([]byte, error) {
	gcm, err := newGCM(key)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, nonceBytes)
	rand.Read(nonce) // never fails: crypto/rand
	dst = append(append(dst, sealVersion), nonce...)
	return gcm.Seal(dst, nonce, msg, with), nil
}

// openStream decrypts what came over a stream, and says with which key. The error
// is ErrOtherKey or ErrNotANode.
func openStream(keys [][]byte, b []byte, label string) (msg []byte, key int, err error) {
	if len(b) < sizedHeader+1+nonceBytes || b[sizedHeader] != sealVersion {
		return nil, -1, ErrNotANode
	}
	with := append(bytes.Clone(b[:sizedHeader]), label...)
	nonce, sealed := b[sizedHeader+1:][:nonceBytes], b[sizedHeader+1+nonceBytes:]
	for i, k := range keys {
		gcm, err := newGCM(k)
		if err != nil {
			return nil, -1, err
		}
		if msg, err := gcm.Open(nil, nonce, sealed, with); err == nil && len(msg) > 0 {
			return msg, i, nil
		}
	}
	return nil, -1, ErrOtherKey
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("gossip key: %w", err)
	}
	return cipher.NewGCM(block)
}
