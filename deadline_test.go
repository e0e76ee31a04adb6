package leasehold

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// apart returns the instant at which the two clocks have moved on by so much.
func (i instant) apart(mono, wall time.Duration) instant {
	return instant{mono: i.mono + mono, wall: i.wall + wall}
}

var someInstant = instant{mono: 90 * time.Minute, wall: 1_795_000_000 * time.Second}

func TestTermCountsFromTheSend(t *testing.T) {
	sentAt := someInstant
	for _, ttl := range []time.Duration{minTTL, 100 * time.Millisecond, defaultTTL, maxTTL} {
		got := newTerm(sentAt, ttl, ttl/2)
		assert.Equal(t, sentAt.add(ttl-ttl/100-2*time.Millisecond), got.deadline, "TTL %v", ttl)
		assert.Equal(t, sentAt.add(ttl/2), got.renewAt, "TTL %v", ttl)
	}
}

func TestTermWithoutARenewalThatFits(t *testing.T) {
	for _, every := range []time.Duration{0, 8 * time.Millisecond, time.Second} {
		got := newTerm(someInstant, minTTL, every)
		assert.Equal(t, got.deadline, got.renewAt, "every %v", every)
	}
}

// The suspended case cannot be had on a test's machine, so it is shown with the
// pure functions: each clock for itself.
func TestG2_EitherClockEndsTheLease(t *testing.T) {
	const ttl = 10 * time.Second
	term := newTerm(someInstant, ttl, ttl/2)
	length := ttl - drift(ttl)
	for _, c := range []struct {
		name       string
		mono, wall time.Duration // passed since the send
		want       LossReason    // 0: alive
	}{
		{"at the send", 0, 0, 0},
		{"just before the deadline", length - 1, length - 1, 0},
		{"at the deadline", length, length, LossExpired},
		{"long after", time.Hour, time.Hour, LossExpired},
		{"suspended over the deadline", time.Second, time.Hour, LossSuspended},
		{"suspended to the deadline exactly", time.Second, length, LossSuspended},
		{"suspended, but not so long", time.Second, 5 * time.Second, 0},
		{"the wall clock runs ahead by less than the drift", length - drift(ttl), length, LossExpired},
		{"the wall clock runs ahead by more than the drift", length - drift(ttl) - 1, length, LossSuspended},
		{"the wall clock was set back", length, -time.Hour, LossExpired},
		{"the wall clock was set back, before the deadline", length - 1, -time.Hour, 0},
		{"the wall clock was set forward", 0, 24 * time.Hour, LossSuspended},
	} {
		at := someInstant.apart(c.mono, c.wall)
		reason, over := term.loss(at, drift(ttl))
		assert.Equal(t, c.want, reason, c.name)
		assert.Equal(t, c.want != 0, over, c.name)
		assert.Equal(t, over, term.deadline.left(at) == 0, "%s: nothing may be left of a lease that is over", c.name)
	}
}

func TestLeftIsWhatTheStricterClockSays(t *testing.T) {
	deadline := someInstant.add(time.Second)
	assert.Equal(t, time.Second, deadline.left(someInstant))
	assert.Equal(t, 300*time.Millisecond, deadline.left(someInstant.apart(700*time.Millisecond, 100*time.Millisecond)))
	assert.Equal(t, 300*time.Millisecond, deadline.left(someInstant.apart(100*time.Millisecond, 700*time.Millisecond)))
	assert.Zero(t, deadline.left(someInstant.apart(0, 2*time.Second)))
}

func TestRetryInGoesFromATwentiethToATenth(t *testing.T) {
	const ttl = 10 * time.Second
	assert.Equal(t, ttl/20, retryIn(ttl, 1))
	last := retryIn(ttl, 1)
	for failures := 2; failures < 20; failures++ {
		next := retryIn(ttl, failures)
		assert.GreaterOrEqual(t, next, last)
		last = next
	}
	assert.Equal(t, ttl/10, last)
}

func TestTryBound(t *testing.T) {
	most := callBound(defaultTTL)
	assert.Equal(t, time.Second, most)
	assert.Equal(t, 100*time.Millisecond, callBound(300*time.Millisecond))
	assert.Equal(t, most, tryBound(most, -1, 3), "a call without a bound")
	assert.Equal(t, most, tryBound(most, time.Hour, 3))
	assert.Equal(t, 200*time.Millisecond, tryBound(most, 600*time.Millisecond, 3))
	assert.Equal(t, 600*time.Millisecond, tryBound(most, 600*time.Millisecond, 1), "one try has all of it")
}

// Both clocks of now must be read at one moment and in one unit, or every lease
// would seem suspended.
func TestNowReadsBothClocksTogether(t *testing.T) {
	before, at, after := time.Now(), now(), time.Now()
	assert.False(t, time.Unix(0, int64(at.wall)).Before(before.Round(0)))
	assert.False(t, time.Unix(0, int64(at.wall)).After(after.Round(0)))
	assert.GreaterOrEqual(t, at.mono, before.Sub(processStart))
	assert.LessOrEqual(t, at.mono, after.Sub(processStart))
}
