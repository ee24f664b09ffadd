package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
)

const (
	checkTimeout  = 10 * time.Second
	retryAfter    = 5 * time.Second // a failed check
	serverTimeout = 10 * time.Second
	drainFor      = 5 * time.Second // reviews in progress at the end
)

// Server is one injector process. Make it with New, then call Run once.
type Server struct {
	cfg     Config
	log     *slog.Logger
	keeper  *keeper
	metrics *metrics
	reg     *prometheus.Registry
	tls     net.Listener
	admin   net.Listener

	mu      sync.Mutex // guards what follows
	state   kept
	loaded  bool
	fault   error  // of the last check
	version string // of the API server, "" not known
	old     bool   // no native sidecars
}

// New checks the configuration and binds the sockets; it starts nothing.
func New(cfg Config, client kubernetes.Interface) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	space, name, _ := strings.Cut(cfg.CertSecret, "/")
	s := &Server{cfg: cfg, log: cfg.Logger, reg: prometheus.NewRegistry(), fault: errors.New("not checked yet")}
	s.keeper = &keeper{
		plan:   plan{names: cfg.certNames(), caLife: cfg.CALife, certLife: cfg.CertLife},
		client: client, namespace: space, name: name, webhook: cfg.Webhook, log: cfg.Logger,
	}
	s.metrics = newMetrics(s.reg)
	var err error
	if s.tls, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if s.admin, err = net.Listen("tcp", cfg.AdminListen); err != nil {
		return nil, errors.Join(fmt.Errorf("admin-listen: %w", err), s.tls.Close())
	}
	return s, nil
}

// Addr and AdminAddr are the listeners' addresses.
func (s *Server) Addr() string { return s.tls.Addr().String() }

// AdminAddr is the address of metrics and probes.
func (s *Server) AdminAddr() string { return s.admin.Addr().String() }

// Run serves until ctx ends, then lets reviews in progress end.
func (s *Server) Run(ctx context.Context) error {
	if s.cfg.Image == "" {
		s.log.Warn("no image of the agent is given, nothing is injected", slog.String(keyRemedy, "give --agent-image"))
	}
	if s.cfg.Disabled {
		s.log.Warn("injection is switched off by --disabled")
	}
	s.log.Info("injector started", slog.String(keyVersion, s.cfg.Version), slog.String(keyAddr, s.Addr()))
	hooks := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: serverTimeout, ReadTimeout: serverTimeout, WriteTimeout: serverTimeout, IdleTimeout: time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.certificate() }},
		ErrorLog:  slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	admin := &http.Server{Handler: s.adminHandler(), ReadHeaderTimeout: serverTimeout, ReadTimeout: serverTimeout, WriteTimeout: serverTimeout, IdleTimeout: time.Minute}
	g, inner := errgroup.WithContext(ctx)
	serve := func(srv *http.Server, what string, run func() error) {
		g.Go(func() error {
			if err := run(); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
		g.Go(func() error {
			<-inner.Done()
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainFor)
			defer cancel()
			if srv.Shutdown(late) != nil {
				_ = srv.Close()
			}
			return nil
		})
	}
	serve(hooks, "serve reviews", func() error { return hooks.ServeTLS(s.tls, "", "") })
	serve(admin, "serve metrics", func() error { return admin.Serve(s.admin) })
	g.Go(func() error { s.checkLoop(inner); return nil })
	return g.Wait()
}

func (s *Server) certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return nil, errors.New("no certificate yet")
	}
	c := s.state.serving
	return &c, nil
}

func (s *Server) checkLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		wait := s.cfg.CheckEvery
		if s.check(ctx, time.Now()) != nil {
			wait = min(wait, retryAfter)
		}
		timer.Reset(wait)
	}
}

// check looks at everything that the API server needs to reach the injector.
func (s *Server) check(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s.metrics.checks.Inc()
	s.learnVersion()
	state, err := s.keeper.check(ctx, now)
	s.mu.Lock()
	if state.serving.Leaf != nil {
		s.state, s.loaded = state, true
		s.metrics.expiry.WithLabelValues("serving").Set(float64(state.serving.Leaf.NotAfter.Unix()))
		s.metrics.expiry.WithLabelValues("ca").Set(float64(state.ca.Unix()))
	}
	loaded := s.loaded
	s.mu.Unlock()
	if loaded {
		err = errors.Join(err, s.knock(ctx))
	}
	if ctx.Err() != nil && err == nil {
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.metrics.checkFailure.Inc()
		s.metrics.ok.Set(0)
		if s.fault == nil || s.fault.Error() != err.Error() {
			s.log.Error("the API server cannot use the injector: pods are created without agents", slog.Any(keyErr, err))
		}
	} else {
		s.metrics.ok.Set(1)
		if s.fault != nil {
			s.log.Info("the API server can use the injector")
		}
	}
	s.fault = err
	return err
}

// knock asks the own listener as the API server would: by the service's name, and
// trusting the bundle alone.
func (s *Server) knock(ctx context.Context) error {
	s.mu.Lock()
	bundle := s.state.bundle
	s.mu.Unlock()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		return fmt.Errorf("own address: %w", err)
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	d := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: s.keeper.names[0], MinVersion: tls.VersionTLS12}}
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return fmt.Errorf("ask the own listener: %w", err)
	}
	return conn.Close()
}

// learnVersion asks the API server for its release: native sidecars are on by
// default from 1.29 (KEP-753).
func (s *Server) learnVersion() {
	info, err := s.keeper.client.Discovery().ServerVersion()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return // the next check asks again; what is known stays
	}
	digits := func(t string) int {
		n, _ := strconv.Atoi(strings.TrimRight(t, "+"))
		return n
	}
	before := s.version
	s.version, s.old = info.GitVersion, digits(info.Major) < 1 || digits(info.Major) == 1 && digits(info.Minor) < 29
	if s.old && s.version != before {
		s.log.Error("this cluster has no native sidecars, nothing is injected", slog.String(keyVersion, s.version), slog.String(keyRemedy, "update it to Kubernetes 1.29 or later"))
	}
}

// tooOld says why the cluster cannot run the agent, "" if it can.
func (s *Server) tooOld() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.version == "":
		return "the injector does not know yet whether the cluster has native sidecars"
	case s.old:
		return "Kubernetes " + s.version + " has no native sidecars, 1.29 or later is needed"
	}
	return ""
}

func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		fault := s.fault
		s.mu.Unlock()
		if fault != nil {
			http.Error(w, fault.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
