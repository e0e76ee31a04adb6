package model

// A Check is something that must be so in every state.
type Check string

const (
	// Exclusion: at most one lease is alive. (G1)
	Exclusion Check = "exclusion"
	// Outlived: while a lease is alive, the key has its value in Redis. (G2)
	Outlived Check = "the key outlives the lease"
	// Orphan: what no line and no clean-up will see to any more is neither the key's
	// value nor in the queue, except a lease's value that is left to its TTL. A grant
	// does not excuse it, and a wake-up, which may be lost, neither. (G5)
	Orphan Check = "no key is held by nobody"
	// Refused: no value is dead whose acquisition has not ended. (G6, G7)
	Refused Check = "no line is refused"
	// Asleep: a line that waits gets the key by its own polls and the passing of
	// time, wherever all the others stand still or die. (G4, G6)
	Asleep Check = "no waiter sleeps for ever"
)

// Checks lists them all.
func Checks() []Check { return []Check{Exclusion, Outlived, Orphan, Refused, Asleep} }

// broken returns the first check that a state breaks, "" if none.
func (m *model) broken(s *state) Check {
	for _, check := range m.Checks {
		if !m.holds(check, s) {
			return check
		}
	}
	return ""
}

func (m *model) holds(check Check, s *state) bool {
	switch check {
	case Exclusion:
		alive := 0
		for i := range s.lines {
			alive += int(bit(s.lines[i].alive))
		}
		return alive <= 1
	case Outlived:
		for i, l := range s.lines {
			if l.alive && (s.key != valueOf(i, l.acquisition) || s.life != held) {
				return false
			}
		}
	case Orphan:
		return m.noOrphan(s)
	case Refused:
		for v := value(1); v <= maxValues; v++ {
			if s.dead.has(v) && s.current(v) && s.lines[v.line()].phase != releasing {
				return false
			}
		}
	case Asleep:
		for i := range s.lines {
			if s.lines[i].waits() && !m.wakes(s, i) {
				return false
			}
		}
	}
	return true
}

func (m *model) noOrphan(s *state) bool {
	for v := value(1); v <= maxValues; v++ {
		if s.placeOf(v) >= 0 && m.nobodys(s, v) {
			return false
		}
	}
	return s.life == free || s.life == left || !m.nobodys(s, s.key)
}

// nobodys tells whether nothing is under way or to come that sees to a value. A line
// that died leaves its values to their TTL.
func (m *model) nobodys(s *state, v value) bool {
	l := &s.lines[v.line()]
	if l.phase == dead || s.current(v) || l.cleanUp.has(value(v.acquisition())) {
		return false
	}
	for _, c := range l.out {
		if c.script != nothing && c.acquisition == v.acquisition() {
			return false
		}
	}
	return true
}

// wakes tells whether line i gets the key from here on by its own steps, its own
// wake-ups and the passing of time. Since nothing depends on the others then, it is
// asked once for all states that differ only in them.
func (m *model) wakes(s *state, i int) bool {
	n := *s
	for j := range n.lines {
		if j != i {
			n.lines[j] = line{phase: dead}
		}
	}
	p := n.pack(m.Lines)
	known, ok := m.awake[p]
	if !ok {
		known = m.alone(n, i, nil)
		m.awake[p] = known
	}
	return known
}

// alone lets line i go on alone, each time by the first of what it can do, and tells
// whether it gets the key.
func (m *model) alone(s state, i int, tell next) bool {
	for range 10 * maxValues { // each value before it costs a few steps
		if !s.lines[i].waits() {
			break
		}
		went := false
		m.goOn(s, i, func(n state, took steps) {
			if went {
				return
			}
			if s, went = n, true; tell != nil {
				tell(n, took)
			}
		})
		if !went {
			break
		}
	}
	return s.lines[i].phase == holding
}

// goOn carries out or loses what is under way, lets a stranger's key run out, and
// then polls, at a wake-up or without.
func (m *model) goOn(s state, i int, emit next) {
	for j, c := range s.lines[i].out {
		switch {
		case c.awaited:
			m.commandSteps(s, i, j, emit)
			return
		case c.script != nothing:
			s.drop(i, j)
			emit(s, steps{CommandLost})
			return
		}
	}
	v := valueOf(i, s.lines[i].acquisition)
	if s.life != free && s.key != v {
		m.expire(s, emit)
		return
	}
	only := func(step Step) next {
		return func(n state, took steps) {
			if took[0] == step {
				emit(n, took)
			}
		}
	}
	if s.wakeUps.has(v) {
		m.wakeUpSteps(s, v, only(WakeUpPoll))
	}
	m.ask(s, i, only(PollSend))
}
