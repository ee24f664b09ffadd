package picker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
	"github.com/grapevine-llm/grapevine/picker/hold"
	"github.com/grapevine-llm/grapevine/picker/score"
)

// Config configures a Picker. Start from Default. All durations are for engines at real speed; see Scaled.
type Config struct {
	// Pool names the set of interchangeable endpoints. Agents of other pools are not listened to.
	Pool string `json:"pool" help:"name of the pool of endpoints"`
	// Endpoints lists endpoints as URL or host:port; SetEndpoints replaces the list.
	Endpoints []string `json:"endpoints" help:"endpoints that are always in the pool, URL or host:port"`
	// Discover adds every endpoint that an agent of the pool announces. Off where a watcher knows the pool.
	Discover bool `json:"discover" help:"add the endpoints that agents announce to the pool; unless given, off where pools of Kubernetes are watched"`
	// BlockSize is assumed, in tokens, where no agent has said what the engine uses.
	BlockSize int `json:"block-size" help:"tokens of a KV block where no agent tells"`
	// SeedFile holds the pool's secret hash seed, a decimal or 0x number. Empty: the public default seed.
	SeedFile string `json:"seed-file" help:"file with the pool's secret seed of block hashes; empty: the common default"`

	Policy
	Hold        HoldConfig        `json:"hold"`
	Score       ScoreConfig       `json:"score"`
	Speculation SpeculationConfig `json:"speculation"`
	Gossip      GossipConfig      `json:"gossip"`
	Failure     FailureConfig     `json:"failure"`

	// Receipts is how many are kept; the oldest go first. 0 keeps none.
	Receipts int `json:"receipts" help:"decisions kept with their reasons"`
	// ReceiptCandidates bounds a kept receipt to the cheapest candidates; Explain gives all.
	ReceiptCandidates int `json:"receipt-candidates" help:"candidates kept per decision, cheapest first"`

	// Probe asks an endpoint that failed whether it answers again. Nil: it is tried again with a request when its
	// backoff is over. It is called from Run's goroutines and must respect its context.
	Probe func(context.Context, Endpoint) error `json:"-"`
	// Logger gets state changes; nil discards.
	Logger *slog.Logger `json:"-"`
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer `json:"-"`

	speed float64 // of the engines, set by Scaled; 0 means 1
}

// HoldConfig bounds how long requests wait at the gateway for an endpoint that is ready.
type HoldConfig struct {
	MaxAge        time.Duration `json:"max-age" help:"longest hold of a request; 0 binds at arrival"`
	ShedAfter     time.Duration `json:"shed-after" help:"longest hold of a sheddable request, which is then refused"`
	DoubtAfter    time.Duration `json:"doubt-after" help:"an endpoint that gets nothing for so long, while requests wait as long, is tried whatever waits in its engine"`
	DeadlineShare float64       `json:"deadline-share" help:"share of the time to a request's deadline that it may be held"`
	MaxRequests   int           `json:"max-requests" help:"requests held at once"`
	MaxBytes      int64         `json:"max-bytes" help:"bytes of requests held at once"`
	Patience      float64       `json:"patience" help:"extra cost accepted per time waited, at least; more where the fleet has little to do"`
	AgeCredit     float64       `json:"age-credit" help:"prefill that waiting makes up for in the order, per time waited"`
	AgeGrowth     time.Duration `json:"age-growth" help:"age at which the credit has doubled"`
	MaxScan       int           `json:"max-scan" help:"held requests looked at per opportunity"`
	MaxBound      int           `json:"max-bound" help:"requests bound to one endpoint whose prefill is not over, beyond which it takes none"`
	RetryAfter    time.Duration `json:"retry-after" help:"Retry-After of a refused request, before jitter"`
}

