package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/grapevine-llm/grapevine/agent/blockset"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

// The kinds of faults; Config.Faults says what they are.
const (
	digestMissing = "digest-missing"
	digestStale   = "digest-stale"
	digestLying   = "digest-lying"
	podFailure    = "pod-failure"
)

const (
	failureLasts = 30 * time.Second     // of a pod that restarts, where nothing else is said
	refusedAfter = time.Millisecond     // until a gateway knows that a dead pod takes no connection
	maxMoves     = 2                    // of a job by its gateway, away from pods that failed
	longestFault = 365 * 24 * time.Hour // of what a fault may say
)

// fault is one of Config.Faults.
type fault struct {
	kind  string
	at    time.Duration // -1: not said
	lasts time.Duration // 0: not said
	pods  []int
}

func parseFault(s string) (fault, error) {
	kind, when, timed := strings.Cut(s, "@")
	f := fault{kind: kind, at: -1}
	if !slices.Contains([]string{digestMissing, digestStale, digestLying, podFailure}, kind) {
		return f, fmt.Errorf("fault %q: give %s, %s, %s or %s", s, digestMissing, digestStale, digestLying, podFailure)
	}
	if !timed {
		return f, nil
	}
	if kind == digestMissing {
		return f, fmt.Errorf("fault %q: no agent at all takes no time", s)
	}
	from, lasts, ends := strings.Cut(when, "+")
	var err error
	if f.at, err = time.ParseDuration(from); err != nil || f.at < 0 || f.at > longestFault {
		return f, fmt.Errorf("fault %q: give a time like 90s after the @", s)
	}
	if !ends {
		return f, nil
	}
	if kind == digestLying {
		return f, fmt.Errorf("fault %q: a lie has no end", s)
	}
	if f.lasts, err = time.ParseDuration(lasts); err != nil || f.lasts <= 0 || f.lasts > longestFault {
		return f, fmt.Errorf("fault %q: give a duration like 30s after the +", s)
	}
	return f, nil
}

// plan draws whom the faults befall, and lets pods die.
func (w *world) plan() {
	for i, s := range w.cfg.Faults {
		f, _ := parseFault(s) // checked
		if f.at < 0 && f.kind == digestLying {
			f.at = 0
		} else if f.at < 0 {
			f.at = w.cfg.span() / 2
		}
		f.pods = w.cfg.third(i)
		w.faults = append(w.faults, f)
		if f.kind != podFailure {
			continue
		}
		if f.lasts == 0 {
			f.lasts = failureLasts
		}
		for _, pod := range f.pods {
			w.at(f.at, func(now time.Duration) { w.kill(now, w.pods[pod], f.lasts) })
		}
	}
}

// third draws a third of the pods for the ith fault.
func (c *Config) third(i int) []int {
	all := make([]int, c.Pods)
	for pod := range all {
		all[pod] = pod
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Compare(c.draw("fault", i, a), c.draw("fault", i, b)) })
	return all[:(c.Pods+2)/3]
}

// hit reports whether a kind of fault befalls a pod, and the first such fault.
func (w *world) hit(kind string, pod int) (fault, bool) {
	for _, f := range w.faults {
		if f.kind == kind && slices.Contains(f.pods, pod) {
			return f, true
		}
	}
	return fault{}, false
}

// kill lets a pod die, and come back after a time. One that is dead is left alone.
func (w *world) kill(now time.Duration, p *pod, lasts time.Duration) {
	if p.down {
		return
	}
	jobs := p.engine.jobs()
	p.down, p.woken = true, never
	p.life++
	p.engine = p.engine.restarted(w.newCache(1))
	w.policy.died(now, p)
	for _, j := range jobs {
		w.lose(now, j, true)
	}
	w.at(now+lasts, func(now time.Duration) {
		p.down = false
		w.policy.back(now, p)
	})
}

// lose is a connection to a pod that broke, or could not be made. What has no answer yet is tried elsewhere by the gateway; a
// stream that has begun has failed.
func (w *world) lose(now time.Duration, j *job, reached bool) {
	if j.over {
		return // its client has left, and so has the gateway
	}
	w.policy.broken(now, j, reached)
	switch {
	case j.first > 0 && !j.whole:
		w.fail(now, j)
	case j.moves >= maxMoves:
		w.refuse(now, j)
	default:
		next := w.replace(j)
		next.moves++
		next.avoid |= 1 << j.pod
		w.watch(next)
		w.policy.arrive(now, next)
	}
}

// mend follows the faults of a pod's agent: when it falls silent, and when it lies.
func (f *fleet) mend(a *agent) {
	w := f.w
	for _, x := range w.faults {
		if x.kind != digestStale || !slices.Contains(x.pods, a.pod.index) {
			continue
		}
		w.at(x.at, func(time.Duration) { a.silent = true })
		if x.lasts > 0 {
			w.at(x.at+x.lasts, func(now time.Duration) {
				a.silent = false
				f.publish(now, a)
			})
		}
	}
	if x, ok := w.hit(digestLying, a.pod.index); ok {
		w.at(x.at, func(time.Duration) { f.lie(a) })
	}
}

// lie lets an agent claim what the next pod that has an agent stores, from now on.
func (f *fleet) lie(a *agent) {
	n := len(f.agents)
	for i := 1; i < n && a.claims == nil; i++ {
		a.claims = f.agents[(a.pod.index+i)%n]
	}
	if a.claims == nil || f.agents[a.pod.index] != a {
		return
	}
	a.claims.liars = append(a.claims.liars, a)
	for t := range wire.Tiers {
		for h := range a.claims.set.Visible(blockset.Tier(t)) {
			a.pub.Set(wire.Tier(t), h)
		}
	}
}

func (f *fleet) died(_ time.Duration, p *pod) {
	if a := f.agents[p.index]; a != nil {
		for _, l := range a.liars {
			for t := range wire.Tiers {
				for h := range a.set.Visible(blockset.Tier(t)) {
					l.pub.Clear(wire.Tier(t), h)
				}
			}
			l.claims = nil
		}
		if of := a.claims; of != nil {
			of.liars = slices.DeleteFunc(of.liars, func(l *agent) bool { return l == a })
		}
		f.agents[p.index] = nil
	}
}

func (f *fleet) back(now time.Duration, p *pod) {
	if _, missing := f.w.hit(digestMissing, p.index); missing {
		return
	}
	f.start(now, p)
}

// broken is told to the picker as the gateway's proxy does.
func (f *fleet) broken(now time.Duration, j *job, reached bool) {
	f.gateways[j.gateway].hangUp(now, j, reached, false)
}

// probe lets the picker ask the pods that it could not reach whether they are back.
func (g *gateway) probe(now time.Duration) {
	if g.picker.Probe(at(now)) {
		g.wake(now)
	}
	g.fleet.w.at(now+probeEvery, g.probe)
}

// avoided lists the endpoints that failed a job.
func avoided(j *job) []string {
	var ids []string
	for pod := range maxPods {
		if j.avoid&(1<<pod) != 0 {
			ids = append(ids, endpointID(pod))
		}
	}
	return ids
}
