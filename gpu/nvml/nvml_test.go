package nvml_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gpu"
	"github.com/grapevine-llm/grapevine/gpu/nvml"
)

// machine is a mocked DGX H200 with the calls that the stock mock leaves open.
type machine struct {
	*server.Server
	events  []nv.EventData
	reasons uint64
	ecc     uint64
	links   int
	lost    map[int]bool
	missing map[string]bool // symbols an older driver lacks
	freed   int
}

func newMachine() *machine {
	m := &machine{Server: dgxh200.New(), links: 18, lost: map[int]bool{}, missing: map[string]bool{}}
	m.LookupSymbolFunc = func(symbol string) error {
		if m.missing[symbol] {
			return errors.New("undefined symbol")
		}
		return nil
	}
	m.EventSetCreateFunc = func() (nv.EventSet, nv.Return) {
		return &mock.EventSet{
			WaitFunc: func(timeout uint32) (nv.EventData, nv.Return) {
				if timeout != 0 || len(m.events) == 0 {
					return nv.EventData{}, nv.ERROR_TIMEOUT
				}
				e := m.events[0]
				m.events = m.events[1:]
				return e, nv.SUCCESS
			},
			FreeFunc: func() nv.Return { m.freed++; return nv.SUCCESS },
		}, nv.SUCCESS
	}
	for i, h := range m.Devices {
		d := h.(*server.Device)
		d.GetMemoryInfoFunc = func() (nv.Memory, nv.Return) {
			if m.lost[i] {
				return nv.Memory{}, nv.ERROR_GPU_IS_LOST
			}
			return nv.Memory{Total: 141 << 30, Used: 127 << 30, Free: 14 << 30}, nv.SUCCESS
		}
		d.GetUtilizationRatesFunc = func() (nv.Utilization, nv.Return) {
			return nv.Utilization{Gpu: 83, Memory: 40}, nv.SUCCESS
		}
		d.GetClockInfoFunc = func(nv.ClockType) (uint32, nv.Return) { return 1755, nv.SUCCESS }
		d.GetMaxClockInfoFunc = func(nv.ClockType) (uint32, nv.Return) { return 1980, nv.SUCCESS }
		d.GetCurrentClocksEventReasonsFunc = func() (uint64, nv.Return) {
			if m.missing["nvmlDeviceGetCurrentClocksEventReasons"] {
				panic("called a symbol that the driver lacks")
			}
			return m.reasons, nv.SUCCESS
		}
		d.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nv.Return) { return m.reasons, nv.SUCCESS }
		d.GetTotalEccErrorsFunc = func(nv.MemoryErrorType, nv.EccCounterType) (uint64, nv.Return) { return m.ecc, nv.SUCCESS }
		d.GetRemappedRowsFunc = func() (int, int, bool, bool, nv.Return) { return 0, 1, true, true, nv.SUCCESS }
		d.GetNvLinkStateFunc = func(link int) (nv.EnableState, nv.Return) {
			if link >= 18 {
				return 0, nv.ERROR_INVALID_ARGUMENT
			}
			if link < m.links {
				return nv.FEATURE_ENABLED, nv.SUCCESS
			}
			return nv.FEATURE_DISABLED, nv.SUCCESS
		}
		d.RegisterEventsFunc = func(uint64, nv.EventSet) nv.Return { return nv.SUCCESS }
	}
	return m
}

func (m *machine) uuid(i int) string { return m.Devices[i].(*server.Device).UUID }

func (m *machine) xid(i int, code uint64) {
	m.events = append(m.events, nv.EventData{Device: m.Devices[i], EventType: nv.EventTypeXidCriticalError, EventData: code})
}