// ScoreConfig holds the weights of a price, and the speeds assumed where no agent has measured them.
type ScoreConfig struct {
	Spread            float64       `json:"spread" help:"weight of the prefill that a choice adds for others"`
	MinMatch          int           `json:"min-match" help:"blocks; a shorter match counts as none"`
	Displacement      float64       `json:"displacement" help:"weight of the prefill that evicted blocks will need again"`
	VictimTau         time.Duration `json:"victim-tau" help:"idle age at which an evicted block's recompute counts 1/e"`
	LowerTierPerToken time.Duration `json:"lower-tier-per-token" help:"time to load a token's KV from a lower tier"`
	Interference      float64       `json:"interference" help:"share of the slower decode that counts"`
	ReadyWithin       time.Duration `json:"ready-within" help:"an endpoint whose queue is over by then is ready: the time that a request takes from here to its engine"`
	MemoryWait        time.Duration `json:"memory-wait" help:"wait for KV memory where nothing better is known"`
	OutputTokens      int           `json:"output-tokens" help:"answer length assumed until answers were seen"`
	PrefillOverhead   time.Duration `json:"prefill-overhead" help:"prefill time of a request where unknown"`
	PrefillPerToken   time.Duration `json:"prefill-per-token" help:"prefill time of a token where unknown"`
	PrefillQuadratic  float64       `json:"prefill-quadratic" help:"prefill time of a token squared where unknown, in ns"`
}

// SpeculationConfig sizes the marks of requests just bound.
type SpeculationConfig struct {
	// Life is at least the longest predicted prefill and 2 s.
	Life   time.Duration `json:"life" help:"how long a bound request's blocks count as present without a report"`
	Blocks int           `json:"blocks" help:"blocks marked per endpoint in that time"`
	// Memory is the same where the marks are all that is known, since no agent reports or is heard.
	Memory       time.Duration `json:"memory" help:"how long a bound request's blocks count as present on an endpoint without a usable digest"`
	MemoryBlocks int           `json:"memory-blocks" help:"blocks marked per such endpoint in that time"`
}

// GossipConfig says how to reach the agents. Without Enabled the picker works from its own counts.
type GossipConfig struct {
	Enabled      bool          `json:"enabled" help:"listen to the agents"`
	NodeName     string        `json:"node-name" help:"name in the mesh, unique per process; empty: made from the host name"`
	Label        string        `json:"label" help:"the fleet's label; nodes with another are refused"`
	Bind         string        `json:"bind" help:"host:port for gossip, UDP and TCP; no host: all addresses; port 0: a free one"`
	Advertise    string        `json:"advertise" help:"host:port told to others; empty: the bound one"`
	Join         []string      `json:"join" help:"nodes to join, host or host:port"`
	KeyFile      string        `json:"key-file" help:"AES-256 keys, one a line, base64 or hex, first encrypts; empty: plain"`
	AllowedCIDRs []string      `json:"allowed-cidrs" help:"networks that nodes may live in; empty: all"`
	MaxStreams   int           `json:"max-streams" help:"digest streams kept, one per endpoint and rank"`
	StaleAfter   time.Duration `json:"stale-after" help:"silence after which an endpoint's digest is not used"`
}

// FailureConfig says how endpoints that fail, or are said to fail, are treated.
type FailureConfig struct {
	BackoffMin    time.Duration `json:"backoff-min" help:"first pause of an endpoint that could not be reached"`
	BackoffMax    time.Duration `json:"backoff-max" help:"longest such pause"`
	ProbeTimeout  time.Duration `json:"probe-timeout" help:"time an endpoint has to answer a probe"`
	VerdictShare  float64       `json:"verdict-share" help:"share of the pool that gossip may exclude (draining, asleep); at least one"`
	ExcludeFaulty bool          `json:"exclude-faulty" help:"also exclude endpoints whose GPU is reported faulty"`
}

