package leasehold

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A Lock belongs to one critical section at a time. It holds at most one lease,
// and can be used again after Release or a loss. Make one with Client.NewLock.
//
// Its methods are safe to call from any goroutine, so that a watchdog may Release.
// Goroutines that compete for a key take a Lock each: on a shared one, a Release
// that comes after another goroutine's Acquire would end that one's lease.
type Lock struct {
	client   *Client
	key      string
	settings *settings
	names    names
	faults   []string // why the Lock cannot work

	mu        sync.Mutex
	acquiring context.CancelCauseFunc // ends the Acquire under way; nil while there is none
	releasing chan struct{}           // closed when the release under way ends; nil while there is none
	lease     *lease                  // the last one, until a Release has told all about it
	fence     int64
	closed    *closeAnswer // what Close answered for the lease, until a Release has told it
}

// A closeAnswer is what the Release after a Close answers.
type closeAnswer struct{ err error }

// Acquire waits until it holds the key, and returns the context of the lease. The
// ctx given bounds the wait and the lease: when it ends, renewal stops and the lease
// runs out by itself. To bound only the wait use WithWait; a context with a timeout
// made for this call, or cancelled after it, ends the lease with it. To keep the
// lease while a cancelled request or process winds down, pass
// context.WithoutCancel(ctx).
//
// Who waits is served first come, first served: within a Client, and among the
// Clients in the order in which Redis heard of them.
//
// The returned context derives from ctx. It is cancelled with cause ErrLost when
// the lease is lost, always before anyone else can hold the key; with
// context.Canceled by Release, with ErrClosed by Client.Close, and with its
// parent's cause. A process that was paused asks its Err, which compares the
// clocks at each call, before it does what cannot be undone. On an error Acquire
// returns ctx itself.
//
// A Redis that does not answer is asked three times, each time for a third of what
// is left of the ctx or WithWait and at most TTL/3 and 1 s; then its error is
// returned. Once Redis has answered, Acquire goes on waiting over failing
// connections and LOADING, READONLY, CLUSTERDOWN, MASTERDOWN and TRYAGAIN.
//
// Errors: ErrBusy if the wait or ctx ended and Redis's last word was that somebody
// else holds the key, with ctx's error where ctx ended. The ctx's error, or
// context.DeadlineExceeded for WithWait, with Redis's error if there was one, where
// that is not known. ErrInUse, ErrInvalid, ErrClosed. Else Redis's or the network's
// own, wrapped. After an error no key is left behind: where the acquire may have
// reached Redis without an answer, it is undone in the background.
func (l *Lock) Acquire(ctx context.Context) (context.Context, error) {
	return l.acquire(ctx, (*waiter).wait)
}

// TryAcquire is Acquire without the wait: where somebody else holds the key, or is
// in line for it, it returns ErrBusy at once, and without asking Redis where that is
// known to this Client. It too asks a Redis that does not answer three times.
func (l *Lock) TryAcquire(ctx context.Context) (context.Context, error) {
	return l.acquire(ctx, (*waiter).try)
}

// acquire lets ask get a grant, and makes that a lease.
func (l *Lock) acquire(ctx context.Context, ask func(*waiter, context.Context) (grant, error)) (context.Context, error) {
	if err := l.check(ctx, nil); err != nil {
		return ctx, err
	}
	if ctx.Err() != nil {
		return ctx, newCallError("acquire", l.key, ctx.Err(), context.Cause(ctx))
	}
	own, cancel := context.WithCancelCause(ctx)
	if err := l.beginAcquire(cancel); err != nil {
		cancel(err)
		return ctx, newCallError("acquire", l.key, err)
	}
	defer l.client.acquiring.Done()

	w := &waiter{lock: l}
	got, err := ask(w, own)
	var le *lease
	if err != nil {
		l.endAcquire()
	} else if le = l.hold(w.asked, got, own, cancel); le == nil {
		w.asked.calls.open.Add(1) // granted, and nobody wants it any more
	}
	w.leave(le)
	if le != nil {
		return &le.ctx, nil
	}
	err = l.acquireError(ctx, own, err)
	cancel(err)
	return ctx, err
}

// acquireError says why an acquisition has failed. own is its context, which ends
// with ctx, and with ErrClosed.
func (l *Lock) acquireError(ctx, own context.Context, err error) error {
	switch {
	case ctx.Err() != nil && err != nil:
		return newCallError("acquire", l.key, err, ctx.Err(), context.Cause(ctx))
	case ctx.Err() != nil:
		return newCallError("acquire", l.key, ctx.Err(), context.Cause(ctx))
	case own.Err() != nil:
		return newCallError("acquire", l.key, ErrClosed)
	}
	if busy, ok := err.(*BusyError); ok {
		return busy // names the key itself
	}
	return newCallError("acquire", l.key, err)
}

