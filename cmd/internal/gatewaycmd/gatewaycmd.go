// Package gatewaycmd is the gateway as a program: its configuration, its two listeners, reload of
// the policy and graceful end. cmd/gateway and `grapevine gateway` both run it.
package gatewaycmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/grapevine-llm/grapevine/cmd/internal/config"
	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/extproc"
	"github.com/grapevine-llm/grapevine/picker/pool"
	"github.com/grapevine-llm/grapevine/picker/prompt"
	"github.com/grapevine-llm/grapevine/picker/proxy"
)

// Config of a gateway.
type Config struct {
	Listen                    string            `json:"listen" help:"address for clients; empty: none, where Envoy asks by ext_proc"`
	AdminListen               string            `json:"admin-listen" help:"address for metrics, status, receipts, the live page and profiles; keep it off the public network"`
	Model                     map[string]string `json:"model" help:"model names and the folders with their tokenizer.json and chat template, name=folder"`
	ChatTemplate              map[string]string `json:"chat-template" help:"for models whose engines were started with --chat-template: name=file, or the name of one of the model's own templates"`
	ChatTemplateContentFormat map[string]string `json:"chat-template-content-format" help:"for models whose engines were started with it: name=auto, string or openai"`
	ChatTemplateKwargs        map[string]string `json:"chat-template-kwargs" help:"for models whose engines were started with --default-chat-template-kwargs: name=JSON object"`
	ExcludeTools              bool              `json:"exclude-tools-when-tool-choice-none" help:"the engines were started with the flag of this name"`
	PromptCacheBytes          int64             `json:"prompt-cache-bytes" help:"bytes for each of three caches: token ids of texts, chains of conversations, answers of engines that were asked for ids"`
	CheckEvery                int               `json:"check-every" help:"one in so many requests whose token ids were made here is compared with its engine, at most one a second; 0 compares at an engine's start only"`
	LogPromptText             bool              `json:"log-prompt-text" help:"show what differs between own and an engine's token ids as text in the log: prompts are your users' secrets"`
	Speedup                   float64           `json:"speedup" help:"how many times faster than real the engines run; only for emulated ones"`
	DrainWait                 time.Duration     `json:"drain-wait" help:"how long requests in progress may take to end after SIGTERM"`
	WarmWait                  time.Duration     `json:"warm-wait" help:"how long a gateway that has just started waits for its pools to be read, and for the digests of all endpoints, before it serves; clients wait as long"`
	LogLevel                  slog.Level        `json:"log-level" help:"debug, info, warn or error"`
	ExtProc                   extproc.Config    `json:"ext-proc"`
	Kubernetes                pool.Config       `json:"kubernetes"`
	ProxyConfig
	PickerConfig
}

// The settings of both parts stand beside each other, without a prefix.
type (
	ProxyConfig  = proxy.Config
	PickerConfig = picker.Config
)

// Default returns a configuration that works once endpoints or gossip are given.
func Default() Config {
	pc := picker.Default()
	pc.Gossip.Enabled = true
	return Config{
		Listen: ":8080", AdminListen: "127.0.0.1:9090", PromptCacheBytes: 64 << 20, CheckEvery: 1000, Speedup: 1, DrainWait: 30 * time.Second, WarmWait: 2 * time.Second,
		ExtProc: extproc.Default(), ProxyConfig: proxy.Default(), PickerConfig: pc,
	}
}

// Validate joins all faults.
func (c Config) Validate() error {
	errs := []error{c.PickerConfig.Validate(), c.ProxyConfig.Validate(), c.ExtProc.Validate(), c.Kubernetes.Validate()}
	for _, a := range []struct{ field, addr string }{{"listen", c.Listen}, {"admin-listen", c.AdminListen}} {
		if a.field == "listen" && a.addr == "" && c.ExtProc.Enabled() {
			continue
		}
		remedy := "give host:port, e.g. 127.0.0.1:8080"
		if a.field == "listen" && a.addr == "" {
			remedy += "; only a gateway that Envoy asks needs none: give --ext-proc-listen too"
		}
		_, port, err := net.SplitHostPort(a.addr)
		if err == nil {
			_, err = net.LookupPort("tcp", port)
		}
		if err != nil {
			errs = append(errs, config.Fault{Field: a.field, Value: a.addr, Problem: err.Error(), Remedy: remedy})
		}
	}
	if c.ExtProc.Advise && c.Listen != "" {
		errs = append(errs, config.Fault{Field: "ext-proc.advise", Value: "true", Problem: fmt.Sprintf("a gateway that advises picks nothing, so it can't serve clients at %s", c.Listen), Remedy: "give --listen \"\""})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Model)) {
		// What is in the folder is judged when it is read: damaged files are logged and the engine is asked.
		if info, err := os.Stat(c.Model[name]); err != nil || !info.IsDir() {
			errs = append(errs, config.Fault{Field: "model", Value: name + "=" + c.Model[name], Problem: "is no folder that can be read", Remedy: "give the model's folder, or leave the model out: the engine is asked then"})
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"drain-wait", c.DrainWait}, {"warm-wait", c.WarmWait}} {
		if d.value < 0 {
			errs = append(errs, config.Fault{Field: d.field, Value: d.value.String(), Problem: "is negative", Remedy: "give 0 or more"})
		}
	}
	errs = append(errs, c.validateChat()...)
	if c.CheckEvery < 0 {
		errs = append(errs, config.Fault{Field: "check-every", Value: fmt.Sprint(c.CheckEvery), Problem: "is negative", Remedy: "give 0 or more"})
	}
	if c.PromptCacheBytes < 1<<20 {
		errs = append(errs, config.Fault{Field: "prompt-cache-bytes", Value: fmt.Sprint(c.PromptCacheBytes), Problem: "is too small", Remedy: "give at least 1048576"})
	}
	if !(c.Speedup > 0) {
		errs = append(errs, config.Fault{Field: "speedup", Value: fmt.Sprint(c.Speedup), Problem: "is no speed", Remedy: "give a number above 0"})
	}
	return errors.Join(errs...)
}

