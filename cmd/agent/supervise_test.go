package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain is also the program that is supervised: it dies twice, then waits for its end.
func TestMain(m *testing.M) {
	runs := os.Getenv("SUPERVISED_RUNS")
	if runs == "" {
		os.Exit(m.Run())
	}
	f, err := os.OpenFile(runs, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		os.Exit(9)
	}
	fmt.Fprintln(f, os.Args[1:])
	if text, _ := os.ReadFile(runs); bytes.Count(text, []byte("\n")) < 3 {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Fprintln(f, "ready")
	<-ctx.Done()
	if os.Getenv("SUPERVISED_HANGS") != "" {
		select {}
	}
	fmt.Fprintln(f, "told")
	os.Exit(3)
}

func TestSupervised(t *testing.T) {
	for args, want := range map[string]string{
		"--engine=x":                              "[--engine=x] false",
		"--supervise --engine=x":                  "[--engine=x] true",
		"--engine=x --supervise=true":             "[--engine=x] true",
		"--supervise=false":                       "[] false",
		"--supervise --pool=p --supervise":        "[--pool=p] true",
		"--supervise=maybe":                       "[--supervise=maybe] false",
		"--supervised --pool=--supervise --super": "[--supervised --pool=--supervise --super] false",
	} {
		rest, on := supervised(strings.Fields(args))
		if got := fmt.Sprint(rest, on); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

// TestSuperviseOneThatHangs: an agent that does not heed SIGTERM is killed.
func TestSuperviseOneThatHangs(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runs := filepath.Join(t.TempDir(), "runs")
	t.Setenv("SUPERVISED_RUNS", runs)
	t.Setenv("SUPERVISED_HANGS", "yes")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan int)
	go func() {
		ended <- supervisor{program: self, pause: time.Millisecond, patience: 50 * time.Millisecond, stderr: io.Discard}.run(ctx)
	}()
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if text, _ := os.ReadFile(runs); strings.Contains(string(text), "ready") {
			break
		}
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the parent waits for an agent that hangs")
	}
}

func TestSupervise(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runs := filepath.Join(t.TempDir(), "runs")
	t.Setenv("SUPERVISED_RUNS", runs)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var log bytes.Buffer
	code := make(chan int)
	go func() {
		code <- supervisor{program: self, args: []string{"--engine=x"}, pause: time.Millisecond, patience: time.Minute, stderr: &log}.run(ctx)
	}()
	said := func(word string) bool {
		text, _ := os.ReadFile(runs)
		return strings.Contains(string(text), word)
	}
	for until := time.Now().Add(30 * time.Second); !said("ready") && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if got := <-code; got != 3 {
		t.Errorf("exit code %d, want the program's own", got)
	}
	text, _ := os.ReadFile(runs)
	if want := strings.Repeat("[--engine=x]\n", 3) + "ready\ntold\n"; string(text) != want {
		t.Errorf("runs:\n%swant:\n%s", text, want)
	}
	if want := "agent: exit status 2; started again in 1ms\nagent: exit status 2; started again in 2ms\n"; log.String() != want {
		t.Errorf("said %q, want %q", log.String(), want)
	}
	if got := (supervisor{program: filepath.Join(t.TempDir(), "none"), pause: time.Millisecond, stderr: &log}).run(ctx); got != 0 {
		t.Errorf("exit code %d of a program that is not there, after the end", got)
	}
}
