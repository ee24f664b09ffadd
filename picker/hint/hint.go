// Package hint is what gateways tell each other about the requests that they have bound: an engine reports neither the
// prefill tokens in its queue nor how far a prefill is, so a gateway that knows only its own requests takes an endpoint for
// free that another has just filled.
//
// An [Outbox] collects what becomes of a gateway's own requests and packs it into HINT packets, a few tens of milliseconds'
// worth at a time. A [Book] keeps what other gateways have told of theirs, until they say that a request has ended or its
// time is over. [Shared] says how much of a prompt an endpoint is about to have because another gateway bound something there.
//
// # Marks
//
// A prompt of 32,000 tokens has 2,000 block hashes, too many to send. A block hash stands for everything before it, so two
// prompts that have the hash of one block in common share all blocks up to there. A hint therefore carries the hashes of a few
// blocks of the part that is new on the endpoint, at places that both sides work out from its limits: dense at both ends,
// since prompts part soon after a common start or just before the end, and doubling their distance towards the middle (see
// [AppendPlaces]). A receiver underrates what is shared by less than the distance to the nearer end: what is left to compute
// seems at most twice what it is.
//
// Everything is a state machine without clock or goroutine; nothing here may be called concurrently.
package hint

import (
	"slices"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// AppendPlaces appends the places of the blocks, among blocks first to count-1 of a prompt, whose hashes a hint carries:
// ascending, first always among them if there is any.
func AppendPlaces(dst []int, first, count int) []int {
	n := count - first
	if n <= 0 {
		return dst
	}
	// From the start 0, 1, 3, 7, ... up to the middle, and from the end the same.
	middle := first + n/2
	for step := 1; first+step-1 < middle; step *= 2 {
		dst = append(dst, first+step-1)
	}
	dst = append(dst, middle)
	end := len(dst)
	for step := 1; count-step > middle; step *= 2 {
		dst = append(dst, count-step)
	}
	slices.Reverse(dst[end:])
	return dst
}

// Shared returns how many leading blocks of chain are known to be among those that a hint marks: blocks first to count-1
// of another prompt, with points at the places of AppendPlaces. places is scratch; the longer one is returned for the next call.
func Shared(chain []blockhash.Hash, first, count int, points []uint32, places []int) (blocks int, scratch []int) {
	if first >= len(chain) || len(points) == 0 || uint32(chain[first]) != points[0] {
		return 0, places
	}
	places = AppendPlaces(places[:0], first, count)
	if len(places) != len(points) {
		return 0, places // another rule than ours
	}
	for i, at := range places {
		if at >= len(chain) || uint32(chain[at]) != points[i] {
			break
		}
		blocks = at + 1
	}
	return blocks, places
}
