package leasehold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A fakeTenure is a tenure that answers as told. The lease knows nothing of Redis,
// and neither do its tests.
type fakeTenure struct {
	renewals atomic.Int32
	renewErr func() error // nil answers are renewals that worked
	settled  atomic.Int32
}

func (f *fakeTenure) renew(context.Context) (instant, error) {
	f.renewals.Add(1)
	sentAt := now()
	if f.renewErr != nil {
		if err := f.renewErr(); err != nil {
			return instant{}, err
		}
	}
	return sentAt, nil
}

func (f *fakeTenure) release(context.Context, time.Duration, int) (instant, error) {
	return instant{}, nil
}
func (f *fakeTenure) settle() { f.settled.Add(1) }

// startLease starts a lease on a fake, whose grant was sent at sentAt.
func startLease(parent context.Context, f *fakeTenure, ttl, every time.Duration, sentAt instant) *lease {
	ctx, cancel := context.WithCancelCause(parent)
	le := &lease{key: "k", tenure: f, fence: 7, ttl: ttl, renewEvery: every, log: slog.New(slog.DiscardHandler), forget: func() {}}
	le.start(ctx, cancel, sentAt)
	return le
}

// The process stood still past the deadline, and the timer has not run: the first
// look at the context says no.
func TestG2_ErrComparesTheClocks(t *testing.T) {
	look := map[string]func(le *lease) bool{
		"Err": func(le *lease) bool { return le.ctx.Err() != nil },
		"Done": func(le *lease) bool {
			select {
			case <-le.ctx.Done():
				return true
			default:
				return false
			}
		},
		"remaining": func(le *lease) bool { return le.remaining(now()) == 0 },
	}
	for name, over := range look {
		t.Run(name, func(t *testing.T) {
			le := startLease(t.Context(), &fakeTenure{}, time.Hour, 0, now())
			assert.False(t, over(le))
			le.mu.Lock()
			le.term.deadline = now().add(-time.Nanosecond) // the timer still sleeps
			le.mu.Unlock()
			assert.True(t, over(le))
			require.ErrorIs(t, context.Cause(&le.ctx), ErrLost)
			assert.ErrorIs(t, le.ctx.Err(), context.Canceled)
		})
	}
}

// After a suspend only the wall clock has passed the deadline.
func TestG2_SuspendedLeaseIsLost(t *testing.T) {
	le := startLease(t.Context(), &fakeTenure{}, time.Hour, 0, now())
	le.mu.Lock()
	le.term.deadline.wall = now().wall
	le.mu.Unlock()
	assert.Error(t, le.ctx.Err())
	var lost *LostError
	require.ErrorAs(t, context.Cause(&le.ctx), &lost)
	assert.Equal(t, LossSuspended, lost.Reason)
}

// While one goroutine ends the lease, another must not hear that it is alive.
func TestG2_NobodyHearsAliveAfterTheLoss(t *testing.T) {
	for range 200 {
		le := startLease(t.Context(), &fakeTenure{}, time.Hour, 0, now())
		le.mu.Lock()
		le.term.deadline = now()
		le.mu.Unlock()
		errs := make(chan error, 4)
		for range cap(errs) {
			go func() { errs <- le.ctx.Err() }()
		}
		for range cap(errs) {
			require.Error(t, <-errs)
		}
	}
}

// The renewal's own timing: each half TTL; after a failure from TTL/20 to TTL/10,
// until the deadline; never after a definite answer.
func TestG9_RenewalTimes(t *testing.T) {
	const ttl = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		f := &fakeTenure{}
		le := startLease(t.Context(), f, ttl, ttl/2, now())
		time.Sleep(100*time.Second + time.Millisecond)
		assert.EqualValues(t, 20, f.renewals.Load())
		require.NoError(t, le.ctx.Err())

		fails := errors.New("no answer")
		f.renewErr = func() error { return fails }
		f.renewals.Store(0)
		time.Sleep(ttl)
		// At 5 s, and after pauses of 0.5, 0.75, 1, 1, 1 s; the next would be at 10.25 s.
		assert.EqualValues(t, 6, f.renewals.Load())
		assert.ErrorIs(t, context.Cause(&le.ctx), ErrLost)
	})
	for _, reason := range []LossReason{LossGone, LossTaken} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeTenure{renewErr: func() error { return &LostError{Key: "k", Reason: reason} }}
			le := startLease(t.Context(), f, ttl, ttl/2, now())
			time.Sleep(ttl/2 + time.Nanosecond)
			synctest.Wait()
			assert.EqualValues(t, 1, f.renewals.Load())
			var lost *LostError
			require.ErrorAs(t, context.Cause(&le.ctx), &lost)
			assert.Equal(t, reason, lost.Reason)
			assert.EqualValues(t, 1, f.settled.Load())
		})
	}
}

// An answer that comes after the deadline, or after a release, changes nothing.
func TestG2_LateRenewalIsDiscarded(t *testing.T) {
	const ttl = 10 * time.Second
	for _, end := range []string{"deadline", "release", "parent"} {
		synctest.Test(t, func(t *testing.T) {
			parent, cancel := context.WithCancel(t.Context())
			defer cancel()
			answer := make(chan error)
			f := &fakeTenure{renewErr: func() error { return <-answer }}
			le := startLease(parent, f, ttl, ttl/2, now())
			time.Sleep(6 * time.Second)
			switch end {
			case "deadline":
				time.Sleep(4 * time.Second)
			case "release":
				require.NoError(t, le.release(t.Context(), 0, context.Canceled))
			case "parent":
				cancel()
			}
			why := context.Cause(&le.ctx)
			require.Error(t, why, end)
			answer <- nil
			time.Sleep(time.Hour)
			assert.Error(t, le.ctx.Err(), end)
			assert.Equal(t, why, context.Cause(&le.ctx), end)
			assert.EqualValues(t, 1, f.renewals.Load(), end)
			assert.Zero(t, le.remaining(now()))
		})
	}
}

// 300 children of a lease's context cost no goroutine, and end with it.
func TestLeaseContext_ChildrenCostNoGoroutine(t *testing.T) {
	le := startLease(t.Context(), &fakeTenure{}, time.Hour, 0, now())
	before := runtime.NumGoroutine()
	var children []context.Context
	for range 300 {
		child, cancel := context.WithCancel(&le.ctx)
		defer cancel()
		children = append(children, child)
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), before)
	le.lose(&LostError{Key: "k", Reason: LossGone})
	for _, child := range children {
		require.ErrorIs(t, context.Cause(child), ErrLost)
	}
}

// Printing a context must not look into it, which would race with its lease.
func TestLeaseContext_String(t *testing.T) {
	le := startLease(t.Context(), &fakeTenure{}, time.Hour, 0, now())
	assert.Equal(t, `leasehold.Lease("k")`, fmt.Sprint(&le.ctx))
	child, cancel := context.WithCancel(&le.ctx)
	defer cancel()
	assert.Equal(t, `leasehold.Lease("k").WithCancel`, fmt.Sprint(child))
}

func BenchmarkLeaseContextErr(b *testing.B) {
	le := startLease(b.Context(), &fakeTenure{}, time.Hour, 0, now())
	for b.Loop() {
		if le.ctx.Err() != nil {
			b.Fatal("over")
		}
	}
}
