package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/recording"
)

// Pools tells which endpoints belong to a pool, namespace/name, by their addresses host:port; false: it is not known.
type Pools interface {
	Members(pool string) ([]string, bool)
}

// Objectives tells the priority of an InferenceObjective by its pool ("" where a listener serves all) and name; false: there is
// none.
type Objectives interface {
	Objective(pool, name string) (priority int, ok bool)
}

// Options are what a Server works with.
type Options struct {
	Picker         *picker.Picker
	Resolver       inbound.Resolver
	Headers        inbound.Headers
	MaxBodyBytes   int64               // of one request
	MaxBodiesBytes int64               // of all that wait for their pick
	MaxStreams     int                 // that pick, and as many that observe
	ClientTimeout  time.Duration       // for the body of a request that picks; from its headers to its end
	Pools          Pools               // nil: no listener may be bound to a pool
	Objectives     Objectives          // nil: no objective has a priority
	Recorder       *recording.Recorder // is told of requests that another router picks for; nil: nobody is
	Logger         *slog.Logger
	Registerer     prometheus.Registerer // nil: no metrics
}

// Server is the endpoint picker. Its methods may be called concurrently.
type Server struct {
	cfg     Config
	opt     Options
	log     *slog.Logger
	pick    func(context.Context, picker.Request) (picker.Decision, error)
	reader  inbound.Reader
	open    *open
	adviser *adviser // nil: this gateway picks
	metrics *metrics
	buffers inbound.Buffers
	health  *health.Server
	servers []*server

	ready    atomic.Bool
	streams  atomic.Int64 // that pick
	watchers atomic.Int64 // streams that observe
	bodies   atomic.Int64 // bytes
	disorder atomic.Int64 // when a stream out of order was last logged, Unix time in ns
	observed atomic.Int64 // when an observing stream last began, Unix time in ns

	draining context.Context // ends when no request is to be held any more
	drain    context.CancelFunc
	closing  context.Context // ends when all streams have to
	close    context.CancelFunc
}

// server is one listener's.
type server struct {
	*grpc.Server
	listener net.Listener
}

// windowBytes is how much of a stream Envoy may send before it is taken in. The default, 64 KiB, makes long prompts wait.
const windowBytes = 4 << 20

// New returns a Server. It starts nothing: see Listen and Run.
func New(cfg Config, opt Options) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, opt: opt, log: opt.Logger, open: newOpen(opt.Picker), health: health.NewServer(), pick: opt.Picker.Pick}
	s.reader = inbound.Reader{Headers: opt.Headers, Picker: opt.Picker, Resolver: opt.Resolver, Log: opt.Logger}
	s.metrics = newMetrics(opt.Registerer, s.open)
	if cfg.Advise {
		s.adviser = newAdviser(&s.reader, opt, time.Now())
	}
	s.draining, s.drain = context.WithCancel(context.Background())
	s.closing, s.close = context.WithCancel(context.Background())
	s.health.SetServingStatus("liveness", healthv1.HealthCheckResponse_SERVING)
	s.judge()
	return s, nil
}

// Listen opens the listeners. What is wrong with an address is said with its remedy.
func (s *Server) Listen() error {
	var options []grpc.ServerOption
	if s.cfg.CertFile != "" {
		c, err := newCertificate(s.cfg.CertFile, s.cfg.KeyFile, func(err error) { s.log.Error("certificate not taken over", slog.Any("error", err)) })
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get})))
	}
	for _, entry := range s.cfg.Listen {
		pool, address := splitPool(entry)
		if pool != "" && s.opt.Pools == nil {
			return fmt.Errorf("--ext-proc-listen %s: no pools are watched; give --kubernetes-inference-pools", entry)
		}
		l, err := listen(address)
		if err != nil {
			return fmt.Errorf("%w: free it or choose another with --ext-proc-listen", err)
		}
		g := s.grpc(options...)
		extprocv3.RegisterExternalProcessorServer(g, &service{Server: s, pool: pool})
		s.servers = append(s.servers, &server{g, l})
	}
	if s.cfg.HealthListen != "" {
		l, err := listen(s.cfg.HealthListen)
		if err != nil {
			return fmt.Errorf("%w: free it or choose another with --ext-proc-health-listen", err)
		}
		s.servers = append(s.servers, &server{s.grpc(), l})
	}
	return nil
}