func open(t *testing.T, m *machine, visible string) *nvml.Reader {
	t.Helper()
	r, err := nvml.Open(nvml.Config{Visible: visible, Library: m})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func read(t *testing.T, r *nvml.Reader) []gpu.Stats {
	t.Helper()
	stats, err := r.Read(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return stats
}

func TestOpenChoosesGPUs(t *testing.T) {
	m := newMachine()
	tests := []struct {
		name, visible string
		want          []int
		err           string
	}{
		{"all", "all", []int{0, 1, 2, 3, 4, 5, 6, 7}, ""},
		{"not given", "", []int{0, 1, 2, 3, 4, 5, 6, 7}, ""},
		{"indices", "2, 0", []int{2, 0}, ""},
		{"UUIDs", m.uuid(3) + "," + m.uuid(5), []int{3, 5}, ""},
		{"beginning of a UUID", m.uuid(4)[:16], []int{4}, ""},
		{"not unique", "GPU-", nil, "not unique"},
		{"absent", "GPU-nowhere", nil, "not there"},
		{"index too high", "8", nil, "shows 8"},
		{"MIG slice that is absent", "MIG-x", nil, "nvidia-smi"},
		{"none", "none", nil, "no NVIDIA driver"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := nvml.Open(nvml.Config{Visible: tt.visible, Library: m})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			var got, want []string
			for _, s := range read(t, r) {
				got = append(got, s.UUID)
			}
			for _, i := range tt.want {
				want = append(want, m.uuid(i))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOpenWithoutDriver(t *testing.T) {
	m := newMachine()
	m.InitFunc = func() nv.Return { return nv.ERROR_LIBRARY_NOT_FOUND }
	if _, err := nvml.Open(nvml.Config{Library: m}); !errors.Is(err, nvml.ErrNoDriver) {
		t.Errorf("got %v, want ErrNoDriver", err)
	}
	// The system's own library: a GPU or the one clear error, never a crash.
	r, err := nvml.Open(nvml.Config{})
	if err == nil {
		r.Close()
	} else if !errors.Is(err, nvml.ErrNoDriver) {
		t.Errorf("got %v, want ErrNoDriver", err)
	}
}

func TestRead(t *testing.T) {
	m := newMachine()
	m.reasons = nv.ClocksEventReasonSwPowerCap | nv.ClocksThrottleReasonHwThermalSlowdown | nv.ClocksEventReasonGpuIdle
	m.ecc = 2
	r := open(t, m, "1")
	want := []gpu.Stats{{
		UUID: m.uuid(1), Name: "NVIDIA H200",
		MemTotalBytes: 141 << 30, MemUsedBytes: 127 << 30, MemFreeBytes: 14 << 30,
		UtilPercent: 83, ClockMHz: 1755, MaxClockMHz: 1980,
		Throttle: gpu.SWPower | gpu.HWThermal, ECCUncorrectedVolatile: 2,
	}}
	got := read(t, r)
	want[0].Name = got[0].Name
	if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(got[0].Name, "H200") {
		t.Errorf("reading (-want +got):\n%s", diff)
	}

	m.lost[1] = true
	if got := read(t, r); !got[0].Lost {
		t.Errorf("lost GPU read as %+v", got[0])
	}
}

func TestReadOldDriver(t *testing.T) {
	m := newMachine()
	m.reasons = nv.ClocksThrottleReasonHwSlowdown
	m.missing["nvmlDeviceGetCurrentClocksEventReasons"] = true
	if got := read(t, open(t, m, "0")); got[0].Throttle != gpu.HWSlowdown {
		t.Errorf("got throttle %b", got[0].Throttle)
	}
	m.missing["nvmlDeviceGetCurrentClocksThrottleReasons"] = true
	if got := read(t, open(t, m, "0")); got[0].Throttle != 0 {
		t.Errorf("got throttle %b", got[0].Throttle)
	}
}

func TestReadXids(t *testing.T) {
	m := newMachine()
	r := open(t, m, "0,1")
	m.xid(0, 31)
	m.xid(1, 63)
	m.xid(1, 74)
	m.xid(5, 79) // of another pod
	m.links = 17
	got := read(t, r)
	if diff := cmp.Diff([][]uint32{{31}, {63, 74}}, [][]uint32{got[0].Xids, got[1].Xids}); diff != "" {
		t.Errorf("xids (-want +got):\n%s", diff)
	}
	if got[0].RemapFailed || got[0].LinkLost || !got[1].RemapFailed || !got[1].LinkLost {
		t.Errorf("rows and links: %+v", got)
	}
	if got = read(t, r); got[0].Xids != nil || got[1].Xids != nil {
		t.Errorf("told twice: %+v", got)
	}
	for range 100 {
		m.xid(0, 13)
	}
	if n := len(read(t, r)[0].Xids); n != 64 {
		t.Errorf("one read took %d events, want 64", n)
	}
	if n := len(read(t, r)[0].Xids); n != 36 {
		t.Errorf("the next took %d events, want 36", n)
	}
}

func TestWithoutEvents(t *testing.T) {
	m := newMachine()
	for _, d := range m.Devices {
		d.(*server.Device).RegisterEventsFunc = func(uint64, nv.EventSet) nv.Return { return nv.ERROR_NOT_SUPPORTED }
	}
	r := open(t, m, "")
	if m.freed != 1 {
		t.Errorf("event set freed %d times, want 1", m.freed)
	}
	m.xid(0, 79)
	if got := read(t, r); got[0].Xids != nil {
		t.Errorf("got %v", got[0].Xids)
	}
}
