package engine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/sched"
)

// Headers of the first event or of the answer, by which a load generator can put
// its measurements on the emulated clock.
const (
	headerTTFT = "X-Engine-Ttft-Ms" // arrival to first token on the emulated clock: queue and prefill
	headerWall = "X-Engine-Wall-Ms" // the same as it really took inside the engine
)

// exchange is one HTTP request that generates.
type exchange struct {
	e       *Engine
	w       http.ResponseWriter
	req     *request
	chat    bool
	id      string
	created int64
	jobs    []*job
	choices []choice // one a job
	headers bool     // headers are out
}

// choice is the answer to one job as far as it is known.
type choice struct {
	tokens []uint32
	told   bool // stream: the first chunk is out
	reason sched.Reason
}

// generate serves /v1/chat/completions and /v1/completions.
func (e *Engine) generate(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.serving.Add(1)
		defer e.serving.Add(-1)
		x := exchange{e: e, w: w, req: &request{}, chat: chat, created: time.Now().Unix()}
		if err := decode(w, r, x.req); err != nil {
			writeError(w, err)
			return
		}
		if x.id = "cmpl-" + w.Header().Get("X-Request-Id"); chat {
			x.id = "chat" + x.id
		}
		var err error
		if x.jobs, err = e.jobs(x.req, chat, x.id); err != nil {
			writeError(w, err)
			return
		}
		rank, err := e.pickRank(r.Header.Get("X-Data-Parallel-Rank"))
		if err != nil {
			writeError(w, err)
			return
		}
		x.choices = make([]choice, len(x.jobs))
		for _, j := range x.jobs {
			rank.submit(j)
		}
		x.serve(r)
	}
}

// pickRank follows vLLM: the header's rank, ignored if it is no number; else the
// least busy one.
func (e *Engine) pickRank(header string) (*rank, error) {
	if n, err := strconv.Atoi(header); err == nil {
		if n < 0 || n >= len(e.ranks) {
			return nil, bad("data_parallel_rank %d is out of range [0, %d).", n, len(e.ranks))
		}
		return e.ranks[n], nil
	}
	best := e.ranks[0]
	if len(e.ranks) == 1 {
		return best, nil
	}
	least := best.pending()
	for _, r := range e.ranks[1:] {
		if p := r.pending(); p < least {
			best, least = r, p
		}
	}
	return best, nil
}

// serve waits for the jobs and writes the answer.
func (x *exchange) serve(r *http.Request) {
	open := len(x.jobs)
	for open > 0 {
		select {
		case <-r.Context().Done():
			for _, j := range x.jobs {
				j.rank.abort(j)
			}
			return
		case <-x.jobs[0].ready:
		}
		for i, j := range x.jobs {
			for _, p := range j.take() {
				c := &x.choices[i]
				c.tokens = append(c.tokens, p.Tokens...)
				if c.reason = p.Reason; c.reason != "" {
					open--
				}
				if x.req.Stream {
					x.event(i, p)
				}
			}
		}
		if x.req.Stream {
			_ = http.NewResponseController(x.w).Flush()
		}
	}
	if x.req.Stream {
		if x.req.StreamOptions.IncludeUsage {
			x.chunk()
		}
		_, _ = x.w.Write([]byte("data: [DONE]\n\n"))
		return
	}
	x.sendHeaders(x.jobs[0])
	writeJSON(x.w, http.StatusOK, x.whole())
}

// sendHeaders tells of j, which has had progress: with several choices, the first
// one that had.
func (x *exchange) sendHeaders(j *job) {
	if x.headers {
		return
	}
	x.headers = true
	h := x.w.Header()
	h.Set(headerTTFT, milliseconds(j.req.First-j.req.Arrived))
	h.Set(headerWall, milliseconds(j.firstWall))
	if x.req.Stream {
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		x.w.WriteHeader(http.StatusOK)
	}
}

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(max(0, d.Seconds()*1000), 'f', 3, 64)
}

// body is an answer or one chunk of a stream, of either endpoint.
type body struct {
	ID        string      `json:"id"`
	Object    string      `json:"object"`
	Created   int64       `json:"created"`
	Model     string      `json:"model"`
	Choices   []choiceOut `json:"choices"`
	Usage     *usage      `json:"usage,omitempty"`
	PromptIDs []uint32    `json:"prompt_token_ids,omitempty"` // chat, on return_token_ids
}

