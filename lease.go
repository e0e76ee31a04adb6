package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// A tenure is what a lease keeps alive: one value in one key. The lease knows
// nothing of keys, scripts or Redis.
type tenure interface {
	// renew begins the TTL anew and returns when the command that did was sent.
	// Its error is a *LostError where there is nothing left to renew.
	renew(ctx context.Context) (sentAt instant, err error)
	// release gives it back, within a time or until ctx ends. Its error is a *LostError where it was not ours any
	// more, and earlierAt then tells when an unanswered try was sent that may have
	// given it back.
	release(ctx context.Context, within time.Duration, tries int) (earlierAt instant, err error)
	// settle sees to commands without an answer that could still take the key.
	settle()
}

// A lease is the time-limited right that one grant gives. Its context ends at the
// deadline by this process's own clocks, whatever Redis and the network do.
//
//	alive ──── Release, Close ───────────────────────────► over
//	  │                                                     ▲
//	  ├─────── deadline passed, key gone, key taken ────────┤ (lost)
//	  └─ parent ends: the context ends, the key stays ──────┘ until deadline or Release
type lease struct {
	key        string // as the user named it
	token      string
	tenure     tenure
	fence      int64
	ttl        time.Duration
	renewEvery time.Duration // 0: none
	log        *slog.Logger
	forget     func() // told once the lease was lost, so that nobody keeps it

	ctx    leaseContext
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	term     term
	timer    *time.Timer // fires tick when the next thing is due
	renewing bool        // a renewal is under way, in a tick
	over     bool        // released or lost: nothing prolongs it
	lost     *LostError  // why it was lost

	told atomic.Bool // it was logged that the parent ended before a release

	// releasedAt is when the first release was sent that had no answer and may have
	// arrived. It needs no mutex: the Lock lets one release in at a time.
	releasedAt instant
}

// start makes a lease live from the grant on. ctx is one of its own, which
// nothing but cancel and its parent ends.
func (le *lease) start(ctx context.Context, cancel context.CancelCauseFunc, sentAt instant) {
	le.ctx = leaseContext{Context: ctx, lease: le}
	le.cancel = cancel
	le.mu.Lock()
	defer le.mu.Unlock()
	le.term = newTerm(sentAt, le.ttl, le.renewEvery)
	// Owned by the lease; stopped by a release and by a loss. A tick that runs by
	// then finds the lease over.
	le.timer = time.AfterFunc(le.term.renewAt.left(now()), le.tick)
}

// tick does what is due: it ends the lease at its deadline, or renews it. The
// goroutine that the timer gives it is the renewal's for as long as one takes;
// the timer goes on meanwhile, and fires at the deadline whatever hangs.
func (le *lease) tick() {
	at := now()
	if !le.alive(at) {
		return
	}
	le.mu.Lock()
	parentEnded := le.parentEndedLocked()
	due := !parentEnded && !le.renewing && le.term.renewAt.left(at) == 0
	le.renewing = le.renewing || due
	le.setTimerLocked(at)
	le.mu.Unlock()
	le.tell(parentEnded)
	if due {
		le.renew()
	}
}

// setTimerLocked makes the timer fire when the next renewal is due, or at the
// deadline while one is under way.
func (le *lease) setTimerLocked(at instant) {
	next := le.term.renewAt
	if le.renewing {
		next = le.term.deadline
	}
	if !le.over {
		le.timer.Reset(next.left(at))
	}
}

// parentEndedLocked tells whether the lease's context ended with its parent, and
// lets the lease run out if so.
func (le *lease) parentEndedLocked() bool {
	ended := !le.over && le.ctx.Context.Err() != nil
	if ended {
		le.term.renewAt = le.term.deadline
	}
	return ended
}

// tell logs once that the parent ended. It is called without the mutex, since
// nobody knows what a handler does.
func (le *lease) tell(parentEnded bool) {
	if parentEnded && le.told.CompareAndSwap(false, true) {
		le.log.Warn("leasehold: the context given to Acquire ended before Release", "key", le.key,
			"cause", context.Cause(le.ctx.Context))
	}
}

// renew asks until Redis has answered or the lease's context ends: at the
// deadline, by a loss, a release, or the parent's end.
func (le *lease) renew() {
	ctx := le.ctx.Context
	for failures := 1; ; failures++ {
		sentAt, err := le.tenure.renew(ctx)
		if le.renewed(sentAt, err) {
			return
		}
		if failures == 1 {
			le.log.Warn("leasehold: a renewal failed and is tried again", "key", le.key, "error", err)
		}
		if !sleep(ctx, retryIn(le.ttl, failures)) && le.renewed(instant{}, context.Cause(ctx)) {
			return
		}
	}
}

