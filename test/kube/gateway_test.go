package kube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// gateway is a pod of the chart's gateway Deployment.
type gateway struct {
	*pod
	http *http.Client
}

// gateways returns the release's running gateway pods.
func (p *plane) gateways(t *testing.T, namespace, release string) []*gateway {
	t.Helper()
	var list corev1.PodList
	if err := p.get("/api/v1/namespaces/"+namespace+"/pods?labelSelector=app.kubernetes.io/component%3Dgateway,app.kubernetes.io/instance%3D"+release, &list); err != nil {
		t.Fatal(err)
	}
	var out []*gateway
	for _, object := range list.Items {
		if running := p.kubelet.find(namespace, object.Name); running != nil && object.DeletionTimestamp == nil {
			out = append(out, &gateway{pod: running, http: &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}})
		}
	}
	return out
}

// gateway waits for one of the release's gateways.
func (p *plane) gateway(t *testing.T, namespace, release string) *gateway {
	t.Helper()
	var found []*gateway
	eventually(t, 30*time.Second, "a gateway of release "+release, func() error {
		if found = p.gateways(t, namespace, release); len(found) == 0 {
			return errNotYet
		}
		_, err := found[0].status()
		return err
	})
	return found[0]
}

func (g *gateway) url(path string) string   { return "http://" + g.ip + ":8080" + path }
func (g *gateway) admin(path string) string { return "http://" + g.ip + ":9090" + path }

// endpoint is what a gateway says of one.
type endpoint struct {
	ID      string `json:"id"`
	Rung    string `json:"rung"`
	Pod     string `json:"pod"`
	Waiting int    `json:"waiting"`
	Running int    `json:"running"`
}

// status returns the gateway's endpoints by their host:port.
func (g *gateway) status() (map[string]endpoint, error) {
	text, err := g.fetch(g.admin("/status"))
	if err != nil {
		return nil, err
	}
	var status struct {
		Endpoints []endpoint `json:"endpoints"`
	}
	if err := json.Unmarshal(text, &status); err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	out := map[string]endpoint{}
	for _, e := range status.Endpoints {
		out[e.ID] = e
	}
	return out, nil
}

func (g *gateway) fetch(url string) ([]byte, error) {
	resp, err := g.http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d: %s", url, resp.StatusCode, text)
	}
	return text, err
}

// metric returns the sum of a metric's series whose labels contain each of the given parts.
func (g *gateway) metric(url, name string, labels ...string) (float64, error) {
	text, err := g.fetch(url)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(text)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		base, set, _ := strings.Cut(series, "{")
		if !ok || base != name || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(set, l) }) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("no metric %s%v at %s", name, labels, url)
	}
	return sum, nil
}

// until waits until the gateway's endpoints are as wanted and returns how long it took.
func (g *gateway) until(t *testing.T, limit time.Duration, what string, good func(map[string]endpoint) bool) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		endpoints, err := g.status()
		if err == nil && good(endpoints) {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Fatalf("%s: not within %v; the gateway has %v (%v)\n%s", what, limit, endpoints, err, g.report())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// answer is what came back for a request.
type answer struct {
	status            int
	endpoint          string // that the gateway chose
	predicted, cached int    // tokens
	text              string
}

// ask sends a completion request through the gateway.
func (g *gateway) ask(prompt string, maxTokens int) (answer, error) {
	return g.askModel("tiny", prompt, maxTokens)
}

func (g *gateway) askModel(model, prompt string, maxTokens int) (answer, error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": maxTokens})
	if err != nil {
		return answer{}, err
	}
	resp, err := g.http.Post(g.url("/v1/completions"), "application/json", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, endpoint: resp.Header.Get("X-Grapevine-Endpoint"), text: string(text)}
	a.predicted, _ = strconv.Atoi(resp.Header.Get("X-Grapevine-Predicted-Cached-Tokens"))
	var usage struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, &usage)
	}
	a.cached = usage.Usage.Details.Cached
	return a, err
}

// words makes a prompt of about n tokens that no other name's prompt begins like.
func words(name string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d ", name, i)
	}
	return b.String()
}

// usage is what a process has taken so far.
type usage struct {
	cpu time.Duration
	rss int64 // bytes
}

// usage reads what the gateway's process has taken.
func (g *gateway) usage(t *testing.T) usage {
	t.Helper()
	pid := g.containers[0].pid()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	number := func(i int) int64 {
		v, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	return usage{cpu: time.Duration(number(11)+number(12)) * tick, rss: number(21) * int64(os.Getpagesize())}
}

// spread sums up measured times.
func spread(times []time.Duration) string {
	times = slices.Sorted(slices.Values(times))
	at := func(share float64) time.Duration {
		return times[min(len(times)-1, int(share*float64(len(times))))].Round(time.Millisecond / 10)
	}
	return fmt.Sprintf("p50 %v, p90 %v, max %v (n = %d)", at(0.5), at(0.9), at(1), len(times))
}
