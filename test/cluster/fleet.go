package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options describes a fleet of emulated engines with an agent beside each and one gateway.
type Options struct {
	Name    string // prefix of process names and the pool's name
	Exe     string // the grapevine binary
	Dir     string // logs and snapshots
	Engines int
	Speedup float64
	Policy  string // prefix, least-load or round-robin
	Model   string
	// EngineArgs, AgentArgs and GatewayArgs are appended to what the fleet sets.
	EngineArgs, AgentArgs, GatewayArgs []string
	// Ports hands out the ports; fleets that run at the same time share one. Nil: the fleet has its own.
	Ports *Ports
	// Wrap, if set, gives the address under which a gossip port is advertised, so that a test
	// can sit in between. It is called with the process's name and its real port.
	Wrap func(name string, port int) (advertise int, err error)
}

// Fleet is a running fleet.
type Fleet struct {
	Options
	Engines  []*Engine
	Agents   []*Agent
	Gateways []*Gateway
	Client   *http.Client
}

// Engine is an emulated engine.
type Engine struct {
	*Process
	URL string
}

// Agent is the agent of one engine.
type Agent struct {
	*Process
	Admin string // base URL of its admin listener
}

// Gateway is a gateway of the fleet.
type Gateway struct {
	*Process
	URL    string
	Admin  string // base URL of its admin listener
	Gossip string // host:port where agents join
}

// Up starts the fleet and waits until every endpoint's digest is known to the gateway.
// On error everything is taken down again.
func Up(ctx context.Context, o Options) (_ *Fleet, err error) {
	if o.Ports == nil {
		o.Ports = &Ports{}
	}
	f := &Fleet{Options: o, Client: &http.Client{Timeout: 10 * time.Second}}
	defer func() {
		if err != nil {
			f.Down()
		}
	}()
	for range o.Engines {
		if err := f.AddEngine(); err != nil {
			return nil, err
		}
	}
	for _, e := range f.Engines {
		if err := waitFor(ctx, "start "+e.Name, 30*time.Second, []*Process{e.Process}, func() error { return f.ok(e.URL + "/health") }); err != nil {
			return nil, err
		}
	}
	if _, err := f.AddGateway(); err != nil {
		return nil, err
	}
	for i := range f.Engines {
		if err := f.addAgent(i); err != nil {
			return nil, err
		}
	}
	return f, f.WaitReporting(ctx, f.Gateways[0], o.Engines, 30*time.Second)
}

// AddEngine starts one more engine without an agent.
func (f *Fleet) AddEngine() error {
	ports, err := f.Ports.Take(3)
	if err != nil {
		return err
	}
	args := []string{"engine",
		"--listen", local(ports[0]),
		"--events", "tcp://*:" + strconv.Itoa(ports[1]),
		"--replay", "tcp://*:" + strconv.Itoa(ports[2]),
		"--model", f.Model,
		"--speedup", strconv.FormatFloat(f.Speedup, 'g', -1, 64),
	}
	p, err := StartProcess(f.Exe, fmt.Sprintf("%s-engine-%d", f.Name, len(f.Engines)), f.Dir, append(args, f.EngineArgs...)...)
	if err != nil {
		return err
	}
	f.Engines = append(f.Engines, &Engine{Process: p, URL: "http://" + local(ports[0])})
	return nil
}

// AddGateway starts one more gateway that knows all engines from a static list and joins the
// gateways before it. It does not wait for it.
func (f *Fleet) AddGateway() (*Gateway, error) {
	ports, err := f.Ports.Take(3)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%s-gateway-%d", f.Name, len(f.Gateways))
	var urls []string
	for _, e := range f.Engines {
		urls = append(urls, e.URL)
	}
	args := []string{"gateway",
		"--listen", local(ports[0]),
		"--admin-listen", local(ports[1]),
		"--pool", f.Name,
		"--endpoints", strings.Join(urls, ","),
		"--policy", f.Policy + "=100",
		"--speedup", strconv.FormatFloat(f.Speedup, 'g', -1, 64),
		"--response-headers",
	}
	gossip, gossipArgs, err := f.gossip(name, ports[2])
	if err != nil {
		return nil, err
	}
	args = append(args, gossipArgs...)
	p, err := StartProcess(f.Exe, name, f.Dir, append(args, f.GatewayArgs...)...)
	if err != nil {
		return nil, err
	}
	g := &Gateway{Process: p, URL: "http://" + local(ports[0]), Admin: "http://" + local(ports[1]), Gossip: gossip}
	f.Gateways = append(f.Gateways, g)
	return g, nil
}

// addAgent starts the agent of engine i; it joins all gateways.
func (f *Fleet) addAgent(i int) error {
	a, err := f.startAgent(fmt.Sprintf("%s-agent-%d", f.Name, i), f.Engines[i].URL)
	if err == nil {
		f.Agents = append(f.Agents, a)
	}
	return err
}

