// Package gpu judges the health of a pod's GPUs from readings.
//
// It owns what a reading is ([Stats]), who gives it ([Reader]) and the verdict
// ([Monitor]). It opens nothing: gpu/nvml reads the driver, gpu/gputest a
// script. The verdict is cautious, since a wrong one could drain a fleet: a
// fault needs strong evidence seen twice, and normal power management is never
// called a slowdown.
//
//	m := gpu.NewMonitor()
//	stats, err := reader.Read(now)
//	if err == nil {
//		verdict := m.Observe(now, stats)
//	}
package gpu

import "time"

// Stats is one reading of one GPU (or MIG slice).
type Stats struct {
	Index int    // position among the pod's GPUs
	UUID  string // identity over readings
	Name  string

	MemUsedBytes, MemFreeBytes, MemTotalBytes uint64

	UtilPercent int      // 0 to 100; -1 unknown
	ClockMHz    uint32   // streaming multiprocessors now; 0 unknown
	MaxClockMHz uint32   // their limit; 0 unknown
	Throttle    Throttle // why the clock is below what was asked

	ECCUncorrectedVolatile uint64   // since the driver was loaded; 0 without ECC
	RemapFailed            bool     // a row remapping has failed
	LinkLost               bool     // an NVLink that was up is down
	Xids                   []uint32 // driver errors since the reading before, oldest first, bounded by the reader
	Lost                   bool     // the driver no longer reaches it; the other figures are void
}

// Reader reads all GPUs of the pod. It never blocks for long. A GPU that is
// gone is a Stats with Lost set, not an error. Not safe for concurrent use.
type Reader interface {
	Read(now time.Time) ([]Stats, error)
}

// Throttle is a set of reasons for a lowered clock.
type Throttle uint8

// The reasons, after NVML's clocks event reasons (nvml.h).
const (
	SWPower      Throttle = 1 << iota // software power cap: everyday, no slowdown
	HWSlowdown                        // hardware halves the clock or worse: temperature, power draw
	SWThermal                         // driver lowers the clock to cool
	HWThermal                         // hardware lowers the clock to cool
	HWPowerBrake                      // external power brake

	slowing = HWSlowdown | SWThermal | HWThermal | HWPowerBrake
)

// Fault is why a GPU can't be trusted. Its numbers are on the wire: append only.
type Fault uint8

// The faults, in rising order of certainty.
const (
	FaultNone Fault = 0
	FaultXid  Fault = 1 // hardware Xids, twice
	FaultECC  Fault = 2 // uncorrected memory errors since the monitor's start
	FaultLost Fault = 3 // fallen off the bus
)

func (f Fault) String() string {
	switch f {
	case FaultNone:
		return "none"
	case FaultXid:
		return "xid"
	case FaultECC:
		return "ecc"
	case FaultLost:
		return "lost"
	}
	return "unknown"
}

// hardwareXid says whether an Xid speaks against the GPU itself. Those of
// applications (13, 31, 43, 45, 68, 109 and all others) never do. Meaning of
// the codes: NVIDIA, "Xid Errors", https://docs.nvidia.com/deploy/xid-errors/.
func hardwareXid(code uint32, s *Stats) bool {
	switch code {
	case 48, 79, 94, 95: // double bit error, off the bus, contained and uncontained memory error
		return true
	case 63, 64: // row remapping: harmless while it succeeds
		return s.RemapFailed
	case 74: // NVLink error: fatal only if the link stays down
		return s.LinkLost
	}
	return false
}
