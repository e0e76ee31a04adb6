package model

// This file is what a line does.

// send lets line i send a command that it awaits, if not too many are unanswered.
func (m *model) send(s *state, i int, sc script, acquisition uint8) bool {
	c := command{script: sc, acquisition: acquisition, awaited: true}
	if sc == poll {
		c.place = s.lines[i].place
	}
	return m.put(s, i, c)
}

// put puts a command among those that are under way.
func (m *model) put(s *state, i int, c command) bool {
	for j := range m.Unanswered {
		if s.lines[i].out[j].script == nothing {
			s.lines[i].out[j] = c
			return true
		}
	}
	return false
}

// drop forgets a command that is over.
func (s *state) drop(i, j int) { s.lines[i].out[j] = command{} }

// waits tells whether a line wants the key and does not hold it.
func (l *line) waits() bool { return l.phase == asking || l.phase == waiting }

// awaits tells whether a line waits for the answer of a command, the clean-up's
// leaves apart.
func (l *line) awaits() bool {
	for _, c := range l.out {
		if c.awaited && c.script != leave {
			return true
		}
	}
	return false
}

func (l *line) awaitsLeave() bool {
	for _, c := range l.out {
		if c.awaited && c.script == leave {
			return true
		}
	}
	return false
}

// lineSteps are what line i can do by itself. A line has at most one command in
// flight that it awaits, and its clean-up one more.
func (m *model) lineSteps(s state, i int, emit next) {
	l := &s.lines[i]
	if l.phase != dead {
		n := s
		n.die(i)
		emit(n, steps{LineDie})
	}
	if l.cleanUp != 0 && !l.awaitsLeave() {
		for a := uint8(1); a <= maxAcquisitions; a++ {
			if n := s; l.cleanUp.has(value(a)) && m.send(&n, i, leave, a) {
				emit(n, steps{LeaveSend})
			}
		}
	}
	if l.phase == holding {
		n := s
		n.endLease(i)
		// A renewal that is under way is discarded, which leaves it behind.
		if m.leavesBehind() || !l.awaits() {
			emit(n, steps{LeaseEnd})
		}
	}
	if l.awaits() {
		return
	}
	switch l.phase {
	case idle:
		m.begin(s, i, emit)
	case asking, waiting:
		m.ask(s, i, emit)
	case holding:
		if n := s; m.send(&n, i, renew, l.acquisition) {
			emit(n, steps{RenewSend})
		}
		m.sendRelease(s, i, ReleaseSend, emit)
	case over:
		m.sendRelease(s, i, ReleaseSend, emit)
		n := s
		m.lose(&n, i)
		emit(n, steps{LeaseLost})
	case releasing:
		m.sendRelease(s, i, ReleaseAgain, emit)
		n := s
		m.lose(&n, i)
		emit(n, steps{ReleaseFail})
	}
}

// begin begins an acquisition, with a new value.
func (m *model) begin(s state, i int, emit next) {
	l := &s.lines[i]
	if int(l.begun) == m.Acquisitions {
		return
	}
	l.begun++
	l.acquisition = l.begun
	if m.Fault == ValueUsedAgain {
		l.acquisition = 1
	}
	l.phase = asking
	if m.send(&s, i, acquire, l.acquisition) {
		emit(s, steps{AcquireSend})
	}
}

// ask is what a line does that holds nothing and has no answer to wait for.
func (m *model) ask(s state, i int, emit next) {
	l := &s.lines[i]
	if n := s; l.phase == asking && l.open && m.send(&n, i, acquire, l.acquisition) {
		emit(n, steps{AcquireAgain})
	}
	if m.Fault != NoPolling || l.place == 0 {
		m.sendPoll(s, i, PollSend, emit)
	}
	m.end(&s, i)
	emit(s, steps{AcquireGiveUp})
}

func (m *model) sendPoll(s state, i int, step Step, emit next) {
	l := &s.lines[i]
	l.phase, l.placed = waiting, true
	if m.send(&s, i, poll, l.acquisition) {
		emit(s, steps{step})
	}
}

// sendRelease ends the lease before it sends anything.
func (m *model) sendRelease(s state, i int, step Step, emit next) {
	s.endLease(i)
	l := &s.lines[i]
	l.phase = releasing
	sc := release
	if l.open && m.Fault != ServedValueQueued {
		sc = releaseDead
	}
	if m.send(&s, i, sc, l.acquisition) {
		emit(s, steps{step})
	}
}

// endLease ends the lease's context, and the wait for a renewal.
func (s *state) endLease(i int) {
	l := &s.lines[i]
	l.phase, l.alive, l.covered = over, false, false
	for j := range l.out {
		if l.out[j].script == renew && l.out[j].awaited {
			s.leaveBehind(i, j)
		}
	}
}

