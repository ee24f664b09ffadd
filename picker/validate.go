package picker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// fault is one thing wrong with a configuration.
type fault struct{ field, value, problem, remedy string }

func (f *fault) Error() string {
	return fmt.Sprintf("%s = %q %s; %s", f.field, f.value, f.problem, f.remedy)
}

// Field is the name as in a configuration file, outermost first, with dots.
func (f *fault) Field() string { return f.field }

// Value is the value that is wrong.
func (f *fault) Value() string { return f.value }

// Problem says what is wrong with the value.
func (f *fault) Problem() string { return f.problem }

// Remedy says what to do.
func (f *fault) Remedy() string { return f.remedy }

// Validate joins all faults of c. Each has the methods Field, Value, Problem and Remedy.
func (c Config) Validate() error {
	var faults []error
	add := func(bad bool, field string, value any, problem, remedy string) {
		if bad {
			faults = append(faults, &fault{field, fmt.Sprint(value), problem, remedy})
		}
	}
	positive := func(field string, d time.Duration) {
		add(d <= 0, field, d, "is not positive", "give a duration such as 500ms")
	}
	notNegative := func(field string, v float64) {
		add(!(v >= 0), field, v, "is negative", "give 0 or more")
	}
	share := func(field string, v float64) {
		add(!(v >= 0 && v <= 1), field, v, "is no share", "give a number from 0 to 1")
	}
	atLeast := func(field string, v, least int) {
		add(v < least, field, v, "is too small", fmt.Sprintf("give at least %d", least))
	}

	atMost := func(field string, v, most int) {
		add(v > most, field, v, "is too large", fmt.Sprintf("give at most %d", most))
	}

	for _, e := range c.Endpoints {
		_, _, err := parseEndpoint(e)
		add(err != nil, "endpoints", e, fmt.Sprint("is no endpoint: ", err), "give http://host:port or host:port")
	}
	atLeast("block-size", c.BlockSize, 1)
	if err := c.Policy.validate(); err != nil {
		faults = append(faults, err)
	}

	notNegative("hold.max-age", c.Hold.MaxAge.Seconds())
	notNegative("hold.shed-after", c.Hold.ShedAfter.Seconds())
	notNegative("hold.doubt-after", c.Hold.DoubtAfter.Seconds())
	share("hold.deadline-share", c.Hold.DeadlineShare)
	atLeast("hold.max-requests", c.Hold.MaxRequests, 0)
	notNegative("hold.max-bytes", float64(c.Hold.MaxBytes))
	notNegative("hold.patience", c.Hold.Patience)
	notNegative("hold.age-credit", c.Hold.AgeCredit)
	notNegative("hold.age-growth", c.Hold.AgeGrowth.Seconds())
	atLeast("hold.max-scan", c.Hold.MaxScan, 1)
	atLeast("hold.max-bound", c.Hold.MaxBound, 1)
	positive("hold.retry-after", c.Hold.RetryAfter)

	notNegative("score.spread", c.Score.Spread)
	notNegative("score.displacement", c.Score.Displacement)
	atLeast("score.min-match", c.Score.MinMatch, 0)
	positive("score.victim-tau", c.Score.VictimTau)
	notNegative("score.lower-tier-per-token", float64(c.Score.LowerTierPerToken))
	notNegative("score.interference", c.Score.Interference)
	notNegative("score.ready-within", c.Score.ReadyWithin.Seconds())
	positive("score.memory-wait", c.Score.MemoryWait)
	atLeast("score.output-tokens", c.Score.OutputTokens, 1)
	notNegative("score.prefill-overhead", c.Score.PrefillOverhead.Seconds())
	positive("score.prefill-per-token", c.Score.PrefillPerToken)
	notNegative("score.prefill-quadratic", c.Score.PrefillQuadratic)

	positive("speculation.life", c.Speculation.Life)
	positive("speculation.memory", c.Speculation.Memory)
	for name, blocks := range map[string]int{"speculation.blocks": c.Speculation.Blocks, "speculation.memory-blocks": c.Speculation.MemoryBlocks} {
		atLeast(name, blocks, 1)
		atMost(name, blocks, 1<<20) // half a GiB for 64 endpoints
	}

	if c.Gossip.Enabled {
		for _, a := range []struct{ field, addr string }{{"gossip.bind", c.Gossip.Bind}, {"gossip.advertise", c.Gossip.Advertise}} {
			_, _, err := splitGossip(a.addr)
			add(err != nil, a.field, a.addr, "is no address", "give host:port, e.g. 0.0.0.0:7946, an IPv6 address in brackets, e.g. [::]:7946")
		}
		atLeast("gossip.max-streams", c.Gossip.MaxStreams, 1)
		positive("gossip.stale-after", c.Gossip.StaleAfter)
	}
	positive("failure.backoff-min", c.Failure.BackoffMin)
	add(c.Failure.BackoffMax < c.Failure.BackoffMin, "failure.backoff-max", c.Failure.BackoffMax,
		"is shorter than failure.backoff-min", "give a longer one")
	positive("failure.probe-timeout", c.Failure.ProbeTimeout)
	share("failure.verdict-share", c.Failure.VerdictShare)
	atLeast("receipts", c.Receipts, 0)
	atMost("receipts", c.Receipts, 1_000_000) // about 1 GB with 16 candidates each
	atLeast("receipt-candidates", c.ReceiptCandidates, 1)
	return errors.Join(faults...)
}

// parseEndpoint splits "http://host:port/" or "host:port" into the address host:port and the URL without a path.
func parseEndpoint(s string) (address, link string, err error) {
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", "", errors.New("it can't be read as a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", "", fmt.Errorf("scheme %q", u.Scheme)
	case u.Hostname() == "":
		return "", "", errors.New("no host")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.User != nil:
		return "", "", errors.New("only scheme, host and port count")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	host := u.Hostname()
	if ip, err := netip.ParseAddr(host); err == nil { // IPv6 addresses have many forms
		host = ip.Unmap().String()
	}
	address = net.JoinHostPort(host, port)
	return address, u.Scheme + "://" + u.Host, nil
}
