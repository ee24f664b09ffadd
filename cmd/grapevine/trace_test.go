package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/trace"
)

func traceLine(i int) string {
	return fmt.Sprintf(`{"timestamp":%d.5,"input_length":40,"output_length":5,"hash_ids":[9007199254740991,%d],"block_tokens":16,"session":"s"}`+"\n", i, i)
}

const unknownLine = `{"timestamp":1,"input_length":40,"output_length":5,"hash_ids":[],"block_tokens":16,"output_estimated":true}` + "\n"

func statusText(lost, unserved, inProgress int) string {
	return fmt.Sprintf(`{"recording":{"seconds":2,"requests":9,"lost":%d,"unserved":%d,"in_progress":%d,"block_tokens":16}}`+"\n", lost, unserved, inProgress)
}

// fakeGateway sends lines to whoever records. With stay it then waits until the tool leaves, if that gave no time.
func fakeGateway(t *testing.T, stay bool, lines ...string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/trace" {
			http.NotFound(w, r)
			return
		}
		for _, line := range lines {
			_, _ = io.WriteString(w, line)
		}
		_ = http.NewResponseController(w).Flush()
		if stay && r.URL.Query().Get("for") == "" {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func runTool(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, log bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&log)
	err = root.ExecuteContext(ctx)
	return out.String(), log.String(), err
}

func TestTraceFiles(t *testing.T) {
	lines := []string{statusText(0, 0, 3), traceLine(0), traceLine(1), statusText(2, 1, 3), traceLine(2), traceLine(3)}
	for _, name := range []string{"trace.jsonl", "trace.jsonl.gz", "trace.jsonl.zst"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			out, log, err := runTool(t.Context(), "trace", "--gateway", fakeGateway(t, true, lines...), "--requests", "3", "-o", path, "--json")
			if err != nil {
				t.Fatal(err, log)
			}
			var got traceSummary
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatal(err)
			}
			got.Seconds = 0
			if want := (traceSummary{File: path, Requests: 3, PromptTokens: 120, OutputTokens: 15, BlockTokens: 16, Lost: 2, Unserved: 1, InProgress: 3}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			tr, err := trace.Read(path, trace.Grapevine, trace.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(tr.Requests) != 3 || tr.Requests[2].Blocks[0] != 1<<53-1 || tr.Requests[2].Previous != 1 {
				t.Errorf("read back %+v", tr)
			}
		})
	}
}

// TestTraceEnds: however a recording ends, what came is whole in the file, and what the tool says fits.
func TestTraceEnds(t *testing.T) {
	tests := []struct {
		name  string
		url   string
		args  []string
		lines int    // in the file; 0: there is no file
		err   string // "": none
		log   []string
	}{
		{"interrupted", fakeGateway(t, true, statusText(0, 0, 4), traceLine(0)), nil, 1, "", []string{"recorded 1 request", "4 requests were in progress", "grapevine sim --trace"}},
		{"time over", fakeGateway(t, true, traceLine(0), unknownLine, statusText(7, 5, 0)), []string{"--for", "1m"}, 2, "",
			[]string{"1 prompts are not known", "1 answers did not say", "5 requests were refused", "7 requests were lost"}},
		{"gateway goes down amid a line", fakeGateway(t, false, traceLine(0), traceLine(1)[:30]), nil, 1, "the gateway ended the recording", []string{"recorded 1 request"}},
		{"no prompt known", fakeGateway(t, true, strings.Repeat(unknownLine, 20), statusText(0, 0, 0)), []string{"--for", "1m"}, 20, "none of the 20 prompts",
			[]string{"warning", "--model NAME=FOLDER"}},
		{"no traffic", fakeGateway(t, true, statusText(0, 0, 0)), []string{"--for", "1m"}, 0, "is this the gateway that gets the traffic", nil},
		{"nothing served", fakeGateway(t, true, statusText(0, 3, 0)), []string{"--for", "1m"}, 0, "none was served", nil},
		{"another server", fakeGateway(t, false, "<html>\n"), nil, 0, "no line of a trace", nil},
		{"address for clients", fakeGateway(t, false) + "/v1", nil, 0, "--admin-listen", nil},
		{"nobody there", "http://127.0.0.1:1", nil, 0, "is it running", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "trace.jsonl")
			ctx, interrupt := context.WithCancel(context.Background())
			defer interrupt()
			if tt.name == "interrupted" {
				go func() {
					for ctx.Err() == nil {
						if info, err := os.Stat(path); err == nil && info.Size() > 0 {
							interrupt()
						}
						time.Sleep(time.Millisecond)
					}
				}()
			}
			_, log, err := runTool(ctx, append([]string{"trace", "--gateway", tt.url, "-o", path}, tt.args...)...)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			for _, want := range tt.log {
				if !strings.Contains(log, want) {
					t.Errorf("%q is not said: %s", want, log)
				}
			}
			text, err := os.ReadFile(path)
			if tt.lines == 0 {
				if err == nil {
					t.Errorf("there is a file: %q", text)
				}
				return
			}
			if err != nil || strings.Count(string(text), "\n") != tt.lines || !strings.HasSuffix(string(text), "\n") {
				t.Errorf("file %q (%v), want %d whole lines", text, err, tt.lines)
			}
		})
	}
}

