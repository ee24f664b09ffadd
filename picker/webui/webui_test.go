package webui

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/grapevine-llm/grapevine/picker"
)

func TestPageAndEvents(t *testing.T) {
	cfg := picker.Default()
	cfg.Endpoints = []string{"http://10.0.0.1:8000", "http://10.0.0.2:8000"}
	p, err := picker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Pick(context.Background(), picker.Request{ID: "r1", PromptTokens: 100})
	if err != nil {
		t.Fatal(err)
	}
	p.Done(d, picker.Outcome{Status: 200, Connected: true, CachedTokens: 0})
	s := httptest.NewServer(Handler(p))
	defer s.Close()

	resp, err := http.Get(s.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(got, "text/html") {
		t.Errorf("page: %d %s", resp.StatusCode, got)
	}
	for _, outside := range []string{"http://", "https://", "//cdn"} {
		if strings.Contains(string(page), outside) {
			t.Errorf("the page refers to %q: it must work without the internet", outside)
		}
	}

	resp, err = http.Get(s.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var u update
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &u); err != nil {
		t.Fatalf("event %q: %v", line, err)
	}
	if len(u.Endpoints) != 2 || len(u.Decisions) != 1 || u.Decisions[0].RequestID != "r1" || u.Decisions[0].PromptTokens != 100 {
		t.Errorf("got %+v", u)
	}
}
