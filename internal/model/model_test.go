package model

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	whole = flag.Bool("whole", false, "let TestWhole explore all it can, which takes three minutes")
	each  = flag.Duration("each", 50*time.Second, "with -whole: how long one exploration may take")
	raced = false // by the race detector, under which all takes ten times as long
)

// safe is what holds even where commands are copied, which G5 leaves to the TTL.
var safe = []Check{Exclusion, Outlived, Refused, Asleep}

// explored requires that nothing is broken, and all was explored.
func explored(t *testing.T, c Config) *Report {
	t.Helper()
	r := Explore(c)
	t.Log(r)
	require.Nil(t, r.Violation)
	require.Zero(t, r.Cut)
	return r
}

// Two lines, each with two commands unanswered at a time: late, lost, overtaken by
// later ones.
func TestWhole_TwoLines(t *testing.T) {
	explored(t, Config{Lines: 2, Acquisitions: 1, Unanswered: 2, Detail: Loose})
	if raced {
		t.Skip("the rest, under the race detector")
	}
	explored(t, Config{Lines: 2, Acquisitions: 1, Unanswered: 2})
}

// Two lines that come back, each with a new value.
func TestWhole_TwoLinesAgain(t *testing.T) {
	explored(t, Config{Lines: 2, Acquisitions: 2, Unanswered: 1})
}

// Three lines, none of whose commands is late or lost.
func TestWhole_ThreeLines(t *testing.T) {
	explored(t, Config{Lines: 3, Acquisitions: 1, Unanswered: 1})
	explored(t, Config{Lines: 3, Acquisitions: 1, Unanswered: 1, Detail: Loose})
}

// Two lines behind something that copies commands.
func TestWhole_Copies(t *testing.T) {
	explored(t, Config{Lines: 2, Acquisitions: 1, Unanswered: 2, Copies: true, Detail: Loose, Checks: safe})
}

// All of it, where -whole asks for it. What takes longer than -each is cut.
func TestWhole(t *testing.T) {
	if !*whole {
		t.Skip("without -whole")
	}
	for _, c := range []Config{
		{Lines: 2, Acquisitions: 1, Unanswered: 2, Detail: Full},
		{Lines: 2, Acquisitions: 2, Unanswered: 1, Detail: Full},
		{Lines: 2, Acquisitions: 1, Unanswered: 2, Copies: true, Checks: safe},
		{Lines: 2, Acquisitions: 1, Unanswered: 3, Detail: Loose},
		{Lines: 2, Acquisitions: 2, Unanswered: 2, Detail: Loose},
		{Lines: 3, Acquisitions: 2, Unanswered: 1, Detail: Loose},
		{Lines: 3, Acquisitions: 1, Unanswered: 2, Detail: Loose},
		{Lines: 3, Acquisitions: 2, Unanswered: 2, Detail: Loose},
	} {
		c.Within = *each
		r := Explore(c)
		t.Log(r)
		assert.Nil(t, r.Violation)
	}
}

func TestEveryStepIsTaken(t *testing.T) {
	took := map[Step]int{}
	for _, c := range []Config{
		{Lines: 2, Acquisitions: 1, Unanswered: 2, Detail: Loose},
		{Lines: 1, Acquisitions: 1, Unanswered: 2, Detail: Full}, // late commands of dead values
		{Lines: 2, Acquisitions: 1, Unanswered: 1, Detail: Full}, // late wake-ups of spent ones
		{Lines: 1, Acquisitions: 1, Unanswered: 2, Copies: true, Checks: safe},
	} {
		for step, n := range explored(t, c).Took {
			took[step] += n
		}
	}
	for _, step := range Steps() {
		assert.Positive(t, took[step], step)
		delete(took, step)
	}
	assert.Empty(t, took, "not in Steps")
}

// What is told apart only in full is nothing that matters: settled, the states of a
// full exploration are those of a reduced one.
func TestReducedIsFull(t *testing.T) {
	for _, c := range []Config{
		{Lines: 1, Acquisitions: 2, Unanswered: 2},
		{Lines: 2, Acquisitions: 1, Unanswered: 1},
	} {
		_, reduced := explore(c)
		m := &model{Config: c}
		c.Detail = Full
		_, full := explore(c)
		found := map[packed]bool{}
		for i := range full.states {
			s := full.states[i].unpack()
			m.settle(&s)
			p := s.pack(c.Lines)
			require.True(t, reduced.has(&p), &s)
			found[p] = true
		}
		assert.Len(t, reduced.states, len(found))
	}
}

// Whatever can happen can happen in a loose exploration.
func TestLooseHasAll(t *testing.T) {
	configs := []Config{
		{Lines: 3, Acquisitions: 1, Unanswered: 1},
		{Lines: 2, Acquisitions: 2, Unanswered: 1},
		{Lines: 1, Acquisitions: 2, Unanswered: 2},
	}
	if *whole {
		configs = append(configs, Config{Lines: 2, Acquisitions: 1, Unanswered: 2})
	}
	for _, c := range configs {
		_, reduced := explore(c)
		c.Detail = Loose
		_, loose := explore(c)
		m := &model{Config: c}
		for i := range reduced.states {
			s := reduced.states[i].unpack()
			s.loosen()
			m.settle(&s)
			p := s.pack(c.Lines)
			require.True(t, loose.has(&p), &s)
		}
	}
}

// loosen takes out what a loose exploration does not tell apart.
func (s *state) loosen() {
	s.wakeUps = 0
	for i := range s.queue {
		s.queue[i].number = 0
	}
	for i := range s.lines {
		s.lines[i].place = 0
		for j := range s.lines[i].out {
			s.lines[i].out[j].place = 0
		}
	}
}

func TestPackLosesNothing(t *testing.T) {
	_, st := explore(Config{Lines: 3, Acquisitions: 2, Unanswered: 2, Detail: Full, Within: 100 * time.Millisecond})
	for i := range st.states {
		s := st.states[i].unpack()
		require.Equal(t, st.states[i], s.pack(3))
	}
}
