package main

import (
	"strings"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/extproc"
)

func TestAdvice(t *testing.T) {
	now := time.Now()
	tests := []struct {
		name   string
		advice extproc.Advice
		want   []string
		not    []string
	}{
		{"nothing yet", extproc.Advice{Since: now.Add(-time.Minute)}, []string{"for 1m0s: 0 requests seen, 0 compared, 0 in progress\n"}, []string{"not compared", "ours would have picked", "NaN"}},
		{"no agents", extproc.Advice{Since: now, Requests: 3, NotCompared: map[string]int{"no_digest": 2, "late": 1}}, []string{"not compared: 1 late, 2 no digest\n"}, []string{"ours would have picked", "NaN"}},
		{"compared", extproc.Advice{
			Since: now, Requests: 5, Compared: 4, InProgress: 1, SameEndpoint: 1, WouldWait: 2, PromptTokens: 1000, OursTokens: 600, TheirsTokens: 250,
			Checked: extproc.Checked{Requests: 2, PromptTokens: 500, OursTokens: 300, TheirsTokens: 100, CachedTokens: 90},
			Engines: extproc.EngineTold{Requests: 3, PromptTokens: 900, CachedTokens: 90},
		}, []string{"600 (60.0 %)", "250 (25.0 %)", "90 (18.0 %)", "90 (10.0 %)", "for 25.0 % of those compared; 2 would have waited", "no forecast", "grapevine sim"}, []string{"not compared"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			writeAdvice(&b, &tt.advice, now)
			for _, s := range tt.want {
				if !strings.Contains(b.String(), s) {
					t.Errorf("no %q in\n%s", s, b.String())
				}
			}
			for _, s := range tt.not {
				if strings.Contains(b.String(), s) {
					t.Errorf("%q in\n%s", s, b.String())
				}
			}
		})
	}
}