// missing names the files that cannot be read. Validate does not: --print-config works where they are not.
func (c Config) missing() (faults []config.Fault) {
	for _, f := range []struct{ field, name string }{
		{"gossip.key-file", c.Gossip.KeyFile}, {"seed-file", c.SeedFile},
		{"ext-proc.cert-file", c.ExtProc.CertFile}, {"ext-proc.key-file", c.ExtProc.KeyFile}, {"kubernetes.kubeconfig", c.Kubernetes.Kubeconfig},
	} {
		if f.name == "" {
			continue
		}
		file, err := os.Open(f.name)
		if err != nil {
			faults = append(faults, config.Fault{Field: f.field, Value: f.name, Problem: err.Error(), Remedy: "give a file that exists and may be read"})
			continue
		}
		file.Close()
	}
	return faults
}

const about = `An OpenAI-compatible reverse proxy that sends each request to the engine that holds most of its prompt in its KV cache; or the
endpoint picker that Envoy asks. Endpoints are those of --endpoints, those that agents announce by gossip, and those of pools on
Kubernetes.

Examples:
  gateway --endpoints http://10.0.0.5:8000,http://10.0.0.6:8000 --model NAME=FOLDER
  gateway --listen "" --ext-proc-listen :9002 --kubernetes-inference-pools models/llama`

// Main resolves the configuration from args and runs the gateway. It returns the exit code.
func Main(ctx context.Context, args []string, version string, stdout, stderr io.Writer) int {
	cfg := Default().discovering(args)
	fs := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	if run, code := config.Start(fs, about, args, &cfg, version, stdout, stderr); !run {
		return code
	}
	if faults := cfg.missing(); len(faults) > 0 {
		fmt.Fprintf(stderr, "%s: %v\n", fs.Name(), &config.Error{Faults: faults})
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: cfg.LogLevel}))
	if err := run(ctx, fs, cfg, version, log); err != nil {
		fmt.Fprintln(stderr, "gateway:", err)
		return 1
	}
	return 0
}

