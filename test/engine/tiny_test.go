package engine

import (
	"encoding/json"
	"testing"
)

// TestTinyConversation: with the real tokenizer and template the next turn of a
// conversation hits the answer's blocks too, since the answer tokenizes to what
// was generated.
func TestTinyConversation(t *testing.T) {
	cfg := quick()
	var err error
	if cfg.Tokenizer, err = Tiny(); err != nil {
		t.Fatal(err)
	}
	c := startEngine(t, cfg)
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	turns := []message{{"user", "Tell me about hash functions and where they are used in a router."}}
	total := 0
	for turn := range 4 {
		body, err := json.Marshal(map[string]any{"model": "tiny", "messages": turns, "max_tokens": 100})
		if err != nil {
			t.Fatal(err)
		}
		var a answer
		c.call("POST", "/v1/chat/completions", string(body), &a)
		if a.Usage == nil {
			t.Fatalf("turn %d: %+v", turn, a.Error)
		}
		// All that was computed before, cut to blocks, less the answer's last token.
		if want := max(0, total-1) / 16 * 16; a.Usage.Details.Cached != want {
			t.Errorf("turn %d: %d tokens cached, want %d", turn, a.Usage.Details.Cached, want)
		}
		total = a.Usage.Total
		turns = append(turns, message{"assistant", a.Choices[0].Message.Content}, message{"user", "Go on."})
	}
}

// TestTinyStream: a stream's pieces put together are the whole text.
func TestTinyStream(t *testing.T) {
	tok, err := Tiny()
	if err != nil {
		t.Fatal(err)
	}
	ids := newVoice(tok).say(7, 0, 300)
	whole, pieces := tok.Decode(ids), ""
	for i := 0; i < len(ids); i += 7 {
		pieces += tok.Decode(ids[i:min(i+7, len(ids))])
	}
	if pieces != whole {
		t.Errorf("pieces %q\nwhole  %q", pieces, whole)
	}
	if back := tok.Encode(whole); len(back) != len(ids) {
		t.Errorf("%d tokens became %d", len(ids), len(back))
	}
}
