package agent

import "time"

const (
	// silenceAfter is how long an engine may have computed prompts without an event
	// before that is said.
	silenceAfter = 15 * time.Second
	// silenceBlocks is how many blocks' tokens it must have computed: prompts shorter
	// than a block give no events.
	silenceBlocks = 32
)

// silence notices an engine that works but was never heard; a core. vLLM's
// publisher gives no error when nobody can hear it. Once events came, their absence
// means nothing: hits give none.
type silence struct {
	primed bool
	base   uint64    // computed tokens when the agent began to listen
	since  time.Time // when enough more than that was first seen
}

// observe takes the prompt tokens that the engine has computed since its start and
// the number of event batches received so far; it reports whether the silence is
// suspicious.
func (s *silence) observe(now time.Time, computed, events uint64, blockSize int) bool {
	switch {
	case events > 0 || !s.primed || computed < s.base:
		*s = silence{primed: true, base: computed}
	case computed-s.base < uint64(silenceBlocks*max(blockSize, 1)):
	case s.since.IsZero():
		s.since = now
	default:
		return now.Sub(s.since) >= silenceAfter
	}
	return false
}
