package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
)

// Load is a made-up load: sessions that start at random, each some calls on a prefix that its group shares and a context of its
// own.
type Load struct {
	Sessions       int
	SessionsPerSec float64 // starts, a Poisson process
	Groups         int     // of sessions with a common prefix; which one is drawn
	PrefixTokens   int     // tools and system prompt, common to a group
	ContextTokens  int     // of a session, behind the prefix: a document, or the first message
	Turns          int     // calls of a session
	// TurnTokens is what a call adds. With Grows it is what each call after the first adds to all before, answers too: a chat or
	// an agent's loop. Without, it stands behind prefix and context in each call, for that call alone: questions.
	TurnTokens   int
	Grows        bool
	OutputTokens int // of each answer
	// ThinkMin and ThinkMax bound the pause between an answer and the session's next call. An answer is taken to last 20 ms a
	// token where calls don't wait for it.
	ThinkMin, ThinkMax time.Duration
	Parallel           bool // a session's calls come a millisecond after each other and wait for none
	Seed               uint64
}

// answerPace is how long a token of an answer is taken to last in recorded arrivals.
const answerPace = 20 * time.Millisecond

// LoadNames lists the loads that LoadOf knows: three shapes, and the workloads W1 (chat), W2 (tasks that fan out) and W3 (questions
// on long documents) of `grapevine demo`.
func LoadNames() []string { return []string{"shared-prefix", "multi-turn", "agents", "W1", "W2", "W3"} }

// LoadOf returns a load by its name, false if there is none.
func LoadOf(name string) (Load, bool) {
	switch strings.ToLower(name) {
	case "shared-prefix":
		return Load{Sessions: 3000, SessionsPerSec: 10, Groups: 50, PrefixTokens: 4096, Turns: 1, TurnTokens: 1024, OutputTokens: 200}, true
	case "multi-turn":
		return Load{
			Sessions: 400, SessionsPerSec: 1, Groups: 4, PrefixTokens: 2048, ContextTokens: 1024, Turns: 8, TurnTokens: 700, Grows: true, OutputTokens: 300,
			ThinkMin: 10 * time.Second, ThinkMax: 30 * time.Second,
		}, true
	case "agents":
		return Load{
			Sessions: 80, SessionsPerSec: 0.1, Groups: 4, PrefixTokens: 12_288, ContextTokens: 2048, Turns: 40, TurnTokens: 800, Grows: true, OutputTokens: 200,
			ThinkMin: 2 * time.Second, ThinkMax: 10 * time.Second,
		}, true
	case "w1":
		return Load{
			Sessions: 200, SessionsPerSec: 1, Groups: 1, PrefixTokens: 2048, ContextTokens: 1024, Turns: 5, TurnTokens: 724, Grows: true, OutputTokens: 300,
			ThinkMin: 9 * time.Second, ThinkMax: 19 * time.Second,
		}, true
	case "w2":
		return Load{Sessions: 100, SessionsPerSec: 1 / 1.1, Groups: 1, ContextTokens: 8192, Turns: 10, TurnTokens: 500, OutputTokens: 200, Parallel: true}, true
	case "w3":
		return Load{
			Sessions: 10, SessionsPerSec: 1 / 1.5, Groups: 1, ContextTokens: 32_768, Turns: 20, TurnTokens: 200, OutputTokens: 150,
			ThinkMin: 4500 * time.Millisecond, ThinkMax: 19_500 * time.Millisecond,
		}, true
	}
	return Load{}, false
}

// What a load may be at most.
const (
	maxCalls  = 1 << 22
	maxPrompt = 1 << 24
)

