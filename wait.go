package leasehold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// The longest pauses between two polls of a waiting Acquire: while the key is busy,
// and while Redis is away.
const (
	pollMost    = 100 * time.Millisecond
	backoffMost = time.Second
)

// wait polls until it gets the key or ctx ends, always with the same value, so that
// a grant whose reply was lost is found by the next poll.
func (l *Lock) wait(ctx context.Context, a *acquisition) (grant, error) {
	own := ctx
	if l.settings.bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.settings.wait)
		defer cancel()
	}
	var (
		busy     *BusyError // Redis's last answer, where it was that
		open     int32      // what was unanswered then already
		answered bool       // Redis has answered this call
		failures int        // since it last did
	)
	got, err := a.acquire(ctx)
	for err != nil {
		var pause time.Duration
		switch {
		case errors.As(err, &busy):
			answered, failures, open = true, 0, a.calls.open.Load()
			pause = pollIn(busy.Remaining)
		case ctx.Err() == nil && (isPassing(err) || answered && isConnection(err)):
			if isPassing(err) {
				answered, busy = true, nil
			}
			if failures++; failures == 1 {
				l.settings.log.Warn("leasehold: a wait goes on although Redis is away", "key", l.key, "error", err)
			}
			pause = backoff(failures)
		case ctx.Err() == nil:
			return grant{}, err
		}
		if !sleep(ctx, pause) {
			if busy != nil && a.calls.open.Load() <= open {
				return grant{}, busy
			}
			if own.Err() == nil {
				err = l.waitError(err)
			}
			return grant{}, err
		}
		got, err = a.poll(ctx)
	}
	return got, nil
}

// waitError says that WithWait has ended a wait without a busy answer.
func (l *Lock) waitError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within a wait of %v: %w", l.settings.wait, err)
	}
	return fmt.Errorf("no answer within a wait of %v: %w: %w", l.settings.wait, context.DeadlineExceeded, err)
}

// pollIn returns when to ask again for a busy key: when the present lease has run
// out, and after 50 to 100 ms at the latest.
func pollIn(remaining time.Duration) time.Duration {
	pause := pollMost/2 + rand.N(pollMost/2)
	if remaining > 0 {
		pause = min(pause, remaining+time.Millisecond)
	}
	return pause
}

// backoff returns the pause after so many failures in a row: 50 ms doubling to 1 s,
// less up to half of it, so that the waiters of a server do not come back together.
func backoff(failures int) time.Duration {
	pause := min(pollMost<<min(failures-1, 10), backoffMost)
	return pause/2 + rand.N(pause/2)
}

// sleep waits for d, and tells whether ctx is still alive then.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
