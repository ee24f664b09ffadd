package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/grapevine-llm/grapevine/picker/extproc"
)

// adviceBounds says what the figures are, and are not.
const adviceBounds = `The caches hold what the other router sent where, and each request is one choice that is different: "ours" is no forecast.
With this gateway in its place they would hold other things, as a rule more that requests share. To compare the two, play a
recording both ways:
  grapevine trace --for 10m -o today.jsonl.zst
  grapevine sim --trace today.jsonl.zst --format grapevine --block-tokens N`

// writeAdvice says what a gateway has seen beside another router.
func writeAdvice(w io.Writer, a *extproc.Advice, now time.Time) {
	fmt.Fprintf(w, "beside another router for %v: %d requests seen, %d compared, %d in progress", now.Sub(a.Since).Round(time.Second), a.Requests, a.Compared, a.InProgress)
	var why []string
	for _, reason := range slices.Sorted(maps.Keys(a.NotCompared)) {
		why = append(why, fmt.Sprintf("%d %s", a.NotCompared[reason], strings.ReplaceAll(reason, "_", " ")))
	}
	if len(why) > 0 {
		fmt.Fprintf(w, "; not compared: %s", strings.Join(why, ", "))
	}
	fmt.Fprintln(w)
	t := newTable(w)
	t.AppendHeader(table.Row{"", "requests", "prompt tokens", "ours would have matched", "theirs matched", "engines found"})
	t.AppendRow(table.Row{"compared", a.Compared, a.PromptTokens, share(a.OursTokens, a.PromptTokens), share(a.TheirsTokens, a.PromptTokens), ""})
	c := &a.Checked
	t.AppendRow(table.Row{"of these in time, engines told", c.Requests, c.PromptTokens, share(c.OursTokens, c.PromptTokens), share(c.TheirsTokens, c.PromptTokens), share(c.CachedTokens, c.PromptTokens)})
	e := &a.Engines
	t.AppendRow(table.Row{"all that engines told", e.Requests, e.PromptTokens, "", "", share(e.CachedTokens, e.PromptTokens)})
	t.Render()
	if a.Compared > 0 {
		fmt.Fprintf(w, "ours would have picked who served for %.1f %% of those compared; %d would have waited for an endpoint\n", 100*float64(a.SameEndpoint)/float64(a.Compared), a.WouldWait)
		if a.Late > 0 {
			fmt.Fprintf(w, "%d were judged when their answers had begun, so theirs is what the engines told: give the gateway the model's files (--model) to be quicker\n", a.Late)
		}
		fmt.Fprintln(w, adviceBounds)
	}
}

// share shows tokens and what part of all they are.
func share(n, of int64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%d (%.1f %%)", n, 100*float64(n)/float64(of))
}
