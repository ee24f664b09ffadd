package blockset

import (
	"slices"
	"time"

	"github.com/grapevine-llm/grapevine/agent/kvevent"
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// entry is one engine hash with its copies. An orphan (node 0) waits for its parent and
// keeps what its canonical hash is computed from.
type entry struct {
	hash     uint64
	node     int32
	gpu, low int32
	lowAt    int64 // last store in a lower tier, unix nanoseconds

	parent     uint64 // orphans: engine hash of the parent
	local      blockhash.Hash
	prev, next int32 // orphans with the same parent
}

// Apply takes one batch, in order, and tells the sink the net change. now is the time
// of the engine's step, as near as the caller knows it.
func (s *Set) Apply(now time.Time, b kvevent.Batch) {
	at := now.UnixNano()
	for i, ev := range b.Events {
		switch ev := ev.(type) {
		case *kvevent.Stored:
			s.store(ev, b.Events[i+1:], at)
		case *kvevent.Removed:
			s.remove(ev, at)
		case *kvevent.Cleared:
			s.stats.Cleared++
			s.clear(at)
		}
	}
	s.checkSum()
	s.flush()
}

// checkSum: an engine cannot hold more copies than it has blocks.
func (s *Set) checkSum() {
	if s.cfg.Blocks > 0 && s.stats.Copies > s.cfg.Blocks {
		s.suspect = true
	}
}

// counts reports whether events of a group count. Only one group does: of a hybrid
// model's the first with full attention, since windows and states of the other groups
// say nothing about a prefix; while no kind is known, group 0. Lower tiers often name
// no group: their hashes decide.
func (s *Set) counts(group int, kind string, gpu bool) bool {
	if group < 0 && !gpu {
		return true
	}
	group = max(group, 0)
	if kind != "" && len(s.kinds) < 64 {
		full := fullAttention(kind)
		s.kinds[group] = full
		if full && s.group < 0 {
			s.group = group
		}
	}
	if s.group >= 0 {
		return group == s.group
	}
	full, known := s.kinds[group]
	return group == 0 && (full || !known)
}

// fullAttention names the kinds in which every block of a prefix is kept (vLLM
// v1/core/kv_cache_utils.py, KVCacheSpecKind).
func fullAttention(kind string) bool {
	switch kind {
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

func (s *Set) store(ev *kvevent.Stored, rest []kvevent.Event, now int64) {
	gpu := kvevent.IsDevice(ev.Medium)
	switch {
	case len(ev.Hashes) == 0: // all blocks of the run were left out
		return
	case !s.counts(ev.Group, ev.SpecKind, gpu):
		s.stats.OtherGroup += uint64(len(ev.Hashes))
		return
	}
	s.stats.Stored += uint64(len(ev.Hashes))
	if len(ev.Tokens) == 0 || ev.Sparse() {
		s.storeKnown(ev, gpu, now, &s.stats.Unpaired)
		return
	}
	if s.blockSize == 0 && gpu {
		s.blockSize = ev.BlockSize
	}
	if ev.BlockSize != s.blockSize {
		s.storeKnown(ev, gpu, now, &s.stats.OtherSize)
		return
	}
	s.storeChain(ev, gpu, gpu && s.isReport(ev, rest), now)
}

// storeKnown counts copies of hashes already held: a placeholder for a lower tier says
// no more than where they are now.
func (s *Set) storeKnown(ev *kvevent.Stored, gpu bool, now int64, unknown *uint64) {
	for _, h := range ev.Hashes {
		if e, ok := s.byHash[h]; ok {
			s.add(e, gpu, now)
		} else {
			*unknown++
		}
	}
}

// maxGroups is how many events of one request can stand between the report of its
// reused blocks and the store of its new ones: one for each KV cache group.
const maxGroups = 8

// isReport recognises the report of a reused prefix (vLLM's kv_cache_report_mode
// "full"), which has the shape of a store from block 0. The blocks are all held, and
// the new blocks of the same request follow in the batch: a real store would have
// reported both parts as one run. A single block is not enough: a prompt of exactly
// one block is stored again each time it is sent.
func (s *Set) isReport(ev *kvevent.Stored, rest []kvevent.Event) bool {
	if ev.HasParent {
		return false
	}
	if s.cfg.FullReports {
		return true
	}
	if len(ev.Hashes) < 2 {
		return false
	}
	for _, h := range ev.Hashes {
		if e := s.byHash[h]; e == 0 || s.entries[e].gpu == 0 {
			return false
		}
	}
	last := ev.Hashes[len(ev.Hashes)-1]
	return slices.ContainsFunc(rest[:min(len(rest), maxGroups)], func(e kvevent.Event) bool {
		next, ok := e.(*kvevent.Stored)
		return ok && next.HasParent && next.Parent == last && len(next.Hashes) > 0 && s.byHash[next.Hashes[0]] == 0
	})
}

// storeChain pairs hashes with tokens and links them below their parent; with the
// parent unknown they are kept as orphans.
func (s *Set) storeChain(ev *kvevent.Stored, gpu, report bool, now int64) {
	known := true // the parent's place is known
	var parent int32
	var canon blockhash.Hash
	if ev.HasParent {
		e := s.byHash[ev.Parent]
		parent = s.entries[e].node
		canon, known = s.nodes[parent].canon, parent != 0
	} else {
		canon = s.cfg.Hasher.Root(s.rootExtras(ev)...)
	}
	above := ev.Parent
	for i, h := range ev.Hashes {
		e := s.byHash[h]
		// A lower tier's chain can name a wrong parent (Mooncake skips blocks): what is
		// known already holds.
		if place := s.entries[e].node; place != 0 && (!gpu || !known) {
			parent, known = place, true
		} else if local := s.local(ev, i); known {
			n := s.nodeFor(s.cfg.Hasher.Next(canon, local), parent)
			if n == 0 || e == 0 && s.full() {
				s.drop(len(ev.Hashes) - i)
				return
			}
			if e == 0 {
				e = s.newEntry(h)
			}
			s.place(e, n, now)
			parent = n
		} else if e == 0 {
			if s.full() || s.orphans >= s.cfg.MaxOrphans {
				s.drop(len(ev.Hashes) - i)
				return
			}
			e = s.newEntry(h)
			s.wait(e, above, local)
		}
		canon, above = s.nodes[parent].canon, h
		if report && s.entries[e].gpu > 0 {
			s.stats.Reported++
			if n := s.entries[e].node; n != 0 {
				s.touch(n, now)
			}
			continue
		}
		s.add(e, gpu, now)
	}
}

// drop leaves out hashes for which there is no room: from now on the set lacks them.
func (s *Set) drop(n int) {
	s.stats.Dropped += uint64(n)
	s.partial = true
}

// local hashes block i of an event with what lies in it.
func (s *Set) local(ev *kvevent.Stored, i int) blockhash.Hash {
	h := s.cfg.Hasher.Local(ev.Tokens[i*ev.BlockSize : (i+1)*ev.BlockSize])
	if ev.ExtraKeys == nil || len(ev.ExtraKeys[i]) == 0 {
		return h
	}
	return s.cfg.Hasher.Touch(h, blockExtras(ev, i)...)
}

func (s *Set) full() bool { return len(s.byHash) >= s.cfg.MaxBlocks }

// newEntry makes an entry without copies; the caller adds some.
func (s *Set) newEntry(h uint64) int32 {
	i := int32(len(s.entries))
	if k := len(s.freeEnts); k > 0 {
		i, s.freeEnts = s.freeEnts[k-1], s.freeEnts[:k-1]
	} else {
		s.entries = append(s.entries, entry{})
	}
	s.entries[i] = entry{hash: h}
	s.byHash[h] = i
	return i
}

// wait makes an entry an orphan.
func (s *Set) wait(i int32, parent uint64, local blockhash.Hash) {
	e := &s.entries[i]
	e.parent, e.local = parent, local
	if first := s.waiting[parent]; first != 0 {
		e.next = first
		s.entries[first].prev = i
	}
	s.waiting[parent] = i
	s.orphans++
}

func (s *Set) unwait(i int32) {
	e := &s.entries[i]
	if e.prev != 0 {
		s.entries[e.prev].next = e.next
	} else if e.next != 0 {
		s.waiting[e.parent] = e.next
	} else {
		delete(s.waiting, e.parent)
	}
	if e.next != 0 {
		s.entries[e.next].prev = e.prev
	}
	e.prev, e.next = 0, 0
	s.orphans--
}

// place says which canonical block an engine hash names, and then links the orphans
// that waited for it, and theirs.
func (s *Set) place(i, n int32, now int64) {
	if s.entries[i].node == n {
		return
	}
	s.move(i, n, now)
	work := []int32{i}
	for len(work) > 0 {
		i, work = work[len(work)-1], work[:len(work)-1]
		e := &s.entries[i]
		for c := s.waiting[e.hash]; c != 0; c = s.waiting[e.hash] {
			o := &s.entries[c]
			at := s.nodeFor(s.cfg.Hasher.Next(s.nodes[e.node].canon, o.local), e.node)
			if at == 0 {
				s.drop(1)
				return
			}
			s.move(c, at, now)
			work = append(work, c)
		}
	}
}

// move attaches an entry and its copies to a node.
func (s *Set) move(i, n int32, now int64) {
	e := &s.entries[i]
	if e.node != 0 {
		s.stats.Conflicts++
		s.detach(e, now)
	} else if e.gpu > 0 || e.low > 0 {
		s.unwait(i)
	}
	e.node = n
	s.nodes[n].entries++
	s.change(n, e.gpu, e.low, now)
}

func (s *Set) detach(e *entry, now int64) {
	s.nodes[e.node].entries--
	s.change(e.node, -e.gpu, -e.low, now)
	e.node = 0
}

// add counts one more copy.
func (s *Set) add(i int32, gpu bool, now int64) {
	e := &s.entries[i]
	var g, l int32
	if gpu {
		g = 1
		s.stats.Copies++
	} else {
		l = 1
		s.stats.Lower++
		e.lowAt = now
	}
	e.gpu += g
	e.low += l
	if e.node != 0 {
		s.change(e.node, g, l, now)
	}
}

// take removes copies; an entry without any is given back.
func (s *Set) take(i int32, gpu, low int32, now int64) {
	e := &s.entries[i]
	e.gpu -= gpu
	e.low -= low
	s.stats.Copies -= int(gpu)
	s.stats.Lower -= int(low)
	if e.node != 0 {
		s.change(e.node, -gpu, -low, now)
	}
	if e.gpu > 0 || e.low > 0 {
		return
	}
	if e.node != 0 {
		s.detach(e, now)
	} else {
		s.unwait(i)
	}
	delete(s.byHash, e.hash)
	*e = entry{}
	s.freeEnts = append(s.freeEnts, i)
}

func (s *Set) remove(ev *kvevent.Removed, now int64) {
	gpu := kvevent.IsDevice(ev.Medium)
	if !s.counts(ev.Group, "", gpu) {
		s.stats.OtherGroup += uint64(len(ev.Hashes))
		return
	}
	s.lowerRemovals = s.lowerRemovals || !gpu
	s.stats.Removed += uint64(len(ev.Hashes))
	for _, h := range ev.Hashes {
		i := s.byHash[h]
		switch e := &s.entries[i]; {
		case gpu && e.gpu > 0:
			s.take(i, 1, 0, now)
		case !gpu && e.low > 0:
			s.take(i, 0, 1, now)
		default:
			s.stats.UnknownRemoved++
		}
	}
}

// clear empties the GPU. Lower tiers survive only if their removals are reported: a
// reset of an external store is announced nowhere. What is held afterwards is exact.
func (s *Set) clear(now int64) {
	for i := 1; i < len(s.entries); i++ {
		e := &s.entries[i]
		low := e.low
		if s.lowerRemovals {
			low = 0
		}
		if e.gpu > 0 || low > 0 {
			s.take(int32(i), e.gpu, low, now)
		}
	}
	s.partial, s.suspect, s.victim = false, false, 0
}

// Expire forgets lower-tier blocks past LowerTTL, see there. It looks at every block:
// call it now and then, such as once a minute.
func (s *Set) Expire(now time.Time) {
	if s.lowerRemovals || s.stats.Lower == 0 {
		return
	}
	at := now.UnixNano()
	for i := 1; i < len(s.entries); i++ {
		if e := &s.entries[i]; e.low > 0 && at-e.lowAt > int64(s.cfg.LowerTTL) {
			s.stats.Expired += uint64(e.low)
			s.take(int32(i), 0, e.low, at)
		}
	}
	s.flush()
}
