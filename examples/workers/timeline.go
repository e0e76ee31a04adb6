package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// What happens to a worker.
const (
	waits = "waits"
	holds = "holds"
	done  = "done"
	ended = "ended" // its process
)

// An event is what a worker tells, a line of JSON each; the parent adds the end of
// its process. All are on one machine, so that one clock stamps them.
type event struct {
	At     time.Time
	Worker int
	What   string
	Units  int    // of its task
	Fence  int64  // of the holder
	State  string // of the process that ended
}

func (e event) String() string {
	switch e.What {
	case waits:
		return fmt.Sprintf("%s  waits for the key, with a task of %d units", name(e.Worker), e.Units)
	case holds:
		return fmt.Sprintf("%s  holds the key, with fence %d", name(e.Worker), e.Fence)
	case done:
		return fmt.Sprintf("%s  has done its %d units and releases", name(e.Worker), e.Units)
	default:
		return fmt.Sprintf("%s  ended: %s", name(e.Worker), e.State)
	}
}

type timeline []event

// exclusionBroken begins an error that no slow machine excuses.
const exclusionBroken = "the lock did not exclude"

// byTime returns the events in order: those of several workers may have been heard
// in another.
func (t timeline) byTime() timeline {
	return slices.SortedStableFunc(slices.Values(t), func(a, b event) int { return a.At.Compare(b.At) })
}

// checkExclusion tells whether two workers have held the key at once, or fences have
// not risen. A worker notes the time of holding after Acquire, and that of being done
// before it asks its lease for the last time: what overlaps here has overlapped.
func (t timeline) checkExclusion() error {
	var holder int
	var fence int64
	for _, e := range t.byTime() {
		switch {
		case e.What == holds && holder != 0:
			return fmt.Errorf("%s: %s held the key while %s did", exclusionBroken, name(e.Worker), name(holder))
		case e.What == holds && e.Fence <= fence:
			return fmt.Errorf("%s: %s held the key with fence %d, after fence %d", exclusionBroken, name(e.Worker), e.Fence, fence)
		case e.What == holds:
			holder, fence = e.Worker, e.Fence
		case (e.What == done || e.What == ended) && e.Worker == holder:
			holder = 0
		}
	}
	return nil
}

// checkTakeOver tells whether the key was held again in time after a holder's last
// renewal: by then the TTL, and what this machine may take to notice.
func checkTakeOver(took, ttl time.Duration) error {
	if within := ttl + 200*time.Millisecond; took > within {
		return fmt.Errorf("the key was held again %v after the last renewal, later than %v", took, within)
	}
	return nil
}

// chart draws a line for each worker, with a column for each unit of time.
func (t timeline) chart(unit time.Duration) string {
	sorted := t.byTime()
	startedAt := sorted[0].At
	// A column shows its middle.
	column := func(at time.Time) int { return int(max(0, at.Sub(startedAt)+unit/2) / unit) }
	end := column(sorted[len(sorted)-1].At) + 1
	marks := map[string]rune{waits: '·', holds: '█', done: ' ', ended: ' '}

	var lines strings.Builder
	for number := 1; number <= len(tasks); number++ {
		row := slices.Repeat([]rune{' '}, end)
		for _, e := range sorted {
			if e.Worker != number {
				continue
			}
			for n := column(e.At); n < end; n++ {
				row[n] = marks[e.What]
			}
			if e.What == ended {
				row[column(e.At)] = '†'
			}
		}
		fmt.Fprintln(&lines, strings.TrimRight(name(number)+"  "+string(row), " "))
	}
	fmt.Fprintf(&lines, "%s  · waits  █ holds  † killed  (a column is %v)\n", strings.Repeat(" ", len(name(1))), unit)
	return lines.String()
}
