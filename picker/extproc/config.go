package extproc

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Config says where and how the endpoint picker is served.
type Config struct {
	// Listen are the listeners; none: no ext_proc.
	Listen       []string      `json:"listen" help:"addresses where Envoy asks for endpoints (endpoint picker protocol): host:port or unix:///path, each bound to one pool as namespace/name=address if wanted; empty: off"`
	HealthListen string        `json:"health-listen" help:"address for gRPC health checks alone, without TLS; they are answered at the other addresses too"`
	CertFile     string        `json:"cert-file" help:"TLS certificate of the ext_proc listeners, PEM, read again when it changes; empty: no TLS"`
	KeyFile      string        `json:"key-file" help:"key of the certificate, PEM"`
	Deadline     time.Duration `json:"deadline" help:"longest time for a pick, hold included; Envoy itself ends none in full duplex. Stay below its idle timeout"`
	Fallbacks    int           `json:"fallbacks" help:"further endpoints named with each pick, for Envoy to try in this order; it needs a retry policy for that"`
	BufferedHold time.Duration `json:"buffered-hold" help:"longest hold of a request whose body Envoy buffers; must be well below Envoy's message_timeout (200 ms by default) or its max_message_timeout. 0: such requests are not held"`
	TrustHeaders bool          `json:"trust-headers" help:"heed x-llm-d-inference-objective and x-llm-d-inference-fairness-id: only where clients can't set them"`
	Advise       bool          `json:"advise" help:"pick nothing: watch what another router does (Envoy's observability mode), compare it with what would have been picked, and let grapevine trace record it; clients are not served then (--listen \"\")"`
	Unobserved   time.Duration `json:"unobserved" help:"how long a request counts as in progress whose end Envoy does not tell, for want of an observing filter"`
}

// Default returns the configuration without listeners.
func Default() Config {
	return Config{Deadline: 4 * time.Minute, Fallbacks: 2, Unobserved: 30 * time.Second}
}

// Enabled reports whether anything is listened to.
func (c Config) Enabled() bool { return len(c.Listen) > 0 }

// maxFallbacks bounds a header of addresses.
const maxFallbacks = 16

// Validate joins all faults; each has the methods Field, Value, Problem and Remedy.
func (c Config) Validate() error {
	var errs []error
	fault := func(bad bool, field string, value any, problem, remedy string) {
		if bad {
			errs = append(errs, &fieldError{"ext-proc." + field, fmt.Sprint(value), problem, remedy})
		}
	}
	for _, s := range c.Listen {
		_, address := splitPool(s)
		err := checkAddress(address)
		fault(err != nil, "listen", s, fmt.Sprint(err), "give host:port, unix:///path, or namespace/name= before one")
	}
	if c.HealthListen != "" {
		err := checkAddress(c.HealthListen)
		fault(err != nil, "health-listen", c.HealthListen, fmt.Sprint(err), "give host:port or unix:///path")
	}
	fault((c.CertFile == "") != (c.KeyFile == ""), "cert-file", c.CertFile, "and ext-proc.key-file belong together", "give both or neither")
	fault(c.Deadline <= 0, "deadline", c.Deadline, "is not positive", "give a duration such as 4m")
	fault(c.Fallbacks < 0 || c.Fallbacks > maxFallbacks, "fallbacks", c.Fallbacks, "is out of range", fmt.Sprintf("give 0 to %d", maxFallbacks))
	fault(c.BufferedHold < 0, "buffered-hold", c.BufferedHold, "is negative", "give 0 or more")
	fault(c.Advise && !c.Enabled(), "advise", c.Advise, "has no listener", "give --ext-proc-listen, where Envoy sends what it sees")
	fault(c.Unobserved <= 0, "unobserved", c.Unobserved, "is not positive", "give a duration such as 30s")
	return errors.Join(errs...)
}

// splitPool splits pool=address; without a pool it is "".
func splitPool(s string) (pool, address string) {
	if pool, address, ok := strings.Cut(s, "="); ok {
		return pool, address
	}
	return "", s
}

func checkAddress(address string) error {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		if !strings.HasPrefix(path, "/") {
			return errors.New("is no absolute path")
		}
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err
}

// fieldError is one fault of a Config.
type fieldError struct{ field, value, problem, remedy string }

func (e *fieldError) Error() string {
	return fmt.Sprintf("%s = %q %s; %s", e.field, e.value, e.problem, e.remedy)
}
func (e *fieldError) Field() string   { return e.field }
func (e *fieldError) Value() string   { return e.value }
func (e *fieldError) Problem() string { return e.problem }
func (e *fieldError) Remedy() string  { return e.remedy }