type choiceOut struct {
	Index        int           `json:"index"`
	Message      *message      `json:"message,omitempty"` // chat
	Delta        *message      `json:"delta,omitempty"`   // chat, streamed
	Text         *string       `json:"text,omitempty"`    // completions
	Logprobs     *struct{}     `json:"logprobs"`
	FinishReason *sched.Reason `json:"finish_reason"`
	StopReason   *struct{}     `json:"stop_reason"`
	TokenIDs     []uint32      `json:"token_ids,omitempty"`        // on return_token_ids
	PromptIDs    []uint32      `json:"prompt_token_ids,omitempty"` // completions, on return_token_ids
}

type message struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (x *exchange) body(object string) body {
	model := x.req.Model
	if model == "" {
		model = x.e.cfg.Model
	}
	return body{ID: x.id, Object: object, Created: x.created, Model: model, Choices: []choiceOut{}}
}

// event streams one progress of choice i.
func (x *exchange) event(i int, p sched.Progress) {
	x.sendHeaders(x.jobs[i])
	first := !x.choices[i].told
	x.choices[i].told = true
	out := choiceOut{Index: i}
	if p.Reason != "" {
		out.FinishReason = &p.Reason
	}
	if x.req.ReturnTokenIDs {
		out.TokenIDs = p.Tokens
	}
	text := x.e.cfg.Tokenizer.Decode(p.Tokens)
	if !x.chat {
		out.Text = &text
		if first && x.req.ReturnTokenIDs {
			out.PromptIDs = x.jobs[i].prompt
		}
		x.chunk(out)
		return
	}
	if first {
		// As vLLM: the role goes out in a chunk of its own when the first token is there.
		role := x.body("chat.completion.chunk")
		role.Choices = []choiceOut{{Index: i, Delta: &message{Role: "assistant"}}}
		if x.req.ReturnTokenIDs {
			role.PromptIDs = x.jobs[i].prompt
		}
		x.write(role)
	}
	out.Delta = &message{Content: text}
	x.chunk(out)
}

// chunk writes one event with these choices; without any it carries the usage.
func (x *exchange) chunk(choices ...choiceOut) {
	object := "text_completion"
	if x.chat {
		object = "chat.completion.chunk"
	}
	v := x.body(object)
	if v.Choices = append(v.Choices, choices...); len(choices) == 0 {
		v.Usage = x.usage()
	}
	x.write(v)
}

func (x *exchange) write(v body) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("engine: encode chunk: %v", err)) // plain values only
	}
	_, _ = x.w.Write(append(append([]byte("data: "), b...), "\n\n"...))
}

// whole is the answer that is not streamed.
func (x *exchange) whole() body {
	object := "text_completion"
	if x.chat {
		object = "chat.completion"
	}
	v := x.body(object)
	v.Usage = x.usage()
	for i, c := range x.choices {
		text := x.e.cfg.Tokenizer.Decode(c.tokens)
		out := choiceOut{Index: i, FinishReason: &c.reason}
		if x.req.ReturnTokenIDs {
			out.TokenIDs = c.tokens
		}
		if x.chat {
			out.Message = &message{Role: "assistant", Content: text}
		} else {
			out.Text = &text
		}
		if !x.chat && x.req.ReturnTokenIDs {
			out.PromptIDs = x.jobs[i].prompt
		}
		v.Choices = append(v.Choices, out)
	}
	if x.chat && x.req.ReturnTokenIDs {
		v.PromptIDs = x.jobs[0].prompt
	}
	return v
}

// usage counts each prompt once, and its cached tokens as the last choice saw
// them: with n > 1 a later choice hits what the first one stored, as in vLLM.
func (x *exchange) usage() *usage {
	var u usage
	n := 1
	if x.req.N != nil {
		n = *x.req.N
	}
	for i, j := range x.jobs {
		u.Completion += len(x.choices[i].tokens)
		if (i+1)%n == 0 {
			u.Prompt += len(j.prompt)
			u.Details.Cached += j.req.Cached
		}
	}
	u.Total = u.Prompt + u.Completion
	return &u
}

// requestID makes an id for a request that came without one.
func requestID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }
