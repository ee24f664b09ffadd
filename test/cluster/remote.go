package cluster

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// AddAgent starts one agent that watches all engines of the fleet from outside their pods.
func (f *Fleet) AddAgent() (*Agent, error) {
	var urls []string
	for _, e := range f.Engines {
		urls = append(urls, e.URL)
	}
	return f.startAgent(fmt.Sprintf("%s-agent", f.Name), strings.Join(urls, ","))
}

// RemoveGateways stops all gateways of the fleet.
func (f *Fleet) RemoveGateways() {
	for _, g := range f.Gateways {
		g.Stop(3 * time.Second)
	}
	f.Gateways = nil
}

// Post sends an empty POST.
func (f *Fleet) Post(url string) error {
	resp, err := f.Client.Post(url, "application/json", nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: status %d", url, resp.StatusCode)
	}
	return nil
}

// Metrics fetches Prometheus text and adds up the gauges and counters of each name over their labels.
func (f *Fleet) Metrics(url string) (map[string]float64, error) {
	resp, err := f.Client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	sums := make(map[string]float64, len(families))
	for name, family := range families {
		for _, m := range family.GetMetric() {
			sums[name] += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return sums, nil
}

// CPUSeconds is the CPU time of the process group that listens on the port of base, a URL
// of this machine: an engine is several processes. Linux only; 0 for a remote engine.
func CPUSeconds(base string) (float64, error) {
	u, err := url.Parse(base)
	if err != nil {
		return 0, err
	}
	if ip := net.ParseIP(u.Hostname()); ip == nil || !ip.IsLoopback() {
		return 0, nil
	}
	inode, err := listenerInode(u.Port())
	if err != nil || inode == "" {
		return 0, err
	}
	group := ""
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, p := range processes {
		fds, err := filepath.Glob(p + "/fd/*")
		if err != nil {
			return 0, err
		}
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && target == "socket:["+inode+"]" {
				group = statField(p, 5)
			}
		}
	}
	if group == "" {
		return 0, nil
	}
	var ticks float64
	for _, p := range processes {
		if statField(p, 5) != group {
			continue
		}
		for _, field := range []int{14, 15} { // user and system time, proc(5)
			n, _ := strconv.ParseFloat(statField(p, field), 64)
			ticks += n
		}
	}
	return ticks / 100, nil
}

// statField reads a field of /proc/PID/stat, counted from 1 as proc(5) does; empty if the process has ended.
func statField(process string, n int) string {
	text, err := os.ReadFile(process + "/stat")
	if err != nil {
		return ""
	}
	_, rest, ok := strings.Cut(string(text), ") ") // the name before may hold spaces
	fields := strings.Fields(rest)
	if !ok || n < 3 || n-3 >= len(fields) {
		return ""
	}
	return fields[n-3]
}

// listenerInode finds the socket that listens on a TCP port.
func listenerInode(port string) (string, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", fmt.Errorf("port %q: %w", port, err)
	}
	suffix := fmt.Sprintf(":%04X", n)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) > 9 && strings.HasSuffix(fields[1], suffix) && fields[3] == "0A" { // LISTEN
				f.Close()
				return fields[9], nil
			}
		}
		f.Close()
	}
	return "", nil
}
