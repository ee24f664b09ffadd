package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// superviseFlag makes the program the parent of the agent. A native sidecar that ends makes its pod not ready until it runs
// again (the kubelet counts it as it counts the engine), and each further time the kubelet waits longer. So in a pod
// the container stays, whatever becomes of the agent in it.
const superviseFlag = "supervise"

// Pauses before an agent that has ended is started again: doubled each time, and short again for one that ran for a while.
const (
	firstPause  = time.Second
	longestWait = 30 * time.Second // below what the liveness probe of the injector puts up with
	steady      = time.Minute
)

// lastWords is how long an agent that is told to end may take: one that hangs must not keep its pod, whose grace period may be
// as long as the engine's longest answer.
const lastWords = time.Minute

// supervised takes the flag out of the arguments. One that is not true or false stays, for the program to complain of.
func supervised(args []string) (rest []string, on bool) {
	for _, arg := range args {
		name, value, joined := strings.Cut(arg, "=")
		said, err := strconv.ParseBool(value)
		switch {
		case name != "--"+superviseFlag || joined && err != nil:
			rest = append(rest, arg)
		default:
			on = said || !joined
		}
	}
	return rest, on
}

// supervisor runs a program again and again.
type supervisor struct {
	program  string
	args     []string
	pause    time.Duration // the first
	patience time.Duration // between SIGTERM and SIGKILL
	stderr   io.Writer
}

// run returns the exit code of the last run when ctx has ended; the program is told by SIGTERM, and killed when it hangs.
func (s supervisor) run(ctx context.Context) int {
	pause := s.pause
	for {
		cmd := exec.CommandContext(ctx, s.program, s.args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, s.stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = s.patience
		began := time.Now()
		err := cmd.Run()
		if ctx.Err() != nil {
			return max(0, cmd.ProcessState.ExitCode()) // -1 of one that was never started, or killed
		}
		if time.Since(began) > steady {
			pause = s.pause
		}
		why := "it ended"
		if err != nil {
			why = err.Error()
		}
		fmt.Fprintf(s.stderr, "agent: %s; started again in %v\n", why, pause)
		select {
		case <-ctx.Done():
			return 0
		case <-time.After(pause):
		}
		pause = min(2*pause, longestWait)
	}
}
