package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/grapevine-llm/grapevine/test/engine/pool"
	"github.com/grapevine-llm/grapevine/test/engine/sched"
	"github.com/grapevine-llm/grapevine/test/engine/zmqpub"
)

// bubble runs one rank without sockets on synctest's clock.
func bubble(t *testing.T, cfg Config, f func(r *rank)) {
	synctest.Test(t, func(t *testing.T) {
		cfg.Events = zmqpub.Config{}
		cfg.fill()
		e := &Engine{cfg: cfg, started: time.Now()}
		e.metrics = newMetrics(e)
		r := newRank(e, 0)
		ctx, cancel := context.WithCancel(t.Context())
		go r.run(ctx)
		f(r)
		cancel()
	})
}

func newJob(first, n, out int) *job {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(first + i)
	}
	return &job{
		ready: make(chan struct{}, 1),
		req: &sched.Request{
			Table:  pool.NewTable(pool.NewHasher("", false), tokens, 16, pool.Extras{}),
			Output: make([]uint32, out),
			End:    sched.Length,
		},
	}
}

// TestSpeedup: the real clock runs at emulated time over speed-up, to within a
// wake-up, and errors do not add up.
func TestSpeedup(t *testing.T) {
	for _, speedup := range []float64{0.5, 1, 10, 100} {
		cfg := Default()
		cfg.Speedup, cfg.StreamInterval = speedup, 8
		bubble(t, cfg, func(r *rank) {
			start := time.Now()
			j := newJob(0, 32_000, 801)
			r.submit(j)
			<-j.ready
			slack := decodeSleep + time.Millisecond
			want := time.Duration(float64(cfg.Clock.Prefill(32_000, 0)) / speedup)
			if got := time.Since(start); got < want || got > want+slack {
				t.Errorf("x%g: first token after %v, want %v", speedup, got, want)
			}
			if j.firstWall < want || j.firstWall > want+slack {
				t.Errorf("x%g: real TTFT %v, want %v", speedup, j.firstWall, want)
			}
			tokens := len(j.take()[0].Tokens)
			var end time.Duration
			for tokens < 801 {
				<-j.ready
				for _, p := range j.take() {
					tokens += len(p.Tokens)
					end = p.At
				}
			}
			want = time.Duration(float64(end) / speedup)
			if got := time.Since(start); got < want || got > want+slack {
				t.Errorf("x%g: last token after %v, want %v", speedup, got, want)
			}
		})
	}
}

// TestWakeUps: many streams do not cost a wake-up for each event.
func TestWakeUps(t *testing.T) {
	cfg := Default()
	cfg.Speedup, cfg.StreamInterval = 10, 1
	bubble(t, cfg, func(r *rank) {
		var jobs []*job
		for i := range 30 {
			jobs = append(jobs, newJob(i*1000, 16, 500))
			r.submit(jobs[i])
		}
		time.Sleep(200 * time.Millisecond) // all prefills are over
		wakes, events := 0, 0
		for start := time.Now(); time.Since(start) < time.Second; {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			got := 0
			for _, j := range jobs {
				got += len(j.take())
			}
			events += got
			if got > 0 {
				wakes++
			}
		}
		if wakes > 200 || events < 5000 {
			t.Errorf("%d events in %d wake-ups", events, wakes)
		}
	})
}

// TestDefaultStreamInterval: events at least 20 ms apart in real time.
func TestDefaultStreamInterval(t *testing.T) {
	for speedup, want := range map[float64]int{0.5: 1, 1: 2, 10: 12, 100: 112} {
		cfg := Default()
		cfg.Speedup = speedup
		if cfg.fill(); cfg.StreamInterval != want {
			t.Errorf("x%g: %d tokens an event, want %d", speedup, cfg.StreamInterval, want)
		}
	}
}

// TestIdleRankSleeps: nothing to do is no timer.
func TestIdleRankSleeps(t *testing.T) {
	bubble(t, Default(), func(r *rank) {
		time.Sleep(24 * time.Hour)
		j := newJob(0, 160, 1)
		r.submit(j)
		start := time.Now()
		<-j.ready
		if got := time.Since(start); got > 40*time.Millisecond {
			t.Errorf("woke up late: %v", got)
		}
	})
}
