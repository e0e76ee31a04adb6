package model

// This file is Redis: what it does with a command, and with time.

// carryOut lets Redis carry out a line's command. Answers that nobody can be late
// for are read with it; held and alive wait until the line reads them.
func (m *model) carryOut(s state, i, j int, emit next) {
	switch c := s.lines[i].out[j]; c.script {
	case acquire, poll:
		m.acquire(s, i, j, emit)
	case renew:
		m.renew(s, i, j, emit)
	default:
		m.release(s, i, j, emit)
	}
}

// acquire is the script of that name. Where others are queued before the value,
// those whose inbox nobody hears are skipped; it may be any number of them.
func (m *model) acquire(s state, i, j int, emit next) {
	c := s.lines[i].out[j]
	v := valueOf(i, c.acquisition)
	switch {
	case s.dead.has(v):
		if s.drop(i, j); c.awaited {
			m.end(&s, i)
		}
		emit(s, steps{AcquireDead})
	case s.key == v:
		s.beginTTL(v)
		s.answerHeld(i, j)
		emit(s, steps{AcquireOurs})
	case s.life != free:
		m.busy(s, i, j, steps{}, emit)
	default:
		least, most := m.queuedBefore(&s, v, c.place)
		for skipped := range most {
			n := s
			took := steps{}.and(n.skip(skipped)).and(AcquireHandOver)
			m.grantHead(&n)
			m.busy(n, i, j, took, emit)
		}
		for skipped := least; skipped <= most; skipped++ {
			n := s
			took := steps{}.and(n.skip(skipped)).and(AcquireHold)
			n.takeOut(v)
			n.beginTTL(v)
			n.answerHeld(i, j)
			emit(n, took)
		}
	}
}

// queuedBefore returns how many are queued before a value at least and at most. The
// value may have a place, or have had one.
func (m *model) queuedBefore(s *state, v value, number uint8) (least, most int) {
	if at := s.placeOf(v); at >= 0 {
		return at, at
	}
	queued := s.queued()
	if m.Detail == Loose {
		return 0, queued
	}
	n := 0
	for n < queued && (number == 0 || s.queue[n].number < number) {
		n++
	}
	return n, n
}

// busy answers an acquire whose key is a stranger's. A poll keeps its place, or puts
// it back where it names one.
func (m *model) busy(s state, i, j int, before steps, emit next) {
	c := s.lines[i].out[j]
	s.drop(i, j)
	v := valueOf(i, c.acquisition)
	switch at := s.placeOf(v); {
	case c.script == acquire:
		emit(s, before.and(AcquireBusy))
	case at >= 0:
		if c.awaited {
			s.lines[i].place = s.queue[at].number
		}
		emit(s, before.and(AcquireKeep))
	case m.Detail == Loose:
		for at := s.queued(); at >= 0; at-- {
			n := s
			n.insert(at, place{value: v})
			emit(n, before.and(AcquireQueue))
		}
	default:
		number := s.put(v, c.place)
		if c.awaited {
			s.lines[i].place = number
		}
		emit(s, before.and(AcquireQueue))
	}
}

// answerHeld answers held; nobody reads what was left behind.
func (s *state) answerHeld(i, j int) {
	if c := &s.lines[i].out[j]; c.awaited {
		c.answered = true
	} else {
		s.drop(i, j)
	}
}

// renew is the script of that name. Gone and taken end the lease at once.
func (m *model) renew(s state, i, j int, emit next) {
	c := s.lines[i].out[j]
	v := valueOf(i, c.acquisition)
	if s.key == v {
		s.beginTTL(v)
		s.answerHeld(i, j)
		emit(s, steps{RenewAlive})
		return
	}
	if s.drop(i, j); c.awaited {
		s.endLease(i)
	}
	if s.life == free {
		emit(s, steps{RenewGone})
	} else {
		emit(s, steps{RenewTaken})
	}
}

// release is the script of release and leave. One that is confirmed ends what it was
// sent for: the acquisition, or the clean-up of its value.
func (m *model) release(s state, i, j int, emit next) {
	c := s.lines[i].out[j]
	v := valueOf(i, c.acquisition)
	s.drop(i, j)
	var took steps
	notOurs, handOver, del := ReleaseNotOurs, ReleaseHandOver, ReleaseDelete
	switch c.script {
	case releaseDead:
		m.makeDead(&s, v)
		took = steps{ReleaseDead}
	case leave:
		m.makeDead(&s, v)
		notOurs, handOver, del = LeaveDead, LeaveHandOver, LeaveDelete
	}
	switch {
	case c.awaited && c.script == leave:
		s.lines[i].cleanUp = s.lines[i].cleanUp.without(value(c.acquisition))
	case c.awaited:
		s.forget(i)
	}
	forgets := m.Fault == LeaveForgetsGrant && c.script == leave && s.life == granted
	if s.key != v || forgets {
		emit(s, took.and(notOurs))
		return
	}
	queued := s.queued()
	for skipped := range queued {
		n := s
		took := took.and(n.skip(skipped)).and(handOver)
		m.grantHead(&n)
		emit(n, took)
	}
	took = took.and(s.skip(queued)).and(del)
	s.endKey()
	emit(s, took)
}

// makeDead makes a value dead and takes its place out of the queue.
func (m *model) makeDead(s *state, v value) {
	if m.Fault != NoDeadValues {
		s.dead = s.dead.with(v)
	}
	s.takeOut(v)
}

// skip takes some heads out of the queue.
func (s *state) skip(heads int) Step {
	for range heads {
		s.takeOut(s.queue[0].value)
	}
	if heads == 0 {
		return ""
	}
	return HandOverSkip
}

// grantHead hands the key over to the head of the queue, and publishes a wake-up.
func (m *model) grantHead(s *state) {
	v := s.queue[0].value
	s.takeOut(v)
	s.endKey()
	s.key, s.life = v, granted
	if m.Detail != Loose && s.lines[v.line()].phase != dead {
		s.wakeUps = s.wakeUps.with(v)
	}
}

// beginTTL lets the key have a value for a TTL from now. Each stamp that the value's
// line has taken by now gives a deadline before the end of that TTL. It says nothing
// about other lines, whose TTL may be a longer one.
func (s *state) beginTTL(v value) {
	if s.life != left || s.key != v {
		s.life = held
	}
	s.endTTL()
	s.key = v
	l := &s.lines[v.line()]
	if !s.current(v) {
		return
	}
	l.covered = l.alive
	for j := range l.out {
		if c := &l.out[j]; c.awaited && (c.script.takes() || c.script == renew) {
			c.covered = true
		}
	}
}

// endKey frees the key.
func (s *state) endKey() {
	s.key, s.life = 0, free
	s.endTTL()
}

// endTTL forgets what the key's present TTL covers.
func (s *state) endTTL() {
	for i := range s.lines {
		l := &s.lines[i]
		l.covered = false
		for j := range l.out {
			l.out[j].covered = false
		}
	}
}

// expire lets the key's TTL or the grant end. A lease that is stamped before the
// TTL's beginning has ended by then, so that a key whose lease is alive waits for
// LeaseEnd; and an answer that is stamped before is read too late.
func (m *model) expire(s state, emit next) {
	switch s.life {
	case free:
		return
	case granted:
		s.endKey()
		emit(s, steps{GrantExpire})
		return
	}
	l := &s.lines[s.key.line()]
	if l.covered {
		return
	}
	for j := range l.out {
		c := &l.out[j]
		c.ended = c.ended || c.covered
	}
	s.endKey()
	emit(s, steps{KeyExpire})
}
