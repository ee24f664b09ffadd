package inbound

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

func TestBuffersAreUsedAgain(t *testing.T) {
	var b Buffers
	for _, n := range []int{1, 512, 513, 128 << 10} {
		if buf := b.Take(n); len(buf) != 0 || cap(buf) < n || cap(buf) > 2*n {
			t.Errorf("Take(%d): length %d, room %d", n, len(buf), cap(buf))
		}
	}
	b.Give(nil)
	b.Give(make([]byte, maxKeptBytes+1))
	if buf := b.Take(8); cap(buf) != 8 {
		t.Errorf("a buffer with room for %d was kept", cap(buf))
	}
}

func TestRequest(t *testing.T) {
	p, err := picker.New(func() picker.Config { c := picker.Default(); c.Endpoints = []string{"e:1"}; return c }())
	if err != nil {
		t.Fatal(err)
	}
	trusting := DefaultHeaders()
	trusting.PriorityHeader, trusting.SheddableHeader = "X-Priority", "X-Sheddable"
	tests := []struct {
		name    string
		headers Headers
		header  http.Header
		body    string
		want    picker.Request
	}{
		{"no headers", DefaultHeaders(), nil, `"stream":true`, picker.Request{}},
		{"a whole answer", DefaultHeaders(), nil, `"stream":false`, picker.Request{NoFirstToken: true}},
		{"the key names both", DefaultHeaders(), http.Header{"Authorization": {"k"}}, `"stream":true`, picker.Request{Flow: "k", Session: "k"}},
		{"the user is the session", DefaultHeaders(), http.Header{"Authorization": {"k"}}, `"stream":true,"user":"u"`, picker.Request{Flow: "k", Session: "u"}},
		{"named by headers", DefaultHeaders(), http.Header{"Authorization": {"k"}, "X-Session-Id": {"s"}, "X-Flow-Id": {"f"}}, `"stream":true,"user":"u"`, picker.Request{Flow: "f", Session: "s"}},
		{"no header counts", Headers{}, http.Header{"X-Session-Id": {"s"}, "X-Flow-Id": {"f"}, "X-Priority": {"3"}}, `"stream":true`, picker.Request{}},
		{"not trusted", DefaultHeaders(), http.Header{"X-Priority": {"3"}, "X-Sheddable": {"1"}}, `"stream":true`, picker.Request{}},
		{"trusted", trusting, http.Header{"X-Priority": {"-3"}, "X-Sheddable": {"1"}}, `"stream":true`, picker.Request{Priority: -3, Sheddable: true}},
		{"nonsense", trusting, http.Header{"X-Priority": {"high"}, "X-Sheddable": {"maybe"}}, `"stream":true`, picker.Request{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := openai.Parse("/v1/chat/completions", []byte(`{"model":"m","max_tokens":7,"messages":[],`+tt.body+`}`))
			if err != nil {
				t.Fatal(err)
			}
			r := Reader{Headers: tt.headers, Picker: p}
			got, _, err := r.Request(t.Context(), tt.header, req, "id", false)
			want := tt.want
			want.ID, want.Model, want.MaxOutputTokens = "id", "m", 7
			want.Bytes, want.PromptTokens, want.PromptRung = req.PromptBytes, req.EstimatedTokens(), "none"
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestRequestID(t *testing.T) {
	tests := []struct {
		name, id string
		kept     bool
	}{
		{"fit", "abc-1", true},
		{"none", "", false},
		{"a space", "a b", false},
		{"a line break", "a\nb", false},
		{"not ASCII", "ä", false},
		{"long", strings.Repeat("x", 128), true},
		{"too long", strings.Repeat("x", 129), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := RequestID(http.Header{"X-Request-Id": {tt.id}})
			if (got == tt.id) != tt.kept || got == "" {
				t.Errorf("%q became %q", tt.id, got)
			}
		})
	}
}

func TestRefuse(t *testing.T) {
	tests := []struct {
		name       string
		err        error
		status     int
		typ        string
		retryAfter int
	}{
		{"unknown model", picker.ErrUnknownModel{Model: "x"}, 404, "invalid_request_error", 0},
		{"overloaded", fmt.Errorf("pick: %w", picker.ErrOverloaded{RetryAfter: 2400 * time.Millisecond, Reason: hold.Full}), 429, "overloaded_error", 2},
		{"overloaded for a moment", picker.ErrOverloaded{RetryAfter: time.Millisecond, Reason: hold.Shed}, 429, "overloaded_error", 1},
		{"no endpoint", picker.ErrNoEndpoints, 503, "unavailable", 0},
		{"anything else", errors.New("x"), 500, "internal_error", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Refuse(tt.err)
			if want := (Refusal{tt.status, tt.typ, tt.err.Error(), tt.retryAfter}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}
