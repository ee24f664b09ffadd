package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/grapevine-llm/grapevine/test/engine/sched"
	"github.com/grapevine-llm/grapevine/test/trace"
)

// Engine names a model of a pod.
type Engine string

// The engine models.
const (
	Single  Engine = "single"  // one prefill at a time
	Chunked Engine = "chunked" // prefill in chunks beside decodes
)

// Arrivals say when a call of a session comes.
type Arrivals string

// The ways to arrive.
const (
	Open   Arrivals = "open"   // when the trace says, whatever became of the call before
	Causal Arrivals = "causal" // a think time after the end of the session's call before
)

// Config of one run.
type Config struct {
	Trace    *trace.Trace
	Policy   string // one of Policies
	Pods     int
	Gateways int
	Engine   Engine
	Arrivals Arrivals
	// Rate multiplies the trace's arrival rate; think times stay. Burst lets all requests come at once instead.
	Rate  float64
	Burst bool
	// PodTokens is the size of a pod's KV cache.
	PodTokens int
	// StateDelay is how old what a gateway knows of a pod is when it comes.
	StateDelay time.Duration
	// Timeout is how long a client waits for the first token. Then it leaves: an engine forgets what still waits in its queue,
	// and stops what it has begun at the end of the prefill (single) or of a step (chunked).
	Timeout time.Duration
	Seed    uint64 // of all that is drawn

	// Loss is the share, 0 to 0.9, of gossip packets that never come, in both directions.
	Loss float64
	// NonStreamed is the share, 0 to 1, of requests that are answered in one piece. Their gateway sees no first token, only
	// the end; the time to the first token is still the engine's. Which ones depends on the seed alone.
	NonStreamed float64
	// Retries, 0 to 10, is how often a client tries again that was refused or has waited for Timeout, as OpenAI's SDKs do,
	// there twice by default: after half a second, doubled each time up to 8 s, less up to a quarter. Times to the first token
	// count from the first try. Streams that break are not tried again.
	Retries int
	// Speeds are those of pods' prefill and decode, 0.01 to 100 times the model's. The list is gone through again and again;
	// empty: all 1. Agents report costs as they are.
	Speeds []float64
	// WrongEstimates is x, 0 to 10: what is believed of a pod's prefill is wrong by a factor between 1/(1+x) and 1+x, the
	// pod's own and always the same. Agents report it, and peers that go by times go by it.
	WrongEstimates float64
	// Faults are written kind[@time[+duration]], times as in Go: digest-stale@10s+5s. Each befalls a third of the pods, at least
	// one, drawn for it by the seed.
	//
	//	digest-missing  there is no agent; takes no time
	//	digest-stale    the agent falls silent, for good if no duration is given
	//	digest-lying    the digest also claims what a neighbour stores; takes no duration
	//	pod-failure     the pod dies with all that is in it, and comes back empty, after 30 s if no duration is given
	//
	// Without a time a fault comes half-way through the arrivals; digest-lying from the beginning. Digests are ours: peers
	// keep their exact index, and they know at once which pods are dead.
	Faults []string
	// HostTokens is the size of a second cache under each pod's KV cache, in host memory, that takes in what is evicted there;
	// 0: none. HostRate is how many tokens a second are loaded from it.
	HostTokens int
	HostRate   float64
	// NoisyFlow adds a second sender of ten times as many requests of 256 tokens with answers of 32, spread evenly by chance
	// over the trace's time. Results are of the trace's own requests.
	NoisyFlow bool
}

// Default is a fleet of eight pods, Llama-3.1-70B in FP8 on one H200 each. Its KV takes 320 KiB a token: a host gives back
// 167,000 a second over PCIe 5.0 x16 at 55 of its 63 GB/s.
func Default() Config {
	return Config{
		Pods: 8, Gateways: 1, Engine: Single, Arrivals: Open, Rate: 1, PodTokens: 372 * 512,
		StateDelay: 50 * time.Millisecond, Timeout: 10 * time.Minute, HostRate: 1e6 / 6,
	}
}

