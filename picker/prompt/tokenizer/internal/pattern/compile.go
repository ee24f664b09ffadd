package pattern

import "errors"

var errTooLarge = errors.New("repeats make it too large")

// minimum is the length in characters of the shortest match (bounded).
func (n *node) minimum() int {
	switch n.kind {
	case kindSet:
		return 1
	case kindSequence:
		sum := 0
		for _, s := range n.subs {
			sum = min(unlimited, sum+s.minimum())
		}
		return sum
	case kindChoice:
		least := unlimited
		for _, s := range n.subs {
			least = min(least, s.minimum())
		}
		return least
	case kindRepeat:
		return min(unlimited, n.min*min(n.subs[0].minimum(), maxProgram))
	case kindAtomic:
		return n.subs[0].minimum()
	}
	return 0
}

// begins tells whether a match can begin with r; true when in doubt.
func (n *node) begins(r rune) bool {
	switch n.kind {
	case kindSet:
		return n.set.has(r)
	case kindSequence:
		for _, s := range n.subs {
			if s.begins(r) {
				return true
			}
			if s.minimum() > 0 {
				return false
			}
		}
		return false
	case kindChoice:
		for _, s := range n.subs {
			if s.begins(r) {
				return true
			}
		}
		return false
	case kindRepeat, kindAtomic:
		return n.subs[0].begins(r)
	}
	return false // takes no character: what follows decides
}

func (re *Regexp) add(i inst) int {
	re.prog = append(re.prog, i)
	return len(re.prog) - 1
}

func (re *Regexp) emit(n *node) error {
	if len(re.prog) > maxProgram {
		return errTooLarge
	}
	switch n.kind {
	case kindSet:
		re.add(inst{op: opSet, set: n.set})
	case kindSequence:
		for _, s := range n.subs {
			if err := re.emit(s); err != nil {
				return err
			}
		}
	case kindChoice:
		return re.emitChoice(n.subs)
	case kindRepeat:
		return re.emitRepeat(n)
	case kindAssert:
		re.add(inst{op: opAssert, x: n.assert})
	case kindAhead:
		y := 0
		if n.negative {
			y = 1
		}
		return re.emitInner(inst{op: opAhead, y: y}, n.subs[0])
	case kindAtomic:
		return re.emitInner(inst{op: opAtomic}, n.subs[0])
	}
	return nil
}

// emitInner emits a program of its own, run by the instruction before it.
func (re *Regexp) emitInner(i inst, n *node) error {
	at := re.add(i)
	if err := re.emit(n); err != nil {
		return err
	}
	re.add(inst{op: opMatch})
	re.prog[at].x = len(re.prog)
	return nil
}

func (re *Regexp) emitChoice(subs []*node) error {
	var jumps []int
	for i, s := range subs {
		split := -1
		if i < len(subs)-1 {
			split = re.add(inst{op: opSplit, x: len(re.prog) + 1})
		}
		if err := re.emit(s); err != nil {
			return err
		}
		if split >= 0 {
			jumps = append(jumps, re.add(inst{op: opJump}))
			re.prog[split].y = len(re.prog)
		}
	}
	for _, j := range jumps {
		re.prog[j].x = len(re.prog)
	}
	return nil
}

func (re *Regexp) emitRepeat(n *node) error {
	sub := n.subs[0]
	for (sub.kind == kindChoice || sub.kind == kindSequence) && len(sub.subs) == 1 {
		sub = sub.subs[0]
	}
	if sub.kind == kindSet && n.mode != '?' {
		i := inst{op: opRun, set: sub.set, min: n.min, max: n.max}
		if n.mode == '+' {
			i.y = 1
		}
		re.add(i)
		return nil
	}
	if n.mode == '+' {
		greedy := *n
		greedy.mode = 0
		return re.emitInner(inst{op: opAtomic}, &greedy)
	}
	for range n.min {
		if err := re.emit(sub); err != nil {
			return err
		}
	}
	fork := func() int { // at a chance to stop: greedy ones go on first
		at := re.add(inst{op: opSplit})
		re.prog[at].x, re.prog[at].y = at+1, at+1
		return at
	}
	leave := func(at int) {
		if n.mode == '?' {
			re.prog[at].x = len(re.prog)
		} else {
			re.prog[at].y = len(re.prog)
		}
	}
	if n.max == unlimited {
		at := fork()
		if err := re.emit(sub); err != nil {
			return err
		}
		re.add(inst{op: opJump, x: at})
		leave(at)
		return nil
	}
	var forks []int
	for range n.max - n.min {
		forks = append(forks, fork())
		if err := re.emit(sub); err != nil {
			return err
		}
	}
	for _, at := range forks {
		leave(at)
	}
	return nil
}
