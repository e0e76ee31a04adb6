package leasehold_test

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

func fields(s string) []string { return strings.Fields(s) }

// soon is how long after its ctx's end a call may return.
const soon = 50 * time.Millisecond

// bounded calls f and checks that it returns within a time and soon.
func bounded(t testing.TB, r redistest.Redis, limit time.Duration, what string, f func()) {
	t.Helper()
	began := time.Now()
	f()
	assert.LessOrEqual(t, time.Since(began), limit+soon+slack(r), what)
}

// Redis hangs, or no connection is to be had: each call returns with its ctx, by
// its deadline and by a cancel, and Release and Close with their timeout.
func TestG10_CallsReturnWithTheirContext(t *testing.T) {
	for name, hang := range map[string]func(t *testing.T, r redistest.Redis, rdb *redis.Client){
		"Redis hangs":       func(t *testing.T, r redistest.Redis, _ *redis.Client) { r.Pause(t) },
		"the pool is empty": func(t *testing.T, _ redistest.Redis, rdb *redis.Client) { occupyPool(t, rdb) },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, r redistest.Redis) {
				rdb := r.Client(t, func(o *redis.Options) { o.PoolSize = 1 })
				c := newClient(t, rdb, leasehold.WithReleaseTimeout(600*time.Millisecond))
				held := c.NewLock(key)
				acquire(t, held)
				closed := c.NewLock("held until Close")
				acquire(t, closed)
				hang(t, r, rdb)

				const limit = 150 * time.Millisecond // and the client's own timeouts are 5 s and more
				calls := map[string]func(ctx context.Context) error{
					"Acquire":    func(ctx context.Context) error { return second(c.NewLock("a").Acquire(ctx)) },
					"TryAcquire": func(ctx context.Context) error { return second(c.NewLock("b").TryAcquire(ctx)) },
					"WithLease": func(ctx context.Context) error {
						return c.NewLock("c").WithLease(ctx, func(context.Context) error { t.Error("fn ran without a lease"); return nil })
					},
				}
				for what, call := range calls {
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					bounded(t, r, limit, what+", deadline", func() { assert.Error(t, call(ctx)) })
					cancel()
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(limit, cancel)
					bounded(t, r, limit, what+", cancel", func() { assert.ErrorIs(t, call(ctx), context.Canceled) })
				}
				bounded(t, r, 600*time.Millisecond, "no bound but the three tries", func() {
					assert.Error(t, second(c.NewLock("d", leasehold.WithTTL(600*time.Millisecond)).Acquire(t.Context())))
				})
				bounded(t, r, 600*time.Millisecond, "Release", func() { assert.Error(t, held.Release()) })
				bounded(t, r, 600*time.Millisecond, "Close", func() { assert.Error(t, c.Close()) })
				r.Resume(t)
			})
		})
	}
}

// WithWait bounds the wait and not the lease.
func TestAcquire_WithWait(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c := newClient(t, r.Client(t), leasehold.WithTTL(time.Second))
		l := c.NewLock(key, leasehold.WithWait(300*time.Millisecond))
		lease := acquire(t, l)
		time.Sleep(500 * time.Millisecond)
		require.NoError(t, lease.Err())

		other := c.NewLock(key, leasehold.WithWait(300*time.Millisecond))
		began := time.Now()
		ctx, err := other.Acquire(t.Context())
		assert.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
		assert.ErrorIs(t, err, leasehold.ErrBusy)
		assert.NotErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, t.Context(), ctx, "on an error Acquire returns the ctx it was given")
		require.NoError(t, l.Release())
	})
}

// A wait goes on while Redis is away, once Redis has answered it.
func TestAcquire_WaitsOverAnOutage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, rdb := wired(t, r, leasehold.WithTTL(time.Second))
		require.True(t, rdb.SetNX(t.Context(), key, "stranger", 0).Val())
		got := make(chan error)
		l := c.NewLock(key)
		go func() { got <- second(l.Acquire(t.Context())) }()
		time.Sleep(300 * time.Millisecond)
		wire.Down()
		time.Sleep(time.Second)
		rdb.Del(t.Context(), key)
		wire.Up()
		require.NoError(t, <-got)
		require.NoError(t, l.Release())

		wire.Down()
		bounded(t, r, 3*time.Second, "before Redis has answered", func() { assert.Error(t, second(l.Acquire(t.Context()))) })
		require.NoError(t, c.Close())
	})
}

// The wait ends while Redis is away: that is not busy, though it was before, if an
// acquire is unanswered since.
func TestG7_UnansweredPollIsNotBusy(t *testing.T) {
	redistest.Each(t, func(t *testing.T, r redistest.Redis) {
		c, wire, rdb := wired(t, r)
		require.True(t, rdb.SetNX(t.Context(), key, "stranger", 0).Val())
		began := time.Now()
		wire.Decide(func(request string) redistest.Fate {
			if !strings.Contains(request, "eval") || time.Since(began) < 200*time.Millisecond {
				return redistest.Pass
			}
			rdb.Del(context.Background(), key) // so that this poll takes it
			return redistest.SwallowReply
		})
		_, err := c.NewLock(key, leasehold.WithWait(1500*time.Millisecond)).Acquire(t.Context())
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NotErrorIs(t, err, leasehold.ErrBusy)
		wire.Decide(nil)
		eventually(t, func() bool { return get(t, rdb, key) == "" }, "clean-up")
		require.NoError(t, c.Close())
	})
}