// Validate joins all faults.
func (c *Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	within := func(v, low, high float64) bool { return v >= low && v <= high }
	check(c.Trace != nil && len(c.Trace.Requests) > 0, "no trace")
	check(slices.Contains(Policies(), c.Policy), "policy %q: give one of %s", c.Policy, strings.Join(Policies(), ", "))
	check(c.Pods >= 1 && c.Pods <= maxPods, "pods %d: give 1 to %d", c.Pods, maxPods)
	check(c.Gateways >= 1, "gateways %d: give 1 or more", c.Gateways)
	check(c.Engine == Single || c.Engine == Chunked, "engine %q: give %s or %s", c.Engine, Single, Chunked)
	check(c.Arrivals == Open || c.Arrivals == Causal, "arrivals %q: give %s or %s", c.Arrivals, Open, Causal)
	check(c.Policy != sharedCache || c.Engine != Chunked, "policy %s: it is a bound for the %s engine only", sharedCache, Single)
	check(!(c.Rate > 1e9) && c.PodTokens <= maxTokens, "rate %g, %d tokens of KV cache a pod: give less", c.Rate, c.PodTokens)
	check(c.Rate > 0, "rate %g: give a number above 0", c.Rate)
	check(c.StateDelay >= 0 && c.Timeout > 0, "state delay %v, timeout %v: give 0 or more, and more than 0", c.StateDelay, c.Timeout)
	check(within(c.Loss, 0, 0.9), "loss %g: give 0 to 0.9", c.Loss)
	check(within(c.NonStreamed, 0, 1), "non-streamed %g: give 0 to 1", c.NonStreamed)
	check(c.Retries >= 0 && c.Retries <= 10, "retries %d: give 0 to 10", c.Retries)
	check(len(c.Speeds) <= maxPods, "%d speeds: give at most %d", len(c.Speeds), maxPods)
	for _, s := range c.Speeds {
		check(within(s, 0.01, 100), "speed %g: give 0.01 to 100", s)
	}
	check(within(c.WrongEstimates, 0, 10), "wrong estimates %g: give 0 to 10", c.WrongEstimates)
	check(len(c.Faults) <= maxPods, "%d faults: give at most %d", len(c.Faults), maxPods)
	for _, s := range c.Faults {
		f, err := parseFault(s)
		check(err == nil, "%w", err)
		check(f.kind != podFailure || c.Policy != sharedCache, "policy %s: its one cache dies with no pod", sharedCache)
	}
	check(c.HostTokens >= 0 && c.HostTokens <= maxTokens, "%d tokens in host memory a pod: give 0 to %d", c.HostTokens, maxTokens)
	check(c.HostTokens <= 0 || within(c.HostRate, 1, 1e12), "%g tokens a second from host memory: give 1 to 1e12", c.HostRate)
	if c.Trace != nil {
		check(c.Trace.BlockTokens >= 1 && c.Trace.BlockTokens <= trace.MaxBlockTokens, "blocks of %d tokens: give 1 to %d", c.Trace.BlockTokens, trace.MaxBlockTokens)
		check(c.PodTokens/2 >= c.Trace.BlockTokens, "%d tokens of KV cache a pod: give at least two blocks", c.PodTokens)
		check(c.HostTokens == 0 || c.HostTokens >= c.Trace.BlockTokens, "%d tokens in host memory a pod: give at least a block", c.HostTokens)
	}
	return errors.Join(errs...)
}

// maxTokens bounds a pod's cache.
const maxTokens = 1 << 30

// maxPods is what the peers' index counts in one word.
const maxPods = 64

// draw returns a number in [0,1) that depends on the seed, on what it is for and on two indices, and on nothing else: every
// policy is dealt the same.
func (c *Config) draw(what string, i, k int) float64 {
	var b [24]byte
	binary.LittleEndian.PutUint64(b[:], c.Seed)
	binary.LittleEndian.PutUint64(b[8:], uint64(i))
	binary.LittleEndian.PutUint64(b[16:], uint64(k))
	return float64(xxh3.HashSeed(b[:], xxh3.HashString(what))>>11) / (1 << 53)
}

// clock is that of a pod.
func (c *Config) clock(pod int) sched.Clock {
	k := sched.H200()
	if len(c.Speeds) > 0 {
		k = slower(k, 1/c.Speeds[pod%len(c.Speeds)])
		k.Step = time.Duration(float64(k.Step) / c.Speeds[pod%len(c.Speeds)])
		k.PerKV /= c.Speeds[pod%len(c.Speeds)]
	}
	return k
}

// slower is a clock whose prefills take f times as long.
func slower(k sched.Clock, f float64) sched.Clock {
	k.Overhead = time.Duration(f * float64(k.Overhead))
	k.PerToken *= f
	k.Quadratic *= f
	return k
}
