package enginemetrics

import "time"

// Change is what a sample says beyond its figures.
type Change struct {
	Restarted bool   // the engine is not the one of the sample before
	Reason    string // why: "process start time" or "counter fell"
	Asleep    bool   // any rank sleeps
}

// Tracker follows the samples of one engine. It survives the engine's restarts:
// the speed of the hardware does not change by them. Not safe for concurrent
// use.
type Tracker struct {
	processStart float64
	ranks        map[int]*rankState
}

type rankState struct {
	last    Rank
	idle    Counters // when last nothing ran
	hasIdle bool
	prefill *PrefillFit
	decode  *DecodeFit
}

// NewTracker returns a tracker that has seen nothing.
func NewTracker() *Tracker { return &Tracker{ranks: make(map[int]*rankState)} }

// Observe takes the next sample of the engine.
func (t *Tracker) Observe(now time.Time, s *Sample) Change {
	var ch Change
	if t.processStart != 0 && s.ProcessStart != 0 && s.ProcessStart != t.processStart {
		ch.Restarted, ch.Reason = true, "process start time"
	}
	for i := range s.Ranks {
		r := &s.Ranks[i]
		if st, ok := t.ranks[r.Rank]; ok && !ch.Restarted && fell(&st.last.Counters, &r.Counters) {
			ch.Restarted, ch.Reason = true, "counter fell"
		}
		ch.Asleep = ch.Asleep || r.Sleep != Awake
	}
	t.processStart = s.ProcessStart
	for i := range s.Ranks {
		r := &s.Ranks[i]
		st, ok := t.ranks[r.Rank]
		if !ok {
			st = &rankState{prefill: NewPrefillFit(), decode: NewDecodeFit()}
			t.ranks[r.Rank] = st
		}
		if ok && !ch.Restarted {
			st.learn(now, r)
		}
		if r.Running+r.Waiting == 0 {
			st.idle, st.hasIdle = r.Counters, true
		} else if ch.Restarted {
			st.hasIdle = false
		}
		st.last = *r
	}
	return ch
}

// ObservePrefill adds a prefill that somebody else timed, a gateway say.
func (t *Tracker) ObservePrefill(now time.Time, rank, newTokens, cachedTokens int, took time.Duration) {
	if st, ok := t.ranks[rank]; ok {
		st.prefill.Observe(now, 1, newTokens, cachedTokens, took)
	}
}

// Prefill is the prefill cost learned for a rank.
func (t *Tracker) Prefill(rank int) PrefillCost {
	if st, ok := t.ranks[rank]; ok {
		return st.prefill.Cost()
	}
	return NewPrefillFit().Cost()
}

// Decode is the decode cost learned for a rank.
func (t *Tracker) Decode(rank int) DecodeCost {
	if st, ok := t.ranks[rank]; ok {
		return st.decode.Cost()
	}
	return NewDecodeFit().Cost()
}

// fell says whether a counter that only rises is lower now.
func fell(old, now *Counters) bool {
	return now.PromptTokens < old.PromptTokens ||
		now.GenerationTokens < old.GenerationTokens ||
		now.PrefixQueryTokens < old.PrefixQueryTokens ||
		now.TTFT.Count < old.TTFT.Count ||
		now.PrefillTime.Count < old.PrefillTime.Count
}

// learn feeds the fits with what happened since the sample before.
func (st *rankState) learn(now time.Time, r *Rank) {
	old, cur := &st.last.Counters, &r.Counters
	if cur.PrefillComputed.Count > 0 {
		// The three are counted together when a request finishes.
		took := cur.PrefillTime.sub(old.PrefillTime)
		computed := cur.PrefillComputed.sub(old.PrefillComputed)
		prompt := cur.RequestPrompt.sub(old.RequestPrompt)
		if took.Count == computed.Count && took.Count == prompt.Count && took.Count <= maxBatch {
			st.prefill.Observe(now, int(took.Count), int(computed.Sum), int(max(0, prompt.Sum-computed.Sum)), seconds(took.Sum))
		}
	} else if st.hasIdle && r.Running+r.Waiting == 0 {
		st.learnIdle(now, cur)
	}
	// Steps that share the engine with a prefill are longer: leave those out.
	step := cur.InterToken.sub(old.InterToken)
	if step.Count > 0 && step.Count < 1<<32 && cur.PromptTokens == old.PromptTokens && st.last.Waiting == 0 && r.Waiting == 0 {
		st.decode.Observe(now, (st.last.UsedTokens()+r.UsedTokens())/2, seconds(step.Sum/float64(step.Count)))
	}
}

// learnIdle is for engines that don't count computed tokens (older vLLM,
// SGLang). Their counters move at different moments of a request, so only the
// sum between two idle moments tells what belongs together.
func (st *rankState) learnIdle(now time.Time, cur *Counters) {
	old := &st.idle
	took := cur.TTFT.sub(old.TTFT)
	if cur.PrefillTime.Count > 0 {
		took = cur.PrefillTime.sub(old.PrefillTime)
	}
	prompt := cur.PromptTokens - old.PromptTokens
	cached := cur.PrefixHitTokens - old.PrefixHitTokens
	if cur.PrefixQueryTokens == 0 {
		cached = cur.CachedPromptTokens - old.CachedPromptTokens
	}
	if took.Count > maxBatch || cached > prompt || prompt > 1<<31 {
		return
	}
	st.prefill.Observe(now, int(took.Count), int(prompt-cached), int(cached), seconds(took.Sum))
}