// Many renewals to a hung server must not pile up inside go-redis, whose own
// timeouts may be switched off; and none keeps out the clean-up.
func TestDoor_CallsThatHangAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		rdb := b.Client(t, func(o *redis.Options) { o.PoolSize, o.ReadTimeout = 50, -1 })
		c := newClient(t, rdb, leasehold.WithTTL(time.Minute))
		warm(t, c)
		lease := acquire(t, c.NewLock(key))
		b.Pause(t)
		ends(t, lease)
		stats := rdb.PoolStats()
		assert.EqualValues(t, 3, stats.TotalConns-stats.IdleConns)
		b.Resume(t)
	})
}

// All three tries of an acquire hang, and so they stay: clean-up goes ahead on
// connections that work.
func TestG5_CleanUpPassesCallsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		wire := redistest.NewWire()
		c := newClient(t, b.Client(t, wire.Attach, func(o *redis.Options) { o.ReadTimeout = -1 }), leasehold.WithTTL(time.Hour))
		warm(t, c)
		next(wire, redistest.SwallowReply, redistest.SwallowReply, redistest.SwallowReply)
		_, err := c.NewLock(key).TryAcquire(t.Context())
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		time.Sleep(time.Second)
		assert.False(t, b.Exists(key))
	})
}

// slowReplies is a hook that holds back what Redis has answered.
type slowReplies time.Duration

func (d slowReplies) DialHook(next redis.DialHook) redis.DialHook { return next }
func (d slowReplies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		time.Sleep(time.Duration(d))
		return err
	}
}
func (d slowReplies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The key's TTL began before the answer came, so the lease must have, too.
func TestG2_LeaseCountsFromTheSend(t *testing.T) {
	const ttl, late = time.Second, 200 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		rdb := b.Client(t)
		c := newClient(t, rdb, leasehold.WithTTL(ttl))
		warm(t, c)
		learns := c.NewLock("warm")
		acquire(t, learns)
		time.Sleep(ttl) // and the renewal script
		require.NoError(t, learns.Release())
		rdb.AddHook(slowReplies(late))

		began := time.Now()
		fixed := c.NewLock(key, leasehold.WithoutRenewal())
		lease := acquire(t, fixed)
		assert.Equal(t, late, time.Since(began))
		ends(t, lease)
		assert.Equal(t, ttl-drift(ttl), time.Since(began), "counted from the send of the acquire")
		assert.True(t, b.Exists(key), "the key is still there")
		require.ErrorIs(t, fixed.Release(), leasehold.ErrLost)

		began = time.Now()
		renewed := c.NewLock(key)
		lease = acquire(t, renewed)
		time.Sleep(ttl/2 - late + time.Millisecond) // a renewal has been sent at TTL/2
		b.Pause(t)
		ends(t, lease)
		assert.Equal(t, ttl/2+ttl-drift(ttl), time.Since(began), "counted from the send of the renewal")
		b.Resume(t)
	})
}

// A value that was granted too late to be a lease is asked for again.
func TestAcquire_GrantReadAfterItsDeadline(t *testing.T) {
	const ttl = 30 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		c := newClient(t, b.Client(t), leasehold.WithTTL(ttl))
		warm(t, c)
		var slow atomic.Bool
		slow.Store(true)
		b.OnCommand(func(cmd string, _ []string) {
			if cmd == "EVALSHA" && slow.Swap(false) {
				time.Sleep(2 * ttl)
			}
		})
		l := c.NewLock(key)
		lease := acquire(t, l)
		assert.NoError(t, lease.Err())
		assert.LessOrEqual(t, l.Remaining(), ttl-drift(ttl))
		require.NoError(t, l.Release())
		time.Sleep(time.Second)
		assert.False(t, b.Exists(key))
	})
}

// A call that hangs stays in the client until its own timeouts end it, and then
// nothing of it is left.
func TestG12_HungCallsEndWithTheClientsTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := redistest.NewBubble(t)
		rdb := b.Client(t)
		c := newClient(t, rdb, leasehold.WithTTL(time.Second))
		lease := acquire(t, c.NewLock(key))
		b.Pause(t)
		ends(t, lease)
		stats := rdb.PoolStats()
		assert.Positive(t, stats.TotalConns-stats.IdleConns, "a call hangs")
		time.Sleep(20 * time.Second)
		stats = rdb.PoolStats()
		assert.Zero(t, stats.TotalConns-stats.IdleConns)
		b.Resume(t)
	})
}
