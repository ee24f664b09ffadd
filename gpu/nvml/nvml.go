// Package nvml reads GPUs through NVIDIA's management library.
//
// The library is opened at run time: the binary starts without a driver, and
// Open then says [ErrNoDriver]. Calls that an older driver lacks are looked up
// before they are made, since a missing symbol would end the process.
package nvml

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/grapevine-llm/grapevine/gpu"
)

// ErrNoDriver says that there is no NVIDIA driver to ask, or that it shows no
// GPU to this container. Routing works without; health by GPU is then unknown.
var ErrNoDriver = errors.New("no NVIDIA driver or no GPU visible here (expected on a machine without GPUs; in a container set NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES=utility)")

// maxEventsPerRead bounds the driver errors taken by one Read; more wait.
const maxEventsPerRead = 64

// Config chooses the GPUs.
type Config struct {
	// Visible lists the pod's GPUs in the form of NVIDIA_VISIBLE_DEVICES: UUIDs
	// (GPU-…, MIG-…; a unique beginning is enough for whole GPUs) or indices,
	// with commas. "" and "all": every GPU that the driver shows; "none" and
	// "void": none.
	Visible string
	// Library replaces the system's library in tests. Nil: the system's.
	Library nv.Interface
}

// Reader reads the chosen GPUs. It implements gpu.Reader.
type Reader struct {
	lib     nv.Interface
	devices []*device
	events  nv.EventSet // nil: no driver errors to be had

	hasEventReasons, hasThrottleReasons, hasRemappedRows bool
}

var _ gpu.Reader = (*Reader)(nil)

type device struct {
	handle      nv.Device // a whole GPU or a MIG slice
	parent      nv.Device // the whole GPU
	uuid        string
	parentUUID  string
	name        string
	maxClockMHz uint32
	linksUp     int // when opened
	remaps      bool
	links       bool // an Xid asked for a look at rows, at links
}

// Open loads the library and finds the GPUs. The error wraps ErrNoDriver where
// there is nothing to read; any other error names a GPU of Visible that is not
// there. Close ends the use.
func Open(cfg Config) (*Reader, error) {
	if cfg.Visible == "none" || cfg.Visible == "void" {
		return nil, fmt.Errorf("open NVML: visible devices %q: %w", cfg.Visible, ErrNoDriver)
	}
	lib := cfg.Library
	if lib == nil {
		lib = nv.New()
	}
	if ret := lib.Init(); ret != nv.SUCCESS {
		return nil, fmt.Errorf("open NVML: %s: %w", ret, ErrNoDriver)
	}
	r := &Reader{lib: lib}
	has := func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil }
	r.hasEventReasons = has("nvmlDeviceGetCurrentClocksEventReasons") // from driver 535 on
	r.hasThrottleReasons = has("nvmlDeviceGetCurrentClocksThrottleReasons")
	r.hasRemappedRows = has("nvmlDeviceGetRemappedRows") // from driver 450 on
	if err := r.find(cfg.Visible); err != nil {
		r.Close()
		return nil, fmt.Errorf("open NVML: %w", err)
	}
	r.register()
	return r, nil
}

// Close gives the library back. The reader is not to be used afterwards.
func (r *Reader) Close() {
	if r.events != nil {
		r.events.Free()
		r.events = nil
	}
	r.lib.Shutdown()
}

// find opens the devices that visible names.
func (r *Reader) find(visible string) error {
	count, ret := r.lib.DeviceGetCount()
	if ret != nv.SUCCESS {
		return fmt.Errorf("count GPUs: %s: %w", ret, ErrNoDriver)
	}
	all := make([]*device, 0, count)
	for i := range count {
		handle, ret := r.lib.DeviceGetHandleByIndex(i)
		if ret != nv.SUCCESS {
			continue // not ours to see, or lost before we came
		}
		all = append(all, r.device(handle, handle))
	}
	if visible == "" || visible == "all" {
		if len(all) == 0 {
			return ErrNoDriver
		}
		r.devices = all
		return nil
	}
	for name := range strings.SplitSeq(visible, ",") {
		d, err := r.named(strings.TrimSpace(name), all)
		if err != nil {
			return err
		}
		r.devices = append(r.devices, d)
	}
	return nil
}

// named is the device that an item of NVIDIA_VISIBLE_DEVICES means.
func (r *Reader) named(name string, all []*device) (*device, error) {
	if i, err := strconv.Atoi(name); err == nil {
		if i < 0 || i >= len(all) {
			return nil, fmt.Errorf("GPU %d is not there, the driver shows %d; give UUIDs as nvidia-smi -L lists them", i, len(all))
		}
		return all[i], nil
	}
	if strings.HasPrefix(name, "MIG-") {
		handle, ret := r.lib.DeviceGetHandleByUUID(name)
		if ret != nv.SUCCESS {
			return nil, fmt.Errorf("MIG slice %q: %s; give a UUID as nvidia-smi -L lists it", name, ret)
		}
		parent, ret := handle.GetDeviceHandleFromMigDeviceHandle()
		if ret != nv.SUCCESS {
			return nil, fmt.Errorf("GPU of MIG slice %q: %s", name, ret)
		}
		return r.device(handle, parent), nil
	}
	var found *device
	for _, d := range all {
		if name == "" || !strings.HasPrefix(d.uuid, name) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("GPU %q is not unique; give its whole UUID", name)
		}
		found = d
	}
	if found == nil {
		return nil, fmt.Errorf("GPU %q is not there, the driver shows %d; give UUIDs as nvidia-smi -L lists them", name, len(all))
	}
	return found, nil
}

