package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/test/cluster"
	"github.com/grapevine-llm/grapevine/test/load"
)

// target is something that requests are sent to.
type target struct {
	name    string
	process *cluster.Process // nil: an engine itself
	admin   string           // of a gateway
	client  *client
	idle    float64 // CPU that it takes before the first request, seconds in a second
	rest    float64 // the same after the last one, when there is something to forget
}

// bench is all that runs.
type bench struct {
	cfg     config
	fleet   *cluster.Fleet
	stubs   []*stub
	nginx   *cluster.Process
	targets []*target
	skipped []string
}

// measure runs everything and takes it down again.
func measure(ctx context.Context, cfg config) (*report, error) {
	b := &bench{cfg: cfg}
	defer b.down()
	if err := b.up(ctx); err != nil {
		return nil, err
	}
	rep := &report{Machine: machine("/proc", runtime.NumCPU()), Engines: "stubs that answer at once", Count: cfg.engines, Requests: cfg.requests, Skipped: b.skipped}
	if cfg.emulated {
		rep.Engines = "emulated, with agents"
	}
	if err := b.measureIdle(ctx, 3*time.Second, func(t *target, cpu float64) { t.idle = cpu }); err != nil {
		return nil, err
	}
	for _, size := range cfg.sizes {
		for _, warm := range []bool{false, true} {
			work := coldWorkload
			if warm {
				work = warmWorkload
			}
			c, err := b.cell(ctx, work(cfg.seed, size, cfg.requests), size, warm)
			if err != nil {
				return nil, err
			}
			rep.Cells = append(rep.Cells, c)
		}
	}
	// A gateway forgets what it has marked every ten seconds.
	if err := b.measureIdle(ctx, 10*time.Second, func(t *target, cpu float64) { t.rest = cpu }); err != nil {
		return nil, err
	}
	for _, t := range b.targets {
		if t.process != nil {
			rep.Background = append(rep.Background, background{t.name, 1000 * t.idle, 1000 * t.rest})
		}
	}
	if !cfg.emulated {
		for _, n := range []int{1, 16, 64} {
			tokenized, err := b.scale(ctx, n)
			if err != nil {
				return nil, fmt.Errorf("with %d engines: %w", n, err)
			}
			rep.Scaling = append(rep.Scaling, scaling{n, tokenized})
		}
	}
	return rep, nil
}

// scale counts the prompts that a gateway with n engines tokenizes a request.
func (b *bench) scale(ctx context.Context, n int) (float64, error) {
	one := &bench{cfg: b.cfg}
	defer one.down()
	one.cfg.engines = n
	o := b.fleet.Options
	o.Name, o.Policy = fmt.Sprintf("scale-%d", n), "prefix"
	o.GatewayArgs = []string{"--model", "tiny=" + b.cfg.model}
	if err := one.upStubs(o); err != nil {
		return 0, err
	}
	g, err := one.fleet.AddGateway()
	if err != nil {
		return 0, err
	}
	t := &target{name: o.Name, process: g.Process, admin: g.Admin, client: newClient(g.URL)}
	one.targets = []*target{t}
	if err := one.waitServing(ctx); err != nil {
		return 0, err
	}
	before, err := one.prompts(t)
	if err != nil {
		return 0, err
	}
	w := warmWorkload(b.cfg.seed, 8<<10, 40)
	for _, body := range w.requests {
		if s := t.client.send(ctx, body); s.err != nil {
			return 0, s.err
		}
	}
	after, err := one.prompts(t)
	return (after - before) / float64(len(w.requests)), err
}

// upStubs makes a fleet whose engines are stubs.
func (b *bench) upStubs(o cluster.Options) error {
	o.Speedup = 1 // so that what gateways remember lives as long as with real engines
	b.fleet = &cluster.Fleet{Options: o, Client: &http.Client{Timeout: 10 * time.Second}}
	for range b.cfg.engines {
		s, err := startStub()
		if err != nil {
			return err
		}
		b.stubs = append(b.stubs, s)
		b.fleet.Engines = append(b.fleet.Engines, &cluster.Engine{URL: s.url})
	}
	return nil
}

// up starts engines, nginx and gateways: one with the policy prefix, one with round-robin, and
// one with round-robin that has no model's files, so that it only forwards.
func (b *bench) up(ctx context.Context) error {
	const speedup = 1000
	o := cluster.Options{
		Name: "overhead", Exe: b.cfg.exe, Dir: b.cfg.dir, Engines: b.cfg.engines, Speedup: speedup, Policy: "prefix", Model: "tiny",
		EngineArgs:  []string{"--max-model-len", "1000000", "--kv-tokens", "8000000"},
		GatewayArgs: []string{"--model", "tiny=" + b.cfg.model},
		Ports:       &cluster.Ports{},
	}
	var err error
	if b.cfg.emulated {
		if b.fleet, err = cluster.Up(ctx, o); err != nil {
			return err
		}
	} else {
		if err := b.upStubs(o); err != nil {
			return err
		}
		if _, err := b.fleet.AddGateway(); err != nil {
			return err
		}
	}
	b.fleet.Policy = "round-robin"
	if _, err := b.fleet.AddGateway(); err != nil {
		return err
	}
	if !b.cfg.emulated { // emulated engines would tokenize for it
		b.fleet.GatewayArgs = nil
		if _, err := b.fleet.AddGateway(); err != nil {
			return err
		}
	}
	var urls []string
	for _, e := range b.fleet.Engines {
		urls = append(urls, e.URL)
	}
	b.targets = []*target{{name: "engine", client: newClient(urls[0])}}
	var url string
	switch b.nginx, url, err = startNginx(b.fleet.Ports, b.cfg.dir, urls); {
	case errors.Is(err, errNoNginx):
		b.skipped = append(b.skipped, err.Error())
	case err != nil:
		return err
	default:
		b.targets = append(b.targets, &target{name: "nginx", process: b.nginx, client: newClient(url)})
	}
	names := []string{"prefix", "round-robin", "forward only"}
	for i, g := range slices.Backward(b.fleet.Gateways) {
		b.targets = append(b.targets, &target{name: names[i], process: g.Process, admin: g.Admin, client: newClient(g.URL)})
	}
	for _, t := range b.targets {
		if t.process != nil {
			t.client.cpu = func() (time.Duration, error) { return cpuTime("/proc", t.process.Pid()) }
		}
	}
	return b.waitServing(ctx)
}

