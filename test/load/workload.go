package load

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// Request is one call of a workload. Its prompt is the concatenation of Parts, so that
// requests can share a long prefix without copying it.
type Request struct {
	At        time.Duration // arrival on the workload's own clock, from its start
	Session   string        // conversation, task or user; sent as the OpenAI field "user"
	Parts     [][]uint32    // token ids
	MaxTokens int           // answer length; the engine is asked to ignore end-of-sequence
}

// PromptTokens is the length of the prompt.
func (r *Request) PromptTokens() int {
	n := 0
	for _, p := range r.Parts {
		n += len(p)
	}
	return n
}

// Vocabulary is the range of token ids that workloads draw from, half open. Ids of special
// tokens must lie outside.
type Vocabulary struct{ First, Last uint32 }

// DefaultVocabulary suits the project's tiny model (4,096 entries, bytes first, specials last)
// and nearly every real tokenizer.
func DefaultVocabulary() Vocabulary { return Vocabulary{First: 300, Last: 4000} }

// Validate reports an empty range.
func (v Vocabulary) Validate() error {
	if v.First >= v.Last {
		return fmt.Errorf("vocabulary %d:%d is empty: give first:last with first < last", v.First, v.Last)
	}
	return nil
}

func (v Vocabulary) draw(rng *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = v.First + rng.Uint32N(v.Last-v.First)
	}
	return ids
}

// exp draws an exponential gap with the given mean.
func exp(rng *rand.Rand, mean time.Duration) time.Duration {
	return time.Duration(rng.ExpFloat64() * float64(mean))
}

// MultiTurn is a chat workload: sessions start as a Poisson process, share a system prompt,
// add text and the previous answer in each turn, and come back after a think time.
type MultiTurn struct {
	Sessions, Turns           int
	SessionGap                time.Duration // mean gap between session starts
	SystemTokens, FirstTokens int           // common to all; own of the first turn
	TurnTokens, AnswerTokens  int           // new per later turn; length of each answer
	ThinkMin, ThinkMax        time.Duration // start of a turn to start of the next
	Seed                      uint64
}

// DefaultMultiTurn is workload W1: 200 sessions of 5 turns, one new session a second.
func DefaultMultiTurn() MultiTurn {
	return MultiTurn{
		Sessions: 200, Turns: 5, SessionGap: time.Second,
		SystemTokens: 2048, FirstTokens: 1024, TurnTokens: 724, AnswerTokens: 300,
		ThinkMin: 15 * time.Second, ThinkMax: 25 * time.Second, Seed: 3,
	}
}

// Requests lists the calls in order of arrival.
func (w MultiTurn) Requests(v Vocabulary) []Request {
	rng := rand.New(rand.NewPCG(w.Seed, 1))
	system := v.draw(rng, w.SystemTokens)
	var out []Request
	var start time.Duration
	for s := range w.Sessions {
		start += exp(rng, w.SessionGap)
		own := v.draw(rng, w.FirstTokens+(w.Turns-1)*(w.TurnTokens+w.AnswerTokens))
		at := start
		for turn := range w.Turns {
			n := w.FirstTokens + turn*(w.TurnTokens+w.AnswerTokens)
			out = append(out, Request{
				At: at, Session: "chat-" + strconv.Itoa(s),
				Parts: [][]uint32{system, own[:n]}, MaxTokens: w.AnswerTokens,
			})
			at += w.ThinkMin + time.Duration(rng.Float64()*float64(w.ThinkMax-w.ThinkMin))
		}
	}
	return sorted(out)
}

// Agentic is a burst workload: each task fans out parallel calls that share a long context.
type Agentic struct {
	Tasks, Calls            int
	TaskGap, CallGap        time.Duration // mean between tasks (Poisson); fixed between the calls of a task
	SharedTokens, OwnTokens int
	AnswerTokens            int
	Seed                    uint64
}

// DefaultAgentic is workload W2b: 100 tasks of 10 calls, one task every 1.1 s.
func DefaultAgentic() Agentic {
	return Agentic{
		Tasks: 100, Calls: 10, TaskGap: 1100 * time.Millisecond, CallGap: time.Millisecond,
		SharedTokens: 8192, OwnTokens: 500, AnswerTokens: 200, Seed: 4,
	}
}

