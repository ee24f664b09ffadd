package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/picker/openai"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/prompt/tokenizer"
)

// comparer asks an engine for its token ids of a request.
type comparer struct {
	client  *http.Client
	url     string
	tok     *tokenizer.Tokenizer
	partial bool // own ids are the beginning only
}

// verdict is what one endpoint of the engine says.
type verdict struct {
	Endpoint string      `json:"endpoint"`
	Equal    bool        `json:"equal"`
	Tokens   int         `json:"tokens,omitempty"`  // that the engine counts
	Skipped  string      `json:"skipped,omitempty"` // why nothing was compared
	Differs  *difference `json:"differs,omitempty"`
}

// difference is the first place where ids differ.
type difference struct {
	At         int      `json:"at"` // position
	Own        []uint32 `json:"own"`
	Engine     []uint32 `json:"engine"` // ids around it
	OwnText    string   `json:"own_text"`
	EngineText string   `json:"engine_text"`
	From       int      `json:"from"` // position of the first id shown
}

// outcome is an error unless something was compared and all of it is equal.
func outcome(verdicts []verdict) error {
	compared, different := 0, 0
	for _, v := range verdicts {
		if v.Skipped == "" {
			compared++
			if !v.Equal {
				different++
			}
		}
	}
	switch {
	case different > 0:
		return errors.New("own ids and the engine's differ: is --model the folder that the engine was started with, and its chat template the engine's (--chat-template)?")
	case compared == 0 && len(verdicts) > 0:
		return errors.New("nothing could be compared")
	}
	return nil
}

func (c *comparer) compare(ctx context.Context, req *openai.Request, own []uint32) ([]verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	path, _, _ := strings.Cut(req.Path, "?")
	render := verdict{Endpoint: strings.TrimSuffix(path, "/") + "/render"}
	switch req.Kind {
	case openai.Chat, openai.Completion, openai.Responses, openai.Messages:
		lists, why, err := c.rendered(ctx, render.Endpoint, req.Body)
		if err != nil {
			return nil, err
		}
		if render.Skipped = why; why == "" {
			c.judge(&render, own, lists)
		}
	default:
		render.Skipped = "this API has none"
	}
	tokenize := verdict{Endpoint: "/tokenize"}
	if body, why := tokenizeBody(req); why != "" {
		tokenize.Skipped = why
	} else {
		raw, why, err := c.ask(ctx, tokenize.Endpoint, body)
		if err != nil {
			return nil, err
		}
		var answer struct {
			Tokens []uint32 `json:"tokens"`
		}
		if tokenize.Skipped = why; why == "" {
			if err := json.Unmarshal(raw, &answer); err != nil {
				return nil, fmt.Errorf("read the engine's answer from /tokenize: %w", err)
			}
			c.judge(&tokenize, own, [][]uint32{answer.Tokens})
		}
	}
	return []verdict{render, tokenize}, nil
}

// rendered returns the ids of each prompt of the request, or why there are none.
func (c *comparer) rendered(ctx context.Context, path string, body []byte) (lists [][]uint32, why string, err error) {
	raw, why, err := c.ask(ctx, path, body)
	if why != "" || err != nil {
		return nil, why, err
	}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '[' { // a list has one entry for each prompt
		raw = append(append([]byte("["), raw...), ']')
	}
	var list []struct {
		TokenIDs []uint32 `json:"token_ids"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, "it answers in the form of vLLM before 0.18", nil
	}
	for _, one := range list {
		if one.TokenIDs == nil {
			return nil, "it answers in the form of vLLM before 0.18", nil
		}
		lists = append(lists, one.TokenIDs)
	}
	return lists, "", nil
}

// ask posts a body. why says that the endpoint is not open; an error that the engine is not
// there or refuses the request.
func (c *comparer) ask(ctx context.Context, path string, body []byte) (raw []byte, why string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, "", usageError(fmt.Sprintf("--compare: %v", err))
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, "", fmt.Errorf("ask the engine: %w: is it running, and is --compare its base URL?", err)
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(resp.Body, maxLine))
	if err != nil {
		return nil, "", fmt.Errorf("read the engine's answer: %w", err)
	}
	message := errorMessage(raw)
	switch {
	case resp.StatusCode == http.StatusOK:
		return raw, "", nil
	case resp.StatusCode == http.StatusForbidden && strings.HasSuffix(path, "/render"):
		return nil, "closed: start vLLM with --enable-scale-out", nil
	case resp.StatusCode == http.StatusNotFound && message == "" && strings.HasSuffix(path, "/render"):
		return nil, "not served: vLLM has it from 0.18 on, with --enable-scale-out from 0.30 on", nil
	case resp.StatusCode == http.StatusNotFound && message == "":
		return nil, "not served", nil
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return nil, "", fmt.Errorf("the engine answers %d at %s: --compare sends no API key, start the engine without one for this", resp.StatusCode, path)
	case message != "":
		return nil, "", fmt.Errorf("the engine refuses the request at %s: %s", path, message)
	}
	return nil, "", fmt.Errorf("the engine answers with status %d at %s", resp.StatusCode, path)
}

// errorMessage of an OpenAI error, "" if raw is none.
func errorMessage(raw []byte) string {
	var said struct {
		Error struct{ Message string } `json:"error"`
	}
	_ = json.Unmarshal(raw, &said) // anything else says nothing
	return said.Error.Message
}

// tokenizeBody is the question that a gateway would put to vLLM's /tokenize, or why its answer could not be compared.
func tokenizeBody(req *openai.Request) (body []byte, why string) {
	switch {
	case req.Kind != openai.Chat && req.Kind != openai.Completion:
		return nil, "it takes chat and completions only"
	case req.TokenIDs != nil || req.Longest().IDs != nil:
		return nil, "the request brings ids"
	case len(req.Prompts) > 1:
		return nil, "it takes one prompt only"
	case req.TruncatePromptTokens != 0:
		return nil, "it does not take truncate_prompt_tokens"
	}
	body, err := prompt.TokenizeQuestion(req)
	if err != nil {
		return nil, err.Error()
	}
	return body, ""
}

// judge compares own with the engine's ids of the same prompt: with several, the one that is
// equal, else the longest.
func (c *comparer) judge(v *verdict, own []uint32, lists [][]uint32) {
	var theirs []uint32
	at := 0
	for _, ids := range lists {
		if c.partial {
			ids = ids[:min(len(ids), len(own))]
		}
		if at = firstDifference(own, ids); at < 0 {
			v.Tokens, v.Equal = len(ids), true
			return
		}
		if len(ids) > len(theirs) {
			theirs = ids
		}
	}
	at = firstDifference(own, theirs)
	v.Tokens = len(theirs)
	v.Differs = c.around(at, own, theirs)
}

// firstDifference is -1 for equal lists.
func firstDifference(a, b []uint32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) == len(b) {
		return -1
	}
	return min(len(a), len(b))
}

func (c *comparer) around(at int, own, theirs []uint32) *difference {
	const before, after = 6, 10
	from := max(0, at-before)
	cut := func(ids []uint32) []uint32 { return ids[min(from, len(ids)):min(at+after, len(ids))] }
	d := &difference{At: at, From: from, Own: cut(own), Engine: cut(theirs)}
	d.OwnText, d.EngineText = c.tok.Decode(d.Own, false), c.tok.Decode(d.Engine, false)
	return d
}