func (s *Server) grpc(options ...grpc.ServerOption) *grpc.Server {
	pool := newPool()
	g := grpc.NewServer(append(options,
		grpc.ForceServerCodecV2(codec{pool}), experimental.BufferPool(pool),
		grpc.MaxRecvMsgSize(int(s.opt.MaxBodyBytes)+1<<20),
		grpc.InitialWindowSize(windowBytes), grpc.InitialConnWindowSize(4*windowBytes),
		grpc.ReadBufferSize(128<<10), grpc.WriteBufferSize(128<<10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}), // a node that has gone
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)...)
	healthv1.RegisterHealthServer(g, s.health)
	return g
}

// Addrs returns the addresses of the listeners in the order of the configuration, the one for health checks last.
func (s *Server) Addrs() []net.Addr {
	var out []net.Addr
	for _, l := range s.servers {
		out = append(out, l.listener.Addr())
	}
	return out
}

// judgeEvery is how often readiness is looked at and forgotten decisions end.
const judgeEvery = 200 * time.Millisecond

// Run serves until ctx ends; streams are cut then. See Shutdown.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range s.servers {
		group.Go(func() error {
			if err := l.Serve(l.listener); !errors.Is(err, grpc.ErrServerStopped) { // before it began
				return err
			}
			return nil
		})
	}
	if s.adviser != nil {
		for range adviseWorkers {
			group.Go(func() error { s.adviser.work(ctx, s.contain); return nil })
		}
	}
	group.Go(func() error {
		defer s.stop()
		tick := time.NewTicker(judgeEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case now := <-tick.C:
				s.judge()
				s.open.sweep(now)
			}
		}
	})
	return group.Wait()
}

func (s *Server) stop() {
	s.close()
	for _, l := range s.servers {
		l.Stop()
	}
}

// SetReady says whether the pool is known and warm enough. Health checks say so, and that there is an endpoint at all: a gateway
// that knows none should not be asked.
func (s *Server) SetReady(on bool) {
	s.ready.Store(on)
	s.judge()
}

// judge sets what health checks say.
func (s *Server) judge() {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if s.ready.Load() && s.draining.Err() == nil && (s.adviser != nil || len(s.opt.Picker.BlockSizes()) > 0) {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", "readiness", extprocv3.ExternalProcessor_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(name, status)
	}
}

// Drain makes health checks fail and binds all held requests. Streams go on, and new ones are served; those that owe Envoy
// nothing more end.
func (s *Server) Drain() {
	s.drain()
	s.judge()
	s.opt.Picker.Drain()
}

const (
	// lameDuck is how long new streams are served after Drain, for Envoy to notice: its health checks have a second between them
	// as a rule, and two must fail.
	lameDuck = 3 * time.Second
	// lastWords is how long streams have to end once they must.
	lastWords = time.Second
)

// Shutdown drains and returns when all streams have ended. When ctx ends, requests that wait for their pick are answered 503, and
// responses that pass through here break off.
func (s *Server) Shutdown(ctx context.Context) {
	s.Drain()
	patience := lameDuck
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/4)
	}
	if len(s.cfg.Listen) > 0 && s.streams.Load()+s.watchers.Load()+s.observed.Load() > 0 {
		select {
		case <-time.After(patience):
		case <-ctx.Done():
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var group errgroup.Group
		for _, l := range s.servers {
			group.Go(func() error { l.GracefulStop(); return nil })
		}
		_ = group.Wait()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		s.log.Warn("streams of Envoy cut off", slog.Int64("picking", s.streams.Load()), slog.Int64("observing", s.watchers.Load()))
		s.close()
		select {
		case <-ended:
		case <-time.After(lastWords):
		}
	}
	s.stop()
	<-ended
}
