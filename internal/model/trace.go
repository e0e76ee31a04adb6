package model

import (
	"fmt"
	"slices"
	"strings"
)

// A Violation is a state that breaks a check, and a shortest way to it.
type Violation struct {
	Check Check
	Steps []steps
	Trace []string
}

func (v *Violation) String() string {
	return fmt.Sprintf("broken: %s\n%s", v.Check, strings.Join(v.Trace, "\n"))
}

// violation tells how the state found last breaks a check.
func (m *model) violation(check Check, st *store) *Violation {
	v := &Violation{Check: check}
	var s state
	for i, to := range m.way(st) {
		s = m.follow(s, to, func(by actor, took steps, n *state) {
			v.Steps = append(v.Steps, took)
			v.Trace = append(v.Trace, fmt.Sprintf("%2d  %-18v %-36v %v", i+1, by, took, n))
		})
	}
	for i := range s.lines {
		if check != Asleep || !s.lines[i].waits() || m.alone(s, i, nil) {
			continue
		}
		v.Trace = append(v.Trace, fmt.Sprintf("    %c goes on alone:", 'A'+i))
		m.alone(s, i, func(n state, took steps) {
			v.Trace = append(v.Trace, fmt.Sprintf("    %-18s %-36v %v", "", took, &n))
		})
	}
	return v
}

// way returns how the state found last was reached.
func (m *model) way(st *store) []packed {
	var way []packed
	for at := uint32(len(st.states) - 1); at != 0; at = st.from[at] {
		way = append(way, st.states[at])
	}
	slices.Reverse(way)
	return way
}

// follow makes the move from a state to the next one of a way, in which the lines
// may be called otherwise. They keep their names in what it tells and returns.
func (m *model) follow(s state, to packed, tell func(actor, steps, *state)) state {
	var next state
	reached := false
	m.moves(s, func(n state, by actor, took steps) {
		m.settle(&n)
		if !reached && n.pack(m.Lines) == to {
			reached, next = true, n
			tell(by, took, &n)
		}
	})
	return next
}

// String shows a state in one line.
func (s *state) String() string {
	var b strings.Builder
	switch s.life {
	case free:
		b.WriteString("key free")
	case granted:
		fmt.Fprintf(&b, "key granted to %v", s.key)
	case held, left:
		fmt.Fprintf(&b, "key has %v", s.key)
	}
	for i := range s.queued() {
		fmt.Fprintf(&b, ", %v at place %d", s.queue[i].value, s.queue[i].number)
	}
	for v := value(1); v <= maxValues; v++ {
		if s.dead.has(v) {
			fmt.Fprintf(&b, ", %v dead", v)
		}
		if s.wakeUps.has(v) {
			fmt.Fprintf(&b, ", wake-up for %v under way", v)
		}
	}
	for i := range s.lines {
		if l := &s.lines[i]; l.begun > 0 || l.phase == dead {
			fmt.Fprintf(&b, "; %c %s%s", 'A'+i, phases[l.phase], l)
		}
	}
	return b.String()
}

func (l *line) String() string {
	var b strings.Builder
	if l.alive {
		b.WriteString(" with a lease")
	}
	for a := uint8(1); a <= maxAcquisitions; a++ {
		if l.cleanUp.has(value(a)) {
			fmt.Fprintf(&b, ", to leave %d", a)
		}
	}
	for _, c := range l.out {
		switch {
		case c.script == nothing:
		case c.answered:
			fmt.Fprintf(&b, ", %s(%d) answered", scripts[c.script], c.acquisition)
		case c.awaited:
			fmt.Fprintf(&b, ", %s(%d) sent", scripts[c.script], c.acquisition)
		default:
			fmt.Fprintf(&b, ", %s(%d) left behind", scripts[c.script], c.acquisition)
		}
	}
	return b.String()
}
