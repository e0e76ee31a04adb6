package leasehold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// pollMost is the longest time between two polls of a line that hears wake-ups.
	pollMost = time.Second
	// pollDeaf is the longest time between two polls of one that does not.
	pollDeaf = 100 * time.Millisecond
	// backoffMost is the longest pause while Redis is away.
	backoffMost = time.Second
)

// A waiter is an Acquire on its way through a line.
type waiter struct {
	lock  *Lock
	line  *line
	first chan struct{} // closed when it is the line's head; nil where it was from the start
	asked *acquisition  // its value, once it has one
}

// take gives the head the value that its line asks with, and makes one where there
// is none.
func (w *waiter) take() {
	ls, li := w.lock.client.lines, w.line
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if li.asked == nil {
		li.asked = w.lock.newAcquisition()
		li.asked.place = li.turn.place
		select {
		case <-li.wake: // meant for the value before
		default:
		}
	}
	w.asked = li.asked
}

// wait waits for its turn, and then until it gets the key or ctx ends.
func (w *waiter) wait(ctx context.Context) (grant, error) {
	own, settings := ctx, w.lock.settings
	if settings.bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, settings.wait)
		defer cancel()
	}
	w.join()
	if w.first != nil {
		select {
		case <-w.first:
		case <-ctx.Done():
		}
	}
	got, err := w.lead(ctx)
	if _, busy := err.(*BusyError); err != nil && !busy && ctx.Err() != nil && own.Err() == nil {
		err = waitError(settings.wait, err)
	}
	return got, err
}

// try asks once, and not where the answer is known.
func (w *waiter) try(ctx context.Context) (grant, error) {
	if busy := w.lock.client.lines.busy(w.lock); busy != nil {
		return grant{}, busy
	}
	w.asked = w.lock.newAcquisition()
	return w.asked.acquire(ctx)
}

// lead asks Redis until it gets the key, always with the same value, so that a grant
// whose reply or wake-up was lost is found by the next poll.
func (w *waiter) lead(ctx context.Context) (got grant, err error) {
	if ctx.Err() == nil {
		w.take()
		ask := w.asked.queue
		if w.line.turn.answered {
			ask = w.asked.poll // and goes on if Redis does not answer
		}
		for w.line.pause(ctx) {
			got, err = ask(ctx, w.lock.client.lines.inbox.address())
			if err == nil || !w.goOn(ctx, err) {
				return got, err
			}
			ask = w.asked.poll
		}
	}
	return grant{}, w.gaveUp(ctx, err)
}

// goOn takes what kept the head from the key, and tells whether it polls again, and
// when.
func (w *waiter) goOn(ctx context.Context, err error) bool {
	li, in := w.line, w.lock.client.lines.inbox
	busy, isBusy := err.(*BusyError)
	switch {
	case isBusy:
		li.turn.answered, li.turn.failures = true, 0
		w.said(err)
		li.turn.pollAt = time.Now().Add(pollIn(busy.Remaining, in.address() != ""))
	case ctx.Err() != nil:
		// Where the next head goes on with the value it polls at once, since it is past
		// pollAt: the answer may be that the key is ours.
	case isPassing(err) || li.turn.answered && isConnection(err):
		li.turn.answered = li.turn.answered || isPassing(err)
		w.said(err)
		if li.turn.failures++; li.turn.failures == 1 {
			w.lock.settings.log.Warn("leasehold: a wait goes on although Redis is away", "key", w.lock.key, "error", err)
		}
		li.turn.pollAt = time.Now().Add(backoff(li.turn.failures))
	default:
		return false
	}
	return true
}

// said notes Redis's word to the line, which listens from now on.
func (w *waiter) said(word error) {
	ls, li := w.lock.client.lines, w.line
	ls.mu.Lock()
	defer ls.mu.Unlock()
	li.said, li.saidAt, li.open = word, now(), w.asked.calls.open.Load()
	if !li.listening {
		li.listening = true
		ls.inbox.enter()
	}
}

// gaveUp says what a waiter knows whose ctx has ended: that the key is busy only
// where that was Redis's last word, and nothing that it has not answered since could
// have made the key ours. err is its own last error.
func (w *waiter) gaveUp(ctx context.Context, err error) error {
	ls, li := w.lock.client.lines, w.line
	ls.mu.Lock()
	word := li.said
	sure := w.asked == nil || w.asked.calls.open.Load() <= li.open
	ls.mu.Unlock()
	if busy := ls.busy(w.lock); sure && busy != nil {
		return busy
	}
	if _, busy := word.(*BusyError); word != nil && !busy {
		return word
	}
	if _, busy := err.(*BusyError); err != nil && !busy {
		return err
	}
	return context.Cause(ctx)
}

// pause waits until it is time to poll, and tells whether ctx is still alive then.
func (li *line) pause(ctx context.Context) bool {
	if left := time.Until(li.turn.pollAt); left > 0 {
		timer := time.NewTimer(left)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-li.wake:
			li.turn.pollAt = time.Time{} // for the next head, if ctx has ended too
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// waitError says that WithWait has ended a wait without a busy answer.
func waitError(within time.Duration, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within a wait of %v: %w", within, err)
	}
	return fmt.Errorf("no answer within a wait of %v: %w: %w", within, context.DeadlineExceeded, err)
}

// pollIn returns when to ask again for a busy key: when the present lease has run
// out, and at the latest after a second, or, where no wake-up would be heard, after
// 50 to 100 ms.
func pollIn(remaining time.Duration, hears bool) time.Duration {
	pause := pollMost
	if !hears {
		pause = pollDeaf/2 + rand.N(pollDeaf/2)
	}
	if remaining > 0 {
		pause = min(pause, remaining+time.Millisecond)
	}
	return pause
}

// backoff returns the pause after so many failures in a row: 50 ms doubling to 1 s,
// less up to half of it, so that the waiters of a server do not come back together.
func backoff(failures int) time.Duration {
	pause := min(100*time.Millisecond<<min(failures-1, 10), backoffMost)
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
