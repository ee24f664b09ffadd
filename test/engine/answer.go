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
			x.chunk(map[string]any{"choices": []any{}, "usage": x.usage()})
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

// event streams one progress of choice i.
func (x *exchange) event(i int, p sched.Progress) {
	x.sendHeaders(x.jobs[i])
	c := &x.choices[i]
	text := x.e.cfg.Tokenizer.Decode(p.Tokens)
	var reason any
	if p.Reason != "" {
		reason = p.Reason
	}
	out := map[string]any{"index": i, "logprobs": nil, "finish_reason": reason}
	if x.req.ReturnTokenIDs {
		out["token_ids"] = p.Tokens
	}
	envelope := map[string]any{"choices": []any{out}}
	first := !c.told
	c.told = true
	if !x.chat {
		out["text"], out["stop_reason"] = text, nil
		if first && x.req.ReturnTokenIDs {
			out["prompt_token_ids"] = x.promptIDs(i)
		}
		x.chunk(envelope)
		return
	}
	if first {
		// As vLLM: the role goes out in a chunk of its own when the first token is there.
		role := map[string]any{
			"choices": []any{map[string]any{
				"index": i, "delta": map[string]any{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil,
			}},
		}
		if x.req.ReturnTokenIDs {
			role["prompt_token_ids"] = x.promptIDs(i)
		}
		x.chunk(role)
	}
	out["delta"] = map[string]any{"content": text}
	x.chunk(envelope)
}

// chunk writes one event of the stream.
func (x *exchange) chunk(v map[string]any) {
	object := "text_completion"
	if x.chat {
		object = "chat.completion.chunk"
	}
	x.label(v, object)
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("engine: encode chunk: %v", err)) // plain values only
	}
	_, _ = x.w.Write(append(append([]byte("data: "), b...), "\n\n"...))
}

func (x *exchange) label(v map[string]any, object string) {
	v["id"], v["object"], v["created"], v["model"] = x.id, object, x.created, x.model()
}

func (x *exchange) model() string {
	if x.req.Model != "" {
		return x.req.Model
	}
	return x.e.cfg.Model
}

// whole is the answer that is not streamed.
func (x *exchange) whole() map[string]any {
	choices := make([]any, len(x.choices))
	for i, c := range x.choices {
		text := x.e.cfg.Tokenizer.Decode(c.tokens)
		out := map[string]any{"index": i, "logprobs": nil, "finish_reason": c.reason, "stop_reason": nil}
		if x.req.ReturnTokenIDs {
			out["token_ids"] = c.tokens
		}
		if x.chat {
			out["message"] = map[string]any{"role": "assistant", "content": text}
		} else {
			out["text"] = text
			if x.req.ReturnTokenIDs {
				out["prompt_token_ids"] = x.promptIDs(i)
			}
		}
		choices[i] = out
	}
	v := map[string]any{"choices": choices, "usage": x.usage()}
	if x.chat && x.req.ReturnTokenIDs {
		v["prompt_token_ids"] = x.promptIDs(0)
	}
	object := "text_completion"
	if x.chat {
		object = "chat.completion"
	}
	x.label(v, object)
	return v
}

func (x *exchange) promptIDs(i int) []uint32 { return x.jobs[i].prompt }

// usage counts each prompt once, and its cached tokens as the last choice saw
// them: with n > 1 a later choice hits what the first one stored, as in vLLM.
func (x *exchange) usage() map[string]any {
	prompt, cached, completion := 0, 0, 0
	n := 1
	if x.req.N != nil {
		n = *x.req.N
	}
	for i, j := range x.jobs {
		completion += len(x.choices[i].tokens)
		if (i+1)%n == 0 {
			prompt += len(j.prompt)
			cached += j.req.Cached
		}
	}
	return map[string]any{
		"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
		"prompt_tokens_details": map[string]any{"cached_tokens": cached},
	}
}

// requestID makes an id for a request that came without one.
func requestID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }
