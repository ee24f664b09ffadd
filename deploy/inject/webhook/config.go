package webhook

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/grapevine-llm/grapevine/deploy/inject"
)

// Log attribute keys of this package.
const (
	keyErr       = "err"
	keyRemedy    = "remedy"
	keySecret    = "secret"
	keyWebhook   = "webhook"
	keyAddr      = "addr"
	keyVersion   = "version"
	keyPod       = "pod"
	keyNamespace = "namespace"
	keyOutcome   = "outcome"
)

// Config configures an injector. Start from Default.
type Config struct {
	// Listen takes the API server's requests, by TLS.
	Listen string `json:"listen" help:"address for the API server, TLS"`
	// AdminListen has metrics and probes, without TLS or authentication.
	AdminListen string `json:"admin-listen" help:"address of /metrics, /livez and /readyz"`
	Disabled    bool   `json:"disabled" help:"inject nothing anywhere"`
	inject.Options

	CertSecret string        `json:"cert-secret" help:"namespace/name of the Secret with the injector's own certificates"`
	Service    string        `json:"service" help:"namespace/name of the Service before the injector"`
	CertNames  []string      `json:"cert-names" help:"further DNS names and addresses for the certificate"`
	Webhook    string        `json:"webhook" help:"name of the MutatingWebhookConfiguration that gets the CA"`
	CertLife   time.Duration `json:"cert-life" help:"life of the serving certificate; renewed when a third is left"`
	CALife     time.Duration `json:"ca-life" help:"life of the CA; renewed when a third is left"`
	CheckEvery time.Duration `json:"check-every" help:"time between looks at certificates, webhook configuration and own listener"`
	Kubeconfig string        `json:"kubeconfig" help:"file to reach the API server; empty: from within the cluster"`

	LogLevel  string `json:"log-level" help:"debug, info, warn or error"`
	LogFormat string `json:"log-format" help:"text or json"`

	// Logger gets state changes; nil discards them.
	Logger *slog.Logger `json:"-"`
}

// Default lacks only the agent's image.
func Default() Config {
	return Config{
		Listen: ":9443", AdminListen: ":8081", Options: inject.Default(),
		CertSecret: "grapevine/grapevine-injector-cert", Service: "grapevine/grapevine-injector", Webhook: "grapevine-injector",
		CertLife: 30 * 24 * time.Hour, CALife: 365 * 24 * time.Hour, CheckEvery: time.Minute,
		LogLevel: "info", LogFormat: "text",
	}
}

// Validate joins all faults, each with field, value and remedy.
func (c Config) Validate() error {
	faults := []error{c.Options.Validate()}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, a := range []struct{ name, value string }{{"listen", c.Listen}, {"admin-listen", c.AdminListen}} {
		if _, _, err := net.SplitHostPort(a.value); err != nil {
			fault("%s %q: give host:port", a.name, a.value)
		}
	}
	for _, n := range []struct{ name, value string }{{"cert-secret", c.CertSecret}, {"service", c.Service}} {
		if space, name, ok := strings.Cut(n.value, "/"); !ok || space == "" || name == "" {
			fault("%s %q: give namespace/name", n.name, n.value)
		}
	}
	if c.Webhook == "" {
		fault("webhook: empty; name the MutatingWebhookConfiguration")
	}
	if c.CertLife <= 0 || c.CALife < c.CertLife {
		fault("cert-life %v, ca-life %v: give positive times, the second not below the first", c.CertLife, c.CALife)
	}
	if c.CheckEvery <= 0 || c.CheckEvery > c.CertLife/6 {
		fault("check-every %v: give more than 0 and at most a sixth of cert-life", c.CheckEvery)
	}
	if _, err := c.level(); err != nil {
		fault("log-level %q: give debug, info, warn or error", c.LogLevel)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		fault("log-format %q: give text or json", c.LogFormat)
	}
	return errors.Join(faults...)
}

func (c Config) level() (slog.Level, error) {
	var l slog.Level
	err := l.UnmarshalText([]byte(c.LogLevel))
	return l, err
}

// NewLogger returns a logger with the configured level and format.
func (c Config) NewLogger(w io.Writer) *slog.Logger {
	level, err := c.level()
	if err != nil { // Validate names it
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// Connect makes the client of the API server.
func (c Config) Connect() (kubernetes.Interface, error) {
	var rc *rest.Config
	var err error
	if c.Kubeconfig == "" {
		rc, err = rest.InClusterConfig()
	} else {
		rc, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	rc.UserAgent, rc.Timeout = "grapevine-injector", checkTimeout
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	return client, nil
}

// certNames are the names the API server may call the injector by.
func (c Config) certNames() []string {
	space, name, _ := strings.Cut(c.Service, "/")
	return append([]string{name + "." + space + ".svc", name + "." + space + ".svc.cluster.local", name + "." + space}, c.CertNames...)
}
