package leasehold_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

var sentinels = []error{
	leasehold.ErrBusy, leasehold.ErrLost, leasehold.ErrNotHeld, leasehold.ErrInUse, leasehold.ErrInvalid,
	leasehold.ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// matches checks that errors.Is finds in err just what is wanted.
func matches(t testing.TB, err error, want ...error) {
	t.Helper()
	if len(want) == 0 {
		assert.NoError(t, err)
		return
	}
	require.Error(t, err)
	for _, sentinel := range sentinels {
		wanted := false
		for _, w := range want {
			wanted = wanted || w == sentinel
		}
		assert.Equal(t, wanted, errors.Is(err, sentinel), "errors.Is(%q, %q)", err, sentinel)
	}
	assert.Contains(t, err.Error(), "leasehold: ")
	assert.Contains(t, err.Error(), `"orders:42"`)
	assert.NotContains(t, err.Error(), "leasehold: leasehold: ")
}

// errOther stands for an error that is none of the sentinels: Redis's or the network's.
var errOther = errors.New("other")

// The table of what each exported call answers in each situation.
func TestErrors(t *testing.T) {
	type world struct {
		t    *testing.T
		r    redistest.Redis
		c    *leasehold.Client
		wire *redistest.Wire
		rdb  *redis.Client
		l    *leasehold.Lock
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		make         func(w *world) context.Context
		acquire, try []error
		release      []error
	}{
		"free": {
			make:    func(w *world) context.Context { return w.t.Context() },
			release: []error{leasehold.ErrNotHeld},
		},
		"a stranger holds, and the wait ends": {
			make: func(w *world) context.Context {
				w.rdb.Set(w.t.Context(), key, "stranger", 0)
				w.l = w.c.NewLock(key, leasehold.WithWait(100*time.Millisecond))
				return w.t.Context()
			},
			acquire: []error{leasehold.ErrBusy}, try: []error{leasehold.ErrBusy}, release: []error{leasehold.ErrNotHeld},
		},
		"a stranger holds, and ctx has a deadline": {
			make: func(w *world) context.Context {
				w.rdb.Set(w.t.Context(), key, "stranger", 0)
				ctx, cancel := context.WithTimeout(w.t.Context(), 200*time.Millisecond)
				w.t.Cleanup(cancel)
				return ctx
			},
			try: []error{leasehold.ErrBusy}, acquire: []error{leasehold.ErrBusy, context.DeadlineExceeded},
			release: []error{leasehold.ErrNotHeld},
		},
		"held": {
			make: func(w *world) context.Context { acquire(w.t, w.l); return w.t.Context() },
			try:  []error{leasehold.ErrInUse}, acquire: []error{leasehold.ErrInUse},
		},
		"ctx cancelled": {
			make: func(w *world) context.Context { return cancelled },
			try:  []error{context.Canceled}, acquire: []error{context.Canceled}, release: []error{leasehold.ErrNotHeld},
		},
		"lost": {
			make: func(w *world) context.Context {
				lease := acquire(w.t, w.l)
				w.rdb.Set(w.t.Context(), key, "stranger", 0)
				ends(w.t, lease)
				ctx, cancel := context.WithTimeout(w.t.Context(), 100*time.Millisecond)
				w.t.Cleanup(cancel)
				return ctx
			},
			try: []error{leasehold.ErrBusy}, acquire: []error{leasehold.ErrBusy, context.DeadlineExceeded},
			release: []error{leasehold.ErrLost},
		},
		"closed": {
			make: func(w *world) context.Context { require.NoError(w.t, w.c.Close()); return w.t.Context() },
			try:  []error{leasehold.ErrClosed}, acquire: []error{leasehold.ErrClosed}, release: []error{leasehold.ErrNotHeld},
		},
		"closed while held": {
			make: func(w *world) context.Context {
				lease := acquire(w.t, w.l)
				require.NoError(w.t, w.c.Close())
				assert.Equal(w.t, leasehold.ErrClosed, context.Cause(lease))
				return w.t.Context()
			},
			try: []error{leasehold.ErrClosed}, acquire: []error{leasehold.ErrClosed},
		},
		"Redis down": {
			make: func(w *world) context.Context { w.wire.Down(); return w.t.Context() },
			try:  []error{errOther}, acquire: []error{errOther}, release: []error{leasehold.ErrNotHeld},
		},
		"Redis down while held": {
			make: func(w *world) context.Context { acquire(w.t, w.l); w.wire.Down(); return w.t.Context() },
			try:  []error{leasehold.ErrInUse}, acquire: []error{leasehold.ErrInUse}, release: []error{errOther},
		},
		"reply lost": {
			make: func(w *world) context.Context {
				next(w.wire, redistest.LoseReply)
				return w.t.Context()
			},
			release: []error{leasehold.ErrNotHeld},
		},
		"reply lost while held": {
			make: func(w *world) context.Context {
				acquire(w.t, w.l)
				next(w.wire, redistest.LoseReply)
				return w.t.Context()
			},
			try: []error{leasehold.ErrInUse}, acquire: []error{leasehold.ErrInUse},
		},
		"the key is a list": {
			make: func(w *world) context.Context { w.rdb.RPush(w.t.Context(), key, "x"); return w.t.Context() },
			try:  []error{errOther}, acquire: []error{errOther}, release: []error{leasehold.ErrNotHeld},
		},
		"invalid": {
			make: func(w *world) context.Context { w.l = w.c.NewLock(key, leasehold.WithTTL(-1)); return w.t.Context() },
			try:  []error{leasehold.ErrInvalid}, acquire: []error{leasehold.ErrInvalid}, release: []error{leasehold.ErrNotHeld},
		},
	} {
		for call, want := range map[string][]error{"Release": c.release, "TryAcquire": c.try, "Acquire": c.acquire, "WithLease": c.acquire} {
			t.Run(name+"/"+call, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := &world{t: t, r: redistest.NewBubble(t)}
					w.c, w.wire, w.rdb = wired(t, w.r, leasehold.WithTTL(2*time.Second))
					w.l = w.c.NewLock(key)
					ctx := c.make(w)
					switch call {
					case "Release":
						matches(t, w.l.Release(), want...)
						if want == nil || want[0] != errOther {
							matches(t, w.l.Release(), leasehold.ErrNotHeld)
						}
					case "TryAcquire":
						got, err := w.l.TryAcquire(ctx)
						matches(t, err, want...)
						assert.Equal(t, err != nil, got == ctx, "on an error the ctx is returned that was given")
					case "Acquire":
						got, err := w.l.Acquire(ctx)
						matches(t, err, want...)
						assert.Equal(t, err != nil, got == ctx)
					case "WithLease":
						ran := false
						matches(t, w.l.WithLease(ctx, func(context.Context) error { ran = true; return nil }), want...)
						assert.Equal(t, want == nil, ran)
					}
				})
			})
		}
	}
}

