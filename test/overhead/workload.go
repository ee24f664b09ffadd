package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// conversation grows a chat request by turns.
type conversation struct {
	rng      *rand.Rand
	words    []string
	messages []string // as JSON
	bytes    int
}

// turnBytes is about what a turn adds, the answer before it included.
func turnBytes(size int) int { return min(800, max(64, size/40)) }

// newConversation makes one whose body has about size bytes, in turns of at most 4,000.
func newConversation(rng *rand.Rand, words []string, size int) *conversation {
	c := &conversation{rng: rng, words: words}
	c.add("system", min(400, size/4))
	for role := "user"; ; {
		left := size - c.bytes - overhead
		if left < 200 && role == "assistant" {
			return c
		}
		n := min(max(left-messageBytes, 16), 200+rng.IntN(3800))
		if left-n < 200 { // the last one takes the rest
			n = max(left-messageBytes, 16)
			if role == "assistant" {
				n = max(n/2, 16)
			}
		}
		c.add(role, n)
		role = map[string]string{"user": "assistant", "assistant": "user"}[role]
	}
}

const (
	overhead     = 90 // of a body beside its messages
	messageBytes = 40 // of a message beside its text
)

func (c *conversation) add(role string, size int) {
	var b strings.Builder
	for b.Len() < size {
		if b.Len() > 0 {
			b.WriteByte(" \n"[max(0, c.rng.IntN(12)-10)])
		}
		b.WriteString(c.words[c.rng.IntN(len(c.words))])
	}
	m := fmt.Sprintf(`{"role":%q,"content":%s}`, role, strconv.Quote(b.String()))
	c.messages = append(c.messages, m)
	c.bytes += len(m) + 1
}

// turn adds an answer and a question.
func (c *conversation) turn(size int) {
	c.add("assistant", size/2)
	c.add("user", size/2)
}

// body of the conversation's request.
func (c *conversation) body() []byte {
	return []byte(`{"model":"tiny","stream":true,"stream_options":{"include_usage":true},"max_tokens":1,"messages":[` +
		strings.Join(c.messages, ",") + `]}`)
}

// vocabulary is words of two to four syllables.
func vocabulary(rng *rand.Rand, n int) []string {
	syllables := strings.Fields("ba con de ing er tion pre ver al ma to ri sta ne lo que der um is ar the cal nd able")
	words := make([]string, n)
	for i := range words {
		for range 1 + rng.IntN(4) {
			words[i] += syllables[rng.IntN(len(syllables))]
		}
	}
	return words
}

// workload is what one cell sends: first warms, which are not measured, then requests.
type workload struct{ warms, requests [][]byte }

// coldWorkload has a new conversation in each request.
func coldWorkload(seed uint64, size, n int) workload {
	rng := rand.New(rand.NewPCG(seed, uint64(size)))
	words := vocabulary(rng, 5000)
	var w workload
	for range n {
		w.requests = append(w.requests, newConversation(rng, words, size).body())
	}
	// One of another conversation opens connections.
	w.warms = append(w.warms, newConversation(rng, words, size).body())
	return w
}

// conversations that a warm workload goes on with, in turn.
const conversations = 4

// warmWorkload has the next turn of one of a few conversations in each request; their bodies
// are of about the given size in the middle of the workload.
func warmWorkload(seed uint64, size, n int) workload {
	rng := rand.New(rand.NewPCG(seed, uint64(size)+1))
	words := vocabulary(rng, 5000)
	turn := turnBytes(size)
	start := max(size/2, size-turn*(n/conversations)/2)
	var w workload
	var open []*conversation
	for range conversations {
		c := newConversation(rng, words, start)
		open = append(open, c)
		w.warms = append(w.warms, c.body())
	}
	for i := range n {
		c := open[i%conversations]
		c.turn(turn)
		w.requests = append(w.requests, c.body())
	}
	return w
}
