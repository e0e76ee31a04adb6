package leasehold

import "time"

// This file decides when a lease is over and when to renew it. Nothing here
// reads a clock but now: the rest are functions of the instants given to them,
// so that a suspended machine can be tested without suspending one.

// processStart is what monotonic readings are counted from.
var processStart = time.Now()

// An instant is one moment as both clocks of this process tell it. The two
// drift apart when the machine is suspended, since the monotonic clock stands
// still then, and when the wall clock is set by hand. The zero instant is none.
type instant struct {
	mono time.Duration // since the process started, by the monotonic clock
	wall time.Duration // since 1970, by the wall clock
}

func now() instant {
	t := time.Now()
	return instant{mono: t.Sub(processStart), wall: time.Duration(t.UnixNano())}
}

func (i instant) add(d time.Duration) instant {
	return instant{mono: i.mono + d, wall: i.wall + d}
}

// left returns how long it is from at until i by the clock that says less, and
// 0 where either clock has passed i.
func (i instant) left(at instant) time.Duration {
	return max(0, min(i.mono-at.mono, i.wall-at.wall))
}

// drift is how far the clocks of client and server may go apart over one TTL:
// the 1 % that the promises assume, and 2 ms for the timers of both.
func drift(ttl time.Duration) time.Duration {
	return ttl/100 + 2*time.Millisecond
}

// A term is what one confirmed acquire or renewal gives a lease.
type term struct {
	deadline instant
	renewAt  instant // the deadline itself where nothing is renewed
}

// newTerm returns the term that a command sent at sentAt has confirmed. It
// counts from the send and not from the answer, because the key's TTL began
// somewhere between the two, and local time must end a lease early, never late.
func newTerm(sentAt instant, ttl, renewEvery time.Duration) term {
	t := term{deadline: sentAt.add(ttl - drift(ttl))}
	t.renewAt = t.deadline
	if renewEvery > 0 && renewEvery < ttl-drift(ttl) {
		t.renewAt = sentAt.add(renewEvery)
	}
	return t
}

// loss tells whether the term is over at an instant, and why. One clock is
// enough to end it. Where only the wall clock has passed the deadline, and the
// monotonic one is further away from it than drift explains, the machine slept
// (or somebody set the clock forward, which cannot be told from it).
func (t term) loss(at instant, drift time.Duration) (reason LossReason, over bool) {
	mono, wall := t.deadline.mono-at.mono, t.deadline.wall-at.wall
	switch {
	case mono > 0 && wall > 0:
		return 0, false
	case mono > drift:
		return LossSuspended, true
	default:
		return LossExpired, true
	}
}

// retryIn returns the pause before a renewal is tried again after so many
// failures in a row: from TTL/20 to TTL/10.
func retryIn(ttl time.Duration, failures int) time.Duration {
	return ttl / 40 * time.Duration(min(failures+1, 4))
}

// tryBound returns how long one try of a call may wait for its answer. most is
// what the kind of call allows a try, left what is left of the call's own time
// (negative where that has no bound). A call with several tries gives each a third
// of what is left, so that there is time for another.
func tryBound(most, left time.Duration, tries int) time.Duration {
	switch {
	case left < 0:
		return most
	case tries > 1:
		return min(most, left/3)
	default:
		return min(most, left)
	}
}

// callBound is the most that one try of an acquire, a renewal or a release may
// take: short enough that three of them fit into a TTL.
func callBound(ttl time.Duration) time.Duration {
	return min(ttl/3, time.Second)
}
