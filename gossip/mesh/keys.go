package mesh

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hashicorp/memberlist"
)

// ErrKeys is returned, wrapped, by New where the key file cannot be used.
var ErrKeys = errors.New("gossip keys cannot be used")

// keyBytes is the only key length taken: AES-256.
const keyBytes = 32

// maxKeyFileBytes bounds what is read of a key file; a few keys are normal.
const maxKeyFileBytes = 64 << 10

// readKeys reads a key file. The second result is the file's content, to tell
// a change from none.
func readKeys(path string) (keys [][]byte, content []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, keyError{fmt.Errorf("read gossip keys: %w", err)}
	}
	defer f.Close()
	content, err = io.ReadAll(io.LimitReader(f, maxKeyFileBytes+1))
	if err != nil {
		return nil, nil, keyError{fmt.Errorf("read gossip keys: %w", err)}
	}
	if len(content) > maxKeyFileBytes {
		return nil, nil, keyError{fmt.Errorf("gossip key file %s is longer than %d bytes: give a file with one key a line", path, maxKeyFileBytes)}
	}
	keys, err = parseKeys(content)
	if err != nil {
		return nil, content, keyError{fmt.Errorf("gossip key file %s: %w", path, err)}
	}
	return keys, content, nil
}

// keyError is an ErrKeys that says only what is wrong.
type keyError struct{ error }

func (e keyError) Unwrap() error      { return e.error }
func (keyError) Is(target error) bool { return target == ErrKeys }

// parseKeys reads keys, one a line, as 64 hex digits or as base64 of 32 bytes.
// Empty lines and what follows a # are skipped; a repeated key counts once. The
// first key encrypts, all of them decrypt. The error names every wrong line,
// but never shows its content.
func parseKeys(content []byte) ([][]byte, error) {
	var keys [][]byte
	var faults []error
	for i, line := range strings.Split(string(content), "\n") {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, ok := parseKey(line)
		if !ok {
			faults = append(faults, fmt.Errorf("line %d is no AES-256 key (%d characters): give 32 bytes as base64 or hex, as `openssl rand -base64 32` makes them", i+1, len(line)))
			continue
		}
		if !containsKey(keys, key) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 && len(faults) == 0 {
		faults = append(faults, errors.New("no key in it: make one with `openssl rand -base64 32`"))
	}
	return keys, errors.Join(faults...)
}

// parseKey needs no hint which of the two forms it has: 32 bytes are 64
// characters of hex, but 43 or 44 of base64.
func parseKey(s string) ([]byte, bool) {
	if len(s) == hex.EncodedLen(keyBytes) {
		key, err := hex.DecodeString(s)
		return key, err == nil
	}
	s = strings.TrimRight(s, "=")
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if key, err := enc.DecodeString(s); err == nil && len(key) == keyBytes {
			return key, true
		}
	}
	return nil, false
}

func containsKey(keys [][]byte, key []byte) bool {
	for _, k := range keys {
		if bytes.Equal(k, key) {
			return true
		}
	}
	return false
}

// installKeys makes the ring hold exactly these keys, the first one primary.
// At no moment does the ring lack a key that it held before and shall hold after.
func installKeys(ring *memberlist.Keyring, keys [][]byte) error {
	for _, k := range keys {
		if err := ring.AddKey(k); err != nil {
			return fmt.Errorf("add gossip key: %w", err)
		}
	}
	if err := ring.UseKey(keys[0]); err != nil {
		return fmt.Errorf("use gossip key: %w", err)
	}
	for _, k := range ring.GetKeys() {
		if !containsKey(keys, k) {
			if err := ring.RemoveKey(k); err != nil {
				return fmt.Errorf("remove gossip key: %w", err)
			}
		}
	}
	return nil
}