// Validate joins all faults.
func (l *Load) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(l.Sessions >= 1 && l.Turns >= 1 && l.Sessions <= maxCalls && l.Turns <= maxCalls && l.Sessions*l.Turns <= maxCalls,
		"sessions %d, turns %d: give 1 or more of each, %d calls at most", l.Sessions, l.Turns, maxCalls)
	check(l.SessionsPerSec > 0 && l.SessionsPerSec <= 1e6, "session rate %g: give sessions a second above 0, at most 1e6", l.SessionsPerSec)
	check(l.Groups >= 1 && l.Groups <= maxCalls, "groups %d: give 1 to %d", l.Groups, maxCalls)
	small := l.PrefixTokens >= 0 && l.ContextTokens >= 0 && l.TurnTokens >= 0 && l.OutputTokens >= 1 &&
		l.PrefixTokens <= maxPrompt && l.ContextTokens <= maxPrompt && l.TurnTokens <= maxPrompt && l.OutputTokens <= maxPrompt
	check(small, "tokens of prefix %d, context %d, turn %d, output %d: give 0 or more, output 1 or more", l.PrefixTokens, l.ContextTokens, l.TurnTokens, l.OutputTokens)
	if small {
		check(l.prompt(0) >= 1, "prefix, context and turn have no token")
		check(l.Turns < 1 || l.Turns > maxCalls || l.prompt(l.Turns-1) <= maxPrompt, "the last prompt of a session is longer than %d tokens", maxPrompt)
	}
	check(l.ThinkMin >= 0 && l.ThinkMax >= l.ThinkMin && l.ThinkMax <= maxSpan/maxCalls, "think time %v to %v: give 0 or more", l.ThinkMin, l.ThinkMax)
	return errors.Join(errs...)
}

// prompt is the length of a session's prompt.
func (l *Load) prompt(turn int) int {
	if l.Grows {
		return l.PrefixTokens + l.ContextTokens + turn*(l.TurnTokens+l.OutputTokens)
	}
	return l.PrefixTokens + l.ContextTokens + l.TurnTokens
}

// Generate makes the trace of a load. Its seed draws arrivals, pauses and groups.
func Generate(l Load, blockTokens int) (*Trace, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if blockTokens < 1 || blockTokens > MaxBlockTokens {
		return nil, fmt.Errorf("blocks of %d tokens: give 1 to %d", blockTokens, MaxBlockTokens)
	}
	rng := rand.New(rand.NewPCG(l.Seed, 17))
	t := &Trace{BlockTokens: blockTokens}
	var start time.Duration
	for session := range l.Sessions {
		start += seconds(rng.ExpFloat64() / l.SessionsPerSec)
		at, group, name := start, rng.IntN(l.Groups), strconv.Itoa(session)
		var think time.Duration
		for turn := range l.Turns {
			r := Request{At: at, Session: name, Think: think, Prompt: l.prompt(turn), Output: l.OutputTokens}
			shared := l.PrefixTokens + l.ContextTokens
			if l.Grows {
				shared = r.Prompt
			}
			for end := blockTokens; end <= shared; end += blockTokens {
				r.Blocks = append(r.Blocks, blockID(end <= l.PrefixTokens, group, session, end))
			}
			t.Requests = append(t.Requests, r)
			if l.Parallel {
				at += time.Millisecond
				continue
			}
			think = l.ThinkMin + time.Duration(rng.Float64()*float64(l.ThinkMax-l.ThinkMin))
			at += time.Duration(l.OutputTokens)*answerPace + think
		}
	}
	t.settle(&Options{}, 0)
	if l.Parallel {
		for i := range t.Requests {
			t.Requests[i].Previous = -1
		}
	}
	return t, nil
}

// blockID names the block that ends at a token, of a group's prefix or of a session, and with it all before.
func blockID(prefix bool, group, session, end int) uint64 {
	var b [24]byte
	binary.LittleEndian.PutUint64(b[:8], 1)
	binary.LittleEndian.PutUint64(b[8:16], uint64(session))
	if prefix {
		binary.LittleEndian.PutUint64(b[:8], 2)
		binary.LittleEndian.PutUint64(b[8:16], uint64(group))
	}
	binary.LittleEndian.PutUint64(b[16:], uint64(end))
	return xxh3.Hash(b[:])
}
