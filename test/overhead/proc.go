package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpuTime is the time that a process has run on a CPU, of all its threads that live: to the
// nanosecond, where /proc/PID/stat counts hundredths of a second. Go's threads do not end.
func cpuTime(proc string, pid int) (time.Duration, error) {
	tasks, err := filepath.Glob(filepath.Join(proc, strconv.Itoa(pid), "task", "*", "schedstat"))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // a thread that ended between
		}
		if err != nil {
			return 0, err
		}
		ran, _, _ := strings.Cut(string(b), " ")
		ns, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", path, err)
		}
		sum += time.Duration(ns)
	}
	if len(tasks) == 0 {
		return 0, fmt.Errorf("no threads of process %d under %s: this needs Linux", pid, proc)
	}
	return sum, nil
}

// machine names the CPU and how many of it there are.
func machine(proc string, cpus int) string {
	b, _ := os.ReadFile(filepath.Join(proc, "cpuinfo")) // a name is nice to have
	name := "unknown CPU"
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			name = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%d x %s", cpus, name)
}
