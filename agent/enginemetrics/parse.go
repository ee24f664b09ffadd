package enginemetrics

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Parse reads the text exposition format as vLLM's or SGLang's /metrics gives
// it. Lines that are of no interest are passed over unread (nine of ten are
// histogram buckets); damaged ones among the others are counted. The only error
// is ErrNoEngine, wrapped. Parse keeps nothing of b.
func Parse(b []byte) (*Sample, error) {
	p := parser{sample: &Sample{}}
	size := len(b)
	for len(b) > 0 {
		var line []byte
		if end := bytes.IndexByte(b, '\n'); end < 0 {
			line, b = b, nil
		} else {
			line, b = b[:end], b[end+1:]
		}
		p.line(line)
	}
	if len(p.sample.Ranks) == 0 { // nothing known, whatever else is there
		return nil, fmt.Errorf("parse %d bytes of metrics: %w", size, ErrNoEngine)
	}
	slices.SortFunc(p.sample.Ranks, func(a, b Rank) int { return a.Rank - b.Rank })
	for i := range p.sample.Ranks {
		p.sample.Ranks[i].finish()
	}
	return p.sample, nil
}

type parser struct {
	sample *Sample
	last   int     // index of the rank that the line before spoke of
	loraAt float64 // time of the LoRA report taken
}

// finish derives the block count where SGLang gives tokens alone.
func (r *Rank) finish() {
	if r.maxTokens > 0 && r.Cache.NumBlocks == 0 {
		r.Cache.BlockSize = max(1, r.Cache.BlockSize)
		r.Cache.NumBlocks = r.maxTokens / r.Cache.BlockSize
	}
}

func (p *parser) line(line []byte) {
	engine, name := SGLang, line
	switch {
	case bytes.HasPrefix(line, []byte("vllm:")):
		engine, name = VLLM, line[len("vllm:"):]
	case bytes.HasPrefix(line, []byte("sglang:")):
		name = line[len("sglang:"):]
	case bytes.HasPrefix(line, []byte("process_start_time_seconds ")):
		p.processStart(line[len("process_start_time_seconds "):])
		return
	default:
		return
	}
	end := bytes.IndexAny(name, "{ ")
	if end < 0 {
		p.sample.Skipped++
		return
	}
	rest := name[end:]
	name = name[:end]
	m := vllmMetric(name)
	if engine == SGLang {
		m = sglangMetric(name)
	}
	p.sample.Engine = engine
	if m == mNone {
		return
	}
	l, rest, ok := parseLabels(rest, m == mCacheConfig || m == mLoRA)
	if !ok || l.rank < 0 || l.rank > maxRank {
		p.sample.Skipped++
		return
	}
	if l.otherShard {
		return
	}
	value, ok := parseValue(rest)
	if !ok {
		p.sample.Skipped++
		return
	}
	if m == mLoRA { // has no engine label
		p.lora(&l, value)
		return
	}
	p.rank(l.rank, l.model).set(m, &l, value)
}

func (p *parser) processStart(text []byte) {
	if v, ok := parseValue(text); ok {
		p.sample.ProcessStart = v
	} else {
		p.sample.Skipped++
	}
}

// rank is the entry of that rank, made if need be. Lines of one rank mostly
// follow each other.
func (p *parser) rank(n int, model []byte) *Rank {
	ranks := p.sample.Ranks
	if p.last >= len(ranks) || ranks[p.last].Rank != n {
		p.last = slices.IndexFunc(ranks, func(r Rank) bool { return r.Rank == n })
		if p.last < 0 {
			p.last = len(ranks)
			p.sample.Ranks = append(ranks, Rank{Rank: n})
		}
	}
	r := &p.sample.Ranks[p.last]
	if r.Model == "" && len(model) > 0 {
		r.Model = unescape(model)
	}
	return r
}

// lora takes the newest report: each change leaves a series of its own, whose
// value is its time.
func (p *parser) lora(l *labels, at float64) {
	if at < p.loraAt {
		return
	}
	p.loraAt = at
	p.sample.LoRA = LoRA{Max: atoi(l.maxLoRA), Running: names(l.runningLoRA), Waiting: names(l.waitingLoRA)}
}

func names(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(unescape(b), ",")
}

// set takes one value. Counters are rounded: the text is a float.
func (r *Rank) set(m metric, l *labels, v float64) {
	c := &r.Counters
	n := uint64(v + 0.5)
	switch m {
	case mRunning:
		r.Running = int(min(v, math.MaxInt32))
	case mWaiting:
		r.Waiting = int(min(v, math.MaxInt32))
	case mKVUsage:
		r.KVUsage = min(v, 1)
	case mKVUsageOld:
		if r.KVUsage == 0 { // beside the new name in some versions
			r.KVUsage = min(v, 1)
		}
	case mSleep:
		if v == 1 {
			switch string(l.sleepState) {
			case "weights_offloaded":
				r.Sleep = WeightsOffloaded
			case "discard_all":
				r.Sleep = DiscardAll
			}
		}
	case mCacheConfig:
		r.Cache = CacheConfig{
			BlockSize:     atoi(l.blockSize),
			NumBlocks:     atoi(l.numBlocks),
			HashAlgo:      none(l.hashAlgo),
			PrefixCaching: string(l.prefixCaching) == "True",
		}
	case mPageSize:
		r.Cache.BlockSize = int(min(v, math.MaxInt32))
	case mNumPages:
		r.Cache.NumBlocks = int(min(v, math.MaxInt32))
	case mMaxTokens:
		r.maxTokens = int(min(v, math.MaxInt32))
	case mPrefixQueries:
		c.PrefixQueryTokens = max(c.PrefixQueryTokens, n)
	case mPrefixHits:
		c.PrefixHitTokens = max(c.PrefixHitTokens, n)
	case mExternalHits:
		c.ExternalHitTokens = n
	case mPrompt:
		c.PromptTokens = n
	case mPromptCached:
		c.CachedPromptTokens += n // SGLang has one series for each source
	case mGeneration:
		c.GenerationTokens = n
	case mPreemptions:
		c.Preemptions = n
	case mTTFTSum:
		c.TTFT.Sum = v
	case mTTFTCount:
		c.TTFT.Count = n
	case mInterSum:
		c.InterToken.Sum = v
	case mInterCount:
		c.InterToken.Count = n
	case mPrefillSum:
		c.PrefillTime.Sum = v
	case mPrefillCount:
		c.PrefillTime.Count = n
	case mComputedSum:
		c.PrefillComputed.Sum = v
	case mComputedCount:
		c.PrefillComputed.Count = n
	case mRequestPromptSum:
		c.RequestPrompt.Sum = v
	case mRequestPromptCount:
		c.RequestPrompt.Count = n
	}
}

// parseValue reads the value of a series, less a timestamp that may follow.
// What engines report is finite and not negative; the rest is damage.
func parseValue(b []byte) (float64, bool) {
	b = bytes.TrimSpace(b)
	if at := bytes.IndexByte(b, ' '); at >= 0 {
		b = b[:at]
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil || !(v >= 0) || v > 1e18 {
		return 0, false
	}
	return v, true
}

func atoi(b []byte) int {
	n, err := strconv.ParseInt(string(b), 10, 32)
	if err != nil || n < 0 { // "None", or absent
		return 0
	}
	return int(n)
}

func none(b []byte) string {
	if string(b) == "None" {
		return ""
	}
	return unescape(b)
}
