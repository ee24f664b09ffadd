package agent

import (
	"log/slog"
	"maps"
	"reflect"
	"slices"

	"github.com/grapevine-llm/grapevine/agent/enginemetrics"
	"github.com/grapevine-llm/grapevine/gossip/wire"
)

const remedySilent = "requests ran, but no KV event came: start the engine with --kv-events-config '{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"tcp://*:5557\", \"replay_endpoint\": \"tcp://*:6557\"}' (with a host in place of * the engine connects instead of listening), or give the agent its --kv-events-endpoint and --kv-events-topic"

// judgeEvents keeps the INFO's word on events; the caller holds mu.
func (u *unit) judgeEvents(silent bool) {
	state := u.facts.kvEvents
	switch {
	case len(u.subs) == 0:
	case u.events > 0:
		state = "ok"
	case silent:
		state = "silent"
		if u.kvEvents != "silent" {
			u.log.Error("engine sends no KV events", slog.String(keyRemedy, remedySilent))
		}
	case u.kvEvents == "silent":
		state = "silent" // until events come
	}
	if state != "" {
		u.setKVEvents(state)
	}
}

func (u *unit) setKVEvents(state string) {
	if u.kvEvents != state {
		u.kvEvents = state
		u.log.Info("KV events", slog.String(keyState, state))
	}
}

// announce sends the INFO to every gateway if it changed; the caller holds mu.
func (u *unit) announce() {
	next := u.info
	next.Draining, next.KVEvents = u.draining, u.kvEvents
	next.EngineVersion = u.facts.version
	next.Models, next.MaxModelLen = models(u.facts.models)
	next.Ranks = nil
	for _, rank := range slices.Sorted(maps.Keys(u.streams)) {
		next.Ranks = append(next.Ranks, u.streams[rank].rankInfo())
	}
	if u.last != nil {
		next.Engine = string(u.last.Engine)
		next.BlockSize = clampUint32(u.last.Ranks[0].Cache.BlockSize)
		next.NumBlocks = clampUint32(u.last.Ranks[0].Cache.NumBlocks)
	}
	for _, s := range u.streams {
		if n := s.set.BlockSize(); n > 0 { // the events' word counts
			next.BlockSize = clampUint32(n)
		}
	}
	if sameInfo(next, u.info) && u.counts.infos > 0 {
		return
	}
	next.Version = u.info.Version + 1
	if err := next.Validate(); err != nil {
		u.log.Error("engine's facts do not fit an INFO", slog.Any(keyErr, err))
		return
	}
	u.info = next
	for _, s := range u.streams {
		s.setInfoVersion(next.Version)
	}
	u.counts.infos++
	for node := range u.pickers {
		u.sendInfo(node)
	}
}

// sendInfo sends the INFO to one gateway; the caller holds mu.
func (u *unit) sendInfo(node uint64) {
	if err := u.mesh.SendReliable(node, u.info.Append(nil, wire.NodeHash(u.info.Node))); err != nil {
		u.counts.sendErrors++
	}
}

func models(in []enginemetrics.Model) (out []wire.Model, longest uint32) {
	for _, m := range in[:min(len(in), wire.MaxModels)] {
		n := clampUint32(m.MaxModelLen)
		longest = max(longest, n)
		out = append(out, wire.Model{Name: m.ID, Parent: m.Parent, MaxLen: n})
	}
	return out, longest
}

// sameInfo compares but for the version.
func sameInfo(a, b wire.Info) bool {
	a.Version, b.Version = 0, 0
	return reflect.DeepEqual(a, b)
}
