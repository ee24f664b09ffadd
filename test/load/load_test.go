package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/trace"
)

func TestWorkloadsHaveTheirShape(t *testing.T) {
	v := DefaultVocabulary()
	tests := []struct {
		name              string
		reqs              []Request
		count             int
		shortest, longest int
	}{
		{"multi-turn", DefaultMultiTurn().Requests(v), 1000, 3072, 7168},
		{"agentic", DefaultAgentic().Requests(v), 1000, 8692, 8692},
		{"documents", DefaultDocuments().Requests(v), 200, 32968, 32968},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if len(tc.reqs) != tc.count {
				t.Fatalf("requests: got %d, want %d", len(tc.reqs), tc.count)
			}
			shortest, longest, last := 1<<30, 0, time.Duration(0)
			for i := range tc.reqs {
				r := &tc.reqs[i]
				n := r.PromptTokens()
				shortest, longest = min(shortest, n), max(longest, n)
				if r.At < last {
					t.Fatalf("request %d arrives at %v, after one at %v", i, r.At, last)
				}
				last = r.At
			}
			if shortest != tc.shortest || longest != tc.longest {
				t.Errorf("prompt tokens: got %d to %d, want %d to %d", shortest, longest, tc.shortest, tc.longest)
			}
		})
	}
}

func TestTurnsGrowOnTheirOwnPrompt(t *testing.T) {
	w := DefaultMultiTurn()
	w.Sessions = 1
	reqs := w.Requests(DefaultVocabulary())
	for i := 1; i < len(reqs); i++ {
		before, now := reqs[i-1].Parts[1], reqs[i].Parts[1]
		if len(now)-len(before) != w.TurnTokens+w.AnswerTokens {
			t.Fatalf("turn %d adds %d tokens, want %d", i, len(now)-len(before), w.TurnTokens+w.AnswerTokens)
		}
		for j := range before {
			if before[j] != now[j] {
				t.Fatalf("turn %d changes token %d of turn %d", i, j, i-1)
			}
		}
	}
}

// server answers with a role-only event, a pause, one token and usage.
func server(t *testing.T, pause time.Duration, bodies chan<- map[string]any) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var body map[string]any
		if err := json.Unmarshal(raw, &body); err != nil {
			t.Errorf("body: %v in %.80s", err, raw)
		}
		bodies <- body
		if body["model"] == "broken" {
			http.Error(w, `{"error":{"message":"no"}}`, http.StatusNotFound)
			return
		}
		w.Header().Set("X-Pod", "a")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n")
		w.(http.Flusher).Flush()
		time.Sleep(pause)
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\",\"delta\":{\"content\":\"x\"}}]}\n\n")
		if body["model"] != "cut" {
			fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":32,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n")
		}
	}))
}

func TestRunMeasuresTheFirstOutput(t *testing.T) {
	const pause = 30 * time.Millisecond
	bodies := make(chan map[string]any, 100)
	s := server(t, pause, bodies)
	defer s.Close()
	w := Synthetic{Count: 4, RatePerSec: 1000, PromptTokens: 32, SharedTokens: 16, Groups: 1, AnswerTokens: 1}
	for _, form := range []Form{FormIDs, FormText, FormChat} {
		results, err := Run(context.Background(), Config{Target: s.URL, Model: "m", Form: form}, w.Requests(DefaultVocabulary()))
		if err != nil {
			t.Fatal(err)
		}
		rep := Summarize(results)
		if rep.Errors != 0 || rep.CachedTokens != 64 || rep.HitRatio != 0.5 || rep.Cold != 0 {
			t.Errorf("%s: got %+v, want no error, 64 cached tokens, ratio 0.5, none cold", form, rep)
		}
		for _, r := range results {
			if r.TTFT < pause {
				t.Errorf("%s: TTFT %v counts the role-only event; the output came after %v", form, r.TTFT, pause)
			}
			if r.Header.Get("X-Pod") != "a" {
				t.Errorf("%s: answer header lost", form)
			}
		}
	}
	if body := <-bodies; len(body["prompt"].([]any)) != 32 {
		t.Errorf("prompt: got %d ids, want 32", len(body["prompt"].([]any)))
	}
}

func TestRunCountsFailures(t *testing.T) {
	bodies := make(chan map[string]any, 100)
	s := server(t, 0, bodies)
	defer s.Close()
	w := Synthetic{Count: 2, RatePerSec: 1000, PromptTokens: 1, Groups: 1, AnswerTokens: 1}
	for model, want := range map[string]string{"broken": "status 404", "cut": errNoDone.Error()} {
		results, err := Run(context.Background(), Config{Target: s.URL, Model: model}, w.Requests(DefaultVocabulary()))
		if err != nil {
			t.Fatal(err)
		}
		if rep := Summarize(results); rep.Errors != 2 || !strings.Contains(rep.FirstError, want) {
			t.Errorf("model %s: got %d errors, first %q; want 2, %q", model, rep.Errors, rep.FirstError, want)
		}
	}
}

func TestFromTrace(t *testing.T) {
	reqs := FromTrace(&trace.Trace{BlockTokens: 512, Requests: []trace.Request{
		{Prompt: 600, Output: 7, Blocks: []uint64{1}, Session: "a"},
		{At: 3 * time.Second, Prompt: 1100, Output: 5, Blocks: []uint64{1, 2}},
	}}, DefaultVocabulary())
	if len(reqs) != 2 || reqs[0].PromptTokens() != 600 || reqs[1].PromptTokens() != 1100 || reqs[1].At != 3*time.Second || reqs[0].MaxTokens != 7 || reqs[0].Session != "a" {
		t.Errorf("got %+v", reqs)
	}
	if &reqs[0].Parts[0][0] != &reqs[1].Parts[0][0] {
		t.Error("equal block ids do not share their tokens")
	}
}

func TestRetries(t *testing.T) {
	var calls atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte("data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DONE]\n\n"))
	}))
	defer s.Close()
	w := Synthetic{Count: 1, RatePerSec: 1000, PromptTokens: 1, Groups: 1, AnswerTokens: 1}
	results, err := Run(context.Background(), Config{Target: s.URL, Model: "m", Retries: 2}, w.Requests(DefaultVocabulary()))
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.Err != nil || r.Retries != 1 || r.TTFT < retryMin/2 {
		t.Errorf("%d retries, first output after %v, error %v; want one, counted from the first try", r.Retries, r.TTFT, r.Err)
	}
}

func TestQuantiles(t *testing.T) {
	ms := make([]float64, 100)
	for i := range ms {
		ms[i] = float64(100 - i)
	}
	if got, want := QuantilesOf(ms), (Quantiles{Mean: 50.5, P50: 50, P90: 90, P99: 99}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSyntheticValidateNamesEveryFault(t *testing.T) {
	err := Synthetic{SharedTokens: 5}.Validate()
	for _, want := range []string{"requests 0", "rate 0", "prompt-tokens 0", "shared-tokens 5", "groups 0", "output-tokens 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}