func (r *Reader) device(handle, parent nv.Device) *device {
	d := &device{handle: handle, parent: parent}
	d.uuid, _ = handle.GetUUID()
	d.parentUUID, _ = parent.GetUUID()
	d.name, _ = handle.GetName()
	if mhz, ret := parent.GetMaxClockInfo(nv.CLOCK_SM); ret == nv.SUCCESS {
		d.maxClockMHz = mhz
	}
	d.linksUp = linksUp(parent)
	return d
}

// register asks for driver errors. Where the driver has none to give (old, or
// virtual GPUs) the reader goes without.
func (r *Reader) register() {
	set, ret := r.lib.EventSetCreate()
	if ret != nv.SUCCESS {
		return
	}
	some := false
	for _, d := range r.devices {
		some = d.parent.RegisterEvents(nv.EventTypeXidCriticalError, set) == nv.SUCCESS || some
	}
	if !some {
		set.Free()
		return
	}
	r.events = set
}

// Read takes a reading of every GPU. It waits for nothing; each call costs a
// few calls of the driver for each GPU.
func (r *Reader) Read(time.Time) ([]gpu.Stats, error) {
	out := make([]gpu.Stats, len(r.devices))
	for i, d := range r.devices {
		out[i] = gpu.Stats{Index: i, UUID: d.uuid, Name: d.name, MaxClockMHz: d.maxClockMHz}
	}
	r.drain(out)
	for i, d := range r.devices {
		r.read(d, &out[i])
	}
	return out, nil
}

// drain hands out the driver errors that have come since the last time.
func (r *Reader) drain(out []gpu.Stats) {
	if r.events == nil {
		return
	}
	for range maxEventsPerRead {
		event, ret := r.events.Wait(0)
		if ret != nv.SUCCESS {
			return
		}
		if event.EventType != nv.EventTypeXidCriticalError || event.Device == nil {
			continue
		}
		code := uint32(event.EventData)
		uuid, _ := event.Device.GetUUID()
		for i, d := range r.devices {
			if d.parentUUID != uuid {
				continue
			}
			out[i].Xids = append(out[i].Xids, code)
			d.remaps = d.remaps || code == 63 || code == 64
			d.links = d.links || code == 74
		}
	}
}

func (r *Reader) read(d *device, s *gpu.Stats) {
	mem, ret := d.handle.GetMemoryInfo()
	if lost(ret) {
		s.Lost = true
		return
	}
	if ret == nv.SUCCESS {
		s.MemUsedBytes, s.MemFreeBytes, s.MemTotalBytes = mem.Used, mem.Free, mem.Total
	}
	s.UtilPercent = -1
	if util, ret := d.handle.GetUtilizationRates(); ret == nv.SUCCESS {
		s.UtilPercent = int(util.Gpu)
	}
	if mhz, ret := d.parent.GetClockInfo(nv.CLOCK_SM); ret == nv.SUCCESS {
		s.ClockMHz = mhz
	}
	s.Throttle = r.throttle(d.parent)
	ecc, ret := d.parent.GetTotalEccErrors(nv.MEMORY_ERROR_TYPE_UNCORRECTED, nv.VOLATILE_ECC)
	if ret == nv.SUCCESS {
		s.ECCUncorrectedVolatile = ecc
	}
	s.Lost = lost(ret)
	if d.remaps && r.hasRemappedRows {
		_, _, _, failed, ret := d.parent.GetRemappedRows()
		s.RemapFailed = failed && ret == nv.SUCCESS
	}
	if d.links {
		s.LinkLost = linksUp(d.parent) < d.linksUp
	}
}

// throttle translates the reasons for a lowered clock. The masks are NVML's
// nvmlClocksEventReason… (nvml.h); their older names have the same values.
func (r *Reader) throttle(h nv.Device) gpu.Throttle {
	var reasons uint64
	var ret nv.Return = nv.ERROR_NOT_SUPPORTED
	switch {
	case r.hasEventReasons:
		reasons, ret = h.GetCurrentClocksEventReasons()
	case r.hasThrottleReasons:
		reasons, ret = h.GetCurrentClocksThrottleReasons()
	}
	if ret != nv.SUCCESS {
		return 0
	}
	var out gpu.Throttle
	for _, m := range [...]struct {
		nvml uint64
		ours gpu.Throttle
	}{
		{nv.ClocksEventReasonSwPowerCap, gpu.SWPower},
		{nv.ClocksThrottleReasonHwSlowdown, gpu.HWSlowdown},
		{nv.ClocksEventReasonSwThermalSlowdown, gpu.SWThermal},
		{nv.ClocksThrottleReasonHwThermalSlowdown, gpu.HWThermal},
		{nv.ClocksThrottleReasonHwPowerBrakeSlowdown, gpu.HWPowerBrake},
	} {
		if reasons&m.nvml != 0 {
			out |= m.ours
		}
	}
	return out
}

// lost says whether a call found the GPU gone.
func lost(ret nv.Return) bool {
	return ret == nv.ERROR_GPU_IS_LOST || ret == nv.ERROR_GPU_NOT_FOUND
}

// linksUp counts the active NVLinks. A GPU without any answers the first call
// with an error.
func linksUp(h nv.Device) int {
	up := 0
	for link := range nv.NVLINK_MAX_LINKS {
		state, ret := h.GetNvLinkState(link)
		if ret != nv.SUCCESS {
			break
		}
		if state == nv.FEATURE_ENABLED {
			up++
		}
	}
	return up
}
