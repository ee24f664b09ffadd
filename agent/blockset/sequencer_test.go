package blockset

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// script runs a Sequencer through steps written as "input -> actions", e.g.
//
//	live 3 -> replay 0
//	got 0 ; got 1 ; end -> apply 0 ; apply 1 ; apply 3
//
// "live 3 x" has other bytes than "live 3"; "end?" is a replay without end marker.
func runScript(t *testing.T, q *Sequencer, script string) {
	t.Helper()
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		in, want, ok := strings.Cut(line, "->")
		if !ok {
			t.Fatalf("no arrow in %q", line)
		}
		var got []string
		for step := range strings.SplitSeq(in, ";") {
			for _, a := range input(t, q, strings.TrimSpace(step)) {
				s := fmt.Sprintf("%v %d", a.Kind, a.Seq)
				switch {
				case a.Kind == ActRestart:
					s = "restart"
				case a.Missing > 0:
					s += fmt.Sprintf(" missing %d", a.Missing)
				case a.Kind == ActApply && strings.HasSuffix(string(a.Payload), "x"):
					s += " x"
				}
				got = append(got, s)
			}
		}
		if g, w := strings.Join(got, " ; "), strings.TrimSpace(want); g != w {
			t.Errorf("%s\n got  %s\n want %s", strings.TrimSpace(in), g, w)
		}
	}
}

func input(t *testing.T, q *Sequencer, step string) []Action {
	t.Helper()
	var seq uint64
	var other string
	word, rest, _ := strings.Cut(step, " ")
	fmt.Sscan(rest, &seq, &other)
	payload := []byte(fmt.Sprintf("batch %d %s", seq, other))
	switch word {
	case "connect":
		return q.Connected()
	case "live":
		return q.Live(seq, payload)
	case "got":
		return q.Replayed(seq, payload)
	case "end":
		return q.ReplayEnd(true)
	case "end?":
		return q.ReplayEnd(false)
	case "start":
		return q.ProcessStart(time.Unix(int64(seq), 0))
	}
	t.Fatalf("unknown input %q", step)
	return nil
}

