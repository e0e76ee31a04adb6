package model

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// finds requires that a fault breaks a check, of those given or of all, and that the
// shortest way to it, which it logs, ends with some steps, one after the other.
func finds(t *testing.T, fault Fault, check Check, checks []Check, last ...Step) {
	t.Helper()
	c := Config{Lines: 2, Acquisitions: 2, Unanswered: 2, Fault: fault, Checks: checks}
	r := Explore(c)
	require.NotNil(t, r.Violation, r)
	t.Log(r.Violation)
	assert.Equal(t, check, r.Violation.Check)
	var taken []Step
	for _, took := range r.Violation.Steps {
		taken = append(taken, took[0])
	}
	require.GreaterOrEqual(t, len(taken), len(last))
	assert.Equal(t, last, taken[len(taken)-len(last):])
}

// A value is given up and left, and its acquire arrives after that.
func TestFault_NoDeadValues(t *testing.T) {
	finds(t, NoDeadValues, Orphan, nil, LeaveSend, LeaveDead, AcquireHold)
}

// A wake-up is believed, and the grant it tells of runs out first.
func TestFault_WakeUpBelieved(t *testing.T) {
	finds(t, WakeUpBelieved, Outlived, nil, ReleaseHandOver, WakeUpPoll)
	finds(t, WakeUpBelieved, Exclusion, []Check{Exclusion}, GrantExpire, AcquireHold, ReplyHeld)
}

// A lease counts from the receipt of the answer, and the key expires before.
func TestFault_StampedAtReceipt(t *testing.T) {
	finds(t, StampedAtReceipt, Outlived, nil, AcquireHold, ReplyHeld, KeyExpire)
	finds(t, StampedAtReceipt, Exclusion, []Check{Exclusion}, KeyExpire, AcquireHold, ReplyHeld)
}

// A leave for the last acquisition meets the next one, whose value is the same.
func TestFault_ValueUsedAgain(t *testing.T) {
	finds(t, ValueUsedAgain, Asleep, nil, LeaveSend, AcquireSend)
	finds(t, ValueUsedAgain, Exclusion, []Check{Exclusion}, LeaveSend, LeaveDelete, AcquireHold, ReplyHeld)
}

// A waiter leaves while the key is granted to it.
func TestFault_LeaveForgetsGrant(t *testing.T) {
	finds(t, LeaveForgetsGrant, Orphan, nil, LeaveDead)
}

// An acquire whose value was acquired and released by later commands arrives.
func TestFault_ServedValueQueued(t *testing.T) {
	finds(t, ServedValueQueued, Orphan, nil, ReleaseSend, ReleaseDelete, AcquireHold)
}

// A holder does not release, and nobody tells the waiter.
func TestFault_NoPolling(t *testing.T) {
	finds(t, NoPolling, Asleep, nil, AcquireHold, AcquireBusy, PollSend)
}

// A grant is read too late, and the acquisition is given up as if it had none.
func TestFault_LateHeldForgotten(t *testing.T) {
	finds(t, LateHeldForgotten, Orphan, nil, AcquireHold, ReplyLate, AcquireGiveUp)
}

// Faults are found as quickly where less is told apart.
func TestFault_ReducedFindsWhatFullFinds(t *testing.T) {
	for fault := NoDeadValues; fault <= LateHeldForgotten; fault++ {
		c := Config{Lines: 2, Acquisitions: 2, Unanswered: 2, Fault: fault}
		reduced := Explore(c)
		c.Detail = Full
		full := Explore(c)
		require.NotNil(t, full.Violation)
		assert.Equal(t, full.Violation.Check, reduced.Violation.Check)
		assert.Len(t, reduced.Violation.Steps, len(full.Violation.Steps))
	}
}
