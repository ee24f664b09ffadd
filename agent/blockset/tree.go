package blockset

import (
	"cmp"
	"slices"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// node is one canonical block. A node without copies stays while it has children: they
// can be hit again when it returns. Index 0 stands for "none" in every link and, as a
// parent, for the root of all prompts.
type node struct {
	canon               blockhash.Hash
	used                int64 // last store of it or of a block after it, unix nanoseconds
	parent              int32
	child, older, newer int32 // newest child; siblings
	depth               int32
	gpu, low            int32 // copies over all its engine hashes
	entries             int32 // engine hashes that name it
	gpuKids             int32 // children resident in the GPU
	prev, next          int32 // lru
	inLRU               bool
	dirty               bool
	live                bool
	visible             [numTiers]bool
}

func (n *node) resident(t Tier) bool { return n.gpu > 0 || t == All && n.low > 0 }

// nodeFor returns the node of a canonical hash, made below parent if it is new; 0 if
// there is no room.
func (s *Set) nodeFor(c blockhash.Hash, parent int32) int32 {
	if i, ok := s.byCanon[c]; ok {
		return i
	}
	if len(s.byCanon) >= s.cfg.MaxBlocks {
		return 0
	}
	i := int32(len(s.nodes))
	if k := len(s.freeNodes); k > 0 {
		i, s.freeNodes = s.freeNodes[k-1], s.freeNodes[:k-1]
	} else {
		s.nodes = append(s.nodes, node{})
	}
	p := &s.nodes[parent]
	s.nodes[i] = node{canon: c, parent: parent, depth: p.depth + 1, older: p.child, live: true}
	if p.child != 0 {
		s.nodes[p.child].newer = i
	}
	p.child = i
	s.byCanon[c] = i
	s.markDirty(i) // freed again if nothing comes to name it
	return i
}

// change adds copies to a node and keeps counts, LRU list and dirty list.
func (s *Set) change(i int32, gpu, low int32, now int64) {
	n := &s.nodes[i]
	was := n.gpu > 0
	n.gpu += gpu
	n.low += low
	s.markDirty(i)
	if gpu > 0 {
		s.touch(i, now)
	}
	switch is := n.gpu > 0; {
	case is && !was:
		s.stats.Blocks++
		if p := &s.nodes[n.parent]; n.parent != 0 {
			if p.gpuKids++; p.inLRU {
				s.lruRemove(n.parent)
			}
		}
		if n.gpuKids == 0 {
			s.lruInsert(i)
		}
	case !is && was:
		s.stats.Blocks--
		s.victim = max(s.victim, n.used)
		if n.inLRU {
			s.lruRemove(i)
		}
		if p := &s.nodes[n.parent]; n.parent != 0 {
			p.used = max(p.used, n.used) // it was in use as long as its child
			if p.gpuKids--; p.gpuKids == 0 && p.gpu > 0 {
				s.lruInsert(n.parent)
			}
		}
	}
}

// touch notes a use of a block.
func (s *Set) touch(i int32, now int64) {
	n := &s.nodes[i]
	n.used = max(n.used, now)
	if n.inLRU {
		s.lruRemove(i)
		s.lruInsert(i)
	}
}

func (s *Set) markDirty(i int32) {
	if n := &s.nodes[i]; !n.dirty {
		n.dirty = true
		s.dirty = append(s.dirty, i)
	}
}

// flush brings the closure up to date with residency and tells the sink the net
// change: first CLEARs, descendants first, then SETs, ancestors first. The cost is in
// proportion to the nodes that changed or flip.
func (s *Set) flush() {
	if len(s.dirty) == 0 {
		return
	}
	// Ancestors first, so that each node's parent is final and no node flips twice.
	slices.SortFunc(s.dirty, func(a, b int32) int { return cmp.Compare(s.nodes[a].depth, s.nodes[b].depth) })
	for t := range numTiers {
		s.sets, s.clrs = s.sets[:0], s.clrs[:0]
		for _, i := range s.dirty {
			s.propagate(t, i)
		}
		s.stats.Visible[t] += len(s.sets) - len(s.clrs)
		for _, i := range slices.Backward(s.clrs) {
			s.sink.Clear(t, s.nodes[i].canon)
		}
		for _, i := range s.sets {
			s.sink.Set(t, s.nodes[i].canon)
		}
	}
	for _, i := range s.dirty {
		s.nodes[i].dirty = false
	}
	for _, i := range s.dirty {
		s.free(i)
	}
	s.dirty = s.dirty[:0]
}

// propagate flips node i and what depends on it, parents before children.
func (s *Set) propagate(t Tier, i int32) {
	s.stack = append(s.stack[:0], i)
	for len(s.stack) > 0 {
		i := s.stack[len(s.stack)-1]
		s.stack = s.stack[:len(s.stack)-1]
		n := &s.nodes[i]
		want := n.resident(t) && s.nodes[n.parent].visible[t]
		if want == n.visible[t] {
			continue
		}
		n.visible[t] = want
		if want {
			s.sets = append(s.sets, i)
		} else {
			s.clrs = append(s.clrs, i)
		}
		for c := n.child; c != 0; c = s.nodes[c].older {
			s.stack = append(s.stack, c)
		}
	}
}

// free gives back a node that nothing names and nothing follows, and its ancestors
// that are left the same way.
func (s *Set) free(i int32) {
	for i != 0 {
		n := &s.nodes[i]
		if !n.live || n.entries > 0 || n.child != 0 {
			return
		}
		p := &s.nodes[n.parent]
		if n.newer != 0 {
			s.nodes[n.newer].older = n.older
		} else {
			p.child = n.older
		}
		if n.older != 0 {
			s.nodes[n.older].newer = n.newer
		}
		delete(s.byCanon, n.canon)
		n.live = false
		s.freeNodes = append(s.freeNodes, i)
		i = n.parent
	}
}

// list is the LRU order of the GPU tier's leaves. Only leaves can be the next victims:
// an ancestor was used whenever its descendant was.
type list struct{ front, back int32 }

func (s *Set) lruRemove(i int32) {
	n := &s.nodes[i]
	n.inLRU = false
	if n.prev != 0 {
		s.nodes[n.prev].next = n.next
	} else {
		s.lru.front = n.next
	}
	if n.next != 0 {
		s.nodes[n.next].prev = n.prev
	} else {
		s.lru.back = n.prev
	}
	n.prev, n.next = 0, 0
}

// lruInsert puts a node where its last use belongs. New stores go to the back; a block
// whose last child was evicted belongs near the front, since that child was a victim.
// The walk is cut: the list is an estimate, and out-of-order removals must stay cheap.
func (s *Set) lruInsert(i int32) {
	const maxWalk = 32
	n := &s.nodes[i]
	n.inLRU = true
	if b := s.lru.back; b == 0 || s.nodes[b].used <= n.used {
		n.prev, n.next = b, 0
		if b != 0 {
			s.nodes[b].next = i
		} else {
			s.lru.front = i
		}
		s.lru.back = i
		return
	}
	at := s.lru.front
	for range maxWalk {
		if s.nodes[at].used >= n.used {
			break
		}
		at = s.nodes[at].next // not 0: the back is newer
	}
	a := &s.nodes[at]
	n.prev, n.next = a.prev, at
	if a.prev != 0 {
		s.nodes[a.prev].next = i
	} else {
		s.lru.front = i
	}
	a.prev = i
}
