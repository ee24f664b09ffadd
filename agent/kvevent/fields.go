package kvevent

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

const (
	maxBlockSize  = 1 << 20 // tokens
	maxGroup      = math.MaxUint16
	minHashBytes  = 8
	maxExtraKeys  = 1 << 16 // elements in one event
	maxExtraDepth = 4
)

// field is a field of an event, whatever its event type and place.
type field uint8

const (
	fHashes field = iota
	fParent
	fTokens
	fBlockSize
	fLoRAID
	fMedium
	fLoRAName // in arrays of SGLang: a map of metadata
	fExtraKeys
	fGroup
	fSpecKind
	fSlidingWindow
	fLocality
	fOwnership
	fSessionID
	fCacheSalt
	numFields
)

// fields holds the offset of each field's value, 0 if it is missing.
type fields [numFields]int

func fieldByName(name []byte) (field, bool) {
	switch string(name) {
	case "block_hashes":
		return fHashes, true
	case "parent_block_hash":
		return fParent, true
	case "token_ids":
		return fTokens, true
	case "block_size":
		return fBlockSize, true
	case "lora_id":
		return fLoRAID, true
	case "medium":
		return fMedium, true
	case "lora_name":
		return fLoRAName, true
	case "extra_keys":
		return fExtraKeys, true
	case "group_idx":
		return fGroup, true
	case "kv_cache_spec_kind":
		return fSpecKind, true
	case "kv_cache_spec_sliding_window":
		return fSlidingWindow, true
	case "locality":
		return fLocality, true
	case "ownership":
		return fOwnership, true
	case "session_id":
		return fSessionID, true
	case "cache_salt":
		return fCacheSalt, true
	}
	return 0, false
}

// fieldByIndex is the place in array events behind the tag (vLLM
// distributed/kv_events.py, v0.9.0 to v0.22: fields were only ever appended).
func fieldByIndex(tag []byte, i int) (field, bool) {
	if string(tag) == tagRemoved {
		switch i {
		case 0:
			return fHashes, true
		case 1:
			return fMedium, true
		case 2:
			return fGroup, true
		}
		return 0, false
	}
	return field(i), i <= int(fSlidingWindow)
}

// arrayFields finds the fields of [tag, field, ...] and moves behind it.
func (d *decoder) arrayFields(f *fields) (tag []byte, err error) {
	n, err := d.mp.DecodeArrayLen()
	if err != nil || n < 1 {
		return nil, ReasonEventForm
	}
	tag, ok := d.text()
	if !ok {
		return nil, ReasonEventForm
	}
	if !knownTag(tag) {
		return tag, ReasonUnknownTag
	}
	for i := range n - 1 {
		if at, ok := fieldByIndex(tag, i); ok {
			f[at] = d.pos()
		}
		d.skip()
	}
	if string(tag) == tagStored && f[fBlockSize] == 0 {
		return nil, ReasonArity
	}
	return tag, nil
}

// mapFields finds the fields of {"type": tag, name: value, ...} and moves behind it.
func (d *decoder) mapFields(f *fields) (tag []byte, err error) {
	n, err := d.mp.DecodeMapLen()
	if err != nil || n < 1 {
		return nil, ReasonEventForm
	}
	if n > maxMapKeys {
		return nil, ReasonKey
	}
	var unknown [][]byte
	hasTag, badTag := false, false
	for range n {
		key, ok := d.text()
		if !ok {
			return nil, ReasonKey
		}
		at, known := fieldByName(key)
		switch {
		case known:
			if f[at] != 0 {
				return nil, ReasonKey
			}
			f[at] = d.pos()
			d.skip()
		case string(key) == "type":
			if hasTag {
				return nil, ReasonKey
			}
			hasTag = true
			if tag, ok = d.text(); !ok {
				badTag = true
				d.skip()
			}
		default:
			for _, u := range unknown {
				if string(u) == string(key) {
					return nil, ReasonKey
				}
			}
			unknown = append(unknown, key)
			d.skip()
		}
	}
	switch {
	case !hasTag || badTag:
		return nil, ReasonEventForm
	case !knownTag(tag):
		return tag, ReasonUnknownTag
	}
	return tag, nil
}

func (d *decoder) stored(f *fields) (*Stored, error) {
	s := &Stored{Group: -1}
	var err error
	if s.Hashes, err = d.hashes(f); err != nil {
		return nil, err
	}
	if f[fParent] != 0 && d.at(f[fParent]) != msgpcode.Nil {
		if s.Parent, err = d.hash(); err != nil {
			return nil, err
		}
		s.HasParent = true
	}
	if f[fTokens] != 0 && d.at(f[fTokens]) != msgpcode.Nil {
		if err = d.tokens(s); err != nil {
			return nil, err
		}
	}
	if f[fBlockSize] != 0 {
		d.seek(f[fBlockSize])
		n, err := d.optInt(0, maxBlockSize)
		if err != nil {
			return nil, ReasonBlockSize
		}
		s.BlockSize = int(n)
	}
	if s.BlockSize == 0 && len(s.Tokens) > 0 {
		return nil, ReasonBlockSize
	}
	if f[fLoRAID] != 0 && d.at(f[fLoRAID]) != msgpcode.Nil {
		n, ok := d.integer()
		if !ok {
			return nil, ReasonType
		}
		s.LoRAID = n
	}
	if f[fLoRAName] != 0 && isMap(d.at(f[fLoRAName])) {
		if err = d.metadata(f); err != nil {
			return nil, err
		}
		f[fLoRAName] = 0
	}
	for _, t := range []struct {
		at  field
		dst *string
	}{
		{fMedium, &s.Medium}, {fLoRAName, &s.LoRAName}, {fSpecKind, &s.SpecKind}, {fLocality, &s.Locality},
		{fOwnership, &s.Ownership}, {fSessionID, &s.SessionID}, {fCacheSalt, &s.CacheSalt},
	} {
		if f[t.at] == 0 {
			continue
		}
		d.seek(f[t.at])
		if *t.dst, err = d.optString(); err != nil {
			return nil, err
		}
	}
	if s.Group, err = d.group(f); err != nil {
		return nil, err
	}
	if f[fSlidingWindow] != 0 {
		d.seek(f[fSlidingWindow])
		if s.SlidingWindow, err = d.optInt(0, math.MaxInt64); err != nil {
			return nil, err
		}
	}
	if f[fExtraKeys] != 0 && d.at(f[fExtraKeys]) != msgpcode.Nil {
		if err = d.extraKeys(s); err != nil {
			return nil, err
		}
	}
	return s, checkChain(s)
}

func (d *decoder) removed(f *fields) (*Removed, error) {
	r := &Removed{}
	var err error
	if r.Hashes, err = d.hashes(f); err != nil {
		return nil, err
	}
	for _, t := range []struct {
		at  field
		dst *string
	}{{fMedium, &r.Medium}, {fLocality, &r.Locality}, {fOwnership, &r.Ownership}} {
		if f[t.at] == 0 {
			continue
		}
		d.seek(f[t.at])
		if *t.dst, err = d.optString(); err != nil {
			return nil, err
		}
	}
	r.Group, err = d.group(f)
	return r, err
}

// at moves to off and returns the value's first byte.
func (d *decoder) at(off int) byte {
	d.seek(off)
	return d.buf[off]
}

// metadata reads SGLang's map in the place of the LoRA name.
func (d *decoder) metadata(f *fields) error {
	n, err := d.mp.DecodeMapLen()
	if err != nil || n > maxMapKeys {
		return ReasonKey
	}
	for range n {
		key, ok := d.text()
		if !ok {
			return ReasonKey
		}
		if at, known := fieldByName(key); known && (at == fCacheSalt || at == fSessionID) {
			f[at] = d.pos()
		}
		d.skip()
	}
	return nil
}

func (d *decoder) group(f *fields) (int, error) {
	if f[fGroup] == 0 {
		return -1, nil
	}
	d.seek(f[fGroup])
	n, err := d.optInt(-1, maxGroup)
	return int(n), err
}

