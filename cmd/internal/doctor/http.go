package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
)

const (
	maxAnswer = 32 << 20
	// clockNote and clockFault are differences of clocks worth a word.
	clockNote  = 2 * time.Second
	clockFault = 30 * time.Second
	maxNamed   = 5 // in one line
)

// answer is an HTTP answer.
type answer struct {
	status   int
	location string // of a redirection, which is not followed
	body     []byte
	asked    time.Time     // middle of the exchange, by this machine's clock
	clock    time.Duration // the other's clock less this one's, within a second
	timed    bool          // clock is known
}

// elsewhere says where an answer points to, "" if nowhere.
func (a *answer) elsewhere() string {
	if a.location == "" {
		return ""
	}
	return " (go to " + a.location + ")"
}

// get asks; the error says what is in the way, in words.
func (x *exam) get(ctx context.Context, url string) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, x.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: enginemetrics.TLS(url)},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // who is asked has to answer, as for agents and gateways
	}
	start := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return nil, inWords(err)
	}
	defer resp.Body.Close()
	took := time.Since(start)
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, inWords(err)
	}
	out := &answer{status: resp.StatusCode, location: resp.Header.Get("Location"), body: body, asked: start.Add(took / 2)}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		out.clock, out.timed = date.Add(time.Second/2).Sub(out.asked), true // the header has whole seconds
	}
	return out, nil
}

// answers reports whether a gateway or agent of ours has its admin listener there.
func (x *exam) answers(ctx context.Context, base, part string) bool {
	a, err := x.get(ctx, base+"/status")
	return err == nil && a.part() == part
}

// Parts that have a /status.
const (
	partGateway = "gateway"
	partAgent   = "agent"
)

// part says whose status an answer is, by what each has to tell; "" is nobody's.
func (a *answer) part() string {
	var told map[string]json.RawMessage
	if a.status != http.StatusOK || json.Unmarshal(a.body, &told) != nil || told["time"] == nil {
		return ""
	}
	for part, key := range map[string]string{partGateway: "endpoints", partAgent: "engines"} {
		if told[key] != nil {
			return part
		}
	}
	return ""
}

// status reads the /status of a part and judges the way to it; false ends the
// examination of s.
func (x *exam) status(ctx context.Context, s *subject, base, part, flag string, into any) bool {
	a, err := x.get(ctx, base+"/status")
	if err != nil {
		s.fail("reachable", "is it running, is this its "+flag+" address, and may this machine reach it? By default only its own host or pod may", "%v", err)
		return false
	}
	switch is := a.part(); {
	case is != "" && is != part:
		s.fail("reachable", "give it with --"+is, "wrong kind: the %s listens there, not the %s", is, part)
		return false
	case is == "", json.Unmarshal(a.body, into) != nil:
		s.fail("reachable", "give the address of "+flag+inPods(part), "something answers there with status %d%s, but not with a status of ours", a.status, a.elsewhere())
		return false
	}
	var told struct {
		Time time.Time `json:"time"`
	}
	if json.Unmarshal(a.body, &told) == nil && !told.Time.IsZero() {
		a.clock, a.timed = told.Time.Sub(a.asked), true
	}
	s.ok("reachable", "answers")
	s.clock(a)
	return true
}

// inPods says where a part has its status in Kubernetes.
func inPods(part string) string {
	if part == partAgent {
		return "; an agent that was injected into a pod has it at 9465, for `kubectl port-forward`"
	}
	return ""
}

func (s *subject) clock(a *answer) {
	const remedy = "let NTP (chrony, systemd-timesyncd) set the clock of that host and of this one: routing does not depend on it, but certificates, logs and recordings do"
	off := a.clock.Abs().Round(100 * time.Millisecond)
	text := fmt.Sprintf("%v behind this machine", off)
	if a.clock > 0 {
		text = fmt.Sprintf("%v ahead of this machine", off)
	}
	switch {
	case !a.timed:
		s.skip("clock", "its answer has no time")
	case a.clock.Abs() > clockFault:
		s.fail("clock", remedy, "%s", text)
	case a.clock.Abs() > clockNote:
		s.warn("clock", remedy, "%s", text)
	default:
		s.ok("clock", "within %v of this machine", clockNote)
	}
}

// inWords says what a failure of a connection means.
func inWords(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return fmt.Errorf("the name %s does not resolve (%s)", dns.Name, dns.Err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("connection refused: the host answers, and nobody listens on that port")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return errors.New("no route to that host")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return errors.New("no answer in time: the host is down or busy, or a firewall or NetworkPolicy drops what is sent")
	}
	return err
}

// some names at most a few of a list.
func some(names []string) string {
	if n := len(names) - maxNamed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), n)
	}
	return strings.Join(names, ", ")
}

// groups writes what is said, each with those who say it.
func groups(by map[string][]string) string {
	var out []string
	for _, what := range sortedKeys(by) {
		slices.Sort(by[what])
		out = append(out, fmt.Sprintf("%s (%s)", what, some(by[what])))
	}
	return strings.Join(out, ", ")
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
