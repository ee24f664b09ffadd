package inspect

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// maxLine bounds one line of a capture or of a list of chains, in bytes.
const maxLine = 64 << 20

// captureLine is what a line of a capture can hold. Lines of an emulated engine's
// history have "seq" and further fields; its first line tells the parameters, and
// steps that published nothing have no payload.
type captureLine struct {
	Millis  float64 `json:"t_ms,omitempty"`
	Topic   string  `json:"topic"`
	SeqHex  string  `json:"seq_hex,omitempty"`
	Seq     *uint64 `json:"seq,omitempty"`
	Payload []byte  `json:"payload_b64,omitempty"`

	Stream string `json:"stream,omitempty"`
	Op     string `json:"op,omitempty"`
	Blocks int    `json:"gpu_blocks,omitempty"`
}

// CaptureOptions say what of a capture counts.
type CaptureOptions struct {
	// Topic keeps only messages of exactly this topic; empty keeps all.
	Topic string
	// After is called when a line was dealt with, whether or not it held a message.
	// applied is false for lines without one.
	After func(line int, seq uint64, applied bool) error
}

// ReadCapture passes a capture (JSON lines, plain or gzip) to an Inspector. now is the
// time of the first message. Errors name the line and what to give instead.
func ReadCapture(r io.Reader, now time.Time, x *Inspector, o CaptureOptions) error {
	lines, err := scanLines(r)
	if err != nil {
		return fmt.Errorf("read capture: %w", err)
	}
	line := -1
	for lines.Scan() {
		line++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var c captureLine
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return captureError(line, err.Error())
		}
		m := Message{Line: line, Topic: c.Topic, Payload: c.Payload}
		has := c.Payload != nil && (o.Topic == "" || c.Topic == o.Topic)
		switch {
		case c.Stream != "" && c.Blocks > 0:
			x.SetBlocks(c.Blocks)
		case c.Payload == nil && c.Op == "" && c.Stream == "":
			return captureError(line, "no payload_b64")
		case c.Payload == nil:
		case c.Seq != nil:
			m.Seq = *c.Seq
		default:
			if m.Seq, err = strconv.ParseUint(c.SeqHex, 16, 64); err != nil || len(c.SeqHex) != 16 {
				return captureError(line, fmt.Sprintf("seq_hex %q is not 16 hex digits", c.SeqHex))
			}
		}
		if has {
			if _, err := x.Live(now.Add(time.Duration(c.Millis*float64(time.Millisecond))), m); err != nil {
				return err
			}
		}
		if o.After != nil {
			if err := o.After(line, m.Seq, has); err != nil {
				return err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read capture after %d lines: %w: it is damaged, or was cut off while it was written", line+1, err)
	}
	return nil
}

func captureError(line int, what string) error {
	return fmt.Errorf(`read capture, line %d: %s: each line must be {"topic": "...", "seq_hex": "16 hex digits", "payload_b64": "..."}, as --record writes it`, line, what)
}

// scanLines reads plain or gzip text by lines.
func scanLines(r io.Reader) (*bufio.Scanner, error) {
	br := bufio.NewReader(r)
	if head, _ := br.Peek(2); string(head) == "\x1f\x8b" {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, err
		}
		r = z
	} else {
		r = br
	}
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	return sc, nil
}

// Recorder writes messages as a capture.
type Recorder struct {
	w     io.Writer
	gz    *gzip.Writer
	start time.Time
}

// NewRecorder writes to w, as gzip if name ends in ".gz". Close flushes; it does not
// close w.
func NewRecorder(w io.Writer, name string) *Recorder {
	r := &Recorder{w: w}
	if strings.HasSuffix(name, ".gz") {
		r.gz = gzip.NewWriter(w)
		r.w = r.gz
	}
	return r
}

// Record writes one message.
func (r *Recorder) Record(now time.Time, m Message) error {
	if r.start.IsZero() {
		r.start = now
	}
	b, err := json.Marshal(captureLine{
		Millis: float64(now.Sub(r.start).Microseconds()) / 1000, Topic: m.Topic, SeqHex: fmt.Sprintf("%016x", m.Seq), Payload: m.Payload,
	})
	if err == nil {
		_, err = r.w.Write(append(b, '\n'))
	}
	if err == nil && r.gz != nil {
		err = r.gz.Flush() // a recording that is cut off is still readable
	}
	if err != nil {
		return fmt.Errorf("record batch %d: %w", m.Seq, err)
	}
	return nil
}

// Close ends the recording.
func (r *Recorder) Close() error {
	if r.gz == nil {
		return nil
	}
	if err := r.gz.Close(); err != nil {
		return fmt.Errorf("end recording: %w", err)
	}
	return nil
}
