package model

import (
	"fmt"
	"runtime"
	"sync"
	"time"
)

// A Config says what to explore.
type Config struct {
	Lines        int // that want the key: 1 to 3
	Acquisitions int // of each line: 1 or 2
	Unanswered   int // commands of each line at a time: 1 to 3. With 1 none is left behind or lost
	Detail       Detail
	Copies       bool // a command may be copied on its way, which is outside G5
	Fault        Fault
	Checks       []Check       // all, if none are given
	Within       time.Duration // the time it may take, 0: no bound
}

// A Detail says which states are told apart.
type Detail int

const (
	// Reduced takes for one what behaves as one: it forgets what a value carries that
	// can never come to the key or into the queue again.
	Reduced Detail = iota
	// Full tells everything apart.
	Full
	// Loose lets more happen than can, so that there is less to tell apart: a wake-up
	// for any value may arrive at any moment, again and again, and a value that is put
	// in the queue or asks for a free key may come before any others there.
	Loose
)

var details = [...]string{"reduced", "full", "loose"}

// A Report is what an exploration found.
type Report struct {
	Config
	States    int
	Moves     int // from one state to another
	Depth     int // moves from the beginning, explored wholly
	Cut       int // states whose moves were not explored, 0 if all were
	Took      map[Step]int
	Violation *Violation
	Lasted    time.Duration
}

// String says what was explored, and what was cut.
func (r *Report) String() string {
	end := "whole"
	if r.Violation != nil {
		end = "until a check was broken"
	} else if r.Cut > 0 {
		end = fmt.Sprintf("cut, %d states not gone on from", r.Cut)
	}
	return fmt.Sprintf("%d lines, %d acquisitions each, %d unanswered commands each, %s: %d states, %d moves, depth %d, %v: %s",
		r.Lines, r.Acquisitions, r.Unanswered, details[r.Detail], r.States, r.Moves, r.Depth, r.Lasted.Round(time.Millisecond), end)
}

// A model is a Config under exploration, by one goroutine.
type model struct {
	Config
	awake map[packed]bool // what wakes found
	took  map[Step]int
	moved int
	found []found
}

// found is a state that was not known when a part of the exploration began.
type found struct {
	state  packed
	from   uint32
	broken Check
}

// part is how many states are gone on from between two looks at the clock.
const part = 1 << 15

// Explore goes through every state that can be reached, those that are fewest moves
// away first, until all are explored, a check is broken, or the time is up.
func Explore(c Config) *Report {
	r, _ := explore(c)
	return r
}

func explore(c Config) (*Report, *store) {
	if len(c.Checks) == 0 {
		c.Checks = Checks()
	}
	models := make([]*model, runtime.GOMAXPROCS(0))
	for i := range models {
		models[i] = &model{Config: c, awake: map[packed]bool{}, took: map[Step]int{}}
	}
	r := &Report{Config: c, Took: map[Step]int{}}
	begun := time.Now()
	st := newStore()
	var first state
	p := first.pack(c.Lines)
	st.add(&p, 0)
	level := 1 // where the next depth begins
	for at := 0; at < len(st.states) && r.Violation == nil; {
		if at == level {
			r.Depth, level = r.Depth+1, len(st.states)
		}
		if c.Within > 0 && time.Since(begun) > c.Within {
			r.Cut = len(st.states) - at
			break
		}
		to := min(level, at+part)
		r.Violation = explorePart(models, st, at, to)
		at = to
	}
	for _, m := range models {
		r.Moves += m.moved
		for step, n := range m.took {
			r.Took[step] += n
		}
	}
	r.States, r.Lasted = len(st.states), time.Since(begun)
	return r, st
}

// explorePart goes on from some states, and puts what it finds in the store.
func explorePart(models []*model, st *store, from, to int) *Violation {
	var all sync.WaitGroup
	share := (to - from + len(models) - 1) / len(models)
	for i, m := range models {
		// Owned by this call, which waits for it; ends with its share.
		all.Go(func() { m.goOnFrom(st, from+i*share, min(to, from+(i+1)*share)) })
	}
	all.Wait()
	for _, m := range models {
		for i := range m.found {
			if f := &m.found[i]; st.add(&f.state, f.from) && f.broken != "" {
				return m.violation(f.broken, st)
			}
		}
		m.found = m.found[:0]
	}
	return nil
}

// goOnFrom goes on from some states of a store that does not change meanwhile.
func (m *model) goOnFrom(st *store, from, to int) {
	for at := from; at < to; at++ {
		s := st.states[at].unpack()
		m.moves(s, func(n state, _ actor, took steps) {
			m.moved++
			for _, step := range took {
				if step != "" {
					m.took[step]++
				}
			}
			if m.settle(&n); n == s {
				return // nobody has seen it happen
			}
			p := n.pack(m.Lines)
			if !st.has(&p) {
				m.found = append(m.found, found{p, uint32(at), m.broken(&n)})
			}
		})
	}
}
