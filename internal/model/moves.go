package model

import (
	"fmt"
	"strings"
)

// steps are what happens in one move, from one state to the next.
type steps [4]Step

// and adds a step; "" is none.
func (s steps) and(step Step) steps {
	for i := range s {
		if s[i] == "" {
			s[i] = step
			break
		}
	}
	return s
}

func (s steps) String() string {
	var b strings.Builder
	for i, step := range s {
		if i > 0 && step != "" {
			b.WriteString(" ")
		}
		b.WriteString(string(step))
	}
	return b.String()
}

// next is told each state that can follow, and by which steps.
type next func(n state, took steps)

// An actor is who makes a move: a line, one of its commands, or what is in Redis or
// on its way for a value.
type actor struct {
	value  value // of the line, where it is the line
	script script
	isLine bool
}

func (a actor) String() string {
	switch {
	case a.isLine:
		return fmt.Sprintf("%c", 'A'+a.value.line())
	case a.script != nothing:
		return fmt.Sprintf("%v's %s", a.value, scripts[a.script])
	}
	return a.value.String()
}

// moves calls emit with each state that can follow.
func (m *model) moves(s state, emit func(n state, by actor, took steps)) {
	var by actor
	tell := func(n state, took steps) { emit(n, by, took) }
	for i := range m.Lines {
		by = actor{value: valueOf(i, 1), isLine: true}
		m.lineSteps(s, i, tell)
		for j := range m.Unanswered {
			c := s.lines[i].out[j]
			by = actor{value: valueOf(i, c.acquisition), script: c.script}
			m.commandSteps(s, i, j, tell)
		}
	}
	for v := value(1); int(v) <= m.Lines*maxAcquisitions; v++ {
		if m.wakeUpUnderWay(&s, v) {
			by = actor{value: v}
			m.wakeUpSteps(s, v, tell)
		}
	}
	by = actor{value: s.key}
	m.expire(s, tell)
}