// waitServing sends to each target until it answers.
func (b *bench) waitServing(ctx context.Context) error {
	body := coldWorkload(b.cfg.seed, 1<<10, 1).requests[0]
	deadline := time.Now().Add(30 * time.Second)
	for _, t := range b.targets {
		for {
			s := t.client.send(ctx, body)
			if s.err == nil {
				break
			}
			if time.Now().After(deadline) || ctx.Err() != nil {
				return fmt.Errorf("wait for %s: %w", t.name, s.err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

func (b *bench) down() {
	if b.nginx != nil {
		b.nginx.Stop(3 * time.Second)
	}
	for _, t := range b.targets {
		t.client.http.CloseIdleConnections()
	}
	if b.fleet != nil {
		if !b.cfg.emulated {
			b.fleet.Engines = nil // stubs are no processes
		}
		b.fleet.Down()
	}
	for _, s := range b.stubs {
		s.stop()
	}
}

// cpu reads the CPU time of each target; 0 for an engine.
func (b *bench) cpu() ([]time.Duration, error) {
	out := make([]time.Duration, len(b.targets))
	for i, t := range b.targets {
		if t.client.cpu == nil {
			continue
		}
		var err error
		if out[i], err = t.client.cpu(); err != nil {
			return nil, fmt.Errorf("CPU time of %s: %w", t.name, err)
		}
	}
	return out, nil
}

// measureIdle tells what each target takes without requests: gossip, scrapes.
func (b *bench) measureIdle(ctx context.Context, span time.Duration, tell func(t *target, cpu float64)) error {
	before, err := b.cpu()
	if err != nil {
		return err
	}
	start := time.Now()
	select {
	case <-time.After(span):
	case <-ctx.Done():
		return ctx.Err()
	}
	took := time.Since(start).Seconds()
	after, err := b.cpu()
	if err != nil {
		return err
	}
	for i, t := range b.targets {
		tell(t, (after[i]-before[i]).Seconds()/took)
	}
	return nil
}

// cell sends one workload to all targets.
func (b *bench) cell(ctx context.Context, w workload, size int, warm bool) (cell, error) {
	c := cell{KiB: size >> 10, Warm: warm}
	for _, body := range w.warms {
		for _, t := range b.targets {
			if s := t.client.send(ctx, body); s.err != nil {
				return c, fmt.Errorf("warm up %s: %w", t.name, s.err)
			}
		}
	}
	tokenized := make([]float64, len(b.targets))
	for i, t := range b.targets {
		var err error
		if tokenized[i], err = b.prompts(t); err != nil {
			return c, err
		}
	}
	before, err := b.cpu()
	if err != nil {
		return c, err
	}
	var clients []*client
	for _, t := range b.targets {
		clients = append(clients, t.client)
	}
	start := time.Now()
	samples := sendAll(ctx, clients, w.requests, b.cfg.gap(size))
	took := time.Since(start).Seconds()
	if err := ctx.Err(); err != nil {
		return c, err
	}
	after, err := b.cpu()
	if err != nil {
		return c, err
	}
	n := float64(len(w.requests))
	for i, t := range b.targets {
		r := row{Target: t.name, Gateway: t.admin != "", HasCPU: t.process != nil}
		r.MeanCPUMs = max(0, load.Millis(after[i]-before[i])-1000*t.idle*took) / n
		var first, late, cpu []float64
		for _, s := range samples[i] {
			if s.err != nil {
				return c, fmt.Errorf("%d KiB to %s: %w", c.KiB, t.name, s.err)
			}
			first = append(first, load.Millis(s.firstByte))
			late = append(late, load.Millis(s.late))
			cpu = append(cpu, load.Millis(s.cpu))
		}
		r.FirstByte, r.CPU, r.LateMs = load.QuantilesOf(first), load.QuantilesOf(cpu), load.QuantilesOf(late).P99
		count, err := b.prompts(t)
		if err != nil {
			return c, err
		}
		r.Tokenized = (count - tokenized[i]) / n
		c.Rows = append(c.Rows, r)
	}
	return c, nil
}

// prompts is how many prompts a gateway has tokenized; 0 for others.
func (b *bench) prompts(t *target) (float64, error) {
	if t.admin == "" {
		return 0, nil
	}
	resp, err := b.fleet.Client.Get(t.admin + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	sum := 0.0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		n, err := tokenizedBy(lines.Text())
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, lines.Err()
}

// tokenizedBy reads the count of a line of metrics that is about prompts tokenized in the
// gateway; 0 for other lines.
func tokenizedBy(line string) (float64, error) {
	if !strings.HasPrefix(line, "grapevine_prompt_resolved_total{") || !strings.Contains(line, `rung="own"`) {
		return 0, nil
	}
	_, value, _ := strings.Cut(line, "} ")
	n, err := strconv.ParseFloat(value, 64)
	if err != nil {
		return 0, fmt.Errorf("read metric %q: %w", line, err)
	}
	return n, nil
}
