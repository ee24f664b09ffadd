package main

import (
	"io"
	"strings"
	"testing"
)

// TestHelp: commands whose flags config reads tell what they are for, with an example, as the others do.
func TestHelp(t *testing.T) {
	for name, want := range map[string][]string{
		"agent":   {"KV-cache events", "agent --engine ", "--gossip-join strings"},
		"gateway": {"OpenAI-compatible", "gateway --endpoints ", "--listen string"},
		"inject":  {"without a cluster", "grapevine inject -f pod.yaml --level configure", "-f, --file strings"},
		"doctor":  {"what is wrong", "grapevine doctor --gateway "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := execute(t, "", name+" --help")
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range want {
				if !strings.Contains(got, s) {
					t.Errorf("no %q in\n%s", s, got)
				}
			}
		})
	}
}

func TestFaultsOfTheCommandLine(t *testing.T) {
	tests := []struct {
		name, args string
		code       int
		want       []string
	}{
		{"unknown command", "nope", 2, []string{`"nope"`, "grapevine --help"}},
		{"stray argument", "status extra", 2, []string{`"extra"`, "grapevine status --help"}},
		{"unknown flag", "engine --nope", 2, []string{"--nope", "grapevine engine --help"}},
		{"engine: all at once", "engine --listen 127.0.0.1:0 --block-size -1 --speedup 0 --data-parallel-size 0 --render maybe --event-format x --lora foo", 2,
			[]string{"block-size -1", "speedup 0", "data-parallel-size 0", `--render "maybe"`, `--event-format "x"`, `--lora "foo"`}},
		{"demo: before anything starts", "demo --workloads foo", 2, []string{`"foo"`, "multi-turn"}},
		{"load: target", "load --target x --model y", 2, []string{`"x"`, "http://"}},
		{"load: nobody there", "load --target http://127.0.0.1:1 --model y --requests 1", 1, []string{"every request failed"}},
		{"status: no URL", "status --admin nope", 2, []string{`"nope"`, "http://"}},
		{"status: nobody there", "status --gateway http://127.0.0.1:1", 1, []string{"is it running", "--gateway"}},
		{"explain: the other name", "explain --admin nope --request-id x", 2, []string{`"nope"`, "http://"}},
		{"trace: the other name", "trace --admin nope", 2, []string{`"nope"`, "http://"}},
		{"explain: what", "explain", 2, []string{"--request-id", "--file"}},
		{"events: whence", "events", 2, []string{"--connect", "--file"}},
		{"events: no capture", "events --file main_test.go", 1, []string{"line 0", "--record"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := newRoot()
			root.SetArgs(strings.Fields(tt.args))
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			err := root.ExecuteContext(t.Context())
			if err == nil || exitCode(err) != tt.code {
				t.Fatalf("error %v, want one with exit code %d", err, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
		})
	}
}
