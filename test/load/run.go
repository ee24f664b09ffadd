// Package load is an open-loop load generator for OpenAI-compatible servers: it sends
// each request of a workload at its time, whatever became of those before, and reports time to
// first token, latency and cached tokens as the server tells them.
//
// It does not judge the server: package demo compares policies with it.
package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Config says where and how to send.
type Config struct {
	Target  string // base URL, e.g. http://127.0.0.1:8080
	Model   string
	Speedup float64       // divides every time of the workload; 1 is real time
	Timeout time.Duration // per request; zero: 10 minutes
	Form    Form
	// Retries is how often a request is sent again that got no answer, or status 408, 409, 429 or 5xx; never one
	// whose stream had begun. The pauses are those of OpenAI's SDK (openai-python 2.x, _base_client.py), which
	// retries twice, on the wall clock.
	Retries int
	// OnResult is called as each request ends, from its own goroutine. May be nil.
	OnResult func(Result)
}

// Form is how prompts are written into requests.
type Form string

const (
	FormIDs  Form = "ids"  // /v1/completions with token ids
	FormText Form = "text" // /v1/completions with one made-up word per token
	FormChat Form = "chat" // /v1/chat/completions: one user message of such words
)

// Result is what one request came to, as seen at the client's socket.
type Result struct {
	Index        int // position in the workload
	Session      string
	Status       int // HTTP status; 0 when no answer came
	Retries      int // times it was sent again
	Err          error
	PromptTokens int // as the server says, else as sent
	CachedTokens int // -1: the server did not say
	OutputTokens int
	Lateness     time.Duration // sent later than the workload wanted, wall clock
	Sent         time.Time
	TTFT         time.Duration // request written → first event with output, wall clock
	Latency      time.Duration // request written → end of the answer, wall clock
	Header       http.Header   // of the answer
}

// Run sends the workload and returns one Result per request, in the workload's order.
// It ends when the last answer has, or with ctx.
func Run(ctx context.Context, cfg Config, reqs []Request) ([]Result, error) {
	if cfg.Speedup <= 0 {
		cfg.Speedup = 1
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Minute
	}
	if cfg.Form == "" {
		cfg.Form = FormIDs
	}
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 1024,
		DisableCompression:  true,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      16 << 10,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}

	results := make([]Result, len(reqs))
	var wg sync.WaitGroup
	defer wg.Wait()
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := range reqs {
		due := start.Add(time.Duration(float64(reqs[i].At) / cfg.Speedup))
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		wg.Go(func() {
			r := cfg.send(ctx, client, &reqs[i])
			r.Index, r.Session, r.Lateness = i, reqs[i].Session, r.Sent.Sub(due)
			results[i] = r
			if cfg.OnResult != nil {
				cfg.OnResult(r)
			}
		})
	}
	wg.Wait()
	return results, ctx.Err()
}

// send makes the calls of one request. Its times count from the first.
func (cfg *Config) send(ctx context.Context, client *http.Client, req *Request) Result {
	first := time.Now()
	for n := 0; ; n++ {
		res := cfg.call(ctx, client, req)
		res.Retries = n
		before := res.Sent.Sub(first)
		res.Sent = first
		res.Latency += before
		if res.TTFT > 0 {
			res.TTFT += before
		}
		if n == cfg.Retries || !res.again() {
			return res
		}
		pause := min(retryMin<<n, retryMax)
		pause -= rand.N(pause/4 + 1)
		select {
		case <-ctx.Done():
			return res
		case <-time.After(pause):
		}
	}
}

const (
	retryMin = 500 * time.Millisecond
	retryMax = 8 * time.Second
)

// again reports whether sending again may help.
func (r *Result) again() bool {
	switch {
	case r.Err == nil:
		return false
	case r.Status == http.StatusRequestTimeout, r.Status == http.StatusConflict, r.Status == http.StatusTooManyRequests:
		return true
	}
	return r.Status == 0 || r.Status >= http.StatusInternalServerError
}

// call makes one call and reads its stream to the end.
func (cfg *Config) call(ctx context.Context, client *http.Client, req *Request) Result {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	path, body := cfg.body(req)
	res := Result{PromptTokens: req.PromptTokens(), CachedTokens: -1, Sent: time.Now()}
	hreq, err := http.NewRequestWithContext(ctx, http.MethodPost, cfg.Target+path, bytes.NewReader(body))
	if err != nil {
		res.Err = err
		return res
	}
	hreq.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(hreq)
	if err != nil {
		res.Err = fmt.Errorf("send request: %w", err)
		return res
	}
	defer resp.Body.Close()
	res.Status, res.Header = resp.StatusCode, resp.Header
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		res.Err = fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(text))
		return res
	}
	res.Err = res.readStream(resp.Body)
	res.Latency = time.Since(res.Sent)
	return res
}

