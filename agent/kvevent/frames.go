package kvevent

import (
	"encoding/binary"
	"fmt"
	"math"
)

// EndSeq is the sequence number of a replay's end marker, never that of a batch.
const EndSeq = math.MaxUint64

// Why a multi-part message is dropped.
const (
	ReasonFrames   Reason = "frames"   // wrong number of frames
	ReasonSequence Reason = "sequence" // not 8 bytes, or the end marker's number
	ReasonPayload  Reason = "payload"  // empty payload
)

// Message is one multi-part message of an event publisher.
type Message struct {
	// Topic is free text; replay answers before vLLM v0.26 carry none. A ZMQ
	// subscription matches prefixes: compare the whole topic.
	Topic string
	// Seq rises by one with each batch of a publisher and starts at 0.
	Seq uint64
	// Payload is for [Decode]; it is the frame itself, not a copy.
	Payload []byte
	// End marks the end of a replay; the other fields are then empty.
	End bool
}

// ParseLive reads a message of the live socket: topic, sequence, payload. Errors
// carry ReasonFrames, ReasonSequence or ReasonPayload.
func ParseLive(frames [][]byte) (Message, error) {
	if len(frames) != 3 {
		return Message{}, frameError("live", ReasonFrames, len(frames))
	}
	m, err := parse(frames)
	if err != nil {
		return Message{}, frameError("live", err, len(frames))
	}
	return m, nil
}

// ParseReplay reads an answer of the replay socket as a DEALER sees it: an empty
// delimiter, then sequence and payload (vLLM up to v0.25, SGLang) or topic, sequence
// and payload (vLLM from v0.26). Errors are those of ParseLive.
func ParseReplay(frames [][]byte) (Message, error) {
	if len(frames) < 2 || len(frames) > 4 || len(frames[0]) != 0 {
		return Message{}, frameError("replay", ReasonFrames, len(frames))
	}
	body := frames[1:]
	if len(body) == 1 {
		if len(body[0]) == 0 {
			return Message{End: true}, nil // end marker of pre-releases
		}
		return Message{}, frameError("replay", ReasonFrames, len(frames))
	}
	if seq := body[len(body)-2]; len(seq) == 8 && binary.BigEndian.Uint64(seq) == EndSeq && len(body[len(body)-1]) == 0 {
		return Message{End: true}, nil
	}
	m, err := parse(body)
	if err != nil {
		return Message{}, frameError("replay", err, len(frames))
	}
	return m, nil
}

// parse reads [topic,] sequence, payload.
func parse(frames [][]byte) (Message, error) {
	var m Message
	if len(frames) == 3 {
		m.Topic = string(frames[0])
		frames = frames[1:]
	}
	if len(frames[0]) != 8 {
		return Message{}, ReasonSequence
	}
	m.Seq, m.Payload = binary.BigEndian.Uint64(frames[0]), frames[1]
	switch {
	case m.Seq == EndSeq:
		return Message{}, ReasonSequence
	case len(m.Payload) == 0:
		return Message{}, ReasonPayload
	}
	return m, nil
}

func frameError(kind string, err error, n int) error {
	return fmt.Errorf("parse %s message of %d frames: %w", kind, n, err)
}
