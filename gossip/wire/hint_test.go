package wire

import (
	"errors"
	"math"
	"testing"
	"time"
)

// largestHintBound has every field as long as it gets.
func largestHintBound(points int) HintBound {
	return HintBound{
		ID: math.MaxUint64, Key: Key{Endpoint: math.MaxUint64, Rank: math.MaxUint16}, Age: time.Hour,
		PromptTokens: math.MaxUint32, CachedTokens: math.MaxUint32, Blocks: math.MaxInt32,
		Last: math.MaxUint64, Before: math.MaxUint64, First: MaxHintTokens, Count: MaxHintTokens, Points: make([]uint32, points),
	}
}

func TestHintBytesBound(t *testing.T) {
	for _, points := range []int{0, 7, MaxHintPoints} {
		h := Hint{Number: math.MaxUint64, Held: math.MaxUint32, Bound: []HintBound{largestHintBound(points), largestHintBound(points)}}
		limit := HintBytes + 2*HintBoundBytes(points)
		for range 60 {
			h.Over, h.Ended = append(h.Over, math.MaxUint64), append(h.Ended, math.MaxUint64)
			limit += 2 * HintIDBytes
		}
		b := h.Append(nil, testNode)
		if len(b) > limit {
			t.Errorf("%d points: %d bytes, said to be at most %d", points, len(b), limit)
		}
		if len(b) > MaxPacketBytes {
			continue
		}
		if _, _, err := Decode(b); err != nil {
			t.Errorf("%d points: largest values can't be read: %v", points, err)
		}
	}
}

func TestBadHints(t *testing.T) {
	for name, test := range map[string]struct {
		bound HintBound
		want  error
	}{
		"new blocks behind the end": {HintBound{First: 3, Count: 2}, ErrInvalid},
		"too many points":           {HintBound{Points: make([]uint32, MaxHintPoints+1)}, ErrLimit},
		"blocks beyond all bounds":  {HintBound{Blocks: math.MaxUint32}, ErrLimit},
		"first block beyond all":    {HintBound{First: MaxHintTokens + 1, Count: MaxHintTokens + 2}, ErrLimit},
	} {
		t.Run(name, func(t *testing.T) {
			h := Hint{Bound: []HintBound{test.bound}}
			if _, _, err := Decode(h.Append(nil, testNode)); !errors.Is(err, test.want) {
				t.Errorf("got error %v, want %v", err, test.want)
			}
		})
	}
}