// renewed takes what a renewal answered, and tells whether no other try is due.
// An answer that comes after a release, a loss or the deadline is discarded: what
// somebody may have been told by then stays true.
func (le *lease) renewed(sentAt instant, err error) bool {
	at := now()
	if !le.alive(at) {
		return true
	}
	// Not where the context has ended: err may be its cause then, and tell of the
	// loss of a parent that is a lease too.
	var lost *LostError
	if le.ctx.Context.Err() == nil && errors.As(err, &lost) {
		le.lose(lost)
		return true
	}
	le.mu.Lock()
	parentEnded := err != nil && le.parentEndedLocked()
	done := err == nil || parentEnded || le.over
	if err == nil && !le.over {
		le.term = newTerm(sentAt, le.ttl, le.renewEvery) // [model: reply.alive]
	}
	if done {
		le.renewing = false
		le.setTimerLocked(at)
	}
	le.mu.Unlock()
	le.tell(parentEnded)
	return done
}

// alive tells whether the lease is neither released nor lost at an instant, and
// loses it if either clock has passed its deadline.
func (le *lease) alive(at instant) bool {
	le.mu.Lock()
	over := le.over
	reason, passed := le.term.loss(at, drift(le.ttl))
	le.mu.Unlock()
	if !over && passed {
		// A renewal that comes in between the two locks has looked at a clock that
		// was before the deadline, or it would be here too; losing is the safe side.
		le.lose(&LostError{Key: le.key, Reason: reason})
	}
	return !over && !passed
}

// lose ends the lease because of a loss. The first one counts. [model: lease.end,
// lease.lost]
func (le *lease) lose(lost *LostError) {
	le.mu.Lock()
	if le.over {
		le.mu.Unlock()
		return
	}
	parentEnded := le.parentEndedLocked()
	le.over, le.lost = true, lost
	le.timer.Stop()
	le.mu.Unlock()

	le.cancel(lost)
	le.tell(parentEnded)
	le.log.Warn("leasehold: lease lost", "key", le.key, "fence", le.fence, "reason", lost.Reason.String())
	le.tenure.settle()
	le.forget()
}

// end ends the lease and its context without a loss, and returns the loss that
// came before. It waits for no call: a renewal under way is discarded.
func (le *lease) end(at instant, cause error) *LostError {
	le.alive(at)
	le.mu.Lock()
	if le.over {
		defer le.mu.Unlock()
		return le.lost
	}
	parentEnded := le.parentEndedLocked()
	le.over = true
	le.timer.Stop()
	le.mu.Unlock()
	le.cancel(cause)
	le.tell(parentEnded)
	return nil
}

// release ends the lease, and gives back what it kept alive. Called again after
// an error, it repeats the first.
//
// The first try's answer is definite. A later one that finds the key not ours
// may look at the work of an earlier try, whose answer was lost; if that one was
// sent before the deadline, nothing tells against it.
func (le *lease) release(ctx context.Context, within time.Duration, cause error) error {
	tries := maxTries
	lost := le.end(now(), cause)
	if lost != nil {
		tries = 1
	}
	earlierAt, err := le.tenure.release(ctx, within, tries)
	le.tenure.settle() // [model: release.fail], if it did
	if le.releasedAt == (instant{}) {
		le.releasedAt = earlierAt
	}
	if lost != nil {
		return lost
	}
	var notOurs *LostError
	if errors.As(err, &notOurs) && le.releasedAt != (instant{}) && le.deadline().left(le.releasedAt) > 0 {
		return nil
	}
	return err
}

func (le *lease) deadline() instant {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.term.deadline
}

// remaining returns the time until the deadline, 0 once the lease is over.
func (le *lease) remaining(at instant) time.Duration {
	if !le.alive(at) {
		return 0
	}
	return le.deadline().left(at)
}

// A leaseContext is the context of a lease. Asked for its state it looks at the
// clocks first, because the timer that ends it may be late: on a busy or paused
// process, and after a suspend. It has no Done channel of its own, so that
// contexts made from it are its cancelCtx's children and cost no goroutine.
type leaseContext struct {
	context.Context
	lease *lease
}

// Err returns nil only while the lease is within its deadline by both clocks.
func (c *leaseContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if !c.lease.alive(now()) {
		// The one who ends it cancels next, and may not have come to it yet.
		return context.Canceled
	}
	return nil
}

// Done returns the channel that closes when the lease's context ends.
func (c *leaseContext) Done() <-chan struct{} {
	c.lease.alive(now())
	return c.Context.Done()
}

// fenceKey is the context key under which a lease's context has its fence: one
// for each key, so that leases on several keys can be carried by one context.
type fenceKey string

// Value returns the fence for its lease's key, and asks the parent for the rest.
func (c *leaseContext) Value(key any) any {
	if name, ok := key.(fenceKey); ok && string(name) == c.lease.key {
		return c.lease.fence
	}
	return c.Context.Value(key)
}

// String names the context without looking into it, as fmt would.
func (c *leaseContext) String() string {
	return "leasehold.Lease(" + quote(c.lease.key) + ")"
}

// FenceFrom returns the fence of the innermost lease on key, as named to NewLock,
// that ctx carries. It still answers after that lease has ended, so that a late
// write is refused by its fence and not let through unguarded. ok is false where
// ctx carries no lease on key.
func FenceFrom(ctx context.Context, key string) (fence int64, ok bool) {
	fence, ok = ctx.Value(fenceKey(key)).(int64)
	return fence, ok
}
