package engine

import (
	"math/rand/v2"
	"strings"

	"github.com/grapevine-llm/grapevine/picker/prompt/chat"
)

// Tokenizer is the model's text side. Safe for concurrent use.
type Tokenizer interface {
	Encode(text string) []uint32
	Decode(ids []uint32) string
	// Render applies the chat template.
	Render(chat.Request) (string, error)
}

// vocabulary are words that a byte-level tokenizer usually has as one token each,
// with the space before them. So an answer that a client sends back in its next
// turn tokenizes to the ids that were generated, and hits.
const vocabulary = "the of and to in is that it for as with be by on not this are or from at an which " +
	"you if will can all has one may there their we have were been more use when other into only time " +
	"some new any these two first then most also over such after where each while must should used value " +
	"name list file data string object function class method module return default type set text code"

// voice says what the model answers: words in an order that depends on the
// prompt alone.
type voice struct{ words [][]uint32 }

func newVoice(t Tokenizer) voice {
	var v voice
	var all [][]uint32
	for w := range strings.FieldsSeq(vocabulary) {
		ids := t.Encode(" " + w)
		all = append(all, ids)
		if len(ids) == 1 {
			v.words = append(v.words, ids)
		}
	}
	if len(v.words) < 8 {
		v.words = all // a tokenizer of small pieces: words of several tokens
	}
	return v
}

// say returns n tokens; equal seeds and choices give equal tokens.
func (v voice) say(seed, choice uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, choice))
	out := make([]uint32, 0, n)
	for len(out) < n {
		out = append(out, v.words[rng.IntN(len(v.words))]...)
	}
	return out[:n]
}

// naturalLength is where the emulated model ends its answer by itself, if the
// request sets no limit.
func naturalLength(seed uint64) int { return 64 + int(seed%192) }
