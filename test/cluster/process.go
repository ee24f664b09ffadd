// Package cluster starts real engines, agents and gateways as processes of this machine, all
// from one grapevine binary, and takes them down again. The demo and the end-to-end tests
// stand on it.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one child process; its output goes to a log file. Safe for concurrent use.
type Process struct {
	Name    string
	LogPath string

	exe  string
	args []string

	mu   sync.Mutex // guards cmd and done
	cmd  *exec.Cmd
	done chan struct{} // closed when the current cmd has been waited for
}

// StartProcess runs exe with args and appends what it prints to dir/name.log.
func StartProcess(exe, name, dir string, args ...string) (*Process, error) {
	p := &Process{Name: name, LogPath: filepath.Join(dir, name+".log"), exe: exe, args: args}
	return p, p.Start()
}

// Start runs the process again after it has ended.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.LogPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.exe, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	// Two dozen processes with small heaps on a small machine would collect all the time.
	cmd.Env = append([]string{"GOGC=400"}, os.Environ()...) // what is set outside wins
	// A parent that is killed takes its children along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the exit status shows in the log and in Ended
		close(done)
	}()
	p.cmd, p.done = cmd, done
	return nil
}

// Signal sends sig to the process.
func (p *Process) Signal(sig os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Signal(sig)
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Kill ends the process with SIGKILL and waits for it.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.Ended()
}

// Stop asks the process to end and kills it after grace.
func (p *Process) Stop(grace time.Duration) {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.Ended():
	case <-time.After(grace):
		p.Kill()
	}
}

// Tail returns the last lines of the process's log, for error messages.
func (p *Process) Tail(lines int) string {
	f, err := os.Open(p.LogPath)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 8<<10 {
		_, _ = f.Seek(-8<<10, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Ports hands out ports of this machine, each once. The zero value is ready; safe for concurrent use.
type Ports struct {
	mu    sync.Mutex // guards given
	given map[int]bool
}

// Take returns n different ports that are free now for TCP and UDP on all addresses. They are drawn at random
// from below the range that the kernel gives to outgoing connections, so that nobody else takes them soon.
func (p *Ports) Take(n int) ([]int, error) {
	const first, last, tries = 10_000, 32_000, 1000
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.given == nil {
		p.given = map[int]bool{}
	}
	var ports []int
	for range tries {
		if len(ports) == n {
			return ports, nil
		}
		port := first + rand.IntN(last-first)
		if !p.given[port] && free(port) {
			p.given[port] = true
			ports = append(ports, port)
		}
	}
	return nil, fmt.Errorf("no %d free ports between %d and %d", n, first, last)
}

func free(port int) bool {
	addr := ":" + strconv.Itoa(port)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	u.Close()
	return true
}

// waitFor polls ready until it returns nil, an owner of the condition ends, or ctx does.
func waitFor(ctx context.Context, what string, limit time.Duration, owners []*Process, ready func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		for _, p := range owners {
			select {
			case <-p.Ended():
				return fmt.Errorf("%s: %s ended; its last lines:\n%s", what, p.Name, p.Tail(8))
			default:
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v: %w", what, limit, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

var errNotReady = errors.New("not ready")

// Pid of the process and of its group.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}
