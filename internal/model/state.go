package model

import (
	"fmt"
	"math/bits"
	"slices"
)

const (
	maxLines        = 3
	maxAcquisitions = 2 // of one line
	maxValues       = maxLines * maxAcquisitions
	maxCommands     = 3 // of one line, not yet answered
)

// A value names one acquisition of one line; 0 is none.
type value uint8

func valueOf(line int, acquisition uint8) value {
	return value(line*maxAcquisitions) + value(acquisition)
}

func (v value) line() int          { return int(v-1) / maxAcquisitions }
func (v value) acquisition() uint8 { return uint8(v-1)%maxAcquisitions + 1 }
func (v value) String() string     { return fmt.Sprintf("%c%d", 'A'+v.line(), v.acquisition()) }

// A set of values.
type set uint8

func (s set) has(v value) bool    { return s&(1<<(v-1)) != 0 }
func (s set) with(v value) set    { return s | 1<<(v-1) }
func (s set) without(v value) set { return s &^ (1 << (v - 1)) }

// A life is how a key lives. Every life can end by itself: what sets a key gives it
// a TTL.
type life uint8

const (
	free    life = iota
	granted      // by a hand-over, for a short time
	held         // for the TTL of its line
	left         // held, and nobody but its TTL will end it
)

// A phase is what a line is at.
type phase uint8

const (
	idle phase = iota
	asking
	waiting
	holding
	over // its lease ended, unreleased
	releasing
	dead
)

var phases = [...]string{"idle", "asking", "waiting", "holding", "over", "releasing", "dead"}

// A script is what a command asks of Redis.
type script uint8

const (
	nothing script = iota
	acquire        // plain: takes no place
	poll           // an acquire that takes a place
	renew
	release
	releaseDead // a release that also makes the value dead
	leave
)

var scripts = [...]string{"nothing", "acquire", "poll", "renew", "release", "release(dead)", "leave"}

// takes tells whether a script can take the key or a place for its value.
func (s script) takes() bool { return s == acquire || s == poll }

// A command is one that its line has sent and that is not over.
type command struct {
	script      script
	acquisition uint8
	place       uint8 // that a poll names; 0: none yet
	awaited     bool  // by its line; else it was left behind
	answered    bool  // with held or alive, and the answer not yet read
	covered     bool  // stamped before the key's present TTL began
	ended       bool  // stamped before a TTL that is over: read from now on, it is late
}

// A line is what one Client has for the key.
type line struct {
	phase       phase
	begun       uint8 // acquisitions
	acquisition uint8 // whose value the line has; the last one's while idle
	place       uint8 // remembered, 0: none
	alive       bool  // the lease's context
	covered     bool  // the lease: stamped before the key's present TTL began
	open        bool  // a command that could take for the value went unanswered
	placed      bool  // a poll was sent for the value
	cleanUp     set   // values to leave, by acquisition
	out         [maxCommands]command
}

// A place is one in the queue.
type place struct {
	value  value
	number uint8
}

// A state is all that is known of the key, in Redis, in its lines and in between.
// Numbers count only by their order.
type state struct {
	key     value
	life    life
	dead    set
	wakeUps set              // under way
	queue   [maxValues]place // by number
	lines   [maxLines]line
}

// current tells whether a value is that of an acquisition that has not ended.
func (s *state) current(v value) bool {
	l := &s.lines[v.line()]
	return l.phase != idle && l.phase != dead && l.acquisition == v.acquisition()
}

func (s *state) queued() int {
	n := 0
	for n < len(s.queue) && s.queue[n].value != 0 {
		n++
	}
	return n
}

// placeOf returns where in the queue a value stands, -1 if it does not.
func (s *state) placeOf(v value) int {
	for i := range s.queue {
		if s.queue[i].value == v {
			return i
		}
	}
	return -1
}

