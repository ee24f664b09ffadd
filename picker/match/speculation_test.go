package match

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

func TestSpeculationExpires(t *testing.T) {
	const life = 10 * time.Second
	start := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		name         string
		marked       int // seconds
		until        int
		alive, gone  int // seconds at which it must be there, and must not
		rotateEvery  int
		rotateOffset int
	}{
		{name: "within the period", marked: 1, until: 5, alive: 5, gone: 20, rotateEvery: 1},
		{name: "into the next period", marked: 8, until: 17, alive: 17, gone: 30, rotateEvery: 1},
		{name: "later than a life is cut", marked: 8, until: 500, alive: 18, gone: 30, rotateEvery: 1},
		{name: "already over", marked: 8, until: 3, alive: 9, gone: 20, rotateEvery: 1},
		{name: "seldom rotated", marked: 8, until: 17, alive: 17, gone: 40, rotateEvery: 8},
		{name: "rotation misses periods", marked: 8, until: 17, alive: 17, gone: 60, rotateEvery: 25},
		{name: "rotation is late at the mark", marked: 12, until: 19, alive: 19, gone: 40, rotateEvery: 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewSpeculation(100, 64, life)
			s.Rotate(start)
			h := randomChain(newRand(1), 5)
			for now := 1; now <= 100; now++ {
				if now%c.rotateEvery == 0 {
					s.Rotate(at(now))
				}
				if now == c.marked {
					s.Mark(at(now), 7, h, 0, at(c.until))
				}
				if has := s.Has(7, h[4]); now >= c.marked && now <= c.alive && !has {
					t.Fatalf("gone after %d s, want it until %d", now, c.alive)
				} else if now >= c.gone && has {
					t.Fatalf("still there after %d s, want it gone at %d", now, c.gone)
				}
			}
			s.Rotate(at(1000))
			for g := range generations * 64 {
				for _, w := range s.matrix.Column(g, nil) {
					if w != 0 {
						t.Fatal("bits are left when all is over")
					}
				}
			}
		})
	}
}

func TestSpeculationSurvivesClockGoingBack(t *testing.T) {
	now := time.Unix(1000, 0)
	s, h := NewSpeculation(100, 64, time.Second), randomChain(newRand(1), 1)
	s.Rotate(now)
	s.Mark(now.Add(-time.Hour), 0, h, 0, now.Add(-time.Hour))
	s.Rotate(now.Add(-time.Hour))
	if !s.Has(0, h[0]) {
		t.Error("mark is lost")
	}
	s.Rotate(now.Add(2 * time.Second))
	if s.Has(0, h[0]) {
		t.Error("mark stays")
	}
}

func TestForget(t *testing.T) {
	now := time.Unix(1000, 0)
	s, h := NewSpeculation(100, 128, time.Second), randomChain(newRand(1), 10)
	for _, col := range []int{70, 71} {
		s.Mark(now, col, h, 0, now)
		s.Mark(now, col, h, 0, now.Add(time.Second))
	}
	s.Forget(70)
	for _, x := range h {
		if s.Has(70, x) || !s.Has(71, x) {
			t.Fatalf("column 70: %v, want false; column 71: %v, want true", s.Has(70, x), s.Has(71, x))
		}
	}
}

// TestSpeculationUnderConcurrency has pickers mark and match while the loop rotates and forgets.
func TestSpeculationUnderConcurrency(t *testing.T) {
	start := time.Unix(1000, 0)
	s := NewSpeculation(2000, 64, time.Hour)
	l := load[64]()
	kept := l.chains[0][:100]
	s.Mark(start, 0, kept, 0, start)
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			var x Matcher
			out, digest := make([]int32, 64), make([]int32, 64)
			for q, chain := range l.chains[:50] {
				s.Mark(start, 1+i, chain[:200], 0, start.Add(time.Duration(q)*time.Minute))
				x.MatchBoth(l.matrix, s, l.chains[0], nil, nil, out, digest)
				if out[0] < 100 {
					t.Errorf("matched %d blocks where 100 are marked", out[0])
					return
				}
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			s.Rotate(start.Add(time.Minute))
			s.Forget(60)
		}
	})
	wg.Wait()
}

// BenchmarkMark marks a new chain of 2,000 blocks, and the same again as a parallel call does.
func BenchmarkMark(b *testing.B) {
	for _, columns := range []int{64, 1000} {
		chains := make([][]blockhash.Hash, 2*columns)
		r := rand.New(rand.NewPCG(1, 1))
		for i := range chains {
			chains[i] = randomChain(r, 2000)
		}
		for _, again := range []bool{false, true} {
			b.Run(fmt.Sprintf("columns=%d/again=%v", columns, again), func(b *testing.B) {
				s := NewSpeculation(4096, columns, 10*time.Second)
				now := time.Unix(1000, 0)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if i%len(chains) == 0 && !again {
						now = now.Add(30 * time.Second) // empties it
						s.Rotate(now)
					}
					n := i % len(chains)
					if again {
						n = i / 10 % 2
					}
					s.Mark(now, n%columns, chains[n], 0, now)
				}
			})
		}
	}
}

// TestMarkAgain: what is marked in the same generation is not marked again, what is about to expire is.
func TestMarkAgain(t *testing.T) {
	life := time.Minute
	at := func(d time.Duration) time.Time { return time.Unix(0, 0).Add(d) }
	chain := []blockhash.Hash{1 << 40, 2 << 40, 3 << 40, 4 << 40}
	s := NewSpeculation(1000, 64, life)
	s.Rotate(at(0))
	s.Mark(at(0), 3, chain[:2], 0, at(life))
	s.Mark(at(time.Second), 3, chain, 2, at(life+time.Second))
	s.Rotate(at(life + time.Second))
	s.Mark(at(life+2*time.Second), 3, chain, 4, at(2*life+2*time.Second))
	s.Rotate(at(2*life + time.Second))
	for i, h := range chain {
		if !s.Has(3, h) {
			t.Errorf("block %d has expired, though it was marked again within a life", i)
		}
	}
}
