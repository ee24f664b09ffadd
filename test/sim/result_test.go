package sim

import (
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/test/trace"
)

func TestResult(t *testing.T) {
	cfg := Default()
	cfg.Timeout = time.Minute
	w := &world{cfg: &cfg, pods: []*pod{{engine: &chunked{lost: 3}}}}
	add := func(prompt int, wait, ended time.Duration, failed bool) {
		j := &job{index: len(w.jobs), request: &request{Request: &trace.Request{Prompt: prompt, Output: 1}}, arrived: time.Second, failed: failed, pod: -1}
		if j.ended = time.Second + ended; !failed {
			j.pod, j.first = 0, time.Second+wait
		}
		w.jobs = append(w.jobs, j)
	}
	add(800, 40*time.Second, time.Hour, false)
	add(100, time.Second, time.Hour, false)
	add(700, 0, time.Second, true)    // refused
	add(200, 0, time.Minute, true)    // given up
	add(300, 2*time.Minute, 0, false) // served when nobody waited any more
	add(400, 3*time.Second, 0, false) //
	add(500, 4*time.Second, 0, false) //
	add(600, 500*time.Millisecond, 0, false)
	r := w.result()
	if r.Requests != 8 || r.Unserved != 3 || r.Rejected != 1 || r.Late != 4 || r.LateOver30s != 4 || r.Preemptions != 3 || r.Goodput != 5.0/8 {
		t.Errorf("%+v", r)
	}
	// Quarters by length: 100 and 200, 300 and 400, 500 and 600, 700 and 800.
	if want := [4]float64{60, 60, 4, 60}; r.P99ByPrompt != want {
		t.Errorf("p99 by quartile %v, want %v", r.P99ByPrompt, want)
	}
}
