package sim

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Result is what one run came to. Times are seconds of the simulated clock.
type Result struct {
	Policy   string `json:"policy"`
	Pods     int    `json:"pods"`
	Gateways int    `json:"gateways"`
	Requests int    `json:"requests"`
	Unserved int    `json:"unserved"` // refused, or given up by their clients; they count in TTFT with the whole time-out
	Rejected int    `json:"rejected"` // of these, refused before the time-out
	// HitRatio is the share of prompt tokens that engines found in their caches.
	HitRatio float64   `json:"hit_ratio"`
	TTFT     Quantiles `json:"ttft_s"`
	// Late counts the requests that waited over 30 s for their first token.
	Late int `json:"late"`
	// LateOver30s is Late by the name that says what it counts.
	LateOver30s int `json:"late_over_30s"`
	// P99ByPrompt is the 99th percentile of TTFT in each quartile of the prompts' lengths, the shortest first.
	P99ByPrompt [4]float64 `json:"p99_by_prompt_quartile"`
	// Goodput is the share of requests with their first token within the client's time-out.
	Goodput     float64 `json:"goodput"`
	GPUSeconds  float64 `json:"gpu_seconds"`       // of prefill
	Preemptions int     `json:"preemptions"`       // of the chunked engine, which computes their prompts again
	WorkMaxMean float64 `json:"work_max_mean"`     // prefill time of the busiest pod over the mean
	JobsMaxMean float64 `json:"requests_max_mean"` // requests of the pod with most over the mean
	Seconds     float64 `json:"virtual_seconds"`   // until the last answer
	// MeanCompletion is when pods were done, on the mean: by it loads are measured.
	MeanCompletion float64 `json:"-"`
}

// Quantiles of a time in seconds.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

const late = 30 * time.Second

func (w *world) result() *Result {
	r := &Result{Policy: w.cfg.Policy, Pods: w.cfg.Pods, Gateways: w.cfg.Gateways, Requests: len(w.jobs)}
	var prompt, cached, served int
	ttft := make([]float64, 0, len(w.jobs)) // one entry per job
	done := make([]time.Duration, len(w.pods))
	for _, j := range w.jobs {
		wait := j.first - j.arrived
		if j.failed || j.first == 0 || wait > w.cfg.Timeout {
			r.Unserved++
			r.Late++
			if j.failed && j.ended-j.arrived < w.cfg.Timeout {
				r.Rejected++
			}
			ttft = append(ttft, w.cfg.Timeout.Seconds())
			if j.pod >= 0 {
				done[j.pod] = max(done[j.pod], j.ended) // the engine computed it for nobody
			}
			continue
		}
		prompt += j.prompt()
		cached += min(j.cached, j.prompt()-1)
		ttft = append(ttft, wait.Seconds())
		served++
		if wait > late {
			r.Late++
		}
		done[j.pod] = max(done[j.pod], j.ended)
	}
	r.LateOver30s = r.Late
	r.P99ByPrompt = w.byPrompt(ttft)
	r.TTFT = quantiles(ttft)
	if prompt > 0 {
		r.HitRatio = float64(cached) / float64(prompt)
	}
	r.Goodput = float64(served) / float64(len(w.jobs))
	var work, most, jobs float64
	for i, p := range w.pods {
		t := p.engine.prefillTime().Seconds()
		work, most = work+t, max(most, t)
		if e, ok := p.engine.(*chunked); ok {
			r.Preemptions += e.lost
		}
		jobs = max(jobs, float64(p.jobs))
		r.MeanCompletion += done[i].Seconds() / float64(len(w.pods))
		r.Seconds = max(r.Seconds, done[i].Seconds())
	}
	r.GPUSeconds = work
	if work > 0 {
		r.WorkMaxMean = most * float64(len(w.pods)) / work
	}
	r.JobsMaxMean = jobs * float64(len(w.pods)) / float64(len(w.jobs))
	return r
}

// byPrompt is the 99th percentile of TTFT in each quarter of the jobs in the order of their prompts' lengths.
func (w *world) byPrompt(ttft []float64) (p99 [4]float64) {
	order := make([]int, len(ttft))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(w.jobs[a].prompt(), w.jobs[b].prompt()) })
	for q := range p99 {
		part := order[q*len(order)/len(p99) : (q+1)*len(order)/len(p99)]
		if len(part) == 0 {
			continue
		}
		v := make([]float64, 0, len(part))
		for _, i := range part {
			v = append(v, ttft[i])
		}
		p99[q] = quantiles(v).P99
	}
	return p99
}

// quantiles sorts v.
func quantiles(v []float64) Quantiles {
	slices.Sort(v)
	var sum float64
	for _, x := range v {
		sum += x
	}
	at := func(q float64) float64 { return v[min(len(v)-1, int(math.Floor(q*float64(len(v)))))] }
	return Quantiles{Mean: sum / float64(len(v)), P50: at(0.5), P90: at(0.9), P99: at(0.99)}
}
