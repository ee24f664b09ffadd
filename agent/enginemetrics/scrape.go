package enginemetrics

import (
	"context"
	"time"
)

// ScraperConfig says how often to ask.
type ScraperConfig struct {
	// Busy is the interval while requests run or wait. Default 100 ms: fresh
	// load for the gateways.
	Busy time.Duration
	// Idle is the interval while nothing runs, and after an error. Default 1 s;
	// Wake ends it early.
	Idle time.Duration
	// MaxShare bounds the share of time that the engine is asked, and with it
	// the engine's own cost: after a scrape of 10 ms the next one waits 190 ms
	// at 0.05, the default. It never makes a pause longer than Idle: an engine
	// that answers after seconds was stalled, not at work on the answer, and
	// its load must not stay unknown for minutes.
	MaxShare float64
}

// Scrape is the outcome of one scrape.
type Scrape struct {
	At     time.Time // when the answer was complete
	Sample *Sample   // nil on error
	Err    error
	Bytes  int           // of the answer
	Took   time.Duration // asking until the last byte
	Parse  time.Duration // parsing, the scraper's own cost
}

// Scraper reads an engine's metrics again and again.
type Scraper struct {
	cfg    ScraperConfig
	client *Client
	wake   chan struct{}
}

// NewScraper returns a scraper that asks through client.
func NewScraper(client *Client, cfg ScraperConfig) *Scraper {
	if cfg.Busy <= 0 {
		cfg.Busy = 100 * time.Millisecond
	}
	if cfg.Idle <= 0 {
		cfg.Idle = time.Second
	}
	if cfg.MaxShare <= 0 {
		cfg.MaxShare = 0.05
	}
	return &Scraper{cfg: cfg, client: client, wake: make(chan struct{}, 1)}
}

// Wake says that the engine is at work (a KV event came): an idle scraper goes
// over to the busy interval at once. It never blocks and may be called by
// anyone at any time.
func (s *Scraper) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run scrapes until ctx ends and hands each outcome to handle, one after the
// other. It returns the cause of ctx's end.
func (s *Scraper) Run(ctx context.Context, handle func(Scrape)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var buf []byte
	var last time.Time
	var rest time.Duration // shortest pause after the scrape before
	idle := false
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.wake:
			if idle {
				idle = false
				timer.Reset(max(0, time.Until(last.Add(max(s.cfg.Busy, rest)))))
			}
			continue
		case <-timer.C:
		}
		var out Scrape
		out, buf = s.scrape(ctx, buf)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		last = out.At
		rest = min(time.Duration(float64(out.Took)*(1/s.cfg.MaxShare-1)), s.cfg.Idle)
		idle = out.Err != nil || !out.Sample.Busy()
		pause := s.cfg.Busy
		if idle {
			pause = s.cfg.Idle
		}
		timer.Reset(max(pause, rest))
		handle(out)
	}
}

func (s *Scraper) scrape(ctx context.Context, buf []byte) (Scrape, []byte) {
	begin := time.Now()
	buf, err := s.client.Metrics(ctx, buf)
	out := Scrape{At: time.Now(), Err: err, Bytes: len(buf)}
	out.Took = out.At.Sub(begin)
	if err == nil {
		out.Sample, out.Err = Parse(buf)
		out.Parse = time.Since(out.At)
	}
	return out, buf
}