func (f *Fleet) startAgent(name, engines string) (*Agent, error) {
	ports, err := f.Ports.Take(2)
	if err != nil {
		return nil, err
	}
	args := []string{"agent",
		"--engine", engines,
		"--pool", f.Name,
		"--metrics-listen", local(ports[1]),
	}
	_, gossipArgs, err := f.gossip(name, ports[0])
	if err != nil {
		return nil, err
	}
	args = append(args, gossipArgs...)
	p, err := StartProcess(f.Exe, name, f.Dir, append(args, f.AgentArgs...)...)
	if err != nil {
		return nil, err
	}
	return &Agent{Process: p, Admin: "http://" + local(ports[1])}, nil
}

// gossip returns the address to join at and the flags of a member.
func (f *Fleet) gossip(name string, port int) (join string, args []string, err error) {
	advertise := port
	if f.Wrap != nil {
		if advertise, err = f.Wrap(name, port); err != nil {
			return "", nil, err
		}
	}
	args = []string{"--gossip-bind", local(port), "--gossip-advertise", local(advertise)}
	for _, g := range f.Gateways {
		args = append(args, "--gossip-join", g.Gossip)
	}
	return local(advertise), args, nil
}

// Endpoint is what a gateway's status says of one endpoint.
type Endpoint struct {
	ID     string `json:"id"`
	Rung   string `json:"rung"`
	Others int    `json:"others"` // requests of other gateways
}

// Status asks a gateway for its endpoints.
func (f *Fleet) Status(g *Gateway) ([]Endpoint, error) {
	var status struct {
		Endpoints []Endpoint `json:"endpoints"`
	}
	return status.Endpoints, f.GetJSON(g.Admin+"/status", &status)
}

// WaitReporting waits until n endpoints are routed by their digest.
func (f *Fleet) WaitReporting(ctx context.Context, g *Gateway, n int, limit time.Duration) error {
	owners := []*Process{g.Process}
	for _, a := range f.Agents {
		owners = append(owners, a.Process)
	}
	return waitFor(ctx, fmt.Sprintf("wait for %d agents of %s", n, f.Name), limit, owners, func() error {
		endpoints, err := f.Status(g)
		if err != nil {
			return err
		}
		reporting := 0
		for _, e := range endpoints {
			if e.Rung == "digest" {
				reporting++
			}
		}
		if reporting < n {
			return fmt.Errorf("%d of %d report: %w", reporting, n, errNotReady)
		}
		return nil
	})
}

// EngineStats is the truth of one emulated engine.
type EngineStats struct {
	Requests        int     `json:"requests"`
	ColdPrefills    int     `json:"cold_prefills"`
	PrefillSeconds  float64 `json:"prefill_seconds"`      // spent, on the emulated clock
	UncachedSeconds float64 `json:"full_prefill_seconds"` // what the same prompts cost without a cache
	PromptTokens    int     `json:"prompt_tokens"`
	CachedTokens    int     `json:"cached_tokens"`
}

// EngineStats adds up the truth of all engines that answer.
func (f *Fleet) EngineStats() (EngineStats, error) {
	var sum EngineStats
	var errs []error
	for _, e := range f.Engines {
		var s EngineStats
		if err := f.GetJSON(e.URL+"/debug/stats", &s); err != nil {
			errs = append(errs, err)
			continue
		}
		sum.Requests += s.Requests
		sum.ColdPrefills += s.ColdPrefills
		sum.PrefillSeconds += s.PrefillSeconds
		sum.UncachedSeconds += s.UncachedSeconds
		sum.PromptTokens += s.PromptTokens
		sum.CachedTokens += s.CachedTokens
	}
	return sum, errors.Join(errs...)
}

// GetJSON fetches url into out.
func (f *Fleet) GetJSON(url string, out any) error {
	resp, err := f.Client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d: %s", url, resp.StatusCode, bytes.TrimSpace(body))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	return nil
}

func (f *Fleet) ok(url string) error {
	resp, err := f.Client.Get(url)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: status %d", url, resp.StatusCode)
	}
	return nil
}

// Down stops every process, gateways first, and waits for them.
func (f *Fleet) Down() {
	var layers [3][]*Process
	for _, g := range f.Gateways {
		layers[0] = append(layers[0], g.Process)
	}
	for _, a := range f.Agents {
		layers[1] = append(layers[1], a.Process)
	}
	for _, e := range f.Engines {
		layers[2] = append(layers[2], e.Process)
	}
	for _, layer := range layers {
		var wg sync.WaitGroup
		for _, p := range layer {
			wg.Go(func() { p.Stop(3 * time.Second) })
		}
		wg.Wait()
	}
	f.Client.CloseIdleConnections()
}

// TempDir makes a folder for logs.
func TempDir() (string, error) { return os.MkdirTemp("", "grapevine-") }