// check refuses what cannot work, all of it at once, before anything is sent.
func (l *Lock) check(ctx context.Context, more []string) error {
	var faults []string
	key := l.Key()
	if l == nil || l.client == nil {
		faults = append(faults, "the Lock was not made by NewLock")
	} else {
		faults = append(faults, l.faults...)
	}
	if ctx == nil {
		faults = append(faults, "the ctx is nil")
	}
	if faults = append(faults, more...); len(faults) == 0 {
		return nil
	}
	return newCallError("acquire", key, ErrInvalid, errors.New(strings.Join(faults, "; ")))
}

// metadata is what follows the token in a value of this Lock's.
func (l *Lock) metadata() string {
	if l.settings.metadata == "" {
		return ""
	}
	return " " + l.settings.metadata
}

func (l *Lock) newAcquisition() *acquisition {
	value := uuid.NewString() + l.metadata()
	return &acquisition{
		door: l.client.door, clean: l.client.clean,
		name: l.key, names: l.names,
		value: value, boxed: value,
		ttl: l.settings.ttl, ttlArg: l.settings.ttl.Milliseconds(),
	}
}

// beginAcquire lets one Acquire in, which cancel ends.
func (l *Lock) beginAcquire(cancel context.CancelCauseFunc) error {
	seen, held := l.held()
	l.mu.Lock()
	defer l.mu.Unlock()
	// A lease that came in between is another Acquire's, which has just ended.
	if held || l.lease != nil && l.lease != seen || l.acquiring != nil || l.releasing != nil {
		return ErrInUse
	}
	if err := l.client.enter(l); err != nil {
		return err
	}
	l.acquiring = cancel
	return nil
}

// endAcquire ends an Acquire that got no lease.
func (l *Lock) endAcquire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acquiring = nil
	l.client.forget(l, nil)
}

// hold ends an Acquire with a lease. It returns nil if own has ended by then: its
// caller left, or the Client was closed. Both orders are safe, because Close, too,
// takes the mutex: before this it ends own, after this it finds the lease.
func (l *Lock) hold(a *acquisition, got grant, own context.Context, cancel context.CancelCauseFunc) *lease {
	le := &lease{
		key: l.key, token: a.token(), fence: got.fence, tenure: a,
		ttl: l.settings.ttl, renewEvery: l.settings.renewalInterval(), log: l.settings.log,
	}
	le.forget = func() { l.client.forget(l, le) }
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acquiring = nil
	if own.Err() != nil {
		l.client.forget(l, nil)
		return nil
	}
	l.client.hold(l, le)
	le.start(own, cancel, got.sentAt)
	l.lease, l.fence, l.closed = le, got.fence, nil
	return le
}

// held returns the Lock's last lease, nil if there is none, and whether it holds
// the key still.
func (l *Lock) held() (le *lease, held bool) {
	if l == nil {
		return nil, false
	}
	l.mu.Lock()
	le = l.lease
	l.mu.Unlock()
	// Without the mutex, since a lease that finds itself lost says so to others.
	return le, le != nil && le.alive(now())
}

// Release frees the key and ends the lease. It needs no context, since it must
// work when every context is dead, and takes at most the release timeout. Before
// it sends anything it ends the lease's context and its renewal.
//
// It is nil if the key was ours until now, even where the reply was lost and also
// after the ctx given to Acquire ended. It is ErrLost if the lease was lost
// before, once; and ErrNotHeld if there is nothing to release: without an
// acquisition, during one, a second time, or after another goroutine's Release,
// for which it waits. Any other error is Redis's or the network's own: the Lock
// then counts as not held, Acquire is allowed, and Release can be called again to
// repeat the first. The TTL frees the key if nothing else does.
func (l *Lock) Release() error {
	if l == nil || l.client == nil {
		return newCallError("release", l.Key(), ErrNotHeld)
	}
	// No context of anyone's: Release works when every one is dead.
	return l.release(context.Background(), l.settings.releaseTimeout, context.Canceled)
}

func (l *Lock) release(ctx context.Context, within time.Duration, cause error) error {
	le, err := l.beginRelease(ctx, within)
	if le == nil {
		return err
	}
	err = le.release(ctx, within, cause)
	if err != nil && !errors.Is(err, ErrLost) {
		err = newCallError("release", l.key, err)
	}
	l.endRelease(le, err, cause == ErrClosed)
	return err
}