// Requests lists the calls in order of arrival.
func (w Agentic) Requests(v Vocabulary) []Request {
	rng := rand.New(rand.NewPCG(w.Seed, 2))
	var out []Request
	var start time.Duration
	for task := range w.Tasks {
		start += exp(rng, w.TaskGap)
		shared := v.draw(rng, w.SharedTokens)
		for call := range w.Calls {
			out = append(out, Request{
				At: start + time.Duration(call)*w.CallGap, Session: "task-" + strconv.Itoa(task),
				Parts: [][]uint32{shared, v.draw(rng, w.OwnTokens)}, MaxTokens: w.AnswerTokens,
			})
		}
	}
	return sorted(out)
}

// Documents is a question workload: each user asks about a long document of their own.
type Documents struct {
	Users, Questions               int
	Gap                            time.Duration // mean between two questions of a user, drawn from half to one and a half
	DocumentTokens, QuestionTokens int
	AnswerTokens                   int
	Seed                           uint64
}

// DefaultDocuments is workload W3a: 10 users, 20 questions each on a 32,768-token document.
func DefaultDocuments() Documents {
	return Documents{
		Users: 10, Questions: 20, Gap: 15 * time.Second,
		DocumentTokens: 32768, QuestionTokens: 200, AnswerTokens: 150, Seed: 5,
	}
}

// Requests lists the calls in order of arrival. A user's document depends on Seed and the user's number alone.
func (w Documents) Requests(v Vocabulary) []Request {
	var out []Request
	for user := range w.Users {
		rng := rand.New(rand.NewPCG(w.Seed, 3<<32|uint64(user)))
		document := v.draw(rng, w.DocumentTokens)
		at := time.Duration(rng.Float64() * float64(w.Gap))
		for range w.Questions {
			out = append(out, Request{
				At: at, Session: "user-" + strconv.Itoa(user),
				Parts: [][]uint32{document, v.draw(rng, w.QuestionTokens)}, MaxTokens: w.AnswerTokens,
			})
			at += time.Duration((0.5 + rng.Float64()) * float64(w.Gap))
		}
	}
	return sorted(out)
}

// Synthetic is requests of one shape, in groups that share a prefix.
type Synthetic struct {
	Count        int
	RatePerSec   float64
	Poisson      bool // else evenly spaced
	PromptTokens int
	SharedTokens int // of PromptTokens, common to a group
	Groups       int
	AnswerTokens int
	Seed         uint64
}

// Validate joins all faults of the numbers.
func (w Synthetic) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(w.Count < 1, "requests %d: give at least 1", w.Count)
	fault(!(w.RatePerSec > 0), "rate %g: give requests a second above 0", w.RatePerSec)
	fault(w.PromptTokens < 1, "prompt-tokens %d: give at least 1", w.PromptTokens)
	fault(w.SharedTokens < 0 || w.SharedTokens > w.PromptTokens, "shared-tokens %d: give 0 to prompt-tokens (%d)", w.SharedTokens, w.PromptTokens)
	fault(w.Groups < 1, "groups %d: give at least 1", w.Groups)
	fault(w.AnswerTokens < 1, "output-tokens %d: give at least 1", w.AnswerTokens)
	return errors.Join(errs...)
}

// Requests lists the calls in order of arrival; each belongs to a random group.
func (w Synthetic) Requests(v Vocabulary) []Request {
	rng := rand.New(rand.NewPCG(w.Seed, 4))
	shared := make([][]uint32, w.Groups)
	for i := range shared {
		shared[i] = v.draw(rng, w.SharedTokens)
	}
	gap := time.Duration(float64(time.Second) / w.RatePerSec)
	out := make([]Request, w.Count)
	var at time.Duration
	for i := range out {
		group := rng.IntN(w.Groups)
		out[i] = Request{
			At: at, Session: "group-" + strconv.Itoa(group),
			Parts: [][]uint32{shared[group], v.draw(rng, w.PromptTokens-w.SharedTokens)}, MaxTokens: w.AnswerTokens,
		}
		if w.Poisson {
			at += exp(rng, gap)
		} else {
			at += gap
		}
	}
	return out
}

func sorted(rs []Request) []Request {
	slices.SortStableFunc(rs, func(a, b Request) int { return int(a.At - b.At) })
	return rs
}
