package gpu

import (
	"maps"
	"math"
	"time"
)

const (
	smoothing    = 5 * time.Second  // of utilisation and slowdown
	catchUp      = time.Minute      // until learned speeds contain a slowdown
	settle       = 30 * time.Second // after ready: the engine's memory still moves
	maxXidCodes  = 64               // distinct codes counted
	confirmAfter = 2                // times that evidence must be seen
	busyPercent  = 50               // utilisation above which a clock tells something
)

// Verdict is the state of all GPUs of the pod together.
type Verdict struct {
	Known bool // false: nothing was read yet, all else is void
	GPUs  int

	Fault    Fault  // the gravest, FaultNone if all is well
	FaultGPU string // UUID of the GPU with the fault

	Slowdown     float64  // speed of the slowest GPU by hardware or thermal slowdown: 1 none, 0.5 half; smoothed
	PrefillScale float64  // what learned speeds are to be multiplied with: Slowdown, fading to 1 within a minute or so as they learn it
	Throttle     Throttle // reasons at work on any GPU

	MemUsedBytes, MemTotalBytes uint64
	GrowthBytes                 uint64 // memory taken beyond the level learned when the engine was ready: by others, or by a leak
	BlocksLost                  uint32 // KV blocks fewer than the engine had at its best start: less memory was free for it

	UtilPercent int // mean, smoothed
}

// Monitor turns readings into verdicts. Not safe for concurrent use.
type Monitor struct {
	gpus map[string]*state
	last time.Time
	util float64

	slow, learned float64 // smoothed slowdown; what learned speeds contain of it

	readyAt            time.Time
	blocks, blocksBest uint32

	xids map[uint32]uint64
}

// state is what is remembered of one GPU.
type state struct {
	lost, ecc, xid int // times that evidence was seen
	eccBase        uint64
	refMHz         float64 // clock when busy and not slowed
	memBase        uint64  // most memory used while settling, 0: engine never ready
	current        Stats
}

// NewMonitor returns a monitor that knows nothing yet.
func NewMonitor() *Monitor {
	return &Monitor{gpus: make(map[string]*state), xids: make(map[uint32]uint64), slow: 1, learned: 1}
}

// Ready says that the engine has (re)started and holds its memory, with that
// many KV blocks (0 unknown). The memory level is learned from here on.
func (m *Monitor) Ready(now time.Time, kvBlocks uint32) {
	m.readyAt = now
	m.blocks = kvBlocks
	m.blocksBest = max(m.blocksBest, kvBlocks)
	for _, g := range m.gpus {
		g.memBase = 0
	}
}

// Observe takes one reading and returns the verdict after it. Readings are to
// be in order of time, about one a second.
func (m *Monitor) Observe(now time.Time, stats []Stats) Verdict {
	if len(stats) == 0 {
		return Verdict{Slowdown: 1, PrefillScale: 1}
	}
	elapsed := now.Sub(m.last)
	first := m.last.IsZero()
	m.last = now

	v := Verdict{Known: true, GPUs: len(stats)}
	slow, util, utils := 1.0, 0.0, 0
	for i := range stats {
		s := &stats[i]
		g := m.gpu(s)
		m.count(s.Xids)
		if f := g.judge(s); f > v.Fault {
			v.Fault, v.FaultGPU = f, s.UUID
		}
		if s.Lost {
			v.MemTotalBytes += g.current.MemTotalBytes
			continue
		}
		g.current = *s
		slow = min(slow, g.speed(s))
		v.Throttle |= s.Throttle
		v.MemUsedBytes += s.MemUsedBytes
		v.MemTotalBytes += s.MemTotalBytes
		v.GrowthBytes += m.growth(now, g, s)
		if s.UtilPercent >= 0 {
			util += float64(s.UtilPercent)
			utils++
		}
	}
	if utils > 0 {
		util /= float64(utils)
		if first {
			m.util = util
		}
		m.util += (util - m.util) * weight(elapsed, smoothing)
	}
	// A slowdown found by the first reading is in all speeds that are learned.
	if first {
		m.slow, m.learned = slow, slow
	}
	m.slow += (slow - m.slow) * weight(elapsed, smoothing)
	m.learned += (m.slow - m.learned) * weight(elapsed, catchUp)
	v.Slowdown = m.slow
	v.PrefillScale = min(1, m.slow/m.learned)
	v.UtilPercent = int(math.Round(m.util))
	if m.blocks > 0 {
		v.BlocksLost = m.blocksBest - m.blocks
	}
	return v
}

