package picker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/hold"
)

// Request is what the choice depends on. The picker reads the slices until Pick or Explain returns and keeps none of them
// after that; it changes nothing.
type Request struct {
	ID    string
	Model string // empty: any
	// TokenIDs is the prompt, or as much of its beginning as is known. Nil and no Chains: unknown, the request is routed
	// by load.
	TokenIDs []uint32
	// PromptTokens is the prompt's length. It may be left out if TokenIDs are the whole prompt.
	PromptTokens int
	// Chains are the prompt's block hashes for those who have them already: one for each of BlockSizes, made with Hasher
	// and the root of Extras. One that does not fit is not used; the picker hashes TokenIDs for block sizes without a
	// chain, and where there are none it counts on nothing cached.
	Chains []blockhash.Chain
	// Extras are what the engine folds into its block hashes: LoRA name, cache salt, and multimodal items or embeddings
	// with their offset in tokens from the start of the prompt. Blocks from the first such item on are not matched.
	Extras          []blockhash.Extra
	MaxOutputTokens int    // 0: not limited
	Flow            string // who is to be treated fairly
	Session         string // who keeps a policy; empty: ID
	Priority        int    // higher is bound first
	Sheddable       bool   // may be refused under load
	Deadline        time.Time
	MaxHold         time.Duration // if shorter than the configuration's; 0: that, negative: it is not held
	Bytes           int           // of the body, for the bound on held bytes; 0: 4 bytes a token
	Avoid           []string      // IDs of endpoints that failed this request
	// Only are the addresses, host:port, of the endpoints that may be chosen, all ranks of each. Nil: any; empty: none.
	Only         []string
	Fallbacks    int    // that Decision.Fallbacks should have
	NoFirstToken bool   // FirstToken will not be called: the answer comes as a whole
	NoCacheRead  bool   // the engine reads nothing from its cache (prompt_logprobs)
	PromptRung   string // how TokenIDs or Chains were made; goes into the receipt
}

// Endpoint is an engine, or one data-parallel rank of it.
type Endpoint struct {
	ID    string `json:"id"` // "host:port", or "host:port#rank" where there are several ranks
	URL   string `json:"url"`
	Rank  int    `json:"rank"`
	Ranks int    `json:"ranks"`
}

// Address returns the endpoint's host:port, which the ranks of one engine have in common.
func (e Endpoint) Address() string {
	address, _, _ := strings.Cut(e.ID, "#")
	return address
}

// Rung says what a price was made from, best first.
type Rung uint8

// The rungs of the ladder.
const (
	RungDigest      Rung = iota // what the endpoint's agent says is in its cache
	RungSuspect                 // the same, but believed less: the agent doubts it, or answers contradicted it
	RungSpeculation             // blocks of requests just bound here, and nothing else of its cache
	RungLoad                    // load from the agent, nothing of its cache
	RungOwn                     // this gateway's own counts
)

var rungNames = [...]string{"digest", "suspect", "speculation", "load", "own"}

func (r Rung) String() string { return rungNames[r] }

// MarshalText makes rungs words in JSON.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (r *Rung) UnmarshalText(text []byte) error {
	i := slices.Index(rungNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("rung %q: want one of %s", text, strings.Join(rungNames[:], ", "))
	}
	*r = Rung(i)
	return nil
}

// Decision is the answer to a request. It must be given to Done exactly once, whatever becomes of the request.
type Decision struct {
	RequestID             string
	Endpoint              Endpoint
	Policy                string
	Rung                  Rung
	Reason                string // "ready", "expired", "crowded", "drained" (see package hold), or "early": not held
	MatchedBlocks         int    // leading prompt blocks that the endpoint holds or is about to
	DigestBlocks          int    // of these, what its digest alone gives
	PromptBlocks          int    // full blocks of the prompt
	PredictedCachedTokens int    // prompt tokens that the engine should find in its cache
	Held                  time.Duration
	// Fallbacks are the best endpoints on other hosts, best first, at most Request.Fallbacks and one a host: for whoever has to
	// go on alone when Endpoint can't be reached.
	Fallbacks []Endpoint

	flight *flight
}

// Outcome says how a request ended.
type Outcome struct {
	Status       int   // HTTP status, 0 if there was none
	Err          error // nil if the answer was complete
	Connected    bool  // the endpoint was reached
	CachedTokens int   // as the engine reports, -1 unknown
	PromptTokens int   // as the engine reports, 0 unknown
	OutputTokens int
	Cancelled    bool // by the client
}

// ErrNoEndpoints says that the pool is empty, or that the request may have nothing of it: see Request.Avoid and Only.
var ErrNoEndpoints = errors.New("no endpoint in the pool")

// ErrOverloaded says that a request was refused under load.
type ErrOverloaded struct {
	RetryAfter time.Duration
	Reason     hold.Reason // hold.Shed or hold.Full
}

func (e ErrOverloaded) Error() string {
	return fmt.Sprintf("overloaded (%v), retry after %v", e.Reason, e.RetryAfter.Round(time.Millisecond))
}

// ErrUnknownModel says that no endpoint serves a model. It is only returned if the models of every endpoint are known.
type ErrUnknownModel struct {
	Model string
	Known []string // sorted
}

func (e ErrUnknownModel) Error() string {
	return fmt.Sprintf("no endpoint serves model %q; served: %s", e.Model, strings.Join(e.Known, ", "))
}
