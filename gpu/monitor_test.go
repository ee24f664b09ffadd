package gpu_test

import (
	"math"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/gpu"
	"github.com/grapevine-llm/grapevine/gpu/gputest"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// play reads the steps a second apart and returns the last verdict.
func play(m *gpu.Monitor, now *time.Time, steps ...[]gpu.Stats) gpu.Verdict {
	var v gpu.Verdict
	for _, s := range steps {
		*now = now.Add(time.Second)
		v = m.Observe(*now, s)
	}
	return v
}

// with is two healthy GPUs, the second one changed.
func with(change func(*gpu.Stats)) []gpu.Stats {
	s := gputest.Healthy(2)
	change(&s[1])
	return s
}

func xids(codes ...uint32) []gpu.Stats { return with(func(s *gpu.Stats) { s.Xids = codes }) }

func TestMonitorFault(t *testing.T) {
	ok := gputest.Healthy(2)
	lost := with(func(s *gpu.Stats) { s.Lost = true })
	ecc := func(n uint64) []gpu.Stats { return with(func(s *gpu.Stats) { s.ECCUncorrectedVolatile = n }) }
	tests := []struct {
		name  string
		steps [][]gpu.Stats
		want  gpu.Fault
	}{
		{"healthy", [][]gpu.Stats{ok, ok}, gpu.FaultNone},
		{"lost once", [][]gpu.Stats{ok, lost}, gpu.FaultNone},
		{"lost twice", [][]gpu.Stats{ok, lost, lost}, gpu.FaultLost},
		{"lost from the start", [][]gpu.Stats{lost, lost}, gpu.FaultLost},
		{"lost and back", [][]gpu.Stats{ok, lost, lost, ok}, gpu.FaultNone},
		{"old memory errors", [][]gpu.Stats{ecc(3), ecc(3), ecc(3)}, gpu.FaultNone},
		{"one wild reading", [][]gpu.Stats{ecc(3), ecc(9), ecc(3)}, gpu.FaultNone},
		{"memory errors rise", [][]gpu.Stats{ecc(3), ecc(4), ecc(4)}, gpu.FaultECC},
		{"driver loaded anew", [][]gpu.Stats{ecc(3), ecc(0), ecc(0)}, gpu.FaultNone},
		{"then rises again", [][]gpu.Stats{ecc(3), ecc(0), ecc(1), ecc(1)}, gpu.FaultECC},
		{"application errors", [][]gpu.Stats{xids(13, 31, 43, 45, 68, 109), xids(13, 31, 13)}, gpu.FaultNone},
		{"hardware error once", [][]gpu.Stats{xids(48), ok}, gpu.FaultNone},
		{"hardware error twice", [][]gpu.Stats{xids(48), ok, xids(94)}, gpu.FaultXid},
		{"remapping that worked", [][]gpu.Stats{xids(63), xids(63), xids(64)}, gpu.FaultNone},
		{"remapping that failed", [][]gpu.Stats{with(func(s *gpu.Stats) { s.Xids, s.RemapFailed = []uint32{64, 64}, true })}, gpu.FaultXid},
		{"link error that healed", [][]gpu.Stats{xids(74, 74)}, gpu.FaultNone},
		{"link error that stays", [][]gpu.Stats{with(func(s *gpu.Stats) { s.Xids, s.LinkLost = []uint32{74, 74}, true })}, gpu.FaultXid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := start
			v := play(gpu.NewMonitor(), &now, tt.steps...)
			if v.Fault != tt.want {
				t.Errorf("got fault %v, want %v", v.Fault, tt.want)
			}
			if v.Fault != gpu.FaultNone && v.FaultGPU != "GPU-b" {
				t.Errorf("got fault at %q, want GPU-b", v.FaultGPU)
			}
		})
	}
}

func TestMonitorCountsXids(t *testing.T) {
	m, now := gpu.NewMonitor(), start
	play(m, &now, xids(13, 13, 31))
	for code := range uint32(200) {
		play(m, &now, xids(1000+code))
	}
	got := m.Xids()
	if got[13] != 2 || got[31] != 1 || got[0] == 0 || len(got) > 65 {
		t.Errorf("got %d codes, 13: %d, 31: %d, others: %d", len(got), got[13], got[31], got[0])
	}
}

