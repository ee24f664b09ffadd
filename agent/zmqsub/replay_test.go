package zmqsub

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An engine as the replay sees it: each answer is a list of numbers, -1 stands
// for the end marker and -2 for a pause.
func TestReplayAsksAgainAndKnowsWhatIsLost(t *testing.T) {
	const end, pause = -1, -2
	tests := []struct {
		name    string
		from    uint64
		answers [][]int
		got     []uint64
		want    Replay
	}{
		{"all there", 0, [][]int{{0, 1, 2, end}}, []uint64{0, 1, 2}, Replay{Next: 3, Answered: true, Complete: true}},
		{"nothing newer", 7, [][]int{{end}}, nil, Replay{From: 7, Next: 7, Answered: true, Complete: true}},
		{"ring starts later", 0, [][]int{{5, 6, end}}, []uint64{5, 6}, Replay{Next: 7, Missing: []Range{{0, 4}}, Answered: true, Complete: true}},
		{"dropped on the way", 0, [][]int{{0, 1, 4, 5, end}, {2, 3, 4, 5, end}}, []uint64{0, 1, 2, 3, 4, 5}, Replay{Next: 6, Answered: true, Complete: true}},
		{"burned number", 0, [][]int{{0, 2}, {2, 3, end}}, []uint64{0, 2, 3}, Replay{Next: 4, Missing: []Range{{1, 1}}, Answered: true, Complete: true}},
		{"end marker lost", 0, [][]int{{0, 1, pause}, {2, end}}, []uint64{0, 1, 2}, Replay{Next: 3, Answered: true, Complete: true}},
		{"end marker lost, nothing behind it", 0, [][]int{{0, pause}, {end}}, []uint64{0}, Replay{Next: 1, Answered: true, Complete: true}},
		{"silence", 3, [][]int{{pause}}, nil, Replay{From: 3, Next: 3}},
		{"silence after some", 0, [][]int{{0, pause}, {pause}}, []uint64{0}, Replay{Next: 1, Answered: true}},
		{"repeats", 0, [][]int{{0, 0, 1, end}}, []uint64{0, 1}, Replay{Next: 2, Answered: true, Complete: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newReplay(tt.from)
			var got []uint64
			over := false
			for i, answer := range tt.answers {
				if over {
					t.Fatalf("over before answer %d", i)
				}
			answer:
				for _, n := range answer {
					var a action
					switch n {
					case end:
						a = r.end()
					case pause:
						a = r.idle()
					default:
						a = r.data(uint64(n))
					}
					switch a {
					case deliver:
						got = append(got, uint64(n))
					case ask:
						break answer
					case finish:
						over = true
					}
				}
			}
			if !over {
				t.Error("not over")
			}
			if diff := cmp.Diff(tt.got, got); diff != "" {
				t.Errorf("delivered (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, r.result); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

// An engine that burns every second number must not be asked for ever, nor fill
// memory with ranges.
func TestReplayIsBounded(t *testing.T) {
	r := newReplay(0)
	asked := 0
	for seq := uint64(0); seq < 10_000; seq += 2 {
		if r.data(seq) == ask {
			asked++
			if r.data(seq) != deliver {
				t.Fatalf("number %d not delivered though it came first", seq)
			}
		}
	}
	if asked != maxAsks-1 || len(r.result.Missing) != maxRanges || r.result.Missing[maxRanges-1].Last != 9_997 {
		t.Errorf("asked %d times again (want %d), %d ranges (want %d) to %d (want 9997)",
			asked, maxAsks-1, len(r.result.Missing), maxRanges, r.result.Missing[len(r.result.Missing)-1].Last)
	}
}

func TestHeld(t *testing.T) {
	h := held{maxMsgs: 4, maxBytes: 100}
	add := func(seqs ...uint64) {
		for _, s := range seqs {
			h.add(Message{Seq: s, Payload: make([]byte, 10)})
		}
	}
	seqs := func(next uint64) (out []uint64) {
		for _, m := range h.take(next) {
			out = append(out, m.Seq)
		}
		return out
	}
	add(1, 2, 3, 4, 5, 6)
	if diff := cmp.Diff([]uint64{5, 6}, seqs(5)); diff != "" || h.dropped != 2 {
		t.Errorf("bounded, behind the replay; dropped %d, want 2 (-want +got):\n%s", h.dropped, diff)
	}
	add(4, 5, 0, 1)
	if diff := cmp.Diff([]uint64{0, 1}, seqs(100)); diff != "" {
		t.Errorf("restart meanwhile (-want +got):\n%s", diff)
	}
	h.add(Message{Payload: make([]byte, 101)})
	if got := seqs(0); got != nil || h.bytes != 0 {
		t.Errorf("a message over the bound was kept: %v, %d bytes", got, h.bytes)
	}
}
