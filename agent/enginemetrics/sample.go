// Package enginemetrics turns what an engine says about itself over HTTP into
// load, configuration and speed.
//
// Its core is pure: [Parse] reads the Prometheus text of vLLM and SGLang,
// [Tracker] follows samples over time (restarts, idle) and learns from them
// what a prefill ([PrefillFit]) and a decode step ([DecodeFit]) cost. The shell
// around it is [Client], which asks the engine, and [Scraper], which asks
// again and again. It decides nothing about routing.
//
//	sample, err := enginemetrics.Parse(body)
//	change := tracker.Observe(now, sample)
//	cost := tracker.Prefill(0)
//	cost.Predict(2000, 30000) // 2,000 new tokens after 30,000 cached ones
//
// Names and units of vLLM's metrics are those of vllm/v1/metrics/loggers.py,
// versions 0.9 to 0.33; SGLang's those of its metrics collector, 2025 and 2026.
package enginemetrics

import "errors"

// Engine says whose metrics a sample holds.
type Engine string

// The engines known.
const (
	VLLM   Engine = "vllm"
	SGLang Engine = "sglang"
)

// ErrNoEngine is returned by Parse for a text without any engine's metric.
var ErrNoEngine = errors.New("no metric of vLLM or SGLang (is this the engine's port? SGLang needs --enable-metrics, vLLM must not have --disable-log-stats)")

// maxRank bounds the data parallel ranks taken from labels.
const maxRank = 1023

// Sample is one reading of an engine's metrics.
type Sample struct {
	Engine       Engine
	ProcessStart float64 // Unix seconds; 0 unknown (several API servers)
	Ranks        []Rank  // rising by Rank, at least one
	LoRA         LoRA
	Skipped      int // damaged lines among those of interest
}

// Rank is the part of one data parallel rank.
type Rank struct {
	Rank  int
	Model string // first served name

	Running, Waiting int     // requests
	KVUsage          float64 // share of the KV cache that running requests hold, 0 to 1; cached free blocks are not in it
	Sleep            Sleep
	Cache            CacheConfig
	Counters         Counters

	maxTokens int // of the KV cache, where it is given in tokens
}

// Sleep is how deep the engine sleeps. A sleeping vLLM still answers /health.
type Sleep uint8

// The depths of sleep.
const (
	Awake            Sleep = iota
	WeightsOffloaded       // level 1
	DiscardAll             // level 2
)

// CacheConfig is the geometry of the KV cache. Zero values are unknown.
type CacheConfig struct {
	BlockSize     int // tokens
	NumBlocks     int
	HashAlgo      string
	PrefixCaching bool
}

// Counters rise from the engine's start on. Those that the engine lacks are 0.
type Counters struct {
	PrefixQueryTokens, PrefixHitTokens uint64
	ExternalHitTokens                  uint64 // from a connector's tier
	PromptTokens, CachedPromptTokens   uint64 // counted at the first token
	GenerationTokens                   uint64
	Preemptions                        uint64

	TTFT       Sum // seconds, at the first token
	InterToken Sum // seconds between the tokens of a request

	// Counted together when a request finishes (vLLM).
	PrefillTime     Sum // seconds from being scheduled to the first token
	PrefillComputed Sum // prompt tokens that were not cached (from about 0.12 on)
	RequestPrompt   Sum // prompt tokens
}

// Sum is a histogram without its buckets.
type Sum struct {
	Sum   float64
	Count uint64
}

func (s Sum) sub(t Sum) Sum { return Sum{s.Sum - t.Sum, s.Count - t.Count} }

// LoRA is what vLLM says of its adapters.
type LoRA struct {
	Max              int // adapters in one batch; 0 unknown or none
	Running, Waiting []string
}

// Busy says whether any rank has a request.
func (s *Sample) Busy() bool {
	for i := range s.Ranks {
		if s.Ranks[i].Running+s.Ranks[i].Waiting > 0 {
			return true
		}
	}
	return false
}

// UsedTokens is about how many tokens running requests hold in the KV cache.
func (r *Rank) UsedTokens() float64 {
	return r.KVUsage * float64(r.Cache.NumBlocks) * float64(r.Cache.BlockSize)
}