func (s *state) takeOut(v value) {
	if i := s.placeOf(v); i >= 0 {
		copy(s.queue[i:], s.queue[i+1:])
		s.queue[len(s.queue)-1] = place{}
	}
}

// put puts a value in the queue and returns its number, a new one for 0.
func (s *state) put(v value, number uint8) uint8 {
	if number == 0 {
		number = uint8(max(1, bits.Len32(s.numbers())))
	}
	at := s.queued()
	for at > 0 && s.queue[at-1].number > number {
		at--
	}
	s.insert(at, place{v, number})
	return number
}

func (s *state) insert(at int, p place) {
	copy(s.queue[at+1:], s.queue[at:])
	s.queue[at] = p
}

// numbers returns the numbers that are in use, as bits.
func (s *state) numbers() uint32 {
	var used uint32
	for _, p := range s.queue {
		used |= 1 << p.number
	}
	for i := range s.lines {
		used |= 1 << s.lines[i].place
		for j := range s.lines[i].out {
			used |= 1 << s.lines[i].out[j].place
		}
	}
	return used &^ 1
}

// settle takes out of a state what can make no difference any more, so that states
// that differ only in that are one.
func (m *model) settle(s *state) {
	for i := range m.Lines {
		l := &s.lines[i]
		for a := uint8(1); a <= maxAcquisitions; a++ {
			if v := valueOf(i, a); m.Detail != Full && m.spent(s, v) {
				s.clear(v)
			}
		}
		sortCommands(&l.out)
		if m.Detail != Full && m.done(s, i) {
			*l = line{phase: dead}
		}
	}
	if m.Detail != Loose {
		s.renumber()
	}
}

// spent tells whether a value can never come to the key or into the queue again.
// Whatever carries it then changes nothing, so that it is as good as lost; but it
// takes up one of the commands that its line may have unanswered.
func (m *model) spent(s *state, v value) bool {
	if s.current(v) || s.key == v || s.placeOf(v) >= 0 {
		return false
	}
	l := &s.lines[v.line()]
	if m.Fault == ValueUsedAgain && l.phase != dead && int(l.begun) < m.Acquisitions {
		return false
	}
	for _, c := range l.out {
		if c.script.takes() && c.acquisition == v.acquisition() && !s.dead.has(v) {
			return false
		}
	}
	return true
}

// clear takes out all that carries a value.
func (s *state) clear(v value) {
	s.dead, s.wakeUps = s.dead.without(v), s.wakeUps.without(v)
	l := &s.lines[v.line()]
	l.cleanUp = l.cleanUp.without(value(v.acquisition()))
	for j, c := range l.out {
		if c.acquisition == v.acquisition() {
			s.drop(v.line(), j)
		}
	}
}

// done tells whether a line has come to the end of what it does here, and nothing
// of it is left: it is as one that died.
func (m *model) done(s *state, i int) bool {
	l := &s.lines[i]
	ended := *l == line{begun: uint8(m.Acquisitions), acquisition: l.acquisition}
	if !ended || s.life != free && s.key.line() == i {
		return false
	}
	return !slices.ContainsFunc(s.queue[:s.queued()], func(p place) bool { return p.value.line() == i })
}

// sortCommands puts a line's commands in an order that says nothing.
func sortCommands(out *[maxCommands]command) {
	for i := 1; i < len(out); i++ {
		for j := i; j > 0 && out[j].pack() > out[j-1].pack(); j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
}

// renumber makes the numbers that are in use 1, 2, 3 and so on, in their order.
func (s *state) renumber() {
	used := s.numbers()
	if used&(used+2) == 0 {
		return
	}
	rank := func(number *uint8) {
		if *number != 0 {
			*number = uint8(bits.OnesCount32(used & (2<<*number - 1)))
		}
	}
	for i := range s.queue {
		rank(&s.queue[i].number)
	}
	for i := range s.lines {
		rank(&s.lines[i].place)
		for j := range s.lines[i].out {
			rank(&s.lines[i].out[j].place)
		}
	}
}