// TestTraceToOutput: standard output holds the trace and nothing else.
func TestTraceToOutput(t *testing.T) {
	out, log, err := runTool(t.Context(), "trace", "--gateway", fakeGateway(t, true, statusText(0, 0, 0), traceLine(0)), "--requests", "1")
	if err != nil || out != traceLine(0) {
		t.Errorf("%v: %q, want the one line; log %s", err, out, log)
	}
}

func TestFaultsOfTrace(t *testing.T) {
	for args, want := range map[string]string{
		"--gateway nope":      `--gateway "nope"`,
		"--for -1s":           "0 or more",
		"--requests -1":       "0 or more",
		"--json":              "-o",
		"-o /nowhere/at/all ": "no such file",
	} {
		if !strings.Contains(args, "--gateway") {
			args += " --gateway " + fakeGateway(t, false, traceLine(0))
		}
		if _, _, err := runTool(t.Context(), append([]string{"trace"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %q", args, err, want)
		}
	}
}

// TestTraceOfAServerThatNeverEndsALine: it is no gateway, and memory has a bound.
func TestTraceOfAServerThatNeverEndsALine(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for block := make([]byte, 1<<20); r.Context().Err() == nil; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := runTool(ctx, "trace", "--gateway", s.URL); err == nil || !strings.Contains(err.Error(), "no line of a trace") {
		t.Errorf("error %v", err)
	}
}

// TestTraceFileThatCannotBe is said at once, though no request comes; one that is there stays until one comes.
func TestTraceFileThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	silent := fakeGateway(t, true, statusText(0, 0, 0))
	for path, want := range map[string]string{
		filepath.Join(dir, "none", "x"): "no such file", dir: "is a directory", old: "nothing recorded", filepath.Join(dir, "new"): "nothing recorded", link: "nothing recorded",
	} {
		if _, _, err := runTool(t.Context(), "trace", "--gateway", silent, "--for", "1s", "-o", path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
	if text, err := os.ReadFile(old); err != nil || string(text) != "old" {
		t.Errorf("the old file: %q, %v", text, err)
	}
	if _, err := os.Lstat(link); err != nil {
		t.Error("the link is gone")
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("an empty file is left")
	}
}

// fullDisk takes some bytes more.
type fullDisk struct {
	io.Writer
	left int
}

func (d *fullDisk) Write(b []byte) (int, error) {
	n, err := d.Writer.Write(b[:min(d.left, len(b))])
	if d.left -= n; err == nil && n < len(b) {
		err = syscall.ENOSPC
	}
	return n, err
}

// TestTraceOnAFullDisk: the lines before can be played.
func TestTraceOnAFullDisk(t *testing.T) {
	f := &traceFile{path: filepath.Join(t.TempDir(), "trace.jsonl")}
	if err := f.open(); err != nil {
		t.Fatal(err)
	}
	f.w = &fullDisk{f.w, 250}
	var err error
	for i := 0; err == nil; i++ {
		_, err = f.Write([]byte(traceLine(i)))
	}
	if !errors.Is(err, syscall.ENOSPC) || f.Close() != nil {
		t.Errorf("error %v", err)
	}
	if tr, err := trace.Read(f.path, trace.Grapevine, trace.Options{}); err != nil || len(tr.Requests) != 2 {
		t.Errorf("read back %+v, %v", tr, err)
	}
	if _, log, err := runTool(t.Context(), "trace", "--gateway", fakeGateway(t, true, traceLine(0)), "--requests", "1", "-o", "/dev/full"); err == nil || strings.Contains(log, "recorded") {
		t.Errorf("error %v; it says %q", err, log)
	}
}