// run serves until ctx ends.
func run(ctx context.Context, fs *pflag.FlagSet, cfg Config, version string, log *slog.Logger) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	pc := cfg.PickerConfig.Scaled(cfg.Speedup)
	pc.Logger, pc.Registerer = log, reg
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	defer client.CloseIdleConnections()
	pc.Probe = func(ctx context.Context, e picker.Endpoint) error { return probe(ctx, client, e) }
	pick, err := picker.New(pc)
	if err != nil {
		return err
	}
	chats, err := cfg.chats()
	if err != nil {
		return err
	}
	resolver, err := prompt.New(prompt.Config{
		Models: cfg.Model, Chat: chats, Client: client, Base: pick.BaseModel, IsAdapter: pick.IsAdapter,
		BlockSizes: pick.BlockSizes, Hasher: pick.Hasher(), KeepIDs: cfg.ForwardTokenIDs, CacheBytes: cfg.PromptCacheBytes,
		Engines: func() []prompt.Engine { return engines(pick.Status().Endpoints) }, CheckEvery: cfg.CheckEvery, LogPromptText: cfg.LogPromptText,
		Logger: log,
	})
	if err != nil {
		return err
	}
	watched, err := newWatchedPools(cfg, pick, log, reg)
	if err != nil {
		return err
	}
	proxyConfig := cfg.ProxyConfig
	proxyConfig.Version = version
	proxyConfig.Pools, proxyConfig.NotReady = watched.status(), watched.notReady
	var envoy *extproc.Server
	if cfg.ExtProc.Advise {
		proxyConfig.Advice = func() any { return envoy.Advice() }
	}
	px, err := proxy.New(proxyConfig, pick, resolver, log, reg)
	if err != nil {
		return err
	}
	defer px.Close()

	var public net.Listener
	if cfg.Listen != "" {
		if public, err = listen(cfg.Listen, "--listen"); err != nil {
			return err
		}
		defer public.Close()
	}
	admin, err := listen(cfg.AdminListen, "--admin-listen")
	if err != nil {
		return err
	}
	defer admin.Close()
	envoy, err = cfg.newExtProc(pick, resolver, watched.known(), px.Recorder(), log, reg)
	if err != nil {
		return err
	}
	log.Info("gateway up", slog.String("listen", addressOf(public)), slog.String("admin", admin.Addr().String()), slog.Any("ext_proc", envoy.Addrs()), slog.String("pool", cfg.Pool))

	// The picker and the admin listener outlive ctx until requests in progress have ended.
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, groupCtx := errgroup.WithContext(inner)
	server := &http.Server{Handler: px.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	adminServer := &http.Server{Handler: px.Admin(reg), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	group.Go(func() error { return pick.Run(groupCtx) })
	group.Go(func() error { return px.Run(groupCtx) })
	group.Go(func() error { return watched.run(groupCtx, px.EndpointsChanged) })
	group.Go(func() error { return resolver.Run(groupCtx) })
	group.Go(func() error {
		// Connections wait in the listener's backlog meanwhile.
		start := time.Now()
		warm := waitFor(groupCtx, cfg.WarmWait, func() bool {
			return watched.read.Load() && (!cfg.Gossip.Enabled || pick.Warm())
		})
		log.Info("serving", slog.Bool("warm", warm), slog.Duration("after", time.Since(start).Round(time.Millisecond)))
		watched.serving.Store(true)
		envoy.SetReady(true)
		if public == nil {
			return nil
		}
		return serve(server, public)
	})
	group.Go(func() error { return envoy.Run(groupCtx) })
	group.Go(func() error { return serve(adminServer, admin) })
	group.Go(func() error {
		defaults := Default()
		defaults.Discover = !cfg.Kubernetes.Enabled() // see discovering; it does not change while this runs
		config.Watch(groupCtx, fs, defaults, time.Second, func(c Config, err error) {
			if err == nil {
				err = pick.SetPolicy(c.Policy) // says what it changes
			}
			if err != nil {
				log.Error("configuration file not taken over", slog.Any("error", err))
				return
			}
			if needsRestart(cfg, c) {
				log.Warn("settings that changed wait for a restart: only policy, holding and speculating are taken over while the gateway runs")
			}
		})
		return nil
	})
	group.Go(func() error {
		select {
		case <-ctx.Done():
		case <-groupCtx.Done(): // something failed: take the rest down
			return errors.Join(server.Close(), adminServer.Close())
		}
		log.Info("draining", slog.Duration("limit", cfg.DrainWait))
		px.Drain()
		drain, cancel := context.WithTimeout(inner, cfg.DrainWait)
		defer cancel()
		var streams sync.WaitGroup
		streams.Go(func() { envoy.Shutdown(drain) })
		if err := server.Shutdown(drain); err != nil {
			log.Warn("requests in progress cut off", slog.Any("error", err))
			server.Close()
		}
		streams.Wait()
		adminServer.Close()
		stop()
		return nil
	})
	err = group.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// waitFor returns when ok is true, or after limit, or with ctx. It reports the first.
func waitFor(ctx context.Context, limit time.Duration, ok func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

const warmEvery = 10 * time.Millisecond

// needsRestart reports whether a new configuration differs from the running one in more than the policy.
func needsRestart(running, changed Config) bool {
	changed.Policy = running.Policy
	return !reflect.DeepEqual(running, changed)
}

// listen opens a listener; a port that is taken is said with its remedy.
func listen(addr, flag string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w: free that port or choose another with %s", err, flag)
	}
	return l, nil
}

// addressOf is "" without a listener.
func addressOf(l net.Listener) string {
	if l == nil {
		return ""
	}
	return l.Addr().String()
}

func serve(s *http.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// engines are the endpoints' engines, each once; ranks of one engine restart together.
func engines(endpoints []picker.EndpointStatus) []prompt.Engine {
	var out []prompt.Engine
	at := map[string]int{}
	for i := range endpoints {
		e := &endpoints[i]
		j, known := at[e.URL]
		if !known {
			j = len(out)
			at[e.URL], out = j, append(out, prompt.Engine{URL: e.URL, Models: e.Models})
		}
		out[j].Epoch = max(out[j].Epoch, e.Epoch)
	}
	return out
}

// probe asks an engine's /health.
func probe(ctx context.Context, client *http.Client, e picker.Endpoint) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+"/health", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("health of %s: status %d", e.ID, resp.StatusCode)
	}
	return nil
}