// end ends an acquisition. Its value goes to clean-up if a command that could take
// for it went unanswered, or if it had a place.
func (m *model) end(s *state, i int) {
	l := &s.lines[i]
	if l.open || l.placed {
		l.cleanUp = l.cleanUp.with(value(l.acquisition))
	}
	s.forget(i)
}

// lose ends an acquisition that had a lease. Without clean-up its key is left to the
// TTL.
func (m *model) lose(s *state, i int) {
	l := &s.lines[i]
	if !l.open && !l.placed && s.key == valueOf(i, l.acquisition) {
		s.life = left
	}
	m.end(s, i)
}

// forget makes a line idle.
func (s *state) forget(i int) {
	l := &s.lines[i]
	l.phase, l.place = idle, 0
	l.alive, l.covered, l.open, l.placed = false, false, false, false
}

// die ends a line for good. What Redis has answered and it has not read is no more.
func (s *state) die(i int) {
	l := &s.lines[i]
	for j := range l.out {
		if l.out[j].script != nothing {
			s.leaveBehind(i, j)
		}
	}
	*l = line{phase: dead, out: l.out}
	for a := uint8(1); a <= maxAcquisitions; a++ {
		s.wakeUps = s.wakeUps.without(valueOf(i, a))
	}
}

// leaveBehind ends the wait for a command's answer.
func (s *state) leaveBehind(i, j int) {
	c := &s.lines[i].out[j]
	if c.answered {
		s.drop(i, j)
		return
	}
	c.awaited, c.covered, c.ended = false, false, false
}

// leavesBehind tells whether a line may stop waiting for an answer.
func (m *model) leavesBehind() bool { return m.Unanswered > 1 }

// commandSteps are what can happen to a command: Redis carries it out, it is lost,
// its answer is read, or nobody waits for it any more.
func (m *model) commandSteps(s state, i, j int, emit next) {
	c := s.lines[i].out[j]
	if c.script == nothing {
		return
	}
	if c.answered {
		m.read(s, i, j, emit)
	} else {
		m.carryOut(s, i, j, emit)
		another := command{script: c.script, acquisition: c.acquisition, place: c.place}
		if n := s; m.Copies && m.put(&n, i, another) {
			emit(n, steps{CommandCopied})
		}
	}
	if c.awaited && m.leavesBehind() {
		n := s
		n.leaveBehind(i, j)
		if c.script.takes() {
			n.lines[i].open = true
		}
		emit(n, steps{CommandLeftBehind})
	}
	if !c.awaited {
		s.drop(i, j)
		emit(s, steps{CommandLost})
	}
}

// read reads held or alive. Nothing compels a line to read it soon.
func (m *model) read(s state, i, j int, emit next) {
	c := s.lines[i].out[j]
	s.drop(i, j)
	l := &s.lines[i]
	if c.script == renew {
		l.covered = c.covered
		emit(s, steps{ReplyAlive})
		return
	}
	if !c.ended || m.Fault == StampedAtReceipt {
		n := s
		n.hold(i, c.covered && m.Fault != StampedAtReceipt)
		emit(n, steps{ReplyHeld})
	}
	l.open = l.open || m.Fault != LateHeldForgotten
	emit(s, steps{ReplyLate})
}

// hold gives a line a lease.
func (s *state) hold(i int, covered bool) {
	l := &s.lines[i]
	l.phase, l.place, l.alive, l.covered = holding, 0, true, covered
}

// wakeUpSteps are what can happen to the wake-up for a value.
func (m *model) wakeUpSteps(s state, v value, emit next) {
	s.wakeUps = s.wakeUps.without(v)
	emit(s, steps{WakeUpLost})
	l := &s.lines[v.line()]
	switch {
	case !s.current(v) && !l.cleanUp.has(value(v.acquisition())):
		l.cleanUp = l.cleanUp.with(value(v.acquisition()))
		emit(s, steps{WakeUpLeave})
	case !s.current(v) || l.phase != waiting:
		emit(s, steps{WakeUpIgnore})
	case m.Fault == WakeUpBelieved:
		s.hold(v.line(), false)
		emit(s, steps{WakeUpPoll})
	case !l.awaits():
		m.sendPoll(s, v.line(), WakeUpPoll, emit)
	}
}

// wakeUpUnderWay tells whether a wake-up for a value can arrive.
func (m *model) wakeUpUnderWay(s *state, v value) bool {
	if m.Detail != Loose {
		return s.wakeUps.has(v)
	}
	l := &s.lines[v.line()]
	return l.phase != dead && v.acquisition() <= l.begun
}