func TestErrors_KeepTheirCause(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, rdb := wired(t, r)
		rdb.RPush(t.Context(), key, "x")
		_, err := c.NewLock(key).Acquire(t.Context())
		assert.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), err)

		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		_, err = c.NewLock("k").Acquire(ctx)
		assert.ErrorIs(t, err, why)
		assert.ErrorIs(t, err, context.Canceled)

		wire.Down()
		_, err = c.NewLock("k").TryAcquire(t.Context())
		assert.Contains(t, err.Error(), "refused")
	})
}

func TestErrors_NilAndZero(t *testing.T) {
	var noContext context.Context
	for _, l := range []*leasehold.Lock{nil, {}, (&leasehold.Client{}).NewLock(key)} {
		for _, acquire := range []func(context.Context) (context.Context, error){l.Acquire, l.TryAcquire} {
			_, err := acquire(t.Context())
			assert.ErrorIs(t, err, leasehold.ErrInvalid)
			assert.ErrorContains(t, err, "the Lock was not made by NewLock")
			_, err = acquire(noContext)
			assert.ErrorContains(t, err, "the Lock was not made by NewLock; the ctx is nil")
		}
		assert.ErrorIs(t, l.WithLease(t.Context(), nil), leasehold.ErrInvalid)
		assert.ErrorIs(t, l.Release(), leasehold.ErrNotHeld)
		assert.Empty(t, l.Token())
		assert.Zero(t, l.Fence())
		assert.Zero(t, l.Remaining())
	}
	l := leasehold.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})).NewLock(key, leasehold.WithTTL(1))
	err := l.WithLease(noContext, nil)
	assert.ErrorIs(t, err, leasehold.ErrInvalid)
	for _, what := range []string{key, "WithTTL(1ns)", "the ctx is nil", "the fn is nil"} {
		assert.ErrorContains(t, err, what)
	}
}

func TestLossReason_String(t *testing.T) {
	seen := map[string]bool{}
	for _, reason := range []leasehold.LossReason{leasehold.LossExpired, leasehold.LossTaken, leasehold.LossGone, leasehold.LossSuspended} {
		seen[reason.String()] = true
		assert.NotContains(t, reason.String(), "LossReason")
	}
	assert.Len(t, seen, 4)
	assert.Equal(t, "LossReason(9)", leasehold.LossReason(9).String())
}

func TestWithLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, rdb := wired(t, r, leasehold.WithTTL(time.Second))
		l := c.NewLock(key)
		why := errors.New("fn's own")

		assert.NoError(t, l.WithLease(t.Context(), func(ctx context.Context) error {
			fence, ok := leasehold.FenceFrom(ctx, key)
			assert.True(t, ok)
			assert.Equal(t, l.Fence(), fence)
			return nil
		}))
		assert.Equal(t, why, l.WithLease(t.Context(), func(context.Context) error { return why }))
		assert.Empty(t, get(t, rdb, key), "released")

		assert.PanicsWithValue(t, "fn panics", func() {
			_ = l.WithLease(t.Context(), func(context.Context) error { panic("fn panics") })
		})
		assert.Empty(t, get(t, rdb, key), "released after a panic")

		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_ = l.WithLease(t.Context(), func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-gone
		assert.Empty(t, get(t, rdb, key), "released after Goexit")

		lose := func(answer error) error {
			return l.WithLease(t.Context(), func(ctx context.Context) error {
				rdb.Del(context.Background(), key)
				<-ctx.Done()
				return answer
			})
		}
		assert.ErrorIs(t, lose(nil), leasehold.ErrLost, "lost, though fn returned nil")
		err := lose(why)
		assert.ErrorIs(t, err, why)
		assert.ErrorIs(t, err, leasehold.ErrLost)
		err = l.WithLease(t.Context(), func(ctx context.Context) error {
			rdb.Del(context.Background(), key)
			<-ctx.Done()
			return fmt.Errorf("fn: %w", context.Cause(ctx))
		})
		assert.ErrorIs(t, err, leasehold.ErrLost)

		assert.NoError(t, l.WithLease(t.Context(), func(context.Context) error { wire.Down(); return nil }),
			"a release that only failed")
		wire.Up()
		assert.NoError(t, l.Release(), "can be repeated")
	})
}

func TestFenceFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, redistest.NewBubble(t).Client(t), leasehold.WithPrefix("app:"))
		outer, inner := c.NewLock("a"), c.NewLock("b")
		ctx, err := outer.Acquire(t.Context())
		require.NoError(t, err)
		ctx, err = inner.Acquire(ctx)
		require.NoError(t, err)
		deep, cancel := context.WithCancel(context.WithValue(ctx, errOther, 1))
		defer cancel()
		for name, l := range map[string]*leasehold.Lock{"a": outer, "b": inner} {
			fence, ok := leasehold.FenceFrom(deep, name)
			assert.True(t, ok)
			assert.Equal(t, l.Fence(), fence)
		}
		_, ok := leasehold.FenceFrom(deep, "app:a")
		assert.False(t, ok, "as named to NewLock")
		want := inner.Fence()
		require.NoError(t, inner.Release())
		fence, ok := leasehold.FenceFrom(deep, "b")
		assert.True(t, ok, "it still answers after the lease has ended")
		assert.Equal(t, want, fence)
		require.NoError(t, outer.Release())
	})
}

func TestClose(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, _, rdb := wired(t, r)
		held := make([]*leasehold.Lock, 100)
		leases := make([]context.Context, len(held))
		for n := range held {
			held[n] = c.NewLock(fmt.Sprint("k", n))
			leases[n] = acquire(t, held[n])
		}
		waits := make(chan error)
		go func() { waits <- second(c.NewLock("k0").Acquire(t.Context())) }()
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, c.Close())
		assert.ErrorIs(t, <-waits, leasehold.ErrClosed)
		for n := range held {
			assert.Equal(t, leasehold.ErrClosed, context.Cause(leases[n]))
			assert.Empty(t, get(t, rdb, fmt.Sprint("k", n)))
			assert.NoError(t, held[n].Release(), "Close has released it")
			assert.ErrorIs(t, held[n].Release(), leasehold.ErrNotHeld)
		}
		assert.NoError(t, c.Close(), "a second Close")
		assert.NoError(t, rdb.Ping(t.Context()).Err())
	})
}

func TestClose_ThatFails(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, _ := wired(t, r)
		l := c.NewLock(key)
		lease := acquire(t, l)
		wire.Down()
		err := c.Close()
		require.Error(t, err)
		assert.Contains(t, err.Error(), "1 of 1 locks were not released")
		assert.Equal(t, leasehold.ErrClosed, context.Cause(lease))
		wire.Up()
		answer := l.Release()
		require.Error(t, answer, "Close's error")
		assert.NotErrorIs(t, answer, leasehold.ErrNotHeld)
		assert.ErrorIs(t, l.Release(), leasehold.ErrNotHeld, "once")
	})
}