// Default returns a working configuration without endpoints and gossip.
func Default() Config {
	h := hold.Default()
	s := score.Default()
	return Config{
		Pool: "default", Discover: true, BlockSize: 16,
		Policy: DefaultPolicy(),
		Hold: HoldConfig{
			MaxAge: h.MaxAge, ShedAfter: h.ShedAfter, DoubtAfter: h.DoubtAfter, DeadlineShare: h.DeadlineShare, MaxRequests: h.MaxRequests, MaxBytes: h.MaxBytes,
			Patience: h.Patience, AgeCredit: h.AgeCredit, AgeGrowth: h.AgeGrowth, MaxScan: h.MaxScan,
			MaxBound: 64, RetryAfter: time.Second,
		},
		Score: ScoreConfig{
			Spread: s.Spread, MinMatch: s.MinMatch, Displacement: s.Displacement, VictimTau: duration(s.VictimTau),
			LowerTierPerToken: duration(s.LowerTier), Interference: s.Interference,
			ReadyWithin: duration(s.ReadyWithin), MemoryWait: duration(s.MemoryWait), OutputTokens: 256,
			// Llama-3.1-70B FP8 on an H200: 3.7 s for 32,000 tokens.
			PrefillOverhead: 20 * time.Millisecond, PrefillPerToken: 88550 * time.Nanosecond, PrefillQuadratic: 0.83,
		},
		Speculation: SpeculationConfig{Life: 10 * time.Second, Blocks: 4096, Memory: time.Minute, MemoryBlocks: 8192},
		Gossip:      GossipConfig{Bind: ":7946", MaxStreams: 4096, StaleAfter: 700 * time.Millisecond},
		Failure: FailureConfig{
			BackoffMin: 250 * time.Millisecond, BackoffMax: 30 * time.Second, ProbeTimeout: 500 * time.Millisecond,
			VerdictShare: 0.2,
		},
		Receipts: 10000, ReceiptCandidates: 16,
	}
}

// Scaled returns the configuration for engines that run s times as fast as real ones, as emulated engines may: every
// time that has to do with the engines' speed is divided by s. Network times stay.
func (c Config) Scaled(s float64) Config {
	for _, d := range []*time.Duration{
		&c.Hold.MaxAge, &c.Hold.ShedAfter, &c.Hold.DoubtAfter, &c.Hold.AgeGrowth,
		&c.Score.VictimTau, &c.Score.LowerTierPerToken, &c.Score.MemoryWait,
		&c.Score.PrefillOverhead, &c.Score.PrefillPerToken,
		&c.Speculation.Life, &c.Speculation.Memory,
	} {
		*d = time.Duration(float64(*d) / s)
	}
	c.Score.PrefillQuadratic /= s
	c.speed = c.scale() * s
	return c
}

func (c *Config) scale() float64 {
	if c.speed == 0 {
		return 1
	}
	return c.speed
}

func (c *Config) params() score.Params {
	p := score.Default().Scaled(c.scale())
	p.Spread, p.MinMatch, p.Displacement, p.Interference = c.Score.Spread, c.Score.MinMatch, c.Score.Displacement, c.Score.Interference
	p.VictimTau, p.LowerTier = ms(c.Score.VictimTau), ms(c.Score.LowerTierPerToken)
	p.ReadyWithin, p.MemoryWait = ms(c.Score.ReadyWithin), ms(c.Score.MemoryWait)
	return p
}

func (c *ScoreConfig) prefill() score.Model {
	return score.Model{Overhead: ms(c.PrefillOverhead), PerToken: ms(c.PrefillPerToken), Quadratic: c.PrefillQuadratic / 1e6}
}

func (c *HoldConfig) queue() hold.Config {
	h := hold.Default()
	h.MaxAge, h.ShedAfter, h.DoubtAfter = c.MaxAge, c.ShedAfter, c.DoubtAfter
	h.DeadlineShare, h.MaxRequests, h.MaxBytes = c.DeadlineShare, c.MaxRequests, c.MaxBytes
	h.Patience, h.AgeCredit, h.AgeGrowth, h.MaxScan = c.Patience, c.AgeCredit, c.AgeGrowth, c.MaxScan
	return h
}

// hasher reads the seed file.
func (c *Config) hasher() (blockhash.Hasher, error) {
	if c.SeedFile == "" {
		return blockhash.NewHasher(blockhash.DefaultSeed), nil
	}
	b, err := os.ReadFile(c.SeedFile)
	if err != nil {
		return blockhash.Hasher{}, fmt.Errorf("read seed: %w", err)
	}
	seed, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64)
	if err != nil {
		// The content is a secret: it is not repeated in the error.
		return blockhash.Hasher{}, fmt.Errorf("read seed: %s does not hold one number of 64 bits", c.SeedFile)
	}
	return blockhash.NewHasher(seed), nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// duration is a day at most: longer than anything that an engine does, and sums of many don't overflow.
func duration(ms float64) time.Duration {
	return time.Duration(min(ms*float64(time.Millisecond), float64(24*time.Hour)))
}