// Xids is how often each Xid was seen, application errors included. Codes
// beyond the first 64 different ones are counted under 0.
func (m *Monitor) Xids() map[uint32]uint64 { return maps.Clone(m.xids) }

func (m *Monitor) gpu(s *Stats) *state {
	g, ok := m.gpus[s.UUID]
	if !ok {
		g = &state{eccBase: s.ECCUncorrectedVolatile}
		m.gpus[s.UUID] = g
	}
	return g
}

func (m *Monitor) count(codes []uint32) {
	for _, code := range codes {
		if _, ok := m.xids[code]; !ok && len(m.xids) >= maxXidCodes {
			code = 0
		}
		m.xids[code]++
	}
}

// judge weighs the evidence against one GPU.
func (g *state) judge(s *Stats) Fault {
	for _, code := range s.Xids {
		if hardwareXid(code, s) {
			g.xid++
		}
	}
	if s.Lost {
		g.lost++
	} else {
		g.lost = 0
		switch {
		case s.ECCUncorrectedVolatile > g.eccBase:
			g.ecc++
		case s.ECCUncorrectedVolatile < g.eccBase: // the driver was loaded anew
			g.eccBase, g.ecc = s.ECCUncorrectedVolatile, 0
		default:
			g.ecc = 0
		}
	}
	switch {
	case g.lost >= confirmAfter:
		return FaultLost
	case g.ecc >= confirmAfter:
		return FaultECC
	case g.xid >= confirmAfter:
		return FaultXid
	}
	return FaultNone
}

// speed is the GPU's speed as a share of its usual one, and learns the usual
// clock. Below busyPercent a low clock only means that there is nothing to do.
func (g *state) speed(s *Stats) float64 {
	busy := s.UtilPercent < 0 || s.UtilPercent >= busyPercent
	if s.Throttle&slowing == 0 {
		if busy && s.ClockMHz > 0 {
			if g.refMHz == 0 {
				g.refMHz = float64(s.ClockMHz)
			}
			g.refMHz += (float64(s.ClockMHz) - g.refMHz) / 8
		}
		return 1
	}
	ref := g.refMHz
	if ref == 0 {
		ref = float64(s.MaxClockMHz)
	}
	switch {
	case s.ClockMHz > 0 && ref > 0:
		if !busy {
			return 1
		}
		return min(1, max(0.05, float64(s.ClockMHz)/ref))
	case s.Throttle&HWSlowdown != 0:
		return 0.5 // nvml.h: "reducing the core clocks by a factor of 2 or more"
	}
	return 1
}

// growth is the memory used beyond the level learned while the engine settled,
// 0 within a slack of 2 % of the GPU.
func (m *Monitor) growth(now time.Time, g *state, s *Stats) uint64 {
	if m.readyAt.IsZero() {
		return 0
	}
	if g.memBase == 0 || now.Sub(m.readyAt) < settle {
		g.memBase = max(g.memBase, s.MemUsedBytes)
		return 0
	}
	if s.MemUsedBytes <= g.memBase+s.MemTotalBytes/50 {
		return 0
	}
	return s.MemUsedBytes - g.memBase
}

// weight is that of a new value after elapsed in an average over span.
func weight(elapsed, span time.Duration) float64 {
	return 1 - math.Exp(-max(0, elapsed.Seconds())/span.Seconds())
}
