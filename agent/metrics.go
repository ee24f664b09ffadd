package agent

import (
	"encoding/binary"
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/grapevine-llm/grapevine/agent/blockset"
)

const namespace = "grapevine_agent"

// desc describes a metric; labels come after the engine.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, append([]string{"engine"}, labels...), nil)
}

// podDesc describes a metric of the pod, not of one engine.
func podDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// collector reads the state of the units when it is asked.
type collector struct {
	agent *Agent
	descs
}

type descs struct {
	up, info, scrapes, scrapeErrors, scrapeSeconds, scrapeBytes                                *prometheus.Desc
	messages, messageBytes, drops, replays, lostBatches, restarts                              *prometheus.Desc
	blocks, orphans, coverage, partial, suspect                                                *prometheus.Desc
	ticks, tickBytes, sent, sentBytes, segments, replayedTicks, backlog, refused, sendErrors   *prometheus.Desc
	gateways, asked, meshDrops, keyMismatches, gpuKnown, gpuFault, gpuSpeed, gpuMem, gpuGrowth *prometheus.Desc
	gpuXids, waiting                                                                           *prometheus.Desc
}

func newCollector(a *Agent) *collector {
	return &collector{agent: a, descs: descs{
		up:            desc("engine_up", "1 while the engine answers"),
		info:          desc("kv_events_info", "1; the label says how it stands with the engine's KV events", "state"),
		scrapes:       desc("engine_scrapes_total", "reads of the engine's metrics"),
		scrapeErrors:  desc("engine_scrape_errors_total", "failed reads of the engine's metrics"),
		scrapeSeconds: desc("engine_scrape_seconds_total", "time spent on the engine's metrics", "part"),
		scrapeBytes:   desc("engine_scrape_bytes_total", "bytes of the engine's metrics"),
		messages:      desc("event_batches_total", "batches of KV events applied", "rank"),
		messageBytes:  desc("event_bytes_total", "bytes of live KV events received", "rank"),
		drops:         desc("event_drops_total", "KV events left out, by reason", "rank", "reason"),
		replays:       desc("event_replays_total", "replays asked of the engine", "rank"),
		lostBatches:   desc("event_batches_undecodable_total", "batches that could not be decoded", "rank"),
		restarts:      desc("engine_restarts_total", "restarts of the engine noticed", "rank"),
		blocks:        desc("blocks", "blocks that can be hit, by tier", "rank", "tier"),
		orphans:       desc("orphan_blocks", "blocks whose place in a prompt is not known", "rank"),
		coverage:      desc("coverage_ratio", "share of the blocks held whose place in a prompt is known", "rank"),
		partial:       desc("partial", "1 while blocks may be missing from the picture", "rank"),
		suspect:       desc("suspect", "1 while the picture may claim blocks that are gone", "rank"),
		ticks:         desc("ticks_total", "ticks made", "rank"),
		tickBytes:     desc("tick_bytes_total", "bytes of the ticks made", "rank"),
		sent:          desc("packets_sent_total", "tick packets sent, each gateway counted"),
		sentBytes:     desc("packet_bytes_sent_total", "bytes of tick packets sent, each gateway counted"),
		segments:      desc("segments_total", "segments sent to repair digests", "rank"),
		replayedTicks: desc("ticks_repeated_total", "ticks sent again", "rank"),
		backlog:       desc("backlog_bits", "filter bits that wait to be sent", "rank"),
		refused:       desc("repairs_refused_total", "requests for repair left unanswered for lack of budget", "rank"),
		sendErrors:    desc("send_errors_total", "gossip messages that could not be sent"),
		gateways:      desc("gateways", "gateways that get the digests"),
		asked:         desc("requests_total", "requests of gateways", "type"),
		meshDrops:     desc("mesh_drops_total", "gossip messages dropped here, by place", "place"),
		keyMismatches: desc("gossip_key_mismatches_total", "packets and streams made with another gossip key"),
		gpuKnown:      podDesc("gpus", "GPUs watched, 0 without a driver"),
		gpuFault:      podDesc("gpu_fault", "1 for the gravest fault found", "fault"),
		gpuSpeed:      podDesc("gpu_speed_ratio", "speed by hardware and thermal slowdown, 1 is full"),
		gpuMem:        podDesc("gpu_memory_used_bytes", "memory used on all GPUs"),
		gpuGrowth:     podDesc("gpu_memory_growth_bytes", "memory taken beyond the level when the engine was ready"),
		gpuXids:       podDesc("gpu_xids_total", "driver errors by Xid", "xid"),
		waiting:       podDesc("waiting", "1 while the agent cannot join the mesh, by what it lacks", "reason"),
	}}
}

// Describe implements [prometheus.Collector]: nothing can be said beforehand, the
// engines' share comes when the agent joins.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	units, waiting := c.agent.state()
	for _, u := range units {
		c.unit(ch, u)
		u.lag.Collect(ch)
	}
	reason := "none"
	if waiting != nil {
		reason = waiting.Reason
	}
	ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, oneIf(waiting != nil), reason)
	c.gpu(ch)
}