// body writes the request without going through a generic encoder: prompts are long.
func (cfg *Config) body(req *Request) (path string, body []byte) {
	body = make([]byte, 0, 256+7*req.PromptTokens())
	body = append(body, `{"model":`...)
	body = strconv.AppendQuote(body, cfg.Model)
	path = "/v1/completions"
	switch cfg.Form {
	case FormIDs:
		body = append(body, `,"prompt":[`...)
		for _, part := range req.Parts {
			for _, id := range part {
				body = append(strconv.AppendUint(body, uint64(id), 10), ',')
			}
		}
		body[len(body)-1] = ']'
	case FormText:
		body = append(body, `,"prompt":"`...)
		body = append(appendWords(body, req.Parts), '"')
	case FormChat:
		path = "/v1/chat/completions"
		body = append(body, `,"messages":[{"role":"user","content":"`...)
		body = append(appendWords(body, req.Parts), `"}]`...)
	}
	body = append(body, `,"max_tokens":`...)
	body = strconv.AppendInt(body, int64(req.MaxTokens), 10)
	body = append(body, `,"temperature":0,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}`...)
	if req.Session != "" {
		body = append(body, `,"user":`...)
		body = strconv.AppendQuote(body, req.Session)
	}
	return path, append(body, '}')
}

// appendWords writes each token as a short made-up word.
func appendWords(dst []byte, parts [][]uint32) []byte {
	for _, part := range parts {
		for _, id := range part {
			for n := id; ; n /= 20 {
				dst = append(dst, "bdfghjklmnprstvwzcxq"[n%20], "aeiou"[n%5])
				if n < 20 {
					break
				}
			}
			dst = append(dst, ' ')
		}
	}
	return dst
}

var errNoDone = errors.New("stream ended without data: [DONE]")

// readStream reads server-sent events up to [DONE].
func (r *Result) readStream(body io.Reader) error {
	in := bufio.NewReaderSize(body, 16<<10)
	for {
		line, err := in.ReadBytes('\n')
		data, isData := bytes.CutPrefix(line, []byte("data:"))
		data = bytes.TrimSpace(data)
		if isData && bytes.Equal(data, []byte("[DONE]")) {
			_, _ = io.Copy(io.Discard, in) // to the end of the answer: closing before it looks like a client that gave up
			return nil
		}
		if isData {
			if err := r.event(data); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return errNoDone
		}
		if err != nil {
			return fmt.Errorf("read stream: %w", err)
		}
	}
}

// event reads one event; after the first with output only usage and errors matter.
func (r *Result) event(data []byte) error {
	if r.TTFT > 0 && !bytes.Contains(data, []byte(`"usage":{`)) && !bytes.HasPrefix(data, []byte(`{"error"`)) && !bytes.Contains(data, []byte(`"usage": {`)) {
		return nil
	}
	var e struct {
		Error   json.RawMessage `json:"error"`
		Choices []struct {
			Text  string `json:"text"`
			Delta struct {
				Content          string            `json:"content"`
				Reasoning        string            `json:"reasoning"`
				ReasoningContent string            `json:"reasoning_content"`
				ToolCalls        []json.RawMessage `json:"tool_calls"`
			} `json:"delta"`
			TokenIDs []uint32 `json:"token_ids"`
		} `json:"choices"`
		Usage *struct {
			PromptTokens        int `json:"prompt_tokens"`
			CompletionTokens    int `json:"completion_tokens"`
			PromptTokensDetails *struct {
				CachedTokens *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("read event: %w", err)
	}
	if len(e.Error) > 0 && string(e.Error) != "null" {
		return fmt.Errorf("error event: %s", e.Error)
	}
	if r.TTFT == 0 {
		for _, c := range e.Choices {
			d := c.Delta
			if c.Text != "" || d.Content != "" || d.Reasoning != "" || d.ReasoningContent != "" || len(d.ToolCalls) > 0 || len(c.TokenIDs) > 0 {
				r.TTFT = time.Since(r.Sent)
				break
			}
		}
	}
	if u := e.Usage; u != nil {
		r.PromptTokens, r.OutputTokens = u.PromptTokens, u.CompletionTokens
		if u.PromptTokensDetails != nil {
			r.CachedTokens = 0
			if c := u.PromptTokensDetails.CachedTokens; c != nil {
				r.CachedTokens = *c
			}
		}
	}
	return nil
}