func (d *decoder) hashes(f *fields) ([]uint64, error) {
	if f[fHashes] == 0 {
		return nil, ReasonArity
	}
	if !isArray(d.at(f[fHashes])) {
		return nil, ReasonHash
	}
	n, err := d.mp.DecodeArrayLen()
	if err != nil {
		return nil, ReasonHash
	}
	out := make([]uint64, n)
	for i := range out {
		if out[i], err = d.hash(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// hash reads one block hash and normalises it to its low 64 bits.
func (d *decoder) hash() (uint64, error) {
	c := d.peek()
	switch {
	case isInt(c):
		n, err := d.mp.DecodeUint64() // two's complement for negative ones
		if err != nil {
			return 0, ReasonHash
		}
		return n, nil
	case msgpcode.IsBin(c):
		b, ok := d.content()
		if !ok || len(b) < minHashBytes || len(b) > maxStringBytes {
			return 0, ReasonHash
		}
		return binary.BigEndian.Uint64(b[len(b)-8:]), nil
	}
	return 0, ReasonHash
}

// tokens reads a list of ids, or of pairs of ids (SGLang's EAGLE pages).
func (d *decoder) tokens(s *Stored) error {
	if !isArray(d.peek()) {
		return ReasonTokens
	}
	n, err := d.mp.DecodeArrayLen()
	if err != nil {
		return ReasonTokens
	}
	s.Tokens = make([]uint32, n)
	s.Bigram = n > 0 && isArray(d.peek())
	for i := range s.Tokens {
		if s.Bigram {
			if !isArray(d.peek()) {
				return ReasonTokens
			}
			if m, err := d.mp.DecodeArrayLen(); err != nil || m != 2 {
				return ReasonTokens
			}
		}
		if s.Tokens[i], err = d.token(); err != nil {
			return err
		}
		if s.Bigram {
			if _, err = d.token(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *decoder) token() (uint32, error) {
	if !isInt(d.peek()) {
		return 0, ReasonTokens
	}
	n, err := d.mp.DecodeUint64()
	if err != nil || n > math.MaxUint32 {
		return 0, ReasonTokens
	}
	return uint32(n), nil
}

func (d *decoder) extraKeys(s *Stored) error {
	if !isArray(d.peek()) {
		return ReasonType
	}
	n, err := d.mp.DecodeArrayLen()
	if err != nil {
		return ReasonType
	}
	if n != len(s.Hashes) {
		d.odd(OddExtraKeys)
		return nil
	}
	s.ExtraKeys = make([][]ExtraKey, n)
	budget := maxExtraKeys
	for i := range s.ExtraKeys {
		if d.peek() == msgpcode.Nil {
			d.skip()
			continue
		}
		if !isArray(d.peek()) {
			return ReasonType
		}
		if s.ExtraKeys[i], err = d.extraEntry(nil, &budget, maxExtraDepth); err != nil {
			return err
		}
	}
	return nil
}

// extraEntry reads one block's extra keys into dst. An inner array that is no pair is
// flattened: vLLM v0.33 wraps the keys as (keys, look-ahead tokens...).
func (d *decoder) extraEntry(dst []ExtraKey, budget *int, depth int) ([]ExtraKey, error) {
	n, err := d.mp.DecodeArrayLen()
	if err != nil || depth == 0 || n > *budget {
		return nil, ReasonType
	}
	*budget -= n
	for range n {
		c := d.peek()
		switch {
		case c == msgpcode.Nil:
			d.skip()
		case isArray(c):
			at := d.pos()
			if k, ok := d.extraItem(); ok {
				dst = append(dst, k)
				continue
			}
			d.seek(at)
			if dst, err = d.extraEntry(dst, budget, depth-1); err != nil {
				return nil, err
			}
		case isInt(c):
			num, ok := d.integer()
			if !ok {
				return nil, ReasonType
			}
			dst = append(dst, ExtraKey{Kind: ExtraInt, Num: num})
		case msgpcode.IsBin(c):
			b, ok := d.content()
			if !ok || len(b) > maxStringBytes {
				return nil, ReasonType
			}
			dst = append(dst, ExtraKey{Kind: ExtraBytes, Text: string(b)})
		default:
			text, err := d.optString()
			if err != nil {
				return nil, err
			}
			dst = append(dst, ExtraKey{Kind: ExtraText, Text: text})
		}
	}
	return dst, nil
}

// extraItem reads [identifier, offset].
func (d *decoder) extraItem() (ExtraKey, bool) {
	n, err := d.mp.DecodeArrayLen()
	if err != nil || n != 2 || !msgpcode.IsString(d.peek()) {
		return ExtraKey{}, false
	}
	text, err := d.optString()
	if err != nil {
		return ExtraKey{}, false
	}
	num, ok := d.integer()
	return ExtraKey{Kind: ExtraItem, Text: text, Num: num}, ok
}

// checkChain refuses a chain with a hash twice or with its own parent in it. Lower
// tiers may name a hash twice (overlapping chunks of an offloading connector).
func checkChain(s *Stored) error {
	if !IsDevice(s.Medium) {
		return nil
	}
	if s.HasParent && slices.Contains(s.Hashes, s.Parent) {
		return ReasonCycle
	}
	if len(s.Hashes) <= 8 {
		for i, h := range s.Hashes {
			if slices.Contains(s.Hashes[:i], h) {
				return ReasonCycle
			}
		}
		return nil
	}
	seen := make(map[uint64]struct{}, len(s.Hashes))
	for _, h := range s.Hashes {
		seen[h] = struct{}{}
	}
	if len(seen) != len(s.Hashes) {
		return ReasonCycle
	}
	return nil
}
