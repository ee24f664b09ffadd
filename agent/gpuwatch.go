package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/grapevine-llm/grapevine/gossip/wire"
	"github.com/grapevine-llm/grapevine/gpu"
	"github.com/grapevine-llm/grapevine/gpu/nvml"
)

const gpuEvery = time.Second

// gpuWatch reads the pod's GPUs and judges them.
type gpuWatch struct {
	log    *slog.Logger
	reader gpu.Reader // nil: none

	mu      sync.Mutex // guards what follows
	monitor *gpu.Monitor
	verdict gpu.Verdict
	problem string // why there is no reader
}

func newGPUWatch(log *slog.Logger) *gpuWatch { return &gpuWatch{log: log, monitor: gpu.NewMonitor()} }

// run reads once a second and tells each verdict, until ctx ends. Without a
// driver it says so and ends at once.
func (w *gpuWatch) run(ctx context.Context, visible string, tell func(wire.Health)) {
	if w.reader == nil {
		r, err := nvml.Open(nvml.Config{Visible: visible})
		switch {
		case errors.Is(err, nvml.ErrNoDriver):
			w.setProblem(err)
			w.log.Info("no GPU to watch, routing works without", slog.Any(keyErr, err))
			return
		case err != nil:
			w.setProblem(err)
			w.log.Error("GPUs are not watched", slog.Any(keyErr, err))
			return
		}
		defer r.Close()
		w.reader = r
	}
	tick := time.NewTicker(gpuEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if stats, err := w.reader.Read(now); err == nil {
				tell(w.observe(now, stats))
			} else {
				w.log.Debug("read GPUs", slog.Any(keyErr, err))
			}
		}
	}
}

func (w *gpuWatch) observe(now time.Time, stats []gpu.Stats) wire.Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.verdict
	w.verdict = w.monitor.Observe(now, stats)
	v := &w.verdict
	if v.Fault != before.Fault {
		w.log.Error("GPU state changed", slog.String(keyState, v.Fault.String()), slog.String("gpu", v.FaultGPU))
	}
	return wire.Health{
		GPUs: uint8(min(v.GPUs, 255)), Fault: uint8(v.Fault), Slowdown: float32(v.PrefillScale),
		MemUsedBytes: v.MemUsedBytes, MemTotalBytes: v.MemTotalBytes, UtilPercent: uint8(min(max(v.UtilPercent, 0), 100)), Known: v.Known,
	}
}

// ready says that an engine has taken its memory.
func (w *gpuWatch) ready(blocks uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.monitor.Ready(time.Now(), blocks)
}

func (w *gpuWatch) setProblem(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problem = err.Error()
}

func (w *gpuWatch) status() GPUStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := GPUStatus{Count: w.verdict.GPUs, Problem: w.problem}
	if w.verdict.Fault != 0 {
		out.Fault = w.verdict.Fault.String() + " (" + w.verdict.FaultGPU + ")"
	}
	return out
}

func (w *gpuWatch) state() (gpu.Verdict, map[uint32]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.verdict, w.monitor.Xids()
}
