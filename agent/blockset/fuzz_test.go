package blockset

import (
	"testing"

	"github.com/grapevine-llm/grapevine/agent/blockset/blocksettest"
	"github.com/grapevine-llm/grapevine/agent/kvevent"
)

// FuzzApply: whatever a batch says, links, counts and closure stay consistent.
func FuzzApply(f *testing.F) {
	streams, err := blocksettest.Streams()
	if err != nil {
		f.Fatal(err)
	}
	var first []byte
	for _, s := range streams {
		n := 0
		for _, step := range s.Steps {
			if step.Payload == nil {
				continue
			}
			if n++; n <= 6 {
				f.Add(step.Payload)
			}
			if first == nil {
				first = step.Payload
			}
		}
	}
	start, err := kvevent.Decode(first)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		b, err := kvevent.Decode(payload)
		if err != nil {
			return
		}
		s := New(Config{Hasher: testHasher, Blocks: 100, MaxBlocks: 500, MaxOrphans: 50}, newOrder(t))
		for range 2 {
			s.Apply(testTime, start)
			s.Apply(testTime, b)
			checkInvariants(t, s)
		}
	})
}