func (c *collector) unit(ch chan<- prometheus.Metric, u *unit) {
	net := u.mesh.Stats()
	u.mu.Lock()
	defer u.mu.Unlock()
	emit := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{u.engine}, labels...)...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		emit(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		emit(d, prometheus.GaugeValue, v, labels...)
	}
	n := &u.counts
	gauge(c.up, oneIf(u.up))
	gauge(c.info, 1, u.kvEvents)
	count(c.scrapes, n.scrapes)
	count(c.scrapeErrors, n.scrapeErrors)
	count(c.scrapeBytes, n.scrapeBytes)
	emit(c.scrapeSeconds, prometheus.CounterValue, n.scrapeTook.Seconds(), "ask")
	emit(c.scrapeSeconds, prometheus.CounterValue, n.scrapeParse.Seconds(), "parse")
	count(c.sent, n.packets)
	count(c.sentBytes, n.packetBytes)
	count(c.sendErrors, n.sendErrors)
	gauge(c.gateways, float64(len(u.pickers)))
	count(c.asked, n.nacks, "nack")
	count(c.asked, n.hellos, "hello")
	count(c.asked, n.badMessages, "unreadable")
	count(c.meshDrops, net.InboxDropped, "inbox")
	count(c.meshDrops, net.HandoffDropped, "handoff")
	count(c.meshDrops, net.ReliableFailed, "stream")
	count(c.meshDrops, net.ReliableFull, "stream queue")
	count(c.keyMismatches, net.KeyMismatches)
	for _, s := range u.streams {
		rank := strconv.Itoa(int(s.cfg.key.Rank))
		st, pub := s.set.Stats(), s.total()
		count(c.messages, s.batches, rank)
		count(c.lostBatches, s.lost, rank)
		count(c.restarts, s.restarts, rank)
		for reason, v := range s.odd {
			count(c.drops, v, rank, reason)
		}
		for reason, v := range map[string]uint64{
			"unknown removed": st.UnknownRemoved, "unpaired": st.Unpaired, "other group": st.OtherGroup,
			"other size": st.OtherSize, "over limit": st.Dropped, "expired": st.Expired,
		} {
			count(c.drops, v, rank, reason)
		}
		if sub := u.subs[s.cfg.key.Rank]; sub != nil {
			sock := sub.Stats()
			count(c.messageBytes, sock.Bytes, rank)
			count(c.replays, sock.Replays, rank)
			count(c.drops, sock.BadFrames, rank, "bad frames")
			count(c.drops, sock.OtherTopic, rank, "other topic")
			count(c.drops, sock.HeldDropped, rank, "held too long")
		}
		gauge(c.blocks, float64(st.Visible[blockset.GPU]), rank, "gpu")
		gauge(c.blocks, float64(st.Visible[blockset.All]), rank, "all")
		gauge(c.orphans, float64(st.Orphans), rank)
		gauge(c.coverage, s.coverage(), rank)
		gauge(c.partial, oneIf(s.set.Partial()), rank)
		gauge(c.suspect, oneIf(s.set.Suspect()), rank)
		count(c.ticks, pub.ticks, rank)
		count(c.tickBytes, pub.bytes, rank)
		count(c.segments, pub.segments, rank)
		count(c.replayedTicks, pub.replayed, rank)
		count(c.refused, pub.refused, rank)
		gauge(c.backlog, float64(s.pub.Stats().Backlog), rank)
	}
}

func (c *collector) gpu(ch chan<- prometheus.Metric) {
	v, xids := c.agent.gpus.state()
	gauge := func(d *prometheus.Desc, x float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, labels...)
	}
	gauge(c.gpuKnown, float64(v.GPUs))
	if !v.Known {
		return
	}
	gauge(c.gpuFault, oneIf(v.Fault != 0), v.Fault.String())
	gauge(c.gpuSpeed, v.Slowdown)
	gauge(c.gpuMem, float64(v.MemUsedBytes))
	gauge(c.gpuGrowth, float64(v.GrowthBytes))
	for code, n := range xids {
		ch <- prometheus.MustNewConstMetric(c.gpuXids, prometheus.CounterValue, float64(n), strconv.FormatUint(uint64(code), 10))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// newLag is the time from an engine's publishing of a batch to its application,
// by the engine's clock.
func newLag(engine string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: "event_lag_seconds", Help: "time from the publishing of a batch, by the engine's clock, to its application",
		ConstLabels: prometheus.Labels{"engine": engine},
		Buckets:     []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 5},
	})
}

// batchTime looks for a batch's time stamp where every engine so far writes it: a
// float64 at the head of an array (msgspec's encoding of vLLM's EventBatch).
func batchTime(payload []byte) (time.Time, bool) {
	if len(payload) < 10 || payload[0]&0xf0 != 0x90 || payload[1] != 0xcb {
		return time.Time{}, false
	}
	ts := math.Float64frombits(binary.BigEndian.Uint64(payload[2:]))
	if !(ts > 0 && ts < 1e11) {
		return time.Time{}, false
	}
	return time.UnixMicro(int64(ts * 1e6)), true
}
