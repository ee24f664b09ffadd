package kvevent

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

const (
	maxStringBytes = 4 << 10 // names, salts, identifiers, hashes
	maxMapKeys     = 64      // in one event
	maxRank        = math.MaxUint16
	maxTagBytes    = 64
)

// Decode reads one payload. The batch shares no memory with it. An error means that
// nothing in the payload can be trusted: the caller counts ReasonOf(err) and treats
// the batch as lost. Safe for concurrent use.
func Decode(payload []byte) (Batch, error) {
	b, err := decode(payload)
	if err != nil {
		return Batch{}, fmt.Errorf("decode KV event batch of %d bytes: %w", len(payload), err)
	}
	return b, nil
}

func decode(payload []byte) (Batch, error) {
	if len(payload) == 0 {
		return Batch{}, ReasonEmpty
	}
	end, err := scanValue(payload, 0)
	if err != nil {
		return Batch{}, err
	}
	d := &decoder{buf: payload[:end], mp: msgpack.GetDecoder()}
	defer msgpack.PutDecoder(d.mp)
	d.rd.Reset(d.buf)
	d.mp.Reset(&d.rd)

	d.batch = Batch{Rank: -1}
	if end < len(payload) {
		d.odd(OddTrailing)
	}
	ts, events, rank, err := d.batchFields()
	if err != nil {
		return Batch{}, err
	}
	if ts > 0 {
		d.seek(ts)
		d.timestamp()
	}
	if rank > 0 {
		d.seek(rank)
		d.rank()
	}
	if events == 0 || !isArray(d.buf[events]) {
		return Batch{}, ReasonBatchForm
	}
	d.seek(events)
	d.events()
	return d.batch, nil
}

// decoder walks one payload that scanValue has found whole: reads of the right type
// cannot run past its end, and nesting is bounded.
type decoder struct {
	buf   []byte
	rd    bytes.Reader
	mp    *msgpack.Decoder
	batch Batch
}

func (d *decoder) pos() int { return len(d.buf) - d.rd.Len() }

func (d *decoder) seek(off int) { _, _ = d.rd.Seek(int64(off), io.SeekStart) } // off is inside buf

// peek returns the next value's first byte.
func (d *decoder) peek() byte { return d.buf[d.pos()] }

// skip passes over the next value.
func (d *decoder) skip() {
	end, err := scanValue(d.buf, d.pos())
	if err != nil {
		end = len(d.buf) // cannot be: the payload was scanned as a whole
	}
	d.seek(end)
}

func (d *decoder) odd(r Reason) {
	for _, have := range d.batch.Anomalies {
		if have == r {
			return
		}
	}
	d.batch.Anomalies = append(d.batch.Anomalies, r)
}

// batchFields returns the offsets of ts, events and rank, 0 for what is missing.
func (d *decoder) batchFields() (ts, events, rank int, err error) {
	switch c := d.peek(); {
	case isArray(c):
		n, err := d.mp.DecodeArrayLen()
		if err != nil || n < 2 {
			return 0, 0, 0, ReasonBatchForm
		}
		ts = d.pos()
		d.skip()
		events = d.pos()
		if n > 2 {
			d.skip()
			rank = d.pos()
		}
		return ts, events, rank, nil
	case isMap(c):
		n, err := d.mp.DecodeMapLen()
		if err != nil {
			return 0, 0, 0, ReasonBatchForm
		}
		for range n {
			key, ok := d.text()
			if !ok {
				return 0, 0, 0, ReasonBatchForm
			}
			switch string(key) {
			case "ts":
				ts = d.pos()
			case "events":
				events = d.pos()
			case "data_parallel_rank", "attn_dp_rank":
				rank = d.pos()
			}
			d.skip()
		}
		return ts, events, rank, nil
	}
	return 0, 0, 0, ReasonBatchForm
}

func (d *decoder) timestamp() {
	c := d.peek()
	var ts float64
	var err error
	switch {
	case isInt(c), c == msgpcode.Float, c == msgpcode.Double:
		ts, err = d.mp.DecodeFloat64()
	case msgpcode.IsExt(c):
		t, e := d.mp.DecodeTime()
		ts, err = float64(t.UnixNano())/1e9, e
	default:
		err = ReasonType
	}
	if err != nil || math.IsNaN(ts) || math.IsInf(ts, 0) {
		d.odd(OddTimestamp)
		return
	}
	d.batch.TS = ts
}

func (d *decoder) rank() {
	if d.peek() == msgpcode.Nil {
		return
	}
	n, ok := d.integer()
	if !ok || n < 0 || n > maxRank {
		d.odd(OddRank)
		return
	}
	d.batch.Rank = int(n)
}

func (d *decoder) events() {
	n, err := d.mp.DecodeArrayLen()
	if err != nil {
		return
	}
	for i := range n {
		start := d.pos()
		ev, tag, err := d.event()
		if err != nil {
			d.skipped(i, err, tag)
			d.seek(start)
			d.skip()
			continue
		}
		d.batch.Events = append(d.batch.Events, ev)
	}
}

func (d *decoder) skipped(i int, err error, tag []byte) {
	r, ok := err.(Reason) // not ReasonOf: a hostile batch has a million of these
	if !ok {
		r = ReasonType
	}
	for j := range d.batch.Skipped {
		if d.batch.Skipped[j].Reason == r {
			d.batch.Skipped[j].Count++
			return
		}
	}
	s := Skip{Reason: r, Count: 1, First: i}
	if r == ReasonUnknownTag {
		s.Tag = strings.ToValidUTF8(string(tag[:min(len(tag), maxTagBytes)]), "?")
	}
	d.batch.Skipped = append(d.batch.Skipped, s)
}

// event reads one event and leaves the position behind it. tag is set with
// ReasonUnknownTag.
func (d *decoder) event() (ev Event, tag []byte, err error) {
	var f fields
	switch c := d.peek(); {
	case isArray(c):
		tag, err = d.arrayFields(&f)
	case isMap(c):
		tag, err = d.mapFields(&f)
	default:
		return nil, nil, ReasonEventForm
	}
	if err != nil {
		return nil, tag, err
	}
	end := d.pos()
	switch string(tag) {
	case tagStored:
		ev, err = d.stored(&f)
	case tagRemoved:
		ev, err = d.removed(&f)
	default:
		ev = &Cleared{}
	}
	d.seek(end)
	return ev, nil, err
}

const (
	tagStored  = "BlockStored"
	tagRemoved = "BlockRemoved"
	tagCleared = "AllBlocksCleared"
)

func knownTag(tag []byte) bool {
	switch string(tag) {
	case tagStored, tagRemoved, tagCleared:
		return true
	}
	return false
}

func isArray(c byte) bool {
	return msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32
}

func isMap(c byte) bool {
	return msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32
}

func isInt(c byte) bool {
	return msgpcode.IsFixedNum(c) || c >= msgpcode.Uint8 && c <= msgpcode.Int64
}

// text reads a string as a slice of the payload; ok is false, and nothing is read,
// if the next value is none.
func (d *decoder) text() (s []byte, ok bool) {
	if !msgpcode.IsString(d.peek()) {
		return nil, false
	}
	return d.content()
}

// content reads the bytes of a string or byte string.
func (d *decoder) content() ([]byte, bool) {
	n, err := d.mp.DecodeBytesLen()
	if err != nil || n < 0 || n > d.rd.Len() {
		return nil, false
	}
	at := d.pos()
	d.seek(at + n)
	return d.buf[at : at+n], true
}

// integer reads an integer of any width; one over 2^63-1 is refused.
func (d *decoder) integer() (int64, bool) {
	c := d.peek()
	if !isInt(c) {
		return 0, false
	}
	n, err := d.mp.DecodeInt64()
	return n, err == nil && (n >= 0 || c != msgpcode.Uint64)
}

// optString reads a short string; nil reads as "".
func (d *decoder) optString() (string, error) {
	if d.peek() == msgpcode.Nil {
		return "", d.mp.DecodeNil()
	}
	s, ok := d.text()
	if !ok || len(s) > maxStringBytes || !utf8.Valid(s) {
		return "", ReasonType
	}
	return string(s), nil
}

// optInt reads an integer of 0 to limit; nil reads as def.
func (d *decoder) optInt(def, limit int64) (int64, error) {
	if d.peek() == msgpcode.Nil {
		return def, d.mp.DecodeNil()
	}
	n, ok := d.integer()
	if !ok || n < 0 || n > limit {
		return 0, ReasonType
	}
	return n, nil
}