func TestMonitorSlowdown(t *testing.T) {
	at := func(throttle gpu.Throttle, util int, mhz uint32) []gpu.Stats {
		return with(func(s *gpu.Stats) { s.Throttle, s.UtilPercent, s.ClockMHz = throttle, util, mhz })
	}
	tests := []struct {
		name   string
		before []gpu.Stats
		during []gpu.Stats
		want   float64 // once smoothed
	}{
		{"software power cap is normal", at(0, 90, 1980), at(gpu.SWPower, 90, 1400), 1},
		{"thermal", at(0, 90, 1980), at(gpu.SWThermal, 90, 990), 0.5},
		{"thermal, idle", at(0, 90, 1980), at(gpu.HWThermal, 5, 345), 1},
		{"against the clock under the power cap", at(gpu.SWPower, 90, 1500), at(gpu.HWThermal, 90, 1200), 0.8},
		{"against the maximum if never seen busy", at(0, 5, 345), at(gpu.HWThermal, 90, 990), 0.5},
		{"clock unknown, hardware", at(0, 90, 0), with(func(s *gpu.Stats) { s.ClockMHz, s.Throttle = 0, gpu.HWSlowdown }), 0.5},
		{"utilisation unknown", at(0, -1, 1980), at(gpu.HWPowerBrake, -1, 990), 0.5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, now := gpu.NewMonitor(), start
			for range 60 {
				play(m, &now, tt.before)
			}
			first := play(m, &now, tt.during)
			if tt.want < 1 && (first.Slowdown > 0.98 || first.Slowdown < tt.want+0.05) {
				t.Errorf("after one reading %.2f: not smoothed", first.Slowdown)
			}
			var v gpu.Verdict
			for range 29 {
				v = play(m, &now, tt.during)
			}
			if math.Abs(v.Slowdown-tt.want) > 0.02 {
				t.Errorf("slowdown %.3f, want %.2f", v.Slowdown, tt.want)
			}
			if tt.want < 1 && v.PrefillScale > 0.9 {
				t.Errorf("scale %.2f after 30 s: faded too soon", v.PrefillScale)
			}
			for range 300 {
				v = play(m, &now, tt.during)
			}
			if v.PrefillScale < 0.98 {
				t.Errorf("scale %.2f after 5 minutes: learned speeds contain it by now", v.PrefillScale)
			}
			if v = play(m, &now, tt.before); v.PrefillScale > 1 {
				t.Errorf("scale %.2f is above 1", v.PrefillScale)
			}
		})
	}
}

func TestMonitorMemory(t *testing.T) {
	used := func(gib uint64) []gpu.Stats {
		return with(func(s *gpu.Stats) { s.MemUsedBytes = gib << 30 })
	}
	m, now := gpu.NewMonitor(), start
	if v := play(m, &now, used(10), used(70)); v.GrowthBytes != 0 {
		t.Errorf("growth %d before the engine is ready", v.GrowthBytes)
	}
	m.Ready(now, 1000)
	play(m, &now, used(70), used(71))
	now = now.Add(time.Minute)
	if v := play(m, &now, used(72)); v.GrowthBytes != 0 {
		t.Errorf("growth %d within the slack", v.GrowthBytes)
	}
	if v := play(m, &now, used(76)); v.GrowthBytes != 5<<30 {
		t.Errorf("growth %d, want 5 GiB", v.GrowthBytes)
	}
	m.Ready(now, 900)
	v := play(m, &now, used(76))
	if v.GrowthBytes != 0 || v.BlocksLost != 100 {
		t.Errorf("after a restart: growth %d, blocks lost %d; want 0, 100", v.GrowthBytes, v.BlocksLost)
	}
	if want := uint64(160 << 30); v.MemTotalBytes != want {
		t.Errorf("total %d, want %d", v.MemTotalBytes, want)
	}
}

func TestMonitorUtil(t *testing.T) {
	m, now := gpu.NewMonitor(), start
	if v := m.Observe(now, nil); v.Known || v.Slowdown != 1 || v.PrefillScale != 1 {
		t.Errorf("nothing read: %+v", v)
	}
	half := gputest.Healthy(2)
	half[0].UtilPercent, half[1].UtilPercent = 100, -1
	if v := play(m, &now, half); v.UtilPercent != 100 || !v.Known || v.GPUs != 2 {
		t.Errorf("got %+v", v)
	}
	if v := play(m, &now, gputest.Healthy(2)); v.UtilPercent < 70 || v.UtilPercent > 95 {
		t.Errorf("utilisation %d is not smoothed", v.UtilPercent)
	}
}

func TestReaderScript(t *testing.T) {
	r := &gputest.Reader{Steps: []gputest.Step{{Stats: gputest.Healthy(1)}, {Stats: xids(48)}}}
	for i, want := range []int{0, 1, 0, 0} {
		stats, err := r.Read(start)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(stats[len(stats)-1].Xids); got != want {
			t.Errorf("read %d: %d xids, want %d", i, got, want)
		}
	}
}