// beginRelease lets one release in. It waits for another one, after which there is
// nothing to release. Without a lease it returns what there is to answer.
func (l *Lock) beginRelease(ctx context.Context, within time.Duration) (*lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other := l.releasing; other != nil {
		l.mu.Unlock()
		err := wait(ctx, other, within)
		l.mu.Lock()
		if err != nil {
			return nil, newCallError("release", l.key, errors.New("another release is under way"), err)
		}
	} else if l.lease != nil && l.acquiring == nil {
		l.releasing = make(chan struct{})
		return l.lease, nil
	}
	if closed := l.closed; closed != nil && l.acquiring == nil {
		l.closed = nil
		return nil, closed.err
	}
	return nil, newCallError("release", l.key, ErrNotHeld)
}

// wait waits until done closes, for a time (0: no bound) or until ctx ends.
func wait(ctx context.Context, done <-chan struct{}, within time.Duration) error {
	if within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endRelease ends a release with its answer, which a later Release may ask for
// again: that of Close to learn it, after an error to repeat this one.
func (l *Lock) endRelease(le *lease, err error, forClose bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.releasing)
	l.releasing, l.fence = nil, 0
	if forClose {
		l.closed = &closeAnswer{err}
	}
	if forClose || err == nil || errors.Is(err, ErrLost) {
		l.lease = nil
	}
	l.client.forget(l, le)
}

// endForClose ends what the Lock is at: its Acquire, or the context of its lease.
func (l *Lock) endForClose() {
	l.mu.Lock()
	le := l.lease
	if l.acquiring != nil {
		l.acquiring(ErrClosed) // under the mutex, so that hold sees it or is seen
	}
	l.mu.Unlock()
	if le != nil {
		le.end(now(), ErrClosed)
	}
}

// releaseForClose releases what the Lock still holds, and keeps the answer for the
// Release to come. Where it had to wait for a Release, and that one failed, it
// repeats it. A loss is no failure of Close.
func (l *Lock) releaseForClose(ctx context.Context) error {
	err := l.release(ctx, 0, ErrClosed)
	if le, _ := l.held(); le != nil && errors.Is(err, ErrNotHeld) {
		err = l.release(ctx, 0, ErrClosed)
	}
	if errors.Is(err, ErrLost) || errors.Is(err, ErrNotHeld) {
		return nil
	}
	return err
}

// WithLease acquires, runs fn on the caller's goroutine with the lease's context,
// and releases, also when fn panics or calls runtime.Goexit. It returns when fn
// has returned, and does not run fn without the lease.
//
// It returns fn's error, joined with ErrLost if the lease was lost before fn
// returned, even where fn returned nil: then somebody else may have worked at the
// same time. So test for ErrLost before context.Canceled, and inside fn return
// context.Cause(ctx) where the ctx ended. A release that only failed is logged and
// not returned, since the work is done. The errors of Acquire are returned as they
// are.
func (l *Lock) WithLease(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	if fn == nil {
		return l.check(ctx, []string{"the fn is nil"})
	}
	lease, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() {
		released := l.Release()
		switch {
		case errors.Is(released, ErrLost) && !errors.Is(err, ErrLost):
			err = errors.Join(err, released)
		case released != nil && !errors.Is(released, ErrLost):
			l.settings.log.Warn("leasehold: a release failed after the work was done", "key", l.key, "error", released)
		}
	}()
	return fn(lease)
}

// Key returns the key as named to NewLock.
func (l *Lock) Key() string {
	if l == nil {
		return ""
	}
	return l.key
}

// Token returns the token of the lease, or "" while none is held. It is an
// identity, and whoever has it can end the lease: not for logs.
func (l *Lock) Token() string {
	if le, held := l.held(); held {
		return le.token
	}
	return ""
}

// Fence returns the fence of the last lease: a number that strictly rises from one
// holder of a key to the next. It is 0 before the first acquisition and after
// Release, and kept over a loss. A store that keeps the highest fence it has seen,
// and refuses a write with a lower one, is safe from a holder that was paused.
func (l *Lock) Fence() int64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence
}

// Remaining returns the time until the lease's deadline, by the clock that says
// less, or 0 while none is held.
func (l *Lock) Remaining() time.Duration {
	if le, held := l.held(); held {
		return le.remaining(now())
	}
	return 0
}