func TestSequencer(t *testing.T) {
	for _, c := range []struct {
		name     string
		noReplay bool
		script   string
	}{
		{"from the start", false, `
			live 0 ; live 1 ; live 2 -> apply 0 ; apply 1 ; apply 2`},
		{"late start, complete replay", false, `
			live 5 ; live 6 -> replay 0
			got 0 ; got 1 ; got 2 ; got 3 ; got 4 ; got 5 -> apply 0 ; apply 1 ; apply 2 ; apply 3 ; apply 4 ; apply 5
			end -> duplicate 5 ; apply 6
			live 7 -> apply 7`},
		{"late start, the ring starts later", false, `
			live 9 -> replay 0
			got 7 ; got 8 ; got 9 ; end -> partial 7 ; apply 7 ; apply 8 ; apply 9 ; duplicate 9`},
		{"late start, no answer", false, `
			live 9 -> replay 0
			end? -> replay 0
			end? -> partial 9 ; apply 9`},
		{"late start without replay", true, `
			live 9 ; live 10 -> partial 9 ; apply 9 ; apply 10`},
		{"replay at connect", false, `
			connect -> replay 0
			got 0 ; got 1 ; live 2 ; end -> apply 0 ; apply 1 ; apply 2`},
		{"nothing published yet", false, `
			connect -> replay 0
			end ; live 0 -> apply 0`},
		{"gap repaired, asked from the last", false, `
			live 0 ; live 3 -> apply 0 ; replay 0
			got 0 ; got 1 ; got 2 ; got 3 ; end -> apply 1 ; apply 2 ; apply 3 ; duplicate 3
			live 4 -> apply 4`},
		{"gap without replay", true, `
			live 0 ; live 3 -> apply 0 ; suspect 3 missing 2 ; apply 3`},
		{"burned number (T3)", false, `
			live 0 ; live 2 -> apply 0 ; replay 0
			got 0 ; got 2 ; end -> replay 1
			got 2 ; end -> suspect 2 missing 1 ; apply 2 ; duplicate 2`},
		{"hole in the answer, repaired by the second", false, `
			connect -> replay 0
			got 0 ; got 2 ; got 3 ; end -> apply 0 ; replay 1
			got 1 ; got 2 ; got 3 ; end -> apply 1 ; apply 2 ; apply 3`},
		{"end marker lost", false, `
			connect -> replay 0
			got 0 ; got 1 ; end? -> apply 0 ; apply 1 ; replay 2
			end -> `},
		{"gap, the ring has moved on", false, `
			live 0 ; live 9 -> apply 0 ; replay 0
			got 7 ; got 8 ; got 9 ; end -> replay 1
			got 7 ; got 8 ; got 9 ; end -> suspect 7 missing 6 ; apply 7 ; apply 8 ; apply 9 ; duplicate 9`},
		{"duplicate", false, `
			live 0 ; live 1 ; live 1 ; live 0 -> apply 0 ; apply 1 ; duplicate 1 ; duplicate 0`},
		{"late live copies of what was replayed", false, `
			connect ; got 0 ; got 1 ; got 2 ; end -> replay 0 ; apply 0 ; apply 1 ; apply 2
			live 1 ; live 2 ; live 3 -> duplicate 1 ; duplicate 2 ; apply 3`},
		{"restart, seen from 0", false, `
			live 0 ; live 1 ; live 0 x -> apply 0 ; apply 1 ; restart ; apply 0 x
			live 1 x -> apply 1 x`},
		{"restart, the last number again with other bytes", false, `
			live 0 ; live 1 ; live 1 x -> apply 0 ; apply 1 ; restart ; replay 0
			got 0 x ; got 1 x ; end -> apply 0 x ; apply 1 x ; duplicate 1`},
		{"restart without replay", true, `
			live 0 ; live 1 ; live 2 ; live 1 x -> apply 0 ; apply 1 ; apply 2 ; restart ; partial 1 ; apply 1 x`},
		{"restart that looks like a gap", false, `
			live 0 ; live 1 ; live 4 x -> apply 0 ; apply 1 ; replay 1
			got 1 x -> restart ; replay 0
			got 0 x ; got 1 x ; got 2 x ; got 3 x ; got 4 x ; end -> apply 0 x ; apply 1 x ; apply 2 x ; apply 3 x ; apply 4 x ; duplicate 4`},
		{"reconnected to the same engine", false, `
			live 0 ; live 1 ; connect -> apply 0 ; apply 1 ; replay 1
			got 1 ; got 2 ; end ; live 3 -> apply 2 ; apply 3`},
		{"reconnected to another engine with more batches", false, `
			live 0 ; live 1 ; connect ; got 1 x -> apply 0 ; apply 1 ; replay 1 ; restart ; replay 0`},
		{"reconnected to another engine with fewer batches", false, `
			live 0 ; live 1 ; live 2 ; connect -> apply 0 ; apply 1 ; apply 2 ; replay 2
			end -> restart ; replay 0
			got 0 x ; end ; live 1 x -> apply 0 x ; apply 1 x`},
		{"restart while live batches are held", false, `
			live 7 ; live 8 ; live 0 x -> replay 0 ; restart ; apply 0 x`},
		{"process start changed", false, `
			start 100 ; live 0 ; live 1 ; start 100 -> apply 0 ; apply 1
			start 200 -> restart ; replay 0
			end ; live 0 x ; start 200 -> apply 0 x`},
		{"process start seen after the restart", false, `
			start 100 ; live 0 ; live 1 ; live 0 x -> apply 0 ; apply 1 ; restart ; apply 0 x
			start 100 ; start 200 ; start 200 ; live 1 x -> apply 1 x`},
		{"answers that nobody asked for", false, `
			got 0 ; end ; live 0 -> apply 0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			runScript(t, NewSequencer(SequencerConfig{CanReplay: !c.noReplay}), c.script)
		})
	}
}

func TestSequencerResume(t *testing.T) {
	q := NewSequencer(SequencerConfig{CanReplay: true})
	runScript(t, q, `start 100 ; live 0 ; live 1 -> apply 0 ; apply 1`)
	p := q.Position()
	for _, c := range []struct{ name, script string }{
		{"same engine", `
			connect -> replay 1
			got 1 ; got 2 ; end ; live 3 -> apply 2 ; apply 3`},
		{"another engine", `
			connect -> replay 1
			got 1 x -> restart ; replay 0`},
		{"another process", `
			start 150 -> restart ; replay 0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := NewSequencer(SequencerConfig{CanReplay: true})
			q.Resume(p)
			runScript(t, q, c.script)
		})
	}
}

func TestSequencerHeldIsBounded(t *testing.T) {
	q := NewSequencer(SequencerConfig{CanReplay: true, MaxHeld: 3})
	runScript(t, q, `
		live 5 ; live 6 ; live 7 -> replay 0
		live 8 -> partial 5 ; apply 5 ; apply 6 ; apply 7 ; apply 8
		got 0 ; end ; live 9 -> apply 9`)
}
